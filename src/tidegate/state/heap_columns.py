"""Value state of numbers in numpy columns: made for whole batches. Part of the heap backend.

Executor. The task's thread reads and writes; a `ColumnSnapshot` is read by the snapshot's thread.

Each key has a row (state/heap_index.py); `values` and `present` are flat arrays over all rows, so a batch is one gather
or scatter. Snapshots see them in chunks of `CHUNK_ROWS`:

    freeze:  the snapshot notes the arrays and the number of rows; no chunk is saved
    write:   before the first change of a chunk, the writer saves a copy of it in each snapshot that lacks one
    read:    the snapshot's thread takes the saved copy, or copies the chunk itself, which counts as saved

Invariant 1. A chunk that a live snapshot has not saved has not changed since that snapshot.
Invariant 2. An array that has been replaced (grown, compacted) is never written again; snapshots keep the old one.
Invariant 3. A row that is not present holds the start value (the default, or 0), so adding needs no case for new keys.

A batch whose keys lie all over the state saves all of it: about 2 ms for each million keys, once after a snapshot.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.state.fitting import Fitter
from tidegate.state.handles import ValueHandle
from tidegate.state.heap_index import ABSENT, IntIndex, KeyIndex
from tidegate.state.heap_tables import NO_KEY, refuse_without_key
from tidegate.state.heap_text_index import new_index
from tidegate.state.key_columns import plain_array
from tidegate.state.namespaces import is_namespaced
from tidegate.state.running_folds import running_folds, with_rows_passed_over
from tidegate.state.sections import PIECE_ROWS
from tidegate.state.value_handles import EXTREMES

if TYPE_CHECKING:
    from tidegate.state.declarations import ValueState
    from tidegate.state.handles import Column, Extreme
    from tidegate.state.heap_index import KeyColumn
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.keys import KeyType
    from tidegate.state.section_writer import SectionWriter
    from tidegate.state.sections import SectionReader

    Array = np.ndarray[Any, np.dtype[Any]]

CHUNK_ROWS = 16_384  #: a power of two; 128 KB of 8-byte numbers, copied in about 10 microseconds
_SHIFT = CHUNK_ROWS.bit_length() - 1
_UFUNCS = {"min": np.minimum, "max": np.maximum}
COMPACT_AFTER_CLEARS = 65_536  #: how often to look whether most rows are dead


class ColumnSnapshot:
    """A column table at one moment."""

    def __init__(self, table: ColumnTable, kept: bool) -> None:
        self._table: ColumnTable | None = table
        self._kept = kept  #: a later snapshot may be compared with this one, until `release`
        self._index = table.index
        self._values = table.values
        self._present = table.present
        self._arrow = table.arrow
        self._keys = table.index.column_reader()
        self._length = table.index.length
        self._saved: dict[int, tuple[Array, Array]] = {}
        self._is_saved = np.zeros((self._length + CHUNK_ROWS - 1) >> _SHIFT, dtype=np.bool_)
        self._lock = threading.Lock()

    def save(self, values: Array, touched: Array) -> None:
        """The writer is about to change the chunks `touched` (a flag for each chunk) of `values`."""
        if values is not self._values:
            return  # invariant 2
        for chunk in np.flatnonzero(touched[: len(self._is_saved)] & ~self._is_saved).tolist():
            with self._lock:
                self._save(chunk)

    def _save(self, chunk: int) -> None:
        if not self._is_saved[chunk]:
            self._saved[chunk] = self._copy(chunk)
            self._is_saved[chunk] = True

    def _copy(self, chunk: int) -> tuple[Array, Array]:
        rows = slice(chunk << _SHIFT, (chunk + 1) << _SHIFT)
        return self._values[rows].copy(), self._present[rows].copy()

    def write(self, writer: SectionWriter) -> None:
        """All rows that were present. Once, unless it is kept."""
        for chunk in range(len(self._is_saved)):
            values, present = self._chunk(chunk)
            self._write_rows(chunk, values, present, writer)

    def write_changes(self, since: ColumnSnapshot, writer: SectionWriter) -> list[Any] | None:
        """Write the rows that differ from an older snapshot, which was kept; returns the keys that are gone.

        None, and nothing written: the rows have got other numbers since then, so they cannot be compared.
        """
        if self._index is not since._index:
            return None
        gone: list[Any] = []
        for chunk in range(len(self._is_saved)):
            if self._values is since._values and chunk < len(since._is_saved) and not since._is_saved[chunk]:
                continue  # invariant 1: not touched since, nor has a row been added to it
            values, present = self._chunk(chunk)
            old_values, old_present = since._chunk(chunk)
            same = np.zeros(len(present), dtype=np.bool_)
            common = len(old_present)
            same[:common] = (present[:common] == old_present) & _equal(values[:common], old_values)
            self._write_rows(chunk, values, present & ~same, writer)
            lost = np.flatnonzero(old_present & ~present[:common])
            keys = self._keys_at(chunk, lost)
            gone += keys if isinstance(keys, list) else keys.tolist()
        return gone

    def _chunk(self, chunk: int) -> tuple[Array, Array]:
        """The values and presence of a chunk's rows at the moment of the snapshot, as far as there were any."""
        rows = max(0, min(CHUNK_ROWS, self._length - (chunk << _SHIFT)))
        if not rows:
            return self._values[:0], self._present[:0]
        with self._lock:
            if self._kept:
                saved = self._saved.get(chunk) or self._copy(chunk)
            else:
                self._save(chunk)
                saved = self._saved.pop(chunk)
        return saved[0][:rows], saved[1][:rows]

    def _write_rows(self, chunk: int, values: Array, wanted: Array, writer: SectionWriter) -> None:
        for start in range(0, len(wanted), PIECE_ROWS):
            places = np.flatnonzero(wanted[start : start + PIECE_ROWS]) + start
            if len(places):
                writer.add_value_column(self._keys_at(chunk, places), pa.array(values[places], self._arrow))

    def _keys_at(self, chunk: int, places: Array) -> KeyColumn:
        if not len(places):
            return []
        first, last = int(places[0]), int(places[-1])
        keys = self._keys((chunk << _SHIFT) + first, (chunk << _SHIFT) + last + 1)
        if len(keys) == len(places):
            return keys
        among = places - first
        return [keys[place] for place in among.tolist()] if isinstance(keys, list) else keys[among]

    def release(self) -> None:
        table, self._table = self._table, None
        if table is not None:
            table.forget(self)
        self._saved.clear()


def _equal(new: Array, old: Array) -> Array:
    """NaN where NaN was is not news."""
    equal: Array = new == old
    if new.dtype.kind == "f":
        equal |= np.isnan(new) & np.isnan(old)
    return equal


def fits_columns(declaration: ValueState[Any]) -> bool:
    """Numbers do. Of those that may be None, None is a row that is not present: so it must be what `get` gives then."""
    value_type = declaration.value_type
    return value_type.number is not None and (declaration.default is None or not value_type.nullable)


class ColumnTable:
    """The rows of one state."""

    def __init__(self, declaration: ValueState[Any], key_type: KeyType, keep_snapshots: bool = False) -> None:
        self._keep_snapshots = keep_snapshots
        dtype = declaration.value_type.number
        assert dtype is not None
        self.arrow = declaration.value_type.arrow
        self.start: Any = dtype.type(0) if declaration.default is None else dtype.type(declaration.default)
        self.index: KeyIndex = new_index(key_type)
        self.values: Array = np.full(CHUNK_ROWS, self.start, dtype=dtype)
        self.present: Array = np.zeros(CHUNK_ROWS, dtype=np.bool_)
        self._snapshots: tuple[ColumnSnapshot, ...] = ()  # live ones; replaced as a whole, under the lock
        self._lock = threading.Lock()
        self._clears = 0

    def rows(self, keys: Column) -> Array:
        """The rows of the keys, added where needed."""
        rows = self.index.find_or_add(keys)
        if self.index.length > len(self.values):
            self._grow()
        return rows

    def row(self, key: Any) -> int:
        row = self.index.find_or_add_one(key)
        if row >= len(self.values):
            self._grow()
        return row

    def before_write(self, rows: Array | int) -> None:
        """To be called before `values` or `present` of these rows are changed."""
        if self._snapshots:
            touched = np.zeros((len(self.values) >> _SHIFT) + 1, dtype=np.bool_)
            touched[rows >> _SHIFT] = True
            for snapshot in self._snapshots:
                snapshot.save(self.values, touched)

    def _grow(self) -> None:
        old = len(self.values)
        capacity = max(2 * old, self.index.length)
        values = np.empty(capacity, dtype=self.values.dtype)
        values[:old] = self.values
        values[old:] = self.start
        present = np.zeros(capacity, dtype=np.bool_)
        present[:old] = self.present
        self.values, self.present = values, present

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        ints = reader.int64_keys(rows) if isinstance(self.index, IntIndex) else None
        if ints is not None and isinstance(self.index, IntIndex):
            at = self.index.add_new(ints)
        else:
            at = self.index.find_or_add_each(reader.keys(rows))
        if self.index.length > len(self.values):
            self._grow()
        self.before_write(at)
        values = reader.value_column(rows)
        if values.null_count:  # of numbers that may be None
            at, values = at[values.is_valid().to_numpy(zero_copy_only=False)], values.drop_null()
        self.values[at] = values.to_numpy(zero_copy_only=False)
        self.present[at] = True

    def clear(self, key: Any) -> None:
        row = self.index.find_one(key)
        if row == ABSENT or not self.present[row]:
            return
        self.before_write(row)
        self.present[row] = False
        self.values[row] = self.start
        self._clears += 1
        if self._clears >= COMPACT_AFTER_CLEARS:
            self._clears = 0
            if 2 * len(self) < self.index.length:
                self._compact()

    def _compact(self) -> None:
        """Forget the keys of dead rows. Rows get new numbers; live snapshots keep the old arrays and keys."""
        keep = np.flatnonzero(self.present[: self.index.length])
        values = np.full(max(CHUNK_ROWS, len(keep)), self.start, dtype=self.values.dtype)
        values[: len(keep)] = self.values[keep]
        present = np.zeros(len(values), dtype=np.bool_)
        present[: len(keep)] = True
        self.index, self.values, self.present = self.index.only(keep), values, present

    def freeze(self) -> ColumnSnapshot:
        snapshot = ColumnSnapshot(self, self._keep_snapshots)
        with self._lock:
            self._snapshots = (*self._snapshots, snapshot)
        return snapshot

    def forget(self, snapshot: ColumnSnapshot) -> None:
        with self._lock:
            self._snapshots = tuple(other for other in self._snapshots if other is not snapshot)

    def entries(self) -> Iterator[tuple[Any, Any]]:
        length = self.index.length
        present, values = self.present[:length].tolist(), self.values[:length].tolist()
        keys = self.index.reader()(0, length)
        return ((key, value) for key, value, there in zip(keys, values, present, strict=True) if there)

    def live_keys(self, now_ms: int) -> Iterator[Any]:
        return iter([key for key, _ in self.entries() if not is_namespaced(key)])

    def __len__(self) -> int:
        return int(np.count_nonzero(self.present[: self.index.length]))


class ColumnValue(ValueHandle[Any]):
    """Value state of numbers or bools, over a column table."""

    __slots__ = ("_current", "_declaration", "_fitter", "_highest", "_table")

    def __init__(self, declaration: ValueState[Any], table: ColumnTable, current: CurrentKey) -> None:
        self._declaration = declaration
        self._table = table
        self._current = current
        self._fitter = Fitter(declaration, declaration.value_type)
        #: No int of the state is further from 0 than this; None when not known. While the bound and what is to be
        #: added stay inside the type's range, no single sum needs a look.
        self._highest: int | None = None

    def get(self) -> Any:
        table, row = self._table, self._table.index.find_one(self._key())
        if row == ABSENT or not table.present[row]:
            return self._declaration.default
        return table.values[row].item()

    def set(self, value: Any) -> None:
        fitted = self._fitter.fit_sum(self._fitter.fit(value))
        if fitted is None:
            self.clear()
            return
        table, row = self._table, self._table.row(self._key())
        table.before_write(row)
        table.values[row] = fitted
        table.present[row] = True
        self._note_highest(fitted, fitted)

    def clear(self) -> None:
        self._table.clear(self._key())

    def _key(self) -> Any:
        key = self._current.key
        if key is NO_KEY:
            refuse_without_key()
        return key

    def get_many(self, keys: Column) -> pa.Array:
        table, rows = self._table, self._table.index.find(keys)
        known = rows >= 0
        rows = np.where(known, rows, 0)
        found = known & table.present.take(rows)
        values = table.values.take(rows)
        if found.all():
            return pa.array(values, self._declaration.value_type.arrow)
        if self._declaration.default is None:
            return pa.array(values, self._declaration.value_type.arrow, mask=~found)
        values[~found] = table.start
        return pa.array(values, self._declaration.value_type.arrow)

    def update_many(self, keys: Column, values: Column) -> None:
        numbers, valid = self._numbers(values, len(keys))
        if not len(numbers):
            return
        table, rows = self._table, self._table.rows(keys)
        table.before_write(rows)
        table.values[rows] = numbers if valid is None else np.where(valid, numbers, table.start)
        table.present[rows] = True if valid is None else valid  # numpy assigns in order: the last of a key stays
        self._note_highest(numbers.min(), numbers.max())

    def add_many(self, keys: Column, values: Column | int | float, *, running: bool = False) -> pa.Array | None:
        return self._folded(keys, values, self._added if running else self._summed_up)

    def fold_many(self, keys: Column, values: Column | int | float, how: Extreme) -> pa.Array:
        return self._folded(keys, values, partial(self._furthest_so_far, how=how))

    def _folded(
        self, keys: Column, values: Column | int | float, fold: Callable[[Array, Array], Array | None]
    ) -> pa.Array | None:
        """Each key's number after each row; None where `fold` does not say. A null is passed over."""
        self._fitter.require_number()
        arrow = self._declaration.value_type.arrow
        numbers, valid = self._numbers(values, len(keys))
        if not len(numbers):
            return pa.array(numbers, arrow)
        table, rows = self._table, self._table.rows(keys)
        table.before_write(rows)
        if valid is None:
            steps = fold(rows, numbers)
            table.present[rows] = True
            return None if steps is None else pa.array(steps, arrow)
        before, there = table.values[rows], table.present[rows]
        if valid.any():
            steps = fold(rows[valid], numbers[valid])
            table.present[rows[valid]] = True
        else:
            steps = numbers[:0]
        if steps is None:
            return None
        found, there = with_rows_passed_over(rows, valid, np.asarray(steps, numbers.dtype), before, there)
        return pa.array(found, arrow, mask=~there)

    def _numbers(self, values: Column | int | float, count: int) -> tuple[Array, Array | None]:
        """With a flag for each that is not null, where some are and may be."""
        nulls = values.null_count if isinstance(values, (pa.Array, pa.ChunkedArray)) else 0
        if not nulls or not self._declaration.value_type.nullable:
            return self._fitter.numbers(values, count), None
        column = plain_array(values)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        numbers = np.zeros(len(column), self._table.values.dtype)
        numbers[valid] = self._fitter.numbers(column.drop_null(), int(np.count_nonzero(valid)))
        return numbers, valid

    def _summed_up(self, rows: Array, numbers: Array) -> None:
        if numbers.dtype.kind in "iu":
            self._check_range(rows, numbers)
        np.add.at(self._table.values, rows, numbers)

    def _added(self, rows: Array, numbers: Array) -> Array:
        if numbers.dtype.kind in "iu":
            self._check_range(rows, numbers)
        return running_folds(np.add, self._table.values, rows, numbers)

    def _furthest_so_far(self, rows: Array, numbers: Array, how: Extreme) -> Any:
        table = self._table
        self._note_highest(numbers.min(), numbers.max())
        if numbers.dtype.kind == "f" and (np.isnan(numbers).any() or np.isnan(table.values[rows]).any()):
            return self._fold_each(rows, numbers, EXTREMES[how])
        if self._declaration.default is None:
            table.values[rows[~table.present[rows]]] = _furthest(numbers.dtype, how)
        return running_folds(_UFUNCS[how], table.values, rows, numbers)

    def _fold_each(self, rows: Array, numbers: Array, fold: Callable[[Any, Any], Any]) -> list[Any]:
        """With NaNs among them, of which numpy has another opinion than Python."""
        values, folded = self._table.values, []
        known = dict.fromkeys(rows[self._table.present[rows] | (self._declaration.default is not None)].tolist())
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            values[row] = fold(values[row].item(), number) if row in known else number
            known[row] = None
            folded.append(values[row].item())
        return folded

    # -- sums never wrap: numpy would do so without a word ---------------------------------------------------------

    def _note_highest(self, lowest_set: Any, highest_set: Any) -> None:
        if self._highest is not None:
            self._highest = max(self._highest, int(highest_set), -int(lowest_set))

    def _check_range(self, rows: Array, numbers: Array) -> None:
        limit = int(np.iinfo(numbers.dtype).max)
        reach = max(int(numbers.max()), -int(numbers.min())) * len(numbers)
        if self._highest is None or self._highest + reach > limit:
            held = self._table.values
            self._highest = max(int(held.max()), -int(held.min()))
        self._highest += reach
        if self._highest > limit:
            self._highest = None
            self._check_each_sum(rows, numbers, limit)

    def _check_each_sum(self, rows: Array, numbers: Array, limit: int) -> None:
        """The bound is crossed; whether a sum is, only Python's ints can tell."""
        totals: dict[int, int] = {}
        for row, number in zip(rows.tolist(), numbers.tolist(), strict=True):
            total = totals[row] = totals.get(row, int(self._table.values[row])) + number
            if not -limit - 1 <= total <= limit:
                raise TypeDeclarationError(
                    f"a sum in state {self._declaration.name!r} ({self._declaration.line}) becomes {total}, which is "
                    f"beyond the {8 * numbers.itemsize} bits of an int. Declare the state as float, or keep smaller sums.",
                    state=self._declaration.name,
                )


def _furthest(dtype: np.dtype[Any], how: Extreme) -> Any:
    """What every number is smaller, or larger, than."""
    if dtype.kind == "f":
        return np.inf if how == "min" else -np.inf
    return np.iinfo(dtype).max if how == "min" else np.iinfo(dtype).min
