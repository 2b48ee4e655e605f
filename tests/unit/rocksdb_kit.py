"""Backends over RocksDB for tests: in a folder of the test, closed when the test ends, with as little memory as wanted."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from state_kit import MAX_PARALLELISM, Everything

from tidegate.state.backend import KeyedSnapshot, Section, StoredFolder, bind_states
from tidegate.state.keys import KeyType
from tidegate.state.rocksdb import RocksStateBackend, sections_in
from tidegate.state.rocksdb_options import RocksMemory, RocksSettings, database_options
from tidegate.state.rocksdb_store import StoredStates, open_database


@dataclass(frozen=True, slots=True)
class Room:
    """How much of the state may be in memory."""

    clean_bytes: int
    unwritten_bytes: int


AMPLE = Room(16 << 20, 16 << 20)
#: What is used leaves memory at once: whatever is forgotten too early is found by this.
NONE = Room(0, 0)
#: Almost so: a few changes of each state are written together, which tests with many need, since each write makes a file.
LITTLE = Room(0, 40_000)
FORGETFUL = Room(0, 16 << 20)
HASTY = Room(16 << 20, 0)


class RocksBackends:
    """Makes backends, and closes them all."""

    def __init__(self, folder: Path, room: Room = AMPLE) -> None:
        self.folder = folder
        self.settings = RocksSettings(memory_bytes=4 << 20, folder=folder / "state")
        self.room = room
        self._stack = ExitStack()

    def backend(
        self,
        key_type: KeyType,
        key_groups: range = range(MAX_PARALLELISM),
        wall_clock: Callable[[], float] = time.time,
    ) -> RocksStateBackend:
        memory = RocksMemory(self.settings)
        memory.clean_bytes, memory.unwritten_bytes = self.room.clean_bytes, self.room.unwritten_bytes
        backend = RocksStateBackend(key_type, key_groups, MAX_PARALLELISM, self.settings, memory, wall_clock)
        self._stack.callback(backend.close)
        return backend

    def bound(
        self, key_type: KeyType, columnar: bool = False, key_groups: range = range(MAX_PARALLELISM)
    ) -> tuple[RocksStateBackend, Everything]:
        backend, function = self.backend(key_type, key_groups), Everything()
        bind_states(function, backend, columnar)
        return backend, function

    def fetched(self, snapshot: KeyedSnapshot, name: str, key_groups: range) -> StoredFolder:
        """The files of a snapshot in a folder of their own, as a restore would have fetched them."""
        folder = self.folder / name
        folder.mkdir()
        for file in snapshot.files() or ():
            (folder / file.name).write_bytes(file.path.read_bytes())
        return StoredFolder(folder, key_groups)

    def copied(self, stored: StoredFolder, name: str) -> StoredFolder:
        """The same files once more: a restore uses them up."""
        return StoredFolder(Path(shutil.copytree(stored.folder, self.folder / name)), stored.key_groups)

    def sections_in(self, stored: StoredFolder, key_groups: range) -> Iterator[Section]:
        return sections_in(stored, key_groups, self.settings)

    def rows_of(self, backend: RocksStateBackend, state: str) -> int:
        """How many rows the state has, counted in a fresh checkpoint of it."""
        snapshot = backend.snapshot()
        with StoredStates(snapshot.files()[0].path.parent, backend._options) as states:
            return sum(1 for _ in states.rows_between(state, b"", b"\xff\xff"))

    def set_format(self, stored: StoredFolder, version: bytes) -> None:
        """As a later release would have written it."""
        memory = RocksMemory(self.settings)
        db = open_database(stored.folder, lambda: database_options(self.settings, memory))
        db[b"format"] = version
        db.flush()
        db.close()

    def close(self) -> None:
        self._stack.close()


@contextmanager
def rocks_backends(room: Room = AMPLE) -> Iterator[RocksBackends]:
    # In memory where there is such a folder: RocksDB syncs each table, and a test has nothing to lose.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        made = RocksBackends(Path(folder), room)
        try:
            yield made
        finally:
            made.close()
