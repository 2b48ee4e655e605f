"""The sessions of all keys, as rows: the key, when the session begins and ends, its accumulators. Executor; task's thread.

Two sessions of a key that touch are one. That is found by sorting: of the rows of a key in the order of their beginnings, a new
session begins where a row begins after all before it have ended.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.functions.merging import Accumulator, Merging
from tidegate.task.rows.backend import NAMESPACE, moments_column, moments_of

START, END = "session_start", "session_end"
FEW_ROWS = 32_768  #: so many are not worth a fold
_SESSION = "session"
Numbers = np.ndarray[Any, Any]


class SessionRows:
    """All sessions that are open, and those that may still be fired again."""

    def __init__(self, merging: Merging) -> None:
        self.merging = merging
        starts, ends = Accumulator(pa.int64(), "min"), Accumulator(pa.int64(), "max")
        self._by_session = Merging((_SESSION,), (*merging.accumulators, starts, ends))
        self._parts: list[pa.Table] = []  #: no two sessions of the first touch
        self._new_rows = 0
        self.first_end: int | None = None  #: no session ends before that

    @property
    def columns(self) -> list[str]:
        return self.merging.columns

    @property
    def value_type(self) -> pa.StructType:
        return self.merging.value_type

    def add(self, rows: pa.Table) -> None:
        """Sessions, each perhaps of a single record."""
        if not rows.num_rows:
            return
        self._parts.append(rows)
        self._new_rows += rows.num_rows
        end = int(rows.column(END).to_numpy().min())
        self.first_end = end if self.first_end is None else min(end, self.first_end)
        if self._new_rows > max(FEW_ROWS, self._parts[0].num_rows):
            self.whole()

    def whole(self) -> pa.Table | None:
        """All of them, none of which touches another of its key; None when there are none."""
        if not self._parts:
            return None
        if self._new_rows:
            self._parts, self._new_rows = [self.merged(pa.concat_tables(self._parts))], 0
        return self._parts[0]

    def keep(self, rows: pa.Table) -> None:
        """Of `whole`, these alone."""
        self._parts = [rows] if rows.num_rows else []
        self.first_end = int(rows.column(END).to_numpy().min()) if rows.num_rows else None

    def merged(self, rows: pa.Table) -> pa.Table:
        order, session, is_first = self._sessions(rows)
        if len(is_first) == is_first.sum():
            return rows.combine_chunks()
        rows = rows.take(pa.array(order))
        columns = self._by_session.columns
        named = rows.select([*self.merging.columns, START, END]).rename_columns(columns)
        folded = self._by_session.merged([named.append_column(_SESSION, pa.array(session))])
        keys = rows.select(list(self.merging.keys)).take(pa.array(np.flatnonzero(is_first)))
        found = [*keys.columns, *(folded.column(name) for name in columns)]
        names = [*self.merging.keys, *self.merging.columns, START, END]
        return pa.table(found, names=names).combine_chunks()

    def ends_with(self, rows: pa.Table) -> Numbers:
        """When the session ends that each row would be in, if all of them were added."""
        whole = self.whole()
        others = 0 if whole is None else whole.num_rows
        both = rows if whole is None else pa.concat_tables([whole, rows])
        order, session, _ = self._sessions(both)
        ends = both.column(END).to_numpy()[order]
        starts = np.flatnonzero(np.diff(session, prepend=-1))
        of_session = np.maximum.reduceat(ends, starts)
        found = np.empty(len(order), np.int64)
        found[order] = of_session[session]
        return found[others:]

    def has_any_of(self, rows: pa.Table) -> Numbers:
        """Whether each session of `whole` has one of these rows in it."""
        whole = self.whole()
        assert whole is not None
        order, session, is_first = self._sessions(pa.concat_tables([whole, rows]))
        found = np.zeros(int(is_first.sum()), np.bool_)
        found[session[order >= whole.num_rows]] = True
        of_row = np.empty(len(order), np.bool_)
        of_row[order] = found[session]
        return of_row[: whole.num_rows]

    def _sessions(self, rows: pa.Table) -> tuple[Numbers, Numbers, Numbers]:
        """The order by key and beginning; in that order, the number of each row's session, and whether it is its first row."""
        keys = key_codes(rows, self.merging.keys)
        starts, ends = rows.column(START).to_numpy(), rows.column(END).to_numpy()
        order = np.lexsort((starts, keys))
        keys, starts, ends = keys[order], starts[order], ends[order]
        other_key = np.diff(keys, prepend=-1) != 0
        # The latest end so far of each key: with the key in front, none of an earlier key is later. By rank it cannot overflow.
        different, rank = np.unique(ends, return_inverse=True)
        so_far = np.maximum.accumulate(rank + np.cumsum(other_key) * len(different))
        before = np.concatenate([[0], different[so_far[:-1] % len(different)]]) if len(ends) else ends
        is_first = other_key | (starts > before)
        return order, np.cumsum(is_first) - 1, is_first

    # -- as its backend sees it --------------------------------------------------------------------------------------------

    def frozen(self) -> list[pa.Table]:
        whole = self.whole()
        if whole is None:
            return []
        namespace = moments_column(whole.column(END).to_numpy(), whole.column(START).to_numpy())
        return [whole.drop_columns([START, END]).append_column(NAMESPACE, namespace)]

    def load(self, rows: pa.Table) -> None:
        ends, starts = moments_of(rows.column(NAMESPACE), 2)
        rows = rows.drop_columns([NAMESPACE])
        self.add(rows.append_column(START, pa.array(starts)).append_column(END, pa.array(ends)))

    def __len__(self) -> int:
        return sum(part.num_rows for part in self._parts)


def key_codes(rows: pa.Table, keys: tuple[str, ...]) -> Numbers:
    """A number for each different key, from 0."""
    codes: Numbers | None = None
    for name in keys:
        column = rows.column(name)
        encoded = column.combine_chunks().dictionary_encode("encode")
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if codes is None:
            codes = own
        else:
            _, codes = np.unique(codes * (len(encoded.dictionary) + 1) + own, return_inverse=True)
    assert codes is not None
    return codes
