"""A function may change the records that it was given and those that it has emitted: nobody else sees it.

Every way in which records leave an operator, times every set of readers. Each emitter makes its records out of one object that
it changes in between; each reader changes what it is given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.testing.runner import InProcessRun
from tidegate.types import record_type

COUNT = 12
NUMBERS = list(range(1, COUNT + 1))


@dataclass
class Row:
    n: int
    tags: list[int] = field(default_factory=list)


@dataclass
class Flat:
    n: int


class Dicts:
    """Records as dicts, of an untyped stream."""

    type: Any = None

    def make(self) -> Any:
        return {"n": 0, "tags": [0]}

    def set(self, record: Any, n: int) -> Any:
        record["n"] = n
        record["tags"][0] = n
        return record

    def read(self, record: Any) -> list[int]:
        return [record["n"], *record["tags"]]


class Rows(Dicts):
    type = Row

    def make(self) -> Any:
        return Row(0, [0])

    def set(self, record: Any, n: int) -> Any:
        record.n = n
        record.tags[0] = n
        return record

    def read(self, record: Any) -> list[int]:
        return [record.n, *record.tags]


class Flats(Rows):
    type = Flat

    def make(self) -> Any:
        return Flat(0)

    def set(self, record: Any, n: int) -> Any:
        record.n = n
        return record

    def read(self, record: Any) -> list[int]:
        return [record.n]


class Schemas(Dicts):
    type = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.int64()))])


KINDS: dict[str, Dicts] = {"dicts": Dicts(), "dataclasses": Rows(), "flat dataclasses": Flats(), "a schema": Schemas()}

# -- the ways in which records leave an operator --------------------------------------------------------------------------


class OneObject:
    """Emits one object again and again."""

    def __init__(self, kind: Dicts) -> None:
        self.kind = kind
        self.record = kind.make()

    def with_(self, n: int) -> Any:
        return self.kind.set(self.record, n)


def by_map(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    return numbers.map(OneObject(kind).with_, uid="emitter", returns=kind.type)


def by_flat_map(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    one = OneObject(kind)

    def both(n: int) -> Iterator[Any]:
        if n % 2:
            yield one.with_(n)
            yield one.with_(n + 1)

    return numbers.flat_map(both, uid="emitter", returns=kind.type)


def by_filter(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    """The filter holds the last record, and blanks it when it has the next."""
    held: list[Any] = []

    def passes(record: Any) -> bool:
        if held:
            kind.set(held.pop(), -1)
        held.append(record)
        return True

    return by_map(numbers, kind).filter(passes, uid="filter")


class Plain(tg.ProcessFunction):
    def __init__(self, kind: Dicts) -> None:
        self.one = OneObject(kind)

    def process_element(self, value: int, ctx: tg.Context) -> Any:
        return [self.one.with_(value)]


def by_process(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    return numbers.process(Plain(kind), uid="emitter", returns=kind.type)


class Keyed(tg.KeyedProcessFunction):
    def __init__(self, kind: Dicts) -> None:
        self.one = OneObject(kind)

    def process_element(self, value: int, ctx: tg.Context) -> Any:
        yield self.one.with_(value)


def by_keyed_process(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    return numbers.key_by(lambda n: n % 3, key_type=int).process(Keyed(kind), uid="emitter", returns=kind.type)


class Timed(Keyed):
    def process_element(self, value: int, ctx: tg.Context) -> Any:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Any:
        yield self.one.with_(timestamp)


def by_timer(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    stamped = numbers.assign_timestamps_and_watermarks(tg.WatermarkStrategy.monotonous(timestamp=lambda n: n))
    return stamped.key_by(lambda n: n, key_type=int).process(Timed(kind), uid="emitter", returns=kind.type)


class AtTheEnd(tg.ProcessFunction):
    def __init__(self, kind: Dicts) -> None:
        self.one = OneObject(kind)
        self.numbers: list[int] = []

    def process_element(self, value: int, ctx: tg.Context) -> None:
        self.numbers.append(value)

    def end_input(self, ctx: tg.Context) -> Any:
        for n in self.numbers:
            yield self.one.with_(n)


def at_the_end(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    return numbers.process(AtTheEnd(kind), uid="emitter", returns=kind.type)


class Aside(tg.ProcessFunction):
    def __init__(self, kind: Dicts) -> None:
        self.one = OneObject(kind)

    def process_element(self, value: int, ctx: tg.Context) -> None:
        ctx.output(tg.OutputTag("side", self.one.kind.type), self.one.with_(value))


def by_side_output(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    return numbers.process(Aside(kind), uid="emitter").side_output(tg.OutputTag("side", kind.type))


def by_columns(numbers: tg.DataStream, kind: Dicts) -> tg.DataStream:
    """Nobody can change columns; but each reader makes rows of them."""
    if kind.type is None:
        return by_map(numbers, kind)
    records = record_type(kind.type)

    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        return records.to_batch([kind.set(kind.make(), n) for n in batch.column(0).to_pylist()])

    return numbers.map_batches(columns, uid="emitter", returns=kind.type)


class Reused(Source):
    """A source of a user whose reader returns one object again and again."""

    def __init__(self, kind: Dicts) -> None:
        self.kind = kind
        self.record_type = kind.type

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split("all")]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _Reuser(self.kind)


class _Reuser(SourceReader):
    def __init__(self, kind: Dicts) -> None:
        self.one = OneObject(kind)
        self.next = 1
        self.mine = False

    def add_splits(self, splits: Sequence[Split]) -> None:
        self.mine = True
        self.next = splits[0].position or 1

    def poll(self, deadline: float) -> list[Any] | None:
        if not self.mine or self.next > COUNT:
            return None
        self.next += 1
        return [self.one.with_(self.next - 1)]

    def splits(self) -> list[Split]:
        return [Split("all", self.next, finished=self.next > COUNT)] if self.mine else []


EMITTERS: dict[str, Callable[[tg.DataStream, Dicts], tg.DataStream]] = {
    "map": by_map,
    "flat_map": by_flat_map,
    "filter": by_filter,
    "process": by_process,
    "keyed process": by_keyed_process,
    "timer": by_timer,
    "end of input": at_the_end,
    "side output": by_side_output,
    "columns": by_columns,
}

# -- readers --------------------------------------------------------------------------------------------------------------


class Reader(tg.ProcessFunction):
    """Says what it was given, and then changes it."""

    def __init__(self, kind: Dicts) -> None:
        self.kind = kind

    def process_element(self, value: Any, ctx: tg.Context) -> Any:
        seen = self.kind.read(value)
        self.kind.set(value, -7)
        yield tuple(seen)


def read(stream: tg.DataStream, kind: Dicts, uid: str) -> None:
    stream.process(Reader(kind), uid=uid).collect(uid=f"{uid}-out")


READERS = {
    "two in the chain": ("chained", "chained"),
    "the chain and an edge": ("chained", "edge"),
    "an edge": ("edge",),
    "two edges": ("edge", "edge"),
    "two in the chain and two edges": ("chained", "chained", "edge", "edge"),
}


def environment() -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("owners", parallelism=1).checkpointing(every="20ms", storage=fresh_storage())
    return env.restart_strategy("none")


def attach(stream: tg.DataStream, kind: Dicts, readers: Sequence[str]) -> list[str]:
    uids = [f"reader-{at}-{how}" for at, how in enumerate(readers)]
    for uid, how in zip(uids, readers, strict=True):
        read(stream if how == "chained" else stream.rebalance(), kind, uid)
    return uids


def assert_each_saw_all(env: tg.StreamEnvironment, kind: Dicts, uids: list[str], seed: int) -> None:
    run = InProcessRun(env, seed).run()

    assert run.status.value == "FINISHED", run.error
    width = len(kind.read(kind.make()))
    for uid in uids:
        assert sorted(run.collected.rows(f"{uid}-out")) == [(n,) * width for n in NUMBERS], uid


@pytest.mark.parametrize("readers", list(READERS))
@pytest.mark.parametrize("emitter", list(EMITTERS))
def test_nobody_sees_what_another_changes(emitter: str, readers: str) -> None:
    for seed, kind in enumerate(KINDS.values()):
        env = environment()
        numbers = env.from_collection(NUMBERS, uid="numbers", type=int)
        uids = attach(EMITTERS[emitter](numbers, kind), kind, READERS[readers])

        assert_each_saw_all(env, kind, uids, seed)


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_source_may_return_one_object_again_and_again(kind: str) -> None:
    one = OneObject(KINDS[kind])
    sources: list[Source] = [
        Reused(KINDS[kind]),
        tg.DataGenerator(lambda index: one.with_(index + 1), count=COUNT, type=KINDS[kind].type),
    ]
    for source, readers in itertools.product(sources, READERS.values()):
        env = environment()
        uids = attach(env.from_source(source, uid="source"), KINDS[kind], readers)

        assert_each_saw_all(env, KINDS[kind], uids, seed=1)


def test_a_collection_may_hold_one_object_several_times() -> None:
    env = environment()
    attach(env.from_collection([{"n": 5, "tags": [5]}] * 6, uid="numbers"), KINDS["dicts"], ["chained"])

    run = InProcessRun(env, 1).run()

    assert run.collected.rows("reader-0-chained-out") == [(5, 5)] * 6


def test_with_object_reuse_records_are_handed_on_as_they_are() -> None:
    env = environment().object_reuse()
    numbers = env.from_collection(NUMBERS, uid="numbers", type=int)
    attach(by_map(numbers, KINDS["dicts"]), KINDS["dicts"], ["chained", "chained"])

    run = InProcessRun(env, 1).run()

    assert set(run.collected.rows("reader-1-chained-out")) == {(-7, -7)}
