"""One RocksDB database: the keyed state of one operator in one subtask. Executor.

Every write happens under `lock`, in the task's thread or in the snapshot's. What a snapshot has taken over but not yet
written is `unsettled`:

    snapshot()   task's thread: the changes so far are handed over       unsettled
    settle       whoever comes first: they are written, then RocksDB     settled
                 makes its checkpoint of hard links

Invariant 1. Nothing is written between the changes of a snapshot and its checkpoint, so the checkpoint holds exactly
             the state at the moment of the snapshot.
Invariant 2. There is at most one unsettled snapshot: the next one settles it first.
Invariant 3. What is unsettled stays in reach of its table, so the task's reads never miss it.

`db.write` and `create_checkpoint` keep the GIL, `flush` does not. So rows are sorted (twelve times as fast to insert), written
in pieces, and flushed before the checkpoint, which then has only links to make.

The default column family says what the database holds: `format`, `sequence` (of list rows), `state/<name>` for each state.
"""

from __future__ import annotations

import base64
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from rocksdict import AccessType, Checkpoint, Options, Rdict, WriteBatch

from tidegate.errors import CheckpointDamaged, StorageError
from tidegate.state.declarations import Declaration, StoredMap
from tidegate.state.rocksdb_keys import end_of
from tidegate.state.rocksdb_options import without_log
from tidegate.state.rocksdb_rows import ROW_FORMAT_VERSION, cells_for, cells_of
from tidegate.state.run_files import rows_of, runs_of

Row = tuple[bytes, bytes | None]  #: None: the row is deleted

_FORMAT_KEY = b"format"
_SEQUENCE_KEY = b"sequence"
_STATE_PREFIX = b"state/"
_FAMILY_PREFIX = "state/"  # a state could be called "default"
_PIECE = 4096

#: Properties by the names of Flink's native metrics, without the state's: an operator's states are added up. Of one cache all
#: databases of a slot have a part (`SHARED`).
SUMMED = (
    "rocksdb.cur-size-all-mem-tables",
    "rocksdb.estimate-pending-compaction-bytes",
    "rocksdb.num-files-at-level0",
    "rocksdb.live-sst-files-size",
    "rocksdb.estimate-num-keys",
)
SHARED = "rocksdb.block-cache-usage"


class RowFormat(msgspec.Struct, frozen=True):
    """How the rows of one state are laid out: enough to read them as columns without the classes that wrote them."""

    name: str
    kind: str
    type: str  #: the declared type, as text
    layout: str
    arrow: str  #: the schema of the columns, base64
    map_key_layout: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """Fields: value, and map_key of a map."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow)))


def row_format(declaration: Declaration) -> RowFormat:
    fields = [("value", declaration.value_type.arrow)]
    map_key_layout = None
    if isinstance(declaration, StoredMap):
        fields.append(("map_key", declaration.key_type.arrow))
        map_key_layout = cells_of(declaration.key_type).layout
    return RowFormat(
        name=declaration.name,
        kind=declaration.kind,
        type=declaration.type_name,
        layout=cells_for(declaration).layout,
        arrow=base64.b64encode(pa.schema(fields).serialize()).decode(),
        map_key_layout=map_key_layout,
    )


class Family:
    """The rows of one state."""

    __slots__ = ("_handle", "_store", "holds_rows", "rows")

    def __init__(self, store: RocksStore, rows: Rdict, handle: Any, holds_rows: bool) -> None:
        self._store = store
        self._handle = handle
        self.rows = rows
        self.holds_rows = holds_rows  #: False: nothing was ever written, so nothing need be looked up

    def get(self, row_key: bytes) -> bytes | None:
        return self.rows.get(row_key) if self.holds_rows else None

    def scan_between(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return rows_between(self.rows, start, stop)

    def close(self) -> None:
        self.rows.close()
        self._handle = None  # it would keep the database open

    def write(self, rows: Iterable[Row]) -> None:
        """All of them, sorted and in pieces. Only under the store's lock."""
        ordered = sorted(rows)
        for start in range(0, len(ordered), _PIECE):
            batch = WriteBatch(raw_mode=True)
            batch.set_default_column_family(self._handle)
            for row_key, cell in ordered[start : start + _PIECE]:
                if cell is None:
                    batch.delete(row_key)
                else:
                    batch[row_key] = cell
            with local_disk(self._store.folder):
                self._store.db.write(batch, self._store.write_options)
        self.holds_rows = self.holds_rows or bool(ordered)


class RocksStore:
    """A database that is open. Used by the task's thread and the snapshot's thread."""

    def __init__(self, folder: Path, options: Callable[[], Options]) -> None:
        """Opens what is in `folder`, or an empty database.

        :raises CheckpointDamaged: when the files are not a database that this release can read.
        """
        self.lock = threading.RLock()
        self.write_options = without_log()
        self._options = options
        self._unsettled: Callable[[], None] | None = None
        self._open(folder)

    def _open(self, folder: Path) -> None:
        options = self._options
        self.folder = folder
        self.families: dict[str, Family] = {}
        self.is_open = False
        exists = (folder / "CURRENT").exists()
        self.db = open_database(folder, options)
        self.is_open = True
        if exists:
            check_format(self.db, folder)
        else:
            self.db.put(_FORMAT_KEY, str(ROW_FORMAT_VERSION).encode(), self.write_options)
        stored = self.db.get(_SEQUENCE_KEY)
        self.sequence = 0 if stored is None else int.from_bytes(stored, "big")
        self._stored_families = set(Rdict.list_cf(str(folder), options())) if exists else set()

    def reopen(self, folder: Path) -> None:
        """Go on with the database in `folder`, which becomes ours. Nothing is unsettled, and what was here is dropped."""
        old = self.folder
        self.close()
        shutil.rmtree(old)
        # Under another name: RocksDB's lock on the old one is held until the last iterator is gone.
        self._open(Path(shutil.move(folder, old.with_name(old.name + "-restored"))))

    # -- states ----------------------------------------------------------------------------------------------------

    def family(self, declaration: Declaration) -> Family:
        """The rows of a declared state; the same object when asked again."""
        found = self.families.get(declaration.name)
        if found is None:
            name = family_name(declaration.name)
            exists = name in self._stored_families
            rows = self.db.get_column_family(name) if exists else self.db.create_column_family(name, self._options())
            rows.set_write_options(self.write_options)
            found = Family(self, rows, self.db.get_column_family_handle(name), exists)
            self.families[declaration.name] = found
            self.put_format(row_format(declaration))
        return found

    def dropped_rows(self, declaration: Declaration) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a state that is not kept here any more; they are gone when the last one was given."""
        name = family_name(declaration.name)
        if name in self._stored_families:
            rows = self.db.get_column_family(name)
            yield from rows.items()
            rows.close()
            self.db.drop_column_family(name)
            self._stored_families.discard(name)

    def put_format(self, written: RowFormat) -> None:
        key, data = _STATE_PREFIX + written.name.encode(), msgspec.json.encode(written)
        if self.db.get(key) != data:  # a row that is written again would be a file to upload again
            self.db.put(key, data, self.write_options)

    # -- writing ---------------------------------------------------------------------------------------------------

    def next_sequence(self) -> int:
        """Of the list rows that are handed over together; only grows, also over restores."""
        self.sequence += 1
        with local_disk(self.folder):
            self.db.put(_SEQUENCE_KEY, self.sequence.to_bytes(8, "big"), self.write_options)
        return self.sequence

    def raise_sequence(self, sequence: int) -> None:
        if sequence > self.sequence:
            self.sequence = sequence - 1
            self.next_sequence()

    def hand_over(self, settle: Callable[[], None]) -> None:
        """A snapshot has been taken; `settle` writes its changes and makes its checkpoint."""
        with self.lock:
            assert self._unsettled is None, "a snapshot was taken while another was unsettled"
            self._unsettled = settle

    def settle(self) -> None:
        """What was handed over is written when this returns. When it fails, it stays, and fails again."""
        if self._unsettled is None:
            return
        with self.lock:
            if self._unsettled is not None:
                self._unsettled()
                self._unsettled = None

    @property
    def is_settled(self) -> bool:
        return self._unsettled is None

    def checkpoint(self, folder: Path) -> None:
        """All that is written, as hard links in a new folder. Only under the lock."""
        try:
            with local_disk(self.folder):
                self.db.flush()
                for family in self.families.values():
                    family.rows.flush()
                Checkpoint(self.db).create_checkpoint(str(folder))
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def properties(self) -> dict[str, float]:
        """What RocksDB says of itself, for metrics: each is read in under a microsecond. Any thread.

        Nothing while a snapshot is written, which holds the store for a while: a heartbeat does not wait for it.
        """
        if not self.lock.acquire(blocking=False):
            return {}
        try:
            if not self.is_open:
                return {}
            families = [family.rows for family in self.families.values()]
            numbers = {name: float(sum(rows.property_int_value(name) or 0 for rows in families)) for name in SUMMED}
            numbers[SHARED] = self.db.property_int_value(SHARED) or 0
            return numbers
        finally:
            self.lock.release()

    def close(self) -> None:
        """Once or more."""
        with self.lock:
            self._unsettled = None
            for family in self.families.values():
                family.close()
            self.families = {}
            if self.is_open:
                self.is_open = False
                self.db.close()


class StoredStates:
    """A checkpoint of a database, opened for reading. A context manager."""

    def __init__(self, folder: Path, options: Callable[[], Options]) -> None:
        """:raises CheckpointDamaged: when the files are not a database that this release can read."""
        self._db = open_database(folder, options, read_only=True)
        try:
            check_format(self._db, folder)
            self.folder = folder
            self.runs = runs_of(folder)
            stored = self._db.get(_SEQUENCE_KEY)
            self.sequence = 0 if stored is None else int.from_bytes(stored, "big")
            self.formats = {written.name: written for written in _formats(self._db)}
        except BaseException:
            self._db.close()
            raise
        self._open: list[Rdict] = []

    def __enter__(self) -> StoredStates:
        return self

    def __exit__(self, *_: object) -> None:
        for rows in self._open:
            rows.close()
        self._db.close()

    def is_empty(self, state: str) -> bool:
        return next(self.rows_between(state, b"", b"\xff\xff"), None) is None

    def rows_between(self, state: str, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self.runs is not None and state in self.runs.states:
            return rows_of(self.folder, self.runs, state, start, stop)
        rows = self._db.get_column_family(family_name(state))
        self._open.append(rows)
        return rows_between(rows, start, stop)


def open_database(folder: Path, options: Callable[[], Options], read_only: bool = False) -> Rdict:
    try:
        names = Rdict.list_cf(str(folder), options()) if (folder / "CURRENT").exists() else ["default"]
        access = AccessType.read_only(False) if read_only else AccessType.read_write()
        return Rdict(str(folder), options(), {name: options() for name in names}, access)
    except Exception as error:  # rocksdict raises bare Exceptions
        raise CheckpointDamaged(
            f"the RocksDB files in {folder} cannot be opened: {error}. The checkpoint that they come from is damaged, or "
            "the local disk is full.",
            path=str(folder),
        ) from error


@contextmanager
def local_disk(folder: Path) -> Iterator[None]:
    """:raises StorageError: for whatever RocksDB says of its disk."""
    try:
        yield
    except Exception as error:  # rocksdict raises bare Exceptions
        raise StorageError(
            f"RocksDB cannot write to its folder {folder}: {error}. Free some space on that disk, or give another folder: "
            'env.state_backend("rocksdb", folder=...).',
            path=str(folder),
            reason="local disk",
        ) from error


def check_format(db: Rdict, folder: Path) -> None:
    found = db.get(_FORMAT_KEY)
    if found != str(ROW_FORMAT_VERSION).encode():
        raise CheckpointDamaged(
            f"the RocksDB files in {folder} have the row format {'none' if found is None else found.decode()}; this "
            f"release reads format {ROW_FORMAT_VERSION}. Use the release that wrote them, or a newer one.",
            path=str(folder),
        )


def _formats(db: Rdict) -> Iterator[RowFormat]:
    for _, data in rows_between(db, _STATE_PREFIX, end_of(_STATE_PREFIX)):
        yield msgspec.json.decode(data, type=RowFormat)


def family_name(state: str) -> str:
    return _FAMILY_PREFIX + state


def rows_between(rows: Rdict, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The rows as they are at this call; later writes are not seen."""
    # Not by set_iterate_upper_bound: rocksdict frees the bound while the iterator still looks at it, and rows go missing.
    return takewhile(lambda row: row[0] < stop, rows.items(from_key=start))
