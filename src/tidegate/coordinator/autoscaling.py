"""Has a job rescaled as its load asks for it. Driver; called in the coordinator's thread, with every event of the job.

protocol/autoscaling.py decides; here heartbeats become what it looks at, and its answers requests like a user's. It stands
outside the coordinator: whatever goes wrong here is logged, and the job runs on without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.coordinator.moving import ScalingDecided
from tidegate.coordinator.observing import AttemptStarted, JobEvent, JobStatus, JobView, SlotReported, StatusChanged
from tidegate.graph.logical import Partitioning
from tidegate.graph.plan import Chain, JobPlan, PlannedEdge
from tidegate.graph.specs import keys_of
from tidegate.protocol.autoscaling import (
    Autoscaling,
    Hold,
    JobRuns,
    Looked,
    Rescale,
    RescaleRefused,
    ScalingAnswer,
    ScalingPolicy,
)
from tidegate.protocol.scaling_needs import Sample, SubtaskCounts, Vertex, VertexCounts
from tidegate.shown import first_line
from tidegate.wire.control import Heartbeat, OperatorMetrics

log = logging.getLogger("tidegate.coordinator")

PENDING = "pendingRecords"  #: what sources call the records that they have still to read
LOOKS_IN_A_WINDOW = 20

#: By uid; with the reason. Answered in the coordinator's thread.
Ask = Callable[[Mapping[str, int], str], "Future[Any]"]


@dataclass(slots=True)
class Autoscaler:
    """Subscribe it to the job's view."""

    policy: ScalingPolicy
    excluded: Collection[str]  #: uids
    view: JobView
    plan: Callable[[], JobPlan]
    ask: Ask
    slots: Callable[[], int | None]  #: of the whole cluster
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    _machine: Autoscaling = field(init=False)
    _vertices: tuple[Vertex, ...] = ()
    _chains: dict[str, Chain] = field(default_factory=dict)  #: by vertex
    _splits: Mapping[str, int] = field(default_factory=dict)  #: that the sources of the attempt began with, by uid
    _runs: bool = False
    _next_look: float = 0.0

    def __post_init__(self) -> None:
        self._machine = Autoscaling(self.policy)

    def __call__(self, event: JobEvent) -> None:
        match event:
            case AttemptStarted(splits=splits):
                self._splits = splits
            case StatusChanged(status):
                self._runs = status is JobStatus.RUNNING
                if self._runs:
                    self._begin()
            case SlotReported() if self._runs and self.clock() >= self._next_look:
                now = self.clock()
                self._next_look = now + self.policy.window_s / LOOKS_IN_A_WINDOW
                self._act(self._machine.on(Looked(self._sample(now)), now))
            case _:
                pass

    def _begin(self) -> None:
        plan = self.plan()
        self._chains = {chain.head.uid: chain for layer in plan.layers for chain in layer.chains}
        self._vertices = vertices_of(plan, self.excluded, self._splits)
        self._machine.on(JobRuns(self._vertices), self.clock())

    def _act(self, answer: ScalingAnswer) -> None:
        match answer:
            case None:
                return
            case Hold(reason):
                log.warning("not rescaled: %s", reason)
                self.view.publish(ScalingDecided({}, reason, self.wall_clock()))
            case Rescale(vertices, reason):
                log.info("rescaling: %s", reason)
                self.view.publish(ScalingDecided(vertices, reason, self.wall_clock()))
                numbers = {uid: n for v in self._vertices if (n := vertices.get(v.id)) is not None for uid in v.uids}
                self.ask(numbers, reason).add_done_callback(self._answered)

    def _answered(self, future: Future[Any]) -> None:
        error = future.exception()
        if error is not None and self._runs:
            reason = first_line(error)
            log.warning("what the autoscaler has asked for was refused: %s", reason)
            self.view.publish(ScalingDecided({}, reason, self.wall_clock()))
            self._machine.on(RescaleRefused(), self.clock())

    # -- what it looks at ---------------------------------------------------------------------------------------------

    def _sample(self, now: float) -> Sample:
        plan, heartbeats = self.plan(), dict(self.view.heartbeats)
        counts = {}
        for vertex in self._vertices:
            chain = self._chains[vertex.id]
            found = [heartbeats.get(plan.slot_of(chain, index)) for index in range(chain.parallelism)]
            parts = [(beat, index) for index, beat in enumerate(found) if beat is not None]
            if len(parts) == chain.parallelism:
                counts[vertex.id] = _counts(chain, parts, is_source=not vertex.inputs)
        return Sample(now, counts, self.slots() if self._machine.is_measuring else None)


def _counts(chain: Chain, parts: list[tuple[Heartbeat, int]], is_source: bool) -> VertexCounts:
    subtasks, pending, head = [], [], chain.head.uid
    sending = {planned.uid for planned in chain.operators if planned.network}
    for beat, index in parts:
        own = {metrics.uid: metrics for metrics in beat.operators if metrics.subtask == index}
        first = own.get(head, OperatorMetrics(head, index, 0, 0))
        sent = sum(metrics.records_out for uid, metrics in own.items() if uid in sending)
        records = first.records_out if is_source else first.records_in
        subtasks.append(SubtaskCounts(beat.busy_ms, beat.idle_ms, beat.backpressured_ms, records, sent))
        if PENDING in first.own:
            pending.append(first.own[PENDING])
    return VertexCounts(tuple(subtasks), sum(pending) if pending else None)


def vertices_of(plan: JobPlan, excluded: Collection[str], splits: Mapping[str, int]) -> tuple[Vertex, ...]:
    """In the order of the flow."""
    chains = [chain for layer in plan.layers for chain in layer.chains]
    head_of = {planned.uid: chain.head.uid for chain in chains for planned in chain.operators}
    crossing = [edge for edge in plan.edges if not edge.is_chained]
    tied: dict[str, str] = {}
    for edge in crossing:  # forward: subtask i to subtask i
        if edge.partitioning is Partitioning.FORWARD:
            a, b = head_of[edge.edge.upstream], head_of[edge.edge.downstream]
            word = tied.setdefault(a, a)
            tied |= {id: word for id, other in tied.items() if other == tied.get(b, b)} | {b: word}
    found = []
    for chain in chains:
        id, uids = chain.head.uid, tuple(planned.uid for planned in chain.operators)
        into = [edge for edge in crossing if edge.edge.downstream in uids]
        most, most_why = _most(chain, splits)
        fixed_why = _why_fixed(chain, excluded, into)
        inputs = tuple(dict.fromkeys(head_of[edge.edge.upstream] for edge in into))
        found.append(
            Vertex(
                id=id,
                name=chain.head.operator.name,
                uids=uids,
                parallelism=chain.parallelism,
                layer=chain.layer,
                inputs=inputs,
                most=most,
                most_why=fixed_why or most_why,
                tied_to=tied.get(id, ""),
                is_fixed=bool(fixed_why),
            )
        )
    return tuple(_fixed_with(each, found) for each in found)


def _why_fixed(chain: Chain, excluded: Collection[str], into: list[PlannedEdge]) -> str:
    """Why it has the number of subtasks that it has; "" where it may have another."""
    if any(planned.uid in excluded for planned in chain.operators):
        return "the settings leave it out"
    if any(edge.partitioning is Partitioning.GLOBAL for edge in into):
        return "all records go to one of its subtasks"
    return ""


def _fixed_with(vertex: Vertex, all: list[Vertex]) -> Vertex:
    """As it is, or fixed because one is that it is tied to."""
    fixed = next((each for each in all if each.is_fixed and each.tied_to and each.tied_to == vertex.tied_to), None)
    if fixed is None or vertex.is_fixed:
        return vertex
    why = f"it has as many subtasks as {fixed.name}, of which {fixed.parallelism} stay: {fixed.most_why}"
    return replace(vertex, is_fixed=True, most_why=why)


def _most(chain: Chain, splits: Mapping[str, int]) -> tuple[int, str]:
    """Subtasks that can have anything to do, and why."""
    bounds = [
        (planned.max_parallelism, f"it has {planned.max_parallelism} key groups")
        for planned in chain.operators
        if keys_of(planned.operator.spec)
    ]
    if chain.head.uid in splits:
        number = max(1, splits[chain.head.uid])
        bounds.append((number, f"the source has {number} {'split' if number == 1 else 'splits'}"))
    return min(bounds, default=(1 << 30, ""))
