"""Failures of a job, equal ones together: how often, when, what was lost, what it continued from. Driver; pure."""

from __future__ import annotations

from typing import Any

from tidegate.coordinator.observing import AttemptFailed
from tidegate.coordinator.timeline import AttemptSpan
from tidegate.rest.jobs import stack_trace, task_name
from tidegate.rest.numbers import ms
from tidegate.rest.served import ServedJob

MAX_TIMES = 20  #: of one group, the newest


def failures(job: ServedJob) -> dict[str, Any]:
    """The group with the newest failure first."""
    groups: dict[tuple[str, ...], list[AttemptFailed]] = {}
    for failure in reversed(job.view.snapshot().failures):
        groups.setdefault(_what(failure), []).append(failure)
    followed = _followed(job.memory.attempts())
    vertex_of = {uid: vertex.id for vertex in job.vertices() for uid in vertex.uids}
    return {
        "now": ms(job.memory.wall_clock()),
        "groups": [_group(same, followed, vertex_of) for same in groups.values()],
    }


def title(failure: AttemptFailed) -> str:
    if failure.lost_slot:
        return "A worker was lost"
    return "Your function failed" if failure.kind == "UserCodeFailed" else failure.kind or "JobFailed"


def _what(failure: AttemptFailed) -> tuple[str, ...]:
    """What makes two failures equal: the same error at the same place, in whichever subtask and attempt."""
    first = "" if failure.lost_slot else (failure.error.splitlines() or [""])[0]
    return failure.kind, failure.uid, failure.user_line, str(bool(failure.lost_slot)), first


def _followed(spans: list[AttemptSpan]) -> dict[AttemptFailed, tuple[AttemptSpan, AttemptSpan | None]]:
    """By failure: the attempt that it ended, and the one after it."""
    return {
        span.failure: (span, spans[n + 1] if n + 1 < len(spans) else None)
        for n, span in enumerate(spans)
        if span.failure is not None
    }


def _group(
    same: list[AttemptFailed],
    followed: dict[AttemptFailed, tuple[AttemptSpan, AttemptSpan | None]],
    vertex_of: dict[str, str],
) -> dict[str, Any]:
    newest = same[0]
    return {
        "title": title(newest),
        "kind": newest.kind,
        "message": newest.error,
        "stacktrace": stack_trace(newest),
        "task": task_name(newest),
        "vertex": vertex_of.get(newest.uid),
        "uid": newest.uid,
        "userLine": newest.user_line,
        "count": len(same),
        "first": ms(same[-1].at),
        "last": ms(newest.at),
        "times": [_time(failure, *followed.get(failure, (None, None))) for failure in same[:MAX_TIMES]],
    }


def _time(failure: AttemptFailed, ended: AttemptSpan | None, after: AttemptSpan | None) -> dict[str, Any]:
    worker = None if ended is None else ended.worker
    runs_again = None if after is None else after.running_at
    return {
        "at": ms(failure.at),
        "attempt": str(failure.attempt),
        "subtask": failure.subtask,
        "worker": None if worker is None else str(worker),
        "restartIn": None if failure.restart_in_s is None else ms(failure.restart_in_s),
        "restoredFrom": None if after is None else after.restored_from,
        "isRestored": after is not None,
        "stoodStill": None if runs_again is None else max(0, ms(runs_again) - ms(failure.at)),
        "replayed": None if ended is None else ended.replayed,
    }
