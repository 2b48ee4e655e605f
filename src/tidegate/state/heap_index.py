"""From keys to row numbers, for column tables. Part of the heap backend. Executor, the task's thread.

A key gets the next row number when it is first added, and keeps it for ever; so a snapshot of the keys is their number.

`IntIndex` is for int keys and whole columns of them. A pandas Index finds a column's rows at tens of millions a second,
but cannot grow. So the rows are covered by a few of them, each over a run of rows:

    rows      0 .................. n0 ........ n1 ... n2 .. length
    found by  level 0              level 1     level 2      `_known` only (added one by one since the last column)

A column with new keys adds a level. Levels are merged so that each is at least twice as long as the next one, and all
into one when looking things up in the later ones has cost as much as that merge: a key is moved O(log n) times, and a
stream without new keys soon finds everything in one level.

`ObjectIndex` is for all other keys: a dictionary, asked once for each different key of a column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from tidegate.errors import CheckpointDamaged
from tidegate.state.key_columns import int64_column, normalised_keys, plain_array, python_keys

if TYPE_CHECKING:
    from tidegate.state.handles import Column
    from tidegate.state.keys import KeyType

    Rows = np.ndarray[Any, np.dtype[np.int64]]
    KeyColumn = list[Any] | Rows  #: normalised keys

ABSENT = -1
_FIRST_CAPACITY = 1024


class KeyIndex(ABC):
    """Row numbers of keys (normalised, where they come one by one)."""

    length: int  #: rows given out so far

    @abstractmethod
    def find(self, keys: Column) -> Rows:
        """The row of each key, ABSENT for an unknown one."""

    @abstractmethod
    def find_or_add(self, keys: Column) -> Rows: ...

    @abstractmethod
    def find_one(self, key: Hashable) -> int: ...

    @abstractmethod
    def find_or_add_one(self, key: Hashable) -> int: ...

    def find_or_add_each(self, keys: list[Any]) -> Rows:
        """Of normalised keys, also in namespaces."""
        return np.array([self.find_or_add_one(key) for key in keys], dtype=np.int64)

    @abstractmethod
    def reader(self) -> Callable[[int, int], list[Any]]:
        """For another thread: gives the normalised keys of rows start to stop, of those that exist now."""

    def column_reader(self) -> Callable[[int, int], KeyColumn]:
        """The same; int64 keys stay a numpy array, where all of these rows have such."""
        return self.reader()

    @abstractmethod
    def only(self, rows: Rows) -> KeyIndex:
        """A new index with the keys of these rows, which get the row numbers 0, 1, ..."""


class ObjectIndex(KeyIndex):
    """Keys of any type."""

    def __init__(self, key_type: KeyType) -> None:
        self._key_type = key_type
        self._rows: dict[Hashable, int] = {}
        self._keys: list[Hashable] = []  # by row; only ever appended to
        self.length = 0

    def find(self, keys: Column) -> Rows:
        return _rows_of_distinct(self._key_type, keys, self._rows, self.find_one)

    def find_or_add(self, keys: Column) -> Rows:
        return _rows_of_distinct(self._key_type, keys, self._rows, self.find_or_add_one)

    def find_one(self, key: Hashable) -> int:
        return self._rows.get(key, ABSENT)

    def find_or_add_one(self, key: Hashable) -> int:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self.length
            self._keys.append(key)
            self.length += 1
        return row

    def reader(self) -> Callable[[int, int], list[Any]]:
        keys = self._keys
        return lambda start, stop: keys[start:stop]

    def only(self, rows: Rows) -> ObjectIndex:
        index = ObjectIndex(self._key_type)
        for row in rows.tolist():
            index.find_or_add_one(self._keys[row])
        return index


@dataclass(frozen=True, slots=True)
class _Level:
    """Finds the int64 keys among the rows start to stop."""

    start: int
    stop: int
    index: pd.Index
    rows: Rows | None  #: of the index's positions; None when they follow each other from `start`

    def find(self, keys: np.ndarray[Any, Any]) -> Rows:
        positions = self.index.get_indexer(keys)
        if self.rows is None:
            if self.start:
                positions[positions >= 0] += self.start
            return positions  # type: ignore[no-any-return]
        found = positions >= 0
        positions[found] = self.rows[positions[found]]
        return positions  # type: ignore[no-any-return]

    def find_one(self, key: Hashable) -> int:
        try:
            position = int(self.index.get_loc(key))
        except KeyError:
            return ABSENT
        return position + self.start if self.rows is None else int(self.rows[position])


class IntIndex(KeyIndex):
    """Int keys. Others (None, ints beyond 64 bits) are kept beside the levels, in a dictionary."""

    def __init__(self, key_type: KeyType) -> None:
        self._key_type = key_type
        self._keys = np.zeros(_FIRST_CAPACITY, dtype=np.int64)  # by row; 0 for those in `_other_rows`
        self._other_rows: list[int] = []  # rows whose key is not an int64, ascending; only ever appended to
        self._other_keys: list[Hashable] = []  # their keys
        self._known: dict[Hashable, int] = {}  # keys looked up one by one, and all rows from `_indexed` on
        self._levels: list[_Level] = []
        self._indexed = 0  # rows covered by levels
        self._late_lookups = 0  # keys looked up in levels after the first, since the last full merge
        self._added = False  # some rows are neither covered by levels nor known
        self.length = 0

    def find(self, keys: Column) -> Rows:
        return self._rows(keys, self._find_int64, self.find_one)

    def find_or_add(self, keys: Column) -> Rows:
        return self._rows(keys, self._find_or_add_int64, self.find_or_add_one)

    def find_one(self, key: Hashable) -> int:
        row = self._known.get(key)
        if row is not None:
            return row
        if not _is_int64(key):
            return ABSENT  # all of these are known
        if self._added:
            self._add_level()
        for level in self._levels:
            row = level.find_one(key)
            if row != ABSENT:
                self._known[key] = row
                return row
        return ABSENT

    def find_or_add_one(self, key: Hashable) -> int:
        row = self.find_one(key)
        if row == ABSENT:
            row = self.length
            self._reserve(1)
            if _is_int64(key):
                self._keys[row] = key  # type: ignore[call-overload]
            else:
                self._other_keys.append(key)
                self._other_rows.append(row)
            self._known[key] = row
            self.length += 1
        return row

    def add_new(self, keys: np.ndarray[Any, Any]) -> Rows:
        """Of int64 keys that are not here yet, each once: nothing is looked up. That it is so is found out when they are."""
        first = self.length
        self._reserve(len(keys))
        self._keys[first : first + len(keys)] = keys
        self.length += len(keys)
        self._added = True
        return np.arange(first, self.length)

    def reader(self) -> Callable[[int, int], list[Any]]:
        keys = self._keys  # growing makes a new array, and this one's first rows are never written again
        other_rows, other_keys = self._other_rows, self._other_keys

        def read(start: int, stop: int) -> list[Any]:
            found: list[Any] = keys[start:stop].tolist()
            for at in range(bisect_left(other_rows, start), bisect_left(other_rows, stop)):
                found[other_rows[at] - start] = other_keys[at]
            return found

        return read

    def column_reader(self) -> Callable[[int, int], KeyColumn]:
        keys, others, as_list = self._keys, self._other_rows, self.reader()

        def read(start: int, stop: int) -> KeyColumn:
            some_are_others = bisect_left(others, start) < bisect_left(others, stop)
            return as_list(start, stop) if some_are_others else keys[start:stop]

        return read

    def only(self, rows: Rows) -> IntIndex:
        index = IntIndex(self._key_type)
        others = dict(zip(self._other_rows, self._other_keys, strict=True))
        if not others:
            index._find_or_add_int64(self._keys[rows])
        else:
            for row, key in zip(rows.tolist(), self._keys[rows].tolist(), strict=True):
                index.find_or_add_one(others.get(row, key))
        return index

    def _rows(
        self,
        keys: Column,
        of_int64: Callable[[np.ndarray[Any, Any]], Rows],
        of_one: Callable[[Hashable], int],
    ) -> Rows:
        int64 = int64_column(keys)
        if int64 is not None:
            return of_int64(int64)
        if python_keys(keys) is not None:
            return _rows_of_each(normalised_keys(self._key_type, keys), self._known, of_one)
        array = plain_array(keys)
        if array.null_count and pa.types.is_integer(array.type):
            rows = np.empty(len(array), dtype=np.int64)
            null = array.is_null().to_numpy(zero_copy_only=False)
            rows[null] = of_one(self._key_type.normalise(None))
            rows[~null] = self._rows(array.drop_null(), of_int64, of_one)
            return rows
        return _rows_of_distinct(self._key_type, array, self._known, of_one)

    def _find_int64(self, keys: np.ndarray[Any, Any]) -> Rows:
        if self._indexed < self.length:
            self._add_level()
        if not self._levels:
            return np.full(len(keys), ABSENT, dtype=np.int64)
        rows = self._levels[0].find(keys)
        for level in self._levels[1:]:
            missing = np.flatnonzero(rows < 0)
            if not len(missing):
                break
            rows[missing] = level.find(keys[missing])
            self._late_lookups += len(missing)
        if self._late_lookups > self.length and len(self._levels) > 1:
            self._merge_from(0)
        return rows

    def _find_or_add_int64(self, keys: np.ndarray[Any, Any]) -> Rows:
        rows = self._find_int64(keys)
        missing = np.flatnonzero(rows < 0)
        if len(missing):
            codes, new = pd.factorize(keys[missing])
            rows[missing] = codes + self.length
            self._reserve(len(new))
            self._keys[self.length : self.length + len(new)] = new
            self.length += len(new)
            self._add_level()
        return rows

    def _add_level(self) -> None:
        level = self._level(self._indexed, self.length)
        if self._added:
            if not level.index.is_unique:
                twice = int(level.index[level.index.duplicated()][0])
                raise CheckpointDamaged(
                    f"the restored state holds the key {twice!r} twice; its rows were edited, or are damaged"
                )
            self._added = False
        self._levels.append(level)
        self._indexed = self.length
        first = len(self._levels) - 1
        size = self._levels[first].stop - self._levels[first].start
        while first and 2 * size > self._levels[first - 1].stop - self._levels[first - 1].start:
            first -= 1
            size = self._indexed - self._levels[first].start
        if first < len(self._levels) - 1:
            self._merge_from(first)

    def _merge_from(self, first: int) -> None:
        self._levels[first:] = [self._level(self._levels[first].start, self._indexed)]
        if first == 0:
            self._late_lookups = 0

    def _level(self, start: int, stop: int) -> _Level:
        keys = self._keys[start:stop]
        others = self._other_rows[bisect_left(self._other_rows, start) : bisect_left(self._other_rows, stop)]
        if not others:
            # A copy, so that the Index holds no more than its own rows of an array that will be outgrown.
            return _Level(start, stop, pd.Index(keys.copy()), None)
        rows = np.delete(np.arange(start, stop), np.array(others) - start)
        return _Level(start, stop, pd.Index(self._keys[rows]), rows)

    def _reserve(self, count: int) -> None:
        if self.length + count > len(self._keys):
            grown = np.zeros(max(self.length + count, 2 * len(self._keys)), dtype=np.int64)
            grown[: self.length] = self._keys[: self.length]
            self._keys = grown


def _rows_of_distinct(
    key_type: KeyType, keys: Column, known: dict[Hashable, int], row_of: Callable[[Hashable], int]
) -> Rows:
    """Each different key of a column is looked up once, where Arrow can tell which are different."""
    if python_keys(keys) is not None:
        return _rows_of_each(normalised_keys(key_type, keys), known, row_of)
    array = plain_array(keys)
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return _rows_of_each(normalised_keys(key_type, array), known, row_of)
    encoded = array.dictionary_encode(null_encoding="encode")
    rows = _rows_of_each(normalised_keys(key_type, encoded.dictionary), known, row_of)
    positions: Rows = encoded.indices.to_numpy()
    return rows[positions]


def _rows_of_each(keys: list[Any], known: dict[Hashable, int], row_of: Callable[[Hashable], int]) -> Rows:
    rows = list(map(known.get, keys))  # in C: most keys of a stream have been seen before
    if None in rows:
        rows = [row_of(key) if row is None else row for key, row in zip(keys, rows, strict=True)]
    return np.array(rows, dtype=np.int64)


def _is_int64(key: Hashable) -> bool:
    return key.__class__ is int and -(2**63) <= key < 2**63
