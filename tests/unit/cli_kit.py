"""What the tests of the command line share: a small planned job, and the events of its life."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tidegate.api.environment import StreamEnvironment
from tidegate.client import JobClient
from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobStatus,
    JobView,
    SlotCheckpoint,
    SlotReported,
    StatusChanged,
)
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.ids import AttemptId, AttemptNumber, Generation, SlotId
from tidegate.wire.control import Heartbeat, OperatorMetrics, SnapshotTimings


def double(number: int) -> tuple[int, int]:
    return number % 3, number * 2


def planned_sums(parallelism: int = 2) -> JobPlan:
    """numbers -> double | sums -> printed, with one slot more on either side for each parallelism."""
    env = StreamEnvironment("sums")
    numbers = env.from_sequence(1, 100, uid="numbers").map(double)
    numbers.key_by(0).sum(1, uid="sums").print(uid="printed")
    return plan_job("sums", env._graph, parallelism)


def attempt(number: int = 1) -> AttemptId:
    return AttemptId(Generation(1), AttemptNumber(number))


def status(status: JobStatus, detail: str = "", at: float = 0.0) -> StatusChanged:
    return StatusChanged(status, detail, at)


def started(number: int = 1, restored_from: int | None = None) -> AttemptStarted:
    return AttemptStarted(attempt(number), restored_from, 0.0)


def failed(error: str, restart_in_s: float | None = 1.0, at: float = 0.0) -> AttemptFailed:
    return AttemptFailed(attempt(), error, restart_in_s, at)


def reported(slot: SlotId, counts: dict[str, tuple[int, int]], **times_ms: int) -> SlotReported:
    """`counts` are (records in, records out) by uid; times are busy, idle and backpressured."""
    operators = [OperatorMetrics(uid, slot.index, *numbers) for uid, numbers in counts.items()]
    return SlotReported(
        slot,
        Heartbeat(
            busy_ms=times_ms.get("busy", 0),
            idle_ms=times_ms.get("idle", 0),
            backpressured_ms=times_ms.get("backpressured", 0),
            inbox_bytes=0,
            held_bytes=0,
            operators=operators,
        ),
    )


def checkpoint(
    id: int, status: CheckpointStatus = CheckpointStatus.COMPLETED, acknowledged: int = 4, **more: Any
) -> CheckpointChanged:
    """Of four slots; the slowest alignment is 30 ms for each slot that has acknowledged. All is new, or `added_bytes`."""
    added = more.pop("added_bytes", more.get("size_bytes", 0))
    parts = {
        SlotId(0, n): SlotCheckpoint(0.1, SnapshotTimings(alignment_s=0.030 * (n + 1), added_bytes=0 if n else added))
        for n in range(acknowledged)
    }
    statistics = CheckpointStatistics(
        checkpoint=id,
        attempt=more.pop("attempt", attempt()),
        purpose="periodic",
        status=status,
        triggered_at=more.pop("triggered_at", 100.0),
        slots=4,
        acknowledged=parts,
        **more,
    )
    return CheckpointChanged(statistics)


def client_of(view: JobView, name: str = "sums", plan: JobPlan | None = None) -> JobClient:
    """A client whose job never runs: displays only look at its view and its plan."""
    execution = SimpleNamespace(plan=plan or planned_sums())
    return JobClient(name, execution, view, None)  # type: ignore[arg-type]
