"""Snapshot files: what was written is read back, or the damage is named."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.errors import CheckpointDamaged, ProtocolViolation, StorageError
from tidegate.storage.metadata import FileRef, SectionRef
from tidegate.storage.snapshot_file import (
    SCHEMA_KIND,
    SnapshotFileWriter,
    read_sections,
    select_sections,
    store_snapshot,
)
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.stores import Corrupt, CountingStore, CutShort, FlakyStore, NoSpace

PATH = "job/chk-1/g1-a1/slot-0-0.snapshot"


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path) if request.param == "local" else f"memory://{request.node.nodeid}")


def batch(first: int, rows: int = 5) -> pa.RecordBatch:
    numbers = list(range(first, first + rows))
    return pa.record_batch(
        {"key": pa.array([b"k%d" % n for n in numbers], pa.binary()), "value": pa.array(numbers, pa.int64())}
    )


def written(
    compression: str | None = None,
) -> tuple[SnapshotFileWriter, list[tuple[tuple[str, str, str, int], pa.RecordBatch]]]:
    """A file with two operators, three states and several key groups, and what must be read back."""
    added = []
    writer = SnapshotFileWriter(compression)
    for uid, state, kind in (("count", "total", "value"), ("count", "seen", "map"), ("join", "left", "list")):
        for key_group in range(4):
            added.append(((uid, state, kind, key_group), batch(10 * key_group, rows=key_group)))
    added.append((("source", "splits", "raw", -1), pa.record_batch({"bytes": pa.array([b"x"])})))
    for (uid, state, kind, key_group), rows in added:
        writer.add(uid, state, kind, key_group, rows)
    return writer, added


def stored(store: ObjectStore, inline_limit: int = 0, compression: str | None = None) -> tuple[FileRef, list]:  # type: ignore[type-arg]
    writer, added = written(compression)
    data, sections = writer.finish()
    return store_snapshot(store, PATH, data, sections, inline_limit), added


def labels(section: SectionRef) -> tuple[str, str, str, int]:
    return section.uid, section.state, section.kind, section.key_group


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("inline_limit", [0, 1 << 20])
def test_what_was_added_is_read_back_in_order(store: ObjectStore, inline_limit: int, compression: str | None) -> None:
    file, added = stored(store, inline_limit, compression)

    assert [(labels(section), rows) for section, rows in read_sections(store, file)] == added
    assert (file.path is None) == (inline_limit > 0)
    assert store.list("") == ([] if inline_limit else [PATH])


def test_the_inline_limit_is_the_largest_inline_size(store: ObjectStore) -> None:
    data, sections = written()[0].finish()

    assert store_snapshot(store, PATH, data, sections, data.size).inline == data.to_pybytes()
    assert store_snapshot(store, PATH, data, sections, data.size - 1).inline is None
    assert store.get(PATH) == data.to_pybytes()


def test_a_slot_without_state_stores_nothing(store: ObjectStore) -> None:
    data, sections = SnapshotFileWriter().finish()
    file = store_snapshot(store, PATH, data, sections, inline_limit=0)

    assert (file.size, file.inline, file.sections) == (0, b"", [])
    assert list(read_sections(store, file)) == []


def test_a_schema_is_stored_once_for_each_state() -> None:
    _, sections = written()[0].finish()

    schemas = [(section.uid, section.state) for section in sections if section.kind == SCHEMA_KIND]
    assert schemas == [("count", "total"), ("count", "seen"), ("join", "left"), ("source", "splits")]


def test_sections_fill_the_file_and_begin_aligned() -> None:
    data, sections = written("lz4")[0].finish()

    assert all(section.offset % 8 == 0 for section in sections)
    assert [s.offset for s in sections] == [sum(s.length for s in sections[:i]) for i in range(len(sections))]
    assert data.size == sum(section.length for section in sections)


def test_a_schema_that_changes_inside_a_state_is_followed(store: ObjectStore) -> None:
    other = pa.record_batch({"key": pa.array(["a"]), "value": pa.array([1.5])})
    writer = SnapshotFileWriter()
    for key_group, rows in enumerate([batch(0), other, batch(5)]):
        writer.add("u", "s", "value", key_group, rows)
    file = store_snapshot(store, PATH, *writer.finish(), 0)

    assert [rows for _, rows in read_sections(store, file)] == [batch(0), other, batch(5)]
    assert [rows for _, rows in read_sections(store, file, lambda s: s.key_group == 1)] == [other]
    assert [rows for _, rows in read_sections(store, file, lambda s: s.key_group == 2)] == [batch(5)]


def test_dictionary_columns_are_read_back(store: ObjectStore) -> None:
    flat = pa.record_batch({"word": pa.array(["a", "b", "a"]).dictionary_encode()})
    nested = pa.record_batch(
        {"words": pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array(["a", "b", "a"]).dictionary_encode())}
    )
    writer = SnapshotFileWriter()
    writer.add("u", "flat", "value", 0, flat)
    writer.add("u", "nested", "value", 0, nested)
    writer.add("u", "flat", "value", 1, flat.slice(0, 0))
    file = store_snapshot(store, PATH, *writer.finish(), 0)

    assert [rows for _, rows in read_sections(store, file)] == [flat, nested, flat.slice(0, 0)]


def test_a_slice_stores_its_own_rows_only() -> None:
    large = batch(0, rows=20_000)
    for piece in (large.slice(100, 3), large.slice(100, 0)):
        writer = SnapshotFileWriter()
        writer.add("u", "s", "value", 0, piece)
        data, _ = writer.finish()
        assert data.size < 2000


def test_a_small_key_group_costs_little() -> None:
    writer = SnapshotFileWriter()
    for key_group in range(128):
        writer.add("u", "s", "value", key_group, batch(key_group, rows=1))
    data, sections = writer.finish()

    assert len(sections) == 129
    assert data.size < 128 * 300


def test_state_cannot_take_the_place_of_a_schema() -> None:
    with pytest.raises(ProtocolViolation):
        SnapshotFileWriter().add("u", "s", SCHEMA_KIND, 0, batch(0))
    with pytest.raises(ProtocolViolation):
        SnapshotFileWriter().add("u", "s", "value", -2, batch(0))


# -- reading a part ------------------------------------------------------------------------------------------------


def test_wanted_sections_can_be_chosen_by_predicate_by_list_or_by_index(store: ObjectStore) -> None:
    file, added = stored(store)

    def wanted(section: SectionRef) -> bool:
        return section.uid == "count" and section.key_group in (1, 3)

    expected = [item for item in added if item[0][0] == "count" and item[0][3] in (1, 3)]
    by_list = [section for section in file.sections if section.kind != SCHEMA_KIND and wanted(section)]

    for found in (
        read_sections(store, file, wanted),
        read_sections(store, file, by_list),
        read_sections(store, select_sections(file, wanted)),
    ):
        assert [(labels(section), rows) for section, rows in found] == expected


def test_an_index_without_the_schemas_is_a_bug_and_says_so(store: ObjectStore) -> None:
    file, _ = stored(store)
    stripped = FileRef(file.size, file.path, sections=[s for s in file.sections if s.kind != SCHEMA_KIND])
    with pytest.raises(ProtocolViolation, match="select_sections"):
        list(read_sections(store, stripped))


def test_neighbours_are_read_in_one_request_and_distant_ones_in_two(store: ObjectStore) -> None:
    counting = CountingStore(store)
    writer = SnapshotFileWriter()
    for key_group in range(64):
        writer.add("u", "s", "value", key_group, batch(key_group, rows=1000))
    file = store_snapshot(counting, PATH, *writer.finish(), 0)

    assert len(list(read_sections(counting, file))) == 64
    assert counting.calls["get_range"] == 1
    counting.reset()
    assert len(list(read_sections(counting, file, lambda section: section.key_group in (0, 63)))) == 2
    assert counting.calls["get_range"] == 2
    counting.reset()
    assert list(read_sections(counting, file, lambda section: False)) == []
    assert counting.requests == 0


def test_a_large_file_is_read_in_bounded_pieces(store: ObjectStore) -> None:
    counting = CountingStore(store)
    writer = SnapshotFileWriter()
    column = pa.record_batch({"x": pa.array([b"\0" * 1_000_000])})
    for key_group in range(40):
        writer.add("u", "s", "value", key_group, column)
    file = store_snapshot(counting, PATH, *writer.finish(), 0)

    assert sum(rows == column for _, rows in read_sections(counting, file)) == 40
    assert 3 <= counting.calls["get_range"] <= 4


# -- damage --------------------------------------------------------------------------------------------------------


def damaged_or_same(store: ObjectStore, file: FileRef, added: list) -> bool:  # type: ignore[type-arg]
    try:
        assert [(labels(section), rows) for section, rows in read_sections(store, file)] == added
    except CheckpointDamaged:
        return True
    return False


def test_every_flipped_byte_is_noticed(store: ObjectStore) -> None:
    file, added = stored(store)
    for position in range(0, file.size, 7):
        flaky = FlakyStore(store, [Corrupt(".snapshot", position, mask=1 << position % 8)])
        assert damaged_or_same(flaky, file, added), position


def test_every_cut_is_noticed(store: ObjectStore) -> None:
    file, added = stored(store)
    for size in range(0, file.size, 13):
        assert damaged_or_same(FlakyStore(store, [CutShort(".snapshot", size)]), file, added), size


def test_a_file_cut_short_says_by_how_much(store: ObjectStore) -> None:
    file, _ = stored(store)
    with pytest.raises(CheckpointDamaged, match=r"is cut short: \d+ of \d+ bytes"):
        list(read_sections(FlakyStore(store, [CutShort(".snapshot", file.size - 8)]), file))


def test_damage_of_inline_snapshots_is_noticed(store: ObjectStore) -> None:
    file, added = stored(store, inline_limit=1 << 20)
    assert file.inline is not None
    for position in range(0, file.size, 11):
        changed = bytearray(file.inline)
        changed[position] ^= 0x10
        assert damaged_or_same(store, FileRef(file.size, inline=bytes(changed), sections=file.sections), added)
        cut = FileRef(file.size, inline=file.inline[:position], sections=file.sections)
        assert damaged_or_same(store, cut, added)


def test_the_error_names_the_file_and_the_section(store: ObjectStore) -> None:
    file, _ = stored(store)
    section = next(s for s in file.sections if labels(s) == ("join", "left", "list", 3))
    flaky = FlakyStore(store, [Corrupt(".snapshot", section.offset + 20)])

    with pytest.raises(
        CheckpointDamaged, match=r"slot-0-0\.snapshot, section join/left/list/3 .*checksum.*start from an older one"
    ):
        list(read_sections(flaky, file))


def test_a_missing_file_is_damage(store: ObjectStore) -> None:
    file, _ = stored(store)
    store.delete(PATH)
    with pytest.raises(CheckpointDamaged, match=r"slot-0-0\.snapshot is missing"):
        list(read_sections(store, file))


def test_damage_in_a_part_that_is_not_wanted_does_not_matter(store: ObjectStore) -> None:
    file, added = stored(store)
    last = next(s for s in file.sections if s.uid == "join" and s.key_group == 3)
    flaky = FlakyStore(store, [Corrupt(".snapshot", last.offset + 20)])

    found = read_sections(flaky, file, lambda section: section.uid == "count")
    assert [(labels(section), rows) for section, rows in found] == [item for item in added if item[0][0] == "count"]


def test_a_full_storage_leaves_no_file(store: ObjectStore) -> None:
    with pytest.raises(Exception, match="no space left"):
        stored(FlakyStore(store, [NoSpace(after_bytes=100)]))
    assert store.list("") == []


@pytest.mark.parametrize("in_memory_bytes", [0, 1000])
def test_a_file_that_is_put_together_on_the_local_disk_is_the_same(in_memory_bytes: int) -> None:
    def write(writer: SnapshotFileWriter) -> tuple[bytes, list[SectionRef]]:
        for group in range(1, 6):
            writer.add("op", "state", "value", group, pa.record_batch({"value": list(range(group * 50))}))
        data, sections = writer.finish(lambda index: f"{len(index)} sections".encode())
        return bytes(memoryview(data)), sections

    in_memory = write(SnapshotFileWriter())
    assert len(in_memory[0]) > 1000
    assert in_memory[0].endswith(b"6 sections")
    assert write(SnapshotFileWriter(in_memory_bytes=in_memory_bytes)) == in_memory


def test_a_local_disk_without_space_is_named_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    writer = SnapshotFileWriter(in_memory_bytes=100)
    with pytest.raises(StorageError, match=r"put together on the local disk, in .*: No space left .* set TMPDIR"):
        writer.add("op", "state", "value", 0, pa.record_batch({"value": list(range(100))}))
