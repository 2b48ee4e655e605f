"""Applications, as Flink 2.3 lists them above jobs: here each job is one, with the job's id. Driver; pure."""

from __future__ import annotations

from typing import Any

from tidegate.rest.jobs import exceptions, overview_entry, times_of, timestamps_of
from tidegate.rest.served import ServedJob, flink_status

#: Flink's states of an application; what its jobs do meanwhile is told by the jobs.
_STATES = ("CREATED", "RUNNING", "FAILING", "FAILED", "CANCELING", "CANCELED", "FINISHED")


def overview(jobs: list[ServedJob]) -> dict[str, Any]:
    return {"applications": [_entry(job) | {"jobs": {flink_status(job.view.status): 1}} for job in jobs]}


def details(job: ServedJob) -> dict[str, Any]:
    times = timestamps_of(job, job.view.snapshot())
    return _entry(job) | {
        "timestamps": {state: times.get(state, 0) for state in _STATES},
        "jobs": [overview_entry(job)],
    }


def failures(job: ServedJob, limit: int) -> dict[str, Any]:
    entries = exceptions(job, limit)["exceptionHistory"]["entries"]
    kept = ("exceptionName", "stacktrace", "timestamp")
    return {
        "exceptionHistory": {"entries": [{**{key: e[key] for key in kept}, "jobId": job.id} for e in entries]},
    }


def _entry(job: ServedJob) -> dict[str, Any]:
    snapshot = job.view.snapshot()
    status = flink_status(snapshot.status)
    return {
        "id": job.id,
        "name": job.name,
        **times_of(job, snapshot),
        "status": status if status in _STATES else "RUNNING",
    }
