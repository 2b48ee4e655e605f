"""Random keys of every type, mixed, through each way in which a stream can be keyed, against the answer of a plain dictionary.

Which keys are one is written down here a second time, by hand: types apart; -0.0 is 0.0, all NaN are one, Decimals are equal
by value, moments by what UTC says, wall clocks without fold.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any, Optional
from uuid import UUID

import pyarrow as pa
import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.errors import GraphError
from tidegate.testing.runner import run_in_process
from tidegate.types import NaiveDatetime

SEEDS = range(3)
RECORDS = 120


def one_key(key: Any) -> Any:
    """Equal for equal keys, and only for them."""
    match key:
        case bool() | int() | str() | bytes() | None | UUID():
            return (type(key), key)
        case float():
            return (float, "nan" if math.isnan(key) else key + 0.0)
        case Decimal():
            return (Decimal, Fraction(key))
        case datetime() if key.tzinfo is None:
            return ("wall clock", key.replace(fold=0))
        case datetime():
            return ("moment", key.astimezone(UTC).replace(fold=0))
        case date():
            return (date, key)
        case tuple():
            return (tuple, tuple(map(one_key, key)))
    raise AssertionError(key)


def some_zone(draw: random.Random) -> timezone:
    return timezone(timedelta(hours=draw.randrange(-3, 4)))


#: Few values of each, so that they meet; those that Python or Arrow would take for another are among them.
DRAWS: dict[Any, Callable[[random.Random], Any]] = {
    bool: lambda draw: draw.random() < 0.5,
    int: lambda draw: draw.choice([0, 1, -1, 5, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)]),
    float: lambda draw: draw.choice([0.0, -0.0, 1.0, 5.0, 5.5, math.nan, -math.nan, math.inf, float(2**53)]),
    Decimal: lambda draw: draw.choice([Decimal("5"), Decimal("5.0"), Decimal("1"), Decimal("-0"), Decimal("0.25")]),
    str: lambda draw: draw.choice(["", "5", "1", "a\0b", "ä", "\U0001f600"]),
    bytes: lambda draw: draw.choice([b"", b"5", b"a\0b", b"\xff"]),
    date: lambda draw: date(2024, 10, draw.randrange(26, 29)),
    datetime: lambda draw: datetime(2024, 10, 27, 12, tzinfo=UTC).astimezone(some_zone(draw)),
    NaiveDatetime: lambda draw: datetime(2024, 10, 27, 2, 30, fold=draw.randrange(2)),
    UUID: lambda draw: UUID(int=draw.randrange(3)),
}


def scalar(draw: random.Random) -> Any:
    return None if draw.random() < 0.1 else draw.choice(list(DRAWS.values()))(draw)


def any_key(draw: random.Random) -> Any:
    """Of any type, some of them tuples, of any parts."""
    return tuple(scalar(draw) for _ in range(draw.randrange(3))) if draw.random() < 0.2 else scalar(draw)


class CountRows(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: tg.Context) -> Iterator[tuple[Any, int]]:
        self.total.set(self.total.get() + 1)
        yield ctx.key, self.total.get()


class CountBatches(tg.KeyedBatchFunction):
    total = tg.ValueState(int, default=0)

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> pa.RecordBatch:
        numbers = self.total.add_many(keys, 1, running=True)
        return pa.RecordBatch.from_arrays([batch.column(1), numbers], ["f0", "f1"])


def stream_of(env: tg.StreamEnvironment, uid: str, keys: list[Any], key_annotation: Any) -> tg.DataStream:
    """Records (number, key), typed."""
    rows = list(enumerate(keys))
    return env.from_source(tg.Collection(rows), uid=uid, returns=tuple[int, key_annotation])


def assert_counted(keys: list[Any], found: list[tuple[Any, int]]) -> None:
    """Each record came with the count of its key so far."""
    assert Counter((one_key(key), count) for key, count in found) == Counter(
        (key, count) for key, total in Counter(map(one_key, keys)).items() for count in range(1, total + 1)
    )


def a_job(parallelism: int) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("keys", parallelism=parallelism)
    env.checkpointing(every="20ms", storage=fresh_storage())
    env.restart_strategy("none")
    return env


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("in_batches", [False, True])
def test_mixed_keys_of_a_function_are_the_keys_that_count(seed: int, parallelism: int, in_batches: bool) -> None:
    draw = random.Random(seed)
    keys = [any_key(draw) for _ in range(RECORDS)]
    env = a_job(parallelism)
    keyed = stream_of(env, "in", keys, tg.Pickled).key_by(lambda record: record[1])
    if in_batches:
        counted = keyed.process_batches(CountBatches(), uid="count", returns=tuple[tg.Pickled, int])
    else:
        counted = keyed.process(CountRows(), uid="count", returns=tuple[tg.Pickled, int])
    counted.collect(uid="out")

    result = run_in_process(env, seed=seed)

    assert result.error is None
    assert_counted(keys, result.collected.rows("out"))


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(
    "others", [[5.5], [Decimal("5.0"), Decimal("5.5")], [True, 1.0], ["5"], [(5,), (5.0,)]], ids=str
)
def test_an_int_is_the_same_key_whatever_is_in_its_batch(others: list[Any], parallelism: int) -> None:
    keys = [5, 5, *others, 5, 1, 5, *others, 5] * 10
    env = a_job(parallelism)
    keyed = stream_of(env, "in", keys, tg.Pickled).key_by(lambda record: record[1])
    keyed.process_batches(CountBatches(), uid="count", returns=tuple[tg.Pickled, int]).collect(uid="out")

    result = run_in_process(env)

    assert_counted(keys, result.collected.rows("out"))


@pytest.mark.parametrize("kind", DRAWS, ids=str)
@pytest.mark.parametrize(("parallelism", "nullable"), [(1, False), (3, True)])
def test_keys_of_one_type_count_alike_by_name_and_by_function(kind: Any, parallelism: int, nullable: bool) -> None:
    draw = random.Random(str(kind))
    keys = [None if nullable and draw.random() < 0.1 else DRAWS[kind](draw) for _ in range(RECORDS)]
    annotation = Optional[kind] if nullable else kind  # noqa: UP045 - | is not defined for an Annotated type
    env = a_job(parallelism)
    stream = stream_of(env, "in", keys, annotation)
    returns = tuple[annotation, int]  # type: ignore[valid-type]
    keyed = {
        "name": stream.key_by(1),
        "function": stream.key_by(lambda record: record[1]),
        "typed function": stream.key_by(lambda record: record[1], key_type=annotation),
        "names": stream.key_by(1, 1),
    }
    for way, by in keyed.items():
        by.process(CountRows(), uid=f"{way} rows").map(lambda pair: pair).collect(uid=f"{way}, by rows")
        by.process_batches(CountBatches(), uid=f"{way} batches", returns=returns).collect(uid=f"{way}, by batches")

    result = run_in_process(env, seed=1)

    assert result.error is None
    for way in keyed:
        for form in ("rows", "batches"):
            found = result.collected.rows(f"{way}, by {form}")
            whole = [(key[0], count) if type(key) is tuple else (key, count) for key, count in found]
            assert_counted(keys, whole)


class Meet(tg.KeyedCoProcessFunction):
    """Emits how many of both sides have come under the key."""

    seen = tg.ValueState(int, default=0)

    def process_element1(self, value: Any, ctx: tg.Context) -> Iterator[tuple[Any, int]]:
        self.seen.set(self.seen.get() + 1)
        yield ctx.key, self.seen.get()

    process_element2 = process_element1


WAYS = ("name", "nullable name", "function", "typed function")


def keyed_by(env: tg.StreamEnvironment, uid: str, way: str, keys: list[Any], kind: Any) -> tg.KeyedStream:
    match way:
        case "name":
            return stream_of(env, uid, keys, kind).key_by(1)
        case "nullable name":
            return stream_of(env, uid, keys, Optional[kind]).key_by(1)  # noqa: UP045
        case "function":
            return stream_of(env, uid, keys, tg.Pickled).key_by(lambda record: record[1])
        case _:
            return stream_of(env, uid, keys, tg.Pickled).key_by(lambda record: record[1], key_type=kind)


@pytest.mark.parametrize("kind", [float, Decimal, str, datetime, tuple[bool, float]], ids=str)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_connected_streams_meet_however_each_is_keyed(kind: Any, parallelism: int) -> None:
    draw = random.Random(str(kind))
    draw_key = DRAWS.get(kind, lambda draw: (draw.random() < 0.5, draw.choice([0.5, -0.0, math.nan])))
    env = a_job(parallelism)
    expected: dict[str, list[Any]] = {}
    for first, second in draw.sample(list(itertools.permutations(WAYS, 2)), 6):
        name = f"{first} with {second}"
        left, right = ([draw_key(draw) for _ in range(20)] for _ in range(2))
        expected[name] = left + right
        one = keyed_by(env, f"left of {name}", first, left, kind)
        other = keyed_by(env, f"right of {name}", second, right, kind)
        one.connect(other).process(Meet(), uid=name, returns=tuple[tg.Pickled, int]).collect(uid=f"{name}, out")

    result = run_in_process(env, seed=2)

    assert result.error is None
    for name, keys in expected.items():
        assert_counted(keys, result.collected.rows(f"{name}, out"))


def test_streams_whose_keys_never_meet_are_not_connected() -> None:
    env = a_job(1)
    streams = {kind: keyed_by(env, str(kind), "nullable name", [], kind) for kind in DRAWS}
    for first, second in itertools.product(DRAWS, DRAWS):
        if first is second:
            streams[first].connect(streams[second])
            continue
        with pytest.raises(GraphError, match=r"must be of one type: the first has .* the second .* key_type="):
            streams[first].connect(streams[second])


HALF = "half of a \ud83d"


class Refused:
    """No key can be made of it."""


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize(
    ("key", "key_type", "says"),
    [
        (HALF, None, "lone surrogate"),
        (HALF, str, "lone surrogate"),
        ((1, HALF), None, "lone surrogate"),
        ((1, HALF), tuple[int, str], "lone surrogate"),
        (HALF, Optional[str], "lone surrogate"),  # noqa: UP045
        (Decimal("NaN"), None, "finite number"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5))), datetime, "outside the years 1 to 9999"),
        (Refused(), None, "Use None, bool, int"),
        ([1, 2], None, "Use None, bool, int"),
        (1.5, int, "declared as int"),
    ],
)
def test_what_cannot_be_a_key_is_refused_when_it_is_used(
    key: Any, key_type: Any, says: str, parallelism: int, in_batches: bool
) -> None:
    """At every parallelism, by its operator and the user's line; not by the first checkpoint."""
    env = tg.StreamEnvironment("keys", parallelism=parallelism)  # no checkpoint comes to it
    keyed = stream_of(env, "in", [key], tg.Pickled).key_by(lambda record: record[1], key_type=key_type)
    if in_batches:
        counted = keyed.process_batches(CountBatches(), uid="count", returns=tuple[tg.Pickled, int])
    else:
        counted = keyed.process(CountRows(), uid="count")
    counted.collect(uid="out")

    result = run_in_process(env, storage=fresh_storage())

    assert result.error is not None
    text = str(result.error)
    assert says in text
    assert "test_keys_property.py" in text, "the user's line"
    assert "(uid 'count')" in text
