"""Metrics by Flink's names, computed from what the job's view holds anyway. Driver; pure.

Three scopes, as in Flink: the job, a task (one subtask of one vertex), an operator (one subtask of one operator).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tidegate.coordinator.observing import (
    CheckpointStatistics,
    CheckpointStatus,
    JobSnapshot,
    JobStatus,
    SlotCheckpoint,
)
from tidegate.coordinator.rates import Load, SubtaskRates
from tidegate.ids import SlotId
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.rest.checkpoints import is_savepoint
from tidegate.rest.metric_table import Type
from tidegate.rest.numbers import counts_of, ms
from tidegate.rest.served import ServedJob, Vertex
from tidegate.rest.vertices import LOW
from tidegate.wire.control import OperatorMetrics

Numbers = dict[str, float]
_TIMED = {
    JobStatus.RUNNING: "running",
    JobStatus.RESTARTING: "restarting",
    JobStatus.INITIALIZING: "initializing",
    JobStatus.CREATED: "created",
}


@dataclass(slots=True)
class Measured:
    """One job at one moment."""

    job: ServedJob
    snapshot: JobSnapshot
    counts: dict[tuple[str, int], OperatorMetrics]
    rates: dict[tuple[str, int], SubtaskRates]
    loads: dict[SlotId, Load]
    latest: CheckpointStatistics | None  #: completed
    sized: CheckpointStatistics | None  #: the same, but not a savepoint: that one's tables are not counted by operator
    now: float

    @classmethod
    def of(cls, job: ServedJob) -> Measured:
        snapshot = job.view.snapshot()
        completed = [c for c in snapshot.checkpoints.values() if c.status is CheckpointStatus.COMPLETED]
        return cls(
            job=job,
            snapshot=snapshot,
            counts=counts_of(snapshot.heartbeats),
            rates=job.subtask_rates(),
            loads=job.loads(),
            latest=completed[-1] if completed else None,
            sized=next((c for c in reversed(completed) if not is_savepoint(c)), None),
            now=time.time(),
        )

    # -- scopes -----------------------------------------------------------------------------------------------------

    def of_job(self) -> Numbers:
        snapshot, latest = self.snapshot, self.latest
        running_since = snapshot.timestamps.get(JobStatus.RUNNING)
        is_running = snapshot.status is JobStatus.RUNNING and running_since is not None
        numbers: Numbers = {
            "numRestarts": snapshot.restarts,
            "uptime": max(0, ms(self.now - (running_since or 0.0))) if is_running else 0,
            "totalNumberOfCheckpoints": snapshot.triggered,
            "numberOfInProgressCheckpoints": sum(
                c.status is CheckpointStatus.IN_PROGRESS for c in snapshot.checkpoints.values()
            ),
            "numberOfCompletedCheckpoints": snapshot.completed,
            "numberOfFailedCheckpoints": snapshot.failed,
            "lastCheckpointRestoreTimestamp": -1 if snapshot.restored is None else ms(snapshot.restored.at),
        }
        if snapshot.restored is not None and snapshot.restored_slots:
            slots = snapshot.restored_slots.values()
            numbers |= {
                "lastRestoreDuration": ms(max(slot.restore_s for slot in slots)),
                "restoredLocalBytes": sum(slot.local_bytes for slot in slots),
                "restoredStorageBytes": sum(slot.storage_bytes for slot in slots),
                "rejectedLocalCopies": sum(slot.rejected_copies for slot in slots),
            }
        for status, name in _TIMED.items():
            numbers[f"{name}State"] = int(snapshot.status is status)
        if latest is not None:
            parts = latest.acknowledged.values()
            numbers |= {
                "lastCompletedCheckpointId": latest.checkpoint,
                "lastCheckpointCompletedTimestamp": ms(latest.triggered_at + (latest.duration_s or 0.0)),
                "lastCheckpointDuration": ms(latest.duration_s or 0.0),
                "lastCheckpointSize": latest.added_bytes,
                "lastCheckpointFullSize": latest.size_bytes,
                "lastCheckpointProcessedData": 0,
                "lastCheckpointPersistedData": sum(part.timings.in_flight_bytes for part in parts),
            }
        return numbers

    def of_task(self, vertex: Vertex, index: int) -> Numbers:
        slot = vertex.slot(index)
        load = self.loads.get(slot)
        heartbeat = self.snapshot.heartbeats.get(slot)
        head = self.counts.get((vertex.chain.head.uid, index))
        numbers: Numbers = {
            "numRecordsIn": 0 if head is None else head.records_in,
            "numRecordsOut": sum(
                c.records_out for uid in vertex.sending_uids() if (c := self.counts.get((uid, index)))
            ),
            "numBytesIn": 0 if head is None else head.bytes_in,
            "numBytesOut": sum(c.bytes_out for uid in vertex.sending_uids() if (c := self.counts.get((uid, index)))),
            "numRecordsInPerSecond": self._rate([vertex.chain.head.uid], index, "in_per_s"),
            "numRecordsOutPerSecond": self._rate(vertex.sending_uids(), index, "out_per_s"),
            "numBytesInPerSecond": self._rate([vertex.chain.head.uid], index, "bytes_in_per_s"),
            "numBytesOutPerSecond": self._rate(vertex.sending_uids(), index, "bytes_out_per_s"),
        }
        if load is not None:
            numbers |= {
                "busyTimeMsPerSecond": round(load.busy * 1000),
                "idleTimeMsPerSecond": round(load.idle * 1000),
                "backPressuredTimeMsPerSecond": round(load.backpressured * 1000),
                "isBackPressured": int(load.backpressured > LOW),
            }
        if heartbeat is not None:
            numbers |= {
                "accumulateBusyTimeMs": heartbeat.busy_ms,
                "accumulateIdleTimeMs": heartbeat.idle_ms,
                "accumulateBackPressuredTimeMs": heartbeat.backpressured_ms,
                "inboxBytes": heartbeat.inbox_bytes,
                "heldBytes": heartbeat.held_bytes,
            }
        if head is not None and head.watermark is not None:
            numbers["currentInputWatermark"] = head.watermark
        part = self._part(slot)
        if part is not None:
            numbers |= {
                "checkpointAlignmentTime": int(part.timings.alignment_s * 1e9),
                "checkpointStartDelayNanos": int(part.timings.start_delay_s * 1e9),
                "longestPauseMs": round(part.timings.pause_s * 1000),
            }
        return numbers

    def of_operator(self, uid: str, index: int, slot: SlotId) -> Numbers:
        metrics = self.counts.get((uid, index))
        if metrics is None:
            return {}
        numbers: Numbers = {
            "numRecordsIn": metrics.records_in,
            "numRecordsOut": metrics.records_out,
            "numBytesIn": metrics.bytes_in,
            "numBytesOut": metrics.bytes_out,
            "numRecordsInPerSecond": self._rate([uid], index, "in_per_s"),
            "numRecordsOutPerSecond": self._rate([uid], index, "out_per_s"),
            "numBytesInPerSecond": self._rate([uid], index, "bytes_in_per_s"),
            "numBytesOutPerSecond": self._rate([uid], index, "bytes_out_per_s"),
        }
        if metrics.watermark is not None:
            numbers["currentOutputWatermark"] = metrics.watermark
            if metrics.watermark != MAX_WATERMARK:  # the end of event time is not late
                numbers["watermarkLag"] = ms(self.now) - metrics.watermark
        part = None if self.sized is None else self.sized.acknowledged.get(slot)
        if part is not None:
            numbers["stateSize"] = part.operator_bytes.get(uid, 0)
        numbers |= metrics.own
        for name, value in users_numbers(metrics).items():
            numbers[name if name not in numbers else f"{name}_user"] = value
        return numbers

    def of_subtask(self, vertex: Vertex, index: int) -> Numbers:
        """The task's, and its operators' with their names before them."""
        numbers = self.of_task(vertex, index)
        for planned in vertex.chain.operators:
            for name, value in self.of_operator(planned.uid, index, vertex.slot(index)).items():
                numbers[f"{planned.uid}.{name}"] = value
        return numbers

    def _part(self, slot: SlotId) -> SlotCheckpoint | None:
        return None if self.latest is None else self.latest.acknowledged.get(slot)

    def _rate(self, uids: list[str], index: int, what: str) -> float:
        found = [self.rates[uid, index] for uid in uids if (uid, index) in self.rates]
        parts: list[float | None] = [getattr(rates, what) for rates in found]
        return round(sum(part for part in parts if part is not None), 3)


def users_numbers(metrics: OperatorMetrics) -> Numbers:
    """Counters, gauges, and of each histogram the numbers that Flink shows: "latency_p99"."""
    numbers: Numbers = {**metrics.counters, **metrics.gauges}
    for name, spread in metrics.histograms.items():
        numbers |= {f"{name}_{part}": value for part, value in spread.items()}
    return numbers


def user_types(metrics: OperatorMetrics | None) -> dict[str, Type]:
    """Of the numbers of the user's own: what is not a gauge."""
    if metrics is None:
        return {}
    counted = [*metrics.counters, *(f"{name}_count" for name in metrics.histograms)]
    return {shown: Type.COUNTER for name in counted for shown in (name, f"{name}_user")}


# -- answers ----------------------------------------------------------------------------------------------------------


def as_text(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def listed(numbers: Numbers, wanted: list[str] | None) -> list[dict[str, str]]:
    """Flink's way: without `get` the names, with it the values of those that exist."""
    if wanted is None:
        return [{"id": name} for name in sorted(numbers)]
    return [{"id": name, "value": as_text(numbers[name])} for name in wanted if name in numbers]


def vertex_metrics(job: ServedJob, vertex: Vertex, wanted: list[str] | None) -> list[dict[str, str]]:
    """Names have the subtask before them: "0.numRecordsIn"."""
    measured = Measured.of(job)
    numbers = {
        f"{index}.{name}": value
        for index in range(vertex.parallelism)
        for name, value in measured.of_subtask(vertex, index).items()
    }
    return listed(numbers, wanted)
