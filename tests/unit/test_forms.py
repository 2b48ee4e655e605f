"""No cliffs: what is typed works by columns wherever its operation can, and where it does not it says why."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tidegate as tg
from tidegate.api.keyed import KeyedStream
from tidegate.batch import Batch
from tidegate.graph.forms import forms, told
from tidegate.launch import say_warnings
from tidegate.state.heap import HeapStateBackend
from tidegate.task.operators import stateless
from tidegate.task.operators.process import KeyedBatchOperator


@dataclass
class Sale:
    item: str
    amount: int


@dataclass
class MaybeSale:
    item: str
    amount: int | None = None


TYPES: dict[str, Any] = {
    "dataclass": Sale,
    "optional field": MaybeSale,
    "tuple": tuple[str, int],
    "schema": pa.schema([("item", pa.string()), ("amount", pa.int64())]),
    "narrow schema": pa.schema([("item", pa.large_string()), ("amount", pa.uint16())]),
    "floats": pa.schema([("item", pa.string()), ("amount", pa.float32())]),
}
SCALARS: dict[str, Any] = {"int": int, "float": float}


class Identity(tg.KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Function(tg.ProcessFunction):
    def process_element(self, value, ctx):
        yield value


async def answered(row):
    return 1


class Batches(tg.KeyedBatchFunction):
    def process_batch(self, keys, batch, ctx):
        return None


class Largest(tg.AggregateFunction):
    accumulator_type = int

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator

    def get_result(self, accumulator):
        return accumulator


#: Every operation that puts an operator after a stream, and whether it works by columns. `c` is the number's column.
OPERATIONS: dict[str, tuple[bool, Callable[[Any, str | int, str], Any]]] = {
    "map": (False, lambda s, n, c: s.map(lambda row: row, returns=s.type.annotation)),
    "flat_map": (False, lambda s, n, c: s.flat_map(lambda row: [row], returns=s.type.annotation)),
    "filter": (True, lambda s, n, c: s.filter(pc.field(c) > 1)),
    "filter by a function": (False, lambda s, n, c: s.filter(lambda row: True)),
    "select": (True, lambda s, n, c: s.select(n)),
    "with_columns": (True, lambda s, n, c: s.with_columns(more=pc.field(c) + 1)),
    "map_batches": (True, lambda s, n, c: s.map_batches(lambda batch: batch)),
    "process": (False, lambda s, n, c: s.process(Function(), returns=s.type.annotation)),
    "async_map": (False, lambda s, n, c: s.async_map(answered, returns=int)),
    "assign_timestamps_and_watermarks": (
        True,
        lambda s, n, c: s.assign_timestamps_and_watermarks(tg.WatermarkStrategy.monotonous(timestamp=c)),
    ),
}
KEYED_OPERATIONS: dict[str, tuple[bool, Callable[[Any, str | int], Any]]] = {
    "map": (False, lambda k, n: k.map(lambda row: 1, returns=int)),
    "flat_map": (False, lambda k, n: k.flat_map(lambda row: [1], returns=int)),
    "filter": (True, lambda k, n: k.filter(pc.scalar(True))),
    "process": (False, lambda k, n: k.process(Identity())),
    "async_map": (False, lambda k, n: k.async_map(answered, returns=int)),
    "process_batches": (True, lambda k, n: k.process_batches(Batches(), returns=int)),
    "reduce": (False, lambda k, n: k.reduce(lambda a, b: a)),
    "aggregate": (False, lambda k, n: k.aggregate(Largest(), returns=int)),
    "count": (True, lambda k, n: k.count()),
    "sum": (True, lambda k, n: k.sum(n)),
    "min": (True, lambda k, n: k.min(n)),
    "max": (True, lambda k, n: k.max(n)),
    "min_by": (False, lambda k, n: k.min_by(n)),
    "max_by": (False, lambda k, n: k.max_by(n)),
}
#: What puts none: partitioning, sinks, and what is asked of a stream.
NO_OPERATORS = {
    *(
        "key_by",
        "union",
        "connect",
        "rebalance",
        "shuffle",
        "rescale",
        "forward",
        "broadcast",
        "global_",
        "partition_custom",
    ),
    *("side_output", "get_side_output", "sink_to", "print", "collect", "write_files", "execute_and_collect", "type"),
    *("uid", "name", "set_parallelism", "set_max_parallelism", "disable_chaining", "start_new_chain", "dead_letters"),
    *(
        "lookup_join",
        "interval_join",
        "temporal_join",
        "join",
        "co_group",
        "window",
        "window_all",
        "count_window",
    ),  # have their own
}


def methods(kind: type) -> set[str]:
    return {name for name, member in inspect.getmembers(kind, callable) if not name.startswith("_")}


def test_every_operation_is_walked_over() -> None:
    assert methods(tg.DataStream) - NO_OPERATORS == {name for name in OPERATIONS if " " not in name}
    assert methods(KeyedStream) - NO_OPERATORS == set(KEYED_OPERATIONS)


def form_of_the_last(env: tg.StreamEnvironment) -> Any:
    env._built.taken_up = True
    operators = list(env._graph.operators.values())
    found = forms(operators, env._graph.edges)
    return list(found.values())[-1], told(operators, env._graph.edges)


def stream_of(typed: Any) -> Any:
    return tg.StreamEnvironment("walk").from_collection([], type=typed)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", [*TYPES, *SCALARS])
def test_each_operation_over_each_way_of_typing_a_stream(way: str, operation: str) -> None:
    stream = stream_of((TYPES | SCALARS)[way])
    names = stream.type.field_names
    by_columns, made = OPERATIONS[operation]
    made(stream, len(names) - 1, names[-1])
    form, lines = form_of_the_last(stream._env)
    assert form.columns is by_columns
    assert by_columns or (form.why and lines)


@pytest.mark.parametrize("operation", KEYED_OPERATIONS)
@pytest.mark.parametrize("way", TYPES)
def test_each_keyed_operation_over_each_way_of_typing_a_stream(way: str, operation: str) -> None:
    stream = stream_of(TYPES[way])
    by_columns, made = KEYED_OPERATIONS[operation]
    made(stream.key_by(0), 1)
    form, lines = form_of_the_last(stream._env)
    assert form.columns is by_columns
    assert by_columns or (form.why and lines)


@pytest.mark.parametrize(
    ("key", "says"),
    [
        ("item", ""),
        (lambda sale: sale.item, "nothing says of which type its keys are"),
        (lambda sale: sale.item + "!", "its key is computed by a function"),
    ],
)
def test_a_key_that_is_no_column_is_named_at_the_start(key: Any, says: str, caplog: pytest.LogCaptureFixture) -> None:
    stream = stream_of(Sale)
    stream.key_by(key).count(uid="counts").print()
    form, _ = form_of_the_last(stream._env)
    assert form.why == says
    with caplog.at_level(logging.WARNING), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what comes out of such a count is untyped
        say_warnings(stream._env._graph)
    told_of = [record.getMessage() for record in caplog.records if "record by record" in record.getMessage()]
    line = stream._env._graph.operators["counts"].line  # type: ignore[index]
    expected = (
        f"count (uid counts) at {line} works record by record, many times slower than by columns: {says}. "
        f"Way out: {form.instead}"
    )
    assert told_of == ([expected] if says else [])


def test_a_function_that_reads_a_field_is_that_field() -> None:
    stream = stream_of(Sale)
    stream.key_by(lambda sale: sale.item, key_type=str).sum("amount")
    assert form_of_the_last(stream._env)[0].columns


def test_a_stream_of_values_is_keyed_by_itself() -> None:
    stream = stream_of(int)
    stream.key_by(lambda n: n).count()
    assert form_of_the_last(stream._env)[0].columns


@pytest.mark.parametrize("way", TYPES)
@pytest.mark.parametrize("operation", ["filter", "select", "count", "sum", "min", "max"])
def test_what_works_by_columns_makes_no_records(way: str, operation: str) -> None:
    """Seen on the running operator: the records of a batch are never asked for."""
    stream = stream_of(TYPES[way])
    if operation in OPERATIONS:
        made = OPERATIONS[operation][1](stream, 1, stream.type.field_names[-1])
    else:
        made = KEYED_OPERATIONS[operation][1](stream.key_by(0), 1)
    made.print()
    stream._env._built.taken_up = True
    from tidegate.graph.plan import plan_job

    planned = plan_job("walk", stream._env._graph, 1).operators[1]
    spec: Any = planned.operator.spec
    if operation == "filter":
        running: Any = stateless.ColumnFilterOperator(planned, 0, spec.expression)
    elif operation == "select":
        running = stateless.ProjectOperator(planned, 0, spec.names, spec.expressions)
    else:
        backend = HeapStateBackend(spec.key.key_type(), range(128), 128)
        running = KeyedBatchOperator(planned, 0, "walk", spec.function, backend, spec.key)
    running.open(None)
    out: list[Batch] = []
    running.emit = out.append
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array(["a", "b", "a"], stream.type.schema.field(0).type),
            pa.array([2, 3, 4], stream.type.schema.field(1).type),
        ],
        schema=stream.type.schema,
    )
    batch = Batch(stream.type, columns=columns)
    running.process(batch, 0)
    (emitted,) = out
    assert not batch.has_rows
    assert emitted.has_columns
    assert not emitted.has_rows
    results = {"count": [1, 1, 2], "sum": [2, 3, 6], "min": [2, 3, 2], "max": [2, 3, 4]}
    assert emitted.columns().column(emitted.columns().num_columns - 1).to_pylist() == results.get(operation, [2, 3, 4])
