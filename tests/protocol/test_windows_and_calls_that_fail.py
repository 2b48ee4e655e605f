"""Windows and calls that go wrong in mid-stream: each says one clear sentence, and nothing is lost or doubled by it.

The sentences word for word: tests/unit/test_mistakes.py. Here a job fails by them, and continues: by itself where the trouble
passes, or as the corrected program.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from protocol_kit import Numbered, environment, fresh_storage

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.testing import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import RunResult, run_in_process

ROW = tuple[int, int]
SOURCE = Numbered(0, 2, 30, (0, 0, 0, 3, 1))  #: silent at first, so that there are checkpoints before the first record
TIMES = tg.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp=lambda row: row[1] % 1000 * 100)
FAILURES = [0]  #: how many are still to come


class Doubtful(tg.EventTimeTrigger):
    """Raises now and then, and only a few times."""

    def on_event_time(self, time: int, window: tg.TimeWindow, ctx: Any, /) -> tg.TriggerResult:
        if FAILURES[0] and window.start >= 1000:
            FAILURES[0] -= 1
            raise ValueError(f"the trigger does not like {window.start}")
        return super().on_event_time(time, window, ctx)


def counted(
    storage: str, trigger: tg.Trigger | None = None, timed: bool = True, **settings: Any
) -> tg.StreamEnvironment:
    env = environment(storage=storage, parallelism=2, every="20ms", **settings)
    rows = env.from_source(SOURCE, uid="rows", returns=ROW)
    rows = rows.assign_timestamps_and_watermarks(TIMES) if timed else rows
    windows = rows.key_by(lambda row: row[1] % 3, key_type=int).window(tg.TumblingEventTimeWindows("500ms"))
    if trigger is not None:
        windows = windows.trigger(trigger)
    firsts = windows.reduce(lambda a, b: (a[0] + b[0] + 1, 0), tg.WithWindow(), uid="counts")
    firsts.sink_to(LedgerSink("out"), uid="out")
    return env


def expected() -> Counter[Any]:
    sizes = Counter((row[1] % 1000 * 100 // 500 * 500, row[1] % 3) for row in SOURCE.rows())
    return Counter((start, start + 500, key, size - 1) for (start, key), size in sizes.items())


def found() -> Counter[Any]:
    return Counter((start, end, key, row[0]) for start, end, key, row in ledger("out").rows())


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_an_exception_in_a_trigger_restarts_the_job_and_no_window_is_lost(backend: str, seed: int) -> None:
    forget_ledgers()
    FAILURES[0] = 3
    env = counted(fresh_storage(), Doubtful(), limits={"state_backend": backend})
    env.restart_strategy("fixed-delay", attempts=5, delay="0s")

    result = run_in_process(env, seed=seed)

    assert result.status is JobStatus.FINISHED, result.error
    assert FAILURES == [0]
    assert found() == expected()


def test_an_exception_in_a_trigger_that_comes_again_names_it_and_the_corrected_program_goes_on(seed: int) -> None:
    forget_ledgers()
    FAILURES[0] = 1000
    storage = fresh_storage()
    env = counted(storage, Doubtful())
    env.restart_strategy("none")

    failed = run_in_process(env, seed=seed)

    assert "ValueError: the trigger does not like 1000" in str(failed.error)
    assert "window reduce (uid 'counts')" in str(failed.error)
    assert not found() - expected()
    assert finished(counted(storage, resume="latest"), seed)


def test_windows_of_event_time_without_it_lose_nothing_until_the_program_is_corrected(seed: int) -> None:
    forget_ledgers()
    storage = fresh_storage()

    failed = run_in_process(counted(storage, timed=False), seed=seed)

    assert failed.status is JobStatus.FAILED
    assert "is a window of event time, and the records of this stream have none: call" in str(failed.error)
    assert not ledger("out").rows()
    assert finished(counted(storage, resume="latest"), seed)


def finished(env: tg.StreamEnvironment, seed: int) -> bool:
    result: RunResult = run_in_process(env, seed=seed)
    assert result.status is JobStatus.FINISHED, result.error
    assert found() == expected()
    return True


async def sometimes(row: Any) -> Any:
    if FAILURES[0] and row[1] % 7 == 3:
        FAILURES[0] -= 1
        await asyncio.Event().wait()
    return row


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_that_never_answer_fail_the_job_and_each_record_leaves_once(ordered: bool, seed: int) -> None:
    forget_ledgers()
    FAILURES[0] = 4
    env = environment(parallelism=2, every="20ms")
    env.restart_strategy("fixed-delay", attempts=10, delay="0s")
    rows = env.from_source(SOURCE, uid="rows", returns=ROW)
    answers = rows.async_map(sometimes, returns=ROW, ordered=ordered, capacity=3, timeout="1s", uid="ask")
    answers.sink_to(LedgerSink("out"), uid="out")

    result = run_in_process(env, seed=seed)

    assert result.status is JobStatus.FINISHED, result.error
    assert FAILURES == [0]
    assert Counter(map(tuple, ledger("out").rows())) == Counter(SOURCE.rows())
