"""Timers of one keyed operator: per key, deduplicated, kept in the state backend, fired in order. Executor; task's thread.

The truth is a list state of each key, so timers are part of every snapshot and follow their key to another subtask, on any
backend. A priority queue in memory only says whose turn it is; it is rebuilt after a restore.

The entry of a deleted timer cannot be taken out of the middle of a heap. It is noted as dead, and passed over when its turn
comes. That may be far off: a timer of inactivity is deleted and set anew with each record. So when half of the entries are
dead, the others move to a new heap, a few with each timer that is deleted or fires, and no call takes long. The old heap is
emptied from its end, which leaves it a heap.

At the end of time every timer fires, and so does one that a firing sets. But a periodic timer, which sets the next one each
time, would fire for ever: a chain of timers, each set by the firing of the one before, ends after LONGEST_CHAIN. What is set
then stays set and does not fire; a job that was drained, and goes on, has it still.

Invariant 1. The entries that are not dead are the timers in the state, each once. A timer that is deleted and set again for
             the same moment has its old entry back, and its old place.
Invariant 2. There are at most three entries for each timer that is set, and `FEW_ENTRIES`.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any

from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.declarations import ListState
from tidegate.state.handles import ListHandle

EVENT_TIMERS = "_event_time_timers"
PROCESSING_TIMERS = "_processing_time_timers"
LONGEST_CHAIN = 16  #: of timers that set each other at the end of time
FEW_ENTRIES = 64  #: so many are not worth a look at whether they are dead
_MOVED_AT_ONCE = 4  #: a heap of which half is dead is empty before half as many more have died

Entry = tuple[int, int, Hashable]  #: moment, order, key


class _LastTimers:
    """Which timers set which, while time ends."""

    def __init__(self) -> None:
        self._links: dict[
            tuple[int, Hashable], int
        ] = {}  #: of timers that were set meanwhile: the length of their chain
        self._link = 0  #: of the one that fires
        self.left: list[Entry] = []  #: at the end of a chain

    def note(self, timestamp: int, key: Hashable) -> None:
        """The one that fires has set this one."""
        self._links[(timestamp, key)] = self._link + 1

    def fires(self, entry: Entry) -> bool:
        self._link = self._links.pop((entry[0], entry[2]), 0)
        if self._link > LONGEST_CHAIN:
            self.left.append(entry)
            return False
        return True


class TimerQueue:
    """Timers of one kind. Register and delete work on the backend's current key."""

    def __init__(self, backend: KeyedStateBackend, name: str) -> None:
        declaration: ListState[int] = ListState(int)
        declaration.name = name
        self._backend = backend
        self._name = name
        self._handle: ListHandle[int] = backend.bind(declaration)  # type: ignore[assignment]
        self._queue: list[Entry] = []
        self._leaving: list[Entry] = []  #: the older heap, while it is emptied
        self._dead: set[tuple[int, Hashable]] = set()  #: moment and key of entries whose timer was deleted
        self._order = 0  #: timers of one moment fire in the order of their registration
        self._ending: _LastTimers | None = None  #: while time ends

    def rebuild(self) -> None:
        """After a restore."""
        self._queue = [
            (timestamp, order, key)
            for order, (key, timestamps) in enumerate(self._backend.entries(self._name))
            for timestamp in timestamps
        ]
        self._leaving, self._dead = [], set()
        self._order = len(self._queue)
        heapq.heapify(self._queue)

    def register(self, key: Hashable, timestamp: int) -> None:
        if timestamp not in self._handle.get():
            self._handle.add(timestamp)
            if self._ending is not None:
                self._ending.note(timestamp, key)
            if (timestamp, key) in self._dead:
                self._dead.remove((timestamp, key))
                return
            self._order += 1
            heapq.heappush(self._queue, (timestamp, self._order, key))

    def delete(self, key: Hashable, timestamp: int) -> None:
        if self._remove(timestamp):
            self._dead.add((timestamp, key))
            self._move_some()

    def next_timestamp(self) -> int | None:
        """When the next one may be due; it may turn out to be deleted."""
        first = self._first_heap()
        return first[0][0] if first else None

    def due(self, up_to: int) -> Iterator[tuple[int, Any]]:
        """(timestamp, normalised key) of each timer up to then, in order; the backend's current key is set to it.

        Timers that are registered while others fire are fired too, if they are due.
        """
        while (first := self._first_heap()) and first[0][0] <= up_to:
            timestamp, _, key = entry = heapq.heappop(first)
            if self._bury(entry):
                continue
            if self._ending is not None and not self._ending.fires(entry):
                continue
            self._move_some()
            self._backend.set_current_key(key)
            if self._remove(timestamp):
                yield timestamp, key

    def due_at_the_end(self) -> Iterator[tuple[int, Any]]:
        """All timers, in order, when time has come to its end; see the module's text for those that are set meanwhile."""
        self._ending = ending = _LastTimers()
        try:
            yield from self.due(MAX_WATERMARK)
        finally:
            self._ending = None
            for entry in ending.left:
                heapq.heappush(self._queue, entry)

    def __len__(self) -> int:
        """The entries, dead ones too."""
        return len(self._queue) + len(self._leaving)

    def _first_heap(self) -> list[Entry]:
        """The one with the next entry of all; empty when there is none."""
        if not self._leaving or (self._queue and self._queue[0] < self._leaving[0]):
            return self._queue
        return self._leaving

    def _move_some(self) -> None:
        if not self._leaving and len(self._dead) > max(FEW_ENTRIES, len(self._queue)) // 2:
            self._leaving, self._queue = self._queue, []
        for _ in range(min(_MOVED_AT_ONCE, len(self._leaving))):
            entry = self._leaving.pop()
            if not self._bury(entry):
                heapq.heappush(self._queue, entry)

    def _bury(self, entry: Entry) -> bool:
        """Whether it is dead; then it is to leave."""
        timestamp, _, key = entry
        if (timestamp, key) not in self._dead:
            return False
        self._dead.remove((timestamp, key))
        return True

    def _remove(self, timestamp: int) -> bool:
        timestamps = self._handle.get()
        if timestamp not in timestamps:
            return False
        timestamps.remove(timestamp)
        if timestamps:
            self._handle.set(timestamps)
        else:
            self._handle.clear()
        return True
