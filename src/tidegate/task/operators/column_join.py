"""The interval join over columns. Executor; the task's thread.

frame      late records aside -> rows meet those that are kept of the other side -> who can still meet somebody is kept
    watermark  who can meet nobody any more is dropped, and leaves alone where it has met nobody and is wanted so

    result = SELECT * FROM l JOIN r ON l.key = r.key AND r.time BETWEEN l.time + lower AND l.time + upper
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.functions.joins import LATE, LATE_RECORDS
from tidegate.functions.user_metrics import UserMetrics
from tidegate.state.key_groups import key_groups
from tidegate.task.operators.base import OperatorFailed, RunningOperator, key_place
from tidegate.task.operators.checkpointed import keeper_for
from tidegate.task.operators.column_keys import key_columns
from tidegate.task.operators.event_time_marks import EventTimeMarks, Moments
from tidegate.task.operators.late import held_back, refuse_join_without_time
from tidegate.task.rows.backend import KeyColumns, RowsBackend
from tidegate.task.rows.joins import JoinRows, Part

if TYPE_CHECKING:
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.plan import PlannedOperator
    from tidegate.graph.specs import ColumnJoinSpec
    from tidegate.wire.control import SubtaskRestore


class ColumnJoinOperator(RunningOperator):
    """See the module's text."""

    def __init__(self, planned: PlannedOperator, subtask: int, spec: ColumnJoinSpec, own: range) -> None:
        super().__init__(planned, subtask)
        self._join = join = spec.function
        self._selectors: tuple[KeySelector, ...] = spec.keys
        self._key_places = [key_place(planned.operator, key) for key in spec.keys]
        self._keys = KeyColumns(spec.keys[0].key_type(), join.key_columns)
        self._sides = [JoinRows(self._keys, schema) for schema in join.schemas]
        kept = dict(zip(("left", "right"), self._sides, strict=True))
        self.backend = RowsBackend(self._keys, own, planned.max_parallelism, kept)
        for name in kept:
            self.backend.bind(getattr(type(join), name))
        self._marks = EventTimeMarks(own, planned.max_parallelism)
        self.keeper = keeper_for(self._marks, self.backend)
        self._out: list[tuple[list[pa.Array], Moments]] = []
        self.user_metrics = UserMetrics()
        self._late = self.user_metrics.counter(LATE_RECORDS)

    def open(self, restore: SubtaskRestore | None) -> None:
        self._marks.watermark = self.watermark
        super().open(restore)

    # -- records -----------------------------------------------------------------------------------------------------

    def process(self, batch: Batch, input_index: int) -> None:
        times = batch.timestamps
        if times is None:
            refuse_join_without_time(self, input_index)
        if not len(batch):
            return
        own, other = self._sides[input_index], self._sides[1 - input_index]
        part = self._part(batch, input_index)
        if self.hot_keys is not None:
            self.hot_keys.note_column(self._keys.column(part.rows))
        part = self._without_late(part, batch, input_index)
        lower, upper = self._join.lower_ms, self._join.upper_ms
        if input_index:
            lower, upper = -upper, -lower
        for found in other.meet(part, part.times + lower, part.times + upper):
            part.met[found.asked] = True
            met = found.part.take(found.places)
            columns = [own.records(part.take(found.asked)), other.records(met)]
            self._put_out(columns, input_index, np.maximum(part.times[found.asked], met.times))
        stays = part.times + upper > self._marks.watermark
        own.add(part.take(np.flatnonzero(stays)))
        if self._join.keeps[input_index]:
            self._put_out_alone(part.take(np.flatnonzero(~stays & ~part.met)), input_index)
        self._flush()

    def _part(self, batch: Batch, input_index: int) -> Part:
        try:
            keys = key_columns(self._selectors[input_index], self._join.key_types, batch)
            return self._sides[input_index].batch(keys, batch.columns(), batch.timestamps)  # type: ignore[arg-type]
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self, error, place=self._key_places[input_index]) from error

    def _without_late(self, part: Part, batch: Batch, side: int) -> Part:
        marks: Any = self._marks.watermark
        if self._marks.are_ahead:
            marks = self._marks.of(key_groups(part.hashes, self.planned.max_parallelism))
        is_late = part.times <= marks
        if not is_late.any():
            return part
        places = np.flatnonzero(is_late)
        self._late.inc(len(places))
        if LATE[side] in self.planned.operator.outputs:
            self.emit_to(LATE[side], batch.take(places))
        return part.take(np.flatnonzero(~is_late))

    # -- time --------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        self._marks.watermark = watermark
        for side, waits_ms in enumerate((self._join.upper_ms, -self._join.lower_ms)):
            for alone in self._sides[side].pass_time(watermark - waits_ms):
                if self._join.keeps[side]:
                    self._put_out_alone(alone, side)
        self._flush()

    def pass_watermark(self, watermark: int) -> None:
        super().pass_watermark(held_back(watermark, self._join.hold_ms))

    # -- pairs on their way -------------------------------------------------------------------------------------------

    def _put_out_alone(self, part: Part, side: int) -> None:
        other = self._join.schemas[1 - side]
        nulls = [pa.nulls(len(part), field.type) for field in other]
        self._put_out([self._sides[side].records(part), nulls], side, part.times)

    def _put_out(self, columns: list[list[pa.Array]], side: int, times: Moments) -> None:
        """`columns`: those of `side` first."""
        left, right = columns if side == 0 else columns[::-1]
        if len(times):
            self._out.append(([*left, *right], times))

    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out:
            return
        schema = self.output_type.schema
        batches = [pa.RecordBatch.from_arrays(columns, schema=schema) for columns, _ in out]
        columns = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        self.emit(Batch(self.output_type, columns=columns, timestamps=np.concatenate([times for _, times in out])))
