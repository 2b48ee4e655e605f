"""The frame at hand, and how many rows of it to process before letters are read again. Executor; the task's thread.

A frame of 2,000 records at 10 ms each would keep a slot deaf for 20 s. The size follows the measured cost: it doubles while
slices are quick and shrinks at once when they are not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.batch import Batch
from tidegate.task.flow import SlotFlow
from tidegate.task.in_flight import remainder
from tidegate.task.operators.base import RunningOperator
from tidegate.wire.frame import Frame

TARGET_S = 0.010
MAX_ROWS = 1 << 17


class SliceSizer:
    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = 1  # nobody knows yet what a record costs

    def took(self, rows: int, seconds: float) -> None:
        if seconds > 2 * TARGET_S:
            self.rows = max(1, int(rows * TARGET_S / seconds))
        elif seconds < TARGET_S / 2 and rows >= self.rows:
            self.rows = min(self.rows * 2, MAX_ROWS)


@dataclass(slots=True)
class FrameAtHand:
    """A frame's records, part of which may have been processed."""

    operator: RunningOperator
    input_index: int
    frame: Frame
    batch: Batch
    position: int = 0

    def process_slice(self, slices: SliceSizer, room: int, flow: SlotFlow, clock: Callable[[], float]) -> bool:
        """Whether that was the last one."""
        rows = min(slices.rows, flow.credit.records_left, max(1, room), len(self.batch) - self.position)
        stop = self.position + rows
        began = clock()
        self.operator.run(self.batch.slice(self.position, stop), self.input_index)
        ended = clock()
        slices.took(rows, ended - began)
        flow.processed(self.frame, rows, began, ended)
        self.position = stop
        return stop == len(self.batch)

    def rest(self) -> Frame:
        """What was not processed yet."""
        return remainder(self.frame, self.batch, self.position)
