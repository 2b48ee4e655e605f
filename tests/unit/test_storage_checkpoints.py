"""Metadata files, naming a checkpoint, and retention."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.errors import CheckpointDamaged, ConfigurationError, ProtocolViolation
from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation, SlotId
from tidegate.storage.checkpoints import load_checkpoint, resolve, store_checkpoint
from tidegate.storage.log import CheckpointPointer, JobLog
from tidegate.storage.metadata import CheckpointMetadata, SlotSnapshot
from tidegate.storage.paths import JobPaths
from tidegate.storage.retention import delete_checkpoint, files_in_use, plan_retention
from tidegate.storage.snapshot_file import SnapshotFileWriter, store_snapshot
from tidegate.storage.store import ObjectStore, open_store
from tidegate.storage.sweep import after_attempt, orphans
from tidegate.testing.stores import Corrupt, CountingStore, CutShort, FailCall, FlakyStore

PATHS = JobPaths("job")


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path) if request.param == "local" else f"memory://{request.node.nodeid}")


def attempt(generation: int, number: int = 1) -> AttemptId:
    return AttemptId(Generation(generation), AttemptNumber(number))


def write(
    store: ObjectStore, checkpoint: int, generation: int = 1, paths: JobPaths = PATHS
) -> tuple[CheckpointPointer, CheckpointMetadata]:
    """Everything of a checkpoint but its log record: two slots, one in a file and one inline."""
    slots = []
    for index, inline_limit in enumerate((0, 1 << 20)):
        writer = SnapshotFileWriter()
        writer.add("count", "total", "value", index, pa.record_batch({"value": [checkpoint, index]}))
        path = paths.slot_file(CheckpointId(checkpoint), attempt(generation), SlotId(1, index))
        slots.append(SlotSnapshot(1, index, store_snapshot(store, path, *writer.finish(), inline_limit)))
    metadata = CheckpointMetadata(
        job=paths.job,
        checkpoint=checkpoint,
        generation=generation,
        attempt=1,
        triggered_at=1.0,
        completed_at=2.0,
        operators=[],
        slots=slots,
    )
    return store_checkpoint(store, paths, metadata), metadata


def complete(log: JobLog, store: ObjectStore, checkpoint: int, keep: int = 10) -> list[CheckpointPointer]:
    """A whole checkpoint; the ones that it pushes out."""
    assert log.last is not None
    pointer, _ = write(store, checkpoint, log.last.generation)
    kept, dropped = plan_retention([*log.last.retained, pointer], keep)
    log.append(log.completed(pointer, kept, now=3.0))
    return dropped


def driver(store: ObjectStore) -> JobLog:
    log = JobLog(store, PATHS)
    log.take_generation("host:1", now=1.0)
    return log


# -- metadata ------------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_loaded_as_it_was_stored(store: ObjectStore) -> None:
    pointer, metadata = write(store, 17, generation=3)

    assert pointer.metadata_path == "job/chk-17/g3-a1/_metadata.json"
    assert pointer.size_bytes == metadata.size_bytes() > 0
    assert load_checkpoint(store, pointer) == metadata


def test_a_damaged_checkpoint_names_its_path_and_the_older_ones(store: ObjectStore) -> None:
    older = [write(store, checkpoint)[0] for checkpoint in (1, 2, 3)]
    flaky = FlakyStore(store, [Corrupt("chk-3/", at=40)])

    with pytest.raises(CheckpointDamaged) as caught:
        load_checkpoint(flaky, older[2], older)
    text = str(caught.value)
    assert store.uri("job/chk-3/g1-a1/_metadata.json") in text
    assert caught.value.context["older"] == [store.uri(p.metadata_path) for p in (older[1], older[0])]
    for way in caught.value.context["older"]:
        assert f"tidegate run JOB --resume {way}" in text
        assert resolve(store, PATHS, way).metadata_path in way


def test_a_damaged_checkpoint_without_older_ones_says_so(store: ObjectStore) -> None:
    pointer, _ = write(store, 1)
    store.delete(pointer.metadata_path)
    with pytest.raises(CheckpointDamaged, match=r"is missing.*No older checkpoint is retained"):
        load_checkpoint(store, pointer, [pointer])


def test_every_change_of_the_metadata_is_noticed(store: ObjectStore) -> None:
    pointer, _ = write(store, 1)
    size = len(store.get(pointer.metadata_path))
    for at in range(0, size, 17):
        with pytest.raises(CheckpointDamaged):
            load_checkpoint(FlakyStore(store, [Corrupt("_metadata", at)]), pointer)
        with pytest.raises(CheckpointDamaged):
            load_checkpoint(FlakyStore(store, [CutShort("_metadata", at)]), pointer)


# -- naming a checkpoint -------------------------------------------------------------------------------------------


def test_a_retained_checkpoint_can_be_named_in_many_ways(store: ObjectStore) -> None:
    log = driver(store)
    for checkpoint in (1, 2, 3):
        complete(log, store, checkpoint)
    assert log.last is not None
    wanted = log.last.retained[1]

    folder = "job/chk-2/g1-a1"
    names = ["chk-2", "2", folder, folder + "/", wanted.metadata_path, store.uri(folder), store.uri(folder) + "/"]
    names.append(store.uri(wanted.metadata_path))
    if store.location.startswith("file://"):
        names.append(store.uri(folder).removeprefix("file://"))
    for name in names:
        assert resolve(store, PATHS, name) == wanted, name


def test_a_checkpoint_that_is_not_in_the_log_can_be_named_by_path_only(store: ObjectStore) -> None:
    pointer, metadata = write(store, 8, paths=JobPaths("other"))

    found = resolve(store, PATHS, store.uri("other/chk-8/g1-a1"))
    assert found == pointer
    assert load_checkpoint(store, found) == metadata
    with pytest.raises(ConfigurationError, match="has no checkpoint 'chk-8' \\(retained: none\\)"):
        resolve(store, PATHS, "chk-8")


def test_a_name_of_nothing_is_refused_with_what_there_is(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)

    with pytest.raises(ConfigurationError, match="retained: chk-1"):
        resolve(store, PATHS, "chk-9")
    with pytest.raises(ConfigurationError, match="does not exist"):
        resolve(store, PATHS, "job/chk-9/g1-a1")
    with pytest.raises(ConfigurationError, match="does not exist"):
        resolve(store, PATHS, "memory://elsewhere/job/chk-1")


def test_a_file_that_is_no_metadata_is_damage(store: ObjectStore) -> None:
    store.put("job/x/_metadata.json", b"{}")
    with pytest.raises(CheckpointDamaged, match="not a checkpoint's metadata"):
        resolve(store, PATHS, "job/x")


# -- retention -----------------------------------------------------------------------------------------------------


def pointers(*ids: int) -> list[CheckpointPointer]:
    return [CheckpointPointer(i, f"job/chk-{i}/g1-a1/_metadata.json", "", 0, 1, 1, 0.0) for i in ids]


@pytest.mark.parametrize(
    ("retained", "keep", "kept", "dropped"),
    [
        ((), 1, (), ()),
        ((1,), 1, (1,), ()),
        ((1, 2, 3), 1, (3,), (1, 2)),
        ((1, 2, 3), 2, (2, 3), (1,)),
        ((1, 2, 3), 9, (1, 2, 3), ()),
        ((1, 2, 3), 0, (3,), (1, 2)),
        ((2, 3, 1, 4), 2, (1, 4), (2, 3)),  # rolled back to 1: the abandoned ones go first
    ],
)
def test_the_last_ones_are_kept_and_the_newest_always(
    retained: tuple[int, ...], keep: int, kept: tuple[int, ...], dropped: tuple[int, ...]
) -> None:
    assert plan_retention(pointers(*retained), keep) == (pointers(*kept), pointers(*dropped))


def test_a_dropped_checkpoint_goes_and_leaves_the_others_whole(store: ObjectStore) -> None:
    log = driver(store)
    for checkpoint in (1, 2):
        complete(log, store, checkpoint)
    dropped = complete(log, store, 3, keep=2)
    assert [pointer.id for pointer in dropped] == [1]
    assert log.last is not None

    done = delete_checkpoint(store, PATHS, dropped[0], load_checkpoint(store, dropped[0]), log.last)

    assert done.failures == ()
    assert set(done.deleted) == {"job/chk-1/g1-a1/_metadata.json", "job/chk-1/g1-a1/slot-1-0.snapshot"}
    assert store.list("job/chk-1") == []
    assert orphans(store, PATHS, log, after_attempt(attempt(1))) == []
    for pointer in log.last.retained:
        load_checkpoint(store, pointer)


def test_what_the_newest_record_refers_to_is_never_deleted(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    assert log.last is not None
    before = store.list("")
    with pytest.raises(ProtocolViolation, match="still retained"):
        delete_checkpoint(store, PATHS, log.last.retained[0], None, log.last)
    assert store.list("") == before


def test_files_outside_the_folder_or_in_use_are_not_deleted(store: ObjectStore) -> None:
    """A later checkpoint may refer to a file of this one, and this one to a file of an earlier one."""
    log = driver(store)
    complete(log, store, 1)
    (dropped,) = complete(log, store, 2, keep=1)
    assert log.last is not None
    metadata = load_checkpoint(store, dropped)
    foreign = write(store, 5, paths=JobPaths("other"))[1]
    shared = "job/chk-1/g1-a1/slot-1-0.snapshot"
    mixed = CheckpointMetadata(**{**_fields(metadata), "slots": metadata.slots + foreign.slots})

    delete_checkpoint(store, PATHS, dropped, mixed, log.last, in_use={shared})

    assert store.exists(shared)
    assert len(store.list("other")) == 2
    assert not store.exists(dropped.metadata_path)


def _fields(metadata: CheckpointMetadata) -> dict[str, object]:
    return {name: getattr(metadata, name) for name in metadata.__struct_fields__}


def test_a_checkpoint_whose_metadata_is_gone_is_deleted_by_its_folder(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    (dropped,) = complete(log, store, 2, keep=1)
    assert log.last is not None
    store.delete(dropped.metadata_path)

    assert delete_checkpoint(store, PATHS, dropped, None, log.last).failures == ()
    assert store.list("job/chk-1") == []


def test_a_deletion_that_fails_is_reported_and_found_later(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    (dropped,) = complete(log, store, 2, keep=1)
    assert log.last is not None
    flaky = FlakyStore(store, [FailCall("delete", call=2)])

    done = delete_checkpoint(flaky, PATHS, dropped, load_checkpoint(store, dropped), log.last)

    assert done.deleted == (dropped.metadata_path,)
    assert len(done.failures) == 1
    assert "slot-1-0.snapshot" in done.failures[0]
    assert orphans(store, PATHS, log, after_attempt(attempt(1))) == ["job/chk-1/g1-a1/slot-1-0.snapshot"]


def test_deleting_by_metadata_needs_no_listing(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, store, 1)
    (dropped,) = complete(log, store, 2, keep=1)
    assert log.last is not None
    counting = CountingStore(store)

    delete_checkpoint(counting, PATHS, dropped, load_checkpoint(store, dropped), log.last)
    assert counting.calls == {"delete": 1, "delete_many": 1}


def test_a_foreign_start_checkpoint_is_in_use(store: ObjectStore) -> None:
    foreign, _ = write(store, 5, paths=JobPaths("other"))
    log = JobLog(store, PATHS)
    record = log.take_generation("host:1", now=1.0, resume=foreign)

    assert files_in_use(store, record) == {foreign.metadata_path, "other/chk-5/g1-a1/slot-1-0.snapshot"}
