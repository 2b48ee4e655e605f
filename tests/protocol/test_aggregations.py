"""The built-in aggregations in batches and record by record: the same results in the same order, over crashes, and one
continues from the other's checkpoint."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.graph.specs import KeyedBatchSpec, KeyedProcessSpec
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

RNG = random.Random(7)
NAN = float("nan")


@dataclass
class Sale:
    shop: str
    item: int
    amount: int
    price: float
    note: str | None = None
    bonus: int | None = None


SALES = [
    Sale(
        RNG.choice(["north", "süd", ""]),
        RNG.randint(-2, 2),
        RNG.randint(-50, 50),
        RNG.choice([0.1, -3.5, NAN, 2.25, math.inf]),
    )
    for _ in range(200)
]
for sale in SALES[::3]:
    sale.bonus = RNG.randint(-50, 50)
KEYS: dict[str, tuple[Any, ...]] = {"one column": ("shop",), "two columns": ("shop", "item")}
AGGREGATIONS = {
    "count": lambda stream: stream.count(uid="agg"),
    "sum of ints": lambda stream: stream.sum("amount", uid="agg"),
    "sum of floats": lambda stream: stream.sum("price", uid="agg"),
    "min of ints": lambda stream: stream.min("amount", uid="agg"),
    "max of ints": lambda stream: stream.max("amount", uid="agg"),
    "min of floats": lambda stream: stream.min("price", uid="agg"),
    "max of floats": lambda stream: stream.max("price", uid="agg"),
    "sum of what may be None": lambda stream: stream.sum("bonus", uid="agg"),
    "min of what may be None": lambda stream: stream.min("bonus", uid="agg"),
}
#: The columns of a schema: their Arrow types, and what a value of each may be.
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "narrow": (pa.int32(), [None, 5, -7, 1000]),
    "unsigned": (pa.uint16(), [None, 0, 3, 200]),
    "single": (pa.float32(), [None, 0.5, -2.25, 8.0]),
    "wide": (pa.int64(), [None, 2**40, -(2**41)]),
}


def job(storage: str, aggregation: str, columns: bool, key: str, resume: str | None = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("aggregations", parallelism=1)
    env.checkpointing(every="10ms", storage=storage, resume=resume)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    stream = env.from_collection(SALES, uid="sales", type=Sale)
    names = KEYS[key]
    if columns:
        keyed = stream.key_by(*names)
    else:
        types = {"shop": str, "item": int}
        key_type = types[names[0]] if len(names) == 1 else tuple[str, int]
        values = (lambda sale: str(sale.shop)) if len(names) == 1 else (lambda sale: (sale.shop, sale.item))
        keyed = stream.key_by(values, key_type=key_type)
    AGGREGATIONS[aggregation](keyed).sink_to(LedgerSink("out"), uid="out")
    spec = env._graph.operators["agg"].spec  # type: ignore[index]
    assert isinstance(spec, KeyedBatchSpec if columns else KeyedProcessSpec)
    return env


def rows() -> list[str]:
    return [repr(row) for row in ledger("out").rows()]  # a NaN is not equal to itself


@pytest.mark.parametrize("key", list(KEYS))
@pytest.mark.parametrize("aggregation", list(AGGREGATIONS))
def test_batches_give_what_records_give_and_continue_from_each_others_checkpoint(aggregation: str, key: str) -> None:
    forget_ledgers()
    run_in_process(job(fresh_storage(), aggregation, False, key), 1)
    expected = rows()
    assert len(expected) == len(SALES)

    forget_ledgers()
    run_in_process(job(fresh_storage(), aggregation, True, key), 2, [Crash("slot.before-ack", nth=2, times=2)])
    assert rows() == expected

    for first in (True, False):
        resumed = 0
        for seed in range(4):
            forget_ledgers()
            storage = fresh_storage()
            try:
                crash = [Crash("driver.notified", nth=2)]
                InProcessRun(job(storage, aggregation, first, key), seed, crash, max_drivers=1).run()
            except AllDriversDied:
                resumed += 1
                run_in_process(job(storage, aggregation, not first, key, resume="latest"), seed)
            assert rows() == expected
        assert resumed


def test_what_is_no_number_is_folded_record_by_record() -> None:
    env = tg.StreamEnvironment("aggregations")
    stream = env.from_collection(SALES, uid="sales", type=Sale)
    stream.key_by("item").max("shop", uid="text").print()
    stream.key_by("item").sum("amount", uid="number").print()
    untyped = env.from_collection([(1, 2), ("a", None)], uid="untyped").key_by(0)
    untyped.sum(1, uid="unknown").print()
    specs = {uid: type(operator.spec) for uid, operator in env._graph.operators.items()}

    assert specs["text"] is specs["unknown"] is KeyedProcessSpec  # type: ignore[index]
    assert specs["number"] is KeyedBatchSpec  # type: ignore[index]


def folded(rows: list[dict[str, Any]], column: str, how: str) -> list[dict[str, Any]]:
    """What a built-in aggregation is, in plain Python: a None is passed over."""
    so_far: dict[Any, Any] = {}
    out = []
    for row in rows:
        key, value = row["shop"], row[column]
        if value is not None:
            before = so_far.get(key)
            fold = {"sum": lambda a, b: a + b, "min": min, "max": max}[how]
            so_far[key] = value if before is None else fold(before, value)
        out.append((key, so_far.get(key)))
    return out


@pytest.mark.parametrize("how", ["sum", "min", "max"])
@pytest.mark.parametrize("column", COLUMNS)
def test_columns_of_a_schema_with_nulls_are_folded_as_python_would(column: str, how: str) -> None:
    rng = random.Random(3)
    fields = [pa.field("shop", pa.string()), *(pa.field(name, arrow) for name, (arrow, _) in COLUMNS.items())]
    made = [
        {"shop": rng.choice(["a", "b", None]), **{name: rng.choice(values) for name, (_, values) in COLUMNS.items()}}
        for _ in range(150)
    ]
    forget_ledgers()
    env = tg.StreamEnvironment("columns", parallelism=1)
    env.checkpointing(every="10ms", storage=fresh_storage())
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    keyed = env.from_collection(made, uid="sales", type=pa.schema(fields)).key_by("shop")
    getattr(keyed, how)(column, uid="agg").sink_to(LedgerSink("out"), uid="out")
    assert isinstance(env._graph.operators["agg"].spec, KeyedBatchSpec)  # type: ignore[index]

    run_in_process(env, 2, [Crash("slot.before-ack", nth=2, times=2)])

    assert ledger("out").rows() == folded(made, column, how)
