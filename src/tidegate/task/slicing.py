"""A frame in work, and how many of its rows to process before letters are read again. Executor; pure.

A frame of 2,000 records at 10 ms each would keep a slot deaf for 20 s. The size follows the measured cost: it doubles while
slices are quick and shrinks at once when they are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.task.operators.base import RunningOperator
    from tidegate.wire.frame import Frame

TARGET_S = 0.010
MAX_ROWS = 1 << 17


@dataclass(slots=True)
class FrameWork:
    """A frame's records, part of which may have been processed."""

    operator: RunningOperator
    input_index: int
    frame: Frame
    batch: Batch
    position: int = 0


class SliceSizer:
    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = 64

    def took(self, rows: int, seconds: float) -> None:
        if seconds > 2 * TARGET_S:
            self.rows = max(1, int(rows * TARGET_S / seconds))
        elif seconds < TARGET_S / 2 and rows >= self.rows:
            self.rows = min(self.rows * 2, MAX_ROWS)
