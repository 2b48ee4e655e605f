"""How cost grows: records/s and the time of a checkpoint as one thing at a time grows, and a page with plots.

    python benchmarks/growth.py [--only parallelism,keys,bytes,layers,operators] [--records 4000000] [--rounds 1]
                                [--page build/growth.html] [--save NAME]

A keyed count of typed columns with exactly-once checkpoints each second, 100,000 keys, two subtasks a layer. What grows:

    parallelism   subtasks a layer, on the cores that there are
    keys          in the state, on the heap
    bytes         of a record, all of which travel
    layers        one after the other, with a shuffle between them; each keeps a count
    operators     in one chain, each a function over a batch that changes nothing

Speed is that of the last layer, from its first batch to its last. Last line: JSON; the page has a plot for each, and shows
nothing that is not in the JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import time
from typing import Any

import growth_page
import harness
import numpy as np
import pyarrow as pa

import tidegate as tg

RECORD = pa.schema([("k", pa.int64()), ("pad", pa.binary())])
MOST_BYTES = 400_000_000  #: in one run; larger records are fewer
LARGE_BYTES = 1000  #: such records are made one by one, so that a batch stays small


@dataclass(frozen=True)
class Point:
    parallelism: int = 2
    keys: int = 100_000
    bytes: int = 1
    layers: int = 2
    operators: int = 1


SERIES: dict[str, list[int]] = {
    "parallelism": [1, 2, 4, 8],
    "keys": [1_000, 10_000, 100_000, 1_000_000, 10_000_000],
    "bytes": [1, 100, 10_000, 100_000],
    "layers": [2, 3, 4, 6, 8],
    "operators": [1, 10, 50, 200],
}


class Records:
    def __init__(self, point: Point) -> None:
        self.keys = point.keys
        self.pad = b"x" * point.bytes

    def columns(self, indices: Any) -> pa.RecordBatch:
        pads = pa.array([self.pad], pa.binary()).take(pa.array(np.zeros(len(indices), np.int64)))
        return pa.RecordBatch.from_arrays([pa.array(indices % self.keys), pads], schema=RECORD)

    def row(self, index: int) -> dict[str, Any]:
        return {"k": index % self.keys, "pad": self.pad}


class Count(tg.KeyedBatchFunction):
    """Hands records on. Of the last layer: when its first and last batch came, and how many records."""

    count = tg.ValueState(int, default=0)

    def __init__(self, is_last: bool) -> None:
        self.is_last = is_last

    def open(self, ctx: tg.Context) -> None:
        self.first = self.last = 0.0
        self.records = 0

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> pa.RecordBatch | None:
        self.first = self.first or time()
        self.count.add_many(keys, 1)
        self.records += len(batch)
        self.last = time()
        return None if self.is_last else batch

    def end_input(self, ctx: tg.Context) -> Iterator[Any]:
        if self.is_last:
            yield (self.first, self.last, self.records)


def measure(spark: Any, point: Point, records: int) -> dict[str, float]:
    records = max(min(records, MOST_BYTES // (point.bytes + 8)), 100)
    env = tg.StreamEnvironment("growth", parallelism=point.parallelism, spark=spark)
    env.checkpointing(every="1s", storage=harness.fresh_folder("growth").as_uri())
    env.restart_strategy("none")
    made, large = Records(point), point.bytes > LARGE_BYTES
    source = tg.DataGenerator(
        made.row if large else made.columns, count=records, vectorised=not large, type=RECORD, splits=point.parallelism
    )
    stream: Any = env.from_source(source, uid="records")
    for _ in range(point.operators - 1):
        stream = stream.map_batches(lambda batch: batch, returns=RECORD)
    for layer in range(1, point.layers):
        is_last = layer == point.layers - 1
        stream = stream.key_by("k").process_batches(
            Count(is_last), uid=f"count-{layer}", returns=tuple[float, float, int] if is_last else RECORD
        )
    stream.collect(uid="times")
    checkpoints = harness.Checkpoints()
    client = env.execute_async()
    client.view.subscribe(checkpoints)
    client.wait()
    rows = client.results("times")
    assert sum(row[2] for row in rows) == records, rows
    took = max(row[1] for row in rows) - min(row[0] for row in rows if row[0])
    times = checkpoints.completed_s()
    return {
        "records": records,
        "records_per_s": int(records / took) if took else 0,
        "checkpoint_s": harness.median(times) if times else 0.0,
    }


def series(spark: Any, name: str, values: list[int], records: int, rounds: int) -> list[dict[str, float]]:
    """Round by round through all values; medians."""
    runs: dict[int, list[dict[str, float]]] = {value: [] for value in values}
    for _ in range(rounds):
        for value in values:
            run = measure(spark, replace(Point(), **{name: value}), records)
            harness.say(
                f"{name} {value:,}: {run['records_per_s']:,} records/s, checkpoints {run['checkpoint_s']:.3f} s"
            )
            runs[value].append(run)
    return [
        {name: value, **{what: harness.median([run[what] for run in found]) for what in found[0]}}
        for value, found in runs.items()
    ]


def main(arguments: list[str] | None = None, spark: Any = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(SERIES))
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--largest", type=int, help="leave out what is above it")
    parser.add_argument("--page", type=Path, default=Path("build/growth.html"))
    parser.add_argument("--save", help="name of a file in benchmarks/results")
    options = parser.parse_args(arguments)
    spark = spark or harness.session(72)
    found = {}
    for name in options.only.split(","):
        values = [value for value in SERIES[name] if options.largest is None or value <= options.largest]
        found[name] = series(spark, name, values, options.records, options.rounds)
    result = {"otherwise": asdict(Point()), **found, "rounds": options.rounds, "machine": harness.machine()}
    options.page.parent.mkdir(parents=True, exist_ok=True)
    options.page.write_text(growth_page.page(found, result["machine"]))
    harness.say(f"plots: {options.page}")
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


if __name__ == "__main__":
    main()
