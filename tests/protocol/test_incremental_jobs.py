"""Whole jobs on both backends, with full and with incremental checkpoints: killed at every step, restored, rescaled.

The product's own slots and coordinator run in this process; RocksDB is real, on the local disk. After each run the storage
is listed and compared with what the log refers to.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from protocol_kit import (
    CountEach,
    Numbered,
    assert_counted_once,
    environment,
    fresh_storage,
    log_records,
    run_to_the_end,
)

import tidegate as tg
from matrices import in_turn
from tidegate.coordinator.observing import CheckpointStatus
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.paths import JobPaths
from tidegate.storage.retention import files_in_use
from tidegate.storage.store import open_store
from tidegate.task import keyed_files
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

SOURCE = Numbered(1, splits=4, per_split=60, rows_per_poll=(3, 1, 2))
BACKENDS = [("hashmap", True), ("rocksdb", False), ("rocksdb", True)]


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


class AllKinds(tg.KeyedProcessFunction):
    """Uses every kind of keyed state, and deletes: (key, number, what each state holds)."""

    last = tg.ValueState(str)
    items = tg.ListState(int)
    seen = tg.MapState(int, float)
    total = tg.ReducingState(int, lambda a, b: a + b)

    def process_element(self, row: tuple[int, int], ctx: tg.Context) -> Iterable[tuple[int, int, str, int, int, int]]:
        number = row[1]
        if number % 10 == 7:
            self.items.clear()
            self.last.clear()
        else:
            self.items.add(number)
            self.last.set(f"n{number}")
        self.seen.put(number % 5, float(number))
        if number % 11 == 3:
            self.seen.remove(number % 5)
        self.total.add(1)
        yield (ctx.key, number, self.last.get() or "", len(self.items.get()), len(self.seen), self.total.get() or 0)


def job(storage: str, backend: str, incremental: bool, parallelism: int = 2, **settings: Any) -> tg.StreamEnvironment:
    env = environment(storage=storage, parallelism=parallelism, every="10ms", **settings)
    env.state_backend(backend, incremental=incremental, memory="4mb")
    keyed = env.from_source(SOURCE, uid="source", returns=tuple[int, int]).key_by(lambda row: row[1] % 5, key_type=int)
    counted = keyed.process(CountEach(), uid="count", returns=tuple[int, int, int, int, bool])
    counted.sink_to(LedgerSink("out"), uid="out")
    kinds = keyed.process(AllKinds(), uid="kinds", returns=tuple[int, int, str, int, int, int])
    kinds.sink_to(LedgerSink("kinds"), uid="kinds-out")
    return env


def assert_nothing_is_left_behind(storage: str) -> None:
    """Every file of keyed state that is stored is one that a retained checkpoint refers to."""
    store, newest = open_store(storage), log_records(storage)[-1]
    stored = {path for path in store.list(JobPaths("job").folder) if path.endswith(".state")}
    assert stored <= files_in_use(store, newest)


def assert_all_kinds_agree() -> None:
    """The state of each key followed one order of its records: the totals count, and the last record's state is whole."""
    rows = ledger("kinds").rows()
    assert sorted(row[1] for row in rows) == sorted(SOURCE.numbers())
    for key in range(5):
        mine = sorted((row for row in rows if row[0] == key), key=lambda row: row[5])
        assert [row[5] for row in mine] == list(range(1, len(mine) + 1))
        items, seen = 0, set[int]()
        for _, number, last, length, entries, _ in mine:
            items = 0 if number % 10 == 7 else items + 1
            seen.add(number % 5)
            if number % 11 == 3:
                seen.discard(number % 5)
            assert (last, length, entries) == ("" if number % 10 == 7 else f"n{number}", items, len(seen))


@pytest.mark.parametrize(("backend", "incremental"), BACKENDS)
def test_without_failures(backend: str, incremental: bool) -> None:
    storage = fresh_storage()
    run = run_to_the_end(job(storage, backend, incremental), 1)

    assert_counted_once(ledger("out").rows(), SOURCE)
    assert_all_kinds_agree()
    assert_nothing_is_left_behind(storage)
    checkpoints = [c for c in run.world.view.checkpoints.values() if c.status is CheckpointStatus.COMPLETED]
    assert any(c.added_bytes < c.size_bytes for c in checkpoints) is incremental
    assert all(0 < c.added_bytes <= c.size_bytes for c in checkpoints)
    states = [state for slot in newest_checkpoint(storage).slots for state in slot.states]
    assert {state.uid for state in states} == ({"count", "kinds"} if incremental else set())


@pytest.mark.parametrize(
    ("point", "backend", "incremental"), in_turn((p for p in ALL_POINTS if p != "driver.after-finished"), BACKENDS)
)
def test_a_crash_at_each_step_twice_in_a_row(backend: str, incremental: bool, point: str) -> None:
    storage = fresh_storage()
    nth = 1 if "finished" in point or point == "slot.restored" else 2 if point.startswith("driver") else 3
    run_to_the_end(job(storage, backend, incremental), 2, Crash(point, nth=nth, times=2))

    assert_counted_once(ledger("out").rows(), SOURCE)
    assert_all_kinds_agree()
    assert_nothing_is_left_behind(storage)


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (1, 5), (4, 1)])
@pytest.mark.parametrize(("backend", "incremental"), BACKENDS)
def test_restored_at_another_parallelism(backend: str, incremental: bool, old: int, new: int) -> None:
    storage = fresh_storage()
    fail_once_logged(storage, job(storage, backend, incremental, old), checkpoints=2)
    run_to_the_end(job(storage, backend, incremental, new, resume="latest"), 4)

    assert_counted_once(ledger("out").rows(), SOURCE)
    assert_all_kinds_agree()
    assert_nothing_is_left_behind(storage)


@pytest.mark.parametrize("after", BACKENDS, ids=str)
@pytest.mark.parametrize("before", BACKENDS, ids=str)
def test_restored_into_another_backend(before: tuple[str, bool], after: tuple[str, bool]) -> None:
    storage = fresh_storage()
    fail_once_logged(storage, job(storage, *before), checkpoints=3)
    run_to_the_end(job(storage, *after, resume="latest"), 4)

    assert_counted_once(ledger("out").rows(), SOURCE)
    assert_all_kinds_agree()
    assert_nothing_is_left_behind(storage)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_several_checkpoints_at_once_and_retained(backend: str) -> None:
    storage = fresh_storage()
    run_to_the_end(job(storage, backend, True, max_concurrent=3, retained=3), 5, Crash("slot.before-ack", nth=4))

    assert_counted_once(ledger("out").rows(), SOURCE)
    assert_all_kinds_agree()
    assert len(log_records(storage)[-1].retained) == 3


def test_the_heap_makes_a_new_base_when_the_chain_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_files, "LONGEST_CHAIN", 2)
    monkeypatch.setattr(keyed_files, "LARGEST_SHARE", 100.0)
    chains: list[list[str]] = []
    store = keyed_files.HeapFiles.store

    def noting(self: Any, checkpoint: Any, snapshot: Any) -> Any:
        stored = store(self, checkpoint, snapshot)
        chains.append([file.name for file in stored.files])
        return stored

    monkeypatch.setattr(keyed_files.HeapFiles, "store", noting)
    storage = fresh_storage()
    run_to_the_end(job(storage, "hashmap", True, parallelism=1), 6)

    assert ["base"] in chains[3:], "a second base"
    assert max(map(len, chains)) == 1 + 2
    assert all(names[0] == "base" and set(names[1:]) <= {"changes"} for names in chains)
    assert_nothing_is_left_behind(storage)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("damage", ["changed", "cut", "missing"])
def test_a_damaged_file_is_never_restored(backend: str, damage: str) -> None:
    storage = fresh_storage()
    fail_once_logged(storage, job(storage, backend, True, 1), checkpoints=3)
    store = open_store(storage)
    file = next(
        file for slot in newest_checkpoint(storage).slots for state in slot.states for file in state.files if file.size
    )
    if damage == "missing":
        store.delete(file.path)
    else:
        data = bytearray(store.get(file.path))
        data[len(data) // 2] ^= 0xFF
        store.put(file.path, bytes(data[: len(data) // 3] if damage == "cut" else data))

    result = run_in_process(job(storage, backend, True, 1, resume="latest").restart_strategy("none"), 4)

    assert result.error is not None
    assert "cannot be restored" in str(result.error), result.error


def newest_checkpoint(storage: str) -> Any:
    pointer = log_records(storage)[-1].latest
    assert pointer is not None
    return load_checkpoint(open_store(storage), pointer)


def fail_once_logged(storage: str, env: tg.StreamEnvironment, checkpoints: int) -> None:
    """Run until so many checkpoints are in the log; then the only driver dies."""
    with pytest.raises(AllDriversDied):
        InProcessRun(env, 3, [Crash("driver.after-log", nth=checkpoints)], max_drivers=1).run()
    assert log_records(storage)[-1].latest is not None
