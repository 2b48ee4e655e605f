"""Throughput: a keyed sum through the public API against a bare pipeline, and what exactly-once checkpoints cost.

    python benchmarks/throughput.py [rounds] [records]

Last line, JSON: `ratio` = Tidegate with checkpoints each second / bare; `checkpoint_cost` = 1 - with / without. Also, without a
bar: string keys, dataclass records, a per-record Python function (records a second).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from time import time
from typing import Any

import bare
import harness
import numpy as np
import pyarrow as pa

import tidegate as tg

NUMBERS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
WORDS = pa.schema([("k", pa.string()), ("v", pa.int64())])
TIMES = tuple[float, float, int]


class Total(tg.KeyedBatchFunction):
    """Adds up a column for each key; at the end says when its first and last batch came, and how much it has added."""

    total = tg.ValueState(int, default=0)

    def open(self, ctx: tg.Context) -> None:
        self.first = self.last = 0.0
        self.sum = 0

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> None:
        self.first = self.first or time()
        values = batch.column("v")
        self.total.add_many(keys, values)
        self.sum += len(values)
        self.last = time()

    def end_input(self, ctx: tg.Context) -> Iterator[Any]:
        yield (self.first, self.last, self.sum)


@dataclass
class Event:
    key: int
    amount: int


class TotalOfEvents(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def open(self, ctx: tg.Context) -> None:
        self.first = self.last = 0.0
        self.sum = 0

    def process_element(self, event: Event, ctx: tg.Context) -> None:
        if not self.sum:
            self.first = time()
        self.total.set(self.total.get() + event.amount)
        self.sum += 1

    def end_input(self, ctx: tg.Context) -> Iterator[Any]:
        yield (self.first, time(), self.sum)


def numbers(indices: np.ndarray) -> pa.RecordBatch:
    columns = [pa.array(indices % bare.KEYS), pa.array(np.ones(len(indices), np.int64))]
    return pa.RecordBatch.from_arrays(columns, schema=NUMBERS)


_WORDS = pa.array([f"user-{i:06}" for i in range(bare.KEYS)])


def words(indices: np.ndarray) -> pa.RecordBatch:
    keys = _WORDS.take(pa.array(indices % bare.KEYS))
    return pa.RecordBatch.from_arrays([keys, pa.array(np.ones(len(indices), np.int64))], schema=WORDS)


_LINES = pa.array([f"{i:06}" + "a line of a log, as long as such lines are; " * 20 for i in range(1000)])


def lines(indices: np.ndarray) -> pa.RecordBatch:
    """About 900 bytes each: what a record costs is what its bytes cost."""
    texts = _LINES.take(pa.array(indices % len(_LINES)))
    return pa.RecordBatch.from_arrays([texts, pa.array(np.ones(len(indices), np.int64))], schema=WORDS)


def run(spark: Any, records: int, checkpoints: bool, shape: str = "numbers", encrypt: bool = False) -> float:
    """Records a second, from the first batch at a keyed subtask to the last."""
    env = tg.StreamEnvironment("throughput", parallelism=bare.WIDTH, spark=spark)
    env.encryption(network=encrypt)
    storage = harness.fresh_folder("throughput").as_uri()
    env.checkpointing(every="1s" if checkpoints else None, storage=storage)
    match shape:
        case "numbers" | "words" | "lines":
            function, schema = {"numbers": (numbers, NUMBERS), "words": (words, WORDS), "lines": (lines, WORDS)}[shape]
            source = tg.DataGenerator(function, count=records, vectorised=True, type=schema, splits=bare.WIDTH)
            out = env.from_source(source, uid="source").key_by("k").process_batches(Total(), uid="total", returns=TIMES)
        case "dataclass":
            source = tg.DataGenerator(lambda i: Event(i % 100_000, 1), count=records, type=Event, splits=bare.WIDTH)
            out = (
                env.from_source(source, uid="source").key_by("key").process(TotalOfEvents(), uid="total", returns=TIMES)
            )
        case "python":
            source = tg.DataGenerator(numbers, count=records, vectorised=True, type=NUMBERS, splits=bare.WIDTH)
            doubled = env.from_source(source, uid="source").map(lambda row: Event(row["k"], row["v"]), returns=Event)
            out = doubled.key_by("key").process(TotalOfEvents(), uid="total", returns=TIMES)
    out.collect(uid="times")
    rows = env.execute().results("times")
    assert sum(row[2] for row in rows) == records, rows
    return records / (max(row[1] for row in rows) - min(row[0] for row in rows if row[0]))


def main(rounds: int = 5, records: int = 20_000_000) -> None:
    spark = harness.session()
    bare.keyed_sum(spark, 2_000_000)
    run(spark, 2_000_000, True)
    results = harness.interleave(
        rounds,
        {
            "bare": lambda: bare.keyed_sum(spark, records),
            "with": lambda: run(spark, records, True),
            "without": lambda: run(spark, records, False),
        },
    )
    others = harness.interleave(
        3,
        {
            "string_keys": lambda: run(spark, records // 4, True, "words"),
            "dataclass_records": lambda: run(spark, records // 40, True, "dataclass"),
            "python_function": lambda: run(spark, records // 40, True, "python"),
        },
    )
    ratio = harness.ratios(results["with"], results["bare"])
    cost = [1 - r for r in harness.ratios(results["with"], results["without"])]
    harness.finish(
        {
            "ratio": harness.median(ratio),
            "ratio_spread": harness.spread(ratio),
            "checkpoint_cost": harness.median(cost),
            "checkpoint_cost_spread": harness.spread(cost),
            "bare_records_per_s": int(harness.median(results["bare"])),
            "with_checkpoints_records_per_s": int(harness.median(results["with"])),
            "without_checkpoints_records_per_s": int(harness.median(results["without"])),
            **{f"{name}_records_per_s": int(harness.median(speeds)) for name, speeds in others.items()},
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
