"""Value state of numbers over runs on the disk, for whole batches: the heap's columns as the cache. Executor, task's thread.

The rows in use are in flat arrays, as on the heap (state/heap_columns.py): a batch is one gather or scatter. Keys that are new
to them are looked up in the runs (state/cold.py), all those of a batch at once; changed ones are marked, and become a run.

    rows         0 ................................ _known ........ index.length
                 read, or known to be absent        new: looked up before anything is done with them

No batch waits for more than a bounded piece of work, however much memory there is: after so many changed rows they are written
(MAX_UNWRITTEN), and after so many rows in all those are forgotten that were not used since the last time (MAX_ROWS). What is
forgotten costs about a microsecond to have again; the kernel keeps the files in memory that is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.state.cold import Changed
from tidegate.state.cold_table import CellTable
from tidegate.state.heap_columns import ColumnTable, ColumnValue
from tidegate.state.heap_index import IntIndex
from tidegate.state.heap_tables import NO_KEY, refuse_without_key
from tidegate.state.hot_table import MAX_UNWRITTEN

if TYPE_CHECKING:
    from tidegate.state.declarations import ValueState
    from tidegate.state.handles import Column
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.rocksdb_cache import TableContext
    from tidegate.state.rocksdb_keys import Addresses
    from tidegate.state.sections import SectionReader

    Array = np.ndarray[Any, np.dtype[Any]]

MAX_ROWS = 1 << 20
_INT_ROW_BYTES = 80  #: value, flags, key and its place in an Index
_OBJECT_ROW_BYTES = 250


class CachedColumns(ColumnTable):
    """The rows in use."""

    def __init__(
        self,
        declaration: ValueState[Any],
        addresses: Addresses,
        make_room: Callable[[], None],
        write_out: Callable[[], None],
    ) -> None:
        super().__init__(declaration, addresses.key_type)
        self.dirty: Array = np.zeros(len(self.values), dtype=np.bool_)
        self.used: Array = np.zeros(len(self.values), dtype=np.bool_)  #: since room was made
        self.row_limit = 0
        self.read: Callable[[int, int], None]  #: fills the rows start to stop from the disk
        self.touched = 0  #: no more rows than so many are dirty
        self._known = 0
        self._make_room = make_room
        self._write_out = write_out

    def rows(self, keys: Column) -> Array:
        self._bound()  # before, so that the row numbers of this batch stay what they are
        rows = super().rows(keys)
        self._read_new()
        self.used[rows] = True
        return rows

    def row(self, key: Any) -> int:
        self._bound()
        row = super().row(key)
        self._read_new()
        self.used[row] = True
        return row

    def _read_new(self) -> None:
        if self._known < self.index.length:
            self.read(self._known, self.index.length)
            self._known = self.index.length

    def _bound(self) -> None:
        if self.index.length > self.row_limit:
            self._make_room()
        elif self.touched > MAX_UNWRITTEN:
            self.touched = int(np.count_nonzero(self.dirty[: self.index.length]))
            if self.touched > MAX_UNWRITTEN // 2:
                self._write_out()

    def before_write(self, rows: Array | int) -> None:
        self.dirty[rows] = True
        self.touched += 1 if isinstance(rows, int) else len(rows)

    def _grow(self) -> None:
        super()._grow()
        self.dirty = _longer(self.dirty, len(self.values))
        self.used = _longer(self.used, len(self.values))

    def clear(self, key: Any) -> None:
        row = self.row(key)
        if self.present[row]:
            self.before_write(row)
            self.present[row] = False
            self.values[row] = self.start

    def keep(self, rows: Array) -> None:
        """Begin anew with these rows; none may be changed."""
        capacity = max(1024, len(rows))
        values, present = np.full(capacity, self.start, self.values.dtype), np.zeros(capacity, np.bool_)
        values[: len(rows)], present[: len(rows)] = self.values[rows], self.present[rows]
        self.index = self.index.only(rows)
        self.values, self.present = values, present
        self.dirty, self.used = np.zeros(capacity, np.bool_), np.zeros(capacity, np.bool_)
        self._known = len(rows)
        self.touched = 0


class ColdColumns(CellTable):
    """Key -> number."""

    def __init__(self, declaration: ValueState[Any], context: TableContext) -> None:
        super().__init__(declaration, context)
        self.cached = CachedColumns(declaration, self.addresses, self._make_room, self.write_out)
        self.cached.read = self._read
        self.on_read: Callable[[Any, Any], None] = lambda lowest, highest: None  #: what was read lies between
        self.resize()

    def resize(self) -> None:
        row_bytes = _INT_ROW_BYTES if isinstance(self.cached.index, IntIndex) else _OBJECT_ROW_BYTES
        self.cached.row_limit = min(sum(self.share()) // row_bytes, MAX_ROWS)

    def _read(self, start: int, stop: int) -> None:
        if self.cold.is_empty:
            return
        cached = self.cached
        for places, numbers in self.cold.find(cached.index.column_reader()(start, stop)):
            rows = places + start
            cached.values[rows] = numbers
            cached.present[rows] = True
            self.on_read(numbers.min(), numbers.max())

    def _make_room(self) -> None:
        self.write_out()
        used = np.flatnonzero(self.cached.used[: self.cached.index.length])
        self.cached.keep(used[-(self.cached.row_limit // 2) :])

    def _take(self) -> Changed | None:
        self.resize()
        cached = self.cached
        rows = np.flatnonzero(cached.dirty[: cached.index.length])
        cached.touched = 0
        if not len(rows):
            return None
        cached.dirty[rows] = False
        values, present, keys = cached.values[rows], cached.present[rows], cached.index.column_reader()
        return Changed(lambda: (self.cold.keys(_picked(keys, rows)), values, present), len(rows))

    def value_from(self, cell: Any) -> Any:
        return cell

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        ints = reader.int64_keys(rows)
        self.load_cells(
            reader.keys(rows) if ints is None else ints, reader.value_column(rows).to_numpy(zero_copy_only=False)
        )


def _picked(keys: Callable[[int, int], Any], rows: Array) -> Any:
    """The keys of some rows (ascending)."""
    first = int(rows[0])
    among = keys(first, int(rows[-1]) + 1)
    return [among[at] for at in (rows - first).tolist()] if isinstance(among, list) else among[rows - first]


class ColdColumnValue(ColumnValue):
    """Value state of numbers or bools, over columns."""

    __slots__ = ("_cold",)

    def __init__(self, declaration: ValueState[Any], table: ColdColumns, current: CurrentKey) -> None:
        super().__init__(declaration, table.cached, current)
        self._cold = table
        table.on_read = self._note_highest  # sums must not wrap, whatever was stored

    def get(self) -> Any:
        key = self._current.key
        if key is NO_KEY:
            refuse_without_key()
        cached = self._cold.cached
        row = cached.row(key)
        return cached.values[row].item() if cached.present[row] else self._declaration.default

    def get_many(self, keys: Column) -> pa.Array:
        cached = self._cold.cached
        rows = cached.rows(keys)
        values, present = cached.values.take(rows), cached.present.take(rows)
        # A row that is not present holds the start value, which is the default where there is one.
        absent = None if self._declaration.default is not None or present.all() else ~present
        return pa.array(values, self._declaration.value_type.arrow, mask=absent)


def _longer(flags: Array, length: int) -> Array:
    longer = np.zeros(length, dtype=np.bool_)
    longer[: len(flags)] = flags
    return longer
