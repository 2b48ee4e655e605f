"""The jobs that a server shows: each with its plan, its settings, its view and the hands to act on it. Driver; any thread.

Everything shown is computed from a copy of the view (`JobView.snapshot`), so no request holds the coordinator up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.config import JobConfig
from tidegate.coordinator.measuring import JobMeasures
from tidegate.coordinator.observing import (
    AttemptStarted,
    CheckpointStatistics,
    JobEvent,
    JobStatus,
    JobView,
    SlotReported,
    SlotSampled,
    StatusChanged,
)
from tidegate.coordinator.profiling import StackProfile
from tidegate.coordinator.rates import Load, OperatorRates, RateMeter, SubtaskRates
from tidegate.durations import Duration
from tidegate.graph.plan import Chain, JobPlan, Parallelism
from tidegate.graph.specs import SinkSpec, SourceSpec
from tidegate.ids import AttemptId, SlotId
from tidegate.rest.identity import vertex_id
from tidegate.rest.remembering import JobMemory

MAX_ENDED = 20  #: jobs of this process that have ended and are still shown
MAX_PLANS = 100  #: of one job: older ones are those of checkpoints that are forgotten


class Hands(Protocol):
    """What may be done to a job; tidegate.client.JobClient is one."""

    view: JobView

    @property
    def plan(self) -> JobPlan: ...
    def cancel(self) -> None: ...
    def checkpoint_now(self, timeout: Duration) -> int: ...
    def savepoint(self, directory: str | None, *, format: str) -> str: ...
    def stop(self, directory: str | None, *, drain: bool, format: str) -> str: ...
    def rescale(self, parallelism: Parallelism) -> Any: ...
    def workers(self) -> dict[SlotId, Any]: ...
    def sample_stacks(self, slots: Collection[SlotId], seconds: float, per_s: float) -> None: ...


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """What a job runs on; one that was not started on Spark has nothing to tell."""

    spark: dict[str, str] = field(default_factory=dict)  #: settings, without secrets
    spark_pages: str | None = None  #: the address of Spark's own pages


@dataclass(slots=True)
class ServedJob:
    """One job of this driver."""

    id: str
    name: str
    config: JobConfig
    view: JobView
    hands: Hands
    started_at: float  #: epoch seconds
    clock: Callable[[], float] = time.monotonic
    totals: dict[int, tuple[CheckpointStatistics, Any]] = field(default_factory=dict)  #: for rest/checkpoints.py
    measures: JobMeasures = field(default_factory=JobMeasures)  #: for rest/prometheus.py
    profile: StackProfile = field(default_factory=StackProfile)  #: for rest/flame_graph.py
    memory: JobMemory = field(init=False)
    runtime_environment: RuntimeEnvironment = field(default_factory=RuntimeEnvironment)
    _plans: list[tuple[AttemptId, JobPlan]] = field(default_factory=list)  #: each with the first attempt that ran it
    _meter: RateMeter = field(default_factory=RateMeter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.view.subscribe(self._on)
        self.memory = JobMemory(self)  # after that: it reads the rates

    @property
    def plan(self) -> JobPlan:
        """The newest: a rescaled job has another."""
        return self.hands.plan

    def vertices(self, attempt: AttemptId | None = None) -> list[Vertex]:
        """As they were in this attempt; without one, as they are now."""
        plan = self.plan if attempt is None else self._plan_of(attempt)
        return [Vertex(chain, plan) for layer in plan.layers for chain in layer.chains]

    def _plan_of(self, attempt: AttemptId) -> JobPlan:
        with self._lock:
            return next((plan for first, plan in reversed(self._plans) if first <= attempt), self.plan)

    def operator_rates(self) -> dict[str, OperatorRates]:
        with self._lock:
            return self._meter.operators()

    def subtask_rates(self) -> dict[tuple[str, int], SubtaskRates]:
        with self._lock:
            return self._meter.subtasks()

    def loads(self) -> dict[SlotId, Load]:
        with self._lock:
            return self._meter.loads()

    def cores(self) -> dict[SlotId, float]:
        with self._lock:
            return self._meter.cores()

    def _on(self, event: JobEvent) -> None:
        """In the coordinator's thread."""
        self.measures.note(event)
        if isinstance(event, SlotReported):
            with self._lock:
                self._meter.note(event.slot, event.heartbeat, self.clock())
        elif isinstance(event, StatusChanged) and event.status is not JobStatus.RUNNING:
            with self._lock:
                self._meter.clear()  # nothing flows: what was measured last is not of now
        elif isinstance(event, SlotSampled):
            self.profile.note(event.slot, event.sampled, self.clock())
        elif isinstance(event, AttemptStarted):
            self.profile.clear()
            with self._lock:
                self._meter.clear()
                if not self._plans or self._plans[-1][1] is not self.plan:
                    self._plans.append((event.attempt, self.plan))
                    del self._plans[:-MAX_PLANS]


@dataclass(frozen=True, slots=True)
class Vertex:
    """What Flink calls a vertex: operators that share their subtasks."""

    chain: Chain
    plan: JobPlan

    @property
    def id(self) -> str:
        return vertex_id(self.chain.head.uid)

    @property
    def name(self) -> str:
        """As Flink writes it: "Source: numbers -> map"."""
        return " -> ".join(
            _operator_name(planned.operator.name, planned.operator.spec) for planned in self.chain.operators
        )

    @property
    def parallelism(self) -> int:
        return self.chain.parallelism

    @property
    def max_parallelism(self) -> int:
        return self.chain.head.max_parallelism

    @property
    def uids(self) -> list[str]:
        return [planned.uid for planned in self.chain.operators]

    def slot(self, subtask: int) -> SlotId:
        return self.plan.slot_of(self.chain, subtask)

    def slots(self) -> list[SlotId]:
        return [self.slot(subtask) for subtask in range(self.parallelism)]

    def sending_uids(self) -> list[str]:
        """Operators whose records leave the vertex."""
        return [planned.uid for planned in self.chain.operators if planned.network]


def _operator_name(name: str, spec: object) -> str:
    if isinstance(spec, SourceSpec):
        return f"Source: {name}"
    return f"Sink: {name}" if isinstance(spec, SinkSpec) else name


class JobTable:
    """The jobs of one server, the oldest first. Thread-safe; those that have ended are forgotten beyond MAX_ENDED."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, ServedJob] = {}

    def add(self, job: ServedJob) -> None:
        with self._lock:
            self._jobs.pop(job.id, None)  # an earlier run of the same job
            self._jobs[job.id] = job
            ended = [id for id, other in self._jobs.items() if other.view.status.is_terminal]
            for id in ended[: max(0, len(ended) - MAX_ENDED)]:
                del self._jobs[id]

    def get(self, id: str) -> ServedJob | None:
        with self._lock:
            return self._jobs.get(id)

    def all(self) -> list[ServedJob]:
        with self._lock:
            return list(self._jobs.values())


def flink_status(status: JobStatus) -> str:
    """Flink has no word for a cluster that is too small at the moment; its adaptive scheduler stays CREATED then."""
    return "CREATED" if status is JobStatus.WAITING else status.value
