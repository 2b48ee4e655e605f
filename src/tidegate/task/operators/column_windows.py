"""Windows over columns: what aligned windows and sessions have in common. Executor; the task's thread.

    frame      -> rows of accumulators -> late ones aside -> into the slices, or the sessions
    watermark  -> all windows that it closes leave as one Arrow batch -> what no window needs any more is dropped

What has fired is known by the watermark. After a restore event time continues from the slowest of the old subtasks, though the
others had fired more, and the clock of another machine may be behind: for each key group it is kept how far its windows have
fired (`FiredMarks`), so that none closes twice. What comes late, and is still taken, makes a window fire again at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.errors import ConfigurationError
from tidegate.functions.checkpointed import InitializationContext
from tidegate.functions.column_windows import SLICE_END
from tidegate.functions.user_metrics import UserMetrics
from tidegate.functions.windows import AlignedWindows, WindowAssigner
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
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.plan import PlannedOperator
    from tidegate.task.operators.timers import Time
    from tidegate.task.rows.backend import KeyColumns, RowsBackend
    from tidegate.types import RecordType
    from tidegate.wire.control import SubtaskRestore


class FiredMarks(EventTimeMarks):
    """How far the windows of each key group have fired, and from what they are put together."""

    def __init__(self, key_groups: range, max_parallelism: int, assigner: WindowAssigner) -> None:
        super().__init__(key_groups, max_parallelism)
        self._assigner = assigner

    def initialize_state(self, ctx: InitializationContext, /) -> None:
        self._check_same_windows(ctx)
        super().initialize_state(ctx)

    def _check_same_windows(self, ctx: InitializationContext) -> None:
        """:raises ConfigurationError: rows of other slices would be counted in windows that are not theirs, or in none."""
        parts = ctx.operator_state.union_list_state("parts", str)
        own = parts_of(self._assigner)
        for stored in parts.get():
            if stored != own:
                raise ConfigurationError(
                    f"the checkpoint holds windows over columns as {stored}, and {self._assigner!r} are put together from "
                    f"{own}. What is stored cannot be shared out anew: give the operator another uid, and start without "
                    "its state."
                )
        parts.set([own])


def parts_of(assigner: WindowAssigner) -> str:
    """From what windows are put together, and so what is stored."""
    time = "event time" if assigner.is_event_time else "the clock"
    if not isinstance(assigner, AlignedWindows):
        return f"sessions by {time}"
    return f"slices of {assigner.slice_ms} ms from {assigner.offset_ms % assigner.slice_ms} ms on, by {time}"


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
        self._marks = FiredMarks(backend.key_groups, planned.max_parallelism, windows.assigner)
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
            # The clock of this machine may be behind that of the one before: no record goes into a window that has closed.
            return np.full(len(batch), max(self._time.now_ms(), self._marks.latest + 1), np.int64)
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

    def _fired_up_to(self, rows: pa.Table) -> int | Moments:
        """How far the windows of each row's key have fired; one number where it is the same for all."""
        if not self._marks.are_ahead:
            return self._marks.watermark
        return self._marks.of(self._key_groups(rows))

    def _key_groups(self, rows: pa.Table) -> Moments:
        hashes, _ = self._keys.stored(self._keys.column(rows))
        return key_groups(hashes, self.planned.max_parallelism)

    def _had_fired(self, rows: pa.Table, ends: Moments) -> Moments | None:
        """Of windows that time closes now: which have fired before the restore. None: none of them."""
        if not len(ends) or self._marks.highest_restored < int(ends.min()) - 1:
            return None
        return self._marks.restored(self._key_groups(rows)) >= ends - 1

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
            # The clock has not come so far: what comes when a job that was drained goes on is not late.
            self._fire(self._marks.watermark, MAX_WATERMARK)
            self._flush()

    def _advance(self, watermark: int) -> None:
        before, self._marks.watermark = self._marks.watermark, max(self._marks.watermark, int(watermark))
        self._fire(before, self._marks.watermark)
        self._flush()

    def _next_end(self) -> int | None:
        """When the next window closes."""
        raise NotImplementedError

    def _fire(self, before: int, watermark: int) -> None:
        """Time has come from one to the other: put out all windows that are closed now, and drop what no window needs."""
        raise NotImplementedError

    # -- what goes out -----------------------------------------------------------------------------------------------

    def _put_out_once(self, rows: pa.Table, starts: Moments, ends: Moments) -> None:
        """Windows that time closes now, a row each: those that have not fired before the restore."""
        had_fired = self._had_fired(rows, ends)
        if had_fired is not None and had_fired.any():
            left = ~had_fired
            rows, starts, ends = rows.filter(pa.array(left)), starts[left], ends[left]
        self._put_out(rows, starts, ends)

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
