"""Old records of a job's log are deleted, so that it does not grow with the number of checkpoints. Driver; storing thread.

Kept are the newest `kept` records, and for ever those by which drivers took the job over (GENERATION), one for each driver.

Why no number that matters becomes free by this. A record is created at the number after the last one that its driver has seen.

1. A driver of generation g appends after its own records, so the number that it uses next is free as long as it holds the job,
   and afterwards it is that of GENERATION g+1, which stays. However late it wakes up, it learns that it is superseded.
2. A driver that repeats an append in doubt may find the number of its own record free again, long after that record counted. It
   then believes what is true: the record did count. What it does next is 1.
3. A driver that takes the job over may have looked for the newest record long ago. It looks again after it has created its own:
   where a number was deleted, a newer one stood before, and the newest are kept.

The step is in spec/Log.tla, with the mistakes that 1 and 3 rule out.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import takewhile

from tidegate.errors import CheckpointDamaged, StorageError, Superseded
from tidegate.storage.log import JobLog
from tidegate.storage.log_records import LogKind
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore

#: As many as the pages of ended jobs show.
KEPT_RECORDS = 1_000
#: Deleted together: a request for each would be one more with each checkpoint.
AT_ONCE = 64

log = logging.getLogger("tidegate.storage")


class ShortLog:
    """Keeps the log of the driver that holds the job short."""

    def __init__(self, store: ObjectStore, paths: JobPaths, job_log: JobLog, kept: int | None = None) -> None:
        self._store = store
        self._paths = paths
        self._log = job_log
        self._kept = KEPT_RECORDS if kept is None else kept
        self._numbers: deque[int] | None = None  #: that may be deleted once they are old; None: not listed yet
        self._listed_up_to = -1

    def shorten(self) -> int:
        """Delete some of what is old; how many. Call it now and then. What goes wrong is logged, and tried again later."""
        newest = self._log.last
        assert newest is not None
        try:
            if self._numbers is None:
                self._numbers = deque(number for number in self._log.numbers() if number <= newest.sequence)
            else:
                self._numbers.extend(range(self._listed_up_to + 1, newest.sequence + 1))
            self._listed_up_to = newest.sequence
            old = list(takewhile(lambda number: number <= newest.sequence - self._kept, self._numbers))
            if len(old) < min(AT_ONCE, self._kept):
                return 0
            self._log.check_held()
            return self._delete(old[:AT_ONCE])
        except (StorageError, Superseded) as error:
            log.warning("old records of the job's log are not deleted: %s", error)
            return 0

    def _delete(self, numbers: list[int]) -> int:
        assert self._numbers is not None
        gone = [number for number in numbers if not self._stays(number)]
        self._store.delete_many([self._paths.log(number) for number in gone])
        for _ in numbers:
            self._numbers.popleft()
        return len(gone)

    def _stays(self, number: int) -> bool:
        assert self._log.taken_at is not None
        if number > self._log.taken_at:
            return False  # this driver has written it, and knows what it is
        try:
            return self._log.read(number).kind is LogKind.GENERATION
        except CheckpointDamaged:
            return True  # it may be one
