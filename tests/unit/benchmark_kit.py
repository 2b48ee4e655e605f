"""Benchmarks as modules, for the tests that run their pieces at a tiny size."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


class Benchmarks:
    """`benchmarks("rocksdb")`, `benchmarks("peers/compare")`: what it imports from beside it is found too."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._monkeypatch = monkeypatch
        self._tmp_path = tmp_path

    def __call__(self, name: str) -> Any:
        for folder in (FOLDER, (FOLDER / name).parent):
            self._monkeypatch.syspath_prepend(str(folder))
        with warnings.catch_warnings():  # they switch warnings off for themselves
            module = __import__(Path(name).name)
            harness = __import__("harness")
        self._monkeypatch.setattr(harness, "fresh_folder", lambda name: fresh(self._tmp_path / name))
        return module


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def loading(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Benchmarks]:
    """Their modules are forgotten afterwards: other tests have modules of the same names."""
    before = set(sys.modules)
    yield Benchmarks(monkeypatch, tmp_path)
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and FOLDER in Path(file).parents:
            del sys.modules[name]


def last_json(capsys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found
