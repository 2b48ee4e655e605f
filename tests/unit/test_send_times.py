"""When an idle slot sends: together with its layer, soon after silence, and not more often than it may."""

from __future__ import annotations

import random

import pytest

from tidegate.task.send_times import IDLE_SENDS_PER_TIMEOUT, SendTimes
from tidegate.testing.clock import ManualClock

TIMEOUT_S = 0.010
INTERVAL_S = TIMEOUT_S / IDLE_SENDS_PER_TIMEOUT


def sends(times: SendTimes, clock: ManualClock, for_s: float) -> list[float]:
    """The moments at which a slot that always has something, and is idle, sends."""
    found = []
    end = clock.now + for_s
    while clock.now < end:
        if times.is_due(idle=True):
            times.sent()
            found.append(clock.now)
        assert times.idle_at > clock.now, "the loop would turn for nothing"
        clock.now = times.idle_at
    return found


@pytest.mark.parametrize("began", [0.0, 1.0007, 123456.789, 9e6])
def test_slots_of_a_layer_send_at_the_same_moments_and_the_next_layer_between_them(began: float) -> None:
    made = []
    for layer, later_s in ((0, 0.0), (0, 0.0013), (1, 0.0), (2, 0.0021)):
        clock = ManualClock(began + later_s)
        made.append(sends(SendTimes(TIMEOUT_S, layer, clock), clock, 1.0)[1:-1])  # the first one is at once

    first, second, between, third = made
    assert len(first) >= 240
    for one, other in ((first, second), (first, third)):
        common = set(map(round_ms, one)) & set(map(round_ms, other))
        assert len(common) >= len(one) - 2
    shifted = {round_ms(at + INTERVAL_S / 2) for at in first}
    assert len(shifted & set(map(round_ms, between))) >= len(first) - 2


def round_ms(at: float) -> float:
    return round(at * 1e3, 1)


def test_a_record_after_silence_leaves_at_once() -> None:
    clock = ManualClock(7.0)
    times = SendTimes(TIMEOUT_S, 0, clock)
    assert times.is_due(idle=True)
    times.sent()
    assert not times.is_due(idle=True)
    clock.advance(INTERVAL_S)
    assert times.is_due(idle=True)


def test_a_busy_slot_sends_once_in_a_timeout() -> None:
    clock = ManualClock(7.0)
    times = SendTimes(TIMEOUT_S, 0, clock)
    times.sent()
    clock.advance(TIMEOUT_S * 0.99)
    assert not times.is_due(idle=False)
    clock.advance(TIMEOUT_S * 0.02)
    assert times.is_due(idle=False)


@pytest.mark.parametrize("seed", range(10))
def test_it_is_due_at_the_moment_that_it_names_and_within_one_interval(seed: int) -> None:
    draw = random.Random(seed)
    clock = ManualClock(draw.uniform(0, 1e7))
    times = SendTimes(draw.choice([0.001, 0.010, 0.1, 3.0]), draw.randrange(5), clock)
    interval_s = times._timeout_s / IDLE_SENDS_PER_TIMEOUT
    for _ in range(200):
        times.sent()
        assert clock.now < times.idle_at <= clock.now + interval_s * 1.001
        clock.now = times.idle_at
        assert times.is_due(idle=True)
        clock.advance(draw.choice([0.0, draw.uniform(0, 3 * interval_s)]))


def test_without_a_timeout_nothing_waits() -> None:
    clock = ManualClock(7.0)
    times = SendTimes(0.0, 1, clock)
    times.sent()
    assert times.is_due(idle=True)
    assert times.is_due(idle=False)
