"""What the slots of a job have sampled while somebody looked: the last two minutes of it, put together on request. Driver.

    profile.orders_due(slots, now)    who must be told to sample (on): asking again and again costs a message now and then
    profile.note(slot, sampled, now)  a slot's second
    profile.stacks(slots, since)      all that was seen, equal stacks added up

Lines and stacks are kept once, however often they come again. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from tidegate.ids import SlotId
from tidegate.wire.control import CodeLine, Sampled

#: Of each slot. Few: for each the task's thread hands the GIL over and waits to get it back, longest where no core is
#: free. benchmarks/profiling.py compares a job with and without it.
SAMPLES_PER_S = 5.0
ORDER_S = 10.0  #: a slot samples for so long after the last look
WINDOW_S = 120.0  #: what is older is forgotten
MAX_STACKS = 20_000  #: different ones of a job; those that come on top are left out until old ones are gone


@dataclass(frozen=True, slots=True)
class Stack:
    """One way of calls, the outermost first."""

    uid: str  #: of the innermost operator at work; "": the slot itself
    lines: tuple[CodeLine, ...]


@dataclass(slots=True)
class Count:
    samples: int = 0
    on_cpu: int = 0  #: of these, computing and not waiting


@dataclass(slots=True)
class _Second:
    at: float
    counts: list[tuple[Stack, int, int]]


@dataclass(slots=True)
class StackProfile:
    """Of one job. Times are on the caller's clock."""

    _seconds: dict[SlotId, deque[_Second]] = field(default_factory=dict)
    _known: dict[Stack, Stack] = field(default_factory=dict)  #: the one copy of each
    _lines: dict[CodeLine, CodeLine] = field(default_factory=dict)
    _ordered: dict[SlotId, float] = field(default_factory=dict)  #: when each was last told
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        """A new attempt: other processes, which know of no order."""
        with self._lock:
            for kept in (self._seconds, self._known, self._lines, self._ordered):
                kept.clear()

    def orders_due(self, slots: Collection[SlotId], now: float) -> list[SlotId]:
        """Of these slots, those whose order is not new any more. They count as told."""
        with self._lock:
            due = [slot for slot in slots if now - self._ordered.get(slot, float("-inf")) >= ORDER_S / 3]
            self._ordered |= dict.fromkeys(due, now)
            return due

    def note(self, slot: SlotId, sampled: Sampled, now: float) -> None:
        with self._lock:
            lines = [self._lines.setdefault(line, line) for line in sampled.lines]
            counts = []
            for seen in sampled.stacks:
                stack = Stack(seen.uid, tuple(lines[number] for number in seen.lines))
                known = self._known.get(stack)
                if known is None and len(self._known) < MAX_STACKS:
                    known = self._known[stack] = stack
                if known is not None:
                    counts.append((known, seen.samples, seen.on_cpu))
            self._seconds.setdefault(slot, deque()).append(_Second(now, counts))
            self._forget_before(now - WINDOW_S)

    def stacks(self, slots: Collection[SlotId], since: float) -> dict[Stack, Count]:
        """What these slots have sampled since then."""
        found: dict[Stack, Count] = {}
        with self._lock:
            for slot in slots:
                for second in self._seconds.get(slot, ()):
                    if second.at > since:
                        for stack, samples, on_cpu in second.counts:
                            count = found.setdefault(stack, Count())
                            count.samples += samples
                            count.on_cpu += on_cpu
        return found

    def _forget_before(self, time: float) -> None:
        for seconds in self._seconds.values():
            while seconds and seconds[0].at < time:
                seconds.popleft()
        if len(self._known) >= MAX_STACKS:
            kept = {stack for seconds in self._seconds.values() for second in seconds for stack, _, _ in second.counts}
            self._known = {stack: stack for stack in kept}
            self._lines = {line: line for stack in kept for line in stack.lines}
