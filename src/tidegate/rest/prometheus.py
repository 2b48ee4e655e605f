"""All metrics in Prometheus' text format. Names, types and help are those of rest/metric_table.py. Driver; pure.

# HELP flink_jobmanager_job_lastCheckpointDuration milliseconds from its trigger until it was complete
# TYPE flink_jobmanager_job_lastCheckpointDuration gauge
flink_jobmanager_job_lastCheckpointDuration{job_id="...",job_name="sums"} 12

Written by hand: prometheus_client would add `_total` to Flink's counters, and boards made for Flink ask for its names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from tidegate.coordinator.measuring import BOUNDS_S, Histogram
from tidegate.process_use import process_use
from tidegate.rest.metric_table import BY_FAMILY, Scope, Type, family_name
from tidegate.rest.metrics import Measured, Numbers, as_text, user_types
from tidegate.rest.served import ServedJob, Vertex
from tidegate.rest.vertices import endpoint
from tidegate.wire.control import ProcessUse

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

Labels = dict[str, str]


def exposition(jobs: list[ServedJob]) -> str:
    """Every metric of every job that has not ended, and of the driver."""
    page = _Page()
    page.add(Scope.DRIVER, _numbers(process_use()), {})
    for job in jobs:
        if not job.view.status.is_terminal:
            _add_job(page, job)
    return page.text()


@dataclass(slots=True)
class _Page:
    """The samples of a family stand together, below its head."""

    families: dict[str, list[str]] = field(default_factory=dict)

    def add(self, scope: Scope, numbers: Numbers, labels: Labels, types: dict[str, Type] | None = None) -> None:
        """`types`: of the user's own, which are in no table."""
        shown = _shown(labels)
        for name, value in numbers.items():
            lines = self._lines(family_name(scope, name), (types or {}).get(name, Type.GAUGE))
            lines.append(f"{family_name(scope, name)}{shown} {as_text(value)}")

    def add_histogram(self, scope: Scope, name: str, histogram: Histogram, labels: Labels) -> None:
        family = family_name(scope, name)
        lines = self._lines(family, Type.HISTOGRAM)
        totals = list(accumulate(histogram.buckets))
        for bound, total in zip([*map(str, BOUNDS_S), "+Inf"], totals):
            lines.append(f"{family}_bucket{_shown(labels | {'le': bound})} {total}")
        lines.append(f"{family}_sum{_shown(labels)} {as_text(histogram.sum_s)}")
        lines.append(f"{family}_count{_shown(labels)} {totals[-1]}")

    def text(self) -> str:
        return "\n".join(line for lines in self.families.values() for line in lines) + "\n"

    def _lines(self, family: str, users_type: Type) -> list[str]:
        if family not in self.families:
            metric = BY_FAMILY.get(family)
            help, type = ("of the user's function", users_type) if metric is None else (metric.help, metric.type)
            self.families[family] = [f"# HELP {family} {help}", f"# TYPE {family} {type.value}"]
        return self.families[family]


def _shown(labels: Labels) -> str:
    text = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels.items())
    return f"{{{text}}}" if text else ""


def _numbers(use: ProcessUse) -> Numbers:
    return {"resident_memory_bytes": use.resident_bytes, "cpu_seconds_total": use.cpu_ms / 1000}


def _add_job(page: _Page, job: ServedJob) -> None:
    measured = Measured.of(job)
    of_job = {"job_id": job.id, "job_name": job.name}
    page.add(Scope.JOB, measured.of_job(), of_job)
    _add_measures(page, job, of_job)
    workers = job.hands.workers()
    for slot, heartbeat in measured.snapshot.heartbeats.items():
        if heartbeat.process is not None:
            hello = workers.get(slot)
            place = (
                {"host": "", "tm_id": ""}
                if hello is None
                else {"host": hello.host, "tm_id": f"{hello.host}:{hello.pid}"}
            )
            page.add(Scope.WORKER, _numbers(heartbeat.process), of_job | {"slot": str(slot)} | place)
    attempt = "" if measured.snapshot.attempt is None else str(measured.snapshot.attempt.number)
    for vertex in job.vertices():
        for index in range(vertex.parallelism):
            _add_subtask(page, measured, vertex, index, of_job | _of_vertex(vertex) | {"task_attempt_num": attempt})


def _of_vertex(vertex: Vertex) -> Labels:
    return {"task_id": vertex.id, "task_name": vertex.name}


def _add_subtask(page: _Page, measured: Measured, vertex: Vertex, index: int, of_vertex: Labels) -> None:
    place = endpoint(measured.job, vertex, index)
    labels = of_vertex | {"subtask_index": str(index), "host": place.rpartition(":")[0], "tm_id": place}
    page.add(Scope.TASK, measured.of_task(vertex, index), labels)
    for planned in vertex.chain.operators:
        numbers = measured.of_operator(planned.uid, index, vertex.slot(index))
        of_operator = labels | {"operator_id": planned.uid, "operator_name": planned.operator.name}
        page.add(Scope.OPERATOR, numbers, of_operator, user_types(measured.counts.get((planned.uid, index))))


def _add_measures(page: _Page, job: ServedJob, of_job: Labels) -> None:
    measures = job.measures.read()
    for kind, number in measures.failures.items():
        page.add(Scope.OUR_JOB, {"failures_total": number}, of_job | {"kind": kind})
    for reason, number in measures.failed_checkpoints.items():
        page.add(Scope.OUR_JOB, {"failed_checkpoints_total": number}, of_job | {"reason": reason})
    for outcome, number in measures.scalings.items():
        page.add(Scope.OUR_JOB, {"scaling_decisions_total": number}, of_job | {"outcome": outcome})
    page.add_histogram(Scope.OUR_JOB, "checkpoint_duration_seconds", measures.checkpoint_s, of_job)
    for vertex in job.vertices():
        latency = measures.latency_s.get(vertex.slot(0).layer)
        if latency is not None:
            page.add_histogram(Scope.OUR_JOB, "latency_seconds", latency, of_job | _of_vertex(vertex))
