"""Frames that have arrived at a slot and wait for its thread. Executor; used under the mailbox's lock only.

    SHUT --open_for(n)--> OPEN --cut of n is whole, n ended--> SHUT
                            +--limits passed--> SHUT; n is given up here

Shut, the inbox has room below its bound, which is what makes back-pressure. An unaligned checkpoint opens it, so that
barriers wait for the network and never for processing: then it grows in memory and on disk, up to the limits of
HeldFrames. Frames still wait past the bound when it is shut again; there is no room until they are processed, and as long
as that takes sources pause (protocol/pausing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

from tidegate.task.capture import Capture
from tidegate.task.held import HeldFrames
from tidegate.wire.frame import Frame


@dataclass(frozen=True, slots=True)
class Captured:
    """Every channel's barrier has come: the cut is whole."""

    checkpoint: int


@dataclass(frozen=True, slots=True)
class Overflowed:
    """No more can be kept, neither in memory nor on disk: the checkpoint must be given up."""

    checkpoint: int
    kept_bytes: int


InboxNews = Union[Captured, Overflowed]


class Inbox:
    """`add` and `capture` answer with what follows; the caller passes it on."""

    def __init__(self, bound_bytes: int, memory_limit_bytes: int, disk_limit_bytes: int) -> None:
        self._bound = bound_bytes
        self._frames = HeldFrames(max(bound_bytes, memory_limit_bytes), disk_limit_bytes)
        self._opened_for: int | None = None
        self._capture: Capture | None = None
        self.is_over = False  #: holds frames that it would not have let in had it not been open
        self._shut_for = 0  #: this checkpoint and older ones need no open inbox any more

    def __len__(self) -> int:
        return len(self._frames)

    def __iter__(self) -> Iterator[Frame]:
        return iter(self._frames)

    @property
    def size_bytes(self) -> int:
        return self._frames.size_bytes

    @property
    def has_room(self) -> bool:
        return self._opened_for is not None or self._frames.size_bytes < self._bound

    def add(self, frame: Frame) -> list[InboxNews]:
        """There must be room."""
        self.is_over = self.is_over or self._frames.size_bytes >= self._bound
        if self._opened_for is None:
            self._frames.keep(frame)
            fits = True
        else:
            fits = self._frames.append(frame)
        news: list[InboxNews] = []
        if self._capture is not None:
            self._capture.offer(frame)
            news += self._look_at_capture()
        if self._opened_for is not None and not fits:
            news.append(self._overflow(self._opened_for))
        return news

    def take(self) -> Frame | None:
        if not len(self._frames):
            return None
        frame = self._frames.pop()
        self.is_over = self.is_over and self._frames.size_bytes >= self._bound
        return frame

    def open_for(self, checkpoint: int) -> None:
        """A newer one replaces an older: of unaligned checkpoints one is under way at a time. A late one opens nothing."""
        if checkpoint > max(self._shut_for, self._opened_for or 0):
            self._opened_for = checkpoint

    def shut_up_to(self, checkpoint: int) -> None:
        """The checkpoint and older ones need no open inbox any more; a capture of theirs is given up."""
        self._shut_for = max(self._shut_for, checkpoint)
        if self._opened_for is not None and self._opened_for <= checkpoint:
            self._opened_for = None
        if self._capture is not None and self._capture.checkpoint <= checkpoint:
            self._capture = None

    def capture(self, capture: Capture) -> list[InboxNews]:
        """Add what waits here, and from now on what still comes before the barriers."""
        for frame in self._frames:
            capture.offer(frame)
        self._capture = capture
        return self._look_at_capture()

    def clear(self) -> None:
        self._frames = HeldFrames(0, 0)

    def _look_at_capture(self) -> list[InboxNews]:
        capture = self._capture
        assert capture is not None
        if capture.is_over:
            return [self._overflow(capture.checkpoint)]
        if not capture.is_complete:
            return []
        self.shut_up_to(capture.checkpoint)
        return [Captured(capture.checkpoint)]

    def _overflow(self, checkpoint: int) -> Overflowed:
        kept = self._frames.size_bytes
        self.shut_up_to(checkpoint)
        return Overflowed(checkpoint, kept)
