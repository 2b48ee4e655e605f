"""Python's cyclic garbage collection in a worker: it must not stop the stream for a large state. Executor.

A full collection looks at every container object there is: 1.5 s for a million values that are objects, at moments that
nobody chose. But state is not garbage: what is overwritten or cleared is freed by its reference count, at once.

So a full collection that took longer than `LONG_S` is followed by `gc.freeze`: what has survived it is not looked at again.
The next one looks at what was made since then, and is short. While a state grows, the collector looks at each of its
objects a few times and is never long at work; nothing is switched off, and garbage of the user's code is collected.

The price: a cycle of objects that was alive at that moment and dies later is not freed before the attempt ends. State
is never such a cycle, and a cache of cyclic objects in a user's function would have to be dropped again and again to
matter.
"""

from __future__ import annotations

import gc
import time
from typing import Any

LONG_S = 0.005


class BoundedCollections:
    """From `start` to `stop`, in this process: one attempt of a worker."""

    def __init__(self, long_s: float = LONG_S) -> None:
        self._long_s = long_s
        self._began = 0.0
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

    def _noticed(self, phase: str, info: dict[str, Any]) -> None:
        """Called by the collector. Only its last generation looks at more than what is new."""
        if info["generation"] < 2:
            return
        if phase == "start":
            self._began = time.perf_counter()
        elif time.perf_counter() - self._began > self._long_s:
            gc.freeze()
            self.frozen_times += 1
