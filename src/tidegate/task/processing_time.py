"""Processing time: what timers and TTLs go by. Seconds since the epoch that never go back while a slot runs. Executor.

The wall clock of a machine may be set, forward and back. Intervals must not stand still for that: processing time is the wall
clock when the slot started, and continues with the monotonic clock. Where the wall clock is ahead of it (set forward, or the
machine has slept, which the monotonic clock does not count) it follows with the slot's next turn; where the wall clock was set
back it does not.

A new attempt begins at the wall clock again. Timestamps of before, in timers and TTLs, are then as far in the future as the
clock was set back.
"""

from __future__ import annotations

from collections.abc import Callable


class ProcessingTime:
    """Read from any thread; the task's follows."""

    __slots__ = ("_clock", "_offset", "_wall_clock")

    def __init__(self, wall_clock: Callable[[], float], clock: Callable[[], float]) -> None:
        """:param clock: monotonic seconds."""
        self._wall_clock = wall_clock
        self._clock = clock
        self._offset = wall_clock() - clock()

    def __call__(self) -> float:
        """On the per-record path of state with a TTL: one look at one clock."""
        return self._clock() + self._offset

    def follow(self) -> None:
        """To be called often: where the wall clock is ahead, go there."""
        wall = self._wall_clock()  # first: a pause between the two looks like time that has passed, and not like a step
        now = self._clock()
        if wall > now + self._offset:
            self._offset = wall - now
