"""What each window and each operator means over the whole input: the SQL in its docstring, run as it stands by DuckDB."""

from __future__ import annotations

import random
import re
from textwrap import dedent
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.testing import FunctionHarness, harness

INPUT = tuple[str, int, int]  #: key, price, time
ASSIGNERS: dict[type[tg.WindowAssigner], list[tuple[dict[str, int], tg.WindowAssigner]]] = {
    tg.TumblingEventTimeWindows: [
        ({"size": 5000, "offset": 0}, tg.TumblingEventTimeWindows("5s")),
        ({"size": 7000, "offset": 3000}, tg.TumblingEventTimeWindows("7s", "3s")),
    ],
    tg.SlidingEventTimeWindows: [
        ({"size": 9000, "slide": 3000, "offset": 1000}, tg.SlidingEventTimeWindows("9s", "3s", "1s")),
        ({"size": 7000, "slide": 4000, "offset": 0}, tg.SlidingEventTimeWindows("7s", "4s")),
        ({"size": 2000, "slide": 5000, "offset": 0}, tg.SlidingEventTimeWindows("2s", "5s")),
    ],
    tg.CumulativeEventTimeWindows: [
        ({"size": 12_000, "step": 4000, "offset": 0}, tg.CumulativeEventTimeWindows("12s", "4s")),
        ({"size": 12_000, "step": 3000, "offset": 3000}, tg.CumulativeEventTimeWindows("12s", "3s", "3s")),
    ],
    tg.EventTimeSessionWindows: [({"gap": 1500}, tg.EventTimeSessionWindows("1500ms"))],
}
CASES = [(kind, *case) for kind, cases in ASSIGNERS.items() for case in cases]


def statements_of(documented: Any) -> list[str]:
    """Each `SELECT ...` of a docstring, as one line."""
    found = re.findall(r"`(SELECT [^`]*)`", dedent(documented.__doc__))
    return [re.sub(r"\s+", " ", statement) for statement in found]


def records(seed: int) -> list[tuple[str, int, int]]:
    rng = random.Random(seed)
    times = rng.sample(range(15_000, 75_000), 120)
    return [(rng.choice("abc"), rng.randrange(50), time) for time in times]


def by_duckdb(kind: type, settings: dict[str, int], statement: str, rows: list[tuple[str, int, int]]) -> list[Any]:
    key, price, time = (list(column) for column in zip(*rows, strict=True))
    with duckdb.connect() as connection:
        connection.register("input", pa.table({"key": key, "price": price, "time": time}))
        (windows,) = statements_of(kind)
        for name, value in settings.items():
            windows = windows.replace(f"${name}", str(value))
        connection.execute(f"CREATE TABLE windowed AS {windows}")
        return sorted(connection.execute(statement).fetchall())


def run(assigner: tg.WindowAssigner, build: Any, rows: list[tuple[str, int, int]]) -> FunctionHarness:
    """Out of order by up to ten records' time, and in frames of any size."""
    running = harness(lambda keyed: build(keyed.window(assigner)), via="window", key_by=0, input_type=INPUT)
    rng = random.Random(5)
    rows = sorted(rows, key=lambda row: row[2] + rng.randrange(6000))
    while rows:
        part, rows = rows[: (size := rng.randrange(1, 20))], rows[size:]
        running.process_many(part, [time for _, _, time in part])
        running.advance_watermark(max(time for _, _, time in part) - 6000)
    running.end_input()
    return running


class Prices(tg.ProcessWindowFunction):
    def process(self, key: Any, context: tg.WindowContext, elements: list[Any], /) -> Any:
        yield (key, *context.window, sorted(price for _, price, _ in elements))


class Rows(tg.WindowBatchFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any, /) -> pa.RecordBatch:
        return batch.rename_columns([f"f{at}" for at in range(5)])


class Mean(tg.AggregateFunction):
    accumulator_type = tuple[int, int]

    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any, /) -> Any:
        return (accumulator[0] + 1, accumulator[1] + value[1])

    def get_result(self, accumulator: Any, /) -> float:
        return float(accumulator[1] / accumulator[0])

    def merge(self, a: Any, b: Any) -> Any:
        return (a[0] + b[0], a[1] + b[1])


def with_key(row: Any) -> Any:
    """Of tg.WithWindow(), in the order of the SQL."""
    start, end, key, result = row
    return (key, start, end, result)


def over_columns(windows: Any) -> Any:
    return windows.aggregate(n=tg.count(), total=tg.sum("f1"))


def reduced(windows: Any) -> Any:
    return windows.reduce(lambda a, b: (a[0], a[1] + b[1], a[2]), tg.WithWindow())


#: By the operator: which of its statements, the call, and how its rows are read.
OPERATORS: dict[str, tuple[Any, int, Any, Any]] = {
    "aggregate of columns": (tg.WindowedStream.aggregate, 0, over_columns, lambda row: tuple(row.values())),
    "aggregate": (tg.WindowedStream.aggregate, 1, lambda windows: windows.aggregate(Mean(), tg.WithWindow()), with_key),
    "reduce": (tg.WindowedStream.reduce, 0, reduced, lambda row: (row[2], row[0], row[1], row[3][1])),
    "process": (
        tg.WindowedStream.process,
        0,
        lambda windows: windows.process(Prices(), returns=tuple[str, int, int, list[int]]),
        tuple,
    ),
    "process_batches": (
        tg.WindowedStream.process_batches,
        0,
        lambda windows: windows.process_batches(Rows(), returns=tuple[int, int, str, int, int]),
        tuple,
    ),
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize(("kind", "settings", "assigner"), CASES)
def test_the_sql_of_the_docstrings_is_what_comes_out(
    kind: type, settings: dict[str, int], assigner: tg.WindowAssigner, operator: str
) -> None:
    documented, which, build, read = OPERATORS[operator]
    rows = records(len(operator))
    statement = statements_of(documented)[which]

    found = sorted(map(read, run(assigner, build, rows).output))

    assert found == by_duckdb(kind, settings, statement, rows)
    assert len(found) > 10
