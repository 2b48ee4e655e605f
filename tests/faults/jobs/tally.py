"""The job of all fault tests, and its driver as a program of its own: `python -m faults.jobs.tally '<settings as JSON>'`.

    readings (16 sources) -> key_by source: the n-th of its source -> key_by bucket: the m-th of its bucket -> files

Three layers of two slots each. Both counts live in keyed state and travel in the committed rows, so state that is lost,
applied twice or restored from the wrong moment shows in the files. What the driver sees is printed, a JSON object a line.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle

import tidegate as tg
from faults.jobs.crashes import CrashesInOrder, asking, nothing_asked
from faults.jobs.faulty import FaultyFileSink, Trips
from faults.jobs.outsides import Noted, sink_of, source_of
from faults.jobs.paced import SURPLUS, Hold, Paced
from tidegate.errors import SavepointFailed, TidegateError
from tidegate.testing.crash_points import Crash

if TYPE_CHECKING:
    from tidegate.client import JobClient
    from tidegate.coordinator.observing import JobEvent

SOURCES = 16
BUCKETS = 10
READINGS_PER_CHECKPOINT = 30  #: of each source, at the most; at the usual rate this is what 200 ms bring
KAFKA_PARTITIONS = 4  #: readings of a source are all in one
LAYERS = 3
PARALLELISM = 2
SLOTS = LAYERS * PARALLELISM

if __name__ != "__main__":  # the executors cannot import the tests
    cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything about one run. Given to a driver program as JSON."""

    name: str
    folder: str  #: checkpoints, output and notes, each in a folder of its own
    storage: str | None = None  #: of checkpoints, in place of that folder
    environment: dict[str, str] = dataclasses.field(default_factory=dict)  #: of driver and workers: a storage's address
    readings: int = 300  #: of each source
    rate: float = 2400.0  #: readings a second, of all sources
    every: str = "200ms"
    retained: int = 1
    crashes: list[Crash] = dataclasses.field(default_factory=list)
    stops: int = 0  #: so many of the first crashes stop the process; the others kill it
    heartbeat_s: float = 30.0
    trips: bool = False  #: every user method raises once
    resume: str | None = None
    master: str | None = None
    spark_conf: dict[str, str] = dataclasses.field(default_factory=dict)
    guarantee: dict[str, Any] = dataclasses.field(default_factory=dict)  #: more for env.checkpointing(...)
    parallelism: int = PARALLELISM
    slow_s: float = 0.0  #: what the last function, which is chained with the sink, takes for a record
    backend: str = "hashmap"
    incremental: bool | None = None
    copies: str | None = None  #: a folder for local recovery
    source: tuple[str, ...] = ()  #: in place of the generator; see outsides.py
    sink: tuple[str, ...] = ()  #: in place of JSON lines
    ahead: int = READINGS_PER_CHECKPOINT
    held: int | None = None  #: readings of each source that an attempt gets at the most until the test lets the job go
    ask: str | None = None  #: what the driver asks for, after a checkpoint: "savepoint", "stop" or "drain"
    only_while_asked: bool = False  #: crashes happen only while something is asked for
    gateway: tuple[int, str] | None = None  #: port and secret of a running JVM, which the driver is to use

    @property
    def output(self) -> str:
        return os.path.join(self.folder, "output")

    @property
    def savepoints(self) -> str:
        return os.path.join(self.folder, "savepoints")

    @property
    def notes(self) -> str:
        return os.path.join(self.folder, "notes")

    @property
    def let_go(self) -> str:
        """The file that lets a held job come to its end."""
        return os.path.join(self.notes, "let-go")

    @property
    def epochs(self) -> str:
        """Which rows were prepared for which checkpoint, where there is a `sink`."""
        return os.path.join(self.folder, "epochs")

    @property
    def sink_uid(self) -> str:
        return self.sink[0] if self.sink else "files"

    @property
    def log(self) -> str:
        return os.path.join(self.folder, "checkpoints", self.name, "log")

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Settings:
        values = json.loads(text)
        values["crashes"] = [Crash(**crash) for crash in values["crashes"]]
        values["source"], values["sink"] = tuple(values["source"]), tuple(values["sink"])
        return Settings(**values)


class CountOfSource(tg.KeyedProcessFunction):
    """(source, number) -> (source, number, n-th of the source)."""

    count = tg.ValueState(int, default=0)

    def __init__(self, trips: Trips) -> None:
        self.trips = trips

    def open(self, ctx: tg.Context) -> None:
        self.trips.reach("open")

    def process_element(self, reading: tuple[int, int], ctx: tg.Context) -> Any:
        nth = self.count.get() + 1
        self.count.set(nth)
        if nth > 40:
            self.trips.reach("process_element")
        yield (*reading, nth)

    def end_input(self, ctx: tg.Context) -> None:
        self.trips.reach("end_input")

    def close(self) -> None:
        self.trips.reach("close")


class CountOfBucket(tg.KeyedProcessFunction):
    """(source, number, n-th) -> (source, number, n-th, bucket, m-th of the bucket, how often this reading was seen)."""

    count = tg.ValueState(int, default=0)
    seen = tg.MapState(int, int)

    def __init__(self, slow_s: float) -> None:
        self.slow_s = slow_s

    def process_element(self, counted: tuple[int, int, int], ctx: tg.Context) -> Any:
        if self.slow_s:
            time.sleep(self.slow_s)
        source, number, nth = counted
        mth = self.count.get() + 1
        self.count.set(mth)
        reading = number * SOURCES + source
        times = (self.seen.get(reading) or 0) + 1
        self.seen.put(reading, times)
        yield (source, number, nth, ctx.key, mth, times)


def build(settings: Settings, spark: Any = None) -> tg.StreamEnvironment:
    """The job, ready to execute."""
    trips = Trips(settings.notes if settings.trips else None)

    def reading(index: int) -> tuple[int, int]:
        if index > SOURCES * 20:
            trips.reach("source function")
        return index % SOURCES, index // SOURCES

    def keep(reading: tuple[int, int]) -> bool:
        if reading[1] > 60:
            trips.reach("filter function")
        return True

    def same(counted: tuple[int, int, int]) -> tuple[int, int, int]:
        if counted[1] > 80:
            trips.reach("map function")
        return counted

    def bucket(counted: tuple[int, int, int]) -> int:
        if counted[1] > 100:
            trips.reach("key function")
        return counted[1] % BUCKETS

    env = tg.StreamEnvironment(
        settings.name,
        parallelism=settings.parallelism,
        spark=spark,
        master=settings.master,
        spark_conf=settings.spark_conf,
    )
    env.checkpointing(
        every=settings.every,
        storage=settings.storage or f"file://{settings.folder}/checkpoints",
        retained=settings.retained,
        resume=settings.resume,
        **settings.guarantee,
    )
    env.state_backend(
        settings.backend,
        incremental=settings.incremental,
        memory="16mb",
        folder=settings.copies,
        local_recovery=settings.copies is not None,
    )
    env.restart_strategy("fixed-delay", attempts=1000, delay="0s")
    env._config = dataclasses.replace(env._config, heartbeat_timeout_s=settings.heartbeat_s)
    if settings.crashes:
        env._crash_points = CrashesInOrder(
            settings.notes,
            settings.crashes,
            settings.stops,
            settings.only_while_asked,
            settings.epochs if settings.sink else None,
        )
    os.makedirs(settings.notes, exist_ok=True)
    source: tg.Source = tg.DataGenerator(
        reading,
        count=SOURCES * settings.readings,
        rate=settings.rate,
        type=tuple[int, int],
        splits=SOURCES,
    )
    if settings.source:
        ends = dict.fromkeys(range(KAFKA_PARTITIONS), settings.readings * SOURCES // KAFKA_PARTITIONS)
        source = source_of(settings.source, tuple[int, int], ends)
    if settings.source[:1] != ("kafka",):  # what a topic gives, its feeder decides
        hold = None if settings.held is None else Hold(settings.held, settings.let_go)
        source = Paced(source, settings.ahead, hold)
    sink: tg.Sink = FaultyFileSink(settings.output, trips) if settings.trips else tg.FileSink(settings.output, "jsonl")
    if settings.sink:
        sink = Noted(sink_of(settings.sink), settings.epochs)
    (
        env.from_source(source, uid="readings")
        .filter(keep, uid="keep")
        .key_by(0)
        .process(CountOfSource(trips), uid="of-source", returns=tuple[int, int, int])
        .map(same, uid="same", returns=tuple[int, int, int])
        .key_by(bucket, key_type=int)
        .process(CountOfBucket(settings.slow_s), uid="of-bucket", returns=tuple[int, int, int, int, int, int])
        .sink_to(sink, uid=settings.sink_uid)
    )
    return env


# -- the driver program -----------------------------------------------------------------------------------------------


def say(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def narrate(client: JobClient) -> None:
    """Print what happens: changes of status, failures, completed checkpoints, and who the workers are."""
    from tidegate.coordinator.observing import (
        AttemptFailed,
        CheckpointChanged,
        CheckpointStatus,
        ExecutorsLeaving,
        StatusChanged,
    )

    def observe(event: JobEvent) -> None:
        match event:
            case StatusChanged(status, detail, at):
                workers = {str(slot): hello.pid for slot, hello in client.workers().items()}
                attempt = client.view.attempt
                say(status=status.name, detail=detail, at=at, workers=workers, attempt=attempt.number if attempt else 0)
            case AttemptFailed(attempt, error, _, at):
                say(failed=str(attempt), error=error, at=at)
            case ExecutorsLeaving(executors, at):
                say(leaving=executors, at=at)
            case CheckpointChanged(statistics) if statistics.status is CheckpointStatus.COMPLETED:
                say(completed=statistics.checkpoint, attempt=str(statistics.attempt))
            case _:
                pass

    client.view.subscribe(observe)


def carry_out(client: JobClient, settings: Settings, what: str) -> str | None:
    """Take a checkpoint, then ask; for a stop after records that are to be committed. The savepoint's path; None: it was
    refused, and the job continues."""
    client.checkpoint_now()
    while what != "savepoint" and not records_came_after_the_first_checkpoint(client, settings):
        time.sleep(0.02)
    before = crashes_noted(settings)
    path = None
    with asking(settings.notes):
        try:
            if what == "savepoint":
                path = client.savepoint(settings.savepoints)
            else:
                path = client.stop(settings.savepoints, drain=what == "drain")
        except SavepointFailed:
            pass
        deadline = time.monotonic() + 30.0
        while crashes_noted(settings) == before and time.monotonic() < deadline:
            time.sleep(0.02)  # whoever is to die may do so after the answer
    return path


def crashes_noted(settings: Settings) -> int:
    return sum(name.startswith("crash-") for name in os.listdir(settings.notes))


def records_written(client: JobClient, settings: Settings) -> int:
    """By the sinks, as far as the driver has heard."""
    heard = client.view.snapshot().heartbeats.values()
    return sum(
        operator.records_in for each in heard for operator in each.operators if operator.uid == settings.sink_uid
    )


def records_came_after_the_first_checkpoint(client: JobClient, settings: Settings) -> bool:
    """Of this attempt, and have reached the sinks: more than could have come before. Counting what has been written when
    the checkpoint is complete would not do: by then everything that it lets through may have come."""
    if settings.source[:1] == ("kafka",):
        before = sum(len(json.loads(file.read_text())) for file in Path(settings.epochs).glob("*.json"))
    else:
        before = SOURCES * (settings.ahead + SURPLUS)
    return records_written(client, settings) > before


def await_running(client: JobClient) -> None:
    while client.status.name != "RUNNING" and not client.status.is_terminal:
        time.sleep(0.02)


def attached_session(gateway: tuple[int, str]) -> Any:
    """The session of a JVM that runs already: a driver then starts in a second, and its death leaves the JVM alone."""
    os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"] = str(gateway[0]), gateway[1]
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    connected = launch_gateway()
    jvm = connected.jvm
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    context = SparkContext(gateway=connected, jsc=java_context, conf=SparkConf(_jconf=java_context.getConf()))
    return SparkSession(context)


def main() -> None:
    settings = Settings.from_json(sys.argv[1])
    nothing_asked(settings.notes)
    os.environ.update(settings.environment)
    session = None if settings.gateway is None else attached_session(settings.gateway)
    if session is not None:
        session.sparkContext.environment.update(settings.environment)
    env = build(settings, session)
    try:
        client = env.execute_async()
        narrate(client)
        say(launched=os.getpid())
        if settings.ask is not None:
            await_running(client)
            if not client.status.is_terminal:
                say(asked=settings.ask, path=carry_out(client, settings, settings.ask))
        status = client.wait()
        say(gaps=[line.message for line in client.view.lines if "nothing was processed" in line.message])
        say(ended=status.name)
    except TidegateError as error:
        say(ended=type(error).__name__, error=str(error))
    if settings.gateway is not None:
        os._exit(0)  # the JVM, and the session in it, belong to another process


if __name__ == "__main__":
    main()
