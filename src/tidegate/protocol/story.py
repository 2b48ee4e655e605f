"""The story of a machine: what it was told lately, and what it answered. Pure; part of every machine here.

A bug of ours is found where it shows, and seldom where it was made. So an illegal move carries the events that led there.

Invariant. A story is bounded, and keeps text only: what an event carries (a snapshot, say) is let go with the event.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from tidegate.errors import ProtocolViolation

STORY_EVENTS = 32
MAX_LINE = 300  #: characters

S = TypeVar("S", bound=enum.Enum)


class Story:
    """Of one machine, oldest first."""

    __slots__ = ("_lines",)

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=STORY_EVENTS)

    def begin(self, event: object, now: float) -> None:
        """Before the machine decides: an illegal move is then the last line."""
        self._lines.append(f"{now:.3f} {event!r}"[:MAX_LINE])

    def end(self, actions: Sequence[object]) -> None:
        if actions:
            self._lines[-1] = f"{self._lines[-1]} -> {', '.join(map(repr, actions))}"[:MAX_LINE]

    def lines(self) -> tuple[str, ...]:
        return tuple(self._lines)

    def violation(self, message: str) -> ProtocolViolation:
        """Fields: story."""
        told = "".join(f"\n    {line}" for line in self._lines)
        return ProtocolViolation(f"{message}. What happened before, oldest first:{told}", story=self.lines())

    def check_move(self, what: str, moves: Mapping[S, Collection[S]], from_: S, to: S) -> None:
        """:raises ProtocolViolation: when the table does not have the move."""
        if to not in moves[from_]:
            raise self.violation(f"{what} cannot go from {from_.name} to {to.name}")
