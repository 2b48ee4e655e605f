"""Aligned windows over columns: tumbling, sliding and cumulative ones, which are put together from slices. Executor; the task's
thread.

    result = SELECT key, window_start, window_end, aggregates FROM slices GROUP BY key, window

Invariant. A slice is held for as long as a window that has it may still fire.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.functions.windows import AlignedWindows
from tidegate.protocol.watermarks import MIN_WATERMARK
from tidegate.task.operators.column_windows import ColumnWindowOperator
from tidegate.task.operators.event_time_marks import Moments
from tidegate.task.rows.backend import NAMESPACE, moments_column, moments_of
from tidegate.task.rows.slices import RunningWindows, Slices, cut

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.functions.merging import Merging
    from tidegate.wire.control import SubtaskRestore


class SliceRows:
    """Slices, as their backend sees them."""

    def __init__(self, merging: Merging) -> None:
        self.merging = merging
        self.slices = Slices(merging)

    @property
    def columns(self) -> list[str]:
        return self.merging.columns

    @property
    def value_type(self) -> pa.StructType:
        return self.merging.value_type

    def frozen(self) -> list[pa.Table]:
        tables = []
        for end, parts in self.slices.frozen():
            rows = pa.concat_tables(parts) if len(parts) > 1 else parts[0]
            namespace = moments_column(np.full(rows.num_rows, end, np.int64))
            tables.append(rows.append_column(NAMESPACE, namespace))
        return tables

    def load(self, rows: pa.Table) -> None:
        (ends,) = moments_of(rows.column(NAMESPACE), 1)
        for end, part in cut(ends, rows.drop_columns([NAMESPACE])):
            self.slices.add(end, part)

    def __len__(self) -> int:
        return sum(part.num_rows for each in self.slices.held.values() for part in each.parts)


class SliceWindowOperator(ColumnWindowOperator):
    """See the module's text."""

    def __init__(self, *given: Any, rows: SliceRows) -> None:
        super().__init__(*given)
        self._slices = rows.slices
        assert isinstance(self._assigner, AlignedWindows)
        self._aligned = self._assigner
        self._due: int | None = None  #: the end of the window that fires next
        #: Where each window is one slice there is nothing to put together.
        self._running = None if self._aligned.windows_are_slices else RunningWindows(self._slices)

    def open(self, restore: SubtaskRestore | None) -> None:
        super().open(restore)
        self._due = self._first_due(self._marks.watermark + 1)

    def _take(self, times: Moments, rows: pa.Table, batch: Batch) -> None:
        aligned, lateness = self._aligned, self._windows.lateness_ms
        ends = times if self._is_partial else aligned.slice_ends(times)
        watermark, latest = self._marks.watermark, self._marks.latest
        if aligned.is_event_time and aligned.last_end(int(ends.min())) - 1 + lateness <= latest:
            different, which = np.unique(ends, return_inverse=True)
            last = np.array([aligned.last_end(end) for end in different.tolist()], np.int64)[which]
            late = last - 1 + lateness <= self._fired_up_to(rows)
            if late.any():
                in_windows = late & (last > MIN_WATERMARK)
                if in_windows.any():
                    self._set_aside(np.flatnonzero(in_windows), batch)
                kept = np.flatnonzero(~late)
                ends, rows = ends[kept], rows.take(pa.array(kept))
        again: dict[int, list[pa.Table]] = {}
        for end, part in cut(ends, rows):
            first = aligned.next_end(end, MIN_WATERMARK)
            if first is None:
                continue  # between two windows
            self._slices.add(end, part)
            due = aligned.next_end(end, watermark + 1)
            if due is not None and (self._due is None or due < self._due):
                self._due = due
            if self._running is not None:
                self._running.add_late(end, part)
            while lateness and first is not None and first - 1 <= latest:
                if (new := self._of_fired(part, first)).num_rows:
                    again.setdefault(first, []).append(new)
                first = aligned.next_end(end, first)
        for end in sorted(again):
            self._fire_again(end, again[end])

    def _of_fired(self, rows: pa.Table, end: int) -> pa.Table:
        """The rows for whose keys the window that ends then has fired, and is still kept."""
        fired = self._fired_up_to(rows)
        is_kept = (end - 1 <= fired) & (fired < end - 1 + self._windows.lateness_ms)
        if isinstance(fired, int):
            return rows if is_kept else rows.slice(0, 0)
        return rows.filter(pa.array(is_kept))

    def _fire_again(self, end: int, parts: list[pa.Table]) -> None:
        """A window that has fired, for the keys that have something new."""
        start = self._aligned.start_of(end)
        held = [self._slices.whole(each) for each in self._slices.between(start, end)]
        rows = self._windows.merging.merged_of(held, parts)
        self._put_out(rows, *_of_each(rows, start, end))

    def _next_end(self) -> int | None:
        return self._due

    def _fire(self, before: int, watermark: int) -> None:
        after = before + 1
        while self._due is not None and self._due - 1 <= watermark:
            end = self._due
            start = self._aligned.start_of(end)
            if self._running is None:
                self._put_out_window(self._slices.whole(end), start, end)
            else:
                rows = self._running.window(start, end)
                if rows is not None:
                    self._put_out_window(rows, start, end)
            after = end
            self._due = self._first_due(after)
        lateness = self._windows.lateness_ms
        # Of two slices the earlier is not needed longer than the later.
        self._slices.drop_while(lambda end: self._aligned.last_end(end) - 1 + lateness <= watermark)

    def _first_due(self, after: int) -> int | None:
        """The first end after that moment of a window that has a slice. Of the slices before it, no window has an earlier one
        and not the last; of those after it, the first one's window is the first."""
        found = (self._aligned.next_end(each, after) for each in self._slices.around(after + 1))
        return min((end for end in found if end is not None), default=None)

    def _put_out_window(self, rows: pa.Table, start: int, end: int) -> None:
        self._put_out_once(rows, *_of_each(rows, start, end))


def _of_each(rows: pa.Table, start: int, end: int) -> tuple[Moments, Moments]:
    return np.full(rows.num_rows, start, np.int64), np.full(rows.num_rows, end, np.int64)
