"""What REST says of checkpoints: counts, summary, history, one checkpoint, its subtasks, the settings. Driver; pure.

Flink counts subtasks where Tidegate counts slots: a slot that hosts subtasks of two vertices is counted in both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tidegate.coordinator.observing import CheckpointStatistics, CheckpointStatus, JobSnapshot, SlotCheckpoint
from tidegate.rest.numbers import ms, summary
from tidegate.rest.problems import not_found
from tidegate.rest.served import ServedJob, Vertex
from tidegate.settings.choices import Retention
from tidegate.storage.store import without_credentials

HISTORY = 100  #: checkpoints in an answer; the view remembers more
PLOTTED = 200  #: checkpoints in the plots
OFF = 2**63 - 1  #: Flink's word for "no interval"
NOT_ADDRESSABLE = "<checkpoint-not-externally-addressable>"
_SAVEPOINTS = ("savepoint", "stop")  #: words that the purposes of savepoints begin with


def is_savepoint(checkpoint: CheckpointStatistics) -> bool:
    return checkpoint.purpose.startswith(_SAVEPOINTS)


def checkpoint_type(checkpoint: CheckpointStatistics) -> str:
    if is_savepoint(checkpoint):
        return "SYNC_SAVEPOINT" if checkpoint.purpose.startswith("stop") else "SAVEPOINT"
    unaligned = any(part.timings.unaligned for part in checkpoint.acknowledged.values())
    return "UNALIGNED_CHECKPOINT" if unaligned else "CHECKPOINT"


@dataclass(frozen=True, slots=True)
class _Part:
    """One vertex's part of a checkpoint."""

    vertex: Vertex
    subtasks: dict[int, SlotCheckpoint]  #: those that have acknowledged

    @classmethod
    def of(cls, vertex: Vertex, checkpoint: CheckpointStatistics) -> _Part:
        slots = enumerate(vertex.slots())
        return cls(vertex, {i: checkpoint.acknowledged[slot] for i, slot in slots if slot in checkpoint.acknowledged})

    def state_bytes(self, part: SlotCheckpoint) -> int:
        return sum(part.operator_bytes.get(uid, 0) for uid in self.vertex.uids)

    def added_bytes(self, part: SlotCheckpoint) -> int:
        return sum(part.operator_added.get(uid, 0) for uid in self.vertex.uids)


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the slots of one checkpoint. They are many, a page asks each second, and what has ended never changes."""

    added: int
    buffered: int
    persisted: int
    longest_s: float | None  #: from the trigger to the last acknowledgement
    longest_alignment_s: float
    state: int

    @classmethod
    def of(cls, checkpoint: CheckpointStatistics) -> Totals:
        parts = list(checkpoint.acknowledged.values())
        return cls(
            added=checkpoint.added_bytes,
            buffered=_buffered(parts),
            persisted=_persisted(parts),
            longest_s=max((part.acknowledged_after_s for part in parts), default=None),
            longest_alignment_s=max((part.timings.alignment_s for part in parts), default=0.0),
            state=sum(part.timings.state_bytes for part in parts),
        )


def totals_of(job: ServedJob, checkpoint: CheckpointStatistics) -> Totals:
    """Computed once for each state of a checkpoint; forgotten with it."""
    known = job.totals.get(checkpoint.checkpoint)
    if known is None or known[0] is not checkpoint:
        known = job.totals[checkpoint.checkpoint] = (checkpoint, Totals.of(checkpoint))
        if len(job.totals) > 2 * len(job.view.checkpoints) + 10:
            kept = job.view.snapshot().checkpoints
            job.totals = {id: entry for id, entry in job.totals.items() if id in kept}
    totals: Totals = known[1]
    return totals


def statistics(job: ServedJob) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    newest_first = list(reversed(snapshot.checkpoints.values()))
    completed = [c for c in newest_first if c.status is CheckpointStatus.COMPLETED]
    totals = [totals_of(job, c) for c in completed]
    return {
        "counts": {
            "restored": snapshot.restores,
            "total": snapshot.triggered,
            "in_progress": sum(c.status is CheckpointStatus.IN_PROGRESS for c in newest_first),
            "completed": snapshot.completed,
            "failed": snapshot.failed,
        },
        "summary": {
            "checkpointed_size": summary([total.added for total in totals]),
            "state_size": summary([c.size_bytes for c in completed]),
            "end_to_end_duration": summary([ms(c.duration_s or 0.0) for c in completed]),
            "alignment_buffered": summary([total.buffered for total in totals]),
            "processed_data": summary([0 for _ in completed]),
            "persisted_data": summary([total.persisted for total in totals]),
        },
        "latest": {
            "completed": _latest(job, (c for c in completed if not is_savepoint(c))),
            "savepoint": _latest(job, (c for c in completed if is_savepoint(c))),
            "failed": _latest(job, (c for c in newest_first if c.status is CheckpointStatus.FAILED)),
            "restored": _restored(snapshot),
        },
        "history": [_common(job, c) for c in newest_first[:HISTORY]],
    }


def history(job: ServedJob) -> dict[str, Any]:
    """What plots need of each checkpoint that is remembered, the oldest first: a few numbers. A route of our own."""
    checkpoints = list(job.view.snapshot().checkpoints.values())[-PLOTTED:]
    return {"checkpoints": [_plotted(checkpoint, totals_of(job, checkpoint)) for checkpoint in checkpoints]}


def _plotted(checkpoint: CheckpointStatistics, totals: Totals) -> dict[str, Any]:
    return {
        "id": checkpoint.checkpoint,
        "status": checkpoint.status.value,
        "trigger": ms(checkpoint.triggered_at),
        "duration": ms(checkpoint.duration_s or totals.longest_s or 0.0),
        "size": checkpoint.size_bytes or totals.state,
        "added": totals.added,
        "alignment": ms(totals.longest_alignment_s),
        "buffered": totals.buffered,
        "persisted": totals.persisted,
    }


def _latest(job: ServedJob, checkpoints: Iterable[CheckpointStatistics]) -> dict[str, Any] | None:
    newest = next(iter(checkpoints), None)
    return None if newest is None else _common(job, newest)


def _restored(snapshot: JobSnapshot) -> dict[str, Any] | None:
    restored = snapshot.restored
    if restored is None:
        return None
    known = snapshot.checkpoints.get(restored.restored_from or 0)
    return {
        "id": restored.restored_from,
        "restore_timestamp": ms(restored.at),
        "is_savepoint": known is not None and is_savepoint(known),
        "external_path": restored.restored_path,
    }


def details(job: ServedJob, id: int) -> dict[str, Any]:
    """:raises Problem: where the checkpoint is not known, or not any more."""
    checkpoint = _find(job, id)
    parts = [_Part.of(vertex, checkpoint) for vertex in job.vertices(checkpoint.attempt)]
    return _common(job, checkpoint) | {
        "tasks": {part.vertex.id: _task(checkpoint, part) for part in parts},
        "attempt": str(checkpoint.attempt),
        "purpose": checkpoint.purpose,
    }


def subtasks(job: ServedJob, id: int, vertex_id: str) -> dict[str, Any]:
    """:raises Problem: where the checkpoint or the vertex is not known."""
    checkpoint = _find(job, id)
    vertex = next((vertex for vertex in job.vertices(checkpoint.attempt) if vertex.id == vertex_id), None)
    if vertex is None:
        raise not_found(f"job {job.id} has no vertex {vertex_id}")
    part = _Part.of(vertex, checkpoint)
    done = list(part.subtasks.values())
    return _task(checkpoint, part) | {
        "summary": {
            "checkpointed_size": summary([part.added_bytes(subtask) for subtask in done]),
            "state_size": summary([part.state_bytes(subtask) for subtask in done]),
            "end_to_end_duration": summary([ms(subtask.acknowledged_after_s) for subtask in done]),
            "checkpoint_duration": {
                "sync": summary([ms(subtask.timings.sync_s) for subtask in done]),
                "async": summary([ms(subtask.timings.async_s) for subtask in done]),
            },
            "alignment": {
                "buffered": summary([subtask.timings.alignment_bytes for subtask in done]),
                "processed": summary([0 for _ in done]),
                "persisted": summary([subtask.timings.in_flight_bytes for subtask in done]),
                "duration": summary([ms(subtask.timings.alignment_s) for subtask in done]),
            },
            "start_delay": summary([ms(subtask.timings.start_delay_s) for subtask in done]),
        },
        "subtasks": [_subtask(checkpoint, part, index) for index in range(vertex.parallelism)],
    }


def _subtask(checkpoint: CheckpointStatistics, part: _Part, index: int) -> dict[str, Any]:
    subtask = part.subtasks.get(index)
    if subtask is None:
        return {"className": "pending", "index": index, "status": "pending_or_failed"}
    timings = subtask.timings
    return {
        "className": "completed",
        "index": index,
        "status": "completed",
        "ack_timestamp": ms(checkpoint.triggered_at + subtask.acknowledged_after_s),
        "end_to_end_duration": ms(subtask.acknowledged_after_s),
        "checkpointed_size": part.added_bytes(subtask),
        "state_size": part.state_bytes(subtask),
        "checkpoint": {"sync": ms(timings.sync_s), "async": ms(timings.async_s)},
        "alignment": {
            "buffered": timings.alignment_bytes,
            "processed": 0,
            "persisted": timings.in_flight_bytes,
            "duration": ms(timings.alignment_s),
        },
        "start_delay": ms(timings.start_delay_s),
        "unaligned_checkpoint": timings.unaligned,
        "aborted": False,
    }


def settings(job: ServedJob) -> dict[str, Any]:
    config = job.config
    return {
        "mode": config.mode.replace("-", "_"),
        "interval": OFF if config.interval_s is None else ms(config.interval_s),
        "timeout": ms(config.timeout_s),
        "min_pause": ms(config.min_pause_s),
        "max_concurrent": config.max_concurrent,
        "externalization": {
            "enabled": config.storage is not None,
            "delete_on_cancellation": config.retention is Retention.DELETE,
        },
        "state_backend": config.state_backend,
        "checkpoint_storage": without_credentials(config.storage or "the driver's memory"),
        "unaligned_checkpoints": config.unaligned,
        "tolerable_failed_checkpoints": config.tolerable_failures,
        "aligned_checkpoint_timeout": ms(config.aligned_timeout_s),
        "checkpoints_after_tasks_finish": True,
        "state_changelog_enabled": False,
        "changelog_periodic_materialization_interval": 0,
        "changelog_storage": None,
        "retained": config.retained,
    }


def _find(job: ServedJob, id: int) -> CheckpointStatistics:
    checkpoint = job.view.snapshot().checkpoints.get(id)
    if checkpoint is None:
        raise not_found(
            f"checkpoint {id} of job {job.id} is not known, or was forgotten: only the newest are remembered, at most 1,000"
        )
    return checkpoint


def _common(job: ServedJob, checkpoint: CheckpointStatistics) -> dict[str, Any]:
    vertices = job.vertices(checkpoint.attempt)
    totals = totals_of(job, checkpoint)
    acknowledged_after = totals.longest_s
    subtasks = sum(vertex.parallelism for vertex in vertices)
    is_whole = len(checkpoint.acknowledged) == checkpoint.slots
    common: dict[str, Any] = {
        "className": checkpoint.status.value.lower(),
        "id": checkpoint.checkpoint,
        "status": checkpoint.status.value,
        "is_savepoint": is_savepoint(checkpoint),
        "savepointFormat": "CANONICAL" if is_savepoint(checkpoint) else None,
        "trigger_timestamp": ms(checkpoint.triggered_at),
        "latest_ack_timestamp": -1 if acknowledged_after is None else ms(checkpoint.triggered_at + acknowledged_after),
        "checkpointed_size": totals.added,
        "state_size": checkpoint.size_bytes or totals.state,
        "end_to_end_duration": ms(checkpoint.duration_s or acknowledged_after or 0.0),
        "alignment_buffered": totals.buffered,
        "processed_data": 0,
        "persisted_data": totals.persisted,
        "num_subtasks": subtasks,
        "num_acknowledged_subtasks": subtasks
        if is_whole
        else sum(len(_Part.of(vertex, checkpoint).subtasks) for vertex in vertices),
        "checkpoint_type": checkpoint_type(checkpoint),
        "tasks": {},
    }
    if checkpoint.status is CheckpointStatus.COMPLETED:
        common |= {"external_path": checkpoint.path or NOT_ADDRESSABLE, "discarded": checkpoint.discarded}
    elif checkpoint.status is CheckpointStatus.FAILED:
        common |= {
            "failure_timestamp": ms(checkpoint.triggered_at + (checkpoint.duration_s or 0.0)),
            "failure_message": checkpoint.failure,
        }
    return common


def _task(checkpoint: CheckpointStatistics, part: _Part) -> dict[str, Any]:
    done = list(part.subtasks.values())
    acknowledged_after = max((subtask.acknowledged_after_s for subtask in done), default=None)
    return {
        "id": checkpoint.checkpoint,
        "status": checkpoint.status.value,
        "latest_ack_timestamp": -1 if acknowledged_after is None else ms(checkpoint.triggered_at + acknowledged_after),
        "checkpointed_size": sum(part.added_bytes(subtask) for subtask in done),
        "state_size": sum(part.state_bytes(subtask) for subtask in done),
        "end_to_end_duration": ms(acknowledged_after or 0.0),
        "alignment_buffered": _buffered(done),
        "processed_data": 0,
        "persisted_data": _persisted(done),
        "num_subtasks": part.vertex.parallelism,
        "num_acknowledged_subtasks": len(done),
    }


def _buffered(parts: Iterable[SlotCheckpoint]) -> int:
    return sum(part.timings.alignment_bytes for part in parts)


def _persisted(parts: Iterable[SlotCheckpoint]) -> int:
    return sum(part.timings.in_flight_bytes for part in parts)
