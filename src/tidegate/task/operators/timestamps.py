"""Assigns event timestamps and makes watermarks. Executor; the task's thread.

The watermark after a batch is the highest timestamp so far, less the allowed lateness, less one: records of that very
timestamp may still come.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.watermarks import WatermarkStrategy, milliseconds
from tidegate.batch import Batch
from tidegate.graph.plan import PlannedOperator
from tidegate.protocol.watermarks import IDLE, MAX_WATERMARK, MIN_WATERMARK
from tidegate.task.operators.base import RunningOperator
from tidegate.task.operators.timers import Time
from tidegate.wire.control import SubtaskRestore


class TimestampOperator(RunningOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, strategy: WatermarkStrategy, time: Time) -> None:
        super().__init__(planned, subtask)
        self._strategy = strategy
        self._time = time
        self._last_record = time.clock()
        self._idle = False
        self._unheard = False  #: our watermark stands, but those who follow may not know it, or take us for idle

    def open(self, restore: SubtaskRestore | None) -> None:
        self._last_record = self._time.clock()
        self._unheard = self.watermark != MIN_WATERMARK  # restored; an unaligned barrier may have overtaken it

    def process(self, batch: Batch, input_index: int) -> None:
        stamps = self._stamps(batch)
        self._unheard = self._unheard or self._idle
        self._last_record, self._idle = self._time.clock(), False
        assert self.output_type is not None
        self.emit(
            Batch(
                self.output_type,
                batch.rows() if batch.has_rows else None,
                batch.columns() if batch.has_columns else None,
                stamps,
            )
        )
        watermark = int(stamps.max()) - self._strategy.out_of_orderness_ms - 1
        if watermark > self.watermark:
            self.watermark, self._unheard = watermark, True
        self._tell()

    def _tell(self) -> None:
        if self._unheard:
            self._unheard = False
            self.pass_watermark(self.watermark)

    def run_watermark(self, watermark: int) -> None:
        """Watermarks from before are replaced by our own, but for the last one and for idleness."""
        if watermark in (IDLE, MAX_WATERMARK):
            super().run_watermark(watermark)

    def next_time(self) -> float | None:
        if self._unheard:
            return self._time.clock()
        if self._strategy.idle_after_s is None or self._idle:
            return None
        return self._last_record + self._strategy.idle_after_s

    def on_time(self) -> None:
        self._tell()
        due = self.next_time()
        if due is not None and due <= self._time.clock():
            self._idle = True
            self.pass_watermark(IDLE)

    def _stamps(self, batch: Batch) -> np.ndarray[Any, Any]:
        where = self._strategy.timestamp
        if callable(where):
            return np.fromiter((milliseconds(where(row)) for row in batch.rows()), np.int64, len(batch))
        if batch.type.typed:
            return _column_milliseconds(batch.columns().column(where), where)
        values = (row[where] if isinstance(row, dict) else getattr(row, where) for row in batch.rows())
        return np.fromiter((milliseconds(value) for value in values), np.int64, len(batch))


def _column_milliseconds(column: pa.Array, name: str) -> np.ndarray[Any, Any]:
    if column.null_count:
        raise ValueError(f"the timestamp column {name!r} has nulls")
    if pa.types.is_timestamp(column.type):
        column = pc.cast(column, pa.timestamp("ms", column.type.tz), safe=False)
    elif not pa.types.is_integer(column.type):
        raise TypeError(f"the timestamp column {name!r} is {column.type}; it must be milliseconds or a timestamp")
    stamps: np.ndarray[Any, Any] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return stamps
