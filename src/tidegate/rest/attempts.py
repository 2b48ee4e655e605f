"""The attempts of a job as REST tells them: our own timeline, and Flink's rescales. Driver; pure.

Flink's adaptive scheduler calls every placement of a job a rescale: the first, one that was asked for, and one after a
failure. So each attempt is one. It is complete when the attempt runs.
"""

from __future__ import annotations

import uuid
from typing import Any

from tidegate.coordinator.timeline import MAX_ATTEMPTS, AttemptEnd, AttemptSpan
from tidegate.rest.numbers import ms, summary
from tidegate.rest.problems import not_found
from tidegate.rest.served import ServedJob

_NAMESPACE = uuid.UUID("5c1b7a0e-5d1c-4f0e-9a53-7f1d6f0c2b1d")
_NO_RESOURCES = {
    "cpuCores": 1.0,
    "taskHeapMemory": 0,
    "taskOffHeapMemory": 0,
    "managedMemory": 0,
    "networkMemory": 0,
    "extendedResources": {},
}


def timeline(job: ServedJob) -> dict[str, Any]:
    """The oldest first."""
    spans = job.memory.attempts()
    names = {vertex.id: vertex.name for vertex in job.vertices()}
    return {
        "now": ms(job.memory.wall_clock()),
        "attempts": [_attempt(span, spans[n - 1] if n else None, names) for n, span in enumerate(spans)],
    }


def _attempt(span: AttemptSpan, before: AttemptSpan | None, names: dict[str, str]) -> dict[str, Any]:
    changed = before is not None and before.parallelism != span.parallelism
    return {
        "attempt": str(span.attempt),
        "began": _cause(before),
        "started": ms(span.started_at),
        "running": _ms(span.running_at),
        "ended": _ms(span.ended_at),
        "end": None if span.end is None else span.end.value,
        "restoredFrom": span.restored_from,
        "subtasks": sum(span.parallelism.values()),
        "parallelism": [
            {"vertex": id, "name": names.get(id, id), "before": before.parallelism.get(id, 0), "after": number}
            for id, number in span.parallelism.items()
            if before is not None and before.parallelism.get(id) != number
        ]
        if changed
        else [],
        "why": span.detail if span.failure is None else (span.failure.error.splitlines() or [""])[0],
        "replayed": span.replayed,
    }


def _cause(before: AttemptSpan | None) -> str:
    """Flink's words."""
    if before is None:
        return "INITIAL_SCHEDULE"
    return "UPDATE_REQUIREMENT" if before.end is AttemptEnd.RESCALED else "RECOVERABLE_FAILOVER"


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else ms(seconds)


# -- Flink's rescales -------------------------------------------------------------------------------------------------


def rescales_overview(job: ServedJob) -> dict[str, Any]:
    found = rescales_history(job)
    latest = {state: next((r for r in found if r["terminalState"] == state.upper()), None) for state in _STATES}
    return {"rescalesCounts": _counts(found), "latest": latest}


def rescales_summary(job: ServedJob) -> dict[str, Any]:
    found = rescales_history(job)

    def of(state: str | None) -> dict[str, float]:
        ended = [r for r in found if r["terminalState"] is not None and state in (None, r["terminalState"])]
        return summary([r["endTimestampInMillis"] - r["startTimestampInMillis"] for r in ended])

    return {
        "rescalesCounts": _counts(found),
        "rescalesDurationStatsInMillis": of(None),
        "completedRescalesDurationStatsInMillis": of("COMPLETED"),
        "ignoredRescalesDurationStatsInMillis": of("IGNORED"),
        "failedRescalesDurationStatsInMillis": of("FAILED"),
    }


def rescales_history(job: ServedJob) -> list[dict[str, Any]]:
    """The newest first."""
    spans = job.memory.attempts()
    names = {vertex.id: vertex.name for vertex in job.vertices()}
    numbered = list(enumerate(spans))
    return [_rescale(job.id, n, span, spans[n - 1] if n else None, names) for n, span in reversed(numbered)]


def rescale_details(job: ServedJob, id: str) -> dict[str, Any]:
    """:raises Problem: for one that is not known, or not any more."""
    for found in rescales_history(job):
        if found["rescaleUuid"] == id:
            return found
    raise not_found(f"job {job.id} has no rescale {id}")


def rescales_config(job: ServedJob) -> dict[str, Any]:
    """A job starts as soon as it has all of its slots, and waits for them as long as it may."""
    wait = ms(job.config.start_timeout_s)
    return {
        "rescaleHistoryMax": MAX_ATTEMPTS,
        "schedulerExecutionMode": "REACTIVE",
        "submissionResourceWaitTimeoutInMillis": wait,
        "submissionResourceStabilizationTimeoutInMillis": 0,
        "slotIdleTimeoutInMillis": 0,
        "executingCooldownTimeoutInMillis": 0,
        "executingResourceStabilizationTimeoutInMillis": 0,
        "maximumDelayForTriggeringRescaleInMillis": 0,
        "rescaleOnFailedCheckpointCount": 1,
    }


_STATES = ("completed", "failed", "ignored")


def _counts(found: list[dict[str, Any]]) -> dict[str, int]:
    states = [r["terminalState"] for r in found]
    counts = {state: states.count(state.upper()) for state in _STATES}
    return counts | {"inProgress": states.count(None)}


def _rescale(
    job_id: str, number: int, span: AttemptSpan, before: AttemptSpan | None, names: dict[str, str]
) -> dict[str, Any]:
    start = ms(span.started_at if before is None or before.ended_at is None else before.ended_at)
    placed = span.running_at if span.running_at is not None else span.ended_at
    state, reason = _terminal(span)
    id = str(uuid.uuid5(_NAMESPACE, f"{job_id} {span.attempt}"))
    return {
        "rescaleUuid": id,
        "resourceRequirementsUuid": str(uuid.uuid5(_NAMESPACE, f"{job_id} {sorted(span.parallelism.items())}")),
        "rescaleAttemptId": number + 1,
        "vertices": {
            vertex: {
                "jobVertexId": vertex,
                "jobVertexName": names.get(vertex, vertex),
                "slotSharingGroupId": vertex,
                "slotSharingGroupName": names.get(vertex, vertex),
                "desiredParallelism": after,
                "sufficientParallelism": after,
                "preRescaleParallelism": 0 if before is None else before.parallelism.get(vertex, 0),
                "postRescaleParallelism": after if span.running_at is not None else 0,
            }
            for vertex, after in span.parallelism.items()
        },
        "slots": {
            vertex: {
                "slotSharingGroupId": vertex,
                "slotSharingGroupName": names.get(vertex, vertex),
                "requestResourceProfile": _NO_RESOURCES,
                "desiredSlots": after,
                "minimalRequiredSlots": after,
                "preRescaleSlots": 0 if before is None else before.parallelism.get(vertex, 0),
                "postRescaleSlots": after if span.running_at is not None else 0,
                "acquiredResourceProfile": _NO_RESOURCES,
            }
            for vertex, after in span.parallelism.items()
        },
        "schedulerStates": _scheduler_states(span, before),
        "startTimestampInMillis": start,
        "endTimestampInMillis": 0 if state is None or placed is None else max(start, ms(placed)),
        "terminalState": state,
        "triggerCause": _cause(before),
        "terminatedReason": reason,
    }


def _terminal(span: AttemptSpan) -> tuple[str | None, str | None]:
    if span.running_at is not None:
        return "COMPLETED", "SUCCEEDED"
    match span.end:
        case None:
            return None, None
        case AttemptEnd.CANCELED:
            return "IGNORED", "JOB_CANCELED"
        case AttemptEnd.FINISHED:
            return "COMPLETED", "JOB_FINISHED"
        case AttemptEnd.FAILED | AttemptEnd.RESCALED:
            return "FAILED", "EXCEPTION_OCCURRED"


def _scheduler_states(span: AttemptSpan, before: AttemptSpan | None) -> list[dict[str, Any]]:
    """The pause before it, and its start."""
    marks: list[tuple[str, float | None, float | None]] = [
        ("Restarting", None if before is None else before.ended_at, span.started_at),
        ("CreatingExecutionGraph", span.started_at, span.running_at or span.ended_at),
    ]
    error = "" if span.failure is None or span.running_at is not None else span.failure.error
    return [
        {
            "state": name,
            "enterTimestampInMillis": ms(entered),
            "leaveTimestampInMillis": ms(left),
            "durationInMillis": max(0, ms(left) - ms(entered)),
            "stringifiedException": error,
        }
        for name, entered, left in marks
        if entered is not None and left is not None
    ]
