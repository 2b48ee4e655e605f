"""The runs of one form of keys (state/cold_keys.py), and how they are merged. Executor.

Runs are merged as soon as there are many of about one size (as RocksDB's universal compaction does it): a row is rewritten
O(log n) times, and a large run only when the newer ones are together as large. Few rows are merged where they are written, more
in a thread. When more than MAX_WAITING runs are to be merged, a write waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tidegate.state.runs import Part, Run, merged

if TYPE_CHECKING:
    from tidegate.state.cold import Cold

MAX_RUNS = 6  #: of one tier, before some are merged
MAX_WAITING = 64  #: runs of one tier; then a write waits for the merge, so reads never have to look through more
AT_ONCE_ROWS = 16_384  #: so few are written and merged where they are: a thread would take longer to start


class Tier:
    """The runs of one form of keys, newest first."""

    def __init__(self, cold: Cold) -> None:
        self.runs: tuple[Run, ...] = ()  #: replaced as a whole, under the lock of `Cold`
        self._cold = cold
        self._thread: threading.Thread | None = None
        self._stopped = False
        self.merged_rows = 0

    def merge_some(self) -> None:
        """There is a new run."""
        if self._thread is not None and self._thread.is_alive() and len(self.runs) > MAX_WAITING:
            self._thread.join()
        if self._thread is not None and self._thread.is_alive():
            return  # it looks again when it is done; two merges at a time could take the same run
        due = self._due()
        if sum(run.rows for run in due) <= AT_ONCE_ROWS:
            self._merge(due)
        else:
            self._thread = threading.Thread(target=self._merge_all, name="tidegate-merge", daemon=True)
            self._thread.start()

    def append(self, runs: Iterable[Run]) -> None:
        """Of other keys than those that are here."""
        with self._cold.lock:
            self.runs = (*self.runs, *runs)

    def _due(self) -> tuple[Run, ...]:
        """Neighbours that are to become one: as many as are no larger than all newer ones of them together."""
        runs = self.runs
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

    def _merge_all(self) -> None:
        while not self._stopped and self._cold.failed is None and (due := self._due()):
            try:
                self._merge(due)
            except Exception as error:  # invariant 3
                self._cold.failed = error

    def _merge(self, due: Sequence[Run]) -> None:
        if not due:
            return
        is_oldest = due[-1] is self.runs[-1]
        parts = []
        with self._cold.local_disk():
            for run in due:
                for part in run.parts:
                    part.check()
            for columns in merged(due, forget_absent=is_oldest, part_bytes=self._cold.part_bytes):
                if self._stopped:
                    return
                parts.append(Part.write(self._cold.folder, columns))
        self.merged_rows += sum(run.rows for run in due)
        with self._cold.lock:
            at = self.runs.index(due[0])
            self.runs = (*self.runs[:at], *([Run(parts)] if parts else []), *self.runs[at + len(due) :])

    def wait(self) -> None:
        """Until nothing is being merged."""
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        self._stopped = True
        self.wait()
        self.runs = ()
