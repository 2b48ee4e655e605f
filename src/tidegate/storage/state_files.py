"""Keyed state as files that several checkpoints share: how they are described, stored and fetched. Executor, any thread.

A subtask's state is a set of files that never change, each stored once and referred to by every checkpoint that has it,
and of small ones that belong to one checkpoint alone and travel inside its metadata. What is in them is the format's:

    rocksdb   the tables of a database (state/rocksdb_files.py); the small ones say how they belong together
    heap      a full base, then what has changed since, oldest first (storage/increment_file.py)

Guarantee: what `fetch_state` has put into a folder is what `store_file` was given, or CheckpointDamaged is raised.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import msgspec
import xxhash

from tidegate.errors import CheckpointDamaged
from tidegate.storage.store import Data, StorageNotFound

_PIECE_BYTES = 16 * 1024 * 1024  #: bounds the memory of a restore


class StoredFile(msgspec.Struct, frozen=True):
    """A file that is stored under `path`, and is called `name` where the database opens it."""

    name: str
    path: str
    size: int
    checksum: str  # xxh3_128, hex
    checkpoint: int  # that it was uploaded for


class SmallFile(msgspec.Struct, frozen=True):
    """A file of one checkpoint alone."""

    name: str
    content: bytes


ROCKSDB = "rocksdb"
HEAP = "heap"


class StateFiles(msgspec.Struct, frozen=True):
    """The keyed state of one subtask of one operator, as files."""

    uid: str
    subtask: int
    first_key_group: int
    last_key_group: int
    files: list[StoredFile] = []
    small_files: list[SmallFile] = []
    format: str = ROCKSDB

    @property
    def key_groups(self) -> range:
        return range(self.first_key_group, self.last_key_group + 1)

    def size_bytes(self) -> int:
        """Of the whole state; what one checkpoint added is `added_bytes`."""
        return sum(file.size for file in self.files) + sum(len(file.content) for file in self.small_files)

    def added_bytes(self, checkpoint: int) -> int:
        new = sum(file.size for file in self.files if file.checkpoint == checkpoint)
        return new + sum(len(file.content) for file in self.small_files)


def files_with_paths(state: StateFiles, follow: Callable[[str], str]) -> StateFiles:
    """The same, with every file under another path."""
    files = [msgspec.structs.replace(file, path=follow(file.path)) for file in state.files]
    return msgspec.structs.replace(state, files=files)


class FileStorage(Protocol):
    """`ObjectStore` is one."""

    def put(self, path: str, data: Data) -> None: ...

    def get_range(self, path: str, start: int, length: int) -> bytes: ...

    def uri(self, path: str) -> str: ...


def store_file(storage: FileStorage, local: Path, name: str, path: str, checkpoint: int) -> StoredFile:
    """Durable when it returns. Tables are small (8 MB), so one is read at once."""
    data = local.read_bytes()
    storage.put(path, data)
    return StoredFile(name, path, len(data), xxhash.xxh3_128_hexdigest(data), checkpoint)


def fetch_state(
    storage: FileStorage,
    state: StateFiles,
    folder: Path,
    map_files: Callable[[Callable[[Any], None], Iterable[Any]], Iterable[Any]] = map,
    copies: Mapping[str, Path] = MappingProxyType({}),
) -> None:
    """Put all files into a new folder. `map_files` may do several at once. `copies` are files of this machine, by their path
    in storage, that were found to be intact: they are linked.

    :raises CheckpointDamaged: when a file is missing, cut short or changed.
    """
    folder.mkdir(parents=True)
    for small in state.small_files:
        (folder / _plain_name(small.name)).write_bytes(small.content)
    for _ in map_files(lambda file: _fetch(storage, file, folder, copies.get(file.path)), state.files):
        pass


def place_file(existing: Path, target: Path) -> None:
    """A file under a second name; a copy where the disk is another. :raises OSError:"""
    try:
        os.link(existing, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or one without hard links
        shutil.copyfile(existing, target)


def _fetch(storage: FileStorage, file: StoredFile, folder: Path, copy: Path | None) -> None:
    target = folder / _plain_name(file.name)
    if copy is not None:
        try:
            place_file(copy, target)
            return
        except OSError:  # it was deleted meanwhile; or it cannot be copied: storage will tell whether the disk is full
            target.unlink(missing_ok=True)
    digest = xxhash.xxh3_128()
    fetched = 0
    with target.open("wb") as out:
        while fetched < file.size:
            try:
                piece = storage.get_range(file.path, fetched, min(_PIECE_BYTES, file.size - fetched))
            except StorageNotFound as error:
                raise _damaged(f"{storage.uri(file.path)} is missing", file) from error
            if not piece:
                raise _damaged(f"{storage.uri(file.path)} is cut short: {fetched} of {file.size} bytes", file)
            out.write(piece)
            digest.update(piece)
            fetched += len(piece)
    if digest.hexdigest() != file.checksum:
        raise _damaged(f"{storage.uri(file.path)} was changed: its checksum does not match", file)


def _plain_name(name: str) -> str:
    if Path(name).name != name or name in ("", ".", ".."):
        raise CheckpointDamaged(f"the checkpoint holds a file named {name!r}, which is not a plain name.", name=name)
    return name


def _damaged(what: str, file: StoredFile) -> CheckpointDamaged:
    return CheckpointDamaged(
        f"{what}. The checkpoint cannot be restored; start from an older one: tidegate run JOB --resume <its path>.",
        path=file.path,
    )
