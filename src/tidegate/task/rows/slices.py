"""The slices of windows: all that aligned windows keep. Executor; the task's thread, but for `frozen`.

    slice    the runs of time between which windows begin and end; found by its end
    rows     one for each key that has something in it, in a table that nobody changes, and what has come since

What comes is put beside, and folded in when it is as much as there was: each row is looked at about twice. Tables never change,
so a snapshot is a list of them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.functions.merging import Merging

FEW_ROWS = 32_768  #: so many are not worth a fold


@dataclass(slots=True)
class Slice:
    """Rows of one slice."""

    parts: list[pa.Table] = field(default_factory=list)  #: the first has one row for each key
    new_rows: int = 0  #: in the others


@dataclass(slots=True)
class Slices:
    """By their ends."""

    merging: Merging
    held: dict[int, Slice] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)  #: of those that are held, ascending

    def add(self, end: int, rows: pa.Table) -> None:
        """Rows of a slice; a key may have several."""
        found = self.held.get(end)
        if found is None:
            found = self.held[end] = Slice()
            insort(self.ends, end)
        found.parts.append(rows)
        found.new_rows += rows.num_rows
        if found.new_rows > max(FEW_ROWS, found.parts[0].num_rows):
            self.whole(end)

    def whole(self, end: int) -> pa.Table:
        """One row for each key of a slice that is held."""
        found = self.held[end]
        if found.new_rows:
            found.parts = [self.merging.merged(found.parts)]
            found.new_rows = 0
        return found.parts[0]

    def drop_while(self, is_over: Callable[[int], bool]) -> None:
        """The first ones, by their ends."""
        over = list(takewhile(is_over, self.ends))
        for end in over:
            del self.held[end]
        del self.ends[: len(over)]

    def between(self, start: int, end: int) -> list[int]:
        """The ends of slices that are held, of a window, ascending."""
        return self.ends[bisect_right(self.ends, start) : bisect_right(self.ends, end)]

    def around(self, moment: int) -> list[int]:
        """The last end that is not after that moment, and the first that is, of slices that are held."""
        at = bisect_right(self.ends, moment)
        return self.ends[max(0, at - 1) : at + 1]

    def frozen(self) -> list[tuple[int, list[pa.Table]]]:
        """As they are now."""
        return [(end, list(self.held[end].parts)) for end in self.ends]


class RunningWindows:
    """Windows that share slices, put together without adding up every slice for each of them.

        slices      1  2  3  4  5  6 | 7  8  9
        from here   everything from a slice to the border, for each slice before it
        since       everything after the border

    A window is what is from its first slice to the border, and all since. When a window begins after the border, the border
    moves to its end. Each slice is folded about three times, however many windows share it.

    Derived from the slices: nothing of it is stored. What comes late is kept aside until the border moves.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._border: int | None = None
        self._folded_to = 0  #: slices up to there are in one of the two
        self._from_here: dict[int, pa.Table] = {}
        self._since: pa.Table | None = None
        self._late: list[tuple[int, pa.Table]] = []  #: in slices before the border, come after it was drawn

    def add_late(self, end: int, rows: pa.Table) -> None:
        """Rows of a slice that may have been folded already."""
        if self._border is None or end > self._folded_to:
            return
        if end > self._border:
            self._since = self._fold(self._since, rows)
        else:
            self._late.append((end, rows))

    def window(self, start: int, end: int) -> pa.Table | None:
        """All of a window; None when it has nothing. Windows are asked for in the order of their ends."""
        if self._border is None or start >= self._border or end < self._folded_to:
            self._move_border(start, end)
        else:
            for each in self._slices.between(self._folded_to, end):
                self._since = self._fold(self._since, self._slices.whole(each))
            self._folded_to = end
        first = min((each for each in self._from_here if each > start), default=None)
        parts = [] if first is None else [self._from_here[first]]
        parts += [rows for slice_end, rows in self._late if slice_end > start]
        if self._since is not None:
            parts.append(self._since)
        if len(parts) <= 1:
            return parts[0] if parts else None
        return self._slices.merging.merged(parts)

    def _move_border(self, start: int, end: int) -> None:
        self._from_here, self._since, self._late = {}, None, []
        so_far: pa.Table | None = None
        for each in reversed(self._slices.between(start, end)):
            so_far = self._from_here[each] = self._fold(so_far, self._slices.whole(each))
        self._border = self._folded_to = end

    def _fold(self, so_far: pa.Table | None, rows: pa.Table) -> pa.Table:
        return self._slices.merging.merged([rows] if so_far is None else [so_far, rows])


def cut(column: np.ndarray[Any, Any], rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each slice, in the order in which they came; the ends are a column beside them."""
    if not len(column):
        return
    if column.min() == column.max():
        yield int(column[0]), rows
        return
    order = np.argsort(column, kind="stable")
    ordered = column[order]
    rows = rows.take(pa.array(order))
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 1))
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=True):
        yield int(ordered[start]), rows.slice(start, stop - start)
