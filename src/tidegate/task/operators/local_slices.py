"""Rows of slices before the shuffle: what a subtask has of a key and a slice travels as one row. Executor; task's thread.

Whether it pays depends on the records: with few keys thousands become one row, with as many keys as records nothing is
gained. So it is measured. Rows are gathered for a moment and combined; where too many are left the operator gathers nothing
for a while, and then looks again.

    GATHERING --more is left than WORTH_IT of what came--> PASSING --LOOK_AGAIN_ROWS later--> GATHERING

A watermark waits for what was gathered before it. Before a barrier everything goes out, so nothing of this is in a checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.functions.column_windows import SLICE_END
from tidegate.functions.merging import Merging
from tidegate.functions.user_metrics import UserMetrics
from tidegate.functions.windows import AlignedWindows
from tidegate.protocol.watermarks import IDLE
from tidegate.task.operators.base import OperatorFailed, RunningOperator, key_place
from tidegate.task.operators.column_windows import window_keys
from tidegate.task.operators.late import refuse_without_time

if TYPE_CHECKING:
    from tidegate.functions.column_windows import ColumnWindows
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.plan import PlannedOperator
    from tidegate.ids import CheckpointId
    from tidegate.task.operators.timers import Time

GATHERED_ROWS = 65_536  #: at most; they are combined in a few milliseconds
GATHERED_S = 0.01  #: as long as an edge's buffer waits
WORTH_IT = 0.5  #: of the rows that came; above that, combining costs more than sending
LOOK_AGAIN_ROWS = 1 << 21


class LocalSlicesOperator(RunningOperator):
    """See the module's text."""

    def __init__(
        self, planned: PlannedOperator, subtask: int, windows: ColumnWindows, key: KeySelector, time: Time
    ) -> None:
        super().__init__(planned, subtask)
        assert isinstance(windows.assigner, AlignedWindows)
        self._windows = windows
        self._aligned = windows.assigner
        self._selector = key
        self._key_place = key_place(planned.operator, key)
        self._time = time
        self._merging = Merging((*windows.key_columns, SLICE_END), windows.merging.accumulators)
        self._gathered: list[pa.Table] = []
        self._rows = 0  #: gathered
        self._since = 0.0  #: when the first of what waits has come
        self._held: int | None = None  #: the watermark that waits
        self._passing = 0  #: so many more rows are passed on as they are
        self.user_metrics = UserMetrics()
        self.user_metrics.gauge("combining", lambda: float(not self._passing))

    def process(self, batch: Batch, input_index: int) -> None:
        if not len(batch):
            return
        if batch.timestamps is None:
            refuse_without_time(self._aligned)
        columns = batch.columns()
        try:
            keys = window_keys(self._selector, self._windows, self._as_received(batch))
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self, error, place=self._key_place) from error
        rows = self._windows.partial(keys, columns, batch.timestamps)
        rows = rows.append_column(SLICE_END, pa.array(self._aligned.slice_ends(batch.timestamps)))
        if self._passing:
            self._passing = max(0, self._passing - len(batch))
            self._send(rows)
            return
        if not self._waits():
            self._since = self._time.clock()
        self._gathered.append(rows)
        self._rows += len(batch)
        if self._rows >= GATHERED_ROWS:
            self._flush()

    def _as_received(self, batch: Batch) -> Batch:
        """As the windows would see them: whether records are combined before the shuffle changes no key."""
        return batch if batch.type.come_back(self._selector.fields) else batch.as_received()

    def run_watermark(self, watermark: int) -> None:
        if watermark == IDLE:
            try:
                self._flush()
            except OperatorFailed:
                raise
            except Exception as error:
                raise OperatorFailed(self, error) from error
            self.pass_watermark(IDLE)
            return
        self.watermark = max(self.watermark, watermark)
        if not self._waits():
            self.pass_watermark(watermark)
        else:
            self._held = self.watermark

    def _waits(self) -> bool:
        return self._rows > 0 or self._held is not None

    def next_time(self) -> float | None:
        return self._since + GATHERED_S if self._waits() else None

    def on_time(self) -> None:
        if self._waits() and self._time.clock() >= self._since + GATHERED_S:
            self._flush()

    def prepare(self, checkpoint: CheckpointId) -> None:
        self._flush()

    def end_input(self) -> None:
        self._flush()

    def _flush(self) -> None:
        """All that was gathered, then the watermark that waited for it."""
        gathered, came = self._gathered, self._rows
        self._gathered, self._rows = [], 0
        if gathered:
            rows = self._merging.merged(gathered)
            if came >= GATHERED_ROWS // 16 and rows.num_rows > WORTH_IT * came:  # a handful says nothing
                self._passing = LOOK_AGAIN_ROWS
            self._send(rows)
        held, self._held = self._held, None
        if held is not None:
            self.pass_watermark(held)

    def _send(self, rows: pa.Table) -> None:
        for part in rows.combine_chunks().to_batches():
            self.emit(Batch(self.output_type, columns=self.output_type.conformed(part)))
