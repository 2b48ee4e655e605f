"""Event-time timers when time ends: all fire, chains of them have an end, and a crash or a drain changes nothing of that."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.state.timers import LONGEST_CHAIN
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import InProcessRun

EVENTS = [(f"user-{n % 3}", n * 10) for n in range(30)]
EVENT = tuple[str, int]
MINUTE = 60


class Timed(tg.KeyedProcessFunction):
    """The first record of a key sets a timer, after its time."""

    begun = tg.ValueState(bool, default=False)

    def process_element(self, event: tuple[str, int], ctx: tg.Context) -> None:
        if not self.begun.get():
            self.begun.set(True)
            ctx.timer_service().register_event_time_timer(event[1] + MINUTE)


class Periodic(Timed):
    """Each firing sets the next timer."""

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(timestamp + MINUTE)
        yield (ctx.key, timestamp)


class Ending(Timed):
    """As the docs say it."""

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[Any]:
        if ctx.current_watermark < tg.MAX_WATERMARK:
            ctx.timer_service().register_event_time_timer(timestamp + MINUTE)
        yield (ctx.key, timestamp)


class Stairs(Timed):
    """Each timer sets the next, `steps` times."""

    step = tg.ValueState(int, default=0)
    steps = 5

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Iterator[Any]:
        step = self.step.get() + 1
        self.step.set(step)
        if step < self.steps:
            ctx.timer_service().register_event_time_timer(timestamp + 1000)
        yield (ctx.key, timestamp)


def job(function: tg.KeyedProcessFunction, storage: str, resume: str | None = None) -> tg.StreamEnvironment:
    env = tg.StreamEnvironment("timers", parallelism=2)
    env.checkpointing(every="10ms", storage=storage, resume=resume)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    strategy = tg.WatermarkStrategy.monotonous(timestamp=lambda event: event[1])
    events = env.from_collection(EVENTS, uid="events", type=EVENT, parallelism=1)
    stamped = events.assign_timestamps_and_watermarks(strategy, uid="stamps", parallelism=1)
    stamped.key_by(0).process(function, uid="timers", returns=EVENT).sink_to(LedgerSink("out"), uid="out")
    return env


def fired(function: tg.KeyedProcessFunction, seed: int = 1, crashes: list[Crash] | None = None) -> dict[str, list[int]]:
    forget_ledgers()
    run = InProcessRun(job(function, fresh_storage()), seed, crashes=crashes).run()
    assert run.status.value == "FINISHED", run.error
    rows = ledger("out").rows()
    assert len(set(rows)) == len(rows), "a timer has fired twice"
    return {user: sorted(time for who, time in rows if who == user) for user, _ in EVENTS}


def first_of(user: str) -> int:
    return next(time for who, time in EVENTS if who == user) + MINUTE


def assert_periodic_up_to_an_end(of_user: dict[str, list[int]]) -> None:
    """How far time had come before it ended is a matter of timing; from there on a chain has its length."""
    for user, times in of_user.items():
        assert times == list(range(first_of(user), times[-1] + 1, MINUTE)), "each in its turn"
        while_records_came = len(range(first_of(user), EVENTS[-1][1], MINUTE))
        assert LONGEST_CHAIN + 1 <= len(times) <= while_records_came + LONGEST_CHAIN + 1


def test_a_periodic_timer_lets_bounded_input_end_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "tidegate.task"):
        assert_periodic_up_to_an_end(fired(Periodic()))

    said = [record.getMessage() for record in caplog.records if "on_timer keeps setting" in record.getMessage()]
    assert said
    assert all("uid timers" in text and "test_timers_at_the_end.py" in text for text in said)
    assert all("tg.MAX_WATERMARK" in text for text in said)


def test_a_timer_that_asks_whether_time_has_ended_fires_once_more() -> None:
    for user, times in fired(Ending()).items():
        assert times == list(range(first_of(user), times[-1] + 1, MINUTE))
        assert times[-1] <= EVENTS[-1][1] + MINUTE


def test_timers_that_are_set_by_timers_fire_at_the_end_too() -> None:
    for times in fired(Stairs()).values():
        assert len(times) == Stairs.steps


@pytest.mark.parametrize("point", ALL_POINTS)
def test_a_crash_fires_nothing_twice_and_leaves_nothing_out(point: str) -> None:
    for nth in range(1, 5):
        print("point:", point, "nth:", nth)
        assert_periodic_up_to_an_end(fired(Periodic(), nth, [Crash(point, nth)]))
