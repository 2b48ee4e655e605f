"""What REST says of one vertex: subtasks, back-pressure, watermarks, accumulators, times. Driver; pure."""

from __future__ import annotations

import time
from typing import Any

from tidegate.coordinator.observing import JobSnapshot
from tidegate.rest.jobs import accumulator_list, execution_state, times_of, user_counters
from tidegate.rest.numbers import EXECUTION_STATES, counts_of, io_metrics, ms
from tidegate.rest.problems import not_found
from tidegate.rest.served import ServedJob, Vertex

LOW, HIGH = 0.1, 0.5  #: Flink's borders between ok, low and high back-pressure


def find_vertex(job: ServedJob, id: str) -> Vertex:
    """:raises Problem: where the job has no such vertex."""
    for vertex in job.vertices():
        if vertex.id == id:
            return vertex
    raise not_found(f"job {job.id} has no vertex {id}")


def check_subtask(vertex: Vertex, index: int) -> None:
    """:raises Problem: where the vertex has no such subtask."""
    if not 0 <= index < vertex.parallelism:
        raise not_found(f"vertex {vertex.id} has subtasks 0 to {vertex.parallelism - 1}, not {index}")


def endpoint(job: ServedJob, vertex: Vertex, subtask: int) -> str:
    """Where it runs: host and process."""
    hello = job.hands.workers().get(vertex.slot(subtask))
    return "(unassigned)" if hello is None else f"{hello.host}:{hello.pid}"


def subtask_entry(job: ServedJob, snapshot: JobSnapshot, vertex: Vertex, index: int) -> dict[str, Any]:
    times = times_of(job, snapshot)
    attempt_at = ms(snapshot.attempt_at) if snapshot.attempt is not None else times["start-time"]
    where = endpoint(job, vertex, index)
    return {
        "subtask": index,
        "status": execution_state(snapshot.status),
        "attempt": 0 if snapshot.attempt is None else snapshot.attempt.number - 1,
        "endpoint": where,
        "start-time": attempt_at,
        "end-time": times["end-time"],
        "duration": max(0, (ms(time.time()) if times["end-time"] < 0 else times["end-time"]) - attempt_at),
        "metrics": io_metrics(snapshot, vertex, [index]),
        "taskmanager-id": where,
        "status-duration": {},
        "other-concurrent-attempts": None,
        "start_time": attempt_at,
    }


def vertex_details(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": ms(time.time()),
        "subtasks": [subtask_entry(job, snapshot, vertex, index) for index in range(vertex.parallelism)],
        "aggregated": {"metrics": {}, "status-duration": {}},
    }


def subtask_times(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    entries = [subtask_entry(job, snapshot, vertex, index) for index in range(vertex.parallelism)]
    return {
        "id": vertex.id,
        "name": vertex.name,
        "now": ms(time.time()),
        "subtasks": [
            {
                "subtask": entry["subtask"],
                "endpoint": entry["endpoint"],
                "duration": entry["duration"],
                "timestamps": dict.fromkeys(EXECUTION_STATES, 0) | {entry["status"]: entry["start-time"]},
            }
            for entry in entries
        ],
    }


def task_managers(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    by_place: dict[str, list[int]] = {}
    for index in range(vertex.parallelism):
        by_place.setdefault(endpoint(job, vertex, index), []).append(index)
    state = execution_state(snapshot.status)
    return {
        "id": vertex.id,
        "name": vertex.name,
        "now": ms(time.time()),
        "taskmanagers": [
            {
                "endpoint": where,
                "status": state,
                **times_of(job, snapshot),
                "metrics": io_metrics(snapshot, vertex, subtasks),
                "status-counts": dict.fromkeys(EXECUTION_STATES, 0) | {state: len(subtasks)},
                "taskmanager-id": where,
                "aggregated": {"metrics": {}, "status-duration": {}},
            }
            for where, subtasks in by_place.items()
        ],
    }


def pressure_level(part: float) -> str:
    return "ok" if part <= LOW else "low" if part <= HIGH else "high"


def back_pressure(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    loads = job.loads()
    snapshot = job.view.snapshot()
    subtasks: list[dict[str, Any]] = []
    for index, slot in enumerate(vertex.slots()):
        load = loads.get(slot)
        backpressured = 0.0 if load is None else load.backpressured
        level = pressure_level(backpressured)
        subtasks.append(
            {
                "subtask": index,
                "attempt-number": 0 if snapshot.attempt is None else snapshot.attempt.number - 1,
                "backpressureLevel": level,
                "backpressure-level": level,
                "ratio": backpressured,
                "idleRatio": 0.0 if load is None else load.idle,
                "busyRatio": 0.0 if load is None else load.busy,
                "other-concurrent-attempts": None,
            }
        )
    worst = pressure_level(max((float(entry["ratio"]) for entry in subtasks), default=0.0))
    return {
        "status": "ok" if loads else "deprecated",
        "backpressureLevel": worst,
        "backpressure-level": worst,
        "end-timestamp": ms(time.time()),
        "subtasks": subtasks,
    }


def watermarks(job: ServedJob, vertex: Vertex) -> list[dict[str, str]]:
    """Subtasks without a watermark yet are left out."""
    counts = counts_of(job.view.snapshot().heartbeats)
    found = []
    for index in range(vertex.parallelism):
        head = counts.get((vertex.chain.head.uid, index))
        if head is not None and head.watermark is not None:
            found.append({"id": f"{index}.currentInputWatermark", "value": str(head.watermark)})
    return found


def accumulators(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    counters = user_counters(job.view.snapshot(), set(vertex.uids))
    return {"id": vertex.id, "user-accumulators": accumulator_list(counters)}


def subtask_accumulators(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    counts = counts_of(snapshot.heartbeats)
    entries = []
    for index in range(vertex.parallelism):
        counters: dict[str, int] = {}
        for uid in vertex.uids:
            metrics = counts.get((uid, index))
            for name, value in ({} if metrics is None else metrics.counters).items():
                counters[name] = counters.get(name, 0) + value
        entries.append(
            {
                "subtask": index,
                "attempt": 0 if snapshot.attempt is None else snapshot.attempt.number - 1,
                "endpoint": endpoint(job, vertex, index),
                "user-accumulators": accumulator_list(counters),
            }
        )
    return {"id": vertex.id, "parallelism": vertex.parallelism, "subtasks": entries}
