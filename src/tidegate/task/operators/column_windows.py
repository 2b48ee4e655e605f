"""Windows over columns: what aligned windows and sessions have in common. Executor; the task's thread.

    frame      -> rows of accumulators -> late ones aside -> into the slices, or the sessions
    watermark  -> all windows that it closes leave as one Arrow batch -> what no window needs any more is dropped

What has fired is known by the watermark; after a restore also by the marks of the key groups (event_time_marks.py), so that no
window fires twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.functions.column_windows import SLICE_END
from tidegate.functions.user_metrics import UserMetrics
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.state.key_groups import key_groups
from tidegate.task.operators.base import OperatorFailed, RunningOperator, key_place
from tidegate.task.operators.checkpointed import keeper_for
from tidegate.task.operators.column_keys import key_columns
from tidegate.task.operators.event_time_marks import EventTimeMarks, Moments
from tidegate.task.operators.late import LATE_RECORDS, refuse_without_time

if TYPE_CHECKING:
    from tidegate.functions.column_windows import ColumnWindows
    from tidegate.functions.counters import Counter
    from tidegate.graph.plan import PlannedOperator
    from tidegate.state.key_selector import KeySelector
    from tidegate.state.slice_backend import KeyColumns, RowsBackend
    from tidegate.task.operators.timers import Time
    from tidegate.types import RecordType
    from tidegate.wire.control import SubtaskRestore


class ColumnWindowOperator(RunningOperator):
    """A subclass says what it keeps (`_take`), and what fires (`_fire`)."""

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        windows: ColumnWindows,
        backend: RowsBackend,
        keys: KeyColumns,
        key: KeySelector,
        input_type: RecordType,
        time: Time,
    ) -> None:
        super().__init__(planned, subtask)
        self.backend = backend
        self._rows_backend = backend
        backend.bind(type(windows).rows)  # type: ignore[attr-defined]  # of the class that was made for it
        self._windows = windows
        self._assigner = windows.assigner
        self._keys = keys
        self._selector = key
        self._key_type = key.key_type()
        self._key_place = key_place(planned.operator, key)
        self._input_type = input_type
        self._time = time
        self._is_partial = input_type.field_names == windows.partial_columns
        self._marks = EventTimeMarks(backend.key_groups, planned.max_parallelism)
        self.keeper = keeper_for(self._marks, backend)
        self._reads_late = windows.late_tag in planned.operator.outputs
        self._late_dropped: Counter
        self._results: list[tuple[pa.RecordBatch, Moments]] = []

    def open(self, restore: SubtaskRestore | None) -> None:
        if self._assigner.is_event_time:
            self._marks.watermark = self.watermark
        super().open(restore)
        self.user_metrics = UserMetrics()
        self._late_dropped = self.user_metrics.counter(LATE_RECORDS)

    # -- records -----------------------------------------------------------------------------------------------------

    def process(self, batch: Batch, input_index: int) -> None:
        if not len(batch):
            return
        if self._is_partial:
            rows = pa.Table.from_batches([batch.columns()])
            self._take(rows.column(SLICE_END).to_numpy(), rows.drop_columns([SLICE_END]), batch)
        else:
            keys = self._key_columns(batch)
            times = self._times(batch)
            rows = self._windows.partial(keys, batch.columns(), times)
            if self.hot_keys is not None and self._windows.key_names:
                self.hot_keys.note_column(self._keys.column(rows))
            self._take(times, rows, batch)
        self._flush()

    def _times(self, batch: Batch) -> Moments:
        if not self._assigner.is_event_time:
            return np.full(len(batch), self._time.now_ms(), np.int64)
        if batch.timestamps is None:
            refuse_without_time(self._assigner)
        return batch.timestamps

    def _key_columns(self, batch: Batch) -> list[pa.Array]:
        try:
            return window_keys(self._selector, self._windows, batch)
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self, error, place=self._key_place) from error

    def _take(self, times: Moments, rows: pa.Table, batch: Batch) -> None:
        """Keep rows of those times; of rows that were worked out before, the times are the ends of their slices."""
        raise NotImplementedError

    def _set_aside(self, places: Moments, batch: Batch) -> None:
        """Records that no window takes."""
        if self._reads_late and not self._is_partial:
            self.emit_to(self._windows.late_tag, batch.take(places))
        else:
            self._late_dropped.inc(len(places))

    def _fired_up_to(self, rows: pa.Table) -> Moments | None:
        """Of each row's key, where some have fired further than event time has come; else None."""
        if not self._marks.are_ahead:
            return None
        hashes, _ = self._keys.stored(self._keys.column(rows))
        return self._marks.of(key_groups(hashes, self.planned.max_parallelism))

    def _restored_marks(self, rows: pa.Table, moment: int) -> Moments | None:
        """How far the windows of each row's key had fired before the restore, where some had come to that moment."""
        if self._marks.highest < moment:
            return None
        hashes, _ = self._keys.stored(self._keys.column(rows))
        return self._marks.restored(key_groups(hashes, self.planned.max_parallelism))

    # -- time --------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        if self._assigner.is_event_time:
            self._advance(watermark)

    def next_time(self) -> float | None:
        if self._assigner.is_event_time:
            return None
        due = self._next_end()
        if due is None:
            return None
        return self._time.clock() + (due / 1000 - self._time.processing_time()) + 0.0005  # clocks are floats

    def on_time(self) -> None:
        if not self._assigner.is_event_time:
            self._advance(self._time.now_ms() - 1)

    def end_input(self) -> None:
        """What the clock has not closed yet is closed now: no record of a bounded input is left in a window of time."""
        if not self._assigner.is_event_time:
            self._advance(MAX_WATERMARK)

    def _advance(self, watermark: int) -> None:
        before, self._marks.watermark = self._marks.watermark, max(self._marks.watermark, watermark)
        self._fire(before, self._marks.watermark)
        self._flush()

    def _next_end(self) -> int | None:
        """When the next window closes."""
        raise NotImplementedError

    def _fire(self, before: int, watermark: int) -> None:
        """Time has come from one to the other: put out all windows that are closed now, and drop what no window needs."""
        raise NotImplementedError

    # -- what goes out -----------------------------------------------------------------------------------------------

    def _put_out(self, rows: pa.Table, starts: Moments, ends: Moments) -> None:
        """Windows that fire, a row each."""
        if rows.num_rows:
            self._results.append((self._windows.results(rows, pa.array(starts), pa.array(ends)), ends - 1))

    def _flush(self) -> None:
        results, self._results = self._results, []
        if not results:
            return
        columns = results[0][0] if len(results) == 1 else pa.concat_batches([batch for batch, _ in results])
        stamps = np.concatenate([ends for _, ends in results]) if self._assigner.is_event_time else None
        self.emit(Batch(self.output_type, columns=self.output_type.conformed(columns), timestamps=stamps))


def window_keys(selector: KeySelector, windows: ColumnWindows, batch: Batch) -> list[pa.Array]:
    """The key of each record, as columns; one key where windows are of all records."""
    if not windows.key_names:
        return [pa.array(np.zeros(len(batch), np.int64))]
    return key_columns(selector, windows.key_types, batch)
