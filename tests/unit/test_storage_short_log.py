"""Old records of a job's log go, and no driver can take a number that has become free for one that is its own."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from test_storage_log import PATHS, complete, driver, run_threads

from tidegate.errors import StorageError, Superseded
from tidegate.storage.log import JobLog, LogKind, LogRecord
from tidegate.storage.short_log import AT_ONCE, KEPT_RECORDS, ShortLog
from tidegate.storage.store import Data, ObjectStore, open_store
from tidegate.testing.stores import CountingStore, FailCall, FlakyStore

KEPT = 2


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path) if request.param == "local" else f"memory://{request.node.nodeid}")


def go_on(log: JobLog, checkpoints: int, kept: int = KEPT) -> ShortLog:
    """As a driver does: a checkpoint, then what is old goes."""
    short = ShortLog(log._store, PATHS, log, kept)
    for _ in range(checkpoints):
        assert log.last is not None
        complete(log, log.last.next_checkpoint_id)
        short.shorten()
    return short


def standing(store: ObjectStore) -> list[LogRecord]:
    reader = JobLog(store, PATHS)
    return [reader.read(number) for number in reader.numbers()]


def test_a_log_does_not_grow_with_its_checkpoints(store: ObjectStore) -> None:
    for generation in (1, 2, 3):
        go_on(driver(store), 200)
        records = standing(store)
        assert len(records) <= generation + 2 * KEPT
        assert [r.generation for r in records if r.kind is LogKind.GENERATION] == [*range(1, generation + 1)]
        assert records[-1].next_checkpoint_id == 200 * generation + 1


def test_the_newest_are_kept_for_whoever_looks_at_the_past() -> None:
    store = open_store("memory://many")
    go_on(driver(store), KEPT_RECORDS + 3 * AT_ONCE, KEPT_RECORDS)
    assert KEPT_RECORDS < len(standing(store)) <= KEPT_RECORDS + AT_ONCE + 1


def test_the_record_by_which_a_generation_was_taken_is_found_between_gaps(store: ObjectStore) -> None:
    for _ in range(4):
        log = driver(store)
        go_on(log, 20)
    newest = log.read_newest()
    assert newest is not None
    for generation in (1, 2, 3, 4):
        first = log.first_of(generation, newest.sequence)
        assert (first.kind, first.generation) == (LogKind.GENERATION, generation)


@pytest.mark.property
@pytest.mark.parametrize("later", [1, 2, 3])
@pytest.mark.parametrize("checkpoints", [0, 1, 9])
def test_an_old_driver_stays_superseded_however_late_it_wakes_up(
    store: ObjectStore, checkpoints: int, later: int
) -> None:
    old = driver(store, "old:1")
    go_on(old, checkpoints)
    for number in range(later):
        go_on(driver(store, f"new:{number}"), 30)
    with pytest.raises(Superseded):
        old.check_held()
    with pytest.raises(Superseded):
        old.reread()
    before = standing(store)
    with pytest.raises(Superseded):
        complete(old, 1_000)
    assert standing(store) == before


def test_a_record_in_doubt_that_counted_long_ago_is_no_way_back(store: ObjectStore) -> None:
    flaky = FlakyStore(store, [FailCall("create", 3, after_effect=True)])
    old = JobLog(flaky, PATHS)
    old.take_generation("old:1", now=1.0)
    complete(old, 1)
    with pytest.raises(StorageError):
        complete(old, 2)
    doubt = old.in_doubt
    assert doubt is not None
    go_on(driver(store, "new:1"), 30)

    assert old.append(doubt).latest == doubt.latest, "true: it did count"
    with pytest.raises(Superseded):
        old.check_held()
    with pytest.raises(Superseded):
        complete(old, 1_000)


class Meanwhile(CountingStore):
    """Something happens between a driver's look at the log and its record."""

    def __init__(self, store: ObjectStore, happens: Callable[[], object]) -> None:
        super().__init__(store)
        self._happens: list[Callable[[], object]] = [happens]

    def create(self, path: str, data: Data) -> bool:
        while self._happens:
            self._happens.pop()()
        return super().create(path, data)


def test_a_record_in_doubt_that_goes_while_it_is_appended_again_is_no_way_back(store: ObjectStore) -> None:
    class Slow(FlakyStore):
        """Its second answer to a create comes when the record that was in its way is gone."""

        def create(self, path: str, data: Data) -> bool:
            created = super().create(path, data)
            if not created:
                go_on(driver(store, "new:1"), 30)
                assert not store.exists(path)
            return created

    old = JobLog(Slow(store, [FailCall("create", 3, after_effect=True)]), PATHS)
    old.take_generation("old:1", now=1.0)
    complete(old, 1)
    with pytest.raises(StorageError):
        complete(old, 2)
    doubt = old.in_doubt
    assert doubt is not None

    with pytest.raises(Superseded, match="new:1"):
        old.append(doubt)
    assert old.in_doubt is None


@pytest.mark.parametrize("checkpoints", [0, 1, 5, 30])
def test_whoever_takes_the_job_over_after_a_long_sleep_takes_it_from_where_it_is(
    store: ObjectStore, checkpoints: int
) -> None:
    holder = driver(store, "old:1")
    go_on(holder, 5)
    sleeper = JobLog(Meanwhile(store, lambda: go_on(holder, checkpoints)), PATHS)

    record = sleeper.take_generation("new:1", now=1.0)

    assert (record.generation, record.next_checkpoint_id) == (2, 6 + checkpoints)
    assert standing(store)[-1] == record
    with pytest.raises(Superseded):
        complete(holder, 1_000)
    go_on(sleeper, 30)


def test_two_that_slept_do_not_take_each_other_for_the_next_driver(store: ObjectStore) -> None:
    """Their records stand side by side, in a gap of the log: neither says anything."""
    holder = driver(store, "old:1")
    complete(holder, 1)

    def second() -> None:
        complete(holder, 2)
        late = JobLog(Meanwhile(store, lambda: go_on(holder, 30)), PATHS)
        late.take_generation("late:2", now=1.0)

    first = JobLog(Meanwhile(store, second), PATHS)
    record = first.take_generation("late:1", now=1.0)
    assert standing(store)[-1] == record
    assert (record.generation, record.next_checkpoint_id) == (3, 33)


def test_a_driver_whose_successor_was_as_quick_learns_of_it_by_its_first_append(store: ObjectStore) -> None:
    class Raced(CountingStore):
        def create(self, path: str, data: Data) -> bool:
            created = super().create(path, data)
            driver(store, "quick:1")
            return created

    first = JobLog(Raced(store), PATHS)
    assert first.take_generation("first:1", now=1.0).generation == 1
    assert standing(store)[-1].driver == "quick:1"
    with pytest.raises(Superseded, match="quick:1"):
        complete(first, 1)


def test_taking_over_can_be_repeated_when_the_second_look_failed(store: ObjectStore) -> None:
    flaky = FlakyStore(store, [FailCall("list", 2)])
    log = JobLog(flaky, PATHS)
    with pytest.raises(StorageError):
        log.take_generation("host:1", now=1.0)
    assert log.take_generation("host:1", now=1.0).generation == 1
    go_on(log, 5)


def test_what_was_to_be_deleted_is_deleted_later_when_storage_fails(
    store: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    flaky = FlakyStore(store, [FailCall("delete", 1), FailCall("list", 3)])
    log = JobLog(flaky, PATHS)
    log.take_generation("host:1", now=1.0)
    go_on(log, 60)
    assert "old records of the job's log are not deleted" in caplog.text
    assert len(standing(store)) <= 1 + 2 * KEPT


def test_an_old_record_that_cannot_be_read_stays(store: ObjectStore) -> None:
    log = driver(store)
    for checkpoint in range(1, 10):
        complete(log, checkpoint)
    store.put(PATHS.log(3), b"damaged")
    go_on(driver(store), 60)
    assert JobLog(store, PATHS).numbers()[:3] == [0, 3, 10]


def test_a_superseded_driver_deletes_nothing(store: ObjectStore) -> None:
    old = driver(store, "old:1")
    short = go_on(old, 3)
    for checkpoint in range(4, 20):
        complete(old, checkpoint)
    go_on(driver(store, "new:1"), 1, kept=100)
    before = standing(store)
    assert short.shorten() == 0
    assert standing(store) == before


class Slow(CountingStore):
    """Anybody may sleep before any record."""

    def __init__(self, store: ObjectStore, seed: int) -> None:
        super().__init__(store)
        self._random = random.Random(seed)

    def create(self, path: str, data: Data) -> bool:
        time.sleep(self._random.choice((0.0, 0.0, 0.0, 0.002, 0.01)))
        return super().create(path, data)


@pytest.mark.property
def test_drivers_that_fight_for_a_job_whose_log_is_short(store: ObjectStore) -> None:
    told: list[LogRecord] = []  # what some driver was told counts
    failures: list[Exception] = []
    gate = threading.Barrier(4)

    def fight(number: int) -> None:
        log = JobLog(Slow(store, number), PATHS)
        gate.wait()
        try:
            for _ in range(8):
                log.take_generation(f"{number}:1", now=1.0)
                short = ShortLog(store, PATHS, log, KEPT)
                try:
                    for _ in range(12):
                        assert log.last is not None
                        told.append(complete(log, log.last.next_checkpoint_id))
                        short.shorten()
                except Superseded:
                    pass
        except Exception as error:
            failures.append(error)

    run_threads([lambda number=number: fight(number) for number in range(4)])

    assert failures == []
    line = sorted(told, key=lambda record: record.sequence)
    assert len({record.sequence for record in line}) == len(line), "a number counted twice"
    for before, record in pairwise(line):
        assert before.generation <= record.generation
        assert before.next_checkpoint_id < record.next_checkpoint_id
        assert before.latest in record.retained, "built on what counted before it"
