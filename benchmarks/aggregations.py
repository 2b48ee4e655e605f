"""The built-in aggregations in whole batches against record by record, on both backends.

    python benchmarks/aggregations.py [rounds] [records]

In one process and without Spark: the operators that a job would run, on batches as they come from the network, with results as
columns again. Last line: JSON, for each aggregation and backend how many times as fast batches are (`gain`), with spread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
import pyarrow as pa

import tidegate as tg
from tidegate.batch import Batch
from tidegate.graph.plan import plan_job
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.state.rocksdb import RocksStateBackend
from tidegate.state.rocksdb_options import RocksSettings
from tidegate.task.operators.process import KeyedBatchOperator, KeyedProcessOperator
from tidegate.task.operators.timers import Time
from tidegate.types import record_type

KEYS = 100_000
BATCH = 2048
GROUPS = range(128)
PAIR = tuple[int, int]
AGGREGATIONS: dict[str, Callable[[Any], Any]] = {
    "count": lambda stream: stream.count(uid="agg"),
    "sum": lambda stream: stream.sum(1, uid="agg"),
    "max": lambda stream: stream.max(1, uid="agg"),
}


def heap() -> KeyedStateBackend:
    return HeapStateBackend(key_type(int), GROUPS, len(GROUPS))


def rocksdb() -> KeyedStateBackend:
    settings = RocksSettings(folder=harness.fresh_folder("aggregations-state"))
    return RocksStateBackend(key_type(int), GROUPS, len(GROUPS), settings)


def operator(aggregation: str, columns: bool, backend: KeyedStateBackend) -> Any:
    env = tg.StreamEnvironment("aggregations")
    stream = env.from_collection([(1, 2)], uid="numbers", type=PAIR)
    keyed = stream.key_by(0) if columns else stream.key_by(lambda pair: int(pair[0]), key_type=int)
    AGGREGATIONS[aggregation](keyed).print()
    (planned,) = [planned for planned in plan_job("aggregations", env._graph, 1).operators if planned.uid == "agg"]
    spec: Any = planned.operator.spec
    if columns:
        made: Any = KeyedBatchOperator(planned, 0, "aggregations", spec.function, backend, spec.key)
    else:
        clocks = Time(time.monotonic, time.time)
        made = KeyedProcessOperator(planned, 0, "aggregations", spec.function, backend, (spec.key,), clocks)
    made.open(None)
    made.emit = lambda batch: batch.columns()  # as they leave for the next subtask
    return made


def run(aggregation: str, columns: bool, make: Callable[[], KeyedStateBackend], records: int) -> float:
    rng = np.random.default_rng(1)
    schema = record_type(PAIR).schema
    batches = [
        pa.RecordBatch.from_arrays(
            [pa.array(rng.integers(0, KEYS, BATCH)), pa.array(rng.integers(0, 100, BATCH))], schema=schema
        )
        for _ in range(64)
    ]
    backend = make()
    subtask = operator(aggregation, columns, backend)
    for batch in batches:
        subtask.process(Batch(record_type(PAIR), columns=batch), 0)
    began = time.perf_counter()
    for number in range(records // BATCH):
        subtask.process(Batch(record_type(PAIR), columns=batches[number % len(batches)]), 0)
    took = time.perf_counter() - began
    backend.close()
    return records // BATCH * BATCH / took


def main(rounds: int = 5, records: int = 400_000) -> None:
    result: dict[str, Any] = {}
    for aggregation in AGGREGATIONS:
        for name, make in {"heap": heap, "rocksdb": rocksdb}.items():
            speeds = harness.interleave(
                rounds,
                {
                    "batches": lambda: run(aggregation, True, make, records),  # noqa: B023
                    "records": lambda: run(aggregation, False, make, records),  # noqa: B023
                },
            )
            gains = harness.ratios(speeds["batches"], speeds["records"])
            result[f"{aggregation}_{name}"] = {
                "gain": harness.median(gains),
                "spread": harness.spread(gains),
                "batches_records_per_s": int(harness.median(speeds["batches"])),
                "records_records_per_s": int(harness.median(speeds["records"])),
            }
    harness.finish(result)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
