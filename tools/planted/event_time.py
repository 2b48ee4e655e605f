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
                "            ending.links[timer] = ending.link + 1\n",
                "            ending.links[timer] = min(ending.link + 1, LONGEST_CHAIN)\n",
            ),
        ),
        AT_THE_END,
    ),
    Mutant(
        "left-timers-are-gone",
        "what is set at the end of a chain of timers is forgotten",
        (
            Change(
                "state/timers.py",
                "            for timer in ending.left:\n                self._table.set_timer(timer)\n",
                "            ending.left.clear()\n",
            ),
        ),
        AT_THE_END,
    ),
    Mutant(
        "deleted-timer-comes-back",
        "a timer that is left at the end of a chain, and deleted while time ends, is set again",
        (
            Change(
                "state/timers.py",
                "            self._ending.left.pop(timer, None)\n",
                "            pass\n",
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
