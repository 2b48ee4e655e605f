"""Where a job begins: sources, settings, execute. Driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.api.building import Asked, StreamInput, add_operator, declared_type
from tidegate.api.built_jobs import BuiltJob
from tidegate.api.streams import DataStream
from tidegate.api.uncaught import say_errors_in_words
from tidegate.api.user_line import calling_line
from tidegate.config import SETTINGS, JobConfig
from tidegate.connectors.collection import Collection
from tidegate.connectors.contract import Source
from tidegate.connectors.sequence import NumberSequence
from tidegate.durations import Duration
from tidegate.errors import ConfigurationError
from tidegate.graph.logical import MAIN_OUTPUT, LogicalGraph
from tidegate.graph.specs import SourceSpec
from tidegate.overrides import current_launcher, current_overrides
from tidegate.settings.choices import ClaimMode, Retention
from tidegate.settings.declaring import Origin, SetBy, Told
from tidegate.sizes import Size
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
        say_errors_in_words()
        JobPaths(name)  # refuses a name that cannot be a folder
        if not isinstance(parallelism, int) or parallelism < 1:
            raise ConfigurationError(f"parallelism must be a positive integer, not {parallelism!r}")
        self.name = name
        self._parallelism = parallelism
        self._spark = spark
        self._spark_conf = dict(spark_conf or {})
        self._graph = LogicalGraph()
        self._config = JobConfig() if master is None else JobConfig().told({"master": Told(master, _program())})
        self._crash_points: Any = None  #: set by tidegate.testing
        self._built = BuiltJob(name)

    @classmethod
    def get_execution_environment(cls) -> StreamEnvironment:
        """As PyFlink begins. The job is called like the program's file, until `execute("a-name")` says otherwise.

        >>> env = tg.StreamExecutionEnvironment.get_execution_environment()
        """
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(sys.argv[0]).stem).strip("-")
        return cls(name[:100] or "job")

    def set_parallelism(self, parallelism: int) -> StreamEnvironment:
        """Of every operator that has none of its own.

        >>> env.set_parallelism(2).parallelism
        2
        """
        if not isinstance(parallelism, int) or parallelism < 1:
            raise ConfigurationError(f"parallelism must be a positive integer, not {parallelism!r}")
        self._parallelism = parallelism
        return self

    # -- settings -----------------------------------------------------------------------------------------------------

    def checkpointing(
        self,
        *,
        every: Duration | None = None,
        storage: str | None = None,
        mode: str | None = None,
        unaligned: bool | None = None,
        aligned_timeout: Duration | None = None,
        timeout: Duration | None = None,
        min_pause: Duration | None = None,
        max_concurrent: int | None = None,
        tolerable_failures: int | None = None,
        retained: int | None = None,
        resume: str | None = None,
        allow_dropped_state: bool | None = None,
        claim: bool | None = None,
        savepoints: str | None = None,
        delete_on_cancel: bool | None = None,
    ) -> StreamEnvironment:
        """Checkpoint the job every so often into `storage` (file:///..., s3://..., gs://..., az://...).

        What is not named stays as it is: as an earlier call has said it, or as docs/configuration.md lists it.

        `resume="latest"` continues where the last run left off, if there was one; a path or "chk-17" continues from that
        checkpoint or savepoint, wherever it is. Without it, a folder in which the job has run before is refused.
        `claim=True`: what it continues from becomes the job's own, which deletes it once newer checkpoints replace it.

        `savepoints` is where savepoints go that name no place. `delete_on_cancel=True`: a canceled job keeps no checkpoints.

        `unaligned=True`: barriers overtake records, which become part of the checkpoint; for jobs under back-pressure. With
        `aligned_timeout` a checkpoint starts aligned and overtakes only when it takes longer. `mode="at-least-once"`
        never holds records back: some may be counted twice after a failure.

            >>> env = tg.StreamEnvironment("orders").checkpointing(every="10s", storage="file:///tmp/orders", retained=3)
        """
        return self._tell(
            "checkpointing",
            every=every,
            storage=storage,
            mode=mode,
            unaligned=unaligned,
            aligned_timeout=aligned_timeout,
            timeout=timeout,
            min_pause=min_pause,
            max_concurrent=max_concurrent,
            tolerable_failures=tolerable_failures,
            retained=retained,
            resume=resume,
            allow_dropped_state=allow_dropped_state,
            claim=_one_of(claim, ClaimMode.CLAIM, ClaimMode.NO_CLAIM),
            savepoints=savepoints,
            delete_on_cancel=_one_of(delete_on_cancel, Retention.DELETE, Retention.RETAIN),
        )

    def enable_checkpointing(self, interval: int, mode: str = "exactly-once") -> StreamEnvironment:
        """As PyFlink says it: every so many milliseconds. Where `checkpointing(storage=...)` has named no storage they are kept
        in the driver's memory, as Flink does: enough for restarts, gone with the driver.

            >>> env = env.enable_checkpointing(1000)
        """
        every = timedelta(milliseconds=interval)
        return self.checkpointing(every=every, mode=mode, storage=self._config.storage or DRIVER_MEMORY)

    def state_backend(
        self,
        kind: str | None = None,
        *,
        incremental: bool | None = None,
        memory: Size | None = None,
        folder: str | None = None,
        local_recovery: bool | None = None,
    ) -> StreamEnvironment:
        """Where keyed state lives: "hashmap" or "heap", the workers' memory (the default), or "rocksdb", their local disks.

        `incremental`: checkpoints store only what has changed since the last one; by default RocksDB's do. `memory` is what
        RocksDB and the values in use may take in a slot, "256mb" unless told otherwise, `folder` where its files are, on each
        executor's local disk.

        `local_recovery`: checkpoints are kept in `folder` too, and after a failure a slot reads from there what is there and
        intact. It saves the way to storage, and costs disk space: links for RocksDB, up to twice the state for the heap.

            >>> env = env.state_backend("rocksdb", memory="512mb", local_recovery=True)
        """
        return self._tell(
            "state_backend",
            kind=kind,
            incremental=incremental,
            memory=memory,
            folder=folder,
            local_recovery=local_recovery,
        )

    def restart_strategy(
        self,
        kind: str,
        *,
        attempts: int | None = None,
        delay: Duration | None = None,
        max_delay: Duration | None = None,
        max_failures: int | None = None,
        interval: Duration | None = None,
        reset_after: Duration | None = None,
    ) -> StreamEnvironment:
        """ "exponential-delay" (the default with checkpoints; the first restart waits 0), "fixed-delay", "failure-rate" or
        "none". What is not named is as docs/configuration.md lists it for that strategy.

            >>> env = env.restart_strategy("fixed-delay", attempts=3, delay="5s")
        """
        return self._tell(
            "restart_strategy",
            kind=kind,
            attempts=attempts,
            delay=delay,
            max_delay=max_delay,
            max_failures=max_failures,
            interval=interval,
            reset_after=reset_after,
        )

    def buffer_timeout(self, timeout: Duration) -> StreamEnvironment:
        """How long a record may wait for others to share its frame. Lower: quicker; higher: more throughput.

        >>> env = env.buffer_timeout("100ms")
        """
        return self._tell("buffer_timeout", timeout=timeout)

    def object_reuse(self, reuse: bool = True) -> StreamEnvironment:
        """Functions hand records on as they are, not as copies, as in Flink. Right where no function changes a record that
        another one, or it itself, still holds; what it saves is in docs/guarantees.md.

            >>> env = env.object_reuse()
        """
        return self._tell("object_reuse", reuse=reuse)

    def autoscaling(
        self, enabled: bool = True, *, target: float | None = None, min_parallelism: int | None = None,
        max_parallelism: int | None = None, stabilization: Duration | None = None, window: Duration | None = None,
        scale_down: Duration | None = None, catch_up: Duration | None = None, exclude: Iterable[str] | None = None,
    ) -> StreamEnvironment:  # fmt: skip
        """The job is rescaled as its load asks for it, so that the busiest subtask of each vertex works `target` of its time,
        0.7 unless told otherwise. Each decision is in the job's log, with its reason. Off by default.

        After a start it is left alone for `stabilization`, then measured over a `window`. A vertex gets fewer subtasks when it
        has needed no more for as long as `scale_down`. A backlog is to be read within `catch_up`. `exclude`: uids of operators
        that keep their parallelism.

            >>> env = env.autoscaling(max_parallelism=8, scale_down="15min")
        """
        return self._tell(
            "autoscaling",
            enabled=enabled,
            target=target,
            min_parallelism=min_parallelism,
            max_parallelism=max_parallelism,
            stabilization=stabilization,
            window=window,
            scale_down=scale_down,
            catch_up=catch_up,
            exclude=exclude,
        )

    def on_term(self, how: str, *, timeout: Duration | None = None) -> StreamEnvironment:
        """What SIGTERM, as supervisors send it, ends the job with: a "checkpoint" (the default), a "savepoint", or "cancel":
        neither. After `timeout`, 25 seconds unless told otherwise, the program ends in any case.

            >>> env = env.on_term("savepoint", timeout="1min")
        """
        return self._tell("on_term", how=how, timeout=timeout)

    def encryption(
        self,
        *,
        network: bool | None = None,
        rest: bool | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> StreamEnvironment:
        """`network=True`: records between slots are encrypted, and so is all that slots and driver say to each other. On a
        cluster this needs Spark's own encryption beside it (SECURITY.md), which a session that Tidegate makes turns on.

        `rest=True`: REST and the dashboard by https. Certificates are made, unless `certificate` and its `key` are given, as
        PEM files on the driver.

            >>> env = env.encryption(network=True, rest=True)
        """
        return self._tell("encryption", network=network, rest=rest, certificate=certificate, key=key)

    def type_checks(self, rows: str) -> StreamEnvironment:
        """Which rows are held against the type that their stream declares, where they leave their function: the "first"
        thousand of each output of each subtask (the default, at no cost after them), "all", or "none".

            >>> env = env.type_checks("all")
        """
        return self._tell("type_checks", rows=rows)

    def executor_python(
        self,
        *,
        files: Iterable[str] | None = None,
        archives: Iterable[str] | None = None,
        executable: str | None = None,
    ) -> StreamEnvironment:
        """What the executors of a cluster need beside Tidegate and the program's own modules, which are shipped in any case.

        `files`: modules, packages, folders, wheels, zips. `archives`: "env.tar.gz#env", unpacked in each executor's working
        folder. `executable`: their Python, like "./env/bin/python". For sessions that Tidegate makes.

            >>> env = env.executor_python(files=["lib/"], archives=["env.tar.gz#env"], executable="./env/bin/python")
        """
        return self._tell("executor_python", files=files, archives=archives, executable=executable)

    def in_flight_target(self, target: Duration | None) -> StreamEnvironment:
        """How long what is in flight through the job may take, from a source to the last slot, where a slot cannot keep up;
        "1s" unless told otherwise. An aligned checkpoint under back-pressure takes about so long. None: no target, and
        the buffers alone decide.

            >>> env = env.in_flight_target("500ms")
        """
        self._config = self._config.told({"debloat": Told(target is not None, _program())})
        return self._tell("in_flight_target", target=target)

    def _tell(self, method: str, **said: Any) -> StreamEnvironment:
        """What the program says by a method's keywords; None: nothing. :raises ConfigurationError: at the user's line."""
        told = {}
        for keyword, value in said.items():
            if value is not None:
                setting = _SAID_BY[f"{method}({keyword})"]
                told[setting.name] = Told(setting.kind.from_program(value, f"{method}({keyword}=...)"), _program())
        config = self._config.told(told)
        config.validate()
        self._config = config
        return self

    # -- sources ------------------------------------------------------------------------------------------------------

    def from_source(
        self, source: Source, *, uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        returns: Any = None,
    ) -> DataStream[Any]:  # fmt: skip
        """Any source: one of tidegate's, or your own. Where checkpoints are stored it needs a `uid`: its position is found
        again by it.

            >>> env.from_source(tg.NumberSequence(1, 3), uid="numbers").execute_and_collect(limit=3)
            [1, 2, 3]
        """
        if not isinstance(source, Source):
            raise ConfigurationError(f"from_source needs a tidegate.Source, not {type(source).__name__}")
        out = record_type(source.record_type if returns is None else returns)
        asked = Asked(uid, name, parallelism)
        new = add_operator(self, SourceSpec(source), type(source).__name__, {MAIN_OUTPUT: out}, asked, [])
        return DataStream(self, [StreamInput(new)], out)

    def from_collection(
        self, collection: Iterable[T], type_info: Any = None, *, uid: str | None = None, type: Any = None,
        parallelism: int | None = None,
    ) -> DataStream[T]:  # fmt: skip
        """The items of a list, in order for each of its parts. Bounded. `type_info` is PyFlink's name of `type`.

        >>> list(env.from_collection([("tea", 3)], type=tuple[str, int]).execute_and_collect())
        [('tea', 3)]
        """
        items = Collection(list(collection), declared_type(type, type_info, "type= and type_info="))
        return self.from_source(items, uid=uid, name="collection", parallelism=parallelism)

    def from_sequence(
        self, start: int, end: int, *, uid: str | None = None, parallelism: int | None = None
    ) -> DataStream[int]:
        """The integers from start to end, both included. Bounded.

        >>> list(env.from_sequence(1, 3).execute_and_collect())
        [1, 2, 3]
        """
        return self.from_source(NumberSequence(start, end), uid=uid, name="sequence", parallelism=parallelism)

    def from_dataframe(self, frame: DataFrame, *, uid: str, parallelism: int | None = None) -> DataStream[Any]:
        """The rows of a Spark DataFrame. It is written as Parquet into the job's folder first (a Spark job before the
        stream), because a row number of a partition that Spark recomputes is not a position to come back to. Bounded."""
        from tidegate.spark.dataframes import DataFrameSource

        return self.from_source(DataFrameSource(frame, uid), uid=uid, name="dataframe", parallelism=parallelism)

    # -- running ------------------------------------------------------------------------------------------------------

    def execute(self, job_name: str | None = None, *, resume: str | None = None, quiet: bool = False) -> JobClient:
        """Run the job, as `job_name` where that is given, and wait for its end. :raises JobFailed: when it fails for good.

        What happens to it is said on standard error, or by `logging` where that is set up; `quiet` switches it off.

            >>> end = env.from_sequence(1, 3).collect()
            >>> env.execute().results()
            [1, 2, 3]
        """
        from tidegate.terminating import cancel_live

        try:
            client = self.execute_async(job_name, resume=resume, quiet=quiet)
            client.wait(cancel_on_interrupt=True)
        except KeyboardInterrupt:  # it may come before anybody waits, and the job would run on without its caller
            cancel_live(self.name, self.config().storage)
            raise
        return client

    def execute_async(
        self, job_name: str | None = None, *, resume: str | None = None, quiet: bool = False
    ) -> JobClient:
        """Start the job; the client knows its status, waits, cancels, lists checkpoints. `quiet` as with `execute`.

        >>> end = env.from_sequence(1, 3).collect()
        >>> client = env.execute_async()
        >>> client.wait().value
        'FINISHED'
        """
        from tidegate.launch import Program, launch
        from tidegate.ports import NoCrashPoints

        self._built.taken_up = True
        if job_name is not None:
            JobPaths(job_name)  # refuses a name that cannot be a folder
            self.name = job_name
        launcher = current_launcher()
        if launcher is not None:
            return launcher(self, self.config(resume))
        program = Program(
            self.name,
            self._graph,
            self._parallelism,
            self._spark,
            self._spark_conf,
            self._crash_points or NoCrashPoints(),
        )
        return launch(program, self.config(resume), quiet)

    def config(self, resume: str | None = None) -> JobConfig:
        """All settings, with what the command line overrides.

        >>> env.checkpointing(every="10s", storage="file:///tmp/orders").config().interval_s
        10.0
        """
        config = self._config if resume is None else self._config.told({"resume": Told(resume, _program())})
        return current_overrides()(config)

    @property
    def parallelism(self) -> int:
        """Of every operator that has none of its own.

        >>> tg.StreamEnvironment("example", parallelism=4).parallelism
        4
        """
        return self.config().parallelism or self._parallelism

    def explain(self) -> str:
        """The plan as text: layers, chains, edges, types, slots needed.

        >>> end = env.from_sequence(1, 3, uid="numbers").print(uid="printed")
        >>> "numbers" in env.explain()
        True
        """
        from tidegate.graph.explain import explain_plan
        from tidegate.graph.plan import plan_job

        self._built.taken_up = True
        return explain_plan(plan_job(self.name, self._graph, self.parallelism))


def _program() -> Origin:
    return Origin(SetBy.PROGRAM, str(calling_line()))


def _one_of(said: bool | None, yes: T, no: T) -> T | None:
    """A setting of two words that a program says with a flag."""
    return None if said is None else yes if said else no


_SAID_BY = {setting.said_by: setting for setting in SETTINGS.values() if setting.said_by}

StreamExecutionEnvironment = StreamEnvironment  #: as PyFlink calls it
