"""From keys that are text to row numbers. Part of the heap backend. Executor, the task's thread.

Short texts are two numbers and a length (state/short_texts.py). A mix of the three is looked up in an index of ints, and
what is found is compared with the three: so a column of keys needs no object of Python for any of them.

Beside them, by the text itself, are kept: longer texts, None, and the few whose mix is that of another text.

Invariant. A row that is not among the others holds exactly one text, and no text is in two rows: it is among the others only
while another one has its mix, and a row is never given up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
import xxhash

from tidegate.state.heap_index import ABSENT, IntIndex, KeyIndex, ObjectIndex
from tidegate.state.key_columns import normalised_keys, plain_array, python_keys
from tidegate.state.short_texts import LONGEST, ShortTexts, hashed, in_blocks

if TYPE_CHECKING:
    from tidegate.state.handles import Column
    from tidegate.state.heap_index import Rows
    from tidegate.state.keys import KeyType

_SEED = 0x7E47


class TextIndex(KeyIndex):
    """Keys that are text, or None."""

    def __init__(self, key_type: KeyType) -> None:
        self._key_type = key_type
        self._index = IntIndex(key_type)
        self._texts = _empty(1024)  #: by row; anything at the rows of others

    @property
    def length(self) -> int:  # type: ignore[override]
        return self._index.length

    def find(self, keys: Column) -> Rows:
        return self._rows(keys, add=False)

    def find_or_add(self, keys: Column) -> Rows:
        return self._rows(keys, add=True)

    def find_one(self, key: Hashable) -> int:
        content = key.encode() if type(key) is str else None
        if content is None or len(content) > LONGEST:
            return self._index.find_one(key)
        mixed = xxhash.xxh3_64_intdigest(content, _SEED)
        row = self._index.find_one(mixed - (mixed >> 63 << 64))
        if row == ABSENT or self._content(row) != content:
            return self._index.find_one(key)
        return row

    def find_or_add_one(self, key: Hashable) -> int:
        return int(self.find_or_add_each([key])[0])

    def find_or_add_each(self, keys: list[Any]) -> Rows:
        if set(map(type, keys)) <= {str}:
            return self._rows_of_texts(_column(keys), add=True)
        rows = [self._one(key) for key in keys]
        self._reserve()
        return np.array(rows, np.int64)

    def _one(self, key: Hashable) -> int:
        if type(key) is str:
            return int(self._rows_of_texts(_column([key]), add=True)[0])
        return self._index.find_or_add_one(key)

    def _content(self, row: int) -> bytes:
        first, second, length = (int(part[row]) for part in self._texts)
        return (first | second << 64).to_bytes(LONGEST, "little")[:length]

    def _rows(self, keys: Column, add: bool) -> Rows:
        if python_keys(keys) is None:
            array = plain_array(keys)
            if pat.is_string(array.type) or pat.is_large_string(array.type):
                if array.null_count:
                    normalised_keys(self._key_type, array.filter(array.is_null()))  # refuses None where it is no key
                return self._rows_of_texts(array, add)
        return self._rows_of_texts(_column(normalised_keys(self._key_type, keys)), add)

    def _rows_of_texts(self, array: pa.Array, add: bool) -> Rows:
        rows = np.empty(len(array), np.int64)
        is_null = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
        for start, texts in in_blocks(array):
            mine = rows[start : start + len(texts.lengths)]
            is_short = texts.lengths <= LONGEST
            if is_null is not None:
                is_short &= ~is_null[start : start + len(mine)]
            if is_short.all():
                mine[:] = self._rows_of_short(texts, add)
            else:
                mine[:] = ABSENT
                mine[is_short] = self._rows_of_short(ShortTexts(*(part[is_short] for part in texts)), add)
            others = np.flatnonzero(mine < 0) if add or self._index._other_rows else ()
            if len(others):
                of_one = self._index.find_or_add_one if add else self._index.find_one
                mine[others] = [of_one(key) for key in array.slice(start).take(pa.array(others)).to_pylist()]
        if add:
            self._reserve()
        return rows

    def _rows_of_short(self, texts: ShortTexts, add: bool) -> Rows:
        """ABSENT for those that are not here, and for those that are among the others, or have to be."""
        mixed = hashed(texts, _SEED).view(np.int64)
        known = self._index.length
        rows = self._index._find_or_add_int64(mixed) if add else self._index._find_int64(mixed)
        if self._index.length > known:
            self._reserve()
            new = rows >= known
            for kept, part in zip(self._texts, texts, strict=True):
                kept[rows[new]] = part[new]  # of two with one mix the last one stays, in all three
        at = np.maximum(rows, 0)
        same = rows >= 0
        for kept, part in zip(self._texts, texts, strict=True):
            same &= kept[at] == part
        if not same.all():
            rows[~same] = ABSENT
        return rows

    def reader(self) -> Callable[[int, int], list[Any]]:
        texts, other_rows, other_keys = self._texts, self._index._other_rows, self._index._other_keys

        def read(start: int, stop: int) -> list[Any]:
            found = _strings(ShortTexts(*(part[start:stop] for part in texts)))
            for at in range(bisect_left(other_rows, start), bisect_left(other_rows, stop)):
                found[other_rows[at] - start] = other_keys[at]
            return found

        return read

    def only(self, rows: Rows) -> TextIndex:
        index = TextIndex(self._key_type)
        if any(_is_short(key) for key in self._index._other_keys):
            # Another text has its mix, and may be gone from now on: it has to be filed anew, each in its turn.
            keys = self.reader()(0, self.length)
            for row in rows.tolist():
                index._one(keys[row])
            index._reserve()
            return index
        index._index = self._index.only(rows)
        index._texts = ShortTexts(*(part[rows] for part in self._texts))
        return index

    def _reserve(self) -> None:
        if self.length > len(self._texts.first):
            grown = _empty(max(self.length, 2 * len(self._texts.first)))
            for new, old in zip(grown, self._texts, strict=True):
                new[: len(old)] = old
            self._texts = grown


def _is_short(key: Hashable) -> bool:
    return type(key) is str and len(key.encode()) <= LONGEST


def _empty(rows: int) -> ShortTexts:
    return ShortTexts(*(np.zeros(rows, np.uint64) for _ in range(3)))


def _column(keys: list[Any]) -> pa.Array:
    return pa.array(keys, pa.large_string(), from_pandas=False)


def _strings(texts: ShortTexts) -> list[Any]:
    count = len(texts.first)
    raw = np.empty((count, 2), "<u8")
    raw[:, 0], raw[:, 1] = texts.first, texts.second
    lengths = np.minimum(texts.lengths, LONGEST).astype(np.int64)
    kept = np.arange(LONGEST) < lengths[:, None]
    data = raw.view(np.uint8).reshape(count, LONGEST)[kept]
    offsets = np.zeros(count + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    array = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))
    return array.to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


def new_index(key_type: KeyType) -> KeyIndex:
    """Keys of undeclared type are most often ints, or all of another type, which the int index keeps as well."""
    if key_type.name in ("str", "optional[str]"):
        return TextIndex(key_type)
    return IntIndex(key_type) if key_type.name in ("int", "optional[int]", "any") else ObjectIndex(key_type)
