"""What REST says of one vertex: subtasks, back-pressure, watermarks, accumulators, times. Driver; pure."""

from __future__ import annotations

import time
from typing import Any

from tidegate.coordinator.observing import JobSnapshot, JobStatus
from tidegate.rest.jobs import accumulator_list, execution_state, times_of, user_counters
from tidegate.rest.numbers import EXECUTION_STATES, counts_of, io_metrics, ms, spread
from tidegate.rest.problems import not_found
from tidegate.rest.served import ServedJob, Vertex

LOW, HIGH = 0.1, 0.5  #: Flink's borders between ok, low and high back-pressure
_TIMED_STATES = ("CREATED", "SCHEDULED", "DEPLOYING", "INITIALIZING", "RUNNING")


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
        "status-duration": _status_durations(snapshot, attempt_at, times["end-time"]),
        "other-concurrent-attempts": None,
        "start_time": attempt_at,
    }


def _status_durations(snapshot: JobSnapshot, attempt_at: int, end: int) -> dict[str, int]:
    """How long the attempt's subtasks were in each state, in ms. They start together: what comes before is INITIALIZING."""
    now = ms(time.time()) if end < 0 else end
    running = ms(snapshot.timestamps.get(JobStatus.RUNNING, 0.0))
    has_run = running >= attempt_at
    durations = dict.fromkeys(_TIMED_STATES, 0)
    if snapshot.attempt is not None:
        durations["INITIALIZING"] = max(0, (running if has_run else now) - attempt_at)
        durations["RUNNING"] = max(0, now - running) if has_run else 0
    return durations


def _aggregated(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Over subtasks: each number of theirs, and each of their durations."""

    def over(part: str) -> dict[str, dict[str, int]]:
        names = [name for name, value in (entries[0][part] if entries else {}).items() if not isinstance(value, bool)]
        return {name: spread([int(entry[part][name]) for entry in entries]) for name in names}

    return {"metrics": over("metrics"), "status-duration": over("status-duration")}


def vertex_details(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    entries = _subtask_entries(job, vertex)
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": ms(time.time()),
        "subtasks": entries,
        "aggregated": _aggregated(entries),
    }


def _subtask_entries(job: ServedJob, vertex: Vertex) -> list[dict[str, Any]]:
    snapshot = job.view.snapshot()
    return [subtask_entry(job, snapshot, vertex, index) for index in range(vertex.parallelism)]


def subtask_times(job: ServedJob, vertex: Vertex) -> dict[str, Any]:
    entries = _subtask_entries(job, vertex)
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
    by_place: dict[str, list[dict[str, Any]]] = {}
    for entry in _subtask_entries(job, vertex):
        by_place.setdefault(entry["endpoint"], []).append(entry)
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
                "metrics": io_metrics(snapshot, vertex, [entry["subtask"] for entry in entries]),
                "status-counts": dict.fromkeys(EXECUTION_STATES, 0) | {state: len(entries)},
                "taskmanager-id": where,
                "aggregated": _aggregated(entries),
            }
            for where, entries in by_place.items()
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
