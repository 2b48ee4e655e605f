"""When a slot sends what waits in its buffers. Executor; the task's thread.

A busy slot sends when a buffer is full, or has waited for the buffer timeout. An idle one has time for small frames: it sends
at fixed moments, IDLE_SENDS_PER_TIMEOUT of them in one timeout, or at once where it has let one pass without sending.

All slots of a machine go by one clock, so those of a layer send together, and those of the next one half an interval later.
What a slot gets from its senders comes at one time, is processed together, and leaves at the moment that follows. With moments
of its own a slot would wake for each of its senders, and what it makes would wait for up to a whole interval. Slots of
different machines have different clocks, and lose only that.
"""

from __future__ import annotations

import math
from collections.abc import Callable

IDLE_SENDS_PER_TIMEOUT = 2.5


class SendTimes:
    __slots__ = ("_clock", "_idle_at", "_interval_s", "_last", "_offset_s", "_timeout_s")

    def __init__(self, timeout_s: float, layer: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._interval_s = timeout_s / IDLE_SENDS_PER_TIMEOUT
        self._offset_s = self._interval_s / 2 * (layer % 2)
        self._last = self._idle_at = -math.inf

    def sent(self) -> None:
        self._last = now = self._clock()
        if self._interval_s > 0.0:
            passed = (now - self._offset_s) // self._interval_s
            next_at = (passed + 1.0) * self._interval_s + self._offset_s
            self._idle_at = next_at if next_at > now else next_at + self._interval_s  # rounded

    def is_due(self, idle: bool) -> bool:
        now = self._clock()
        return now >= self._idle_at if idle else now - self._last >= self._timeout_s

    @property
    def idle_at(self) -> float:
        """From when an idle slot sends."""
        return self._idle_at
