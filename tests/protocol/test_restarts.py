"""Restart strategies on a clock that is a number, and attempts that fail, wait and start again."""

from __future__ import annotations

import pytest

from tidegate.config import RestartSettings
from tidegate.errors import ConfigurationError
from tidegate.protocol.restarts import ExponentialDelay, FailureRate, FixedDelay, NoRestart, RestartStrategy


def delays(strategy: RestartStrategy, failures_at: list[float], jitter: float = 0.0) -> list[float | None]:
    return [strategy.delay_after_failure(now, jitter) for now in failures_at]


def test_exponential_delay_waits_not_at_all_and_then_longer_each_time() -> None:
    strategy = ExponentialDelay(initial_s=1.0, max_s=4.0, multiplier=2.0)

    assert delays(strategy, [0, 1, 2, 3, 4, 5]) == [0.0, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_exponential_delay_begins_again_after_a_stable_time() -> None:
    strategy = ExponentialDelay(initial_s=1.0, multiplier=2.0, reset_after_s=100.0)

    assert delays(strategy, [0, 10, 20]) == [0.0, 1.0, 2.0]
    assert delays(strategy, [119.9]) == [4.0]
    assert delays(strategy, [219.9]) == [0.0]


@pytest.mark.parametrize(("jitter", "expected"), [(-1.0, 0.9), (0.0, 1.0), (1.0, 1.1)])
def test_jitter_spreads_the_delay_by_a_tenth(jitter: float, expected: float) -> None:
    assert delays(ExponentialDelay(initial_s=1.0, jitter_factor=0.1), [0, 1], jitter)[1] == pytest.approx(expected)


def test_exponential_delay_may_be_limited_and_a_stable_time_renews_the_limit() -> None:
    strategy = ExponentialDelay(initial_s=1.0, multiplier=2.0, attempts=2, reset_after_s=100.0)

    assert delays(strategy, [0, 1, 2]) == [0.0, 1.0, None]
    assert delays(strategy, [200]) == [0.0]


def test_exponential_delay_with_no_attempts_allowed_never_restarts() -> None:
    assert delays(ExponentialDelay(attempts=0), [0]) == [None]


def test_fixed_delay_gives_up_after_its_attempts() -> None:
    assert delays(FixedDelay(attempts=3, delay_s=7.0), [0, 1000, 2000, 3000]) == [7.0, 7.0, 7.0, None]


def test_failure_rate_counts_only_what_is_young() -> None:
    strategy = FailureRate(max_failures=2, interval_s=60.0, delay_s=1.0)

    assert delays(strategy, [0, 30, 60.1, 89]) == [1.0, 1.0, 1.0, None]
    assert delays(FailureRate(max_failures=2, interval_s=60.0), [0, 10, 20]) == [1.0, 1.0, None]


def test_no_restart_means_none() -> None:
    assert delays(NoRestart(), [0]) == [None]


def test_without_checkpoints_there_is_nothing_to_restart_from_so_the_default_is_not_to() -> None:
    assert isinstance(RestartSettings().strategy(checkpoints_on=True), ExponentialDelay)
    assert isinstance(RestartSettings().strategy(checkpoints_on=False), NoRestart)


def test_an_unknown_strategy_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigurationError, match='"exponential-delay", "fixed-delay", "failure-rate" or "none"'):
        RestartSettings(kind="sometimes").strategy(True)


@pytest.mark.parametrize("strategy", [ExponentialDelay(), FixedDelay(), FailureRate(), NoRestart()])
def test_every_strategy_says_what_it_does(strategy: RestartStrategy) -> None:
    assert strategy.describe()
