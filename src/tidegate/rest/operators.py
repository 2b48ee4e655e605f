"""Routes of our own for one job: its operators at a glance, and its log. Driver; pure."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from tidegate.coordinator.bottleneck import HotShare, VertexLoad, bottleneck
from tidegate.coordinator.hottest import OperatorKey, hottest
from tidegate.coordinator.observing import JobStatus
from tidegate.graph.forms import Form, forms
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.rest.metrics import Measured
from tidegate.rest.numbers import ms
from tidegate.rest.problems import bad_request
from tidegate.rest.served import ServedJob, Vertex

LINES = 1000  #: of the log, in one answer
HOTTEST = 50  #: keys in one answer, over all operators


def operators(job: ServedJob) -> dict[str, Any]:
    """In the order of the plan; a chain's operators together, its head first."""
    measured = Measured.of(job)
    rates = job.operator_rates()
    hot = hottest(measured.snapshot.heartbeats.values(), HOTTEST)
    found = forms([planned.operator for planned in job.plan.operators], [edge.edge for edge in job.plan.edges])
    of = {str(uid): _form(form) for uid, form in found.items()}
    return {
        "now": ms(measured.now),
        "bottleneck": _verdict(job, measured, hot),
        "operators": [
            _operator(measured, vertex, uid, rates.get(uid), [key for key in hot if key.uid == uid])
            | {"form": of.get(uid)}
            for vertex in job.vertices()
            for uid in vertex.uids
        ],
    }


def _verdict(job: ServedJob, measured: Measured, hot: tuple[OperatorKey, ...]) -> dict[str, Any] | None:
    """None where nothing flows."""
    if measured.snapshot.status is not JobStatus.RUNNING:
        return None
    verdict = bottleneck([_vertex_load(job, measured, vertex, hot) for vertex in job.vertices()])
    return {
        "sentence": verdict.sentence,
        "advice": verdict.advice,
        "vertex": verdict.vertex,
        "subtask": verdict.subtask,
        "isBottleneck": verdict.is_bottleneck,
    }


def _vertex_load(job: ServedJob, measured: Measured, vertex: Vertex, hot: tuple[OperatorKey, ...]) -> VertexLoad:
    vertex_of = {uid: other.id for other in job.vertices() for uid in other.uids}
    hottest_of: dict[int, HotShare] = {}
    for key in hot:  # the hottest first
        if key.uid in vertex.uids:
            hottest_of.setdefault(key.subtask, HotShare(key.key, key.share))
    return VertexLoad(
        id=vertex.id,
        name=vertex.name,
        inputs=tuple(
            vertex_of[edge.edge.upstream]
            for edge in job.plan.edges
            if not edge.is_chained and edge.edge.downstream in vertex.uids
        ),
        subtasks={index: measured.loads[slot] for index, slot in enumerate(vertex.slots()) if slot in measured.loads},
        hottest=hottest_of,
    )


def hot_key(hot: OperatorKey) -> dict[str, Any]:
    """`share`: of the operator's records of late, estimated from a sample."""
    return {
        "uid": hot.uid,
        "subtask": hot.subtask,
        "key": hot.key,
        "share": round(hot.share, 4),
        "records": hot.records,
    }


def _operator(measured: Measured, vertex: Vertex, uid: str, rates: Any, hot: list[OperatorKey]) -> dict[str, Any]:
    planned = next(planned for planned in vertex.chain.operators if planned.uid == uid)
    found = [m for index in range(vertex.parallelism) if (m := measured.counts.get((uid, index))) is not None]
    marks = [m.watermark for m in found if m.watermark is not None]
    counters: dict[str, int] = {}
    for metrics in found:
        for name, value in metrics.counters.items():
            counters[name] = counters.get(name, 0) + value
    watermark = min(marks) if len(marks) == len(found) and marks else None
    is_late = watermark not in (None, MAX_WATERMARK) and not measured.snapshot.status.is_terminal
    state = [measured.of_operator(uid, i, vertex.slot(i)).get("stateSize", 0) for i in range(vertex.parallelism)]
    return {
        "uid": uid,
        "name": planned.operator.name,
        "line": str(planned.operator.line),
        "vertex": vertex.id,
        "isHead": vertex.chain.head.uid == uid,
        "parallelism": vertex.parallelism,
        "recordsIn": sum(m.records_in for m in found),
        "recordsOut": sum(m.records_out for m in found),
        "inPerSecond": None if rates is None else rates.in_per_s,
        "outPerSecond": None if rates is None else rates.out_per_s,
        "busy": None if rates is None else rates.busy,
        "idle": None if rates is None else rates.idle,
        "backPressured": None if rates is None else rates.backpressured,
        "watermark": watermark,
        "watermarkLag": ms(measured.now) - (watermark or 0) if is_late else None,
        "stateSize": sum(state),
        "bytesIn": sum(m.bytes_in for m in found),
        "bytesOut": sum(m.bytes_out for m in found),
        "counters": counters,
        "hotKeys": [hot_key(key) for key in hot],
    }


def _form(form: Form) -> dict[str, Any]:
    """How it works on its records; sources and sinks have none."""
    return {"byColumns": form.columns, "says": str(form), "why": form.why, "instead": form.instead}


def log_lines(job: ServedJob, number: int, level: str) -> dict[str, Any]:
    """:raises Problem: for a level that is none."""
    least = logging.getLevelNamesMapping().get(level.upper())
    if least is None:
        raise bad_request("level must be DEBUG, INFO, WARNING or ERROR")
    following, lines = job.view.lines_from(number)
    levels = logging.getLevelNamesMapping()
    wanted = [asdict(line) for line in lines if levels.get(line.level, logging.INFO) >= least]
    return {"lines": wanted[-LINES:], "next": following}
