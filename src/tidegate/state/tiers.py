"""The runs of one form of keys (state/cold_keys.py), and how they are merged. Executor.

Runs are merged as soon as there are many of about one size (as RocksDB's universal compaction does it): a row is rewritten
O(log n) times, and a large run only when the newer ones are together as large. Few rows are merged where they are written, more
in threads. While a long merge goes on, the runs that have come since are merged with each other, so reads look through few.
Only where the disk does not keep up, and there are MAX_WAITING runs, a write waits.

Invariant. A run is in one merge at a time, and what a merge takes are neighbours in age. So several can go on at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from tidegate.state.runs import Part, Run, merged

if TYPE_CHECKING:
    from tidegate.state.cold import Cold

MAX_RUNS = 6  #: of one tier, before some are merged
MAX_WAITING = 64  #: runs of one tier; then a write waits for merges, so reads never have to look through more
MAX_THREADS = 3
AT_ONCE_ROWS = 16_384  #: so few are written and merged where they are: a thread would take longer to start


class Tier:
    """The runs of one form of keys, newest first."""

    def __init__(self, cold: Cold) -> None:
        self.runs: tuple[Run, ...] = ()  #: replaced as a whole, under the lock of `Cold`
        self._cold = cold
        self._merging: list[tuple[Run, ...]] = []  #: what is being merged
        self._threads: list[threading.Thread] = []  #: newest last
        self._stopped = False
        self.merged_rows = 0

    def merge_some(self) -> None:
        """What is due. To be called after there is a new run."""
        while due := self._claimed():
            if _rows(due) <= AT_ONCE_ROWS:
                self._merge(due)
            else:
                thread = threading.Thread(target=self._merge_in_thread, args=(due,), name="tidegate-merge", daemon=True)
                with self._cold.lock:
                    self._threads = [*self._alive(), thread]
                    thread.start()

    def wait_for_room(self) -> None:
        while len(self.runs) > MAX_WAITING and (alive := self._alive()):
            alive[-1].join()  # the newest is the quickest

    def append(self, runs: Iterable[Run]) -> None:
        """Of other keys than those that are here."""
        with self._cold.lock:
            self.runs = (*self.runs, *runs)

    def _claimed(self) -> tuple[Run, ...]:
        """What is due, which nobody else merges then; none where all threads have something to do."""
        with self._cold.lock:
            due = () if self._stopped or self._cold.failed is not None else self._due()
            if _rows(due) > AT_ONCE_ROWS and len(self._alive()) >= MAX_THREADS:
                return ()
            if due:
                self._merging.append(due)
            return due

    def _due(self) -> tuple[Run, ...]:
        """Neighbours that are to become one: as many as are no larger than all newer ones of them together.

        Of those that are newer than all that is being merged.
        """
        taken = {run for due in self._merging for run in due}
        runs = tuple(takewhile(lambda run: run not in taken, self.runs))
        if len(runs) <= MAX_RUNS:
            return ()
        if sum(run.rows for run in runs[:-1]) >= runs[-1].rows:
            return runs
        for start in range(len(runs) - 1):
            total, stop = runs[start].rows, start + 1
            while stop < len(runs) and runs[stop].rows <= 1.1 * total:
                total += runs[stop].rows
                stop += 1
            if stop - start >= 2:
                return runs[start:stop]
        return runs[: len(runs) - MAX_RUNS + 1]

    def _merge_in_thread(self, due: tuple[Run, ...]) -> None:
        try:
            self._merge(due)
            self.merge_some()
        except Exception as error:  # raised by the next read or write (state/cold.py, invariant 3)
            self._cold.failed = error

    def _merge(self, due: tuple[Run, ...]) -> None:
        is_oldest = due[-1] is self.runs[-1]
        parts = []
        try:
            with self._cold.local_disk():
                for run in due:
                    for part in run.parts:
                        part.check()
                for columns in merged(due, forget_absent=is_oldest, part_bytes=self._cold.part_bytes):
                    if self._stopped:
                        return
                    parts.append(Part.write(self._cold.folder, columns))
            with self._cold.lock:
                self.merged_rows += _rows(due)
                at = self.runs.index(due[0])
                self.runs = (*self.runs[:at], *([Run(parts)] if parts else []), *self.runs[at + len(due) :])
        finally:
            with self._cold.lock:
                self._merging.remove(due)

    def _alive(self) -> list[threading.Thread]:
        return [thread for thread in self._threads if thread.is_alive()]

    def wait(self) -> None:
        """Until nothing is being merged in a thread."""
        while alive := self._alive():
            alive[-1].join()

    def close(self) -> None:
        self._stopped = True
        self.wait()
        self.runs = ()


def _rows(runs: Sequence[Run]) -> int:
    return sum(run.rows for run in runs)
