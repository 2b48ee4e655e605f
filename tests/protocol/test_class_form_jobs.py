"""Functions in class form, on every kind of stream that takes them: what plain Python says comes out, over crashes too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.errors import GraphError
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import run_in_process

ROWS = [(f"user-{n % 7}", n * 37 % 50) for n in range(120)]
PAIR = tuple[str, int]


class Tenfold(tg.MapFunction[PAIR, PAIR]):
    def open(self, ctx: tg.Context) -> None:
        self.factor = 10

    def map(self, row: PAIR) -> PAIR:
        return row[0], self.factor * row[1]


class Even(tg.FilterFunction[PAIR]):
    def filter(self, row: PAIR) -> bool:
        return row[1] % 2 == 0


class Twice(tg.FlatMapFunction[PAIR, PAIR]):
    def flat_map(self, row: PAIR) -> Iterator[PAIR]:
        yield row
        yield row[0], -row[1]


class Numbered(tg.MapFunction[PAIR, PAIR]):
    """With state of the key."""

    count = tg.ValueState(int, default=0)

    def map(self, row: PAIR) -> PAIR:
        self.count.set(self.count.get() + 1)
        return row[0], self.count.get()


class FirstOnly(tg.FilterFunction[PAIR]):
    seen = tg.ValueState(bool, default=False)

    def filter(self, row: PAIR) -> bool:
        is_first = not self.seen.get()
        self.seen.set(True)
        return is_first


class EachThird(tg.FlatMapFunction[PAIR, PAIR]):
    waiting = tg.ListState(int)

    def flat_map(self, row: PAIR) -> Iterator[PAIR]:
        self.waiting.add(row[1])
        if len(self.waiting.get()) == 3:
            yield row[0], len(self.waiting.get())
            self.waiting.clear()


class Larger(tg.ReduceFunction[PAIR]):
    def reduce(self, one: PAIR, other: PAIR) -> PAIR:
        return max(one, other)


def last_of_each(rows: list[PAIR]) -> dict[str, int]:
    return dict(rows)


USERS = sorted({user for user, _ in ROWS})
OF = {user: [n for name, n in ROWS if name == user] for user in USERS}

PLAIN: dict[str, tuple[Callable[[Any], Any], list[PAIR]]] = {
    "map": (lambda s: s.map(Tenfold()), [(user, 10 * n) for user, n in ROWS]),
    "filter": (lambda s: s.filter(Even()), [row for row in ROWS if row[1] % 2 == 0]),
    "flat_map": (lambda s: s.flat_map(Twice()), [(user, sign * n) for user, n in ROWS for sign in (1, -1)]),
}
KEYED: dict[str, tuple[Callable[[Any], Any], list[PAIR]]] = {
    **PLAIN,
    "map of a function": (lambda s: s.map(lambda row: (row[0], 1), returns=PAIR), [(user, 1) for user, _ in ROWS]),
    "filter of a function": (lambda s: s.filter(lambda row: row[1] > 25), [row for row in ROWS if row[1] > 25]),
    "flat_map of a function": (lambda s: s.flat_map(lambda row: [row, row], PAIR), ROWS + ROWS),
    "map with state": (
        lambda s: s.map(Numbered(), uid="state"),
        [(user, n) for user in USERS for n in range(1, len(OF[user]) + 1)],
    ),
    "flat_map with state": (
        lambda s: s.flat_map(EachThird(), uid="state"),
        [(user, 3) for user in USERS for _ in range(len(OF[user]) // 3)],
    ),
}


def run(build: Callable[[tg.DataStream[PAIR]], tg.DataStream[PAIR]], seed: int = 0, crash: bool = True) -> list[PAIR]:
    forget_ledgers()
    env = tg.StreamEnvironment("forms", parallelism=2)
    env.checkpointing(every="10ms", storage=fresh_storage())
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    rows = env.from_collection(ROWS, uid="rows", type=PAIR)
    build(rows).sink_to(LedgerSink("out"), uid="out")
    result = run_in_process(env, seed, [Crash("slot.before-ack", nth=3)] if crash else [])
    assert result.error is None
    return [tuple(row) for row in ledger("out").rows()]  # type: ignore[misc]


@pytest.mark.parametrize("name", PLAIN)
def test_a_function_in_class_form_on_a_plain_stream(name: str) -> None:
    build, expected = PLAIN[name]

    assert Counter(run(build)) == Counter(expected)


@pytest.mark.parametrize("name", KEYED)
def test_a_function_on_a_keyed_stream_sees_every_record_once(name: str) -> None:
    build, expected = KEYED[name]

    for seed in range(3):
        assert Counter(run(lambda rows: build(rows.key_by(0)), seed)) == Counter(expected)


def test_a_filter_with_state_lets_one_record_of_each_key_pass() -> None:
    rows = run(lambda rows: rows.key_by(0).filter(FirstOnly(), uid="first"))

    assert sorted(user for user, _ in rows) == USERS


class Place(tg.MapFunction[PAIR, PAIR]):
    def open(self, ctx: tg.Context) -> None:
        self.subtask = ctx.subtask

    def map(self, row: PAIR) -> PAIR:
        return row[0], self.subtask


def test_a_map_on_a_keyed_stream_runs_in_the_subtask_of_the_key() -> None:
    of_map, of_state = (
        run(lambda s: s.key_by(0).map(Place())),
        run(lambda s: s.key_by(0).map(PlaceOfState(), uid="state")),
    )

    assert len(set(of_map)) == len(USERS), "each key in one place"
    assert set(of_map) == set(of_state), "where its state would be"
    assert {subtask for _, subtask in of_map} == {0, 1}


class PlaceOfState(Place):
    count = tg.ValueState(int, default=0)


# -- reduce, min_by, max_by --------------------------------------------------------------------------------------------


def test_a_reduce_function_is_an_object_too() -> None:
    rows = run(lambda s: s.key_by(0).reduce(Larger(), uid="larger"), crash=False)

    assert last_of_each(sorted(rows)) == {user: max(numbers) for user, numbers in OF.items()}


@pytest.mark.parametrize("typed", [True, False])
def test_min_by_and_max_by_give_the_whole_record_and_of_equals_the_first(typed: bool) -> None:
    rows = [("a", 5, "first"), ("a", 3, "second"), ("a", 3, "third"), ("a", 9, "fourth"), ("a", 9, "fifth")]
    env = tg.StreamEnvironment("extremes")
    stream = env.from_collection(rows)
    if not typed:
        stream = stream.map(lambda row: row)
    keyed = stream.key_by(0) if typed else stream.key_by(lambda row: row[0], key_type=str)
    keyed.min_by(1).collect(uid="least")
    keyed.max_by(1).collect(uid="most")

    collected = run_in_process(env).collected

    assert [row[2] for row in collected.rows("least")] == ["first", "second", "second", "second", "second"]
    assert [row[2] for row in collected.rows("most")] == ["first", "first", "first", "fourth", "fourth"]


def test_min_by_of_a_field_that_is_not_there_names_min_by() -> None:
    env = tg.StreamEnvironment("extremes")

    with pytest.raises(tg.ConfigurationError, match=r"min_by: the stream has no field 7; it has"):
        env.from_collection(ROWS, type=PAIR).key_by(0).min_by(7)


# -- two inputs ----------------------------------------------------------------------------------------------------------


class Both(tg.CoMapFunction[PAIR, str, PAIR]):
    def map1(self, row: PAIR) -> PAIR:
        return row

    def map2(self, user: str) -> PAIR:
        return user, -1


class Known(tg.CoFlatMapFunction[PAIR, PAIR, PAIR]):
    """Of each user the records and the marks, counted together: they share the state of the key."""

    count = tg.ValueState(int, default=0)

    def flat_map1(self, row: PAIR) -> Iterator[PAIR]:
        yield from self.counted(row[0])

    def flat_map2(self, row: PAIR) -> Iterator[PAIR]:
        yield from self.counted(row[0])

    def counted(self, user: str) -> Iterator[PAIR]:
        self.count.set(self.count.get() + 1)
        yield user, self.count.get()


def marks(rows: tg.DataStream[PAIR]) -> tg.DataStream[str]:
    return rows._env.from_collection(USERS, uid="marks", type=str)


def test_connected_streams_are_mapped_together() -> None:
    rows = run(lambda rows: rows.connect(marks(rows)).map(Both(), uid="both", returns=PAIR))

    assert Counter(rows) == Counter(ROWS) + Counter((user, -1) for user in USERS)


def test_connected_keyed_streams_share_the_state_of_a_key_in_a_flat_map() -> None:
    def build(rows: tg.DataStream[PAIR]) -> tg.DataStream[PAIR]:
        other = marks(rows).map(lambda user: (user, 0), returns=PAIR)
        return rows.key_by(0).connect(other.key_by(0)).flat_map(Known(), uid="known", output_type=PAIR)

    for seed in range(3):
        rows = run(build, seed)
        assert Counter(rows) == Counter((user, n) for user in USERS for n in range(1, len(OF[user]) + 2))


def test_a_broadcast_side_needs_its_own_function() -> None:
    env = tg.StreamEnvironment("broadcast")
    rows = env.from_collection(ROWS, type=PAIR)

    with pytest.raises(GraphError, match="use a KeyedBroadcastProcessFunction"):
        rows.key_by(0).connect(rows.broadcast()).map(Both())
    with pytest.raises(GraphError, match=r"map on connected streams needs a CoMapFunction, not Known"):
        rows.connect(rows).map(Known())  # type: ignore[arg-type]
