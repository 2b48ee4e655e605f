"""The public test kit, as a user's test would use it: failure stands in the input."""

from __future__ import annotations

from typing import Any

import pytest
from protocol_kit import environment, fresh_storage, logged_checkpoints

import tidegate as tg
import tidegate.testing
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import UserCodeFailed
from tidegate.testing import (
    Checkpoint,
    Fail,
    LedgerSink,
    ScriptedSource,
    Stuck,
    forget_ledgers,
    ledger,
    run_in_process,
)

closed: list[int] = []


class Total(tg.KeyedProcessFunction):
    total = tg.ValueState(int, default=0)

    def process_element(self, value: int, ctx: tg.Context) -> list[tuple[int, int]]:
        self.total.set(self.total.get() + value)
        return [(value, self.total.get())]

    def close(self) -> None:
        closed.append(1)
        raise OSError("too late to matter")


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()
    closed.clear()


def totals(script: list[Any], seed: int = 0, **settings: Any) -> tuple[tidegate.testing.RunResult, list[Any]]:
    env = environment(parallelism=1, **settings)
    stream = env.from_source(ScriptedSource(script, type=int), uid="script")
    total = stream.key_by(lambda value: 0, key_type=int).process(Total(), uid="total", returns=tuple[int, int])
    total.sink_to(LedgerSink("out"), uid="out")
    result = run_in_process(env, seed)
    return result, ledger("out").rows()


ANSWER = [(1, 1), (2, 3), (3, 6), (4, 10)]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "script",
    [
        [1, 2, 3, 4],
        [1, 2, Checkpoint(), 3, Fail(), 4],
        [Fail(), 1, 2, 3, 4],
        [1, 2, 3, 4, Fail()],
        [1, Checkpoint(), Fail(), 2, Fail(), Checkpoint(), 3, Fail(), 4, Checkpoint(), Fail()],
        [Checkpoint(), 1, Checkpoint(), 2, Checkpoint(), 3, Checkpoint(), 4, Checkpoint()],
    ],
    ids=str,
)
def test_each_record_counts_once_wherever_the_script_fails(script: list[Any], seed: int) -> None:
    result, rows = totals(script, seed)

    assert result.status is JobStatus.FINISHED
    assert result.attempts == 1 + script.count(Fail())
    assert rows == ANSWER


@pytest.mark.parametrize("most", [1, 3])
def test_a_checkpoint_line_waits_until_all_before_it_is_visible_after_a_failure(most: int) -> None:
    """The failure comes right after the checkpoint: with only the final commits, 1 and 2 would be read again."""
    storage = fresh_storage()
    env = environment(parallelism=1, storage=storage, max_concurrent=most)
    source = ScriptedSource([1, 2, Checkpoint(), Fail(), 3], type=int)
    env.restart_strategy("none")
    env.from_source(source, uid="script").sink_to(LedgerSink("out"), uid="out")
    result = run_in_process(env)

    assert isinstance(result.error, UserCodeFailed)
    assert "ScriptedFailure: the script says so" in str(result.error)
    assert logged_checkpoints(storage)
    env = environment(parallelism=1, storage=storage, resume="latest")
    env.from_source(source, uid="script").sink_to(LedgerSink("out"), uid="out")
    run_in_process(env)
    assert ledger("out").rows() == [1, 2, 3]
    first = min(ledger("out").committed)
    assert ledger("out").committed[first] in ([1], [1, 2])


def test_a_script_that_waits_for_a_checkpoint_that_never_comes_is_stuck() -> None:
    env = environment(parallelism=1, every=None)
    env.from_source(ScriptedSource([1, Checkpoint()]), uid="script").sink_to(LedgerSink("out"), uid="out")
    with pytest.raises(Stuck):
        tidegate.testing.InProcessRun(env, 0, max_actions=20_000).run()


def test_an_empty_script_ends_at_once() -> None:
    result, rows = totals([])
    assert (result.status, rows) == (JobStatus.FINISHED, [])


def test_functions_are_closed_once_and_trouble_in_close_changes_nothing_any_more() -> None:
    result, rows = totals([1, 2, 3, 4])

    assert (result.status, rows) == (JobStatus.FINISHED, ANSWER)
    assert closed == [1]


def test_a_source_knows_its_records() -> None:
    assert ScriptedSource([1, Checkpoint(), 2, Fail("why"), 3]).records == [1, 2, 3]


@pytest.mark.parametrize("name", tidegate.testing.__all__)
def test_every_name_of_the_kit_is_there(name: str) -> None:
    assert getattr(tidegate.testing, name) is not None
    assert name in dir(tidegate.testing)


def test_a_name_that_is_not_in_the_kit_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tidegate.testing.Nothing  # noqa: B018
