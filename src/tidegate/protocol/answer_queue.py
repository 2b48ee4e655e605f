"""The order in which answers leave an asynchronous operator. Pure; driven by task/operators/async_calls.py.

    ordered     as the records came                    a . b . c | d        answers wait for older ones
    unordered   as the answers come, between fences    {a, b, c} | {d}      a watermark is a fence: nothing passes it

A fence is what stands between records and must keep its place: a watermark, or IDLE. It leaves when everything before it has
left.

Invariant 1. An entry leaves at most once, after it was answered.
Invariant 2. A fence leaves after all entries that came before it, and before all that came after it.
Invariant 3. Of fences with no entry between them the last alone is kept, and IDLE after a watermark: there are at most two
             fences for each entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, Union

from tidegate.protocol.watermarks import IDLE

E = TypeVar("E", bound="Entry")


@dataclass(eq=False)
class Entry:
    """A record that was asked about."""

    is_answered: bool = field(default=False, init=False)
    segment: _Segment[Any] | None = field(default=None, init=False, repr=False)  #: of the queue that it stands in


@dataclass(frozen=True, slots=True)
class Fence:
    watermark: int  #: or IDLE


@dataclass(slots=True)
class _Segment(Generic[E]):
    """Entries between two fences."""

    waiting: dict[E, None] = field(default_factory=dict)  #: as they came
    answered: deque[E] = field(default_factory=deque)  #: as their answers came; only where the order is free
    fences: list[Fence] = field(default_factory=list)  #: after them


class AnswerQueue(Generic[E]):
    """See the module."""

    def __init__(self, ordered: bool) -> None:
        self._ordered = ordered
        self._in_order: deque[E] = deque()  #: ordered: of the first segment; else unused
        self._segments: deque[_Segment[E]] = deque([_Segment()])
        self._size = 0

    def __len__(self) -> int:
        """Entries, answered or not."""
        return self._size

    def add(self, entry: E) -> None:
        last = self._segments[-1]
        if last.fences:
            last = _Segment()
            self._segments.append(last)
        last.waiting[entry] = None
        entry.segment = last
        if len(self._segments) == 1 and self._ordered:
            self._in_order.append(entry)
        self._size += 1

    def answered(self, entry: E) -> None:
        """Its answer has come."""
        assert not entry.is_answered, "an entry is answered once"
        entry.is_answered = True
        if not self._ordered:
            assert entry.segment is not None, "an entry is answered after it was added"
            del entry.segment.waiting[entry]
            entry.segment.answered.append(entry)

    def fence(self, watermark: int) -> None:
        fences = self._segments[-1].fences
        if watermark != IDLE:
            fences.clear()
        elif fences and fences[-1].watermark == IDLE:
            return
        fences.append(Fence(watermark))

    @property
    def can_leave(self) -> bool:
        """Whether `take` would give something."""
        first = self._segments[0]
        if self._ordered:
            return self._in_order[0].is_answered if self._in_order else bool(first.fences)
        return bool(first.answered) or (not first.waiting and bool(first.fences))

    def take(self) -> Iterator[Union[E, Fence]]:
        """What may leave now, in order."""
        while True:
            first = self._segments[0]
            if self._ordered:
                while self._in_order and self._in_order[0].is_answered:
                    entry = self._in_order.popleft()
                    del first.waiting[entry]
                    self._size -= 1
                    yield entry
            else:
                while first.answered:
                    self._size -= 1
                    yield first.answered.popleft()
            if first.waiting or not first.fences:
                return
            fences, first.fences = first.fences, []
            if len(self._segments) > 1:
                self._segments.popleft()
                if self._ordered:
                    self._in_order.extend(self._segments[0].waiting)
            yield from fences

    def entries(self) -> Iterator[E]:
        """All that have not left, answered ones first within a segment where the order is free; nothing is taken."""
        for segment in self._segments:
            yield from segment.answered
            yield from segment.waiting
