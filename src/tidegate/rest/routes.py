"""The table of routes: Flink's, then our own. Driver. The server, docs/rest.md and the OpenAPI description are made from it.

Each is reachable with and without `/v1` before it, as in Flink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.rest import actions, checkpoints, jobs, metrics, requirements, vertices
from tidegate.rest.actions import CHECKPOINT_TYPES, FORMATS, Answer
from tidegate.rest.calls import Call
from tidegate.rest.explain import explain
from tidegate.rest.operators import log_lines, operators
from tidegate.rest.problems import bad_request
from tidegate.rest.served import ServedJob, Vertex

MAX_EXCEPTIONS = 20

Handler = Callable[[Call], Answer]


@dataclass(frozen=True, slots=True)
class Field:
    """A parameter of the query, or a field of the body."""

    name: str
    kind: str = "string"  #: JSON Schema's word
    words: tuple[str, ...] = ()
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str  #: without /v1
    handler: Handler
    says: str
    query: tuple[Field, ...] = ()
    body: tuple[Field, ...] | None = None  #: None: it has none
    success: int = 200
    is_flinks: bool = True


def _of_job(answer: Callable[[ServedJob], Any]) -> Handler:
    return lambda call: (200, answer(call.job()))


def _of_jobs(answer: Callable[[list[ServedJob]], Any]) -> Handler:
    return lambda call: (200, answer(call.jobs.all()))


def _of_vertex(answer: Callable[[ServedJob, Vertex], Any]) -> Handler:
    def handle(call: Call) -> Answer:
        job = call.job()
        return 200, answer(job, call.vertex(job))

    return handle


def _exceptions(call: Call) -> Answer:
    return 200, jobs.exceptions(call.job(), min(call.number("maxExceptions", MAX_EXCEPTIONS), 100))


def _checkpoint(call: Call) -> Answer:
    return 200, checkpoints.details(call.job(), call.checkpoint())


def _checkpoint_subtasks(call: Call) -> Answer:
    job = call.job()
    return 200, checkpoints.subtasks(job, call.checkpoint(), call.vertex(job).id)


def _explain(call: Call) -> Answer:
    return 200, explain(call.job(), call.checkpoint())


def _subtask(call: Call) -> Answer:
    job = call.job()
    vertex = call.vertex(job)
    return 200, vertices.subtask_entry(job, job.view.snapshot(), vertex, call.subtask(vertex))


def _jobs_metrics(call: Call) -> Answer:
    samples = [metrics.Measured.of(job).of_job() for job in call.jobs.all()]
    return 200, metrics.aggregated(samples, call.names("get"), _aggregates(call))


def _job_metrics(call: Call) -> Answer:
    return 200, metrics.listed(metrics.Measured.of(call.job()).of_job(), call.names("get"))


def _vertex_metrics(call: Call) -> Answer:
    job = call.job()
    return 200, metrics.vertex_metrics(job, call.vertex(job), call.names("get"))


def _subtask_metrics(call: Call) -> Answer:
    job = call.job()
    vertex = call.vertex(job)
    return 200, metrics.listed(metrics.Measured.of(job).of_subtask(vertex, call.subtask(vertex)), call.names("get"))


def _subtasks_metrics(call: Call) -> Answer:
    job = call.job()
    vertex = call.vertex(job)
    measured = metrics.Measured.of(job)
    samples = [measured.of_subtask(vertex, index) for index in range(vertex.parallelism)]
    return 200, metrics.aggregated(samples, call.names("get"), _aggregates(call))


def _aggregates(call: Call) -> list[str]:
    asked = call.names("agg")
    if asked is None:
        return list(metrics.AGGREGATES)
    for name in asked:
        if name not in metrics.AGGREGATES:
            raise bad_request(f"agg must be a list of {', '.join(metrics.AGGREGATES)}")
    return asked


def _log(call: Call) -> Answer:
    return 200, log_lines(call.job(), call.number("from", 0), call.query.get("level", "DEBUG"))


_GET = (Field("get"),)
_AGGREGATED = (Field("get"), Field("agg"))
_TRIGGER = Field("triggerId")
_FORMAT = Field("formatType", words=FORMATS)
_V = "/jobs/{jobid}/vertices/{vertexid}"

FLINKS = (
    Route("GET", "/config", lambda call: (200, jobs.cluster_config()), "the server: versions, what a dashboard may do"),
    Route("GET", "/overview", _of_jobs(jobs.cluster_overview), "slots in use, jobs by status"),
    Route("GET", "/jobs", _of_jobs(jobs.job_list), "ids and statuses"),
    Route("GET", "/jobs/overview", _of_jobs(jobs.jobs_overview), "names, statuses, times, tasks"),
    Route("GET", "/jobs/metrics", _jobs_metrics, "metrics of all jobs, aggregated", _AGGREGATED),
    Route("GET", "/jobs/{jobid}", _of_job(jobs.job_details), "everything of a job: status, times, vertices, plan"),
    Route("PATCH", "/jobs/{jobid}", actions.cancel, "cancel it", (Field("mode", words=("cancel",)),), (), 202),
    Route("GET", "/jobs/{jobid}/status", _of_job(jobs.job_status), "its status alone"),
    Route("GET", "/jobs/{jobid}/plan", _of_job(lambda job: {"plan": jobs.plan_of(job)}), "vertices and edges"),
    Route("GET", "/jobs/{jobid}/config", _of_job(jobs.job_config), "its settings"),
    Route("GET", "/jobs/{jobid}/exceptions", _exceptions, "failures, the newest first", (Field("maxExceptions", "integer"),)),
    Route("GET", "/jobs/{jobid}/accumulators", _of_job(jobs.accumulators), "the user's counters, over all subtasks"),
    Route("GET", "/jobs/{jobid}/metrics", _job_metrics, "names of metrics, or with get=a,b their values", _GET),
    Route("GET", "/jobs/{jobid}/resource-requirements", _of_job(requirements.requirements), "parallelism of each vertex"),
    Route("PUT", "/jobs/{jobid}/resource-requirements", requirements.require,
          "run vertices at another parallelism: `upperBound` of each", body=()),
    Route("GET", "/jobs/{jobid}/checkpoints", _of_job(checkpoints.statistics), "counts, summary, latest, history"),
    Route("POST", "/jobs/{jobid}/checkpoints", actions.checkpoint, "take one now",
          body=(Field("checkpointType", words=CHECKPOINT_TYPES), _TRIGGER), success=202),
    Route("GET", "/jobs/{jobid}/checkpoints/config", _of_job(checkpoints.settings), "how checkpoints are taken"),
    Route("GET", "/jobs/{jobid}/checkpoints/details/{checkpointid}", _checkpoint, "one checkpoint, with its vertices"),
    Route("GET", "/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}", _checkpoint_subtasks,
          "one checkpoint, with the subtasks of a vertex"),
    Route("GET", "/jobs/{jobid}/checkpoints/{triggerid}", actions.checkpoint_result, "what became of a checkpoint asked for"),
    Route("POST", "/jobs/{jobid}/savepoints", actions.savepoint, "take a savepoint",
          body=(Field("target-directory"), Field("cancel-job", "boolean"), _FORMAT, _TRIGGER), success=202),
    Route("GET", "/jobs/{jobid}/savepoints/{triggerid}", actions.savepoint_result, "what became of a savepoint or stop"),
    Route("POST", "/jobs/{jobid}/stop", actions.stop, "stop with a savepoint",
          body=(Field("targetDirectory"), Field("drain", "boolean"), _FORMAT, _TRIGGER), success=202),
    Route("POST", "/savepoint-disposal", actions.dispose, "delete a savepoint",
          body=(Field("savepoint-path", required=True), _TRIGGER)),
    Route("GET", "/savepoint-disposal/{triggerid}", actions.dispose_result, "what became of it"),
    Route("PATCH", "/jobs/{jobid}/rescaling", actions.rescale, "run it at another parallelism",
          (Field("parallelism", "integer", required=True),), (), 202),
    Route("GET", "/jobs/{jobid}/rescaling/{triggerid}", actions.rescale_result, "what became of it"),
    Route("GET", _V, _of_vertex(vertices.vertex_details), "a vertex and its subtasks"),
    Route("GET", f"{_V}/subtasktimes", _of_vertex(vertices.subtask_times), "since when its subtasks run"),
    Route("GET", f"{_V}/taskmanagers", _of_vertex(vertices.task_managers), "where its subtasks run"),
    Route("GET", f"{_V}/backpressure", _of_vertex(vertices.back_pressure), "busy, idle, back-pressured; each subtask"),
    Route("GET", f"{_V}/watermarks", _of_vertex(vertices.watermarks), "event time of each subtask"),
    Route("GET", f"{_V}/accumulators", _of_vertex(vertices.accumulators), "the user's counters"),
    Route("GET", f"{_V}/metrics", _vertex_metrics, "metrics of its subtasks: 0.numRecordsIn", _GET),
    Route("GET", f"{_V}/subtasks/accumulators", _of_vertex(vertices.subtask_accumulators), "counters of each subtask"),
    Route("GET", f"{_V}/subtasks/metrics", _subtasks_metrics, "metrics, aggregated over subtasks", _AGGREGATED),
    Route("GET", f"{_V}/subtasks/{{subtaskindex}}", _subtask, "one subtask"),
    Route("GET", f"{_V}/subtasks/{{subtaskindex}}/metrics", _subtask_metrics, "its metrics", _GET),
)  # fmt: skip

OURS = (
    Route("GET", "/jobs/{jobid}/operators", _of_job(operators),
          "each operator with rates, load, watermark, state size, counters and hottest keys", is_flinks=False),
    Route("GET", "/jobs/{jobid}/checkpoint-history", _of_job(checkpoints.history),
          "a few numbers of each of the last 200 checkpoints, for plots", is_flinks=False),
    Route("GET", "/jobs/{jobid}/logs", _log, "lines of the job's log from number `from` on, and the number to ask for next",
          (Field("from", "integer"), Field("level")), is_flinks=False),
    Route("GET", "/jobs/{jobid}/checkpoints/details/{checkpointid}/explain", _explain,
          "where a checkpoint's time went, its largest states, the hottest keys, who has not answered", is_flinks=False),
)  # fmt: skip

#: Paths with fewer parameters first: /checkpoints/config is no trigger's id.
ROUTES = tuple(sorted((*FLINKS, *OURS), key=lambda route: route.path.count("{")))
