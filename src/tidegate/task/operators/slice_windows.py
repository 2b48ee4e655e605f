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
from tidegate.state.slice_backend import NAMESPACE, moments_column, moments_of
from tidegate.state.slices import RunningWindows, Slices, cut
from tidegate.task.operators.column_windows import ColumnWindowOperator
from tidegate.task.operators.event_time_marks import Moments

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.state.merging import Merging
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
        fired = self._fired_up_to(rows)
        watermark = self._marks.watermark
        if aligned.is_event_time and (
            fired is not None or aligned.last_end(int(ends.min())) - 1 + lateness <= watermark
        ):
            different, which = np.unique(ends, return_inverse=True)
            last = np.array([aligned.last_end(end) for end in different.tolist()], np.int64)[which]
            late = last - 1 + lateness <= (watermark if fired is None else fired)
            if late.any():
                in_windows = last > MIN_WATERMARK
                self._set_aside(np.flatnonzero(late & in_windows), batch)
                kept = np.flatnonzero(~late)
                ends, rows, fired = ends[kept], rows.take(pa.array(kept)), None if fired is None else fired[kept]
        if fired is None:
            self._keep(ends, rows, watermark)
            return
        for mark in np.unique(fired).tolist():
            of_mark = np.flatnonzero(fired == mark)
            self._keep(ends[of_mark], rows.take(pa.array(of_mark)), mark)

    def _keep(self, ends: Moments, rows: pa.Table, watermark: int) -> None:
        """`watermark`: up to which windows of these keys have fired; those that allow lateness fire again."""
        lateness, aligned = self._windows.lateness_ms, self._aligned
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
            while lateness and first is not None and first - 1 <= watermark:
                if first - 1 + lateness > watermark:
                    again.setdefault(first, []).append(part)
                first = aligned.next_end(end, first)
        for end in sorted(again):
            self._fire_again(end, again[end])

    def _fire_again(self, end: int, parts: list[pa.Table]) -> None:
        """A window that has fired, for the keys that have something new."""
        start = self._aligned.start_of(end)
        held = [self._slices.whole(each) for each in self._slices.between(start, end)]
        self._put_out_at(self._windows.merging.merged_of(held, parts), start, end)

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
        for end in [end for end in self._slices.held if self._aligned.last_end(end) - 1 + lateness <= watermark]:
            self._slices.drop(end)

    def _first_due(self, after: int) -> int | None:
        found = (self._aligned.next_end(each, after) for each in self._slices.held)
        return min((end for end in found if end is not None), default=None)

    def _put_out_window(self, rows: pa.Table, start: int, end: int) -> None:
        """At its end: without the keys whose window had fired before the restore."""
        fired = self._restored_marks(rows, end - 1)
        if fired is not None:
            rows = rows.filter(pa.array(fired < end - 1))
        self._put_out_at(rows, start, end)

    def _put_out_at(self, rows: pa.Table, start: int, end: int) -> None:
        count = rows.num_rows
        self._put_out(rows, np.full(count, start, np.int64), np.full(count, end, np.int64))
