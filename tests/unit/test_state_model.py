"""Every kind of state, on both backends, against plain dictionaries, through checkpoints that are late, given up, restored.

Runs go over all states in pairs (plain, with a TTL, refreshed by reads; typed and pickled). Each draws a type of keys, a
layout, how much may be in memory, and a few hundred steps (state_job.py). A run that fails says its seed.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rocksdb_kit import RocksBackends, rocks_backends
from state_job import run


@pytest.fixture
def backends() -> Iterator[RocksBackends]:
    with rocks_backends() as made:
        yield made


@pytest.mark.parametrize("part", range(5))
def test_state_in_rocksdb_agrees_with_plain_dictionaries(backends: RocksBackends, part: int) -> None:
    for number in range(4 * part, 4 * part + 4):
        run("rocksdb", number, backends, 400, on_rocksdb=True)


@pytest.mark.parametrize("part", range(3))
def test_state_on_the_heap_agrees_with_plain_dictionaries(backends: RocksBackends, part: int) -> None:
    for number in range(7 * part, 7 * part + 7):
        run("heap", number, backends, 400, on_rocksdb=False)


@pytest.mark.parametrize("on_rocksdb", [True, False], ids=["rocksdb", "heap"])
def test_the_same_while_a_thread_writes_the_snapshots(backends: RocksBackends, on_rocksdb: bool) -> None:
    for number in range(3):
        run("threads", number, backends, 400, on_rocksdb, threads=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("threads", [False, True], ids=["in turn", "threads"])
@pytest.mark.parametrize("on_rocksdb", [True, False], ids=["rocksdb", "heap"])
def test_thousands_of_runs_agree_with_plain_dictionaries(on_rocksdb: bool, threads: bool) -> None:
    for number in range(1000):
        with rocks_backends() as backends:
            run("many", number, backends, 600, on_rocksdb, threads)
