"""Value state over sorted runs. Executor, the task's thread, per-record path.

A value that was set is in `dirty` until it is taken to be written; what was read, and what was taken, is in the cache. A read
looks into `dirty`, the cache, what was handed over, the runs. Scalars are kept as objects, all others as their cells
(state/rocksdb_rows.py).

Classic mistake: to write a value into the cache and not into `dirty`. It would be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.state.cold import Changed
from tidegate.state.cold_table import CellTable
from tidegate.state.declarations import ABSENT
from tidegate.state.fitting import Intake
from tidegate.state.heap_tables import NO_KEY, refuse_without_key
from tidegate.state.hot_table import MAX_UNWRITTEN, MIN_AHEAD_ROWS, HotTable
from tidegate.state.rocksdb_cache import ENTRY_BYTES, MISSING
from tidegate.state.rocksdb_rows import Cells, MapKeys, expiries_of
from tidegate.state.runs import listed, take
from tidegate.state.value_handles import KeptValue

if TYPE_CHECKING:
    from tidegate.state.cold_keys import Keys
    from tidegate.state.declarations import Declaration, StoredValue
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.rocksdb_cache import TableContext
    from tidegate.state.runs import Column, Columns
    from tidegate.state.sections import SectionReader

#: A batch is written so many values or bytes at a time, however little memory there is: a write costs a file.
MIN_TOGETHER = 1024
MIN_TOGETHER_BYTES = 64 * 1024


class ColdValues(CellTable, HotTable):
    """Key -> value. `dirty_bytes` are beyond ENTRY_BYTES for each key."""

    def __init__(self, declaration: StoredValue, context: TableContext) -> None:
        self._seen_bytes, self._seen_cells = 0, 1
        super().__init__(declaration, context)
        self._is_sized = not self.is_numeric  #: values take more than an entry does

    def resize(self) -> None:
        super().resize()
        self.dirty_limit = min(self.dirty_limit_bytes // self._entry_bytes(), MAX_UNWRITTEN)

    def _size_of(self, kept: Any) -> int:
        size = 0 if kept is ABSENT else self.cells.size_of(kept)
        self._saw(size, 1)
        return ENTRY_BYTES + size

    def _entry_bytes(self) -> int:
        return ENTRY_BYTES + self._seen_bytes // self._seen_cells

    def _saw(self, size_bytes: int, cells: int) -> None:
        """The mean size of values, of late ones more than of early ones."""
        self._seen_bytes += size_bytes
        self._seen_cells += cells
        if self._seen_cells > 8192:
            self._seen_bytes //= 2
            self._seen_cells //= 2

    # -- reading ---------------------------------------------------------------------------------------------------

    def find(self, key: Any) -> Any:
        """As it is kept, or ABSENT; of a key that is not in `dirty`."""
        found = self.known.find(key)
        if found is MISSING:
            found = self._pending(key) if self.cold.pending else MISSING
            if found is MISSING:
                found = self._ahead.get(key, MISSING)
                if found is MISSING:
                    found = self._look_ahead(key) if self._coming else self._stored_one(key)
            self.known.remember(key, found)
        return found

    def _pending(self, key: Any) -> Any:
        """To be asked before the runs are: what is not in it any more is in them."""
        for changed in self.cold.pending:
            kept = changed.known.get(key, MISSING)
            if kept is not MISSING:
                return kept
        return MISSING

    def _look_ahead(self, key: Any) -> Any:
        room = max(self.known.limit_bytes // self._entry_bytes(), MIN_AHEAD_ROWS)
        coming, self._coming = self._coming[:room], []
        dirty, peek = self.dirty, self.known.peek
        ahead = {each: ABSENT for each in coming if each not in dirty and peek(each) is MISSING}
        if self.cold.pending:
            ahead = {each: ABSENT for each in ahead if self._pending(each) is MISSING}
        if len(ahead) > 1 and key in ahead:
            ahead.update(self._stored(list(ahead)))
            self._ahead = ahead
            return ahead[key]
        return self._stored_one(key)

    def find_many(self, keys: list[Any]) -> list[Any]:
        """The same for each of many normalised keys, whether in `dirty` or not; the rows are read together."""
        dirty, find = self.dirty, self.known.find
        found = [dirty.get(key, MISSING) for key in keys]
        unknown: dict[Any, Any] = {}
        for at, kept in enumerate(found):
            if kept is MISSING:
                kept = found[at] = find(keys[at])
                if kept is MISSING:
                    unknown[keys[at]] = ABSENT
        if unknown:
            self._read(unknown)
            found = [unknown[key] if kept is MISSING else kept for key, kept in zip(keys, found, strict=True)]
        return found

    def _read(self, unknown: dict[Any, Any]) -> None:
        stored = list(unknown)
        if self.cold.pending:
            found = {key: kept for key in stored if (kept := self._pending(key)) is not MISSING}
            unknown |= found
            stored = [key for key in stored if key not in found]
        size_of = self.cells.size_of
        for key, kept in self._stored(stored) if stored else ():
            unknown[key] = kept
            self._saw(size_of(kept), 1)
        self.known.remember_all(unknown, self._entry_bytes())

    # -- writing ---------------------------------------------------------------------------------------------------

    def _take_dirty(self) -> dict[Any, Any]:
        taken, self.dirty = self.dirty, {}
        if taken:
            if self._ahead:
                self._ahead.update((key, taken[key]) for key in self._ahead.keys() & taken.keys())
            self._saw(self.dirty_bytes, len(taken))
            self.dirty_bytes = 0
            self.resize()
            self.known.remember_all(taken, self._entry_bytes())
        return taken

    # -- in the words of state/value_handles.py -----------------------------------------------------------------------

    def kept(self, at: CurrentKey) -> Any:
        key = at.key
        kept = self.dirty.get(key, MISSING)
        return self.find(key) if kept is MISSING else kept

    def keep(self, at: CurrentKey, kept: Any) -> None:
        key = at.key
        if key is NO_KEY:
            refuse_without_key()
        dirty = self.dirty
        dirty[key] = kept
        if self._is_sized:
            self.dirty_bytes += self.cells.size_of(kept)
        if len(dirty) > self.dirty_limit or self.dirty_bytes > self.dirty_limit_bytes:
            self.write_out()

    def drop(self, at: CurrentKey) -> None:
        key = at.key
        if key is NO_KEY:
            refuse_without_key()
        self.dirty[key] = ABSENT
        self._bound()

    def keep_many(self, kept: Iterable[tuple[Any, Any]]) -> None:
        size_of = self.cells.size_of
        limit, limit_bytes = max(self.dirty_limit, MIN_TOGETHER), max(self.dirty_limit_bytes, MIN_TOGETHER_BYTES)
        for key, each in kept:
            if key is NO_KEY:
                refuse_without_key()
            self.dirty[key] = each
            self.dirty_bytes += size_of(each)
            if len(self.dirty) > limit or self.dirty_bytes > limit_bytes:
                self.write_out()
        self._bound()

    def _bound(self) -> None:
        if len(self.dirty) > self.dirty_limit or self.dirty_bytes > self.dirty_limit_bytes:
            self.write_out()

    # -- over runs (state/cold.py) ------------------------------------------------------------------------------------

    def _stored(self, keys: list[Any]) -> Iterable[tuple[Any, Any]]:
        as_kept = self._as_kept
        for places, cells in self.cold.find(keys, with_pending=False):  # which the caller has asked
            for place, kept in zip(places.tolist(), as_kept(cells), strict=True):
                yield keys[place], kept

    def _stored_one(self, key: Any) -> Any:
        if key is NO_KEY:
            refuse_without_key()
        cell = self.cold.get(key)
        if cell is None:
            return ABSENT
        return cell if self.is_numeric else self.cells.of_cell(cell)

    def _as_kept(self, cells: Column) -> Iterable[Any]:
        return listed(cells) if self.is_numeric else map(self.cells.of_cell, listed(cells))

    def value_from(self, cell: Any) -> Any:
        return cell if self.is_numeric else self.cells.give(self.cells.of_cell(cell))

    def _take(self) -> Changed | None:
        taken = self._take_dirty()

        def columns() -> tuple[Keys, Column, Any]:
            values = list(taken.values())
            present = np.array([kept is not ABSENT for kept in values], np.bool_)
            return self.cold.keys(list(taken)), self._cells(values), present

        return Changed(columns, len(taken), taken) if taken else None

    def _cells(self, values: list[Any]) -> Column:
        if self.is_numeric:
            zero: Any = self.dtype.type(0)
            return np.array([zero if kept is ABSENT else kept for kept in values], dtype=self.dtype)
        to_cell = self.cells.to_cell
        return pa.array([b"" if kept is ABSENT else to_cell(kept) for kept in values], pa.large_binary())

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        self.load_cells(reader.keys(rows), self._cells(list(map(self.cells.admit, reader.kept(rows)))))

    # -- with a TTL ------------------------------------------------------------------------------------------------

    def _forget_expired(self, tier: str, rows: Columns, newer: Sequence[Mapping[Any, Any]], now_ms: int) -> int:
        forgotten = 0
        expired = np.flatnonzero(expiries_of(rows.cell) <= now_ms)
        for key in self.cold.table_keys(tier, take(rows.identity, expired)):
            if not any(key in changes for changes in newer):
                self.dirty[key] = ABSENT
                forgotten += 1
        return forgotten


def rocks_intake(declaration: Declaration, cells: Cells | MapKeys) -> Intake:
    """Takes values into one state; what does not fit is refused with the state's name and line."""
    admit_any = cells.admit

    def admit(value: Any) -> Any:
        try:
            return admit_any(value)
        except TypeDeclarationError as error:
            raise TypeDeclarationError(
                f"state {declaration.name!r} ({declaration.line}): {error.message}",
                **{**error.context, "state": declaration.name},
            ) from None

    give = None if isinstance(cells, MapKeys) or cells.as_objects else cells.give
    return Intake(admit, give, look=give)


class HotInt(KeptValue[int]):
    """Ints, which are most of what is counted and added up: `get` and `set` do for themselves what `kept` and `keep` do. A call
    of each would be a fifth of what the record costs here.
    """

    __slots__ = ()

    _table: ColdValues

    def get(self) -> int:
        table, key = self._table, self._current.key
        kept = table.dirty.get(key, MISSING)
        if kept is MISSING:
            kept = table.find(key)
        return self._default if kept is ABSENT else kept  # type: ignore[no-any-return]

    def set(self, value: int) -> None:
        if value.__class__ is not int or not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            value = self._admit(value)
        table, key = self._table, self._current.key
        if key is NO_KEY:
            refuse_without_key()
        dirty = table.dirty
        dirty[key] = value
        if len(dirty) > table.dirty_limit:
            table.write_out()
