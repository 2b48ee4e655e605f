"""The folder of a savepoint: Parquet tables and one JSON file. docs/savepoint-format.md describes it for readers.

    <folder>/_metadata.json                          written last: from here on the savepoint is whole
    <folder>/keyed/<operator>/<state>/part-1-0.parquet       of slot 1.0
    <folder>/timers/<operator>/<event|processing>/part-1-0.parquet
    <folder>/operator/<operator>/<state>/part-1-0.parquet
    <folder>/in-flight/<operator>/part-1-0.parquet
    <folder>/sources.parquet                         the positions of all splits
    <folder>/prepared.parquet                        what sinks have prepared and not committed
    <folder>/slot-1-0.snapshot                       in place of the first four, in the native format
    <folder>/state/<operator>/slot-1-0.<name>.state  keyed state as RocksDB's own files, in the native format

Version 2 differs from 1 by these last files alone. What has none is written as version 1, so that older releases read it.

Every path in the JSON is relative to the folder, so it can be copied anywhere. A reader gets a `CheckpointMetadata`, as
for a checkpoint; whoever restores sees no difference.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tidegate.errors import CheckpointDamaged
from tidegate.ids import EVENT_TIMERS, PROCESSING_TIMERS
from tidegate.storage.metadata import (
    IN_FLIGHT,
    PARQUET,
    CheckpointMetadata,
    Committable,
    FileRef,
    OperatorInfo,
    SectionRef,
    SlotSnapshot,
    SplitState,
    SubtaskSnapshot,
    check_stored_path,
)
from tidegate.storage.paths import METADATA_NAME, STATE_SUFFIX
from tidegate.storage.state_files import StateFiles, files_with_paths
from tidegate.storage.state_tables import table_ref
from tidegate.storage.store import ObjectStore, StorageNotFound
from tidegate.storage.versioned import decode_versioned, version_of

SAVEPOINT_VERSION = 2
WITHOUT_FILES = 1  #: the version of what holds no files of a database
SOURCES_NAME = "sources.parquet"
PREPARED_NAME = "prepared.parquet"

CANONICAL, NATIVE = "canonical", "native"

_SOURCES = pa.schema(
    [
        ("uid", pa.string()),
        ("subtask", pa.int32()),
        ("split", pa.string()),
        ("position", pa.string()),  # JSON
        ("finished", pa.bool_()),
    ]
)
_PREPARED = pa.schema(
    [
        ("uid", pa.string()),
        ("subtask", pa.int32()),
        ("checkpoint", pa.int64()),
        ("version", pa.int32()),
        ("payload", pa.binary()),
    ]
)


class TableInfo(msgspec.Struct, frozen=True):
    """A Parquet table: one state of one slot."""

    uid: str
    state: str
    kind: str  # value | list | map | reducing | aggregating | operator-list | operator-union | operator-broadcast ...
    path: str  # relative to the folder
    size: int
    checksum: str  # xxh3_128 of the file, hex
    key_groups: list[tuple[int, int]]  # (key group, rows), in the order of the rows; -1: not keyed


class SubtaskInfo(msgspec.Struct, frozen=True):
    uid: str
    subtask: int
    ended: bool = False
    watermark: int | None = None


class SlotInfo(msgspec.Struct, frozen=True):
    layer: int
    index: int
    subtasks: list[SubtaskInfo] = []
    tables: list[TableInfo] = []
    file: FileRef | None = None  # in the native format
    states: list[StateFiles] = []  # in the native format, of a backend whose state is files


class SmallTable(msgspec.Struct, frozen=True):
    path: str
    size: int
    checksum: str
    rows: int


class SavepointMetadata(msgspec.Struct, frozen=True):
    """The JSON file."""

    savepoint_version: int
    format: str  # canonical | native
    job: str
    checkpoint: int
    generation: int
    attempt: int
    triggered_at: float  # epoch seconds
    completed_at: float
    operators: list[OperatorInfo]
    slots: list[SlotInfo]
    sources: SmallTable
    prepared: SmallTable
    stopped: str | None = None  # suspend | drain


# -- paths ---------------------------------------------------------------------------------------------------------


def table_path(uid: str, state: str, kind: str, layer: int, index: int) -> str:
    """Relative to the folder."""
    part = f"part-{layer}-{index}.parquet"
    if kind == IN_FLIGHT:
        return f"in-flight/{folder_name(uid)}/{folder_name(state)}/{part}"
    if state == EVENT_TIMERS:
        return f"timers/{folder_name(uid)}/event/{part}"
    if state == PROCESSING_TIMERS:
        return f"timers/{folder_name(uid)}/processing/{part}"
    if kind.startswith(("operator-", "raw-")):
        return f"operator/{folder_name(uid)}/{folder_name(state)}/{part}"
    return f"keyed/{folder_name(uid)}/{folder_name(state)}/{part}"


def native_file_path(layer: int, index: int) -> str:
    """Relative to the folder."""
    return f"slot-{layer}-{index}.snapshot"


def state_file_path(uid: str, layer: int, index: int, name: str) -> str:
    """Relative to the folder. The suffix says that checkpoints of a job which has claimed the savepoint may refer to it."""
    return f"state/{folder_name(uid)}/slot-{layer}-{index}.{name}{STATE_SUFFIX}"


def folder_name(text: str) -> str:
    """The text itself where it can be a folder anywhere; else a plain form of it with a hash."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)[:80]
    return plain if plain == text and text else f"{plain}-{xxhash.xxh3_64_hexdigest(text.encode())}"


# -- writing -------------------------------------------------------------------------------------------------------


def store_savepoint(
    store: ObjectStore,
    folder: str,
    metadata: CheckpointMetadata,
    *,
    format: str,
    stopped: str | None = None,
    half: Callable[[], None] = lambda: None,
) -> bytes:
    """The driver's part, after every slot has stored its own: two small tables, then the JSON file. Gives its bytes.

    The files of `metadata` lie in `folder`. `half` is called when all is stored but the JSON file.

    :raises CheckpointDamaged: when there is a savepoint in the folder already.
    """
    subtasks = [subtask for slot in metadata.slots for subtask in slot.subtasks]
    sources = _store_small(store, folder, SOURCES_NAME, sources_table(subtasks))
    prepared = _store_small(store, folder, PREPARED_NAME, prepared_table(subtasks))
    half()
    has_files = any(slot.states for slot in metadata.slots)
    data = encode_savepoint(
        SavepointMetadata(
            savepoint_version=SAVEPOINT_VERSION if has_files else WITHOUT_FILES,
            format=format,
            job=metadata.job,
            checkpoint=metadata.checkpoint,
            generation=metadata.generation,
            attempt=metadata.attempt,
            triggered_at=metadata.triggered_at,
            completed_at=metadata.completed_at,
            operators=metadata.operators,
            slots=[_slot_info(slot, folder) for slot in metadata.slots],
            sources=sources,
            prepared=prepared,
            stopped=stopped,
        )
    )
    path = f"{folder}/{METADATA_NAME}"
    if not store.create(path, data) and store.get(path) != data:  # its own, of a request that was repeated, is whole
        raise CheckpointDamaged(f"there is a savepoint in {folder} already; it stays as it is", path=folder)
    return data


def encode_savepoint(savepoint: SavepointMetadata) -> bytes:
    return msgspec.json.format(msgspec.json.encode(savepoint), indent=1)


def sources_table(subtasks: Iterable[SubtaskSnapshot]) -> pa.Table:
    rows = [
        (subtask.uid, subtask.subtask, split.id, json.dumps(msgspec.to_builtins(split.position)), split.finished)
        for subtask in subtasks
        for split in subtask.splits
    ]
    return _table(rows, _SOURCES)


def prepared_table(subtasks: Iterable[SubtaskSnapshot]) -> pa.Table:
    rows = [
        (committable.uid, subtask.subtask, committable.checkpoint, committable.version, committable.payload)
        for subtask in subtasks
        for committable in subtask.committables
    ]
    return _table(rows, _PREPARED)


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([pa.array(list(column), field.type) for column, field in zip(columns, schema)], schema=schema)


def _store_small(store: ObjectStore, folder: str, name: str, table: pa.Table) -> SmallTable:
    out = io.BytesIO()
    pq.write_table(table, out)
    data = out.getvalue()
    store.put(f"{folder}/{name}", data)
    return SmallTable(name, len(data), xxhash.xxh3_128_hexdigest(data), table.num_rows)


def _slot_info(slot: SlotSnapshot, folder: str) -> SlotInfo:
    file = slot.file
    return SlotInfo(
        layer=slot.layer,
        index=slot.index,
        subtasks=[SubtaskInfo(s.uid, s.subtask, s.ended, s.watermark) for s in slot.subtasks],
        tables=[_table_info(table, folder) for table in slot.tables],
        file=msgspec.structs.replace(file, path=None if file.path is None else _inside(file.path, folder))
        if file.sections
        else None,
        states=[files_with_paths(state, lambda path: _inside(path, folder)) for state in slot.states],
    )


def _table_info(table: FileRef, folder: str) -> TableInfo:
    first = table.sections[0]
    assert table.path is not None
    path = _inside(table.path, folder)
    counts = [(section.key_group, section.rows) for section in table.sections]
    return TableInfo(first.uid, first.state, first.kind, path, table.size, first.checksum, counts)


def _inside(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/")


# -- reading -------------------------------------------------------------------------------------------------------


def is_savepoint(data: bytes) -> bool:
    try:
        return version_of(data, "savepoint_version") is not None
    except msgspec.MsgspecError:
        return False


def decode_savepoint(data: bytes, uri: str) -> SavepointMetadata:
    """:raises CheckpointDamaged: when the bytes are not a savepoint's JSON, of a version that this release cannot read, or name
    a file outside its folder: whoever claims a savepoint deletes its files one day."""
    readable = (WITHOUT_FILES, SAVEPOINT_VERSION)
    try:
        savepoint = decode_versioned(data, SavepointMetadata, "savepoint_version", readable, uri)
    except msgspec.MsgspecError as error:
        raise CheckpointDamaged(f"{uri} is not a savepoint's metadata: {error}", path=uri) from error
    for path in _paths_in(savepoint):
        check_stored_path(path, uri)
    return savepoint


def _paths_in(savepoint: SavepointMetadata) -> Iterator[str]:
    yield savepoint.sources.path
    yield savepoint.prepared.path
    for slot in savepoint.slots:
        if slot.file is not None and slot.file.path is not None:
            yield slot.file.path
        yield from (table.path for table in slot.tables)
        yield from (file.path for state in slot.states for file in state.files)


def read_savepoint(store: ObjectStore, folder: str, data: bytes) -> CheckpointMetadata:
    """The savepoint in `folder` as a checkpoint's metadata, its files named by their paths in `store`.

    :raises CheckpointDamaged: when one of its small tables is missing or changed.
    """
    savepoint = decode_savepoint(data, store.uri(f"{folder}/{METADATA_NAME}"))
    splits: dict[tuple[str, int], list[SplitState]] = {}
    for row in _load_small(store, folder, savepoint.sources, _SOURCES):
        split = SplitState(row["split"], json.loads(row["position"]), row["finished"])
        splits.setdefault((row["uid"], row["subtask"]), []).append(split)
    prepared: dict[tuple[str, int], list[Committable]] = {}
    for row in _load_small(store, folder, savepoint.prepared, _PREPARED):
        committable = Committable(row["uid"], row["checkpoint"], row["version"], row["payload"])
        prepared.setdefault((row["uid"], row["subtask"]), []).append(committable)

    def subtask(info: SubtaskInfo) -> SubtaskSnapshot:
        own = info.uid, info.subtask
        return SubtaskSnapshot(*own, info.ended, info.watermark, splits.get(own, []), prepared.get(own, []))

    return CheckpointMetadata(
        job=savepoint.job,
        checkpoint=savepoint.checkpoint,
        generation=savepoint.generation,
        attempt=savepoint.attempt,
        triggered_at=savepoint.triggered_at,
        completed_at=savepoint.completed_at,
        operators=savepoint.operators,
        slots=[
            SlotSnapshot(
                slot.layer,
                slot.index,
                _placed(slot.file, folder),
                [subtask(info) for info in slot.subtasks],
                [_table_ref(table, folder) for table in slot.tables],
                [files_with_paths(state, lambda path: f"{folder}/{path}") for state in slot.states],
            )
            for slot in savepoint.slots
        ],
        final=savepoint.stopped == "drain",
        savepoint=True,
    )


def _placed(file: FileRef | None, folder: str) -> FileRef:
    if file is None:
        return FileRef(size=0)
    return file if file.path is None else msgspec.structs.replace(file, path=f"{folder}/{file.path}")


def _table_ref(table: TableInfo, folder: str) -> FileRef:
    path = f"{folder}/{table.path}"
    return table_ref(path, table.size, table.uid, table.state, table.kind, table.key_groups, table.checksum)


def _load_small(store: ObjectStore, folder: str, table: SmallTable, schema: pa.Schema) -> list[dict[str, Any]]:
    path = f"{folder}/{table.path}"
    try:
        data = store.get(path)
    except StorageNotFound as error:
        raise CheckpointDamaged(f"{store.uri(path)} is missing; the savepoint is not whole", path=path) from error
    if xxhash.xxh3_128_hexdigest(data) != table.checksum:
        raise CheckpointDamaged(f"{store.uri(path)} was changed: its checksum does not match", path=path)
    rows: list[dict[str, Any]] = pq.read_table(pa.BufferReader(data)).cast(schema).to_pylist()
    return rows


__all__ = [
    "CANONICAL",
    "NATIVE",
    "PARQUET",
    "SAVEPOINT_VERSION",
    "SavepointMetadata",
    "SectionRef",
    "SlotInfo",
    "SmallTable",
    "TableInfo",
    "decode_savepoint",
    "encode_savepoint",
    "folder_name",
    "is_savepoint",
    "native_file_path",
    "prepared_table",
    "read_savepoint",
    "sources_table",
    "state_file_path",
    "store_savepoint",
    "table_path",
]
