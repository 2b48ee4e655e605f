"""Assigns event timestamps and makes watermarks. Executor; the task's thread.

The watermark after a batch is the highest timestamp so far, less the allowed lateness, less one: records of that very
timestamp may still come. Where the source reads several splits side by side and says so, each has a watermark of its own,
and the lowest counts: one partition may be hours ahead of another.
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch, Origins
from tidegate.errors import ContractError
from tidegate.functions.watermarks import (
    PERIOD_S,
    Alignment,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
    milliseconds,
)
from tidegate.graph.plan import PlannedOperator
from tidegate.protocol.watermarks import IDLE, MAX_WATERMARK, MIN_WATERMARK, WatermarkValve
from tidegate.task.operators.base import RunningOperator
from tidegate.task.operators.timers import Time
from tidegate.wire.control import SubtaskRestore

_IN_A_MS = {"us": 1_000, "ns": 1_000_000}
_WHOLE = ""  #: stands for all splits, where the source does not tell them apart


class TimestampOperator(RunningOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, strategy: WatermarkStrategy, time: Time) -> None:
        super().__init__(planned, subtask)
        self._strategy = strategy
        self._time = time
        self._valve: WatermarkValve[str] = WatermarkValve.over([_WHOLE])
        self._last_record = {_WHOLE: time.clock()}  #: of each split that is not idle
        self._unheard = False  #: our watermark stands, but those who follow may not know it
        #: The user's, by split; None where the bound of the disorder says all.
        self._makers: dict[str, WatermarkGenerator] | None = None if strategy.generator is None else {}
        self._period_ends = time.clock() + PERIOD_S

    @property
    def alignment(self) -> Alignment | None:
        return self._strategy.alignment

    @property
    def reached(self) -> int:
        """What the other sources of its group are to know."""
        return IDLE if self._valve.all_idle and self.watermark != MAX_WATERMARK else self.watermark

    def open(self, restore: SubtaskRestore | None) -> None:
        self._last_record = {_WHOLE: self._time.clock()}
        self._valve.current = self.watermark
        self._unheard = self.watermark != MIN_WATERMARK  # restored; an unaligned barrier may have overtaken it

    def process(self, batch: Batch, input_index: int) -> None:
        stamps = self._stamps(batch)
        now = self._time.clock()
        # A split may have finished with these very records, and they may be its first since the start.
        origins = batch.origins
        self._reads(frozenset([_WHOLE]) if origins is None else origins.splits.union(origins.of), now)
        self.emit(
            Batch(
                self.output_type,
                batch.rows() if batch.has_rows else None,
                batch.columns() if batch.has_columns else None,
                stamps,
            )
        )
        marks = self._highest(batch.origins, stamps) if self._makers is None else self._generated(batch, stamps)
        for split, said in marks.items():
            self._last_record[split] = now
            for mark in said:
                self._tell(self._valve.on_watermark(split, mark))
        if batch.origins is not None:
            for split in self._valve.watermarks.keys() - batch.origins.splits:
                self._ended(split)

    def _highest(self, origins: Origins | None, stamps: np.ndarray[Any, Any]) -> dict[str, list[int]]:
        lag = self._strategy.out_of_orderness_ms + 1
        return {split: [highest - lag] for split, highest in _highest(origins, stamps).items()}

    def _generated(self, batch: Batch, stamps: np.ndarray[Any, Any]) -> dict[str, list[int]]:
        """What the user's generators say after these records, by split."""
        assert self._makers is not None
        of = repeat(_WHOLE) if batch.origins is None else batch.origins.of
        outputs: dict[str, WatermarkOutput] = {}
        for split, row, stamp in zip(of, batch.rows(), stamps.tolist()):
            output = outputs.setdefault(split, WatermarkOutput())
            self._maker(split).on_event(row, stamp, output)
        return {split: _said(output) for split, output in outputs.items()}

    def _maker(self, split: str) -> WatermarkGenerator:
        assert self._makers is not None
        assert self._strategy.generator is not None
        if split not in self._makers:
            made = self._strategy.generator()
            if not isinstance(made, WatermarkGenerator):
                raise ContractError(f"for_generator: it must make a WatermarkGenerator, not a {type(made).__name__}")
            self._makers[split] = made
        return self._makers[split]

    def _periodic(self) -> None:
        assert self._makers is not None
        for split in [split for split in self._valve.watermarks if split in self._last_record]:
            output = WatermarkOutput()
            self._maker(split).on_periodic_emit(output)
            for mark in _said(output):
                self._tell(self._valve.on_watermark(split, mark))

    def _reads(self, splits: frozenset[str], now: float) -> None:
        """Splits that are new hold event time back until their first record, or until they are idle."""
        for split in splits - self._valve.watermarks.keys():
            self._valve.watermarks[split] = MIN_WATERMARK
            self._last_record[split] = now

    def _ended(self, split: str) -> None:
        """A split that is read no more. That nothing is left is for the source to say."""
        del self._valve.watermarks[split]
        if self._makers is not None:
            self._makers.pop(split, None)
        self._valve.idle.discard(split)
        self._last_record.pop(split, None)
        if self._valve.watermarks:
            self._tell(self._valve.news())

    def _tell(self, news: list[int]) -> None:
        if self._unheard and not news:
            news = [self.watermark]
        self._unheard = False
        for watermark in news:
            if watermark != IDLE:
                self.watermark = watermark
            self.pass_watermark(watermark)

    def run_watermark(self, watermark: int) -> None:
        """Watermarks from before are replaced by our own, but for the last one and for idleness."""
        if watermark in (IDLE, MAX_WATERMARK):
            super().run_watermark(watermark)
        if watermark == MAX_WATERMARK:  # nothing is said after the end
            self._unheard = False
            self._last_record.clear()

    def next_time(self) -> float | None:
        if self._unheard:
            return self._time.clock()
        if not self._last_record:
            return None
        idle_s = self._strategy.idle_after_s
        idle_at = None if idle_s is None else min(self._last_record.values()) + idle_s
        if self._makers is None:
            return idle_at
        return self._period_ends if idle_at is None else min(idle_at, self._period_ends)

    def on_time(self) -> None:
        if self._unheard:
            self._tell([])
        if self._makers is not None and self._last_record and self._period_ends <= self._time.clock():
            self._period_ends = self._time.clock() + PERIOD_S
            self._periodic()
        if self._strategy.idle_after_s is not None:
            since = self._time.clock() - self._strategy.idle_after_s
            for split in [split for split, last in self._last_record.items() if last <= since]:
                del self._last_record[split]
                self._tell(self._valve.on_watermark(split, IDLE))

    def on_kept_back(self) -> None:
        """Under back-pressure nobody is idle: the time begins anew when records can come again."""
        now = self._time.clock()
        self._last_record = dict.fromkeys(self._last_record, now)

    def _stamps(self, batch: Batch) -> np.ndarray[Any, Any]:
        where = self._strategy.timestamp
        assert where is not None  # checked when it was given
        if callable(where):
            return np.fromiter((milliseconds(where(row)) for row in batch.rows()), np.int64, len(batch))
        if batch.type.typed:
            return _column_milliseconds(batch.columns().column(where), where)
        values = (row[where] if isinstance(row, dict) else getattr(row, where) for row in batch.rows())
        return np.fromiter((milliseconds(value) for value in values), np.int64, len(batch))


def _said(output: WatermarkOutput) -> list[int]:
    """Who says how far it is, and then that it is idle, has said both."""
    return [*([] if output.watermark is None else [output.watermark]), *([IDLE] if output.idle else [])]


def _highest(origins: Origins | None, stamps: np.ndarray[Any, Any]) -> dict[str, int]:
    """The newest timestamp of each split that has records."""
    if origins is None:
        return {_WHOLE: int(stamps.max())}
    highest: dict[str, int] = {}
    for split, stamp in zip(origins.of, stamps.tolist(), strict=True):
        if stamp > highest.get(split, MIN_WATERMARK):
            highest[split] = stamp
    return highest


def _column_milliseconds(column: pa.Array, name: str) -> np.ndarray[Any, Any]:
    if column.null_count:
        raise ContractError(f"the timestamp column {name!r} has nulls")
    if pa.types.is_timestamp(column.type) and column.type.unit in _IN_A_MS:
        fine: np.ndarray[Any, Any] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        return fine // _IN_A_MS[column.type.unit]  # also before 1970 a moment belongs to the millisecond that has begun
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz))
    elif not pa.types.is_integer(column.type):
        raise ContractError(f"the timestamp column {name!r} is {column.type}; it must be milliseconds or a timestamp")
    stamps: np.ndarray[Any, Any] = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return stamps
