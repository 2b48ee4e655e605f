"""A mistake that must come again ends the job; what may pass is tried again. The decision alone, then jobs that drive it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import UserCodeFailed
from tidegate.protocol.repeated_mistakes import Mistake, RepeatedMistakes, mistake_of
from tidegate.testing.runner import RunResult, run_in_process
from tidegate.testing.scripted_source import Checkpoint, Fail, ScriptedSource

# -- the decision --------------------------------------------------------------------------------------------------------

MISTAKES = st.builds(Mistake, uid=st.sampled_from("ab"), error=st.sampled_from("xy"), line=st.sampled_from(["1", "2"]))
HISTORY = st.lists(st.tuples(st.none() | MISTAKES, st.booleans()))


@given(HISTORY)
def test_it_must_come_again_when_it_came_before_and_no_checkpoint_was_completed(
    history: list[tuple[Mistake | None, bool]],
) -> None:
    mistakes = RepeatedMistakes()
    for number, (mistake, has_progressed) in enumerate(history):
        before = [earlier for earlier, _ in history[:number]]
        progressed = any(moved for _, moved in history[: number + 1])

        expected = mistake is not None and mistake in before and not progressed
        assert mistakes.must_come_again(mistake, has_progressed) is expected


@given(HISTORY)
def test_whoever_has_chosen_a_strategy_is_never_refused(history: list[tuple[Mistake | None, bool]]) -> None:
    mistakes = RepeatedMistakes(is_on=False)

    assert not any(mistakes.must_come_again(*failure) for failure in history)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'anna'", "KeyError: 'bert'"),
        ("ValueError: bad literal for base 10: 'a'", "ValueError: bad literal for base 10: 'it\\'s'"),
        ("ValueError: row 17 has 3 parts", "ValueError: row 4 has 12.5 parts"),
        ("TypeError: <Order object at 0x7f00aa> is wrong", "TypeError: <Order object at 0x7e11> is wrong"),
        ("KeyError: 'x'\n  in map, subtask 0", "KeyError: 'x'\n  in map, subtask 1"),
    ],
    ids=["a key", "quotes in it", "numbers", "an address", "the place"],
)  # fmt: skip
def test_what_a_message_says_of_the_one_record_does_not_count(one: str, other: str) -> None:
    assert mistake_of("map", one, "job.py:7") == mistake_of("map", other, "job.py:7")


@pytest.mark.parametrize(
    "other",
    [("other", "KeyError: 'x'", "job.py:7"), ("map", "ValueError: 'x'", "job.py:7"), ("map", "KeyError: 'x'", "job.py:8")],
    ids=["operator", "class", "line"],
)  # fmt: skip
def test_another_operator_error_or_line_is_another_mistake(other: tuple[str, str, str]) -> None:
    assert mistake_of("map", "KeyError: 'x'", "job.py:7") != mistake_of(*other)


# -- jobs ----------------------------------------------------------------------------------------------------------------

calls: list[Any] = []


def ran(script: list[Any], function: Callable[[Any], Any], storage: str, **strategy: Any) -> RunResult:
    """With a checkpoint every 10 ms, and a strategy only where one is given."""
    calls.clear()
    env = tg.StreamEnvironment("job").checkpointing(every="10ms", storage=f"memory://{storage}")
    if strategy:
        env.restart_strategy(**strategy)
    env.from_source(ScriptedSource(script), uid="in").map(function, uid="doomed", returns=int).collect(uid="out")
    return run_in_process(env)


def always(value: int) -> int:
    calls.append(value)
    raise ValueError(f"{value} is bad")


def test_a_function_that_always_fails_is_tried_twice_and_the_error_says_why_no_more() -> None:
    result = ran([1, 2], always, "always")

    assert (result.status, result.attempts, calls) == (JobStatus.FAILED, 2, [1, 1])
    assert isinstance(result.error, UserCodeFailed)
    assert "The job is not restarted any more: this error has come twice, from the same line" in str(result.error)
    assert (result.error.uid, result.error.subtask) == ("doomed", 0)
    last = result.view.failures[-1]
    assert (last.restart_in_s, last.error) == (None, str(result.error)), "as displays show it"


def test_a_strategy_that_was_chosen_is_followed() -> None:
    result = ran([1], always, "chosen", kind="fixed-delay", attempts=4)

    assert (result.status, result.attempts) == (JobStatus.FAILED, 5)
    assert "not restarted any more" not in str(result.error)


def fails_after_the_checkpoint(value: int) -> int:
    calls.append(value)
    if value == 2 and calls.count(2) < 5:
        raise ValueError("not yet")
    return value


def test_after_a_completed_checkpoint_the_same_error_is_tried_again_as_before() -> None:
    result = ran([1, Checkpoint(), 2], fails_after_the_checkpoint, "progress")

    assert (result.status, result.attempts) == (JobStatus.FINISHED, 5)
    assert sorted(result.collected.rows("out")) == [1, 2]


def is_away(value: int) -> int:
    calls.append(value)
    if len(calls) < 5:
        try:
            raise ConnectionRefusedError("nobody listens")
        except OSError as error:
            raise RuntimeError("the service is away") from error
    return value


def test_an_outside_that_is_away_may_come_back() -> None:
    result = ran([1], is_away, "away")

    assert (result.status, result.attempts) == (JobStatus.FINISHED, 5)


def test_a_source_that_fails_in_the_same_way_is_tried_again() -> None:
    result = ran([Fail(), Fail(), Fail(), 1], lambda value: value, "source")

    assert (result.status, result.attempts) == (JobStatus.FINISHED, 4)


def test_a_run_that_goes_on_from_a_checkpoint_ends_too_when_it_completes_none_of_its_own() -> None:
    storage = "memory://resumed"
    env = tg.StreamEnvironment("job").checkpointing(every="10ms", storage=storage).restart_strategy("none")
    env.from_source(ScriptedSource([1, Checkpoint(), Fail()], int), uid="in").map(int, uid="map").collect(uid="out")
    assert run_in_process(env).status is JobStatus.FAILED

    calls.clear()
    env = tg.StreamEnvironment("job").checkpointing(every="10ms", storage=storage, resume="latest")
    env.from_source(ScriptedSource([1, Checkpoint(), 2], int), uid="in").map(always, uid="map").collect(uid="out")
    result = run_in_process(env)

    assert (result.status, result.attempts, calls) == (JobStatus.FAILED, 2, [2, 2])
