"""What of a state is in use, as Python objects, over runs on the disk. Part of the RocksDB backend.

Executor, the task's thread. A handle reads and writes here; the runs are read when something is not here, and written when too
much is unwritten, or for a snapshot. So a key that is in use costs what it costs on the heap.

    known     what was read or written, with all changes: a short cut, which may be forgotten at any time
    dirty     what has changed since it was taken to be written
    pending   what was taken and is not in runs yet (state/cold.py)

Invariant. A read asks what is known, then `dirty`, then what is pending, then the runs: each is older than the one before it.
           What is pending is looked at before the runs are, because it may become one in between.

With a TTL what has expired is swept: some neighbours of the runs at a time, the newest row of each. Of those that have expired
and are not changed since, it is noted that they are gone, which is written with all other changes. The rows go with the next
merges.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.state import tiers
from tidegate.state.cold import Changed
from tidegate.state.cold_table import PIECE_ROWS, ColdTable, Swept
from tidegate.state.namespaces import is_namespaced
from tidegate.state.rocksdb_cache import ENTRY_BYTES, MISSING, Generations
from tidegate.state.rocksdb_keys import address_in
from tidegate.state.rocksdb_rows import cells_for

if TYPE_CHECKING:
    from tidegate.state.cold_keys import Keys
    from tidegate.state.declarations import Declaration
    from tidegate.state.rocksdb_cache import TableContext
    from tidegate.state.runs import Columns

    Rows = list[tuple[bytes, bytes]]  # parts and cells of one key

#: So many changed values are written at once at the most: for so many a thread holds up the task's, now and then.
MAX_UNWRITTEN = 1 << 17
MISSES_BEFORE_AHEAD = 32  #: one read in so many keys of a batch is made alone
MIN_AHEAD_ROWS = 64  #: are read together, however little memory there is
MIN_AHEAD_BYTES = 64 * 1024
MAX_AHEAD_ROWS = 8192  #: and so many at the most, about ten milliseconds


class HotTable(ColdTable):
    """Key -> what it has."""

    def __init__(self, declaration: Declaration, context: TableContext) -> None:
        self.cells = cells_for(declaration)
        super().__init__(declaration, context)
        self.dirty: dict[Any, Any] = {}
        self.dirty_bytes = 0
        self.known = Generations(self._size_of)
        self._swept_to = (0, 0)  #: tier and hash
        self._coming: list[Any] = []  #: the keys of the next records, until a read has to wait for the disk
        self._ahead: dict[Any, Any] = {}  #: what was read for them all then; never older than what is written
        self.resize()

    @abstractmethod
    def _size_of(self, known: Any) -> int: ...

    def resize(self) -> None:
        share = self.share()
        self.known.limit_bytes = share.clean_bytes // 2
        unwritten_bytes = share.unwritten_bytes
        if unwritten_bytes > tiers.AT_ONCE_ROWS * ENTRY_BYTES:
            unwritten_bytes //= 2  # the other half is being written, in a thread
        self.dirty_limit_bytes = min(unwritten_bytes, MAX_UNWRITTEN * ENTRY_BYTES)

    def expect(self, keys: list[Any]) -> None:
        """The keys of the next records. When one of them has to be read from the disk, all are, together; where a function
        reads nothing, nothing is read."""
        self._coming, self._ahead = keys, {}

    def changes_of(self, key: Any) -> list[Any]:
        """What may not be in runs, newest first. To be asked before the runs are."""
        changes = [self.dirty, *(changed.known for changed in self.cold.pending)]
        return [of_key[key] for of_key in changes if key in of_key]

    # -- with a TTL ------------------------------------------------------------------------------------------------

    def sweep(self, budget_rows: int, now_ms: int) -> Swept:
        looked_at = forgotten = 0
        names = list(self.cold.tiers)
        while looked_at < budget_rows and self._swept_to[0] < len(names):
            at, first = self._swept_to
            newer = [self.dirty, *(changed.known for changed in self.cold.pending)]  # before the runs
            stretch = self.cold.stretch(names[at], first, budget_rows - looked_at)
            self._swept_to = (at + 1, 0) if stretch.go_on is None else (at, stretch.go_on)
            looked_at += stretch.rows
            if stretch.newest is not None:
                forgotten += self._forget_expired(names[at], stretch.newest, newer, now_ms)
        self._bound()
        is_round = self._swept_to[0] == len(names)
        if is_round:
            self._swept_to = (0, 0)
        return Swept(is_round, looked_at, forgotten)

    @abstractmethod
    def _bound(self) -> None:
        """Write, when too much is dirty."""

    @abstractmethod
    def _forget_expired(self, tier: str, rows: Columns, newer: Sequence[Mapping[Any, Any]], now_ms: int) -> int:
        """Note that those of the rows are gone which have expired and are not in `newer`; how many entries they had."""


class HotRows(HotTable):
    """Keys that have several rows each."""

    _reads_alone = 0  #: before those of all keys that are coming are read together

    @abstractmethod
    def _rows_of(self, key: Any, change: Any) -> Mapping[bytes, bytes | None]:
        """What a change makes of a key's rows; None: it is gone. When all that is older is in runs, and nothing newer."""

    @abstractmethod
    def _value_of(self, rows: Rows) -> Any:
        """As user code would see it."""

    @abstractmethod
    def _is_live(self, cell: bytes, now_ms: int) -> bool:
        """Whether a row has something that has not expired."""

    def _stored(self, key: Any) -> Iterable[tuple[bytes, bytes]]:
        """What is in runs of a key: parts and cells."""
        self._missed()
        found = self._ahead.get(key)
        return self.cold.parts(key) if found is None else found

    def expect(self, keys: list[Any]) -> None:
        super().expect(keys)
        self._reads_alone = len(keys) // MISSES_BEFORE_AHEAD

    def _missed(self) -> None:
        """A read has to wait for the disk. Rows cost more than values: all come when it is not only a few that are wanted."""
        if self._coming:
            self._reads_alone -= 1
            if self._reads_alone < 0:
                self._look_ahead()

    def _look_ahead(self) -> None:
        coming, self._coming = self._coming, []
        pending = self.cold.pending  # whose rows may get into runs now, or later
        unknown = [
            key
            for key in dict.fromkeys(coming)
            if not self._is_known(key) and not any(key in changed.known for changed in pending)
        ]
        if len(unknown) > 1:
            room = max(min(self.known.limit_bytes // ENTRY_BYTES, MAX_AHEAD_ROWS), MIN_AHEAD_ROWS)
            self._ahead = self.cold.parts_of_some(unknown[:room], room, max(self.known.limit_bytes, MIN_AHEAD_BYTES))

    def _is_known(self, key: Any) -> bool:
        """Whether a read of the key needs no runs."""
        return self.known.peek(key) is not MISSING

    def _bound(self) -> None:
        if self.dirty_bytes > self.dirty_limit_bytes:
            self.write_out()

    def _take(self) -> Changed | None:
        self.resize()
        taken, rows = self.dirty, max(len(self.dirty), self.dirty_bytes // ENTRY_BYTES)
        self.dirty, self.dirty_bytes = {}, 0
        for key in self._ahead.keys() & taken.keys():
            del self._ahead[key]

        def columns() -> tuple[Keys, pa.Array, Any]:
            of_keys = [self._rows_of(key, change) for key, change in taken.items()]
            cells = [cell for of_key in of_keys for cell in of_key.values()]
            present = np.fromiter((cell is not None for cell in cells), np.bool_, len(cells))
            return (
                self.cold.parts_of(list(taken), list(map(list, of_keys))),
                pa.array([cell or b"" for cell in cells], pa.large_binary()),
                present,
            )

        return Changed(columns, rows, taken) if taken else None

    def entries(self) -> Iterator[tuple[Any, Any]]:
        self.write_out()
        return ((key, self._value_of(rows)) for key, rows in self.cold.rows_by_key())

    def live_keys(self, now_ms: int) -> Iterator[Any]:
        self.write_out()
        expires = self.declaration.ttl is not None
        return (
            key
            for key, rows in self.cold.rows_by_key()
            if not is_namespaced(key) and (not expires or any(self._is_live(cell, now_ms) for _, cell in rows))
        )

    def load_rows(self, rows: Iterator[tuple[bytes, bytes]]) -> None:
        while piece := list(islice(rows, PIECE_ROWS)):
            keys, parts = [], []
            for address, of_key in groupby(piece, key=lambda row: address_in(row[0])):
                keys.append(self.addresses.table_key(address))
                parts.append([row_key[len(address) :] for row_key, _ in of_key])
            self.load_parts(keys, parts, pa.array([cell for _, cell in piece], pa.large_binary()))

    def load_parts(self, keys: list[Any], parts: list[list[bytes]], cells: pa.Array) -> None:
        """`cells` are those of all parts, one after the other."""
        if len(cells):
            present = np.ones(len(cells), np.bool_)
            self.cold.write(Changed(lambda: (self.cold.parts_of(keys, parts), cells, present), len(cells)))
