"""A job that has taken very many checkpoints is no heavier than one that has taken a few: what lies in its storage, and what
a driver does that starts from it. The product's own recorder, log and retention."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from execution_kit import job_run

from tidegate.coordinator.job import AttemptInputs, JobRun
from tidegate.ids import CheckpointId, SlotId
from tidegate.protocol.checkpoint_events import Purpose
from tidegate.storage import short_log
from tidegate.storage.log import CheckpointPointer
from tidegate.storage.metadata import FileRef, SlotSnapshot, SubtaskSnapshot
from tidegate.storage.short_log import AT_ONCE, KEPT_RECORDS
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.stores import CountingStore

DRIVERS = 3  #: one after another; each leaves the record by which it took the job over
RETAINED = 2


@dataclass(frozen=True)
class Weight:
    """What lies in storage, and what a start from it takes."""

    objects: int
    largest_record: int
    requests: Counter[str]
    names_listed: int
    start_s: float


class Listing(CountingStore):
    """Counts the names that it lists, too."""

    names = 0

    def list(self, prefix: str) -> list[str]:
        found = super().list(prefix)
        self.names += len(found)
        return found


def take(job: JobRun, inputs: AttemptInputs, checkpoints: int) -> None:
    for id in range(inputs.next_checkpoint_id, inputs.next_checkpoint_id + checkpoints):
        snapshots = {slot: stored(job, inputs, CheckpointId(id), slot) for slot in inputs.starts}
        job.recorder.complete(inputs.id, CheckpointId(id), Purpose.PERIODIC, snapshots, 1.0)
        job.recorder.delete_dropped()


def stored(job: JobRun, inputs: AttemptInputs, checkpoint: CheckpointId, slot: SlotId) -> SlotSnapshot:
    path = job._paths.slot_file(checkpoint, inputs.id, slot)
    job._store.put(path, b"state")
    subtasks = [SubtaskSnapshot(op.uid, n) for chain, n in job.plan.hosted_in(slot) for op in chain.operators]
    return SlotSnapshot(slot.layer, slot.index, FileRef(5, path=path), subtasks)


def started(folder: Path, store: ObjectStore, resume: str | None) -> tuple[JobRun, AttemptInputs]:
    job = job_run(folder, store, resume=resume, retained=RETAINED)
    job.check_start()
    job.begin()
    inputs = job.next_attempt()
    assert isinstance(inputs, AttemptInputs)
    return job, inputs


def weight(folder: Path, checkpoints: int) -> Weight:
    """After so many checkpoints of a few drivers."""
    store = open_store(f"memory://many-{checkpoints}")
    newest: CheckpointPointer | None = None
    for driver in range(DRIVERS):
        job, inputs = started(folder, store, "latest" if driver else None)
        take(job, inputs, checkpoints // DRIVERS)
        newest = job.recorder.log.last.latest if job.recorder.log.last is not None else None
    names = store.list("job/")
    records = max(len(store.get(name)) for name in names if "/log/" in name)
    counting = Listing(store)
    began = time.perf_counter()
    _, inputs = started(folder, counting, "latest")
    start_s = time.perf_counter() - began
    assert newest is not None
    assert inputs.restored_from == newest.id == DRIVERS * (checkpoints // DRIVERS)
    return Weight(len(names), records, counting.calls, counting.names, start_s)


@pytest.mark.parametrize(
    ("kept", "checkpoints"),
    [(100, 600), pytest.param(KEPT_RECORDS, 100_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_neither_what_is_stored_nor_a_start_grows_with_the_number_of_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, checkpoints: int
) -> None:
    monkeypatch.setattr(short_log, "KEPT_RECORDS", kept)
    first = kept + 3 * AT_ONCE
    few, many = weight(tmp_path, first), weight(tmp_path, checkpoints)
    print(f"after {first:,}: {few}\nafter {checkpoints:,}: {many}")

    bound = kept + AT_ONCE + DRIVERS  # records of the log
    bound += RETAINED * 5  # checkpoints of four slots
    bound += 4 + DRIVERS + 5  # the files of the one that was dropped last, probes
    assert many.objects <= bound
    assert many.largest_record <= few.largest_record + 50, "numbers have more digits, and that is all"
    assert many.requests == few.requests
    assert many.names_listed <= bound * many.requests["list"]
