"""What REST says of whole jobs: lists, details, plan, settings, failures, accumulators. Driver; pure: a job in, JSON out."""

from __future__ import annotations

import time
from typing import Any

from tidegate.coordinator.observing import AttemptFailed, JobSnapshot, JobStatus
from tidegate.rest.numbers import EXECUTION_STATES, counts_of, io_metrics, ms
from tidegate.rest.served import ServedJob, Vertex, flink_status
from tidegate.rest.settings import by_key, settings_of, strategy_of
from tidegate.version import __version__

FLINK_VERSION = "2.3.0"  #: whose shapes the answers have; some clients look at it
_STATES = {
    JobStatus.CREATED: "CREATED",
    JobStatus.WAITING: "SCHEDULED",
    JobStatus.INITIALIZING: "INITIALIZING",
    JobStatus.RUNNING: "RUNNING",
    JobStatus.RESTARTING: "CANCELED",
    JobStatus.FINISHED: "FINISHED",
    JobStatus.CANCELED: "CANCELED",
    JobStatus.FAILED: "FAILED",
}


def execution_state(status: JobStatus) -> str:
    """Of a subtask. All of them live and die together."""
    return _STATES[status]


def times_of(job: ServedJob, snapshot: JobSnapshot) -> dict[str, int]:
    ended = snapshot.timestamps.get(snapshot.status, time.time()) if snapshot.status.is_terminal else None
    return {
        "start-time": ms(job.started_at),
        "end-time": -1 if ended is None else ms(ended),
        "duration": max(0, ms((time.time() if ended is None else ended) - job.started_at)),
    }


def cluster_config() -> dict[str, Any]:
    return {
        "refresh-interval": 1000,
        "timezone-name": time.tzname[0],
        "timezone-offset": -time.timezone * 1000,
        "flink-version": FLINK_VERSION,
        "flink-revision": f"tidegate {__version__}",
        "features": {"web-submit": False, "web-cancel": True, "web-rescale": True, "web-history": False},
    }


def cluster_overview(jobs: list[ServedJob]) -> dict[str, Any]:
    statuses = [job.view.status for job in jobs]
    running = [job for job in jobs if not job.view.status.is_terminal]
    workers = {(hello.host, hello.pid) for job in running for hello in job.hands.workers().values()}
    return {
        "taskmanagers": len(workers),
        "taskmanagers-blocked": 0,
        "slots-total": sum(len(job.plan.slots) for job in running),
        "slots-available": 0,
        "slots-free-and-blocked": 0,
        "jobs-running": len(running),
        "jobs-finished": statuses.count(JobStatus.FINISHED),
        "jobs-cancelled": statuses.count(JobStatus.CANCELED),
        "jobs-failed": statuses.count(JobStatus.FAILED),
        "flink-version": FLINK_VERSION,
        "flink-commit": f"tidegate {__version__}",
    }


def job_list(jobs: list[ServedJob]) -> dict[str, Any]:
    return {"jobs": [{"id": job.id, "status": flink_status(job.view.status)} for job in jobs]}


def jobs_overview(jobs: list[ServedJob]) -> dict[str, Any]:
    return {"jobs": [overview_entry(job) for job in jobs]}


def overview_entry(job: ServedJob) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    total = sum(vertex.parallelism for vertex in job.vertices())
    tasks = {state.lower(): 0 for state in EXECUTION_STATES} | {execution_state(snapshot.status).lower(): total}
    return {
        "jid": job.id,
        "name": job.name,
        "jobType": "STREAMING",
        "schedulerType": "Adaptive",
        **times_of(job, snapshot),
        "state": flink_status(snapshot.status),
        "last-modification": ms(max(snapshot.timestamps.values(), default=job.started_at)),
        "tasks": {"total": total, **tasks},
        "pending-operators": 0,
    }


def job_details(job: ServedJob) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    vertices = job.vertices()
    state = execution_state(snapshot.status)
    times = times_of(job, snapshot)
    return {
        "jid": job.id,
        "application-id": job.id,
        "name": job.name,
        "isStoppable": not snapshot.status.is_terminal,
        "state": flink_status(snapshot.status),
        "status-detail": snapshot.status_detail,
        "job-type": "STREAMING",
        "schedulerType": "Adaptive",
        **times,
        "maxParallelism": max((vertex.max_parallelism for vertex in vertices), default=-1),
        "now": ms(time.time()),
        "attempt": "" if snapshot.attempt is None else str(snapshot.attempt),
        "restarts": snapshot.restarts,
        "timestamps": timestamps_of(job, snapshot),
        "vertices": [vertex_entry(vertex, snapshot, times) for vertex in vertices],
        "status-counts": dict.fromkeys(EXECUTION_STATES, 0) | {state: len(vertices)},
        "plan": plan_of(job),
        "stream-graph": None,
        "pending-operators": 0,
    }


def timestamps_of(job: ServedJob, snapshot: JobSnapshot) -> dict[str, int]:
    names = (
        "INITIALIZING", "CREATED", "RUNNING", "FAILING", "FAILED", "CANCELLING", "CANCELED", "FINISHED", "RESTARTING",
        "SUSPENDED", "RECONCILING",
    )  # fmt: skip
    entered = {flink_status(status): ms(at) for status, at in snapshot.timestamps.items()}
    return dict.fromkeys(names, 0) | {"CREATED": ms(job.started_at)} | entered


def vertex_entry(vertex: Vertex, snapshot: JobSnapshot, times: dict[str, int]) -> dict[str, Any]:
    state = execution_state(snapshot.status)
    return {
        "id": vertex.id,
        "slotSharingGroupId": vertex.id,
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": state,
        **times,
        "tasks": dict.fromkeys(EXECUTION_STATES, 0) | {state: vertex.parallelism},
        "metrics": io_metrics(snapshot, vertex, range(vertex.parallelism)),
    }


def plan_of(job: ServedJob) -> dict[str, Any]:
    plan = job.plan
    vertices = job.vertices()
    vertex_of = {uid: vertex for vertex in vertices for uid in vertex.uids}
    nodes = []
    for vertex in vertices:
        inputs = [
            {
                "num": number,
                "id": vertex_of[edge.edge.upstream].id,
                "ship_strategy": edge.partitioning.name,
                "exchange": "pipelined",
                "local_strategy": "",
                "caching": "",
            }
            for number, edge in enumerate(
                edge for edge in plan.edges if not edge.is_chained and edge.edge.downstream in vertex.uids
            )
        ]
        nodes.append(
            {
                "id": vertex.id,
                "operator": "",
                "operator_strategy": "",
                "parallelism": vertex.parallelism,
                "description": vertex.name,
                "optimizer_properties": {},
                "operators": [
                    {"uid": p.uid, "name": p.operator.name, "line": str(p.operator.line)}
                    for p in vertex.chain.operators
                ],
                "inputs": inputs,
            }
        )
    return {"jid": job.id, "name": job.name, "type": "STREAMING", "nodes": nodes}


def job_config(job: ServedJob) -> dict[str, Any]:
    config = job.config
    return {
        "jid": job.id,
        "name": job.name,
        "execution-config": {
            "execution-mode": "PIPELINED",
            "restart-strategy": strategy_of(config),
            "job-parallelism": max((vertex.parallelism for vertex in job.vertices()), default=1),
            "object-reuse-mode": config.object_reuse,
            "user-config": by_key(config),
        },
        "settings": settings_of(config),
    }


def exceptions(job: ServedJob, limit: int) -> dict[str, Any]:
    """In the shapes of Flink 2 and, for older dashboards, of 1.x."""
    failures = list(reversed(job.view.snapshot().failures))
    shown = failures[:limit]
    workers = {
        span.failure: f"{span.worker.host}:{span.worker.pid}"
        for span in job.memory.attempts()
        if span.worker is not None
    }
    newest = failures[0] if failures else None
    return {
        "root-exception": None if newest is None else stack_trace(newest),
        "timestamp": None if newest is None else ms(newest.at),
        "truncated": len(failures) > limit,
        "all-exceptions": [
            {
                "exception": stack_trace(failure),
                "task": task_name(failure),
                "location": workers.get(failure, ""),
                "endpoint": workers.get(failure, ""),
                "timestamp": ms(failure.at),
                "taskManagerId": workers.get(failure, ""),
            }
            for failure in shown
        ],
        "exceptionHistory": {
            "entries": [
                {
                    "exceptionName": "WorkerLost" if failure.lost_slot else failure.kind or "JobFailed",
                    "stacktrace": stack_trace(failure),
                    "timestamp": ms(failure.at),
                    "failureLabels": {},
                    "taskName": task_name(failure),
                    "endpoint": workers.get(failure, ""),
                    "location": workers.get(failure, ""),
                    "taskManagerId": workers.get(failure, ""),
                    "concurrentExceptions": [],
                    "attempt": str(failure.attempt),
                    "uid": failure.uid,
                    "user-line": failure.user_line,
                    "restart-in-ms": None if failure.restart_in_s is None else ms(failure.restart_in_s),
                }
                for failure in shown
            ],
            "truncated": len(failures) > limit,
        },
    }


def stack_trace(failure: AttemptFailed) -> str:
    return f"{failure.error}\n\n{failure.cause}" if failure.cause else failure.error


def task_name(failure: AttemptFailed) -> str:
    return f"{failure.operator} - subtask {failure.subtask}" if failure.operator else ""


def user_counters(snapshot: JobSnapshot, uids: set[str] | None = None) -> dict[str, int]:
    """Added up over the subtasks of all operators, or of these."""
    totals: dict[str, int] = {}
    for (uid, _), metrics in counts_of(snapshot.heartbeats).items():
        if uids is None or uid in uids:
            for name, value in metrics.counters.items():
                totals[name] = totals.get(name, 0) + value
    return totals


def accumulator_list(counters: dict[str, int]) -> list[dict[str, str]]:
    return [{"name": name, "type": "LongCounter", "value": str(value)} for name, value in sorted(counters.items())]


def accumulators(job: ServedJob) -> dict[str, Any]:
    return {
        "job-accumulators": [],
        "user-task-accumulators": accumulator_list(user_counters(job.view.snapshot())),
        "serialized-user-task-accumulators": {},
    }


def job_status(job: ServedJob) -> dict[str, Any]:
    return {"status": flink_status(job.view.status)}
