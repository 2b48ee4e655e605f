"""Timers of one keyed operator: per key, deduplicated, kept in the state backend, fired in order. Executor; task's thread.

The truth is a list state of each key, so timers are part of every snapshot and follow their key to another subtask, on any
backend. A priority queue in memory only says whose turn it is; it is rebuilt after a restore, and an entry whose timer
is no longer in the state (deleted, or fired) is passed over.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Any

from tidegate.state.backend import KeyedStateBackend
from tidegate.state.declarations import ListState
from tidegate.state.handles import ListHandle

EVENT_TIMERS = "_event_time_timers"
PROCESSING_TIMERS = "_processing_time_timers"


class TimerQueue:
    """Timers of one kind. Register and delete work on the backend's current key."""

    def __init__(self, backend: KeyedStateBackend, name: str) -> None:
        declaration: ListState[int] = ListState(int)
        declaration.name = name
        self._backend = backend
        self._name = name
        self._handle: ListHandle[int] = backend.bind(declaration)  # type: ignore[assignment]
        self._queue: list[tuple[int, int, Hashable]] = []
        self._order = 0  #: timers of one moment fire in the order of their registration

    def rebuild(self) -> None:
        """After a restore."""
        self._queue = [
            (timestamp, order, key)
            for order, (key, timestamps) in enumerate(self._backend.entries(self._name))
            for timestamp in timestamps
        ]
        self._order = len(self._queue)
        heapq.heapify(self._queue)

    def register(self, key: Hashable, timestamp: int) -> None:
        if timestamp not in self._handle.get():
            self._handle.add(timestamp)
            self._order += 1
            heapq.heappush(self._queue, (timestamp, self._order, key))

    def delete(self, timestamp: int) -> None:
        self._remove(timestamp)

    def next_timestamp(self) -> int | None:
        """When the next one may be due; it may turn out to be deleted."""
        return self._queue[0][0] if self._queue else None

    def due(self, up_to: int) -> Iterator[tuple[int, Any]]:
        """(timestamp, normalised key) of each timer up to then, in order; the backend's current key is set to it.

        Timers that are registered while others fire are fired too, if they are due.
        """
        while self._queue and self._queue[0][0] <= up_to:
            timestamp, _, key = heapq.heappop(self._queue)
            self._backend.set_current_key(key)
            if self._remove(timestamp):
                yield timestamp, key

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
