"""The table of routes: Flink's, then our own. Driver. The server, docs/rest.md and the OpenAPI description are made from it.

Each is reachable with and without `/v1` before it, as in Flink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.rest import (
    actions,
    applications,
    attempts,
    checkpoints,
    driver,
    jobs,
    metrics,
    requirements,
    vertices,
    workers,
)
from tidegate.rest.actions import CHECKPOINT_TYPES, FORMATS, Answer
from tidegate.rest.calls import Call, PlainText
from tidegate.rest.explain import explain
from tidegate.rest.failures import failures
from tidegate.rest.flame_graph import TYPES, flame_graph
from tidegate.rest.numbers import AGGREGATES, aggregated
from tidegate.rest.operators import log_lines, operators
from tidegate.rest.past import past
from tidegate.rest.problems import bad_request, not_found
from tidegate.rest.runtime_environment import drivers, runtime_environment
from tidegate.rest.served import ServedJob, Vertex
from tidegate.rest.worker_threads import thread_dump

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
    is_text: bool = False  #: the answer is plain text, not JSON


def _of_job(answer: Callable[[ServedJob], Any]) -> Handler:
    return lambda call: (200, answer(call.job()))


def _of_jobs(answer: Callable[[list[ServedJob]], Any]) -> Handler:
    return lambda call: (200, answer(call.jobs.all()))


def _of_vertex(answer: Callable[[ServedJob, Vertex], Any]) -> Handler:
    def handle(call: Call) -> Answer:
        job = call.job()
        return 200, answer(job, call.vertex(job))

    return handle


def _of_worker(answer: Callable[[workers.WorkerOf], Any]) -> Handler:
    return lambda call: (200, answer(call.worker()))


def _text(answer: Callable[[Call], str]) -> Handler:
    return lambda call: (200, PlainText(answer(call)))


def _fixed(answer: Callable[[], Any]) -> Handler:
    """The same for every job; of one that is not there it is refused."""

    def handle(call: Call) -> Answer:
        if "jobid" in call.params:
            call.job()
        return 200, answer()

    return handle


def _exceptions(call: Call) -> Answer:
    return 200, jobs.exceptions(call.job(), _limit(call))


def _application_exceptions(call: Call) -> Answer:
    return 200, applications.failures(call.job(), _limit(call))


def _limit(call: Call) -> int:
    return min(call.number("maxExceptions", MAX_EXCEPTIONS), 100)


def _rescale(call: Call) -> Answer:
    return 200, attempts.rescale_details(call.job(), call.params["rescaleuuid"])


def _driver_config(call: Call) -> Answer:
    return 200, driver.config([call.job()] if "jobid" in call.params else call.jobs.all())


def _driver_metrics(call: Call) -> Answer:
    return 200, metrics.listed(driver.numbers(call.jobs.all()), call.names("get"))


def _worker_metrics(call: Call) -> Answer:
    return 200, metrics.listed(workers.numbers_of(call.worker()), call.names("get"))


def _workers_metrics(call: Call) -> Answer:
    chosen = call.names("taskmanagers")
    found = [w for w in workers.workers_of(call.jobs.all()) if chosen is None or w.id in chosen]
    return 200, aggregated([workers.numbers_of(worker) for worker in found], call.names("get"), _aggregates(call))


def _worker_log(call: Call) -> str:
    worker = call.worker()
    if call.params.get("log", workers.LOG) != workers.LOG:
        raise not_found(f"a worker has one log, {workers.LOG}")
    return workers.log_of(worker)


def _worker_stdout(call: Call) -> str:
    call.worker()
    return driver.STDOUT


def _log_url(path: str) -> Handler:
    def handle(call: Call) -> Answer:
        call.job()
        return 200, {"url": path.format_map(call.params)}

    return handle


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
    return 200, aggregated(samples, call.names("get"), _aggregates(call))


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
    return 200, aggregated(samples, call.names("get"), _aggregates(call))


def _aggregates(call: Call) -> list[str]:
    asked = call.names("agg")
    if asked is None:
        return list(AGGREGATES)
    for name in asked:
        if name not in AGGREGATES:
            raise bad_request(f"agg must be a list of {', '.join(AGGREGATES)}")
    return asked


def _log(call: Call) -> Answer:
    return 200, log_lines(call.job(), call.number("from", 0), call.query.get("level", "DEBUG"))


_GET = (Field("get"),)
_AGGREGATED = (Field("get"), Field("agg"))
_TRIGGER = Field("triggerId")
_FORMAT = Field("formatType", words=FORMATS)
_V = "/jobs/{jobid}/vertices/{vertexid}"

_A = "/applications/{jobid}"
_EXCEPTIONS = (Field("maxExceptions", "integer"),)

FLINKS = (
    Route("GET", "/applications/overview", _of_jobs(applications.overview), "jobs, each as an application of its own"),
    Route("GET", _A, _of_job(applications.details), "one of them: status, times, its job"),
    Route("GET", f"{_A}/exceptions", _application_exceptions, "its failures, the newest first", _EXCEPTIONS),
    Route("GET", f"{_A}/jobmanager/config", _driver_config, "its settings, by key"),
    Route("POST", f"{_A}/cancel", actions.cancel, "cancel it", (), (), 202),
    Route("GET", "/config", lambda call: (200, jobs.cluster_config()), "the server: versions, what a dashboard may do"),
    Route("GET", "/overview", _of_jobs(jobs.cluster_overview), "slots in use, jobs by status"),
    Route("GET", "/jobs", _of_jobs(jobs.job_list), "ids and statuses"),
    Route("GET", "/jobs/overview", _of_jobs(jobs.jobs_overview), "names, statuses, times, tasks"),
    Route("GET", "/jobs/metrics", _jobs_metrics, "metrics of all jobs, aggregated", _AGGREGATED),
    Route("GET", "/jobs/{jobid}", _of_job(jobs.job_details), "everything of a job: status, times, vertices, plan"),
    Route("PATCH", "/jobs/{jobid}", actions.cancel, "cancel it", (Field("mode", words=("cancel",)),), (), 202),
    Route("GET", "/jobs/{jobid}/yarn-cancel", actions.cancel, "the same, for Flink's web pages alone", success=202),
    Route("GET", "/jobs/{jobid}/status", _of_job(jobs.job_status), "its status alone"),
    Route("GET", "/jobs/{jobid}/plan", _of_job(lambda job: {"plan": jobs.plan_of(job)}), "vertices and edges"),
    Route("GET", "/jobs/{jobid}/config", _of_job(jobs.job_config), "its settings"),
    Route("GET", "/jobs/{jobid}/exceptions", _exceptions, "failures, the newest first", _EXCEPTIONS),
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
    Route("GET", "/jobs/{jobid}/rescales/overview", _of_job(attempts.rescales_overview),
          "how often it was placed on slots, and the latest of each kind: each attempt is one"),
    Route("GET", "/jobs/{jobid}/rescales/history", _of_job(attempts.rescales_history), "each of them, the newest first"),
    Route("GET", "/jobs/{jobid}/rescales/summary", _of_job(attempts.rescales_summary), "how long they took"),
    Route("GET", "/jobs/{jobid}/rescales/config", _of_job(attempts.rescales_config), "how long it waits for slots"),
    Route("GET", "/jobs/{jobid}/rescales/details/{rescaleuuid}", _rescale, "one of them, with its vertices"),
    Route("GET", "/jobs/{jobid}/jobmanager/config", _driver_config, "its settings, by key"),
    Route("GET", "/jobs/{jobid}/jobmanager/environment", _fixed(driver.environment), "the driver's Python"),
    Route("GET", "/jobs/{jobid}/jobmanager/log-url", _log_url("/jobmanager/logs/{jobid}.log"), "where its log is"),
    Route("GET", "/jobs/{jobid}/taskmanagers/{taskmanagerid}/log-url", _log_url("/taskmanagers/{taskmanagerid}/log"),
          "where a worker's log is"),
    Route("GET", "/jobmanager/config", _driver_config, "the settings of this driver's jobs, by key"),
    Route("GET", "/jobmanager/environment", _fixed(driver.environment), "the driver's Python"),
    Route("GET", "/jobmanager/metrics", _driver_metrics, "jobs and slots of this driver", _GET),
    Route("GET", "/jobmanager/thread-dump", _fixed(driver.thread_dump), "the driver's threads, and where they are"),
    Route("GET", "/jobmanager/log", _text(lambda call: driver.log(call.jobs.all())), "lines of all jobs' logs",
          is_text=True),
    Route("GET", "/jobmanager/logs", _of_jobs(driver.logs), "a log for each job"),
    Route("GET", "/jobmanager/logs/{log}", _text(lambda call: driver.log_file(call.jobs.all(), call.params["log"])),
          "one of them", is_text=True),
    Route("GET", "/jobmanager/stdout", _text(lambda call: driver.STDOUT), "where to look for it", is_text=True),
    Route("GET", "/taskmanagers", _of_jobs(workers.task_managers),
          "worker processes: what runs in them, `residentBytes`, `coresBusy`"),
    Route("GET", "/taskmanagers/metrics", _workers_metrics, "metrics, aggregated over workers",
          (*_AGGREGATED, Field("taskmanagers"))),
    Route("GET", "/taskmanagers/{taskmanagerid}", _of_worker(workers.task_manager), "one worker; its id is host:pid"),
    Route("GET", "/taskmanagers/{taskmanagerid}/metrics", _worker_metrics, "metrics of its subtasks", _GET),
    Route("GET", "/taskmanagers/{taskmanagerid}/log", _text(_worker_log), "what it has logged in this attempt", is_text=True),
    Route("GET", "/taskmanagers/{taskmanagerid}/logs", _of_worker(workers.logs_of), "the name of its log"),
    Route("GET", "/taskmanagers/{taskmanagerid}/logs/{log}", _text(_worker_log), "that log", is_text=True),
    Route("GET", "/taskmanagers/{taskmanagerid}/stdout", _text(_worker_stdout), "where to look for it", is_text=True),
    Route("GET", "/taskmanagers/{taskmanagerid}/thread-dump", thread_dump, "where its task's thread has been of late"),
    Route("GET", _V, _of_vertex(vertices.vertex_details), "a vertex and its subtasks"),
    Route("GET", f"{_V}/subtasktimes", _of_vertex(vertices.subtask_times), "since when its subtasks run"),
    Route("GET", f"{_V}/taskmanagers", _of_vertex(vertices.task_managers), "where its subtasks run"),
    Route("GET", f"{_V}/backpressure", _of_vertex(vertices.back_pressure), "busy, idle, back-pressured; each subtask"),
    Route("GET", f"{_V}/watermarks", _of_vertex(vertices.watermarks), "event time of each subtask"),
    Route("GET", f"{_V}/accumulators", _of_vertex(vertices.accumulators), "the user's counters"),
    Route("GET", f"{_V}/metrics", _vertex_metrics, "metrics of its subtasks: 0.numRecordsIn", _GET),
    Route("GET", f"{_V}/flamegraph", flame_graph,
          "where its threads are: sampled while somebody asks; `operator`, `seconds` and nodes' `owner`, `line` are ours",
          (Field("type", words=TYPES), Field("subtaskindex", "integer"), Field("operator"), Field("seconds", "integer"))),
    Route("GET", f"{_V}/subtasks/accumulators", _of_vertex(vertices.subtask_accumulators), "counters of each subtask"),
    Route("GET", f"{_V}/subtasks/metrics", _subtasks_metrics, "metrics, aggregated over subtasks", _AGGREGATED),
    Route("GET", f"{_V}/subtasks/{{subtaskindex}}", _subtask, "one subtask"),
    Route("GET", f"{_V}/subtasks/{{subtaskindex}}/metrics", _subtask_metrics, "its metrics", _GET),
)  # fmt: skip

OURS = (
    Route("GET", "/jobs/{jobid}/operators", _of_job(operators),
          "each operator with rates, load, watermark, state size, counters, hottest keys, and `form`: whether it works by "
          "columns, why not, and what to change (null for sources and sinks)", is_flinks=False),
    Route("GET", "/jobs/{jobid}/past", _of_job(past),
          "its last 30 minutes, a moment every 5 seconds: throughput, lag, load, checkpoints, restarts", is_flinks=False),
    Route("GET", "/jobs/{jobid}/timeline", _of_job(attempts.timeline),
          "its attempts: when each began, ran and ended, and why", is_flinks=False),
    Route("GET", "/jobs/{jobid}/failures", _of_job(failures),
          "failures, equal ones together: how often, what was lost, what it continued from", is_flinks=False),
    Route("GET", "/jobs/{jobid}/environment", _of_job(runtime_environment), "versions, and Spark's settings", is_flinks=False),
    Route("GET", "/drivers", _fixed(drivers), "running jobs of this user, with the addresses of their drivers",
          is_flinks=False),
    Route("GET", "/jobs/{jobid}/checkpoint-history", _of_job(checkpoints.history),
          "a few numbers of each of the last 200 checkpoints, for plots", is_flinks=False),
    Route("GET", "/jobs/{jobid}/logs", _log, "lines of the job's log from number `from` on, and the number to ask for next",
          (Field("from", "integer"), Field("level")), is_flinks=False),
    Route("GET", "/jobs/{jobid}/checkpoints/details/{checkpointid}/explain", _explain,
          "where a checkpoint's time went, its largest states, the hottest keys, who has not answered", is_flinks=False),
)  # fmt: skip

#: Paths with fewer parameters first: /checkpoints/config is not a trigger's id.
ROUTES = tuple(sorted((*FLINKS, *OURS), key=lambda route: route.path.count("{")))
