"""Python's cyclic garbage collection in a worker: it must not stop the stream for a large state. Executor, the task's thread.

A collection looks at every container object of its generations: 1.5 s for a million values that are objects, at moments that
nobody chose. But state is not garbage: what is overwritten or cleared is freed by its reference count, at once. Two of Python's
habits make it worse. Its youngest generation is looked at when there are 700 objects *more* than the last time: while
values are replaced there never are, so a million new values gather there, until a snapshot keeps the old ones alive. And its
oldest is looked at when it has grown by a quarter, which with a large state is hundreds of thousands of objects.

    often   between two slices of records everything new is looked at, a few milliseconds after it was made: it is little,
            and still in the processor's cache
    frozen  when that took longer than `LONG_S`, what has survived is not looked at again (`gc.freeze`)

So each object of a large state is looked at once or twice, some thousand at a time, and never again; what is small enough to
be looked at often, is. Nothing is switched off: garbage is collected, and Python's own collections come as they did. One of
those that is long, because a single record makes very much, is followed by a freeze too.

The price: where each record replaces objects in a large state, which is the worst case, a tenth of the task's time. And a
cycle of objects that was alive when it was frozen and dies later is not freed before the attempt ends. State is never such a
cycle. What lives for one record is dead between two slices. A cache of cyclic objects in a user's function would have to hold
thousands, and be dropped again and again, to matter.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

LONG_S = 0.0005  #: of the processor's time
EVERY_S = 0.005  #: of the processor's time, at the least, between two looks: what others take of it makes no garbage
SHARE = 20  #: as much more time lies between two looks as the last one took, if it left something to be looked at again
NOTHING_NEW_S = 0.0001
QUIET_S = 0.03  #: until the next look, where there was nothing new


class BoundedCollections:
    """From `start` to `stop`, in this process: one attempt of a worker."""

    def __init__(self, long_s: float = LONG_S, clock: Callable[[], float] = time.thread_time) -> None:
        self._long_s = long_s
        self._clock = clock
        self._began = 0.0
        self._due = 0.0
        self.frozen_times = 0

    def start(self) -> None:
        """What is loaded by now (modules, the plan) stays for good; no collection needs to look at it."""
        gc.freeze()
        gc.callbacks.append(self._noticed)

    def stop(self) -> None:
        """The worker may be used again: what this attempt has kept alive is no longer exempt."""
        if self._noticed in gc.callbacks:
            gc.callbacks.remove(self._noticed)
            gc.unfreeze()

    def between_records(self) -> None:
        """To be called after each slice of records; most calls do nothing."""
        began = self._clock()
        if began < self._due:
            return
        before = self.frozen_times
        gc.collect()
        done = self._clock()
        if done - began < NOTHING_NEW_S:
            self._due = done + QUIET_S
        elif self.frozen_times > before:
            self._due = done + EVERY_S
        else:
            self._due = done + max(EVERY_S, SHARE * (done - began))

    def _noticed(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector, whoever has set it off."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = self._clock()
        elif self._clock() - self._began > self._long_s:
            gc.freeze()
            self.frozen_times += 1
