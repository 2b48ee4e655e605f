"""The first rows of every typed output are held against its type; then the check is gone from the path of a record."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.batch import Batch
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import ConfigurationError
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.graph.plan import plan_job
from tidegate.task.operators.base import OperatorFailed, Readers
from tidegate.task.operators.first_rows import FIRST_ROWS
from tidegate.task.operators.stateless import MapOperator
from tidegate.testing.runner import RunResult, run_in_process

ROWS = FIRST_ROWS + 200


def printed(rows: int, function: Any, returns: Any, checks: str | None = None) -> RunResult:
    env = tg.StreamEnvironment("job")
    if checks is not None:
        env.type_checks(checks)
    env.from_sequence(1, rows, uid="numbers").map(function, returns=returns, uid="map").print()
    return run_in_process(env, storage=fresh_storage())


def text_at(place: int) -> Any:
    return lambda number: "text" if number == place else number


@pytest.mark.parametrize("place", [1, 2, FIRST_ROWS])
def test_among_the_first_rows_none_may_be_of_another_type(place: int) -> None:
    result = printed(ROWS, text_at(place), int)

    assert result.status is JobStatus.FAILED
    assert "'text' (type str) does not fit the declared type int" in str(result.error)


def test_after_the_first_rows_nobody_looks_any_more() -> None:
    result = printed(ROWS, text_at(FIRST_ROWS + 1), int)

    assert result.status is JobStatus.FINISHED
    assert "\ntext\n" in result.printed


def test_where_all_are_checked_the_last_one_is_too() -> None:
    result = printed(ROWS, text_at(ROWS), int, "all")

    assert result.status is JobStatus.FAILED
    assert "'text' (type str) does not fit the declared type int" in str(result.error)


def test_where_none_is_checked_a_chain_hands_on_whatever_it_is_given() -> None:
    assert printed(3, text_at(1), int, "none").printed == "text\n2\n3\n"


def test_checks_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"type check 'some' is unknown: use \"first\""):
        tg.StreamEnvironment("job").type_checks("some")


def mapping(checked_rows: float) -> tuple[MapOperator, list[Batch]]:
    """One subtask of a map, and what it has emitted."""
    env = tg.StreamEnvironment("job")
    env.from_sequence(1, 3, uid="numbers").map(lambda number: number, returns=int, uid="map").print()
    (planned,) = [op for op in plan_job("job", env._graph, 1).operators if op.uid == "map"]
    operator, emitted = MapOperator(planned, 0, lambda number: number), list[Batch]()
    operator.connect({MAIN_OUTPUT: Readers(edges=[emitted.append])}, [], checked_rows)
    return operator, emitted


def test_after_its_rows_the_check_is_not_on_the_path_of_a_record() -> None:
    """What is called for each batch is then what is called where nothing is checked at all."""
    operator, emitted = mapping(FIRST_ROWS)
    unchecked, _ = mapping(0)

    def code() -> object:
        return operator.emit.__code__  # type: ignore[attr-defined]

    operator.run(Batch(operator.output_type, list(range(FIRST_ROWS - 1))), 0)
    assert code() is not unchecked.emit.__code__  # type: ignore[attr-defined]
    operator.run(Batch(operator.output_type, [1]), 0)
    assert code() is unchecked.emit.__code__  # type: ignore[attr-defined]
    operator.run(Batch(operator.output_type, ["text"]), 0)

    assert [len(batch) for batch in emitted] == [FIRST_ROWS - 1, 1, 1]
    assert operator.records_out == FIRST_ROWS + 1


def test_where_all_are_checked_the_check_stays() -> None:
    operator, _ = mapping(float("inf"))
    operator.run(Batch(operator.output_type, list(range(5000))), 0)

    with pytest.raises(OperatorFailed, match=r"'text' \(type str\) does not fit"):
        operator.run(Batch(operator.output_type, ["text"]), 0)


@dataclass
class Order:
    item: str
    amount: float


class Cheap(Order): ...


FITTING = {
    "an int for a float": (lambda n: 1, float),
    "None where it is declared": (lambda n: None if n == 1 else n, int | None),
    "a dataclass": (lambda n: Order("cup", 1), Order),
    "a dict of a schema": (lambda n: {"a": n}, pa.schema([("a", pa.int64()), ("b", pa.string())])),
    "what only pickling could tell": (lambda n: (n, threading.Lock()), tuple[int, tg.Pickled]),
    "lists of anything": (lambda n: [threading.Lock()], list[tg.Pickled]),
}


@pytest.mark.parametrize("name", FITTING)
def test_what_fits_is_let_through(name: str) -> None:
    function, returns = FITTING[name]
    env = tg.StreamEnvironment("job").object_reuse()  # a lock cannot be copied
    env.from_sequence(1, 3, uid="numbers").map(function, returns=returns, uid="map").print()

    assert run_in_process(env, storage=fresh_storage()).error is None


MISFITS = {
    "a part beside a pickled one": (lambda n: ("a", n), tuple[int, tg.Pickled], "part 0 of tuple[int, pickled]: 'a' (type"),
    "a subclass of a dataclass": (lambda n: Cheap("cup", 1.0), Order, "Only Order itself fits"),
    "a field of a dataclass": (lambda n: Order("cup", "1"), Order, "in field 'amount' of Order: '1' (type str)"),
    "a field that was never set": (lambda n: Order.__new__(Order), Order, "A field has never been set"),
    "an element of a list": (lambda n: [1, "2"], list[int], "in list[int]: '2' (type str)"),
    "a field that no schema has": (lambda n: {"c": n}, pa.schema([("a", pa.int64())]), "The schema has no field 'c'"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_refused_with_the_part_of_it(name: str) -> None:
    function, returns, words = MISFITS[name]
    result = printed(3, function, returns)

    assert result.status is JobStatus.FAILED
    assert words in str(result.error)


class Reading(tg.Source):
    """Says that it reads numbers."""

    record_type = int

    def discover_splits(self, parallelism: int) -> list[tg.Split]:
        return [tg.Split("only")]

    def reader(self, context: tg.ReaderContext) -> tg.SourceReader:
        return Reader()


class Reader(tg.SourceReader):
    def add_splits(self, splits: Any) -> None: ...

    def poll(self, deadline: float) -> list[Any]:
        return ["1"]

    def splits(self) -> list[tg.Split]:
        return [tg.Split("only")]


def test_a_source_is_held_to_its_type_too() -> None:
    env = tg.StreamEnvironment("job")
    env.from_source(Reading(), uid="in").print()
    result = run_in_process(env, storage=fresh_storage())

    assert str(result.error).startswith(
        "TypeDeclarationError: in what Reading emitted: '1' (type str) does not fit the declared type int."
    )


late = tg.OutputTag("late", int)
hidden = tg.OutputTag("hidden", int)


def elsewhere(value: int) -> Iterator[Any]:
    """Of this function nothing is known where it is only called."""
    yield hidden, value


class Tagging(tg.KeyedProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value)
        yield value
        yield late, -value

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[Any]:
        yield (late, timestamp * 10)

    def end_input(self, ctx: tg.Context) -> Iterator[Any]:
        yield (late, 0)


class Stamps(tg.ProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> Iterator[tuple[int, int]]:
        yield value, ctx.timestamp()  # type: ignore[misc]


def test_a_tag_is_a_side_output_in_every_hook_and_keeps_the_timestamp() -> None:
    env = tg.StreamEnvironment("job")
    numbers = env.from_sequence(1, 3, uid="in").assign_timestamps_and_watermarks(
        tg.WatermarkStrategy.monotonous(timestamp=lambda number: number)
    )
    tagged = numbers.key_by(lambda number: number).process(Tagging(), uid="tagging", returns=int)
    tagged.process(Stamps(), returns=tuple[int, int]).collect(uid="main")
    tagged.side_output(late).process(Stamps(), returns=tuple[int, int | None]).collect(uid="late")
    result = run_in_process(env, storage=fresh_storage())

    assert result.error is None
    assert sorted(result.collected.rows("main")) == [(1, 1), (2, 2), (3, 3)]
    by_hook = sorted(result.collected.rows("late"))
    assert by_hook == [(-3, 3), (-2, 2), (-1, 1), (0, None), (10, 1), (20, 2), (30, 3)]


class Delegating(tg.ProcessFunction):
    def process_element(self, value: int, ctx: tg.Context) -> Iterator[Any]:
        return elsewhere(value)


def test_a_tag_that_another_function_yields_is_found_among_the_first_rows() -> None:
    env = tg.StreamEnvironment("job")
    env.from_sequence(1, 3, uid="in").process(Delegating(), uid="tags").print()
    result = run_in_process(env, storage=fresh_storage())

    assert "Delegating emits to the side output 'hidden', but nothing reads it" in str(result.error)


def test_tuples_where_the_type_says_that_they_hold_several_records() -> None:
    env = tg.StreamEnvironment("job")
    numbers = env.from_sequence(1, 2, uid="in")
    numbers.flat_map(lambda number: (number, -number), returns=int).collect(uid="numbers")
    numbers.flat_map(lambda number: ((number, "a"), (number, "b")), returns=tuple[int, str]).collect(uid="pairs")
    numbers.flat_map(lambda number: ()).collect(uid="nothing")
    result = run_in_process(env, storage=fresh_storage())

    assert result.error is None
    assert sorted(result.collected.rows("numbers")) == [-2, -1, 1, 2]
    assert sorted(result.collected.rows("pairs")) == [(1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert result.collected.rows("nothing") == []
