"""The cut of an unaligned checkpoint: what a slot has received before each channel's barrier and not yet processed.

Executor; filled under the mailbox's lock by the task's thread (what is there when the snapshot is taken) and then by the
reader (what still comes before the barriers). Frames after a channel's barrier are never in it. Watermarks and ends
are not kept: sources say them again after a restore.

At the limits of memory and disk `is_over` says so, and the checkpoint is given up.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.ids import CheckpointId
from tidegate.task.held import HeldFrames
from tidegate.wire.frame import NONE_16, Frame, Kind

RESTORED = NONE_16  #: the sender of in-flight frames that a restore brought; no channel, so always before the barrier


@dataclass(slots=True)
class Capture:
    """In-flight frames of one slot for one checkpoint, in order for each channel."""

    checkpoint: CheckpointId
    waiting: set[int]  #: channels whose barrier has not come
    frames: HeldFrames
    is_over: bool = False  #: more came than may be kept

    def offer(self, frame: Frame) -> None:
        if frame.kind is Kind.CHECKPOINT_BARRIER:
            if frame.value == self.checkpoint:
                self.waiting.discard(frame.sender)
        elif frame.kind is Kind.RECORDS and (frame.sender in self.waiting or frame.sender == RESTORED):
            self.is_over = self.is_over or not self.frames.append(frame)

    @property
    def size_bytes(self) -> int:
        return self.frames.size_bytes

    @property
    def is_complete(self) -> bool:
        return not self.waiting
