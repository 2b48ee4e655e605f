"""Tidegate: `columns` (the built-in sum), `quiet` (a batch function that emits nothing, as the bare pipeline does), `record` (a
Python function for each record), `string` (the same with string keys), and `bare`: that pipeline itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import pyarrow as pa

sys.path.append(str(Path(__file__).parents[1]))  # workers look for modules in the first of them: this folder

import bare
import harness
import work

import tidegate as tg


@dataclass
class Event:
    key: int
    value: int


@dataclass
class NamedEvent:
    key: str
    value: int


class RunningSum(tg.KeyedProcessFunction):
    sum = tg.ValueState(int, default=0)

    def process_element(self, event: Any, ctx: tg.Context) -> Iterator[Any]:
        total = self.sum.get() + event.value
        self.sum.set(total)
        yield event.key, total


class QuietSum(tg.KeyedBatchFunction):
    sum = tg.ValueState(int, default=0)

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> None:
        self.sum.add_many(keys, batch.column("value"))


class Answers(tg.Sink):
    """Throws batches away, or writes them down."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def writer(self, context: tg.WriterContext) -> tg.SinkWriter:
        return _AnswersWriter(self.folder)


class _AnswersWriter(tg.SinkWriter):
    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def write(self, batch: Any) -> None:
        if self.folder is not None:
            work.write(self.folder, ((str(row[0]).removeprefix("user-"), row[1]) for row in batch.rows()), os.getpid())


def numbers(indices: Any) -> list[Any]:
    return [work.key_of(indices), work.value_of(indices)]


_NAMES = pa.array([f"user-{key:06}" for key in range(work.KEYS)])


def named(indices: Any) -> list[Any]:
    return [_NAMES.take(pa.array(work.key_of(indices))), work.value_of(indices)]


def job(task: work.Task, way: str, spark: Any) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("peers", parallelism=work.PARALLELISM, spark=spark)
    env.checkpointing(every=f"{work.CHECKPOINT_S}s", storage=task.state.as_uri())
    env.restart_strategy("none")
    function, type_ = (named, NamedEvent) if way == "string" else (numbers, Event)
    source = tg.DataGenerator(function, count=task.records, vectorised=True, type=type_, splits=work.PARALLELISM)
    keyed = env.from_source(source, uid="numbers").key_by("key")
    sums: Any
    key: Any = str if way == "string" else int
    match way:
        case "columns":
            sums = keyed.sum("value", uid="sum")
        case "quiet":
            sums = keyed.process_batches(QuietSum(), uid="sum", returns=tuple[int, int])
        case "record" | "string":
            sums = keyed.process(RunningSum(), uid="sum", returns=tuple[key, int])
        case _:
            raise SystemExit(f"no such way: {way}")
    sums.sink_to(Answers(task.answers), uid="answers")
    return env


def run(task: work.Task, way: str) -> None:
    spark = harness.session(8)
    if way == "bare":
        bare.keyed_sum(spark, 1000)
        began = perf_counter()
        bare.keyed_sum(spark, task.records)
    else:
        env = job(task, way, spark)
        began = perf_counter()
        env.execute()
    work.finish(task.records, perf_counter() - began)


if __name__ == "__main__":
    asked = work.task()
    run(asked, asked.options[0])
