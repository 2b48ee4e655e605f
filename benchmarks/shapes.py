"""The same operation over every way of typing a stream: how fast its operator takes a batch, in one process and without Spark.

    python benchmarks/shapes.py [rounds] [records]

Last line: JSON. `built_in` has, for each operation, thousand records a second of processor time for dataclass, tuple and
schema, and `spread`, the fastest over the slowest; `record_by_record` the same of a Python function, in a loop of its own and
called for each record.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tidegate as tg
from tidegate.batch import Batch
from tidegate.graph.plan import plan_job
from tidegate.state.heap import HeapStateBackend
from tidegate.task.operators import stateless
from tidegate.task.operators.process import KeyedBatchOperator, KeyedProcessOperator
from tidegate.task.operators.timers import Time
from tidegate.types import record_type

KEYS = 50_000
BATCH = 16_384
BATCHES = 16


@dataclass
class Sale:
    item: int
    amount: int


@dataclass
class NamedSale:
    item: str
    amount: int


class OfField(tg.KeyedProcessFunction):
    """The running sum; every new sum is emitted."""

    total = tg.ValueState(int, default=0)

    def process_element(self, sale, ctx):
        total = self.total.get() + sale.amount
        self.total.set(total)
        yield (ctx.key, total)


class OfPair(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def process_element(self, sale, ctx):
        total = self.total.get() + sale[1]
        self.total.set(total)
        yield (ctx.key, total)


class OfDict(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def process_element(self, sale, ctx):
        total = self.total.get() + sale["amount"]
        self.total.set(total)
        yield (ctx.key, total)


INT = pa.schema([("item", pa.int64()), ("amount", pa.int64())])
TEXT = pa.schema([("item", pa.string()), ("amount", pa.int64())])
TYPES: dict[str, Any] = {"dataclass": Sale, "tuple": tuple[int, int], "schema": INT}
TEXT_TYPES: dict[str, Any] = {"dataclass": NamedSale, "tuple": tuple[str, int], "schema": TEXT}
FUNCTIONS: dict[str, Callable[[], Any]] = {"dataclass": OfField, "tuple": OfPair, "schema": OfDict}
BUILT_IN: dict[str, Callable[[Any, str], Any]] = {
    "filter": lambda stream, amount: stream.filter(pc.field(amount) > 50),
    "with_columns": lambda stream, amount: stream.with_columns(twice=pc.field(amount) * 2),
    "count": lambda stream, amount: stream.key_by(0).count(),
    "sum": lambda stream, amount: stream.key_by(0).sum(1),
    "max": lambda stream, amount: stream.key_by(0).max(1),
}


def running(stream: Any, function: Any, in_a_loop: bool) -> Any:
    """The operator that was put last into the job."""
    env = stream._env
    stream.print()
    env._built.taken_up = True
    planned = plan_job("shapes", env._graph, 1).operators[1]
    spec: Any = planned.operator.spec
    made: Any
    if hasattr(spec, "key"):
        backend = HeapStateBackend(spec.key.key_type(), range(128), 128)
        if function is None:
            made = KeyedBatchOperator(planned, 0, "shapes", spec.function, backend, spec.key)
        else:
            text = spec.text if in_a_loop else None
            clocks = Time(time.monotonic, time.time)
            made = KeyedProcessOperator(planned, 0, "shapes", spec.function, backend, (spec.key,), clocks, text)
    elif hasattr(spec, "expression"):
        made = stateless.ColumnFilterOperator(planned, 0, spec.expression)
    else:
        made = stateless.ProjectOperator(planned, 0, spec.names, spec.expressions)
    made.open(None)
    made.emit = lambda batch: batch.columns()  # as they leave for the next subtask
    return made


def speed(typed: Any, operation: str, function: Any, records: int, in_a_loop: bool = True) -> float:
    """Thousand records in a second of processor time."""
    rows = record_type(typed)
    stream = tg.StreamEnvironment("shapes").from_collection([], type=typed)
    if function is None:
        last = BUILT_IN[operation](stream, rows.field_names[1])
    else:
        item = str if pa.types.is_string(rows.schema.field(0).type) else int
        last = stream.key_by(0, key_type=item).process(function(), returns=tuple[item, int])
    operator = running(last, function, in_a_loop)
    rng = np.random.default_rng(1)
    batches = []
    for _ in range(BATCHES):
        items = pa.array(rng.integers(0, KEYS, BATCH))
        if pa.types.is_string(rows.schema.field(0).type):
            items = pa.array([f"user-{item:06}" for item in items.to_pylist()])
        batches.append(pa.RecordBatch.from_arrays([items, pa.array(rng.integers(0, 100, BATCH))], schema=rows.schema))
    for batch in batches:
        operator.process(Batch(rows, columns=batch), 0)
    began = time.process_time()
    turns = max(1, records // BATCH)
    for turn in range(turns):
        operator.process(Batch(rows, columns=batches[turn % BATCHES]), 0)
    return turns * BATCH / (time.process_time() - began) / 1000


def side_by_side(rounds: int, runs: dict[str, Callable[[], float]]) -> dict[str, Any]:
    found = {name: harness.median(speeds) for name, speeds in harness.interleave(rounds, runs).items()}
    spread = max(found.values()) / min(found.values())
    return {**{name: int(median) for name, median in found.items()}, "spread": round(spread, 2)}


def main(rounds: int = 5, records: int = 500_000) -> None:
    built_in = {}
    for keys, types in {"": TYPES, "string keys": TEXT_TYPES}.items():
        for operation in BUILT_IN:
            if not keys or operation in ("count", "sum", "max"):
                runs = {way: lambda t=typed, o=operation: speed(t, o, None, records) for way, typed in types.items()}
                built_in[f"{operation} {keys}".strip()] = side_by_side(rounds, runs)
    by_record = {}
    for keys, types in {"int keys": TYPES, "string keys": TEXT_TYPES}.items():
        for in_a_loop in (True, False):
            runs = {
                way: lambda t=typed, w=way, i=in_a_loop: speed(t, "", FUNCTIONS[w], records // 2, i)
                for way, typed in types.items()
            }
            by_record[f"{keys}, {'in a loop' if in_a_loop else 'called'}"] = side_by_side(rounds, runs)
    harness.finish({"built_in": built_in, "record_by_record": by_record})


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
