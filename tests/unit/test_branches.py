"""What is measured by tools/branches.py is there, and a branch that no test takes is a failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import branches

MODULE = """
def sign(number):
    if number < 0:
        return "-"
    return "+"
"""
TESTS = """
from signs import sign


def test_positive():
    assert sign(1) == "+"


def test_negative():
    assert sign(-1) == "-"
"""


def test_a_branch_that_no_test_takes_is_a_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "signs.py").write_text(MODULE)
    (tmp_path / "test_signs.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")

    assert branches.measure(tmp_path, ["signs.py"], ["test_signs.py"], ["negative"]) != 0
    assert "fail-under=100" in capfd.readouterr().out


def test_what_is_named_is_there() -> None:
    assert all(list(branches.ROOT.glob(each)) for each in branches.MEASURED)
    text = "\n".join((branches.ROOT / each).read_text() for each in branches.TESTS)
    tests = re.findall(r"^def (test_\w+)", text, re.MULTILINE)
    assert [name for name in branches.LEFT_OUT if not any(name in test for test in tests)] == []
