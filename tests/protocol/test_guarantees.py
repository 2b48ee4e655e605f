"""At-least-once is really weaker, and exactly-once is really not: the same jobs, seeds and crashes under each guarantee."""

from __future__ import annotations

from collections import Counter

import pytest
from protocol_kit import fresh_storage
from test_slot import Worker

import tidegate as tg
from tidegate.task.program import SlotSettings
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import run_in_process
from tidegate.wire.control import Start, SubtaskRestore

NUMBERS = 200
SEEDS = range(25)


class Counted(tg.KeyedProcessFunction):
    """Emits how often each number was counted into the state of its key."""

    seen = tg.MapState(int, int)

    def process_element(self, value: int, ctx: tg.Context) -> list[tuple[int, int]]:
        self.seen[value] = self.seen.get(value, 0) + 1
        return [(value, self.seen[value])]


def doubled(seed: int, **guarantee: object) -> int:
    """How many numbers were counted more than once by the state, in a job that loses a slot after a checkpoint."""
    forget_ledgers()
    env = tg.StreamEnvironment("guarantee", parallelism=2)
    env.checkpointing(every="10ms", storage=fresh_storage(), **guarantee)  # type: ignore[arg-type]
    env.restart_strategy("fixed-delay", attempts=10, delay="0s")
    numbers = env.from_collection(list(range(NUMBERS)), uid="numbers")
    counted = numbers.key_by(lambda value: value % 5, key_type=int).process(
        Counted(), uid="counted", returns=tuple[int, int]
    )
    counted.sink_to(LedgerSink("out"), uid="out")
    run_in_process(env, seed, [Crash("slot.after-commit", nth=2, times=2)])
    rows = ledger("out").rows()
    assert {value for value, _ in rows} == set(range(NUMBERS))  # never lost, under either guarantee
    return sum(1 for _, times in rows if times > 1)


# -- the case itself, forced ------------------------------------------------------------------------------------------


def counted_after_a_failure(exactly_once: bool) -> Counter[int]:
    """Records after an early barrier come before the late barrier; the slot dies; the sources continue after their
    positions. How often each record is in the state then."""
    settings = SlotSettings(exactly_once=exactly_once, inline_limit_bytes=0)
    first = Worker(settings=settings).start()
    first.get(first.a.records(1), first.a.barrier(1), first.a.records(2), first.b.records(3), first.b.barrier(1))
    first.uploads.run_all()
    file = first.acknowledged(1).snapshot.file

    again = Worker(settings=settings, store=first.store)
    subtasks = [SubtaskRestore("track", 0, old_parallelism=1), SubtaskRestore("out", 0, old_parallelism=1)]
    again.start(Start(1, subtasks, [file]))
    again.get(again.a.records(2), again.a.barrier(2), again.b.barrier(2))  # a stood after 1, b after 3
    again.uploads.run_all()
    return Counter(again.stored(2))


def test_a_record_behind_an_early_barrier_is_counted_twice_under_at_least_once_and_once_under_exactly_once() -> None:
    assert counted_after_a_failure(exactly_once=False) == {1: 1, 2: 2, 3: 1}
    assert counted_after_a_failure(exactly_once=True) == {1: 1, 2: 1, 3: 1}


# -- over whole jobs --------------------------------------------------------------------------------------------------


def test_at_least_once_counts_records_behind_an_early_barrier_twice_after_a_failure() -> None:
    assert sum(doubled(seed, mode="at-least-once") for seed in SEEDS) > 0


@pytest.mark.parametrize("guarantee", [{}, {"unaligned": True}, {"unaligned": True, "aligned_timeout": "2ms"}])
def test_exactly_once_counts_none_twice_in_the_same_runs(guarantee: dict[str, object]) -> None:
    assert sum(doubled(seed, **guarantee) for seed in SEEDS) == 0


def test_guarantees_that_exclude_each_other_are_refused() -> None:
    env = tg.StreamEnvironment("guarantee")
    for settings, words in [
        ({"mode": "at-least-once", "unaligned": True}, "unaligned checkpoints are exactly-once"),
        ({"unaligned": True, "max_concurrent": 2}, "one at a time"),
        ({"aligned_timeout": "1s"}, "set unaligned=True as well"),
        ({"mode": "twice"}, "is unknown"),
    ]:
        with pytest.raises(tg.ConfigurationError, match=words):
            env.checkpointing(every="1s", storage=fresh_storage(), **settings)  # type: ignore[arg-type]
