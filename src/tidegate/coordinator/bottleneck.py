"""Which vertex holds a job back, in a sentence, from how its subtasks spend their time. Driver; pure.

A subtask that waits for those after it is back-pressured. So the slow one is the vertex that others wait for and that has work
itself: the first after a back-pressured one that is not back-pressured, or less than it is busy. A few waits of a busy vertex
do not make an idle one after it the bottleneck.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.coordinator.rates import Load

WAITS = 0.1  #: back-pressured for more of its time than this; and who is busy for less holds nobody up
AT_ITS_LIMIT = 0.9
UNEVEN = 2.0  #: the busiest subtask against the mean of the others
NAMED = 2  #: waiting vertices in a sentence


@dataclass(frozen=True, slots=True)
class HotShare:
    """The hottest key of a subtask."""

    key: str
    share: float  #: of the operator's records


@dataclass(frozen=True, slots=True)
class VertexLoad:
    """One vertex, with the loads of those subtasks that have been heard twice."""

    id: str
    name: str
    inputs: tuple[str, ...]  #: ids of the vertices that it reads from
    subtasks: dict[int, Load]
    hottest: dict[int, HotShare]

    @property
    def busiest(self) -> int:
        return max(self.subtasks, key=lambda index: self.subtasks[index].busy)

    @property
    def busy(self) -> float:
        """Of its busiest subtask."""
        return self.subtasks[self.busiest].busy

    @property
    def backpressured(self) -> float:
        """Of the subtask that waits most."""
        return max(load.backpressured for load in self.subtasks.values())

    @property
    def waits(self) -> bool:
        return self.backpressured > max(WAITS, self.busy)

    def others_busy(self) -> float | None:
        """The mean of all subtasks but the busiest; None where there is only one."""
        others = [load.busy for index, load in self.subtasks.items() if index != self.busiest]
        return sum(others) / len(others) if others else None


@dataclass(frozen=True, slots=True)
class Verdict:
    sentence: str
    advice: str = ""
    vertex: str | None = None  #: its id, where one vertex stands out
    subtask: int | None = None  #: where one of its subtasks does
    is_bottleneck: bool = False  #: others wait for it


def bottleneck(vertices: Sequence[VertexLoad]) -> Verdict:
    """In the order of the flow."""
    known = [vertex for vertex in vertices if vertex.subtasks]
    if not known:
        return Verdict("Where the time goes is known after two heartbeats.")
    waiting = [vertex for vertex in known if vertex.waits]
    if not waiting:
        return _unhindered(known)
    ids = {vertex.id for vertex in waiting}
    after = [vertex for vertex in known if not vertex.waits and vertex.busy > WAITS and ids.intersection(vertex.inputs)]
    slow = max(after or waiting, key=lambda vertex: vertex.busy)
    waiters = [vertex for vertex in waiting if vertex is not slow]
    if not waiters:  # it waits for something that is not a vertex, such as a sink's service in another process
        return Verdict(
            f"{slow.name} waits {_percent(slow.backpressured)} of its time, and nothing after it is busy.", "", slow.id
        )
    who = f"{slow.name} is the bottleneck: {_percent(slow.busy)} busy"
    waits = _and([f"{vertex.name} ({_percent(vertex.backpressured)})" for vertex in waiters[:NAMED]])
    more = f" and {len(waiters) - NAMED} more" if len(waiters) > NAMED else ""
    verb = "waits" if len(waiters) == 1 else "wait"
    sentence = f"{who}, while {waits}{more} {verb} for it."
    uneven, advice = _uneven(slow)
    if uneven:
        return Verdict(f"{sentence} {uneven}", advice, slow.id, slow.busiest, True)
    return Verdict(sentence, "A quicker function there, or a higher parallelism, helps.", slow.id, None, True)


def _unhindered(known: Sequence[VertexLoad]) -> Verdict:
    top = max(known, key=lambda vertex: vertex.busy)
    if top.busy < AT_ITS_LIMIT:
        return Verdict(f"Nothing holds the job back. The busiest is {top.name}, {_percent(top.busy)} busy.", "", top.id)
    if not top.inputs:
        return Verdict(
            f"{top.name} sets the pace: {_percent(top.busy)} busy, and all after it keeps up.",
            "A higher parallelism reads more at a time, where the source has so many splits.",
            top.id,
        )
    uneven, advice = _uneven(top)
    return Verdict(
        f"{top.name} is at its limit: {_percent(top.busy)} busy, but nothing waits for it yet.{' ' if uneven else ''}{uneven}",
        advice,
        top.id,
        top.busiest if uneven else None,
    )


def _uneven(vertex: VertexLoad) -> tuple[str, str]:
    """A sentence and advice where one subtask has more to do than the others; else nothing."""
    others = vertex.others_busy()
    if others is None or vertex.busy <= UNEVEN * others:
        return "", ""
    sentence = f"It is its subtask {vertex.busiest}: the others are {_percent(others)} busy on average."
    hot = vertex.hottest.get(vertex.busiest)
    if hot is not None:
        sentence += f" The key {hot.key} has about {_percent(hot.share)} of the records."
    return sentence, "More subtasks do not help: one subtask processes all records of a key. Spread the keys."


def _percent(part: float) -> str:
    return f"{round(part * 100)}%"


def _and(names: list[str]) -> str:
    return " and ".join(names)
