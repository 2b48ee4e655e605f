"""Executors that are told to go (a spot machine, a drained node, a SIGTERM), and a job that moves away before they do. Pure;
driven by coordinator/leaving.py, one for each attempt.

    STAYING --an executor with slots of ours leaves--> LEAVING --room elsewhere--> WARMING --warm--> MOVING --> the attempt ends
                                                         ^-----no room after all------+---refused----+

To move is a rescale to the same plan: sources stop, a checkpoint is taken, the attempt ends, and the next one continues from
just there. Nothing is replayed, and no failure is counted. Where there is no room yet (the replacement has to come first) the
job asks for as many others as leave, continues where it is, and takes a checkpoint each `CHECKPOINT_S`, so that little is
replayed if it is too late for a move. Not for ever: whoever gives notice takes the machine within `NOTICE_S`, or not at all. So
it is for `AGAIN_S` after a move that was refused, too: each try has a warm-up, and may stop the sources.

The replacement has never run a slot: its Python takes seconds to import everything. So it is warmed up first, while the job
still runs where it was, for `WARM_UP_S` at the most.

Invariant. At most one move is asked for at a time.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from tidegate.protocol.story import Story

CHECKPOINT_S = 1.0
WARM_UP_S = 10.0
AGAIN_S = 5.0
NOTICE_S = 120.0  #: of spot machines; a pod has 30 s


class DepartureState(enum.Enum):
    STAYING = "nobody leaves"
    LEAVING = "an executor is about to go, and there is no room for its slots"
    WARMING = "the others get ready to take its slots"
    MOVING = "the attempt is to end with a checkpoint"


S = DepartureState
MOVES: Mapping[DepartureState, frozenset[DepartureState]] = {
    S.STAYING: frozenset({S.LEAVING}),
    S.LEAVING: frozenset({S.STAYING, S.WARMING}),
    S.WARMING: frozenset({S.LEAVING, S.MOVING}),
    S.MOVING: frozenset({S.LEAVING}),
}


@dataclass(frozen=True, slots=True)
class Announce:
    """These executors are leaving; nobody has said so before."""

    executors: frozenset[str]


@dataclass(frozen=True, slots=True)
class AskForOthers:
    """There is no room without these: have the cluster start as many more, before they go."""

    executors: frozenset[str]


@dataclass(frozen=True, slots=True)
class TakeCheckpoint:
    """Now, without stopping anything."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Have all executors ready to start slots. Answer with `on_warm`."""


@dataclass(frozen=True, slots=True)
class MoveJob:
    """Answer with `refused` if it cannot be."""

    executors: frozenset[str]


DepartureAction = Union[Announce, AskForOthers, TakeCheckpoint, WarmUp, MoveJob]


@dataclass(slots=True)
class Departure:
    """See the module."""

    state: DepartureState = S.STAYING
    leaving: frozenset[str] = frozenset()  #: executors with slots of the attempt
    story: Story = field(default_factory=Story)
    _announced: set[str] = field(default_factory=set)
    _replaced: frozenset[str] = frozenset()  #: others were asked for in their place
    _since: float = 0.0  #: the newest of them was announced
    _next_checkpoint: float = 0.0
    _warm_by: float = 0.0  #: it moves then, warm or not
    _not_before: float = float("-inf")  #: a move that was refused is not asked for again

    def on_look(self, leaving: frozenset[str], has_room: bool, now: float) -> list[DepartureAction]:
        """`leaving`: those on which slots of the attempt run. `has_room`: for the whole job, without them."""
        self.story.begin((sorted(leaving), has_room), now)
        actions = self._on_look(leaving, has_room, now)
        self.story.end(actions)
        return actions

    def on_warm(self, now: float) -> list[DepartureAction]:
        self.story.begin("warm", now)
        if self.state is not S.WARMING:
            return []  # there is no room any more, or it took too long
        actions = self._move()
        self.story.end(actions)
        return actions

    def on_refused(self, now: float) -> None:
        self.story.begin("refused", now)
        self._go(S.LEAVING)
        self._not_before = now + AGAIN_S

    def _on_look(self, leaving: frozenset[str], has_room: bool, now: float) -> list[DepartureAction]:
        self.leaving = leaving
        if self.state is S.MOVING:
            return []
        if self.state is S.WARMING and not (leaving and has_room):
            self._go(S.LEAVING)
        if not leaving:  # they are gone, and the attempt is about to hear it; or they stay after all
            if self.state is S.LEAVING:
                self._go(S.STAYING)
            return []
        actions: list[DepartureAction] = []
        news = leaving - self._announced
        if news:
            self._announced |= news
            self._since = self._next_checkpoint = now
            actions.append(Announce(news))
        if not has_room and not leaving <= self._replaced:
            self._replaced = leaving
            actions.append(AskForOthers(leaving))
        if self.state is S.STAYING:
            self._go(S.LEAVING)
        if self.state is S.WARMING:
            return [*actions, *self._move()] if now >= self._warm_by else actions
        if has_room and now >= self._not_before:
            self._go(S.WARMING)
            self._warm_by = now + WARM_UP_S
            return [*actions, WarmUp()]
        if self._next_checkpoint <= now <= self._since + NOTICE_S:
            self._next_checkpoint = now + CHECKPOINT_S
            actions.append(TakeCheckpoint())
        return actions

    def _move(self) -> list[DepartureAction]:
        self._go(S.MOVING)
        return [MoveJob(self.leaving)]

    def _go(self, to: DepartureState) -> None:
        self.story.check_move("the departure", MOVES, self.state, to)
        self.state = to
