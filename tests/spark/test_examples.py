"""The examples do what they say. Each runs as a user runs it, but in this process and on the tests' Spark."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.spark


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setattr(sys, "argv", [name, str(folder)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_sessions_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        lines = run("sessions.py", tmp_path, monkeypatch, capsys)
        assert lines[-1] == "1000 visits of 100 users, 50000 clicks"


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_edit_state(
    times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(times):
        lines = run("edit_state.py", tmp_path, monkeypatch, capsys)

    assert lines[-10:] == [f"customer-{n} {1_002_000 if n == 3 else 2_000}" for n in range(10)]


def test_programs_for_pyflink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = run("pyflink_word_count.py", tmp_path, monkeypatch, capsys)
    sums = run("pyflink_timers.py", tmp_path, monkeypatch, capsys)
    judged = run("pyflink_broadcast.py", tmp_path, monkeypatch, capsys)

    assert len(words) == 13
    assert words[-1] == "('shut', 1)"
    assert "('the', 3)" in words
    assert sorted(sums) == ["('north', 5500, 141.0)", "('south', -1.0)", "('south', 6000, 43.0)"]
    assert judged == ["ann 12 fine", "ann 40 large", "bob 7 fine", "bob 90 large+largest", "cid 3 fine"]
