"""The benchmarks of state lean on classes of the product: with a few keys each, they still run, and say what they measure."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Imports one of them by name; its folders are the test's."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)

    def load(name: str) -> Any:
        with warnings.catch_warnings():  # they switch warnings off for themselves
            module = __import__(name)
        monkeypatch.setattr(module.harness, "fresh_folder", lambda name: _made(tmp_path / name))
        return module

    yield load
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and Path(str(sys.modules[name].__file__)).parent == FOLDER:
            del sys.modules[name]


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_snapshot_pause(benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = benchmark("snapshot_pause")
    monkeypatch.setattr(module, "AT_LEAST_S", 0.0)
    monkeypatch.setattr(module, "WARM_UP_S", 0.0)
    monkeypatch.setattr(module, "KEYS_OF", {10_000: 50, 100_000: 100, 1_000_000: 200})
    interval = sys.getswitchinterval()
    try:
        module.main(1)
    finally:
        sys.setswitchinterval(interval)

    assert set(said(capsys)["asynchronous_ms"]) == {
        f"{layout}_{keys}" for layout in ("columns", "objects") for keys in (10_000, 100_000, 1_000_000)
    }


def test_incremental(benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = benchmark("incremental")
    monkeypatch.setattr(module, "COMPACTION_TIME_S", 0.0)
    module.main(500, 3)

    found = said(capsys)
    assert found["orphans"] == 0
    for faults in found["after_faults"].values():
        assert faults["killed_in_mid_upload"] == 3
        assert faults["checkpoints_given_up"] >= 3


def test_rocksdb(benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = benchmark("rocksdb")
    monkeypatch.setattr(module, "KEYS", 100)
    monkeypatch.setattr(module, "BATCH", 64)
    monkeypatch.setattr(module, "SMALL_MEMORY_BYTES", 1 << 18)
    module.main(1, 20_000)

    for way in said(capsys)["beyond_the_cache"].values():
        assert way["keys"] == 10 * way["keys_in_memory"] > 0
