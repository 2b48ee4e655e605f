"""What reaches a slot from other threads: frames from Spark, messages from the coordinator, results of its own helpers.

The one shared structure of a slot. Frames are bounded in bytes, which is what makes back-pressure: the reader thread
waits in `put_frame`, Spark's reader stops taking, the sender's writer runs out of credit. Letters are small and few.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from tidegate.task.capture import Capture
from tidegate.wire.control import ToSlot
from tidegate.wire.frame import FLAG_TIMEOUTABLE, FLAG_UNALIGNED, Frame, Kind


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """The reader has seen a barrier that may not wait for its turn."""

    checkpoint: int
    unaligned: bool


Letter = Union[ToSlot, BarrierArrived, Callable[[], None]]  #: a message, or a call to make in the task's thread


class Mailbox:
    """Thread-safe."""

    def __init__(self, frames_limit_bytes: int, opened_limit_bytes: int = 64 << 20) -> None:
        self._limit = frames_limit_bytes
        self._opened_limit = max(frames_limit_bytes, opened_limit_bytes)  #: while an unaligned checkpoint is under way
        self._opened_for: set[int] = set()
        self._capture: Capture | None = None
        self._on_captured: Callable[[], None] | None = None
        self._changed = threading.Condition()
        self._letters: deque[Letter] = deque()
        self._frames: deque[Frame] = deque()
        self._frames_bytes = 0
        self._input_ended = False
        self._failure: BaseException | None = None
        self._closed = False

    # -- other threads ------------------------------------------------------------------------------------------

    def post(self, letter: Letter) -> None:
        with self._changed:
            self._letters.append(letter)
            self._changed.notify_all()

    def put_frame(self, frame: Frame, wait: bool = True) -> bool:
        """Wait while the bound is passed. False when the slot is closed (or, without waiting, when it is full)."""
        with self._changed:
            while self._frames_bytes >= self._current_limit() and not self._closed:
                if not wait:
                    return False
                self._changed.wait()
            if self._closed:
                return False
            self._frames.append(frame)
            self._frames_bytes += frame.size_bytes
            if frame.kind is Kind.CHECKPOINT_BARRIER and frame.flags & (FLAG_UNALIGNED | FLAG_TIMEOUTABLE):
                self._letters.append(BarrierArrived(frame.value, bool(frame.flags & FLAG_UNALIGNED)))
            if self._capture is not None:
                self._capture.offer(frame)
                self._tell_captured()
            self._changed.notify_all()
            return True

    def _current_limit(self) -> int:
        return self._opened_limit if self._opened_for else self._limit

    def _tell_captured(self) -> None:
        if self._capture is not None and self._capture.is_complete and self._on_captured is not None:
            self._letters.append(self._on_captured)
            self._opened_for.discard(self._capture.checkpoint)
            self._capture = self._on_captured = None

    def end_input(self) -> None:
        """Spark has no more rows for this slot."""
        with self._changed:
            self._input_ended = True
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Ends the slot: raised in the task's thread."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._frames.clear()
            self._changed.notify_all()

    # -- the task's thread --------------------------------------------------------------------------------------

    def open_for(self, checkpoint: int) -> None:
        """Let frames in past the bound, so that the barrier waits for the network and never for processing."""
        with self._changed:
            self._opened_for.add(checkpoint)
            self._changed.notify_all()

    def shut_up_to(self, checkpoint: int) -> None:
        """The checkpoint and older ones need no open inbox any more; a capture of theirs is given up."""
        with self._changed:
            self._opened_for = {id for id in self._opened_for if id > checkpoint}
            if self._capture is not None and self._capture.checkpoint <= checkpoint:
                self._capture = self._on_captured = None

    def capture(self, capture: Capture, on_captured: Callable[[], None]) -> None:
        """Add what waits here, and what will still come before the barriers; then post `on_captured`."""
        with self._changed:
            for frame in self._frames:
                capture.offer(frame)
            self._capture, self._on_captured = capture, on_captured
            self._tell_captured()

    def wait(self, timeout_s: float | None) -> None:
        """Until there is something, or the time is over."""
        with self._changed:
            if not (self._letters or self._frames or self._input_ended or self._failure):
                self._changed.wait(timeout_s)

    def take_letter(self) -> Letter | None:
        if self._failure is not None:
            raise self._failure
        if not self._letters:  # unlocked peek: a letter that comes a moment later is found at the next turn
            return None
        with self._changed:
            return self._letters.popleft()

    def take_frame(self) -> Frame | None:
        if not self._frames:
            return None
        with self._changed:
            frame = self._frames.popleft()
            self._frames_bytes -= frame.size_bytes
            self._changed.notify_all()
            return frame

    @property
    def has_letters(self) -> bool:
        return bool(self._letters) or self._failure is not None

    @property
    def has_frames(self) -> bool:
        return bool(self._frames)

    @property
    def has_room(self) -> bool:
        return self._frames_bytes < self._limit

    @property
    def frames_bytes(self) -> int:
        return self._frames_bytes

    @property
    def input_ended(self) -> bool:
        return self._input_ended and not self._frames
