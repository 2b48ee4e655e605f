"""Random graphs, random interleavings, random faults: after every restore and replay, each record is applied once.

What a run is made of stands in random_runs.py, which is also a command for as many runs as wanted. A failure prints its case;
TIDEGATE_SEED=<seed> runs that seed alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from random_runs import BACKENDS, KINDS, run_and_check

from tidegate.task.in_flight import store_parts

RUNS = {"heap": 5, "rocksdb": 2}  #: of each kind, in `make test`
RUNS_WHEN_SLOW = 250


def seeds(first: int, runs: int) -> list[int]:
    """The same cases every time, unless a seed is given."""
    given = os.environ.get("TIDEGATE_SEED")
    return [int(given)] if given is not None else list(range(first, first + runs))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_applied_once(kind: str, backend: str, tmp_path: Path) -> None:
    for seed in seeds(0, RUNS[backend]):
        run_and_check(kind, backend, seed, str(tmp_path))


@pytest.mark.parametrize("kind", ["unaligned", "rescaled"])
def test_each_record_is_applied_once_where_much_is_in_flight_and_stored_in_parts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []

    def counted(*given: Any) -> Any:
        stored = store_parts(*given)
        parts.append(len(stored[0]))
        return stored

    monkeypatch.setattr("tidegate.task.in_flight.SECTION_BYTES", 20)
    monkeypatch.setattr("tidegate.task.in_flight.PART_BYTES", 60)
    monkeypatch.setattr("tidegate.task.snapshots.store_parts", counted)
    for seed in seeds(1021, RUNS["heap"]):
        run_and_check(kind, "heap", seed, str(tmp_path))
    assert max(parts) > 1


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_each_record_is_applied_once_in_thousands_of_runs(kind: str, backend: str, tmp_path: Path) -> None:
    for seed in seeds(10_000, RUNS_WHEN_SLOW):
        run_and_check(kind, backend, seed, str(tmp_path))
