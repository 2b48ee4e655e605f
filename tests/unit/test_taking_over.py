"""A driver that takes a job over while the old one is still at work."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from tidegate.coordinator.job import JobEnded, JobRun
from tidegate.coordinator.observing import JobView
from tidegate.coordinator.outcomes import AttemptEnded
from tidegate.errors import CheckpointDamaged, JobFailed, Superseded
from tidegate.ports import NoCrashPoints
from tidegate.protocol.checkpoint_events import Purpose
from tidegate.storage.checkpoints import store_checkpoint
from tidegate.storage.log import JobLog, LogKind, Resume
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.metadata import CheckpointMetadata
from tidegate.storage.paths import JobPaths
from tidegate.wire.control import SavepointOrder

PATHS = JobPaths("orders")


class OldDriver:
    """Completes checkpoints, each with a deletion of the one before."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._log = JobLog(store, PATHS)
        self._log.take_generation("old", 0.0, Resume.FRESH)
        self.completed = 0

    def complete(self) -> None:
        self.completed += 1
        metadata = CheckpointMetadata(
            job="orders", checkpoint=self.completed, generation=1, attempt=1, triggered_at=0.0, completed_at=0.0,
            operators=[], slots=[],
        )  # fmt: skip
        pointer = store_checkpoint(self._store, PATHS, metadata)
        before = self._log.last
        self._log.append(self._log.completed(pointer, [pointer], 0.0))
        if before is not None and before.latest is not None:
            self._store.delete(before.latest.metadata_path)


class BusyStore(MemoryStore):
    """Something happens right before a checkpoint's metadata is read, a given number of times."""

    happening = staticmethod(lambda: None)
    times = 0

    def get(self, path: str) -> bytes:
        if path.endswith("_metadata.json") and self.times:
            self.times -= 1
            self.happening()
        return super().get(path)


def take_over(store: MemoryStore) -> JobRun:
    env = tg.StreamEnvironment("orders")
    env.checkpointing(storage="memory://orders", resume="latest")
    env.from_collection([1, 2, 3], uid="numbers", type=int).collect(uid="out")
    return JobRun(
        name="orders", graph=env._graph, default_parallelism=1, config=env.config(), store=store, driver="new",
        view=JobView(), crash_points=NoCrashPoints(), clock=lambda: 0.0, wall_clock=lambda: 0.0,
        sleep=lambda seconds: None, jitter=lambda: 0.0,
    )  # fmt: skip


@pytest.fixture
def store(request: pytest.FixtureRequest) -> BusyStore:
    return BusyStore(request.node.name)


def test_a_checkpoint_that_the_old_driver_deletes_as_we_look_is_no_damage(store: BusyStore):
    old = OldDriver(store)
    old.complete()
    store.happening, store.times = old.complete, 3

    job = take_over(store)
    job.begin()

    assert job.next_attempt().restored_from == old.completed == 4


def test_a_checkpoint_that_is_missing_while_nobody_is_at_work_is_damage(store: BusyStore):
    old = OldDriver(store)
    old.complete()
    store.delete(metadata_path(store))

    with pytest.raises(CheckpointDamaged):
        take_over(store)


def test_a_driver_that_was_away_begins_no_attempt_behind_a_newer_one(store: BusyStore):
    OldDriver(store).complete()
    first, second = take_over(store), take_over(store)
    first.begin()
    first.next_attempt()
    second.begin()

    with pytest.raises(Superseded):
        first.next_attempt()
    assert str(second.next_attempt().id) == "g3-a1"


def metadata_path(store: MemoryStore) -> str:
    (path,) = [path for path in store.list("") if path.endswith("_metadata.json")]
    return path


def test_whatever_failed_behind_a_take_over_the_take_over_is_the_reason(store: BusyStore):
    """The new driver's sweep may have taken what the old one's slots were about to read."""
    first = take_over(store)
    first.begin()
    assert not isinstance(first.next_attempt(), JobEnded)
    second = take_over(store)
    second.begin()

    ended = first.attempt_ended(AttemptEnded(JobFailed("an executor cannot see the probe"), permanent=True))

    assert isinstance(ended, JobEnded)
    assert isinstance(ended.error, Superseded)
    assert second._log.read_newest().kind is LogKind.GENERATION


class StoreOfTheSavepoint(BusyStore):
    """Something happens right after the moment in which a savepoint is stored."""

    def create(self, path: str, data: Any) -> bool:
        created = super().create(path, data)
        if path == f"{SAVEPOINT}/_metadata.json":
            self.happening()
        return created


SAVEPOINT = "savepoints/savepoint-orders-1-abcdef"


def stop_with_savepoint(old: JobRun) -> None:
    inputs = old.next_attempt()
    assert not isinstance(inputs, JobEnded)
    order = SavepointOrder(SAVEPOINT, "canonical")
    old.recorder.complete(inputs.id, inputs.next_checkpoint_id, Purpose.SUSPEND, {}, 0.0, order)


def test_a_driver_that_wakes_up_in_its_stop_behind_a_newer_one_takes_its_savepoint_back():
    """The newer one went on from the last checkpoint, and has thrown away what sinks had prepared for the savepoint."""
    store = StoreOfTheSavepoint("stopped-late")
    old, new = take_over(store), take_over(store)
    old.begin()
    store.happening = new.begin

    with pytest.raises(Superseded):
        stop_with_savepoint(old)

    assert not store.list(SAVEPOINT)


@pytest.mark.parametrize("restarts", [1, 2])
def test_what_was_to_be_the_savepoint_of_a_stop_is_removed_before_the_job_goes_on(restarts: int):
    store = StoreOfTheSavepoint(f"stopped-and-died-{restarts}")
    old = take_over(store)
    old.begin()
    store.happening = lambda: (_ for _ in ()).throw(KeyboardInterrupt())  # dies here
    with pytest.raises(KeyboardInterrupt):
        stop_with_savepoint(old)
    assert store.exists(f"{SAVEPOINT}/_metadata.json")

    for _ in range(restarts):  # the old one may store it again when it wakes up: each attempt looks
        new = take_over(store)
        new.begin()
        store.put(f"{SAVEPOINT}/_metadata.json", b"woken up late")
        new.next_attempt()
        assert not store.list(SAVEPOINT)
