"""Asynchronous functions in the harness: order, retries, time-outs, batches, watermarks, what a snapshot holds."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import tidegate as tg
from tidegate.testing import harness


async def later(n: int) -> int:
    await asyncio.sleep(n)
    return n * 10


class Later(tg.AsyncFunction):
    async def async_invoke(self, n: int, ctx: tg.AsyncContext) -> int:
        return await later(n)


def test_ordered_answers_wait_for_those_before_them():
    asked = harness(Later())

    assert asked.process_many([3, 1, 2]) == []
    assert asked.advance_processing_time("2s") == []
    assert asked.advance_processing_time("1s") == [30, 10, 20]


def test_an_answer_keeps_the_time_of_its_record_and_a_watermark_its_place():
    asked = harness(Later())
    asked.process(2, timestamp=5)
    asked.advance_watermark(9)

    assert asked.watermark < 9
    asked.advance_processing_time("2s")
    assert [(each.value, each.timestamp) for each in asked.emitted] == [(20, 5)]
    assert asked.watermark == 9


def test_input_ends_when_all_calls_have_come_back():
    asked = harness(Later())
    asked.process_many([5, 1])

    assert asked.end_input() == [50, 10]


SEEN: list[int] = []


class Seen(tg.AsyncFunction):
    async def async_invoke(self, n: int, ctx: tg.AsyncContext) -> int:
        SEEN.append(n)
        return await later(n)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_snapshot_has_answers_and_questions_and_only_questions_are_asked_again(keyed: bool, backend: str):
    SEEN.clear()
    keys: dict[str, Any] = {"key_by": lambda n: n % 2, "key_type": int} if keyed else {}
    asked = harness(Seen(), backend=backend, **keys)
    asked.process_many([3, 1])
    asked.advance_processing_time("1s")
    asked.restore(asked.snapshot())

    assert asked.end_input() == [30, 10]
    assert SEEN == [3, 1, 3]
    asked.close()


MOMENT = datetime(2026, 7, 1, tzinfo=timezone(timedelta(hours=13)))


class Zoned(tg.AsyncFunction):
    async def async_invoke(self, asked: tuple[float, int], ctx: tg.AsyncContext) -> Any:
        await asyncio.sleep(asked[1])
        return str(asked), MOMENT, asked[1]


@pytest.mark.parametrize("fails", [False, True])
def test_a_restore_changes_neither_what_is_asked_about_nor_what_was_answered(fails: bool):
    asked = harness(Zoned(), input_type=tuple[float, int], returns=tuple[str, datetime, float])
    asked.process_many([(7, 3), (8, 1)])
    asked.advance_processing_time("1s")
    if fails:
        asked.restore(asked.snapshot())

    day = datetime(2026, 6, 30, 11, tzinfo=UTC)
    assert list(map(repr, asked.end_input())) == [repr(("(7.0, 3)", day, 3.0)), repr(("(8.0, 1)", day, 1.0))]
    asked.close()


class Flaky(tg.AsyncFunction):
    async def async_invoke(self, n: int, ctx: tg.AsyncContext) -> str:
        if ctx.attempt < n:
            raise OSError("not yet")
        return f"{n} at attempt {ctx.attempt}"


def test_a_call_is_made_again_after_growing_pauses_and_then_fails():
    asked = harness(Flaky(), options={"retry": tg.Retry(3, "1s", on=OSError)})
    asked.process(3)
    assert asked.advance_processing_time("2s") == []
    assert asked.advance_processing_time("2s") == ["3 at attempt 3"]

    asked.process(4)
    with pytest.raises(OSError, match="not yet"):
        asked.advance_processing_time("4s")
    asked.close()


class Batched(tg.AsyncFunction):
    async def async_invoke_batch(self, values: list[int], ctx: tg.AsyncContext) -> list[Any]:
        await asyncio.sleep(1)
        return [(n, len(values)) for n in values]


def test_a_batch_takes_what_waits():
    asked = harness(Batched(), options={"capacity": 8, "batch_size": 4})
    asked.process(1)
    asked.process_many(list(range(2, 10)))

    answers = asked.end_input()
    assert [n for n, _ in answers] == list(range(1, 10))
    assert dict(answers)[1] == 1
    assert max(size for _, size in answers) == 4


class WrongBatch(tg.AsyncFunction):
    async def async_invoke_batch(self, values: list[int], ctx: tg.AsyncContext) -> list[Any]:
        return [1, 2, 3]


def test_a_batch_without_an_answer_for_each_is_refused():
    with (
        harness(WrongBatch()) as asked,
        pytest.raises(TypeError, match="one answer for each of its 1 values, not 3 of"),
    ):
        asked.process(1)


class Patient(tg.AsyncFunction):
    async def async_invoke(self, n: int, ctx: tg.AsyncContext) -> int:
        return await later(n)

    def timeout(self, n: int, ctx: tg.AsyncContext) -> int:
        return -n


def test_a_timeout_of_ones_own_answers_in_place_of_the_call():
    asked = harness(Patient(), options={"timeout": "2s"})
    asked.process_many([1, 100])

    assert asked.end_input() == [10, -100]


def test_of_a_batch_that_is_late_each_record_has_its_own_time():
    class Times(tg.AsyncFunction):
        async def async_invoke_batch(self, values: list[int], ctx: tg.AsyncContext) -> list[Any]:
            await asyncio.sleep(100)
            return values

        def timeout(self, n: int, ctx: tg.AsyncContext) -> Any:
            return n, ctx.timestamp()

    asked = harness(Times(), options={"timeout": "2s", "batch_size": 3, "capacity": 3})
    asked.process_many([1, 2, 3], timestamps=[10, 20, 30])

    assert asked.end_input() == [(1, 10), (2, 20), (3, 30)]


class Opened(tg.AsyncFunction):
    """`async_open` takes so long, and then it may fail."""

    def __init__(self, seconds: float, error: Exception | None = None) -> None:
        self.seconds, self.error, self.calls = seconds, error, 0

    async def async_open(self, ctx: tg.Context) -> None:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error

    async def async_invoke(self, n: int, ctx: tg.AsyncContext) -> int:
        await asyncio.sleep(2)
        return n


def test_what_goes_wrong_while_a_function_is_opened_is_no_records_failure():
    skips = {"on_error": "skip", "timeout": "5s"}
    with harness(Opened(1, OSError("no service")), options=skips) as asked:
        asked.process_many([1, 2])
        with pytest.raises(OSError, match="no service"):
            asked.advance_processing_time("2s")
    with harness(Opened(100), options=skips) as asked:
        asked.process_many([1, 2])
        with pytest.raises(tg.TidegateError, match="async_open of async_map Opened has not come to its end within"):
            asked.advance_processing_time("6s")


def test_the_time_of_a_record_begins_when_its_function_is_open():
    asked = harness(Opened(4), options={"timeout": "5s", "on_error": "skip"})
    asked.process_many([1])
    asked.advance_processing_time("3s")
    asked.process_many([2])

    assert asked.advance_processing_time("1s") == []
    assert asked.advance_processing_time("2s") == [1, 2]


class CountsItself(tg.CheckpointedFunction):
    """How often it was called, as operator state."""

    def __init__(self) -> None:
        self.calls = 0

    def initialize_state(self, ctx: tg.InitializationContext) -> None:
        self.kept = ctx.operator_state.list_state("calls", int)
        self.calls = sum(self.kept.get())

    def snapshot_state(self, ctx: tg.SnapshotContext) -> None:
        self.kept.set([self.calls])

    async def __call__(self, n: int) -> int:
        self.calls += 1
        return self.calls


class CountsCalls(CountsItself, tg.AsyncFunction):
    async def async_invoke(self, n: int, ctx: tg.AsyncContext) -> int:
        return await self(n)


@pytest.mark.parametrize("keyed", [False, True])
@pytest.mark.parametrize("function", [CountsCalls(), CountsItself()])
def test_a_function_keeps_its_operator_state(function: Any, keyed: bool):
    keys: dict[str, Any] = {"key_by": lambda n: n, "key_type": int} if keyed else {}
    asked = harness(function, via="async_map", **keys)
    assert asked.process_many([5, 6]) == [1, 2]
    asked.restore(asked.snapshot())

    assert asked.process(7) == [3]


def test_a_pause_is_twice_as_long_each_time_up_to_the_most():
    retry = tg.Retry(9, "1s", most="3s")

    assert [retry.pause_s(attempt, chance=0.0) for attempt in (1, 2, 3, 4)] == [1, 2, 3, 3]
    with pytest.raises(tg.TidegateError, match="both are 1 or more"):
        tg.Retry(0)
