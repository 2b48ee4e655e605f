"""Faults in event time."""

from __future__ import annotations

from planted.kinds import Change, Mutant

AT_THE_END = ("tests/unit/test_timer_queue.py", "tests/protocol/test_timers_at_the_end.py")

MUTANTS = (
    Mutant(
        "periodic-timer-for-ever",
        "a timer that sets the next one never lets bounded input end",
        (
            Change(
                "state/timers.py",
                "        if self._link > LONGEST_CHAIN:\n",
                "        if self._link > LONGEST_CHAIN * 10:\n",
            ),
        ),
        AT_THE_END,
    ),
    Mutant(
        "left-timers-are-gone",
        "what stays set at the end of time is forgotten by the queue",
        (
            Change(
                "state/timers.py",
                "                heapq.heappush(self._queue, entry)\n\n    def __len__",
                "                pass\n\n    def __len__",
            ),
        ),
        AT_THE_END,
    ),
    Mutant(
        "time-ends-twice",
        "a job that is restored from after the end of its input fires the timers that were left",
        (
            Change(
                "task/operators/process.py",
                "            elif not ends_again:\n",
                "            else:\n",
            ),
        ),
        AT_THE_END,
    ),
)
