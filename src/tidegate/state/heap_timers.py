"""Timers on the heap: a table of those that are set, and a priority queue that says whose turn it is. Executor; the task's
thread, but for the table's snapshots (state/heap_tables.py).

The entry of a deleted timer cannot be taken out of the middle of a priority queue. It is noted as dead, and passed over when
its turn comes. That may be far off: a timer of inactivity is deleted and set anew with each record. So when half of the
entries are dead, the others move to a new queue, a few with each timer that is deleted, and no call takes long. The old queue
is emptied from its end, which leaves it a queue.

Invariant 1. The entries that are not dead are the timers in the table, each once. A timer that is deleted and set again for
             the same moment has its old entry back, and its old place.
Invariant 2. There are at most three entries for each timer that is set, and `FEW_ENTRIES`.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

from tidegate.state.heap_tables import ValueTable, chunk_of
from tidegate.state.namespaces import in_namespace, parts_of_table_key
from tidegate.state.timers import Timer, TimerTable, filed_namespace, timer_filed_under

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.sections import SectionReader

FEW_ENTRIES = 64  #: so many are not worth a look at whether they are dead
_MOVED_AT_ONCE = 4  #: a queue of which half is dead is empty before half as many more have died

Entry = tuple[int, int, Any]  #: moment, order, key in the table


class HeapTimers(ValueTable, TimerTable):
    """Chunks of key and moment -> moment, and their order."""

    __slots__ = ("_dead", "_leaving", "_order", "_queue")

    def __init__(self) -> None:
        super().__init__()
        self._queue: list[Entry] = []
        self._leaving: list[Entry] = []  #: the older queue, while it is emptied
        self._dead: set[Any] = set()  #: keys of entries whose timer was deleted
        self._order = 0  #: keys cannot be compared, so the entries of one moment are in the order of their making

    def set_timer(self, timer: Timer) -> None:
        filed = in_namespace(timer.key, filed_namespace(timer))
        chunk = chunk_of(filed)
        if filed in self.chunks[chunk]:
            return
        if not self.owned[chunk]:
            self.own(chunk)
        self.chunks[chunk][filed] = timer.timestamp
        if filed in self._dead:
            self._dead.remove(filed)
            return
        self._order += 1
        heapq.heappush(self._queue, (timer.timestamp, self._order, filed))

    def delete_timer(self, timer: Timer) -> None:
        filed = in_namespace(timer.key, filed_namespace(timer))
        chunk = chunk_of(filed)
        if filed not in self.chunks[chunk]:
            return
        self.discard(chunk, filed)
        first = self._first_queue()
        if first and first[0][2] == filed:  # as it is with each that fires
            heapq.heappop(first)
        else:
            self._dead.add(filed)
        self._move_some()

    def has_timer(self, timer: Timer) -> bool:
        filed = in_namespace(timer.key, filed_namespace(timer))
        return filed in self.chunks[chunk_of(filed)]

    def first_timer(self) -> Timer | None:
        while queue := self._first_queue():
            filed = queue[0][2]
            if filed not in self._dead:
                return timer_filed_under(*parts_of_table_key(filed))
            self._dead.remove(filed)
            heapq.heappop(queue)
        return None

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        assert not self._snapshots, "stored rows come before the first snapshot"
        for filed, timestamp in zip(reader.keys(rows), reader.values(rows), strict=True):
            chunk = self.chunks[chunk_of(filed)]
            if filed not in chunk:
                chunk[filed] = timestamp
                self._order += 1
                heapq.heappush(self._queue, (timestamp, self._order, filed))

    @property
    def queued(self) -> int:
        """The entries, dead ones too."""
        return len(self._queue) + len(self._leaving)

    def _first_queue(self) -> list[Entry]:
        """The one with the next entry of all; empty when there is none."""
        if not self._leaving or (self._queue and self._queue[0] < self._leaving[0]):
            return self._queue
        return self._leaving

    def _move_some(self) -> None:
        if not self._leaving and len(self._dead) > max(FEW_ENTRIES, len(self._queue)) // 2:
            self._leaving, self._queue = self._queue, []
        for _ in range(min(_MOVED_AT_ONCE, len(self._leaving))):
            entry = self._leaving.pop()
            if entry[2] in self._dead:
                self._dead.remove(entry[2])
            else:
                heapq.heappush(self._queue, entry)
