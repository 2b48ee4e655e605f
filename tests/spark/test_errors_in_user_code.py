"""An exception in the user's code, in each method there is, reaches the user: which operator, which line, what happened.

The failing jobs of the table run at the same time, each on its own one or two slots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from job_kit import PATIENCE, finish

import tidegate as tg
from tidegate.batch import Batch

pytestmark = pytest.mark.spark

NUMBERS = pa.schema([("value", pa.int64())])


class Trouble(Exception):
    """The user's own exception, which the driver may not even know."""


def line_of(text: str) -> str:
    """file:line of the only line of this file that raises Trouble with the text."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [n for n, line in enumerate(lines, start=1) if f'raise Trouble("{text}")' in line]
    return f"{__file__}:{number}"


def map_fails(n: int) -> int:
    raise Trouble("in map")


def flat_map_fails(n: int) -> Iterator[int]:
    yield n
    raise Trouble("in flat_map")


def filter_fails(n: int) -> bool:
    raise Trouble("in filter")


def map_batches_fails(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise Trouble("in map_batches")


def key_fails(n: int) -> int:
    raise Trouble("in key_by")


def reduce_fails(a: int, b: int) -> int:
    raise Trouble("in reduce")


class Process(tg.ProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        yield value
        raise Trouble("in process_element")


class Open(tg.ProcessFunction):
    def open(self, ctx: tg.Context) -> None:
        raise Trouble("in open")


class EndInput(tg.ProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        yield value

    def end_input(self, ctx: tg.Context) -> Iterator[int]:
        raise Trouble("in end_input")


class Keyed(tg.KeyedProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        self.helper()
        yield value

    def helper(self) -> None:
        raise Trouble("in a helper")


class KeyedBatch(tg.KeyedBatchFunction):
    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> None:
        raise Trouble("in process_batch")


class First(tg.CoProcessFunction):
    def process_element1(self, value: int, ctx: tg.Context) -> Iterator[int]:
        raise Trouble("in process_element1")
        yield value

    def process_element2(self, value: int, ctx: tg.Context) -> Iterator[int]:
        yield value


class Second(tg.KeyedCoProcessFunction):
    def process_element1(self, value: int, ctx: tg.Context) -> Iterator[int]:
        yield value

    def process_element2(self, value: int, ctx: tg.Context) -> Iterator[int]:
        raise Trouble("in process_element2")
        yield value


class Aggregate(tg.AggregateFunction):
    accumulator_type = int

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        raise Trouble("in add")

    def get_result(self, accumulator: int) -> int:
        return accumulator


class Discovery(tg.Source):
    record_type = int

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        raise Trouble("in discover_splits")

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        raise NotImplementedError


class Polled(tg.Source):
    record_type = int

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("only")]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return PolledReader()


class PolledReader(tg.SourceReader):
    def add_splits(self, splits: Sequence[tg.Split]) -> None: ...

    def poll(self, deadline: float) -> list[int]:
        raise Trouble("in poll")

    def splits(self) -> list[tg.Split]:
        return [tg.Split("only")]


class Written(tg.Sink):
    def __init__(self, writer: type[tg.SinkWriter]) -> None:
        self.kind = writer

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return self.kind()


class WriteFails(tg.SinkWriter):
    def write(self, batch: Batch) -> None:
        raise Trouble("in write")


class PrepareFails(tg.SinkWriter):
    def write(self, batch: Batch) -> None: ...

    def prepare(self, checkpoint: int) -> list[bytes]:
        raise Trouble("in prepare")


@dataclass(frozen=True)
class Failing:
    """A job with one operator that fails, by the uid "doomed"."""

    text: str
    operator: str
    build: Callable[[tg.DataStream], Any]  #: from a stream of numbers
    parallelism: int = 1
    uid: str = "doomed"

    def env(self) -> tg.StreamEnvironment:
        env = tg.StreamEnvironment(
            re.sub(r"\W+", "-", f"fails {self.text} {self.parallelism}"), parallelism=self.parallelism
        )
        env.restart_strategy("none")
        stream = self.build(env.from_sequence(1, 5, uid="numbers", parallelism=1))
        if stream is not None:
            stream.collect(uid="out")
        return env


def sink(kind: type[tg.SinkWriter]) -> Callable[[tg.DataStream], None]:
    def build(stream: tg.DataStream) -> None:
        stream.sink_to(Written(kind), uid="doomed")

    return build


def keyed(stream: tg.DataStream) -> tg.KeyedStream:
    return stream.key_by(lambda n: n % 2, key_type=int)


CASES = [
    Failing("in map", "map map_fails", lambda s: s.map(map_fails, uid="doomed")),
    Failing("in flat_map", "flat_map flat_map_fails", lambda s: s.flat_map(flat_map_fails, uid="doomed")),
    Failing("in filter", "filter filter_fails", lambda s: s.filter(filter_fails, uid="doomed")),
    Failing("in map_batches", "map_batches map_batches_fails", lambda s: s.map_batches(map_batches_fails, uid="doomed")),
    Failing("in process_element", "Process", lambda s: s.process(Process(), uid="doomed")),
    Failing("in open", "my name", lambda s: s.process(Open(), uid="doomed", name="my name", returns=int)),
    Failing("in end_input", "EndInput", lambda s: s.process(EndInput(), uid="doomed")),
    Failing("in a helper", "Keyed", lambda s: keyed(s).process(Keyed(), uid="doomed")),
    Failing("in process_batch", "KeyedBatch", lambda s: keyed(s).process_batches(KeyedBatch(), uid="doomed", returns=NUMBERS)),
    Failing("in key_by", "key_by of count", lambda s: s.key_by(key_fails).count(uid="doomed")),
    # Where there are several receivers the sender must know the key. It is the key of whoever is keyed by it all the same.
    Failing("in key_by", "key_by of count", lambda s: s.key_by(key_fails).count(uid="doomed"), parallelism=2),
    Failing("in reduce", "reduce", lambda s: keyed(s).reduce(reduce_fails, uid="doomed")),
    Failing("in add", "aggregate", lambda s: keyed(s).aggregate(Aggregate(), uid="doomed")),
    Failing("in process_element1", "First", lambda s: s.connect(s.map(int)).process(First(), uid="doomed")),
    Failing("in process_element2", "Second", lambda s: keyed(s).connect(keyed(s.map(int))).process(Second(), uid="doomed")),
    Failing("in poll", "Polled", lambda s: s._env.from_source(Polled(), uid="doomed")),
    Failing("in write", "Written", sink(WriteFails)),
    Failing("in prepare", "Written", sink(PrepareFails)),
]  # fmt: skip


@pytest.fixture(scope="module")
def errors(spark_session: Any) -> dict[str, Exception]:
    """What the user catches, by the job's name."""
    clients = [case.env().execute_async() for case in CASES]
    caught = {}
    for client in clients:
        with pytest.raises(tg.TidegateError) as raised:
            client.wait(PATIENCE)
        assert client.status is tg.JobStatus.FAILED
        caught[client.name] = raised.value
    return caught


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.text}-{case.parallelism}")
def test_an_exception_names_operator_line_and_cause(errors: dict[str, Exception], case: Failing) -> None:
    error = errors[case.env().name]
    assert isinstance(error, tg.UserCodeFailed), repr(error)
    assert (error.operator, error.uid, error.subtask) == (case.operator, case.uid, 0)
    assert error.user_line == line_of(case.text)
    assert f'raise Trouble("{case.text}")' in error.cause
    assert str(error).splitlines()[0] == f"Trouble: {case.text}"
    assert f"in {case.operator} (uid {case.uid!r}), subtask 0" in str(error)
    assert f"at {line_of(case.text)}" in str(error)


def test_a_failure_during_a_checkpoint_names_it(errors: dict[str, Exception]) -> None:
    error = errors["fails-in-prepare-1"]
    assert error.checkpoint == 1
    assert ", checkpoint 1, at " in str(error)


def test_a_source_that_cannot_find_its_splits_is_named() -> None:
    env = tg.StreamEnvironment("discovery").restart_strategy("none")
    env.from_source(Discovery(), uid="doomed").print()
    with pytest.raises(tg.TidegateError, match="Trouble: in discover_splits") as raised:
        env.execute()
    assert "doomed" in str(raised.value)


def test_the_restart_strategy_comes_first(tmp_path: Path) -> None:
    """fixed-delay with one restart: two attempts, and the marks that they left outside agree."""
    marks = str(tmp_path / "marks")

    def fails(n: int) -> int:
        with open(marks, "a") as file:
            file.write("x")
        raise Trouble("every time")

    env = tg.StreamEnvironment("twice").restart_strategy("fixed-delay", attempts=1, delay="0s")
    env.from_collection([1], uid="one").map(fails, uid="doomed").collect()
    client = env.execute_async()
    with pytest.raises(tg.UserCodeFailed, match="Trouble: every time"):
        client.wait(PATIENCE)
    assert client.status is tg.JobStatus.FAILED
    assert Path(marks).read_text() == "xx"
    assert [failure.restart_in_s for failure in client.view.failures] == [0.0, None]
    assert client.view.restarts == 1


class Forgetful(tg.Sink):
    """Prepares what it then cannot find any more."""

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return ForgetfulWriter()

    def committer(self, context: tg.WriterContext) -> tg.Committer:
        return ForgetfulCommitter()


class ForgetfulWriter(tg.SinkWriter):
    def write(self, batch: Batch) -> None: ...

    def prepare(self, checkpoint: int) -> list[bytes]:
        return [b"gone"]


class ForgetfulCommitter(tg.Committer):
    lost_reason = "somebody has cleaned up"

    def commit(self, committables: list[bytes]) -> list[tg.CommitOutcome]:
        return [tg.CommitOutcome.LOST] * len(committables)


def test_a_commit_that_is_lost_ends_the_job_without_a_restart(storage: str) -> None:
    env = tg.StreamEnvironment("lost").checkpointing(storage=storage)
    env.restart_strategy("fixed-delay", attempts=5, delay="0s")
    env.from_sequence(1, 5, uid="numbers").sink_to(Forgetful(), uid="doomed")
    client = env.execute_async()
    with pytest.raises(
        tg.JobFailed, match=r"'doomed', subtask 0.*checkpoint 1 is neither committed nor committable"
    ) as raised:
        client.wait(PATIENCE)
    assert type(raised.value).__name__ == "CommitLost"
    assert client.view.restarts == 0


def test_a_failure_that_passes_is_not_seen_in_the_result(storage: str, tmp_path: Path) -> None:
    marker = tmp_path / "failed-once"

    def fails_once(n: int) -> int:
        if n == 700 and not marker.exists():
            marker.touch()
            raise Trouble("once")
        return n

    env = tg.StreamEnvironment("once", parallelism=2).checkpointing(every="50ms", storage=storage)
    env.from_sequence(1, 1000, uid="numbers").map(fails_once).collect(uid="out")
    client = finish(env)
    assert client.view.restarts == 1
    assert sorted(client.results("out")) == list(range(1, 1001))
