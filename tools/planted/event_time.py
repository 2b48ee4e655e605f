"""Faults in event time."""

from __future__ import annotations

from planted.kinds import Change, Mutant

AT_THE_END = ("tests/unit/test_timer_queue.py", "tests/protocol/test_timers_at_the_end.py")
AFTER_FAILURES = ("tests/unit/test_windows_after_failures.py",)

MARKS = ("tests/unit/test_event_time_marks.py",)

MUTANTS = (
    Mutant(
        "the-restored-watermark-is-believed",
        "a record is in time by the slowest subtask's watermark, though what its key had up to then is dropped",
        (Change("task/operators/event_time_marks.py", "        if not self.are_ahead:\n", "        if True:\n"),),
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
    Mutant(
        "late-records-wait-for-nothing",
        "after a restore a window that has fired does not fire again for what comes late",
        (
            Change(
                "task/operators/slice_windows.py",
                "        self._put_out(rows, *_of_each(rows, start, end))\n\n    def _next_end",
                "        self._put_out_window(rows, start, end)\n\n    def _next_end",
            ),
        ),
        AFTER_FAILURES,
    ),
    Mutant(
        "late-records-of-sessions-wait-for-nothing",
        "the same of sessions",
        (
            Change(
                "task/operators/session_windows.py",
                "        self._put_out(whole.filter(pa.array(again)),",
                "        self._put_out_once(whole.filter(pa.array(again)),",
            ),
        ),
        AFTER_FAILURES,
    ),
    Mutant(
        "fired-before-the-restore-forgotten",
        "a late record of a window that had fired further than event time has come now is counted in no result",
        (
            Change(
                "task/operators/slice_windows.py",
                "            while lateness and first is not None and first - 1 <= latest:\n",
                "            while lateness and first is not None and first - 1 <= watermark:\n",
            ),
        ),
        AFTER_FAILURES,
    ),
    Mutant(
        "windows-close-twice",
        "after a restore windows close again for keys whose subtask was ahead",
        (
            Change(
                "task/operators/column_windows.py",
                "        had_fired = self._had_fired(rows, ends)\n",
                "        had_fired = None\n",
            ),
        ),
        AFTER_FAILURES,
    ),
    Mutant(
        "clock-behind",
        "by the clock a record goes into a window that has closed on the machine before",
        (
            Change(
                "task/operators/column_windows.py",
                "max(self._time.now_ms(), self._marks.latest + 1)",
                "self._time.now_ms()",
            ),
        ),
        AFTER_FAILURES,
    ),
    Mutant(
        "end-of-the-clock",
        "a job that was drained and continues has forgotten which windows the clock had closed",
        (
            Change(
                "task/operators/column_windows.py",
                "            self._fire(self._marks.watermark, MAX_WATERMARK)\n            self._flush()\n",
                "            self._advance(MAX_WATERMARK)\n",
            ),
        ),
        AFTER_FAILURES,
    ),
    Mutant(
        "slices-of-other-windows",
        "what was stored for windows of another size is put into windows all the same",
        (Change("task/operators/column_windows.py", "            if stored != own:\n", "            if False:\n"),),
        ("tests/unit/test_column_windows.py",),
    ),
    Mutant(
        "timers-of-global-windows-are-gone",
        "a global window of a job that was drained has lost the timers that the clock fires",
        (
            Change(
                "task/operators/windows.py",
                "                if window == GLOBAL_WINDOW:\n                    kept.append",
                "                if False:\n                    kept.append",
            ),
        ),
        ("tests/unit/test_windows.py",),
    ),
    Mutant(
        "fires-after-the-end",
        "a trigger that fires every so often goes on after the window's end",
        (
            Change(
                "functions/triggers.py",
                "        if time < window.max_timestamp() and",
                "        if",
            ),
        ),
        ("tests/unit/test_windows.py",),
    ),
    Mutant(
        "fires-for-ever-at-the-end",
        "a trigger that fires every so often does it again and again when input has ended",
        (
            Change(
                "functions/triggers.py",
                " and ctx.current_watermark < MAX_WATERMARK:",
                ":",
            ),
        ),
        ("tests/unit/test_windows.py",),
    ),
    Mutant(
        "a-millisecond-short",
        "of 1.001 s floats make 1000 ms",
        (
            Change(
                "durations.py",
                "    return round(seconds(duration, what) * 1000)\n",
                "    return int(seconds(duration, what) * 1000)\n",
            ),
        ),
        ("tests/unit/test_durations.py",),
    ),
)
