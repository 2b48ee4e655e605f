"""What the sweep takes for an orphan, and what it never touches."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_storage_checkpoints import PATHS, attempt, complete, driver, write

from tidegate.errors import CheckpointDamaged, StorageError, Superseded
from tidegate.ids import CheckpointId
from tidegate.storage.log import JobLog
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore, open_store, temporary_name
from tidegate.storage.sweep import OpenWork, after_attempt, orphans, sweep
from tidegate.testing.stores import CountingStore, FailCall, FlakyStore


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path) if request.param == "local" else f"memory://{request.node.nodeid}")


def open_work(generation: int, number: int = 1, first_open: int = 1) -> OpenWork:
    return OpenWork(attempt(generation, number), CheckpointId(first_open))


def test_orphans_are_what_no_retained_checkpoint_refers_to(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    write(store, 2)  # stored, but never logged
    store.put(PATHS.probe(attempt(1)), b"x")
    store.put(PATHS.staging(attempt(1), "y"), b"x")

    assert orphans(store, PATHS, log, after_attempt(attempt(1))) == [
        "job/chk-2/g1-a1/_metadata.json",
        "job/chk-2/g1-a1/slot-1-0.snapshot",
        "job/probe/g1-a1",
        "job/staging/g1-a1/y",
    ]


def test_what_belongs_to_somebody_else_is_no_orphan(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    others = [
        PATHS.create_probe,
        PATHS.input("orders") + "part-0.parquet",
        "job/savepoints/mine/_metadata.json",
        "job/notes.txt",
        "job/chk-x/g1-a1/file",
        "job/chk-2/README",
    ]
    for path in others:
        store.put(path, b"x")
    write(store, 9, paths=JobPaths("job2"))

    assert orphans(store, PATHS, log, after_attempt(attempt(1))) == []


def test_what_the_running_attempt_may_still_complete_stays(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    for checkpoint in (2, 3, 4):
        write(store, checkpoint)  # 2 was given up, 3 is pending, 4 was triggered since
    store.put(PATHS.probe(attempt(1)), b"x")  # read by all slots, so it is of no more use
    store.put(PATHS.staging(attempt(1), "y"), b"x")

    found = orphans(store, PATHS, log, open_work(1, first_open=3))

    assert found == ["job/chk-2/g1-a1/_metadata.json", "job/chk-2/g1-a1/slot-1-0.snapshot", "job/probe/g1-a1"]


def test_an_older_attempt_has_nothing_open_and_a_later_generation_everything(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    write(store, 7)  # attempt 1 of generation 1, with an id that the running attempt has open
    write(store, 8, generation=2)  # by a driver that takes over at this moment

    assert orphans(store, PATHS, log, open_work(1, number=2, first_open=2)) == [
        "job/chk-7/g1-a1/_metadata.json",
        "job/chk-7/g1-a1/slot-1-0.snapshot",
    ]


def test_a_driver_that_lost_the_job_deletes_nothing(store: ObjectStore) -> None:
    log = driver(store)
    write(store, 1)
    JobLog(store, PATHS).take_generation("host:2", now=2.0)

    with pytest.raises(Superseded):
        sweep(store, PATHS, log, after_attempt(attempt(1)))
    assert store.list("job/chk-1")


def test_nothing_goes_while_a_retained_checkpoint_cannot_be_read(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    complete(log, store, 2)
    write(store, 3)
    assert log.last is not None
    store.delete(log.last.retained[0].metadata_path)

    with pytest.raises(CheckpointDamaged):
        sweep(store, PATHS, log, after_attempt(attempt(1)))
    assert store.list("job/chk-3")


def test_nothing_goes_while_a_record_is_in_doubt(store: ObjectStore) -> None:
    log = JobLog(FlakyStore(store, [FailCall("create", call=2, after_effect=True)]), PATHS)
    log.take_generation("host:1", now=1.0)
    pointer, _ = write(store, 1)
    with pytest.raises(StorageError, match="is lost"):
        log.append(log.completed(pointer, [pointer], now=2.0))

    assert sweep(store, PATHS, log, after_attempt(attempt(1))) == []
    assert store.list("job/chk-1")


def test_what_completes_while_the_sweep_looks_stays(store: ObjectStore) -> None:
    """The list is made before the log is read: whatever is completed in between is in use."""
    log = driver(store)
    write(store, 1)
    pointer, _ = write(store, 2)

    class _CompletesMeanwhile(CountingStore):
        def list(self, prefix: str) -> list[str]:
            found = super().list(prefix)
            if log.last is not None and log.last.latest is None:
                log.append(log.completed(pointer, [pointer], now=2.0))
            return found

    swept = sweep(_CompletesMeanwhile(store), PATHS, log, after_attempt(attempt(1)))

    assert swept == ["job/chk-1/g1-a1/_metadata.json", "job/chk-1/g1-a1/slot-1-0.snapshot"]
    assert store.list("job/chk-2") != []


def test_half_written_files_of_killed_writers_are_swept(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    log = driver(store)
    complete(log, store, 1)
    (tmp_path / "job/chk-2/g1-a1").mkdir(parents=True)
    for left in (
        "chk-2/g1-a1/" + temporary_name("slot-0-0.snapshot"),
        "log/" + temporary_name("00000001.json"),  # its number is taken by now
        "log/" + temporary_name("00000002.json"),  # another driver may be about to take the job over with this one
    ):
        (tmp_path / "job" / left).write_bytes(b"half")

    sweep(store, PATHS, log, open_work(1, first_open=3))

    left = sorted(path.name for path in tmp_path.rglob("*.tmp"))
    assert [name[:14] for name in left] == [".00000002.json"]


def test_a_clean_folder_costs_two_requests_and_the_log_is_not_listed(store: ObjectStore) -> None:
    log = driver(store)
    counting = CountingStore(store)

    assert sweep(counting, PATHS, log, open_work(1)) == []
    assert counting.requests <= 2
