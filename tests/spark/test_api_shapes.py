"""Graphs that are no straight line, operators of different width, and every way to type a stream. One job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from job_kit import Case, add_cases, finish

import tidegate as tg

pytestmark = pytest.mark.spark

NUMBERS = range(200)
SCHEMA = pa.schema([("name", pa.string()), ("sizes", pa.list_(pa.int32()))])


@dataclass(frozen=True)
class Inner:
    when: datetime
    share: Decimal | None


@dataclass(frozen=True)
class Rich:
    id: UUID
    day: date
    ratio: float
    raw: bytes
    inner: Inner
    flag: bool


def rich(n: int) -> Rich:
    when = datetime(2024, 1, 1, 12, 30, n % 60, n, tzinfo=UTC)
    share = None if n % 3 else Decimal(n) / 8
    return Rich(UUID(int=n), date(2024, 1, 1 + n % 28), n / 7, bytes([n]), Inner(when, share), n % 2 == 0)


class Both(tg.KeyedCoProcessFunction):
    """Says of each key when both sides have come."""

    left = tg.ValueState(int)
    right = tg.ValueState(int)

    def process_element1(self, value: tuple[int, int], ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        self.left.set(value[1])
        yield from self.joined(ctx)

    def process_element2(self, value: int, ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        self.right.set(value)
        yield from self.joined(ctx)

    def joined(self, ctx: tg.Context) -> Iterator[tuple[int, int, int]]:
        left, right = self.left.get(), self.right.get()
        if left is not None and right is not None:
            yield (ctx.key, left, right)


class Where(tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> Iterator[tuple[int, int]]:
        yield (ctx.subtask, ctx.parallelism)


def added(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {"name": a["name"], "sizes": [x + y for x, y in zip(a["sizes"], b["sizes"], strict=True)]}


def diamond(numbers: tg.DataStream) -> tg.DataStream:
    even = numbers.filter(lambda n: n % 2 == 0).rebalance().map(lambda n: n // 2, returns=int)
    odd = numbers.filter(lambda n: n % 2 == 1).map(lambda n: -n, returns=int, parallelism=3)
    return even.union(odd).key_by(lambda n: n > 0, key_type=bool).count(uid="diamond-count")


def skipping(numbers: tg.DataStream) -> tg.DataStream:
    """One side goes through three layers, the other skips them."""
    squares = (
        numbers.map(lambda n: (n, n * n), returns=tuple[int, int])
        .key_by(0)
        .max(1, uid="skip-max")
        .rebalance()
        .map(lambda pair: pair, returns=tuple[int, int], parallelism=3)
    )
    return squares.key_by(0).connect(numbers.key_by(lambda n: n)).process(Both(), uid="skip-both", parallelism=1)


def narrow_and_wide(numbers: tg.DataStream) -> tg.DataStream:
    return (
        numbers.map(lambda n: n + 1, returns=int, parallelism=3)
        .key_by(lambda n: n % 5, key_type=int)
        .count(uid="wide-count", parallelism=4)
        .map(lambda pair: pair, returns=tuple[int, int], parallelism=1)
    )


CASES = [
    Case("diamond", diamond, {True: 99, False: 101}, of=dict),
    Case("an edge that skips layers", skipping, [(n, n * n, n) for n in NUMBERS]),
    Case(
        "a width for each operator",
        narrow_and_wide,
        [(rest, n) for rest in range(5) for n in range(1, 41)],
    ),
    Case(
        "every subtask works",
        lambda s: s.rebalance().process(Where(), parallelism=5),
        {(subtask, 5) for subtask in range(5)},
        of=set,
    ),
    Case("scalars", lambda s: s.map(str).rebalance().map(lambda t: t + "!", returns=str), [f"{n}!" for n in NUMBERS]),
    Case(
        "tuples",
        lambda s: s.map(lambda n: (n, [n] * (n % 3), None), returns=tuple[int, list[int], str | None])
        .rebalance()
        .map(repr, returns=str),
        [repr((n, [n] * (n % 3), None)) for n in NUMBERS],
    ),
    Case(
        "dataclasses",
        lambda s: s.map(rich, returns=Rich).key_by("day").reduce(lambda a, b: b, uid="rich-reduce"),
        [rich(n) for n in NUMBERS],
    ),
    Case(
        "schemas",
        lambda s: s.map(lambda n: {"name": f"n{n % 3}", "sizes": [n, n]}, returns=SCHEMA)
        .key_by("name")
        .reduce(added, uid="schema-reduce"),
        {f"n{rest}": [sum(n for n in NUMBERS if n % 3 == rest)] * 2 for rest in range(3)},
        of=lambda rows: {row["name"]: row["sizes"] for row in sorted(rows, key=lambda row: row["sizes"])},
    ),
    Case(
        "pickled columns",
        lambda s: s.map(lambda n: (n, {n: {n}}), returns=tuple[int, tg.Pickled]).key_by(0).reduce(lambda a, b: b, uid="pickled")
        .map(lambda pair: sum(pair[1][pair[0]]), returns=int),
        list(NUMBERS),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(spark_session: Any, tmp_path_factory: pytest.TempPathFactory) -> tg.JobClient:
    env = tg.StreamEnvironment("shapes", parallelism=2)
    env.checkpointing(every="500ms", storage=f"file://{tmp_path_factory.mktemp('shapes')}")
    add_cases(env.from_sequence(NUMBERS[0], NUMBERS[-1], uid="numbers"), CASES)
    return finish(env)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_shape_gives_what_plain_python_gives(finished: tg.JobClient, case: Case) -> None:
    case.check(finished.results(case.name))


def test_an_untyped_stream_works_and_is_warned_of_once(storage: str) -> None:
    env = tg.StreamEnvironment("untyped", parallelism=2)
    env.checkpointing(every="500ms", storage=storage)
    things = env.from_collection([1, "two", None, (4, 5), {"six": 7}] * 10, uid="things", parallelism=1)
    named = things.map(lambda thing: (type(thing).__name__, thing), name="naming")
    named.key_by(0, key_type=str).count(uid="counts").collect(uid="counted")
    named.rebalance().map(lambda pair: repr(pair[1]), returns=str).collect(uid="shown")

    with pytest.warns(UserWarning, match="untyped") as said:
        client = finish(env)

    assert len(said) == 1
    things_line, naming_line = (env._graph.operators[s._inputs[0].operator].line.line for s in (things, named))
    assert str(said[0].message) == (
        "these streams are untyped and travel as pickled rows, several times slower than columns: collection (uid things) at "
        f"{__file__}:{things_line}, naming at {__file__}:{naming_line}. Declare the type with returns= or an annotation of the "
        "function; of count, sum, min, max and reduce it is that of the stream before and of its keys: "
        "key_by(..., key_type=...). Where the first records tell it, the job's log says what to write."
    )
    assert (said[0].filename, said[0].lineno) == (__file__, things_line), "the user's own line"
    assert dict(client.results("counted")) == {"int": 10, "str": 10, "NoneType": 10, "tuple": 10, "dict": 10}
    assert Counter(client.results("shown")) == Counter(
        {"1": 10, "'two'": 10, "None": 10, "(4, 5)": 10, "{'six': 7}": 10}
    )
