"""Whole jobs in this process: the product's own slots, attempts and job, with crashes at every numbered step.

What came out is read from ledgers, which stand for an outside world, and compared with an answer worked out here.
"""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any

import pytest
from protocol_kit import RELAYED_SOURCE as SOURCE
from protocol_kit import (
    Numbered,
    assert_counted_once,
    counting_job,
    environment,
    fresh_storage,
    log_records,
    logged_checkpoints,
)
from protocol_kit import assert_relayed_exactly as assert_exact
from protocol_kit import relayed_job as job
from protocol_kit import run_to_the_end as run

import tidegate as tg
from matrices import in_turn
from tidegate.coordinator.observing import CheckpointStatus, JobStatus
from tidegate.errors import (
    JobFolderInUse,
)
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import ALL_POINTS, DRIVER_POINTS, SLOT_POINTS, START_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process

SEEDS = range(3)
DURING = ("slot.restored", "slot.before-commit", "slot.after-commit", "driver.triggered")


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_without_failures_every_record_comes_out_once(seed: int) -> None:
    run(job(), seed)

    assert_exact()


def test_a_run_reaches_every_crash_point() -> None:
    """So that none of the tests below waits for a place that the product does not pass."""
    assert run(job()).world.crash_points.reached == {*START_POINTS, *ALL_POINTS}


@pytest.mark.parametrize(("point", "zombies", "seed"), in_turn(ALL_POINTS, product([True, False], SEEDS)))
def test_a_crash_at_each_step_twice_in_a_row(point: str, zombies: bool, seed: int) -> None:
    times = 1 if point in ("driver.after-finished",) else 2  # nobody comes after FINISHED a second time
    run(job(), seed, Crash(point, times=times), zombies=zombies)

    assert_exact()


@pytest.mark.parametrize(
    ("point", "nth"), in_turn([p for p in ALL_POINTS if "finished" not in p and p != "slot.restored"], [5, 2])
)
def test_a_crash_at_a_later_time(point: str, nth: int) -> None:
    run(job(every="10ms", source=Numbered(1, 5, 60)), 3, Crash(point, nth=nth))

    assert_exact(Numbered(1, 5, 60))


def gets_there(point: str, layer: int) -> bool:
    if point == "source.before-barrier":
        return layer == 0
    return layer > 0 or not (point == "slot.aligned" or point.endswith("-commit"))


@pytest.mark.parametrize(("point", "layer"), [(p, k) for p in SLOT_POINTS for k in range(3) if gets_there(p, k)])
def test_a_crash_of_a_slot_in_each_layer(point: str, layer: int) -> None:
    run(job(), 5, Crash(point, layer=layer))

    assert_exact()


FIRST = ["slot.before-ack", "slot.before-commit", "driver.after-log", "driver.before-notify"]


@pytest.mark.parametrize(("during", "first", "seed"), in_turn(DURING, product(FIRST, SEEDS)))
def test_a_crash_and_two_more_during_the_recovery(during: str, first: str, seed: int) -> None:
    """At driver.after-log and before-notify prepared data waits in the checkpoint: the recovery must commit it."""
    began = Crash("slot.restored", nth=9 if during == "slot.restored" else 10_000, times=2)
    again = began if during == "slot.restored" else Crash(during, nth=2, times=2)
    result = InProcessRun(job(every="10ms"), seed, [Crash(first, nth=3), again]).run()

    assert result.status is JobStatus.FINISHED
    assert_exact()


def test_prepared_data_is_committed_by_the_recovery_before_anything_else_happens() -> None:
    storage = fresh_storage()
    with pytest.raises(AllDriversDied):
        InProcessRun(job(storage), 1, [Crash("driver.before-notify", nth=2)], max_drivers=1).run()
    store = open_store(storage)
    newest = log_records(storage)[-1]
    assert newest.latest is not None
    prepared = [
        committable
        for slot in load_checkpoint(store, newest.latest).slots
        for subtask in slot.subtasks
        for committable in subtask.committables
    ]
    uncommitted = len(ledger("out").staged) + len(ledger("both").staged)
    assert prepared
    assert uncommitted

    with pytest.raises(AllDriversDied):  # dies again before its first trigger: only the recovery has run
        InProcessRun(job(storage, resume="latest"), 1, [Crash("driver.triggered")], max_drivers=1).run()
    names = {committable.payload.decode().split('"name": "')[1].rstrip('"}') for committable in prepared}
    assert names <= ledger("out").committed.keys() | ledger("both").committed.keys()


@pytest.mark.parametrize("seed", range(8))
def test_crashes_everywhere_one_after_another(seed: int) -> None:
    crashes = [Crash(point, nth=2) for point in ALL_POINTS if "finished" not in point and point != "slot.restored"]
    result = InProcessRun(job(every="10ms"), seed, crashes, max_drivers=40).run()

    assert result.status is JobStatus.FINISHED
    assert_exact()


def test_the_same_seed_gives_the_same_run() -> None:
    def trace(seed: int) -> tuple[int, int, list[str], list[Any]]:
        forget_ledgers()
        storage = fresh_storage()
        started = run(job(storage), seed, Crash("slot.before-ack", nth=3), Crash("driver.notified"))
        kinds = [record.kind.value for record in log_records(storage)]
        return started.world.actions, started.attempts, kinds, ledger("both").rows()

    assert trace(11) == trace(11)
    assert trace(11) != trace(12)


# -- other parallelism ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4), (4, 3)])
def test_a_job_goes_on_at_another_parallelism(before: int, after: int, seed: int) -> None:
    storage = fresh_storage()
    env = counting_job(environment(storage=storage, parallelism=before), SOURCE, LedgerSink("out"))
    with pytest.raises(AllDriversDied):
        InProcessRun(env, seed, [Crash("driver.after-log", nth=2)], max_drivers=1).run()
    assert len(logged_checkpoints(storage)) == 2
    env = counting_job(environment(storage=storage, parallelism=after, resume="latest"), SOURCE, LedgerSink("out"))
    run(env, seed, Crash("slot.before-ack", nth=2))

    assert_counted_once(ledger("out").rows(), SOURCE)


# -- the end of input -------------------------------------------------------------------------------------------------

ends: Counter[tuple[str, int]] = Counter()


class Ending(tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> list[Any]:
        return [value]

    def end_input(self, ctx: tg.Context) -> list[Any]:
        ends[ctx.uid, ctx.subtask] += 1
        return [(-1, ctx.subtask)]


def ending_job(storage: str, source: Numbered, **settings: Any) -> tg.StreamEnvironment:
    env = environment(storage=storage, parallelism=3, **settings)
    stream = env.from_source(source, uid="source", returns=tuple[int, int])
    first = stream.process(Ending(), uid="first", returns=tuple[int, int])
    first.rebalance().process(Ending(), uid="second", returns=tuple[int, int], parallelism=2).sink_to(
        LedgerSink("out"), uid="out", parallelism=2
    )
    return env


ENDINGS = [(-1, 0), (-1, 1), (-1, 2), (-1, 0), (-1, 1)]


@pytest.mark.parametrize("splits", [0, 1, 2, 7])
def test_the_end_of_input_runs_once_in_every_subtask_also_in_those_that_read_nothing(splits: int) -> None:
    ends.clear()
    source = Numbered(1, splits, 4)
    run(ending_job(fresh_storage(), source))

    assert set(ends.values()) == {1}
    assert Counter(ledger("out").rows()) == Counter([*source.rows(), *ENDINGS])
    assert ledger("out").staged == {}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", [p for p in ALL_POINTS if p != "driver.after-finished"])
def test_what_the_end_of_input_emits_comes_out_once_whatever_dies(point: str, seed: int) -> None:
    source = Numbered(1, 4, 4)
    crashes = [Crash(point, nth=1 if "finish" in point else nth) for nth in (1, 3)]
    result = InProcessRun(ending_job(fresh_storage(), source, every="10ms"), seed, crashes).run()

    assert result.status is JobStatus.FINISHED
    assert Counter(ledger("out").rows()) == Counter([*source.rows(), *ENDINGS])


@pytest.mark.parametrize("point", ["driver.before-notify", "driver.before-finished", "slot.before-commit"])
def test_an_end_that_is_part_of_the_final_checkpoint_does_not_run_again(point: str) -> None:
    ends.clear()
    source = Numbered(1, 4, 4)
    env = ending_job(fresh_storage(), source, every=None)
    env.restart_strategy("fixed-delay")  # without periodic checkpoints the default is not to restart
    run(env, 2, Crash(point), zombies=False)

    assert set(ends.values()) == {1}
    assert Counter(ledger("out").rows()) == Counter([*source.rows(), *ENDINGS])


def test_a_finished_job_says_so_and_runs_nothing() -> None:
    storage = fresh_storage()
    run(job(storage))
    before = log_records(storage)

    with pytest.raises(JobFolderInUse, match="is FINISHED since"):
        run_in_process(job(storage, resume="latest"))
    with pytest.raises(JobFolderInUse, match="It is FINISHED: name a checkpoint to start from again"):
        run_in_process(job(storage))
    assert log_records(storage) == before
    assert_exact()


def test_a_job_without_checkpoints_still_commits_at_its_end() -> None:
    env = job(every=None)
    run(env)

    assert_exact()


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("held", [(0, 0), (300, 0), (0, 600), (300, 1 << 30)])
def test_small_inboxes_and_alignment_limits_slow_the_job_down_and_lose_nothing(
    held: tuple[int, int], seed: int
) -> None:
    limits = {"inbox_bytes": 1, "held_memory_bytes": held[0], "held_disk_bytes": held[1]}
    env = job(every="10ms", tolerable_failures=10_000, limits=limits)
    run(env, seed, Crash("slot.before-ack", nth=2))

    assert_exact()


def test_checkpoints_that_expire_are_given_up_and_lose_nothing() -> None:
    expired = 0
    for seed in range(6):
        forget_ledgers()
        env = job(every="10ms", timeout="200ms", max_concurrent=4, tolerable_failures=100_000)
        expired += run(env, seed).world.view.failed
        assert_exact()

    assert expired > 0


@pytest.mark.parametrize("point", DRIVER_POINTS[:6])
def test_several_checkpoints_at_a_time_and_a_driver_that_dies(point: str) -> None:
    run(job(every="10ms", max_concurrent=4), 6, Crash(point, nth=2))

    assert_exact()


def test_a_checkpoint_whose_files_are_gone_is_marked_so() -> None:
    storage = fresh_storage()
    env = environment(storage=storage, retained=2)
    result = run_in_process(counting_job(env, Numbered(1, 2, 200), LedgerSink("marked")))

    completed = [c for c in result.view.checkpoints.values() if c.status is CheckpointStatus.COMPLETED]
    kept = {pointer.id for pointer in log_records(storage)[-1].retained}
    assert len(completed) > 3
    assert len(kept) == 2
    assert {c.checkpoint for c in completed if not c.discarded} == kept
