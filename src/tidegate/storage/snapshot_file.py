"""One file for each slot and checkpoint: the state of its operators in sections. Written and read by the executors.

A section is one key group of one state, as an Arrow IPC message without its schema; the schema stands once for each
state before its first section, as a section of its own (`kind="schema"`, `key_group=-2`). A schema of a few hundred
bytes for each of 128 key groups would otherwise outweigh small state. A batch with dictionary columns, whose
dictionaries a single message cannot hold, is a whole IPC stream instead; the reader tells the two apart by the first
message. The file has no index: the `SectionRef`s travel with the acknowledgement into the checkpoint's metadata, each
with an xxh3_128 checksum.

It is built in memory, and on the local disk when it becomes large: the state may be larger than memory.

Guarantee: a section is read exactly as it was written, or CheckpointDamaged is raised; never anything in between.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

import msgspec
import pyarrow as pa
import xxhash

from tidegate.errors import CheckpointDamaged, ProtocolViolation, StateTooLarge, StorageError
from tidegate.storage.metadata import PARQUET, FileRef, SectionRef
from tidegate.storage.state_files import FileStorage
from tidegate.storage.state_tables import read_table
from tidegate.storage.store import Data, StorageNotFound

SCHEMA_KIND = "schema"
SCHEMA_KEY_GROUP = -2  # -1 is what is not keyed

#: A request to an object store costs about as much as 256 KB more of an answer.
_GAP_BYTES = 256 * 1024
#: Bounds the memory of a restore; a single larger section is read whole.
_RANGE_BYTES = 16 * 1024 * 1024

#: Of one file while it is written; what is more goes to the local disk.
IN_MEMORY_BYTES = 64 * 1024 * 1024

#: What one slot may hand to the driver's memory: with its index it must fit into a control message.
CARRIED_BYTES = 192 * 1024 * 1024

_END_MARK_BYTES = 8  # of an IPC stream

_State = tuple[str, str]


class SnapshotFileWriter:
    """Collects sections, in memory and then in a file without a name on the local disk. Used by one thread.

    `compression` ("lz4", "zstd") is off unless asked for: it makes small sections larger and costs them ten times the
    time; 100,000 rows become a third smaller and take seven times as long to write (docs/decisions/0001).
    """

    def __init__(self, compression: str | None = None, in_memory_bytes: int = IN_MEMORY_BYTES) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._in_memory_bytes = in_memory_bytes
        self._out = pa.BufferOutputStream()
        self._file: IO[bytes] | None = None  #: holds all of it, once there is too much for `_out`
        self._offset = 0
        self._sections: list[SectionRef] = []
        self._schemas: dict[_State, Any] = {}

    def add(self, uid: str, state: str, kind: str, key_group: int, batch: pa.RecordBatch) -> None:
        """Append one batch; several for one key group are read back in the order of writing."""
        if kind == SCHEMA_KIND or key_group == SCHEMA_KEY_GROUP:
            raise ProtocolViolation(f"{uid}/{state}: kind {kind!r}, key group {key_group} is not for state")
        schema = batch.schema
        if batch.num_rows == 0:
            # The message of an empty slice drags the whole buffers of its parent along (400 KB for 100,000 strings).
            batch = pa.RecordBatch.from_arrays([pa.array([], type=field.type) for field in schema], schema=schema)
        if any(_holds_dictionary(field.type) for field in schema):
            self._append(uid, state, kind, key_group, batch.num_rows, self._stream(batch))
            return
        written = self._schemas.get((uid, state))
        if written is None or not written.equals(schema, check_metadata=True):
            self._append(uid, state, SCHEMA_KIND, SCHEMA_KEY_GROUP, 0, schema.serialize())
            self._schemas[uid, state] = schema
        self._append(uid, state, kind, key_group, batch.num_rows, self._message(batch))

    @property
    def size_bytes(self) -> int:
        """So far."""
        return self._offset

    def finish(
        self, end: Callable[[list[SectionRef]], bytes] = lambda index: b""
    ) -> tuple[pa.Buffer, list[SectionRef]]:
        """The file's bytes and its index; `end` gives what is to follow the sections. The writer is used up."""
        self._write(end(self._sections))
        if self._file is None:
            return self._out.getvalue(), self._sections
        with self._file as file:
            file.flush()
            return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), self._sections

    def _append(self, uid: str, state: str, kind: str, key_group: int, rows: int, data: pa.Buffer) -> None:
        # Arrow pads messages to 8 bytes, so each section begins aligned and can be read without a copy.
        self._sections.append(SectionRef(uid, state, kind, key_group, self._offset, data.size, rows, _checksum(data)))
        self._write(data)

    def _write(self, data: Data) -> None:
        view = memoryview(data)
        self._offset += view.nbytes
        if self._file is None and self._offset <= self._in_memory_bytes:
            self._out.write(data)
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="tidegate-snapshot-", buffering=0)  # noqa: SIM115
                self._write_all(self._out.getvalue())
                self._out = None
            self._write_all(view)
        except OSError as error:
            raise StorageError(
                f"a snapshot of {self._offset:,} bytes and more is put together on the local disk, in "
                f"{tempfile.gettempdir()}: {error.strerror or error}. Free some space there, or set TMPDIR on the "
                "executors.",
                reason="local disk",
            ) from error

    def _write_all(self, data: Data) -> None:
        assert self._file is not None
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[self._file.write(rest) :]

    def _message(self, batch: pa.RecordBatch) -> pa.Buffer:
        if self._options.compression is None:
            return batch.serialize()
        # Only a stream can be compressed: take the schema message off its front and the end mark off its back.
        stream = self._stream(batch)
        front = batch.schema.serialize().size
        return stream.slice(front, stream.size - front - _END_MARK_BYTES)

    def _stream(self, batch: pa.RecordBatch) -> pa.Buffer:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, batch.schema, options=self._options) as writer:
            writer.write_batch(batch)
        return out.getvalue()


def store_snapshot(
    store: FileStorage, path: str, data: Data, sections: Sequence[SectionRef], inline_limit: int
) -> FileRef:
    """Durable when it returns. At most `inline_limit` bytes travel inside the metadata, which saves a request."""
    view = memoryview(data).cast("B")
    if view.nbytes <= inline_limit:
        return FileRef(size=view.nbytes, inline=bytes(view), sections=list(sections))
    store.put(path, view)
    return FileRef(size=view.nbytes, path=path, sections=list(sections))


def carry_snapshot(data: Data, sections: Sequence[SectionRef], state_limit: int) -> FileRef:
    """The file for a checkpoint that is kept in the driver's memory: all of it travels inside the metadata.

    :raises StateTooLarge: when one state has more than `state_limit` bytes.
    """
    sizes: Counter[_State] = Counter()
    for section in sections:
        sizes[section.uid, section.state] += section.length
    for (uid, state), size in sizes.items():
        if size > state_limit:
            raise StateTooLarge(
                f"state {state!r} of operator {uid!r} takes {size:,} bytes in one subtask, and the driver's memory takes "
                f"at most {state_limit:,} of one state. Keep checkpoints in a storage that the executors share "
                '(storage="file:///...", s3://, gs://, az://, hdfs://), raise tidegate.memory-state-limit, or spread the '
                "state over more subtasks.",
                operator=uid,
                state=state,
                size=size,
                limit=state_limit,
            )
    view = memoryview(data).cast("B")
    if view.nbytes > CARRIED_BYTES:
        raise StateTooLarge(
            f"the states of one slot take {view.nbytes:,} bytes together, and at most {CARRIED_BYTES:,} can travel to the "
            "driver's memory. Keep checkpoints in a storage that the executors share.",
            size=view.nbytes,
            limit=CARRIED_BYTES,
        )
    return FileRef(size=view.nbytes, inline=bytes(view), sections=list(sections))


def select_sections(file: FileRef, wanted: Callable[[SectionRef], bool]) -> FileRef:
    """The same file with only the wanted sections in its index, and the schemas that they need."""
    chosen = {(section.uid, section.state) for section in file.sections if _is_state(section) and wanted(section)}
    sections = [
        section
        for section in file.sections
        if (section.uid, section.state) in chosen and (not _is_state(section) or wanted(section))
    ]
    return msgspec.structs.replace(file, sections=sections)


def read_sections(
    store: FileStorage,
    file: FileRef,
    wanted: Callable[[SectionRef], bool] | Sequence[SectionRef] | None = None,
) -> Iterator[tuple[SectionRef, pa.RecordBatch]]:
    """The wanted sections (all by default) in the order of writing. Neighbours are read in one request.

    A batch refers to the bytes of the request it came from: keep copies, not batches.

    :raises CheckpointDamaged: when the file is missing, cut short or changed; it names the file and the section.
    """
    if wanted is not None and not callable(wanted):
        chosen = set(wanted)
        file = select_sections(file, chosen.__contains__)
    elif wanted is not None:
        file = select_sections(file, wanted)
    if file.format == PARQUET:
        yield from read_table(store, file)
        return
    name = "the inline snapshot" if file.path is None else store.uri(file.path)
    schemas: dict[_State, Any] = {}
    for section, data in _read_bytes(store, file, name):
        where = f"{name}, section {section.uid}/{section.state}/{section.kind}/{section.key_group} at {section.offset}"
        if data.size != section.length:
            raise _damaged(f"{where} is cut short: {data.size} of {section.length} bytes", file)
        if _checksum(data) != section.checksum:
            raise _damaged(f"{where} was changed: its checksum does not match", file)
        try:
            if section.kind == SCHEMA_KIND:
                schemas[section.uid, section.state] = pa.ipc.read_schema(data)
                continue
            batch = _read_batch(data, schemas.get((section.uid, section.state)), where)
        except pa.ArrowException as error:
            raise _damaged(f"{where} cannot be read: {error}", file) from error
        if batch.num_rows != section.rows:
            raise _damaged(f"{where} has {batch.num_rows} rows, not {section.rows}", file)
        yield section, batch


def _read_batch(data: pa.Buffer, schema: pa.Schema | None, where: str) -> pa.RecordBatch:
    message = pa.ipc.read_message(data)
    if message.type == "schema":
        return pa.ipc.open_stream(data).read_next_batch()
    if schema is None:
        raise ProtocolViolation(f"{where}: the section with its schema was left out; see select_sections")
    return pa.ipc.read_record_batch(message, schema)


def _read_bytes(store: FileStorage, file: FileRef, name: str) -> Iterator[tuple[SectionRef, pa.Buffer]]:
    """Each section with the bytes that are at its place, in the order of the file."""
    ordered = sorted(file.sections, key=lambda section: section.offset)
    if file.inline is not None:
        whole = pa.py_buffer(file.inline)
        for section in ordered:
            yield section, _cut(whole, section.offset, section.length)
        return
    if file.path is None:
        raise ProtocolViolation("a snapshot file that is neither in storage nor inline")
    for group in _ranges(ordered):
        start = group[0].offset
        try:
            found = store.get_range(file.path, start, group[-1].offset + group[-1].length - start)
        except StorageNotFound as error:
            raise _damaged(f"{name} is missing", file) from error
        part = pa.py_buffer(found)
        for section in group:
            yield section, _cut(part, section.offset - start, section.length)


def _ranges(ordered: Sequence[SectionRef]) -> Iterator[list[SectionRef]]:
    """Runs of sections that one request should bring."""
    group: list[SectionRef] = []
    for section in ordered:
        if group:
            end = group[-1].offset + group[-1].length
            if section.offset - end > _GAP_BYTES or section.offset + section.length - group[0].offset > _RANGE_BYTES:
                yield group
                group = []
        group.append(section)
    if group:
        yield group


def _cut(data: pa.Buffer, offset: int, length: int) -> pa.Buffer:
    begin = min(offset, data.size)
    return data.slice(begin, min(length, data.size - begin))


def _is_state(section: SectionRef) -> bool:
    return section.kind != SCHEMA_KIND


def _holds_dictionary(type_: pa.DataType) -> bool:
    if isinstance(type_, pa.BaseExtensionType):
        return _holds_dictionary(type_.storage_type)
    if pa.types.is_dictionary(type_):
        return True
    return any(_holds_dictionary(type_.field(index).type) for index in range(type_.num_fields))


def _checksum(data: pa.Buffer) -> str:
    return str(xxhash.xxh3_128_hexdigest(memoryview(data)))


def _damaged(what: str, file: FileRef) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{what}. The checkpoint cannot be restored; start from an older one: tidegate run JOB --resume <its path>.",
        path=file.path,
    )
