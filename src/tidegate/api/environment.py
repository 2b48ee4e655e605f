"""Where a job begins: sources, settings, execute. Driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.api.building import StreamInput, add_operator, declared_type
from tidegate.api.built_jobs import BuiltJob
from tidegate.api.overrides import current_overrides
from tidegate.api.streams import DataStream
from tidegate.config import JobConfig, RestartSettings
from tidegate.connectors.collection import Collection
from tidegate.connectors.contract import Source
from tidegate.connectors.sequence import NumberSequence
from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError
from tidegate.graph.logical import MAIN_OUTPUT, LogicalGraph
from tidegate.graph.specs import SourceSpec
from tidegate.sizes import Size, size_bytes
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import DRIVER_MEMORY
from tidegate.types import record_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.client import JobClient

T = TypeVar("T")


class StreamEnvironment:
    """A job: its name, its operators, its settings.

        env = tg.StreamEnvironment("word-count", parallelism=2)
        env.checkpointing(every="1s", storage="file:///tmp/word-count")
        ...
        env.execute()

    Without `spark`, a session with the right settings is made when the job starts: on `master`, or on this machine. A
    session that is given must have been made with them, else it is refused, naming what to set.
    """

    def __init__(
        self,
        name: str,
        *,
        parallelism: int = 1,
        spark: SparkSession | None = None,
        master: str | None = None,
        spark_conf: dict[str, str] | None = None,
    ) -> None:
        JobPaths(name)  # refuses a name that cannot be a folder
        if not isinstance(parallelism, int) or parallelism < 1:
            raise ConfigurationError(f"parallelism must be a positive integer, not {parallelism!r}")
        self.name = name
        self._parallelism = parallelism
        self._spark = spark
        self._spark_conf = dict(spark_conf or {})
        self._graph = LogicalGraph()
        self._config = JobConfig(master=master)
        self._crash_points: Any = None  #: set by tidegate.testing
        self._built = BuiltJob(name)

    @classmethod
    def get_execution_environment(cls) -> StreamEnvironment:
        """As PyFlink begins. The job is called like the program's file, until `execute("a-name")` says otherwise."""
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(sys.argv[0]).stem).strip("-")
        return cls(name[:100] or "job")

    def set_parallelism(self, parallelism: int) -> StreamEnvironment:
        """Of every operator that has none of its own."""
        if not isinstance(parallelism, int) or parallelism < 1:
            raise ConfigurationError(f"parallelism must be a positive integer, not {parallelism!r}")
        self._parallelism = parallelism
        return self

    # -- settings -----------------------------------------------------------------------------------------------------

    def checkpointing(
        self,
        *,
        every: Duration | None = None,
        storage: str,
        mode: str = "exactly-once",
        unaligned: bool = False,
        aligned_timeout: Duration = "0s",
        timeout: Duration = "10min",
        min_pause: Duration = "0s",
        max_concurrent: int = 1,
        tolerable_failures: int = 0,
        retained: int = 1,
        resume: str | None = None,
        allow_dropped_state: bool = False,
        claim: bool = False,
        savepoints: str | None = None,
        delete_on_cancel: bool = False,
    ) -> StreamEnvironment:
        """Checkpoint the job every so often into `storage` (file:///..., s3://..., gs://..., az://...).

        `resume="latest"` continues where the last run left off, if there was one; a path or "chk-17" continues from that
        checkpoint or savepoint, wherever it is. Without it, a folder in which the job has run before is refused.
        `claim=True`: what it continues from becomes the job's own, which deletes it once newer checkpoints replace it.

        `savepoints` is where savepoints go that name no place. `delete_on_cancel=True`: a canceled job keeps no checkpoints.

        `unaligned=True`: barriers overtake records, which become part of the checkpoint; for jobs under back-pressure. With
        `aligned_timeout` a checkpoint starts aligned and overtakes only when it takes longer. `mode="at-least-once"`
        never holds records back: some may be counted twice after a failure.
        """
        self._config = replace(
            self._config,
            interval_s=None if every is None else seconds(every, "checkpointing(every=...)"),
            mode=mode,
            unaligned=unaligned,
            aligned_timeout_s=seconds(aligned_timeout, "checkpointing(aligned_timeout=...)"),
            storage=storage,
            timeout_s=seconds(timeout, "checkpointing(timeout=...)"),
            min_pause_s=seconds(min_pause, "checkpointing(min_pause=...)"),
            max_concurrent=max_concurrent,
            tolerable_failures=tolerable_failures,
            retained=retained,
            resume=resume,
            allow_dropped_state=allow_dropped_state,
            claim_mode="claim" if claim else "no-claim",
            savepoint_dir=savepoints,
            retention="delete" if delete_on_cancel else "retain",
        )
        self._config.validate()
        return self

    def enable_checkpointing(self, interval: int, mode: str = "exactly-once") -> StreamEnvironment:
        """As PyFlink says it: every so many milliseconds. Where `checkpointing(storage=...)` has named no storage they are kept
        in the driver's memory, as Flink does: enough for restarts, gone with the driver."""
        self._config = replace(
            self._config, interval_s=interval / 1000, mode=mode, storage=self._config.storage or DRIVER_MEMORY
        )
        self._config.validate()
        return self

    def state_backend(
        self,
        kind: str = "hashmap",
        *,
        incremental: bool | None = None,
        memory: Size = "256mb",
        folder: str | None = None,
        local_recovery: bool = False,
    ) -> StreamEnvironment:
        """Where keyed state lives: "hashmap" or "heap", the workers' memory (the default), or "rocksdb", their local disks.

        `incremental`: checkpoints store only what has changed since the last one; by default RocksDB's do. `memory` is what
        RocksDB and the values in use may take in a slot, `folder` where its files are, on each executor's local disk.

        `local_recovery`: checkpoints are kept in `folder` too, and after a failure a slot reads from there what is there and
        intact. It saves the way to storage, and costs disk space: links for RocksDB, up to twice the state for the heap.
        """
        self._config = replace(
            self._config,
            state_backend=kind,
            incremental=incremental,
            rocksdb_memory_bytes=size_bytes(memory, "state_backend(memory=...)"),
            state_folder=folder,
            local_recovery=local_recovery,
        )
        self._config.validate()
        return self

    def restart_strategy(
        self,
        kind: str,
        *,
        attempts: int | None = None,
        delay: Duration = "1s",
        max_delay: Duration = "1min",
        max_failures: int = 1,
        interval: Duration = "1min",
        reset_after: Duration = "1h",
    ) -> StreamEnvironment:
        """ "exponential-delay" (the default with checkpoints; the first restart waits 0), "fixed-delay", "failure-rate" or
        "none"."""
        self._config = replace(
            self._config,
            restart=RestartSettings(
                kind=kind,
                attempts=attempts,
                delay_s=seconds(delay, "restart_strategy(delay=...)"),
                max_delay_s=seconds(max_delay, "restart_strategy(max_delay=...)"),
                max_failures=max_failures,
                interval_s=seconds(interval, "restart_strategy(interval=...)"),
                reset_after_s=seconds(reset_after, "restart_strategy(reset_after=...)"),
            ),
        )
        self._config.restart.strategy(True)  # refuses an unknown kind here, at the user's line
        return self

    def buffer_timeout(self, timeout: Duration) -> StreamEnvironment:
        """How long a record may wait for others to share its frame. Lower: quicker; higher: more throughput."""
        self._config = replace(self._config, buffer_timeout_s=seconds(timeout, "buffer_timeout"))
        return self

    def object_reuse(self, reuse: bool = True) -> StreamEnvironment:
        """Functions hand records on as they are, not as copies, as in Flink. Right where no function changes a record that
        another one, or it itself, still holds; what it saves is in docs/guarantees.md."""
        self._config = replace(self._config, object_reuse=reuse)
        return self

    def on_term(self, how: str, *, timeout: Duration = "25s") -> StreamEnvironment:
        """What SIGTERM, as supervisors send it, ends the job with: a "checkpoint" (the default), a "savepoint", or "cancel":
        neither. After `timeout` the program ends in any case."""
        limit = seconds(timeout, "on_term(timeout=...)")
        self._config = replace(self._config, on_term=how, on_term_timeout_s=limit)
        self._config.validate()
        return self

    def type_checks(self, rows: str) -> StreamEnvironment:
        """Which rows are held against the type that their stream declares, where they leave their function: the "first"
        thousand of each output of each subtask (the default, at no cost after them), "all", or "none"."""
        self._config = replace(self._config, type_checks=rows)
        self._config.validate()
        return self

    def executor_python(
        self, *, files: Iterable[str] = (), archives: Iterable[str] = (), executable: str | None = None
    ) -> StreamEnvironment:
        """What the executors of a cluster need beside Tidegate and the program's own modules, which are shipped in any case.

        `files`: modules, packages, folders, wheels, zips. `archives`: "env.tar.gz#env", unpacked in each executor's working
        folder. `executable`: their Python, like "./env/bin/python". For sessions that Tidegate makes.
        """
        self._config = replace(
            self._config, python_files=tuple(files), python_archives=tuple(archives), python_executable=executable
        )
        return self

    def in_flight_target(self, target: Duration | None) -> StreamEnvironment:
        """How long what is under way through the job may take, from a source to the last slot, where a slot cannot keep up;
        "1s" unless told otherwise. An aligned checkpoint under back-pressure takes about so long. None: no target, and
        the buffers alone decide."""
        if target is None:
            self._config = replace(self._config, debloat=False)
        else:
            target_s = seconds(target, "in_flight_target")
            self._config = replace(self._config, debloat=True, debloat_target_s=target_s)
            self._config.validate()
        return self

    # -- sources ------------------------------------------------------------------------------------------------------

    def from_source(
        self, source: Source, *, uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        returns: Any = None,
    ) -> DataStream[Any]:  # fmt: skip
        """Any source: one of tidegate's, or your own. Where checkpoints are stored it needs a `uid`: its position is found
        again by it."""
        if not isinstance(source, Source):
            raise ConfigurationError(f"from_source needs a tidegate.Source, not {type(source).__name__}")
        out = record_type(source.record_type if returns is None else returns)
        new = add_operator(
            self, SourceSpec(source), name or type(source).__name__, {MAIN_OUTPUT: out}, uid, parallelism, None, []
        )
        return DataStream(self, [StreamInput(new)], out)

    def from_collection(
        self, collection: Iterable[T], type_info: Any = None, *, uid: str | None = None, type: Any = None,
        parallelism: int | None = None,
    ) -> DataStream[T]:  # fmt: skip
        """The items of a list, in order for each of its parts. Bounded. `type_info` is PyFlink's name of `type`."""
        items = Collection(list(collection), declared_type(type, type_info, "type= and type_info="))
        return self.from_source(items, uid=uid, name="collection", parallelism=parallelism)

    def from_sequence(
        self, start: int, end: int, *, uid: str | None = None, parallelism: int | None = None
    ) -> DataStream[int]:
        """The integers from start to end, both included. Bounded."""
        return self.from_source(NumberSequence(start, end), uid=uid, name="sequence", parallelism=parallelism)

    def from_dataframe(self, frame: DataFrame, *, uid: str, parallelism: int | None = None) -> DataStream[Any]:
        """The rows of a Spark DataFrame. It is written as Parquet into the job's folder first (a Spark job before the
        stream), because a row number of a partition that Spark recomputes is no position to come back to. Bounded."""
        from tidegate.spark.dataframes import DataFrameSource

        return self.from_source(DataFrameSource(frame, uid), uid=uid, name="dataframe", parallelism=parallelism)

    # -- running ------------------------------------------------------------------------------------------------------

    def execute(self, job_name: str | None = None, *, resume: str | None = None, quiet: bool = False) -> JobClient:
        """Run the job, as `job_name` where that is given, and wait for its end. :raises JobFailed: when it fails for good.

        What happens to it is said on standard error, or by `logging` where that is set up; `quiet` switches it off.
        """
        client = self.execute_async(job_name, resume=resume, quiet=quiet)
        client.wait(cancel_on_interrupt=True)
        return client

    def execute_async(
        self, job_name: str | None = None, *, resume: str | None = None, quiet: bool = False
    ) -> JobClient:
        """Start the job; the client knows its status, waits, cancels, lists checkpoints. `quiet` as with `execute`."""
        from tidegate.launch import launch
        from tidegate.telling import say_errors_in_words

        self._built.taken_up = True
        say_errors_in_words()
        if job_name is not None:
            JobPaths(job_name)  # refuses a name that cannot be a folder
            self.name = job_name
        return launch(self, self.config(resume), quiet)

    def config(self, resume: str | None = None) -> JobConfig:
        """All settings, with what the command line overrides."""
        config = self._config if resume is None else replace(self._config, resume=resume)
        return current_overrides()(config)

    @property
    def parallelism(self) -> int:
        return self.config().parallelism or self._parallelism

    def explain(self) -> str:
        """The plan as text: layers, chains, edges, types, slots needed."""
        from tidegate.graph.explain import explain_plan
        from tidegate.graph.plan import plan_job

        self._built.taken_up = True
        return explain_plan(plan_job(self.name, self._graph, self.parallelism))


StreamExecutionEnvironment = StreamEnvironment  #: as PyFlink calls it
