"""A file of heap state: rows by state and key group, with its index at the end. Written and read by the executors.

    sections        as in a slot's snapshot file (storage/snapshot_file.py)
    index           MessagePack, the SectionRef of each
    checksum        of the index, xxh3_128, 16 bytes
    length          of the index, 4 bytes, big-endian

The index is in the file, because many checkpoints refer to it: their metadata names the file and no more.

Guarantee: what is read is what was written, or CheckpointDamaged is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
import xxhash

from tidegate.errors import CheckpointDamaged
from tidegate.ids import CheckpointId
from tidegate.storage.metadata import FileRef, SectionRef
from tidegate.storage.snapshot_file import SnapshotFileWriter, read_sections
from tidegate.storage.state_files import StoredFile
from tidegate.storage.store import StorageNotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.storage.state_files import FileStorage

_TAIL_BYTES = 16 + 4


def store_increment_file(
    storage: FileStorage,
    path: str,
    name: str,
    uid: str,
    checkpoint: CheckpointId,
    sections: Iterable[tuple[str, str, int, pa.RecordBatch]],
) -> StoredFile:
    """Sections are (state, kind, key group, rows). Durable when it returns."""
    writer = SnapshotFileWriter()
    for state, kind, key_group, rows in sections:
        writer.add(uid, state, kind, key_group, rows)
    whole, _ = writer.finish(_tail)
    storage.put(path, whole)
    return StoredFile(name, path, whole.size, xxhash.xxh3_128_hexdigest(memoryview(whole)), checkpoint)


def _tail(sections: list[SectionRef]) -> bytes:
    index = msgspec.msgpack.encode(sections)
    return b"".join((index, xxhash.xxh3_128_digest(index), len(index).to_bytes(4, "big")))


def read_increment_file(
    storage: FileStorage, file: StoredFile, key_groups: range
) -> Iterator[tuple[SectionRef, pa.RecordBatch]]:
    """The rows of these key groups, in the order of writing.

    :raises CheckpointDamaged: when the file is missing, cut short or changed.
    """
    ref = FileRef(size=file.size, path=file.path, sections=_index(storage, file))
    yield from read_sections(storage, ref, lambda section: section.key_group in key_groups)


def _index(storage: FileStorage, file: StoredFile) -> list[SectionRef]:
    try:
        tail = storage.get_range(file.path, file.size - _TAIL_BYTES, _TAIL_BYTES)
        length = int.from_bytes(tail[-4:], "big")
        if len(tail) < _TAIL_BYTES or length > file.size - _TAIL_BYTES:
            raise _damaged(storage, file, "is cut short")
        index = storage.get_range(file.path, file.size - _TAIL_BYTES - length, length)
    except StorageNotFound as error:
        raise _damaged(storage, file, "is missing") from error
    if xxhash.xxh3_128_digest(index) != tail[:16]:
        raise _damaged(storage, file, "was changed: the checksum of its index does not match")
    return msgspec.msgpack.decode(index, type=list[SectionRef])


def _damaged(storage: FileStorage, file: StoredFile, what: str) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{storage.uri(file.path)} {what}. The checkpoint cannot be restored; start from an older one: tidegate run JOB "
        "--resume <its path>.",
        path=file.path,
    )
