"""Where one checkpoint's time went: the barrier's way, alignment, the synchronous part, the upload, storing. Driver; pure.

`pause` is none of its parts: the longest time since the checkpoint before in which a slot heard nothing, because a record or
its state took so long. A barrier that comes then waits for it, and so the time is in the barrier's way or in alignment.
"""

from __future__ import annotations

from typing import Any

from tidegate.coordinator.observing import CheckpointStatistics, SlotCheckpoint
from tidegate.rest.numbers import ms
from tidegate.rest.operators import hot_key
from tidegate.rest.problems import not_found
from tidegate.rest.served import ServedJob, Vertex

LARGEST = 10
PHASES = ("startDelay", "alignment", "sync", "upload", "other")


def explain(job: ServedJob, id: int) -> dict[str, Any]:
    """:raises Problem: where the checkpoint is not known."""
    checkpoint = job.view.snapshot().checkpoints.get(id)
    if checkpoint is None:
        raise not_found(f"checkpoint {id} of job {job.id} is not known, or was forgotten")
    vertices = job.vertices(checkpoint.attempt)
    parts = [
        (vertex, index, checkpoint.acknowledged[slot])
        for vertex in vertices
        for index, slot in enumerate(vertex.slots())
        if slot in checkpoint.acknowledged
    ]
    slowest = max(parts, key=lambda part: part[2].acknowledged_after_s, default=None)
    missing = [
        {"vertex": vertex.name, "vertexId": vertex.id, "subtask": index}
        for vertex in vertices
        for index, slot in enumerate(vertex.slots())
        if slot not in checkpoint.acknowledged
    ]
    return {
        "id": checkpoint.checkpoint,
        "status": checkpoint.status.value,
        "failure": checkpoint.failure,
        "duration": None if checkpoint.duration_s is None else ms(checkpoint.duration_s),
        "slowest": None if slowest is None else _subtask(*slowest),
        "storing": _storing(checkpoint),
        "incremental": job.config.increments,
        "missing": missing,
        "vertices": [_vertex(vertex, [part for owner, _, part in parts if owner is vertex]) for vertex in vertices],
        "largestStates": _largest(parts),
        "hottestKeys": [hot_key(hot) for hot in checkpoint.hot_keys],
    }


def _subtask(vertex: Vertex, index: int, part: SlotCheckpoint) -> dict[str, Any]:
    return {
        "vertex": vertex.name,
        "vertexId": vertex.id,
        "subtask": index,
        "total": ms(part.acknowledged_after_s),
        "pause": ms(part.timings.pause_s),
        **_phases(part),
    }


def _phases(part: SlotCheckpoint) -> dict[str, int]:
    timings = part.timings
    known = timings.start_delay_s + timings.alignment_s + timings.sync_s + timings.async_s
    return {
        "startDelay": ms(timings.start_delay_s),
        "alignment": ms(timings.alignment_s),
        "sync": ms(timings.sync_s),
        "upload": ms(timings.async_s),
        "other": max(0, ms(part.acknowledged_after_s - known)),
    }


def _storing(checkpoint: CheckpointStatistics) -> int | None:
    """From the last acknowledgement to the record in the job's log."""
    if checkpoint.duration_s is None or len(checkpoint.acknowledged) < checkpoint.slots:
        return None
    last = max((part.acknowledged_after_s for part in checkpoint.acknowledged.values()), default=0.0)
    return max(0, ms(checkpoint.duration_s - last))


def _vertex(vertex: Vertex, parts: list[SlotCheckpoint]) -> dict[str, Any]:
    """The longest of each phase over the subtasks."""
    phases = [_phases(part) for part in parts]
    longest = {name: max((of_part[name] for of_part in phases), default=0) for name in PHASES}
    return {
        "id": vertex.id,
        "name": vertex.name,
        "acknowledged": len(parts),
        "parallelism": vertex.parallelism,
        "total": max((ms(part.acknowledged_after_s) for part in parts), default=0),
        "pause": max((ms(part.timings.pause_s) for part in parts), default=0),
        **longest,
        "stateSize": sum(part.operator_bytes.get(uid, 0) for part in parts for uid in vertex.uids),
    }


def _largest(parts: list[tuple[Vertex, int, SlotCheckpoint]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"uid": uid, "subtask": index, "size": part.operator_bytes[uid]}
        for vertex, index, part in parts
        for uid in vertex.uids
        if part.operator_bytes.get(uid)
    ]
    return sorted(found, key=lambda entry: -entry["size"])[:LARGEST]
