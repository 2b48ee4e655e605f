"""Each state backend with each storage, as docs/storage.md has them in its table: a job under real Spark whose worker dies
once between two checkpoints, and whose answer is compared with what plain Python gives."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from faults.jobs.paced import Hold, Paced
from matrices import first
from tidegate.errors import ConfigurationError, JobFailed

pytestmark = pytest.mark.spark

BACKENDS = ("hashmap", "rocksdb")
STORAGES = ("file", "s3", "memory", "hdfs")
CELLS = sorted(
    itertools.product(BACKENDS, STORAGES), key=lambda cell: cell[0] == "rocksdb" and cell[1] in ("memory", "hdfs")
)
NUMBERS, SPLITS, KEYS = 960, 16, 7


class Count(tg.KeyedProcessFunction):
    """(key, n-th of the key, number). Kills its worker once, when the test lets it."""

    count = tg.ValueState(int, default=0)
    seen = tg.ListState(int)

    def __init__(self, marker: str) -> None:
        self.marker = marker

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        self.count.set(self.count.get() + 1)
        self.seen.add(value)
        if os.path.exists(self.marker):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.marker)  # only one worker gets to do it
                os.kill(os.getpid(), signal.SIGKILL)
        yield (ctx.key, self.count.get(), value)


@pytest.fixture
def location(request: pytest.FixtureRequest, tmp_path: Path, spark_session: SparkSession) -> Iterator[str]:
    """Where the job keeps its checkpoints; its workers know how to get there."""
    environment = spark_session.sparkContext.environment
    before = dict(environment)
    match request.param:
        case "file":
            yield f"file://{tmp_path}/storage"
        case "memory":
            yield "memory"
        case "s3":
            environment.update(request.getfixturevalue("in_s3"))
            yield f"s3://checkpoints/{secrets.token_hex(8)}"
        case "hdfs":
            yield f"{request.getfixturevalue('hdfs')}/{secrets.token_hex(8)}"
    environment.clear()
    environment.update(before)


@pytest.mark.parametrize(("backend", "location"), first(6, CELLS), indirect=["location"])
def test_a_killed_worker_is_recovered_exactly(backend: str, location: str, tmp_path: Path) -> None:
    marker = tmp_path / "die"
    name = f"table-{secrets.token_hex(4)}"
    env = tg.StreamEnvironment(name, parallelism=2)
    env.checkpointing(every="100ms", storage=location)
    env.state_backend(backend, memory="16mb")
    env.restart_strategy("fixed-delay", attempts=3, delay="0s")
    generator = tg.DataGenerator(lambda i: i, count=NUMBERS, type=int, splits=SPLITS)
    # The second half comes when the worker is to die: the job cannot end before.
    half = Hold(NUMBERS // SPLITS // 2, let_go=str(tmp_path / "go"))
    numbers = env.from_source(Paced(generator, NUMBERS, half), uid="numbers")
    counted = numbers.key_by(lambda n: n % KEYS, key_type=int).process(
        Count(str(marker)), uid="count", returns=tuple[int, int, int]
    )
    counted.collect(uid="rows")

    client = env.execute_async()
    deadline = time.monotonic() + 60
    while not client.view.completed and not client.status.is_terminal:
        assert time.monotonic() < deadline, "no checkpoint has completed"
        time.sleep(0.02)
    marker.touch()  # from now on there is something to restore from
    (tmp_path / "go").touch()
    assert client.wait("120s") is tg.JobStatus.FINISHED

    assert not marker.exists()
    assert client.view.restored_from is not None, "the second attempt began at the beginning"
    rows = client.results("rows")
    assert sorted((key, number) for key, _, number in rows) == sorted((n % KEYS, n) for n in range(NUMBERS))
    for key in range(KEYS):  # two sources, so a key's numbers come in any order; but each place is taken once
        places = sorted(nth for found, nth, _ in rows if found == key)
        assert places == list(range(1, len(places) + 1)), f"the state of key {key} is wrong"


class Hoard(tg.KeyedProcessFunction):
    kept = tg.ValueState(bytes)

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        self.kept.set(bytes(100_000))
        yield value


def test_a_state_that_is_too_large_for_the_drivers_memory_is_refused_in_words(tmp_path: Path) -> None:
    env = tg.StreamEnvironment(f"hoard-{secrets.token_hex(4)}", parallelism=1)
    env.checkpointing(every="50ms", storage="memory")
    env.restart_strategy("none")
    numbers = env.from_source(tg.DataGenerator(lambda i: i, count=2000, rate=200, type=int), uid="numbers")
    numbers.key_by(lambda n: n, key_type=int).process(Hoard(), uid="hoard", returns=int).collect(uid="rows")

    with pytest.raises(JobFailed, match=r"state 'kept' of operator 'hoard' takes [\d,]+ bytes.*at most 5,242,880"):
        env.execute()


def test_a_dataframe_needs_a_storage_that_executors_can_read(spark_session: SparkSession) -> None:
    env = tg.StreamEnvironment(f"frame-{secrets.token_hex(4)}", spark=spark_session)
    env.checkpointing(every="1s", storage="memory")
    env.from_dataframe(spark_session.range(3), uid="frame").collect(uid="rows")

    with pytest.raises(ConfigurationError, match="executors can read"):
        env.execute()
