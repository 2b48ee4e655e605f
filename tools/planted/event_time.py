"""Faults in event time."""

from __future__ import annotations

from planted.kinds import Change, Mutant

AT_THE_END = ("tests/unit/test_timer_queue.py", "tests/protocol/test_timers_at_the_end.py")

MARKS = ("tests/unit/test_event_time_marks.py",)

MUTANTS = (
    Mutant(
        "the-restored-watermark-is-believed",
        "a record is in time by the slowest subtask's watermark, though what its key had up to then is dropped",
        (Change("task/operators/event_time_marks.py", "        if not self.are_ahead:\n", "        if True:\n"),),
        MARKS,
    ),
    Mutant(
        "what-has-fired-never-fires-again",
        "after a restore windows that allow lateness keep what comes late to themselves",
        (
            Change(
                "task/operators/slice_windows.py",
                "        self._put_out_at(self._windows.merging.merged_of(held, parts), start, end)\n",
                "        self._put_out_window(self._windows.merging.merged_of(held, parts), start, end)\n",
            ),
        ),
        MARKS,
    ),
    Mutant(
        "after-a-drain-all-is-late",
        "the last watermark counts as a mark, so what comes after a drain is dropped",
        (Change("task/operators/event_time_marks.py", "MIN_WATERMARK < mark < MAX_WATERMARK", "MIN_WATERMARK < mark"),),
        MARKS,
    ),
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
