"""Where a job begins: sources, settings, execute. Driver."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.api.building import Asked, StreamInput, add_operator, declared_type
from tidegate.api.built_jobs import BuiltJob
from tidegate.api.job_settings import JobSettings, by_program
from tidegate.api.streams import DataStream
from tidegate.api.uncaught import say_errors_in_words
from tidegate.config import JobConfig
from tidegate.connectors.collection import Collection
from tidegate.connectors.contract import Source
from tidegate.connectors.sequence import NumberSequence
from tidegate.errors import ConfigurationError
from tidegate.graph.logical import MAIN_OUTPUT, LogicalGraph
from tidegate.graph.specs import SourceSpec
from tidegate.overrides import current_launcher, current_overrides
from tidegate.settings.declaring import Told
from tidegate.storage.paths import JobPaths
from tidegate.types import record_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tidegate.client import JobClient

T = TypeVar("T")


class StreamEnvironment(JobSettings):
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
        self._config = JobConfig() if master is None else JobConfig().told({"master": Told(master, by_program())})
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
        config = self._config if resume is None else self._config.told({"resume": Told(resume, by_program())})
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


StreamExecutionEnvironment = StreamEnvironment  #: as PyFlink calls it
