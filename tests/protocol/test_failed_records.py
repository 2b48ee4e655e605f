"""on_error= in whole jobs: what leaves, what stays in state, and that each failed record comes out exactly once."""

from __future__ import annotations

from collections import Counter
from itertools import repeat
from operator import floordiv
from typing import Any

import pyarrow.compute as pc
import pytest
from protocol_kit import Numbered, environment

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.functions.failed_records import FAILED_RECORDS
from tidegate.testing import LedgerSink, forget_ledgers, harness, ledger
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.runner import run_in_process

SIDE = tg.OutputTag("side", int)
ROW = tuple[int, int]


@pytest.fixture(autouse=True)
def _no_ledgers() -> None:
    forget_ledgers()


class Picky(tg.KeyedProcessFunction):
    """Counts, emits by both outputs, and then raises for each third number."""

    count = tg.ValueState(int, default=0)

    def process_element(self, row: Any, ctx: tg.Context):
        number = row[1]
        self.count.set(self.count.get() + 1)
        ctx.output(SIDE, number)
        yield number
        if number % 3 == 0:
            raise KeyError(number)


async def picky_call(row: Any) -> int:
    if row[1] % 3 == 0:
        raise KeyError(row[1])
    return row[1]


def parse(row: Any) -> int:
    return [] if 1 // (row[1] % 3) < 0 else row[1]


KINDS = {
    "map": lambda s: s.map(parse, returns=int, uid="f", on_error="dead-letter"),
    "flat_map": lambda s: s.flat_map(lambda row: [parse(row)], returns=int, uid="f", on_error="dead-letter"),
    "filter": lambda s: s.filter(lambda row: parse(row) >= 0, uid="f", on_error="dead-letter"),
    "keyed": lambda s: s.key_by(0).process(Picky(), returns=int, uid="f", on_error="dead-letter"),
    "async": lambda s: s.async_map(picky_call, returns=int, uid="f", on_error="dead-letter", ordered=False),
}


def run_kind(kind: str, seed: int, crashes: list[Crash]) -> None:
    source = Numbered(0, 2, 20, (3, 1))
    env = environment(parallelism=2, unaligned=seed % 2 == 0)
    env.restart_strategy("fixed-delay", attempts=100, delay="0s")
    stream = env.from_source(source, uid="source", returns=ROW)
    out = KINDS[kind](stream)
    out.sink_to(LedgerSink("out"), uid="out")
    if kind == "keyed":
        out.side_output(SIDE).sink_to(LedgerSink("side"), uid="side")
    letters = out.dead_letters().map(lambda bad: (bad.record, bad.error), uid="of")
    letters.sink_to(LedgerSink("letters"), uid="letters")

    result = run_in_process(env, seed=seed, crashes=crashes)

    assert result.status is JobStatus.FINISHED, result.error
    good = [number for number in source.numbers() if number % 3]
    error = "ZeroDivisionError" if kind in ("map", "flat_map", "filter") else "KeyError"
    rows = [row[1] for row in ledger("out").rows()] if kind == "filter" else ledger("out").rows()
    assert Counter(rows) == Counter(good)
    assert Counter(map(tuple, ledger("letters").rows())) == Counter(
        ((0, number), error) for number in source.numbers() if number % 3 == 0
    )
    if kind == "keyed":
        assert Counter(ledger("side").rows()) == Counter(good)


@pytest.mark.parametrize("kind", KINDS)
def test_failed_records_come_out_once_whatever_dies(kind: str, seed: int) -> None:
    run_kind(kind, seed, [])
    for number, point in enumerate(ALL_POINTS[number_of(kind) :: len(KINDS)]):
        forget_ledgers()
        run_kind(kind, seed + number, [Crash(point, nth=1 if "finished" in point else 2)])


def number_of(kind: str) -> int:
    return list(KINDS).index(kind)


def test_what_a_failing_call_did_to_state_stays_and_what_it_emitted_does_not() -> None:
    picky = harness(
        Picky(), key_by=lambda row: "k", key_type=str, side_outputs=[SIDE], options={"on_error": "skip"}, returns=int
    )

    assert picky.process_many([(0, 1), (0, 3), (0, 4)]) == [1, 4]
    assert picky.side_output(SIDE) == [1, 4]
    assert picky.state("k") == {"count": 3}


def test_a_dead_letter_is_the_record_as_it_came_with_its_time_and_its_trace() -> None:
    def spoil(row: list[int]) -> None:
        row.append(-1)
        raise ValueError("spoilt")

    bad = tg.OutputTag("dead letters", tg.FailedRecord)
    spoiling = harness(spoil, via="map", side_outputs=[bad], options={"on_error": "dead-letter"})

    assert spoiling.process([7], timestamp=12) == []
    (letter,) = spoiling.side_output(bad)
    assert (letter.record, letter.timestamp, letter.operator) == ([7], 12, "map spoil")
    assert (letter.error, letter.message) == ("ValueError", "spoilt")
    assert "row.append(-1)" not in letter.traceback
    assert 'raise ValueError("spoilt")' in letter.traceback


def test_skipped_records_are_counted() -> None:
    parsing = harness(parse, via="map", options={"on_error": "skip"})

    assert parsing.process_many([(0, number) for number in range(9)]) == [1, 2, 4, 5, 7, 8]
    assert parsing._operator.metrics().counters == {FAILED_RECORDS: 3}


DEAD = tg.OutputTag("dead letters", tg.FailedRecord)


class Lazy(tg.ProcessFunction):
    """What it returns is worked out later."""

    def process_element(self, row: list[int], ctx: tg.Context) -> Any:
        return map(floordiv, repeat(6), row)


class Itself(tg.ProcessFunction):
    """Calls itself for the parts of a record."""

    def process_element(self, row: Any, ctx: tg.Context) -> Any:
        if type(row) is int:
            yield 6 // row
            return
        for part in row:
            yield from self.process_element(part, ctx)


class ItselfAtOnce(Itself):
    def process_element(self, row: Any, ctx: tg.Context) -> Any:
        if type(row) is int:
            return [6 // row]
        return [out for part in row for out in self.process_element(part, ctx)]


@pytest.mark.parametrize("function", [Lazy(), Itself(), ItselfAtOnce()])
def test_a_record_fails_whole_and_once(function: Any) -> None:
    running = harness(function, side_outputs=[DEAD], options={"on_error": "dead-letter"})

    assert running.process_many([[1, 2], [3, 0, 1], [2]]) == [6, 3, 3]
    assert [(letter.record, letter.error) for letter in running.side_output(DEAD)] == [([3, 0, 1], "ZeroDivisionError")]
    assert running._operator.metrics().counters == {FAILED_RECORDS: 1}


def test_what_a_timer_calls_fails_the_job() -> None:
    class Timed(tg.KeyedProcessFunction):
        def process_element(self, n: int, ctx: tg.Context) -> Any:
            if n:
                ctx.timer_service().register_event_time_timer(n)
            return [6 // n]

        def on_timer(self, timestamp: int, ctx: tg.Context) -> Any:
            return self.process_element(0, ctx)

    timed = harness(Timed(), key_by=lambda n: "k", key_type=str, options={"on_error": "skip"})
    assert timed.process(5, timestamp=5) == [1]
    with pytest.raises(ZeroDivisionError):
        timed.advance_watermark(5)


def test_a_dead_letter_of_the_second_input_is_the_record_as_it_came() -> None:
    class Spoil(tg.CoProcessFunction):
        def process_element1(self, row: list[int], ctx: tg.Context) -> None:
            row.append(-1)
            raise ValueError("spoilt")

        process_element2 = process_element1

    env = environment(parallelism=1)
    env.restart_strategy("none")
    one, two = (env.from_collection([[number]], uid=f"in{number}") for number in (1, 2))
    spoilt = one.connect(two).process(Spoil(), returns=int, uid="f", on_error="dead-letter")
    spoilt.sink_to(LedgerSink("out"), uid="out")
    spoilt.dead_letters().map(lambda bad: bad.record, uid="of").sink_to(LedgerSink("letters"), uid="letters")

    assert run_in_process(env).status is JobStatus.FINISHED
    assert sorted(ledger("letters").rows()) == [[1], [2]]


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_that_cannot_be_written_down_is_a_failed_record_too() -> None:
    def odd(n: int) -> int:
        raise Silent if n else ValueError("half a \ud83d")

    for how in ("skip", "dead-letter"):
        env = environment(parallelism=1)
        env.restart_strategy("none")
        out = env.from_collection([0, 1], type=int, uid="in").map(odd, returns=int, uid="f", on_error=how)
        out.sink_to(LedgerSink("out"), uid="out")
        if how == "dead-letter":
            texts = out.dead_letters().rebalance().map(lambda bad: bad.message, returns=str, uid="of")
            texts.sink_to(LedgerSink("texts"), uid="texts")
        assert run_in_process(env).status is JobStatus.FINISHED
    assert sorted(ledger("texts").rows()) == ["(its message cannot be shown: RuntimeError)", "half a \\ud83d"]


class CountsItself(tg.CheckpointedFunction):
    """How often it was called, as operator state."""

    def initialize_state(self, ctx: tg.InitializationContext) -> None:
        self.kept = ctx.operator_state.list_state("calls", int)
        self.calls = sum(self.kept.get())

    def snapshot_state(self, ctx: tg.SnapshotContext) -> None:
        self.kept.set([self.calls])

    def __call__(self, n: int) -> Any:
        self.calls += 1
        return [self.calls] if self.calls else []


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("via", ["map", "flat_map", "filter"])
@pytest.mark.parametrize("how", ["fail", "skip", "dead-letter"])
def test_a_function_keeps_its_operator_state_whatever_becomes_of_failed_records(
    how: str, via: str, keyed: bool
) -> None:
    keys: dict[str, Any] = {"key_by": lambda n: n, "key_type": int} if keyed else {}
    letters = [DEAD] if how == "dead-letter" else []
    counting = harness(CountsItself(), via=via, options={"on_error": how}, side_outputs=letters, **keys)
    counting.process_many([5, 6])
    counting.restore(counting.snapshot())

    assert counting.process(7) == {"map": [[3]], "flat_map": [3], "filter": [7]}[via]


def test_tidegates_own_errors_and_those_of_timers_fail_the_job_all_the_same() -> None:
    class Timed(tg.KeyedProcessFunction):
        def process_element(self, n: int, ctx: tg.Context) -> None:
            ctx.timer_service().register_event_time_timer(n)

        def on_timer(self, timestamp: int, ctx: tg.Context) -> None:
            raise ValueError("in a timer")

    timed = harness(Timed(), key_by=lambda n: "k", key_type=str, options={"on_error": "skip"})
    timed.process(5, timestamp=5)
    with pytest.raises(ValueError, match="in a timer"):
        timed.advance_watermark(5)
    with pytest.raises(TypeError, match="it must return None, a list"):
        harness(lambda row: 5, via="flat_map", options={"on_error": "skip"}).process(1)


def test_what_makes_no_sense_is_said_where_the_job_is_built() -> None:
    numbers = environment().from_collection([1], type=int, uid="source")
    with pytest.raises(tg.TidegateError, match="it is one of 'fail', 'skip', 'dead-letter'"):
        numbers.map(parse, on_error="ignore")
    with pytest.raises(tg.TidegateError, match="works on whole columns, so on_error= is for functions alone"):
        numbers.filter(pc.field("value") > 1, on_error="skip")
    with pytest.raises(tg.TidegateError, match='was not put in with on_error="dead-letter"'):
        numbers.map(parse).dead_letters()
    env = environment()
    env.from_collection([1], uid="source").map(parse, on_error="dead-letter").sink_to(LedgerSink("x"), uid="x")
    with pytest.raises(tg.TidegateError, match="nothing reads its dead letters"):
        run_in_process(env)
