"""Savepoints, stops and rescales of whole jobs in this process: taken, restored elsewhere, and killed at every step."""

from __future__ import annotations

from typing import Any

import pytest
from protocol_kit import (
    Numbered,
    assert_counted_once,
    counting_job,
    environment,
    fresh_storage,
    log_records,
)

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.savepoints import SavepointRequest, savepoint_request
from tidegate.errors import SavepointFailed
from tidegate.protocol.checkpointing import StopMode
from tidegate.storage.log import LogKind
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import ALL_POINTS, SAVEPOINT_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, Ask, InProcessRun

SOURCE = Numbered(1, splits=5, per_split=50, rows_per_poll=(2, 1, 0))


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


LONG_SOURCE = Numbered(1, splits=5, per_split=200, rows_per_poll=(2, 1, 0))


def job(storage: str | None = None, source: Numbered = SOURCE, **settings: Any) -> tg.StreamEnvironment:
    return counting_job(environment(storage=storage, **settings), source, LedgerSink("out"))


def request(stop: StopMode | None = None, format: str = "canonical", directory: str | None = None) -> SavepointRequest:
    return savepoint_request(directory or fresh_storage() + "/savepoints", None, format, stop)


def run(env: tg.StreamEnvironment, *asks: Ask, seed: int = 0, crashes: tuple[Crash, ...] = ()) -> InProcessRun:
    started = InProcessRun(env, seed, list(crashes), asks=asks)
    result = started.run()
    assert result.status is JobStatus.FINISHED, result.error
    return started


@pytest.mark.parametrize("format", ["canonical", "native"])
@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_suspended_job_goes_on_exactly_there(parallelism: int, format: str) -> None:
    ask = Ask(request(StopMode.SUSPEND, format), after_checkpoints=2)
    run(job(), ask)
    first = len(ledger("out").rows())
    assert 0 < first < len(SOURCE.numbers())

    run(job(resume=ask.outcome.path, parallelism=parallelism))

    assert_counted_once(ledger("out").rows(), SOURCE)


def assert_goes_on_behind(path: str, storage: str) -> None:
    """The same job again, from a savepoint that it has passed long ago: everything behind it is counted once more."""
    before = set(ledger("out").committed)

    run(job(storage, resume=path))

    again = [row for name, rows in ledger("out").committed.items() if name not in before for row in rows]
    assert again
    assert not [row for row in again if row[4]], "state knows a record that lies behind the savepoint"
    for key in range(5):
        counts = sorted(row[3] for row in again if row[0] == key)
        total = len(SOURCE.numbers()) // 5
        assert counts == list(range(total - len(counts) + 1, total + 1))


@pytest.mark.parametrize("format", ["canonical", "native"])
def test_a_job_goes_on_behind_a_savepoint_and_can_come_back_to_it(format: str) -> None:
    storage = fresh_storage()
    ask = Ask(request(format=format), after_checkpoints=2)
    run(job(storage), ask)
    assert_counted_once(ledger("out").rows(), SOURCE)

    assert_goes_on_behind(ask.outcome.path, storage)


def test_a_savepoint_is_no_checkpoint_of_the_log_and_stays_when_checkpoints_go() -> None:
    storage = fresh_storage()
    ask = Ask(request(), after_checkpoints=1)
    run(job(storage), ask)

    assert ask.outcome.checkpoint not in [r.latest.id for r in log_records(storage) if r.latest is not None]
    assert open_store(ask.outcome.path).exists("_metadata.json")


@pytest.mark.parametrize("stop", [StopMode.SUSPEND, StopMode.DRAIN])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("point", [*ALL_POINTS])
def test_a_crash_at_each_step_of_a_stop_leaves_a_whole_job_or_a_whole_savepoint(
    point: str, seed: int, stop: StopMode
) -> None:
    """The first checkpoint passes the points as well, so the crash is at the second time each process gets there."""
    storage = fresh_storage()
    ask = Ask(request(stop), after_checkpoints=1)
    run(
        job(storage),
        ask,
        seed=seed,
        crashes=(Crash(point, nth=1 if "finished" in point or point == "slot.restored" else 2),),
    )

    records = log_records(storage)
    stood = [record for record in records if record.kind is LogKind.SAVEPOINT_STOP]
    if stood:
        assert records[-1].kind is LogKind.FINISHED
        assert stood[0].latest is not None
        forget = len(ledger("out").rows())
        assert forget < len(SOURCE.numbers()) or stop is StopMode.SUSPEND
        run(job(resume=stood[0].latest.metadata_path))
    else:  # it was asked of an attempt that died; the next one ran to the end of its input
        with pytest.raises(SavepointFailed):
            ask.outcome  # noqa: B018
    assert_counted_once(ledger("out").rows(), SOURCE)


@pytest.mark.parametrize("point", [*ALL_POINTS, *SAVEPOINT_POINTS])
def test_a_crash_at_each_step_of_a_savepoint_harms_neither(point: str) -> None:
    storage = fresh_storage()
    ask = Ask(request(), after_checkpoints=1)
    nth = 1 if "finished" in point or point in ("slot.restored", *SAVEPOINT_POINTS) else 2
    run(job(storage), ask, crashes=(Crash(point, nth=nth),))

    assert_counted_once(ledger("out").rows(), SOURCE)
    try:
        path = ask.outcome.path
    except SavepointFailed:
        return
    assert_goes_on_behind(path, storage)


@pytest.mark.parametrize(("old", "new"), [(2, 3), (3, 2), (4, 1), (1, 5)])
def test_a_running_job_is_rescaled(old: int, new: int) -> None:
    ask = Ask(SavepointRequest(None, stop=StopMode.RESCALE, parallelism=new), after_checkpoints=1)
    started = run(job(parallelism=old), ask)

    assert ask.outcome.parallelism == new
    assert started._attempts == 2
    assert_counted_once(ledger("out").rows(), SOURCE)


def test_a_rollback_says_what_was_committed_since_and_a_reader_sees_the_new_epochs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = fresh_storage()
    with pytest.raises(AllDriversDied):
        InProcessRun(
            job(storage, LONG_SOURCE, every="10ms", retained=100), 3, [Crash("driver.notified", nth=10)], max_drivers=1
        ).run()
    newest = log_records(storage)[-1]
    assert newest.latest is not None
    assert newest.latest.id >= 10
    before = dict(ledger("out").committed)

    run(job(storage, LONG_SOURCE, retained=100, resume="chk-5"))

    assert "goes back to checkpoint 5, but has completed checkpoint" in caplog.text
    ids = [record.latest.id for record in log_records(storage) if record.kind is LogKind.CHECKPOINT and record.latest]
    assert len(ids) == len(set(ids)), "an id was used twice"
    kept = [row for name, rows in before.items() if int(name.split("-")[0]) <= 5 for row in rows]
    new = [row for name, rows in ledger("out").committed.items() if name not in before for row in rows]
    assert_counted_once([*kept, *new], LONG_SOURCE)


def test_what_a_job_was_started_from_stays_unless_it_is_claimed() -> None:
    for claim in (False, True):
        forget_ledgers()
        ask = Ask(request(StopMode.SUSPEND), after_checkpoints=1)
        run(job(), ask)
        path = ask.outcome.path

        run(job(name="next", resume=path, claim=claim))

        assert open_store(path).exists("_metadata.json") is not claim
        assert bool(open_store(path).list("")) is not claim


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_job_survives_the_deletion_of_a_foreign_checkpoint_that_it_was_started_from(backend: str) -> None:
    first, second = fresh_storage(), fresh_storage()
    limits = {"state_backend": backend, "incremental": True}
    with pytest.raises(AllDriversDied):
        InProcessRun(job(first, limits=limits), 1, [Crash("driver.notified", nth=3)], max_drivers=1).run()
    newest = log_records(first)[-1].latest
    assert newest is not None
    path = open_store(first).uri(newest.metadata_path)
    with pytest.raises(AllDriversDied):
        InProcessRun(
            job(second, name="next", resume=path, limits=limits), 1, [Crash("driver.notified", nth=2)], max_drivers=1
        ).run()
    store = open_store(first)
    store.delete_many(store.list(""))

    run(job(second, name="next", resume="latest", limits=limits))

    assert_counted_once(ledger("out").rows(), SOURCE)
