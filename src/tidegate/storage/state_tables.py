"""One state of one slot as a Parquet table of a savepoint. Written by executors, read by them and by offline tools.

    keyed state     key_group, key, key_bytes, namespace, [map_key,] value, expiry     (savepoints/canonical_rows.py)
    operator state  [map_key,] value
    in-flight       origin, target, flags, count, payload

Rows stand in the order of their key groups, so that a section (one key group) is a run of rows. A `FileRef` of format
"parquet" lists the sections with rows as offsets and lengths.

Guarantee: a section is read exactly as it was written, or CheckpointDamaged is raised. A file that is read whole is
compared with its checksum; of a larger one each page is compared with its own.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tidegate.errors import CheckpointDamaged
from tidegate.storage.metadata import PARQUET, FileRef, SectionRef
from tidegate.storage.store import StorageNotFound

ROW_GROUP_ROWS = 65_536
#: Up to here a file is read whole, in one request.
WHOLE_FILE_BYTES = 16 * 1024 * 1024
#: Of a key group, which is one batch up to here. Arrow cannot join more than 2 GiB of text, bytes or lists.
JOINED_BYTES = 1 << 30

_DERIVED = ("key_group", "key")  #: columns for people; `key_bytes` is what counts


class TableStorage(Protocol):
    """`ObjectStore` is one."""

    def put(self, path: str, data: Any) -> None: ...

    def get_range(self, path: str, start: int, length: int) -> bytes: ...


def store_table(
    storage: TableStorage, path: str, uid: str, state: str, kind: str, parts: Iterable[tuple[int, pa.RecordBatch]]
) -> FileRef | None:
    """Durable when it returns. `parts` come with their key group, in its order. None when there are no rows.

    The file is built on the local disk: the state may be larger than memory.
    """
    with tempfile.TemporaryDirectory(prefix="tidegate-savepoint-") as folder:
        local = Path(folder) / "table.parquet"
        counts = write_table(local, parts)
        if not counts:
            return None
        with pa.memory_map(str(local)) as mapped:
            data = mapped.read_buffer()
            checksum = xxhash.xxh3_128_hexdigest(memoryview(data))
            size = data.size
            storage.put(path, memoryview(data))
            del data
    return table_ref(path, size, uid, state, kind, counts, checksum)


def write_table(local: Path, parts: Iterable[tuple[int, pa.RecordBatch]]) -> list[tuple[int, int]]:
    """(key group, rows) of each section; nothing is written where there are no rows."""
    counts: list[tuple[int, int]] = []
    writer: pq.ParquetWriter | None = None
    waiting: list[pa.RecordBatch] = []
    waiting_rows = 0
    try:
        for group, rows in parts:
            if not rows.num_rows:
                continue
            if counts and counts[-1][0] == group:
                counts[-1] = (group, counts[-1][1] + rows.num_rows)
            else:
                counts.append((group, rows.num_rows))
            if writer is None:
                writer = pq.ParquetWriter(local, rows.schema, compression="zstd", write_page_checksum=True)
            waiting.append(rows)
            waiting_rows += rows.num_rows
            if waiting_rows >= ROW_GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=ROW_GROUP_ROWS)
                waiting, waiting_rows = [], 0
        if writer is not None and waiting:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=ROW_GROUP_ROWS)
    finally:
        if writer is not None:
            writer.close()
    return counts


def table_ref(
    path: str, size: int, uid: str, state: str, kind: str, counts: Iterable[tuple[int, int]], checksum: str
) -> FileRef:
    sections, offset = [], 0
    for group, rows in counts:
        sections.append(SectionRef(uid, state, kind, group, offset, rows, rows, checksum))
        offset += rows
    return FileRef(size=size, path=path, sections=sections, format=PARQUET)


def read_table(storage: TableStorage, file: FileRef) -> Iterator[tuple[SectionRef, pa.RecordBatch]]:
    """The sections of the reference, as rows of a snapshot file (state/sections.py): `key` is the canonical bytes.

    :raises CheckpointDamaged: when the file is missing, cut short or changed.
    """
    for section, rows in read_rows(storage, file):
        yield section, stored_rows(rows)


def stored_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A table's rows as a snapshot file has them."""
    if "key_bytes" not in rows.schema.names:
        return rows
    kept = [name for name in rows.schema.names if name not in _DERIVED]
    renamed = ["key" if name == "key_bytes" else name for name in kept]
    return pa.RecordBatch.from_arrays([rows.column(name) for name in kept], renamed)


def read_rows(storage: TableStorage, file: FileRef) -> Iterator[tuple[SectionRef, pa.RecordBatch]]:
    """The sections as they stand in the table, with the columns for people."""
    try:
        source = _open(storage, file)
        parquet = pq.ParquetFile(source, page_checksum_verification=True)
        ends = _row_group_ends(parquet)
        read: tuple[int, pa.Table] | None = None
        for section in sorted(file.sections, key=lambda section: section.offset):
            pieces = []
            start, stop = section.offset, section.offset + section.length
            for index, end in enumerate(ends):
                begin = ends[index - 1] if index else 0
                if begin < stop and start < end:
                    if read is None or read[0] != index:
                        read = index, parquet.read_row_group(index)
                    low = max(start, begin) - begin
                    pieces.append(read[1].slice(low, min(stop, end) - begin - low))
            table = pa.concat_tables(pieces) if pieces else None
            if table is None or table.num_rows != section.rows:
                raise _damaged(f"{file.path} lacks rows of key group {section.key_group}", file)
            for rows in _batches_of(table, section):
                yield section, rows
    except StorageNotFound as error:
        raise _damaged(f"{file.path} is missing", file) from error
    except (pa.ArrowException, OSError) as error:
        raise _damaged(f"{file.path} cannot be read: {error}", file) from error


def _batches_of(table: pa.Table, section: SectionRef) -> Iterator[pa.RecordBatch]:
    """One, but of a key group that is too large for Arrow to join: as many as there are."""
    if section.key_group < 0 or table.nbytes <= JOINED_BYTES:
        table = table.combine_chunks()
    yield from table.to_batches()


def _row_group_ends(parquet: pq.ParquetFile) -> list[int]:
    ends: list[int] = []
    for index in range(parquet.num_row_groups):
        ends.append((ends[-1] if ends else 0) + parquet.metadata.row_group(index).num_rows)
    return ends


def _open(storage: TableStorage, file: FileRef) -> Any:
    assert file.path is not None
    if file.size > WHOLE_FILE_BYTES:
        return pa.PythonFile(_RangedFile(storage, file.path, file.size), mode="r")
    data = storage.get_range(file.path, 0, file.size + 1)
    if len(data) != file.size:
        raise _damaged(f"{file.path} has {len(data)} bytes or more, not {file.size}", file)
    for section in file.sections[:1]:
        if section.checksum and xxhash.xxh3_128_hexdigest(data) != section.checksum:
            raise _damaged(f"{file.path} was changed: its checksum does not match", file)
    return pa.BufferReader(data)


class _RangedFile(io.RawIOBase):
    """A stored object as a file that is read in ranges."""

    def __init__(self, storage: TableStorage, path: str, size: int) -> None:
        self._storage = storage
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, length: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        wanted = left if length is None or length < 0 else min(length, left)
        data = self._storage.get_range(self._path, self._at, wanted) if wanted else b""
        self._at += len(data)
        return data


def _damaged(what: str, file: FileRef) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{what}. The savepoint cannot be restored; start from another: tidegate run JOB --resume <its path>.",
        path=file.path,
    )
