"""Lookup joins: what is asked, what is remembered and for how long; and a whole job against DuckDB."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

import tidegate as tg
from tidegate.connectors.database import table_lookup
from tidegate.coordinator.observing import JobStatus
from tidegate.functions.asynchronous import AsyncContext
from tidegate.functions.lookups import FunctionSource, LookupJoin
from tidegate.functions.process import Context
from tidegate.testing import crash_points
from tidegate.testing.clock import ManualClock
from tidegate.testing.runner import run_in_process
from tidegate.testing.stepped_loop import SteppedCalls

PEOPLE = {1: "Ann", 2: "Bob"}
ASKED: list[int] = []


async def person(id: int) -> str | None:
    ASKED.append(id)
    await asyncio.sleep(0.1)
    if id < 0:
        raise OSError("no answer")
    return PEOPLE.get(id)


class Lookup:
    """One lookup function in a loop whose time the test sets."""

    def __init__(self, cache: tg.LookupCache | None, how: str = "left") -> None:
        ASKED.clear()
        self.clock = ManualClock()
        self.calls = SteppedCalls(self.clock)
        self.function = LookupJoin(FunctionSource(person), lambda n: n, lambda n, row: (n, row), how, cache)
        self.context = Context("job", "uid", "lookup", 0, 1, restored=False)
        self.function.open(self.context)

    def ask(self, *batches: list[int]) -> list[Any]:
        answers: list[Any] = [None] * len(batches)

        async def one(at: int) -> None:
            try:
                answers[at] = await self.function.async_invoke_batch(batches[at], AsyncContext(self.context, [None], 1))
            except OSError as error:
                answers[at] = str(error)

        tasks: list[Any] = []
        self.calls.call(
            lambda: tasks.extend(asyncio.get_running_loop().create_task(one(at)) for at in range(len(batches)))
        )
        self.calls.run()
        while None in answers:
            self.clock.advance(0.1)
            self.calls.run()
        return answers

    def counts(self) -> dict[str, int]:
        return self.context._metrics.counters.values()


def test_what_was_found_is_remembered_also_that_there_was_nothing() -> None:
    lookup = Lookup(tg.LookupCache(ttl="1min"))

    assert lookup.ask([1, 9, 1]) == [[[(1, "Ann")], [(9, None)], [(1, "Ann")]]]
    assert lookup.ask([9], [1]) == [[[(9, None)]], [[(1, "Ann")]]]
    assert ASKED == [1, 9]
    assert lookup.counts() == {"cache_hits": 2, "cache_misses": 2}
    lookup.clock.advance(61)
    lookup.ask([1])
    assert ASKED == [1, 9, 1]
    lookup.calls.let_go()


def test_the_cache_keeps_what_was_asked_for_last() -> None:
    lookup = Lookup(tg.LookupCache(ttl="1h", rows=2))
    for key in (1, 2, 1, 3, 1, 2):
        lookup.ask([key])

    assert ASKED == [1, 2, 3, 2]
    lookup.calls.let_go()


def test_two_records_that_ask_for_one_key_at_the_same_time_ask_once_and_fail_together() -> None:
    lookup = Lookup(None)

    assert lookup.ask([1], [1], [2]) == [[[(1, "Ann")]], [[(1, "Ann")]], [[(2, "Bob")]]]
    assert lookup.ask([-1], [-1]) == ["no answer", "no answer"]
    assert ASKED == [1, 2, -1]
    lookup.ask([1])
    assert ASKED == [1, 2, -1, 1]
    lookup.calls.let_go()


def test_who_asks_for_what_another_has_asked_for_is_answered_though_that_one_gives_up() -> None:
    lookup = Lookup(None)
    answers: list[Any] = []

    async def one(seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                answers.append(await lookup.function.async_invoke_batch([1], AsyncContext(lookup.context, [None], 1)))
        except TimeoutError:
            answers.append("late")

    tasks: list[Any] = []
    lookup.calls.call(lambda: tasks.extend(map(asyncio.get_running_loop().create_task, (one(0.05), one(1), one(0.12)))))
    lookup.calls.run()
    for _ in range(30):
        lookup.clock.advance(0.01)
        lookup.calls.run()

    assert answers == ["late", "late", [[(1, "Ann")]]]
    assert ASKED == [1, 1]
    lookup.calls.let_go()


def test_a_table_is_asked_by_one_query_at_a_time_also_where_calls_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread cannot be stopped: it goes on with the connection when nobody waits for its answer any more."""
    begun, may_end = threading.Semaphore(0), threading.Semaphore(0)
    at_once: list[int] = []

    class Connection:
        queries = 0

        def columns_of(self, table: str) -> list[Any]:
            return [SimpleNamespace(name="id", type="bigint")]

        def quoted(self, name: str) -> str:
            return name

        def explained(self, *what: str) -> Any:
            return contextlib.nullcontext()

        def run(self, sql: str, *keys: Any) -> list[Any]:
            Connection.queries += 1
            at_once.append(Connection.queries)
            begun.release()
            assert may_end.acquire(timeout=30)
            Connection.queries -= 1
            return [(key,) for key in keys]

        def close(self) -> None:
            assert Connection.queries == 0, "closed while it is in use"

    monkeypatch.setattr(table_lookup, "connect", lambda url, name: Connection())
    table = tg.TableLookup("postgresql://user:secret@localhost/base", "people", key="id")

    async def job() -> Any:
        given_up = asyncio.ensure_future(table.look_up([1]))
        await asyncio.to_thread(begun.acquire)
        given_up.cancel()
        second = asyncio.ensure_future(table.look_up([2]))
        await asyncio.to_thread(begun.acquire, True, 0.2)  # a second query would begin in this time
        may_end.release(2)
        found = await second
        await table.close()
        return found

    assert asyncio.run(job()) == [{"id": 2}]
    assert at_once == [1, 1]


def test_inner_leaves_out_what_has_no_row() -> None:
    lookup = Lookup(None, how="inner")

    assert lookup.ask([1, 9]) == [[[(1, "Ann")], []]]
    lookup.calls.let_go()


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_job_gives_what_the_line_of_sql_gives(how: str, seed: int) -> None:
    ASKED.clear()
    rows = [(n % 4, n) for n in range(40)]
    env = tg.StreamEnvironment("lookup", parallelism=2)
    env.checkpointing(every="20ms", storage=f"memory://lookup-{how}-{seed}")
    env.restart_strategy("fixed-delay", attempts=10, delay="0s")
    stream = env.from_collection(rows, type=tuple[int, int], uid="rows", parallelism=1).rebalance()
    joined = stream.lookup_join(
        person, lambda row, name: (row[1], name), on=0, how=how, cache=tg.LookupCache(), uid="people", ordered=False
    )
    joined.collect(uid="out")
    crash = crash_points.Crash("driver.after-log", nth=2)

    result = run_in_process(env, seed=seed, crashes=[crash])

    assert result.status is JobStatus.FINISHED, result.error
    (line,) = re.findall(r"`(SELECT .*?)`", re.sub(r"\s+", " ", tg.DataStream.lookup_join.__doc__ or ""))
    database = duckdb.connect()
    database.execute("CREATE TABLE l (key INT, n INT)")
    database.execute("CREATE TABLE r (key INT, name TEXT)")
    database.executemany("INSERT INTO l VALUES (?, ?)", rows)
    database.executemany("INSERT INTO r VALUES (?, ?)", list(PEOPLE.items()))
    found = database.execute(line.replace("LEFT JOIN", f"{how.upper()} JOIN")).fetchall()
    assert Counter(result.collected.rows("out")) == Counter((row[1], row[3]) for row in found)


def blocking(id: int) -> str:
    return ""


def test_what_makes_no_sense_is_said_where_the_job_is_built() -> None:
    stream = tg.StreamEnvironment("lookup").from_collection([(1, 2)], type=tuple[int, int])
    with pytest.raises(tg.TidegateError, match="how='full' is not one of left, inner"):
        stream.lookup_join(person, on=0, how="full", uid="x")
    with pytest.raises(tg.TidegateError, match="write `async def blocking"):
        stream.lookup_join(blocking, on=0, uid="x")
    with pytest.raises(tg.TidegateError, match="both are above 0"):
        tg.LookupCache(rows=0)
