"""Puts a job together and starts it: checks first, then Spark, then the coordinator. Driver. The composition root."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import cloudpickle

from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.connectors.collect_sink import CollectedResults, CollectSink
from tidegate.console import show_out
from tidegate.coordinator.autoscaling import Autoscaler
from tidegate.coordinator.execution import JobExecution
from tidegate.coordinator.inputs import written_sources
from tidegate.coordinator.job import JobRun
from tidegate.coordinator.observing import JobView
from tidegate.errors import ConfigurationError, JobFolderInUse, UnshippableFunction
from tidegate.graph.forms import forms
from tidegate.graph.logical import MAIN_OUTPUT, LogicalGraph
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.graph.specs import KeyedProcessSpec, SinkSpec, SourceSpec, user_function_of
from tidegate.graph.unkept import unkept
from tidegate.graph.user_code import never_emits
from tidegate.other_driver import other_driver, refusal
from tidegate.overrides import current_onlooker
from tidegate.ports import CrashPoints, NoCrashPoints
from tidegate.rest.identity import job_id
from tidegate.rest.keeping import keep_history
from tidegate.rest.served import RuntimeEnvironment, ServedJob
from tidegate.settings.choices import CheckpointMode
from tidegate.state.backends import BackendSettings
from tidegate.storage.store import DRIVER_MEMORY, ObjectStore, check_create, open_store
from tidegate.task.program import CopySettings, SlotSettings
from tidegate.telling.programs import JobTeller, is_quiet
from tidegate.terminating import handle_sigterm, runs_here, watch, way_of
from tidegate.wire.control import ToDriver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.rest.server import RestServer
    from tidegate.wire.certificates import Certificate

log = logging.getLogger("tidegate")

FIRST_SLOTS_S = 60.0  #: executors of a cluster may need a while to register
WITHOUT_STORAGE_STATE_BYTES = 128 << 20  #: only the final checkpoint is taken then; it must fit into a message


@dataclass(frozen=True, slots=True)
class Program:
    """What an environment has put together (api/environment.py)."""

    name: str
    graph: LogicalGraph
    parallelism: int  #: of operators that have none of their own, unless the settings name another
    spark: SparkSession | None = None  #: None: one is made
    spark_conf: Mapping[str, str] = field(default_factory=dict)  #: for the one that is made
    crash_points: CrashPoints = field(default_factory=NoCrashPoints)


def launch(program: Program, config: JobConfig, quiet: bool = False) -> JobClient:
    """Start the job of a program. Everything that can be wrong is said before anything runs, and what needs no Spark
    before Spark is started, which takes seconds."""
    from tidegate.spark.cluster import SparkCluster
    from tidegate.spark.runtime_environment import spark_pages, spark_settings
    from tidegate.spark.session import ExecutorPython, check_process_limits, check_session, is_local, make_session

    config.validate()
    way_of(config)
    handle_sigterm()
    parallelism = config.parallelism or program.parallelism
    draft = plan_job(program.name, program.graph, parallelism)
    check_uids(program.graph, config.storage)
    check_shippable(program.graph)
    say_warnings(program.graph)
    warn_of_late_results(program.graph, config)
    check_written_sources(draft, config)
    certificate = given_to(config)
    store = open_job_store(config)
    server = rest_server(config)
    view, results = JobView(), collected_results(draft)
    job = JobRun(
        name=program.name,
        graph=program.graph,
        default_parallelism=parallelism,
        config=config,
        store=store,
        driver=f"{socket.gethostname()}:{os.getpid()}",
        view=view,
        crash_points=program.crash_points,
        clock=time.monotonic,
        wall_clock=time.time,
        sleep=time.sleep,
        jitter=lambda: random.uniform(-1, 1),
    )
    check_create(store, program.name)
    check_start(job, program.name, config)
    onlooker = current_onlooker() or (None if is_quiet(quiet) else JobTeller())
    if onlooker is not None:
        onlooker.launching(draft, config)
    if program.spark is not None:
        check_session(program.spark, config.encrypt)
        session = program.spark
    else:
        python = ExecutorPython(config.python_files, config.python_archives, config.python_executable)
        slots, layers = len(draft.slots), len(draft.layers)
        session = make_session(
            program.name, config.master, slots, program.spark_conf, python, layers, encrypt=config.encrypt
        )
    if is_local(session.sparkContext.master):
        check_process_limits(count_connections(job.plan))
    await_slots(session, len(job.plan.slots))
    cluster = SparkCluster(
        session=session,
        plan=job.plan,
        settings=slot_settings(config),
        storage_uri=None if keeps_state_in_driver(config) else config.storage,
        crash_points=program.crash_points,
    )

    def on_driver_payload(message: ToDriver) -> None:
        if message.topic == "print":
            show_out(message.payload.decode("utf-8", "replace"))
        else:
            results.accept(message.uid, message.subtask, message.topic, message.payload)

    execution = JobExecution(job, cluster, program.crash_points, on_driver_payload, certificate)
    client = JobClient(program.name, execution, view, results, config.savepoint_dir)
    served = ServedJob(job_id(program.name, config.storage), program.name, config, view, client, time.time())
    served.runtime_environment = RuntimeEnvironment(spark_settings(session), spark_pages(session))
    keep_history(served, store)
    if config.autoscaler:
        view.subscribe(
            Autoscaler(
                policy=config.scaling_policy(),
                excluded=config.autoscaler_excluded,
                view=view,
                plan=lambda: client.plan,
                ask=lambda numbers, reason: client.request_rescale(numbers, reason=reason),
                slots=cluster.slots,
                clock=time.monotonic,
                wall_clock=time.time,
            )
        )
    if server is not None:
        client.url = server.serve(served)
    if onlooker is not None:
        onlooker.launched(client, job.plan)
    threading.Thread(target=execution.run, name=f"tidegate-{program.name}", daemon=True).start()
    watch(client, config)
    return client


def check_start(job: JobRun, name: str, config: JobConfig) -> None:
    """:raises JobFolderInUse: :raises JobRunning: when the job may not begin as it was asked to."""
    here = runs_here(name, config.storage)
    try:
        job.check_start()
    except JobFolderInUse as error:
        raise refusal(error, other_driver(job.newest_record, here)) from None
    other = other_driver(job.newest_record, here)
    if other is not None and other.is_alive:
        log.warning("the job %r runs: %s. It is taken over, and that driver ends", name, other)


def given_to(config: JobConfig) -> Certificate | None:
    """The certificate of the settings, read once. :raises ConfigurationError: when it cannot be used."""
    if config.certificate is None or config.certificate_key is None:
        return None
    from tidegate.wire.certificates import given_certificate

    return given_certificate(config.certificate, config.certificate_key)


def rest_server(config: JobConfig) -> RestServer | None:
    """Where the job will be shown. :raises ConfigurationError: when the address cannot be had."""
    if not config.rest:
        return None
    try:
        from tidegate.rest.server import RestSettings, server_for
    except ImportError as error:  # an image made for an older release: the job matters more
        log.warning("the job runs without REST and dashboard: %s. Install starlette and uvicorn.", error)
        return None
    return server_for(RestSettings.of(config))


def collected_results(plan: JobPlan) -> CollectedResults:
    """Knows the type of each collect() sink, so that columns become the user's records again."""
    results = CollectedResults()
    input_types = {edge.edge.downstream: edge.record_type for edge in plan.edges}
    for planned in plan.operators:
        input_types |= {link.downstream: planned.operator.outputs[link.tag] for link in planned.chained}
    for planned in plan.operators:
        if isinstance(planned.operator.spec, SinkSpec) and isinstance(planned.operator.spec.sink, CollectSink):
            results.expect(planned.uid, input_types[planned.uid])
    return results


def open_job_store(config: JobConfig) -> ObjectStore:
    """The job's storage; without one, a memory that ends with the driver."""
    return open_store(config.storage or f"memory://job-{os.getpid()}-{time.monotonic_ns()}")


def keeps_state_in_driver(config: JobConfig) -> bool:
    """Executors cannot reach the storage: all state travels with the acknowledgement."""
    return config.storage in (None, DRIVER_MEMORY)


def slot_settings(config: JobConfig) -> SlotSettings:
    return SlotSettings(
        exactly_once=config.mode is CheckpointMode.EXACTLY_ONCE,
        buffer_timeout_s=config.buffer_timeout_s,
        inbox_bytes=config.inbox_bytes,
        in_flight_target_s=config.debloat_target_s if config.debloat else None,
        held_memory_bytes=config.held_memory_bytes,
        held_disk_bytes=config.held_disk_bytes,
        log_format=config.log_format,
        hot_keys=config.hot_keys,
        object_reuse=config.object_reuse,
        type_checks=config.type_checks,
        state=BackendSettings(
            kind=config.state_backend,
            # Where all state travels to the driver there are no files to share.
            incremental=config.increments and not keeps_state_in_driver(config),
            memory_bytes=config.rocksdb_memory_bytes,
            folder=config.state_folder,
        ),
        inline_limit_bytes=config.inline_limit_bytes,
        asynchronous_snapshots=config.asynchronous_snapshots,
        state_limit_bytes=state_limit_bytes(config),
        local_copies=copy_settings(config),
        encrypt=config.encrypt,
        silence_s=config.heartbeat_timeout_s,
    )


def copy_settings(config: JobConfig) -> CopySettings | None:
    """RocksDB's files are linked, so copies lie on its disk unless they are told to lie elsewhere."""
    if not config.local_recovery or keeps_state_in_driver(config):
        return None
    return CopySettings(config.local_recovery_folder or config.state_folder)


def state_limit_bytes(config: JobConfig) -> int | None:
    if config.storage == DRIVER_MEMORY:
        return config.memory_state_limit_bytes
    return WITHOUT_STORAGE_STATE_BYTES if config.storage is None else None


def check_uids(graph: LogicalGraph, storage: str | None) -> None:
    """Where checkpoints outlive the driver, a program that has been changed must find its state in them by name.

    :raises GraphError: naming the operators that have none."""
    if storage not in (None, DRIVER_MEMORY):
        graph.check_uids()


def check_shippable(graph: LogicalGraph) -> None:
    """:raises UnshippableFunction: naming the operator whose function cannot be sent to the executors."""
    for operator in graph.operators.values():
        try:
            # Not loaded again: that would put the copies of a class's methods into the user's own class.
            cloudpickle.dumps((operator.spec, [(e.key, e.partitioner) for e in graph.inputs_of(operator.uid)]))
        except Exception as error:
            function = user_function_of(operator.spec)
            raise UnshippableFunction(
                f"{operator} at {operator.line} cannot be sent to the executors: {error}. Its function "
                f"({getattr(function, '__qualname__', type(function).__name__)}) holds on to something that only lives in this "
                "process, like an open file, a lock or a connection; open it in open(self, ctx) instead."
            ) from error


def say_warnings(graph: LogicalGraph) -> None:
    """What the user should know once, at the start."""
    untyped = [op for op in graph.operators.values() if any(not t.typed for t in op.outputs.values())]
    if untyped:
        first = untyped[0].line
        warnings.warn_explicit(
            "these streams are untyped and travel as pickled rows, several times slower than columns: "
            f"{', '.join(f'{op} at {op.line}' for op in untyped)}. Declare the type with returns= or an annotation of the "
            "function; of count, sum, min, max and reduce it is that of the stream before and of its keys: "
            "key_by(..., key_type=...). Where the first records tell it, the job's log says what to write.",
            UserWarning,
            first.file,
            first.line,
        )
    for uid, form in forms(graph.operators.values(), graph.edges).items():
        operator = graph.operators[uid]
        is_cliff = isinstance(operator.spec, KeyedProcessSpec) and operator.spec.row_by_row is not None and form.instead
        if is_cliff:  # a function of the user's is expected to be called for each record, and explain() says so
            log.warning(
                "%s at %s works record by record, many times slower than by columns: %s. Way out: %s",
                *(operator, operator.line, form.why, form.instead),
            )
    for op in graph.operators.values():
        silent = never_emits(op.spec)
        read_by = [graph.operators[edge.downstream] for edge in graph.outputs_of(op.uid) if edge.tag == MAIN_OUTPUT]
        if silent is not None and read_by:
            warnings.warn_explicit(
                f"{op} at {op.line} emits nothing: its function neither yields nor returns a record, so nothing reaches "
                f"{', '.join(map(str, read_by))}. Write `yield value` where a record is to be emitted.",
                UserWarning,
                silent.file,
                silent.line,
            )
        if (forgotten := unkept(op.spec)) is not None:
            log.warning("%s", forgotten)
        if isinstance(op.spec, SourceSpec) and not op.spec.source.replayable:
            log.warning("%s cannot be replayed: a failure loses what it read since the last checkpoint", op)
        if isinstance(op.spec, SinkSpec) and op.spec.sink.guarantee != "exactly-once":
            log.info("%s is %s: after a failure it may see records again", op, op.spec.sink.guarantee)


def warn_of_late_results(graph: LogicalGraph, config: JobConfig) -> None:
    """What collect() gathers is shown when a checkpoint has committed it."""
    specs = [operator.spec for operator in graph.operators.values()]
    collects = any(isinstance(spec, SinkSpec) and isinstance(spec.sink, CollectSink) for spec in specs)
    ends = all(spec.source.bounded for spec in specs if isinstance(spec, SourceSpec))
    if collects and not ends and config.interval_s is None:
        log.warning(
            "results of collect() come with checkpoints, and this job takes none: they are there when it has ended. For "
            'results while it runs, call env.checkpointing(every="1s", storage=...)'
        )


def count_connections(plan: JobPlan) -> int:
    return sum(a.width * b.width for a, b in zip(plan.layers, plan.layers[1:]))


def await_slots(session: SparkSession, needed: int) -> None:
    """:raises NotEnoughSlots: when the cluster stays too small."""
    from tidegate.spark.session import check_slots, is_local, total_slots

    deadline = time.monotonic() + (0.0 if is_local(session.sparkContext.master) else FIRST_SLOTS_S)
    while total_slots(session) < needed and time.monotonic() < deadline:
        time.sleep(0.1)
    check_slots(session, needed)


def check_written_sources(plan: JobPlan, config: JobConfig) -> None:
    """DataFrames become files before the stream starts (coordinator/inputs.py): is there a place for them?"""
    for _, source in written_sources(plan.operators):
        if config.storage is None or config.storage == DRIVER_MEMORY:
            raise ConfigurationError(
                "from_dataframe needs a storage that executors can read: call env.checkpointing(storage=...) with "
                "file://, s3://, gs://, az:// or hdfs://"
            )
        source.check_storage(config.storage)
