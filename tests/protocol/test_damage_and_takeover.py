"""What a job does with its history: damage is noticed, old checkpoints go, ids are never used again, and of two drivers
the newer one holds the job.
"""

from __future__ import annotations

from typing import Any

import pytest
from protocol_kit import (
    Numbered,
    change_byte,
    fresh_storage,
    log_records,
    logged_checkpoints,
)
from protocol_kit import assert_relayed_exactly as assert_exact
from protocol_kit import relayed_job as job
from protocol_kit import run_to_the_end as run

import tidegate as tg
from tidegate.connectors.contract import (
    ReaderContext,
    SourceReader,
)
from tidegate.coordinator.job import AttemptInputs, JobRun
from tidegate.coordinator.observing import JobStatus, JobView
from tidegate.errors import (
    CheckpointDamaged,
    ConfigurationError,
    Superseded,
)
from tidegate.ports import NoCrashPoints
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import LogKind
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.clock import ManualClock
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process
from tidegate.testing.stores import Corrupt, CutShort, FailCall, FlakyStore

SEEDS = range(3)


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


# -- damage, retention, rollback --------------------------------------------------------------------------------------


def interrupted(retained: int = 3, **settings: Any) -> str:
    """A job whose only driver died; its storage."""
    storage = fresh_storage()
    env = job(storage, retained=retained, **settings)
    with pytest.raises(AllDriversDied):
        InProcessRun(env, 4, [Crash("driver.after-log", nth=3)], max_drivers=1).run()
    assert logged_checkpoints(storage)[2:] != []
    return storage


def test_a_changed_metadata_file_is_noticed_and_no_older_checkpoint_is_taken_instead() -> None:
    storage = interrupted()
    newest = log_records(storage)[-1]
    assert newest.latest is not None
    change_byte(open_store(storage), newest.latest.metadata_path)

    with pytest.raises(CheckpointDamaged, match="its checksum does not match") as caught:
        run_in_process(job(storage, resume="latest"))
    older = [pointer.metadata_path for pointer in newest.retained[:-1]]
    assert all(path in str(caught.value) for path in older)
    assert log_records(storage)[-1] == newest


def test_a_missing_metadata_file_is_noticed() -> None:
    storage = interrupted()
    latest = log_records(storage)[-1].latest
    assert latest is not None
    open_store(storage).delete(latest.metadata_path)

    with pytest.raises(CheckpointDamaged, match="is missing"):
        run_in_process(job(storage, resume="latest"))


@pytest.mark.parametrize("how", ["changed", "cut short", "missing"])
def test_a_damaged_slot_file_ends_the_job_without_a_guess(how: str) -> None:
    storage = interrupted(limits={"inline_limit_bytes": 0})
    store = open_store(storage)
    latest = log_records(storage)[-1].latest
    assert latest is not None
    paths = [slot.file.path for slot in load_checkpoint(store, latest).slots if slot.file.sections]
    path = next(path for path in paths if path is not None)
    before = ledger("out").rows()
    match how:
        case "changed":
            change_byte(store, path, len(store.get(path)) // 2)
        case "cut short":
            store.put(path, store.get(path)[:-20])
        case "missing":
            store.delete(path)

    result = run_in_process(job(storage, resume="latest"))
    assert result.status is JobStatus.FAILED
    assert result.attempts == 1
    assert path in str(result.error)
    assert set(before) <= set(ledger("out").rows()), "what had been prepared may be committed, and no more"
    assert len(set(ledger("out").rows())) == len(ledger("out").rows())


@pytest.mark.parametrize("fault", [Corrupt("log/", at=150), CutShort("log/", to=100)])
def test_a_damaged_log_record_ends_the_job_without_a_guess(fault: Corrupt | CutShort) -> None:
    storage = interrupted()
    before = open_store(storage).list("job/")

    with pytest.raises(CheckpointDamaged):
        run_in_process(job(storage, resume="latest"), store=FlakyStore(open_store(storage), [fault]))
    assert open_store(storage).list("job/") == before


@pytest.mark.parametrize("retained", [1, 2, 4])
def test_the_newest_checkpoints_are_kept_and_the_files_of_the_others_are_gone(retained: int) -> None:
    storage = fresh_storage()
    source = Numbered(1, 5, 40, rows_per_poll=(1, 0, 0))
    run(job(storage, source, retained=retained, every="10ms", limits={"inline_limit_bytes": 0}), 1)
    last = log_records(storage)[-1]
    completed = logged_checkpoints(storage)
    assert len(completed) > retained

    assert [pointer.id for pointer in last.retained] == completed[-retained:]
    folders = {path.split("/")[1] for path in open_store(storage).list("job/") if "/chk-" in path}
    assert folders == {f"chk-{pointer.id}" for pointer in last.retained}


def test_after_a_rollback_no_id_is_used_again() -> None:
    storage = interrupted(retained=10)
    before, back = logged_checkpoints(storage), logged_checkpoints(storage)[0]
    committed_before = set(ledger("both").committed)

    run(job(storage, resume=f"chk-{back}", retained=10), 2)
    records = log_records(storage)
    rollback = records[len(before) + 1]
    assert rollback.kind is LogKind.GENERATION
    assert rollback.latest is not None
    assert rollback.latest.id == back
    assert min(logged_checkpoints(storage)[len(before) :]) > max(before)
    # An idempotent sink would skip what comes under a name that it knows.
    written_again = set(ledger("both").committed) - committed_before
    assert written_again
    assert min(int(name[:8]) for name in written_again) > max(before)


def test_a_rollback_continues_exactly_where_that_checkpoint_was() -> None:
    storage = interrupted(retained=10)
    first = logged_checkpoints(storage)[0]
    # What the outside world has from the epochs up to that checkpoint; the rest is what the user rolls back.
    for name in ("out", "both"):
        book = ledger(name)
        book.committed = {key: rows for key, rows in book.committed.items() if int(key[:8]) <= first}

    run(job(storage, resume=f"chk-{first}", retained=10), 2)
    assert_exact()


def test_a_checkpoint_that_is_not_retained_cannot_be_named() -> None:
    storage = interrupted(retained=1)
    with pytest.raises(ConfigurationError, match=r"no checkpoint 'chk-1' \(retained: chk-"):
        run_in_process(job(storage, resume="chk-1"))


# -- two drivers ------------------------------------------------------------------------------------------------------

takeover: list[Any] = []


class TakenOver(Numbered):
    """In the middle of its job another driver takes the job over and runs it to its end."""

    def reader(self, context: ReaderContext) -> SourceReader:
        reader = super().reader(context)
        poll = reader.poll

        def taken_over(deadline: float) -> Any:
            if len(takeover) == 1 and logged_checkpoints(takeover[0]):
                takeover.append("running")
                takeover.append(run_in_process(job(takeover[0], LONG, resume="latest"), seed=99).status)
            return poll(deadline)

        reader.poll = taken_over  # type: ignore[method-assign]
        return reader


LONG = TakenOver(1, 5, 40, rows_per_poll=(1, 0, 0))


@pytest.mark.property
@pytest.mark.parametrize("seed", SEEDS)
def test_a_driver_that_was_taken_over_ends_and_commits_nothing_more(seed: int) -> None:
    storage = fresh_storage()
    takeover[:] = [storage]
    result = run_in_process(job(storage, LONG, every="10ms"), seed)

    assert takeover[1:] == ["running", JobStatus.FINISHED]
    assert result.status is JobStatus.FAILED
    assert isinstance(result.error, Superseded)
    assert log_records(storage)[-1].finished
    assert_exact(LONG)


@pytest.mark.parametrize("stands", [True, False])
def test_a_driver_in_doubt_does_not_take_the_job_back_from_the_one_that_took_it_over(stands: bool) -> None:
    storage = fresh_storage()
    faults = [FailCall("create", call=2, after_effect=stands, times=1)]
    held = job_run(job(storage), FlakyStore(open_store(storage), faults))
    held.begin()
    assert isinstance(held.next_attempt(), AttemptInputs)
    with pytest.raises(tg.StorageError):
        held.recorder.log.append(held.recorder.log.canceled(1.0))  # any record: what matters is that it is in doubt
    other = job_run(job(storage, resume="latest"), open_store(storage))
    other.begin()
    before = log_records(storage)

    with pytest.raises(Superseded):
        held.next_attempt()
    assert log_records(storage) == before
    assert isinstance(other.next_attempt(), AttemptInputs)


def job_run(env: tg.StreamEnvironment, store: ObjectStore) -> JobRun:
    clock = ManualClock()
    return JobRun(
        name=env.name,
        graph=env._graph,
        default_parallelism=env.parallelism,
        config=env.config(),
        store=store,
        driver="test",
        view=JobView(),
        crash_points=NoCrashPoints(),
        clock=clock,
        wall_clock=clock,
        sleep=clock.sleep,
        jitter=lambda: 0.0,
    )
