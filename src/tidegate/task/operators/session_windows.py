"""Sessions over columns. Executor; the task's thread.

result = SELECT key, min(start), max(end), aggregates FROM records GROUP BY key, session
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.task.operators.column_windows import ColumnWindowOperator
from tidegate.task.operators.event_time_marks import Moments
from tidegate.task.rows.sessions import END, START, SessionRows

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.functions.windows import EventTimeSessionWindows


class SessionWindowOperator(ColumnWindowOperator):
    """See the module's text."""

    def __init__(self, *given: Any, rows: SessionRows) -> None:
        super().__init__(*given)
        self._sessions = rows

    def _take(self, times: Moments, rows: pa.Table, batch: Batch) -> None:
        lateness = self._windows.lateness_ms
        ends = self._ends(times, batch)
        rows = rows.append_column(START, pa.array(times)).append_column(END, pa.array(ends))
        if not self._assigner.is_event_time or int(ends.min()) - 1 > self._marks.latest:
            self._sessions.add(rows)
            return
        fired = self._fired_up_to(rows)
        closed = ends - 1 <= fired
        # Records whose own windows have passed: each belongs to a session that is still there, or is late.
        self._sessions.add(rows.take(pa.array(np.flatnonzero(~closed))))
        places = np.flatnonzero(closed)
        if not len(places):
            return
        old = rows.take(pa.array(places))
        in_session = self._sessions.ends_with(old)
        is_late = in_session - 1 + lateness <= (fired if isinstance(fired, int) else fired[places])
        if is_late.any():
            self._set_aside(places[is_late], batch)
        taken = old.take(pa.array(np.flatnonzero(~is_late)))
        self._sessions.add(taken)
        if lateness and taken.num_rows:
            self._fire_again(taken)

    def _ends(self, times: Moments, batch: Batch) -> Moments:
        assigner: EventTimeSessionWindows = self._assigner  # type: ignore[assignment]
        if assigner.gap_ms is not None:
            return times + assigner.gap_ms
        return np.array(
            [assigner.assign_windows(row, time)[0].end for row, time in zip(batch.rows(), times.tolist(), strict=True)],
            np.int64,
        )

    def _fire_again(self, taken: pa.Table) -> None:
        """The sessions that have closed, and have something new."""
        whole = self._sessions.whole()
        assert whole is not None
        starts, ends = whole.column(START).to_numpy(), whole.column(END).to_numpy()
        again = self._sessions.has_any_of(taken) & (ends - 1 <= self._fired_up_to(whole))
        self._put_out(whole.filter(pa.array(again)), starts[again], ends[again])

    def _next_end(self) -> int | None:
        return self._sessions.first_end

    def _fire(self, before: int, watermark: int) -> None:
        first_end = self._sessions.first_end
        if first_end is None or first_end - 1 > watermark:
            return
        whole = self._sessions.whole()
        assert whole is not None
        ends = whole.column(END).to_numpy()
        fires = (ends - 1 <= watermark) & (ends - 1 > before)
        if fires.any():
            starts = whole.column(START).to_numpy()
            self._put_out_once(whole.filter(pa.array(fires)), starts[fires], ends[fires])
        kept = ends - 1 + self._windows.lateness_ms > watermark
        self._sessions.keep(whole if kept.all() else whole.filter(pa.array(kept)))
