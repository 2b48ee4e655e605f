"""How busy each vertex would be if it kept up, from what its subtasks have counted between two looks. Pure.

The model is that of DS2 (and of Flink's autoscaler): a subtask that has taken in R records while it was busy for a part b of
its time takes R / b when it is busy all the time. So a vertex whose input is to grow by a factor g will be busy g * b of its
time, and p subtasks that are to be busy t of theirs are p * g * b / t. b is that of the busiest subtask, whose keys nobody else
can take.

How much the input grows begins at the sources: what comes in a second over what they give now. While a backlog is read subtasks
may be busy all the time, so it asks for more only where it cannot be read in the time to catch up in. Where nobody can say how
much there is to read, and some vertex is busy all the time, it is guessed: so much that this vertex is tripled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

SATURATED = 0.95  #: busy for more of its time than this
UNEVEN = 2.0  #: the busiest subtask against the mean of the others
GUESS = 3.0  #: times the subtasks of what is busy all the time, where nobody knows how much there is to read
MAX_GROWTH = 100.0  #: a backlog of a year is not a reason to ask for more at once


@dataclass(frozen=True, slots=True)
class Vertex:
    """A chain of operators. All of them have its number of subtasks."""

    id: str
    name: str
    uids: tuple[str, ...]
    parallelism: int
    layer: int
    inputs: tuple[str, ...] = ()  #: ids of the vertices that it reads from; none: a source
    most: int = 1 << 30  #: subtasks that can have anything to do
    most_why: str = ""
    tied_to: str = ""  #: vertices with the same word have the same number of subtasks
    is_fixed: bool = False


@dataclass(frozen=True, slots=True)
class SubtaskCounts:
    """Of one subtask, since the start of its attempt."""

    busy_ms: int
    idle_ms: int
    backpressured_ms: int
    records: int  #: taken in; of a source, given
    sent: int  #: to other vertices


@dataclass(frozen=True, slots=True)
class VertexCounts:
    subtasks: tuple[SubtaskCounts, ...]
    pending: float | None = None  #: records that a source has still to read; None, or no number: nobody knows


@dataclass(frozen=True, slots=True)
class Sample:
    """What was counted up to a moment. `slots`: of the whole cluster; None: not known."""

    at: float
    counts: Mapping[str, VertexCounts]
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class Growth:
    """Of an input, if nothing waited."""

    steady: float = 1.0
    with_backlog: float = 1.0  #: while what waits is read in the time to catch up in
    is_guess: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """Of one vertex, over a while."""

    busy: float  #: of its busiest subtask
    others: float | None  #: how busy the others are on average; None: there are none
    growth: Growth
    rate: float  #: records a second

    @property
    def projected(self) -> float:
        """How busy its busiest subtask would be; above 1 it cannot keep up."""
        return self.busy * self.growth.steady

    @property
    def catching_up(self) -> float:
        """The same, while it reads the backlog."""
        return self.busy * self.growth.with_backlog

    @property
    def is_uneven(self) -> bool:
        return self.others is not None and self.busy > UNEVEN * self.others

    @property
    def capacity(self) -> float:
        """Records a second that the vertex can take, spread as they are."""
        return self.rate / self.busy if self.busy else float("inf")


@dataclass(frozen=True, slots=True)
class _Measured:
    busy: tuple[float, ...]  #: of each subtask that was at work
    rate: float
    sent_rate: float


def needs(vertices: Sequence[Vertex], first: Sample, last: Sample, target: float, catch_up_s: float) -> dict[str, Need]:
    """By vertex, in the order of the flow, which is that of `vertices`. Vertices whose input has ended have no need."""
    span_s = last.at - first.at
    measured = {vertex.id: _measured(vertex, first, last, span_s) for vertex in vertices}
    busiest = max((max(each.busy) for each in measured.values() if each is not None), default=0.0)
    growth: dict[str, Growth] = {}
    found: dict[str, Need] = {}
    for vertex in vertices:
        own = measured[vertex.id]
        if own is None:
            continue
        if vertex.inputs:
            growth[vertex.id] = _mean_growth([(growth[id], m.sent_rate) for id in vertex.inputs if (m := measured[id])])
        else:
            pending = first.counts[vertex.id].pending, last.counts[vertex.id].pending
            growth[vertex.id] = _source_growth(own, pending, span_s, busiest, target, catch_up_s)
        busy = max(own.busy)
        others = (sum(own.busy) - busy) / (len(own.busy) - 1) if len(own.busy) > 1 else None
        found[vertex.id] = Need(busy, others, growth[vertex.id], own.rate)
    return found


def _measured(vertex: Vertex, first: Sample, last: Sample, span_s: float) -> _Measured | None:
    before, after = first.counts.get(vertex.id), last.counts.get(vertex.id)
    if before is None or after is None or len(before.subtasks) != len(after.subtasks):
        return None
    busy, records, sent = [], 0, 0
    for a, b in zip(before.subtasks, after.subtasks):
        worked = b.busy_ms - a.busy_ms
        whole = worked + b.idle_ms - a.idle_ms + b.backpressured_ms - a.backpressured_ms
        records += b.records - a.records
        sent += b.sent - a.sent
        if whole > 0:  # else its input has ended
            busy.append(worked / whole)
    return _Measured(tuple(busy), records / span_s, sent / span_s) if busy else None


def _mean_growth(inputs: Sequence[tuple[Growth, float]]) -> Growth:
    """Each with the records that it gives as its weight."""
    weight = sum(rate for _, rate in inputs)
    if weight <= 0:
        return Growth()
    return Growth(
        sum(growth.steady * rate for growth, rate in inputs) / weight,
        sum(growth.with_backlog * rate for growth, rate in inputs) / weight,
        any(growth.is_guess for growth, _ in inputs),
    )


def _source_growth(
    own: _Measured,
    pending: tuple[float | None, float | None],
    span_s: float,
    busiest: float,
    target: float,
    catch_up_s: float,
) -> Growth:
    """`busiest`: of all vertices."""
    before, after = pending
    if before is not None and after is not None and isfinite(before) and isfinite(after):
        if own.rate <= 0:
            return Growth()
        comes = max(0.0, own.rate + (after - before) / span_s)
        with_backlog = comes + after / catch_up_s
        return Growth(min(comes / own.rate, MAX_GROWTH), min(with_backlog / own.rate, MAX_GROWTH))
    if busiest >= SATURATED:
        return Growth(GUESS * target / busiest, is_guess=True)
    return Growth()
