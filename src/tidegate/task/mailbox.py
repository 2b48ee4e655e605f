"""What reaches a slot from other threads: frames from Spark, messages from the coordinator, results of its own helpers.

The one shared structure of a slot. The inbox is bounded (task/inbox.py), which is what makes back-pressure: the reader
thread waits in `put_frame`, Spark's reader stops taking, the sender's writer runs out of credit. Letters are small and
few.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from tidegate.task.capture import Capture
from tidegate.task.inbox import Captured, Inbox, Overflowed
from tidegate.wire.control import InboxOverBound, InboxWithinBound, ToSlot, Trigger
from tidegate.wire.frame import FLAG_TIMEOUTABLE, FLAG_UNALIGNED, Frame, Kind


@dataclass(frozen=True, slots=True)
class BarrierArrived:
    """The reader has seen a barrier that may not wait for its turn."""

    checkpoint: int
    unaligned: bool


#: A message, news of the inbox, or a call to make in the task's thread.
Letter = Union[ToSlot, BarrierArrived, Captured, Overflowed, Callable[[], None]]


class Mailbox:
    """Thread-safe. `tell_driver` is called at once, from whatever thread: the task's may be busy with a record."""

    def __init__(self, inbox: Inbox, tell_driver: Callable[[InboxOverBound | InboxWithinBound], None]) -> None:
        self._inbox = inbox
        self._tell_driver = tell_driver
        self._told_over = False
        self._changed = threading.Condition()
        self._letters: deque[Letter] = deque()
        self._input_ended = False
        self._failure: BaseException | None = None
        self._closed = False
        self.tells_barriers = False  #: of all checkpoints: the slot may be full for longer than one may take

    # -- other threads ------------------------------------------------------------------------------------------

    def post(self, letter: Letter) -> None:
        with self._changed:
            if isinstance(letter, Trigger) and letter.unaligned_after_s == 0:
                self._inbox.open_for(letter.checkpoint)  # at once: the task's thread may be busy with a record
            self._letters.append(letter)
            self._changed.notify_all()

    def put_frame(self, frame: Frame, wait: bool = True) -> bool:
        """Wait while there is no room. False when the slot is closed (or, without waiting, when it is full)."""
        with self._changed:
            while not self._inbox.has_room and not self._closed:
                if not wait:
                    return False
                self._changed.wait()
            if self._closed:
                return False
            if frame.kind is Kind.CHECKPOINT_BARRIER and (
                self.tells_barriers or frame.flags & (FLAG_UNALIGNED | FLAG_TIMEOUTABLE)
            ):
                is_unaligned = bool(frame.flags & FLAG_UNALIGNED)
                if is_unaligned:
                    self._inbox.open_for(frame.value)  # whoever made it so: the other barriers wait for nobody either
                self._letters.append(BarrierArrived(frame.value, is_unaligned))
            self._letters += self._inbox.add(frame)
            self._tell_bound()
            self._changed.notify_all()
            return True

    def _tell_bound(self) -> None:
        """Under the lock, so that the last word is the true one."""
        if self._inbox.is_over != self._told_over:
            self._told_over = self._inbox.is_over
            self._tell_driver(InboxOverBound() if self._told_over else InboxWithinBound())

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
            self._inbox.clear()
            self._changed.notify_all()

    # -- the task's thread --------------------------------------------------------------------------------------

    def open_for(self, checkpoint: int) -> None:
        """Let frames in past the bound, so that the barrier waits for the network and never for processing."""
        with self._changed:
            self._inbox.open_for(checkpoint)
            self._changed.notify_all()

    def shut_up_to(self, checkpoint: int) -> None:
        """The checkpoint and older ones need no open inbox any more; a capture of theirs is given up."""
        with self._changed:
            self._inbox.shut_up_to(checkpoint)

    def capture(self, capture: Capture) -> None:
        """Add what waits here, and what will still come before the barriers; then `Captured` is posted."""
        with self._changed:
            self._letters += self._inbox.capture(capture)

    def wait(self, timeout_s: float | None, letters_only: bool = False) -> None:
        """Until there is something, or the time is over. `letters_only`: frames would not be taken anyway."""
        with self._changed:
            input_waits = not letters_only and (len(self._inbox) or self._input_ended)
            if not (self._letters or input_waits or self._failure):
                self._changed.wait(timeout_s)

    def take_letter(self) -> Letter | None:
        if self._failure is not None:
            raise self._failure
        if not self._letters:  # unlocked peek: a letter that comes a moment later is found at the next turn
            return None
        with self._changed:
            return self._letters.popleft()

    def take_frame(self) -> Frame | None:
        if not len(self._inbox):
            return None
        with self._changed:
            frame = self._inbox.take()
            self._tell_bound()
            self._changed.notify_all()
            return frame

    @property
    def has_letters(self) -> bool:
        return bool(self._letters) or self._failure is not None

    @property
    def has_frames(self) -> bool:
        return len(self._inbox) > 0

    @property
    def has_room(self) -> bool:
        return self._inbox.has_room

    @property
    def frames_bytes(self) -> int:
        return self._inbox.size_bytes

    @property
    def input_ended(self) -> bool:
        return self._input_ended and not len(self._inbox)
