"""Value state of numbers over RocksDB, for whole batches: the heap's columns as the cache. Executor, the task's thread.

The rows in use are in flat arrays, as on the heap (state/heap_columns.py): a batch is one gather or scatter. A key that is new
to them is looked up in RocksDB once, together with the others of its batch; changed ones are marked, and written together.

    rows         0 ................................ _known ........ index.length
                 read, or known to be absent        new: looked up before anything is done with them

When there are more rows than memory allows, the changed ones are written and those that were not used since the last
time are forgotten: the arrays begin anew with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.state.heap_columns import ColumnTable, ColumnValue
from tidegate.state.heap_index import IntIndex
from tidegate.state.heap_tables import NO_KEY, refuse_without_key
from tidegate.state.rocksdb_cache import Changes, RocksTable

if TYPE_CHECKING:
    from tidegate.state.declarations import ValueState
    from tidegate.state.handles import Column
    from tidegate.state.rocksdb_keys import Addresses
    from tidegate.state.rocksdb_store import Family, Row
    from tidegate.state.sections import SectionReader

    Array = np.ndarray[Any, np.dtype[Any]]

_INT_ROW_BYTES = 80  #: value, flags, key and its place in an Index
_OBJECT_ROW_BYTES = 250
_PIECE = 4096


class ColumnChanges(Changes):
    """The changed rows, copied."""

    def __init__(self, table: CachedColumns, rows: Array, addresses: Addresses, state: str) -> None:
        self._rows = rows
        self._values = table.values[rows]
        self._present = table.present[rows]
        self._keys = table.index.reader()
        self._addresses = addresses
        self._state = state

    def rows(self, family: Family) -> Iterable[Row]:
        for start in range(0, len(self._rows), _PIECE):
            stop = min(start + _PIECE, len(self._rows))
            addresses = self._addresses.of_many(self._keys_of(self._rows[start:stop]), self._state)
            cells = cells_of_numbers(self._values[start:stop])
            present = self._present[start:stop].tolist()
            yield from (
                (address, cell if there else None)
                for address, cell, there in zip(addresses, cells, present, strict=True)
            )

    def _keys_of(self, rows: Array) -> list[Any]:
        first, last = int(rows[0]), int(rows[-1]) + 1
        if last - first <= 8 * len(rows):
            keys = self._keys(first, last)
            return [keys[at] for at in (rows - first).tolist()]
        return [self._keys(row, row + 1)[0] for row in rows.tolist()]


class CachedColumns(ColumnTable):
    """The rows in use."""

    def __init__(self, declaration: ValueState[Any], addresses: Addresses, make_room: Callable[[], None]) -> None:
        super().__init__(declaration, addresses.key_type)
        self.dirty: Array = np.zeros(len(self.values), dtype=np.bool_)
        self.used: Array = np.zeros(len(self.values), dtype=np.bool_)  #: since room was made
        self.row_limit = 0
        self.read: Callable[[int, int], None]  #: fills the rows start to stop from RocksDB
        self._known = 0
        self._make_room = make_room

    def rows(self, keys: Column) -> Array:
        if self.index.length > self.row_limit:
            self._make_room()  # before, so that the row numbers of this batch stay what they are
        rows = super().rows(keys)
        self._read_new()
        self.used[rows] = True
        return rows

    def row(self, key: Any) -> int:
        if self.index.length > self.row_limit:
            self._make_room()
        row = super().row(key)
        self._read_new()
        self.used[row] = True
        return row

    def _read_new(self) -> None:
        if self._known < self.index.length:
            self.read(self._known, self.index.length)
            self._known = self.index.length

    def before_write(self, rows: Array | int) -> None:
        self.dirty[rows] = True

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


class RocksColumns(RocksTable):
    """Key -> number."""

    def __init__(self, declaration: ValueState[Any], *surroundings: Any) -> None:
        super().__init__(declaration, *surroundings)
        assert declaration.value_type.numpy is not None
        self._dtype = declaration.value_type.numpy.newbyteorder("<")
        self.cached = CachedColumns(declaration, self.addresses, self._make_room)
        self.cached.read = self._read
        self.on_read: Callable[[Any, Any], None] = lambda lowest, highest: None  #: what was read lies between
        self.resize()

    def resize(self) -> None:
        row_bytes = _INT_ROW_BYTES if isinstance(self.cached.index, IntIndex) else _OBJECT_ROW_BYTES
        self.cached.row_limit = sum(self.share()) // row_bytes

    def _read(self, start: int, stop: int) -> None:
        if not self.family.holds_rows:
            return
        keys = self.cached.index.reader()(start, stop)
        addresses = self.addresses.of_many(keys, self.declaration.name)
        order = sorted(range(len(keys)), key=addresses.__getitem__)
        cells = self.family.get_many([addresses[at] for at in order])
        found = [(at, cell) for at, cell in zip(order, cells, strict=True) if cell is not None]
        if found:
            rows = np.array([at for at, _ in found], dtype=np.int64) + start
            numbers = np.frombuffer(b"".join([cell for _, cell in found]), dtype=self._dtype)
            self.cached.values[rows] = numbers
            self.cached.present[rows] = True
            self.on_read(numbers.min(), numbers.max())

    def _make_room(self) -> None:
        self.write_out()
        used = np.flatnonzero(self.cached.used[: self.cached.index.length])
        self.cached.keep(used[-(self.cached.row_limit // 2) :])

    def take_changes(self) -> ColumnChanges:
        self.resize()
        rows = np.flatnonzero(self.cached.dirty[: self.cached.index.length])
        self.cached.dirty[rows] = False
        return ColumnChanges(self.cached, rows, self.addresses, self.declaration.name)

    def _value_in(self, address: bytes, rows: Iterator[tuple[bytes, bytes]]) -> Any:
        ((_, cell),) = rows
        return np.frombuffer(cell, dtype=self._dtype)[0].item()

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        addresses = self.addresses.of_many(reader.keys(rows), self.declaration.name)
        numbers = reader.value_column(rows).to_numpy(zero_copy_only=False)
        with self.store.lock:
            self.family.write(zip(addresses, cells_of_numbers(numbers), strict=True))


class RocksColumnValue(ColumnValue):
    """Value state of numbers or bools, over columns."""

    __slots__ = ("_rocks",)

    def __init__(self, declaration: ValueState[Any], table: RocksColumns) -> None:
        super().__init__(declaration, table.cached, table.current)
        self._rocks = table
        table.on_read = self._note_highest  # sums must not wrap, whatever was stored

    def get(self) -> Any:
        key = self._current.key
        if key is NO_KEY:
            refuse_without_key()
        cached = self._rocks.cached
        row = cached.row(key)
        return cached.values[row].item() if cached.present[row] else self._declaration.default

    def get_many(self, keys: Column) -> pa.Array:
        cached = self._rocks.cached
        rows = cached.rows(keys)
        values, present = cached.values.take(rows), cached.present.take(rows)
        # A row that is not present holds the start value, which is the default where there is one.
        absent = None if self._declaration.default is not None or present.all() else ~present
        return pa.array(values, self._declaration.value_type.arrow, mask=absent)


def cells_of_numbers(numbers: Array) -> list[bytes]:
    """As FixedCells makes them."""
    size = numbers.dtype.itemsize
    raw = np.ascontiguousarray(numbers, dtype=numbers.dtype.newbyteorder("<")).tobytes()
    return [raw[at : at + size] for at in range(0, len(raw), size)]


def _longer(flags: Array, length: int) -> Array:
    longer = np.zeros(length, dtype=np.bool_)
    longer[: len(flags)] = flags
    return longer
