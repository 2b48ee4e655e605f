"""Whole jobs in this process: the product's own slots, attempts and job, with crashes at every numbered step.

What came out is read from ledgers, which stand for an outside world, and compared with an answer worked out here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from protocol_kit import (
    COUNTED,
    CountEach,
    Numbered,
    assert_counted_once,
    change_byte,
    counting_job,
    environment,
    fresh_storage,
    log_records,
    logged_checkpoints,
)

import tidegate as tg
from tidegate.batch import Batch
from tidegate.connectors.contract import (
    CommitOutcome,
    Committer,
    ReaderContext,
    Sink,
    SinkWriter,
    SourceReader,
    WriterContext,
)
from tidegate.coordinator.job import AttemptInputs, JobRun
from tidegate.coordinator.observing import JobStatus, JobView
from tidegate.errors import (
    CheckpointDamaged,
    CommitLost,
    ConfigurationError,
    JobFolderInUse,
    Superseded,
    UserCodeFailed,
)
from tidegate.ids import CheckpointId
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import LogKind
from tidegate.storage.store import ObjectStore, open_store
from tidegate.task.ports import NoCrashPoints
from tidegate.testing.clock import ManualClock
from tidegate.testing.crash_points import ALL_POINTS, DRIVER_POINTS, SLOT_POINTS, Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, InProcessRun, run_in_process
from tidegate.testing.stores import Corrupt, CutShort, Fail, FlakyStore, NoSpace, RepeatedCreate

SEEDS = range(3)
SOURCE = Numbered(1, splits=5, per_split=16, rows_per_poll=(2, 1, 0))


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


def job(storage: str | None = None, source: Numbered = SOURCE, **settings: Any) -> tg.StreamEnvironment:
    """Two layers and a relay: source -> by key -> count -> out, and source -> copy, which skips a layer by a union."""
    env = environment(storage=storage, **settings)
    numbers = env.from_source(source, uid="source", returns=tuple[int, int])
    counted = numbers.key_by(lambda row: row[1] % 5, key_type=int).process(CountEach(), uid="count", returns=COUNTED)
    counted.sink_to(LedgerSink("out", flaky_commits=1), uid="out")
    keyed = counted.map(lambda row: (row[1], row[2]), returns=tuple[int, int])
    both = keyed.rebalance().union(numbers.rebalance())
    both.sink_to(LedgerSink("both"), uid="both", parallelism=3)
    return env


def assert_exact(source: Numbered = SOURCE) -> None:
    assert_counted_once(ledger("out").rows(), source)
    assert Counter(ledger("both").rows()) == Counter(source.rows() * 2)


def run(env: tg.StreamEnvironment, seed: int = 0, *crashes: Crash, **options: Any) -> InProcessRun:
    """Run to FINISHED; every crash must have happened as often as asked."""
    started = InProcessRun(env, seed, list(crashes), **options)
    result = started.run()
    assert result.status is JobStatus.FINISHED, result.error
    for crash in crashes:
        assert started._crash_points.done.get(crash) == crash.times, f"{crash} did not happen"
    return started


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_without_failures_every_record_comes_out_once(seed: int) -> None:
    run(job(), seed)

    assert_exact()


def test_a_run_reaches_every_crash_point() -> None:
    """So that none of the tests below waits for a place that the product does not pass."""
    assert run(job())._crash_points.reached == set(ALL_POINTS)


@pytest.mark.parametrize("zombies", [True, False], ids=["zombies", "clean"])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("point", ALL_POINTS)
def test_a_crash_at_each_step_twice_in_a_row(point: str, seed: int, zombies: bool) -> None:
    times = 1 if point in ("driver.after-finished",) else 2  # nobody comes behind FINISHED a second time
    run(job(), seed, Crash(point, times=times), zombies=zombies)

    assert_exact()


@pytest.mark.parametrize("nth", [2, 5])
@pytest.mark.parametrize("point", [p for p in ALL_POINTS if "finished" not in p and p != "slot.restored"])
def test_a_crash_at_a_later_time(point: str, nth: int) -> None:
    run(job(every="10ms", source=Numbered(1, 5, 60)), 3, Crash(point, nth=nth))

    assert_exact(Numbered(1, 5, 60))


@pytest.mark.parametrize("layer", [0, 1, 2])
@pytest.mark.parametrize("point", SLOT_POINTS)
def test_a_crash_of_a_slot_in_each_layer(point: str, layer: int) -> None:
    only_sources, only_sinks = point == "source.before-barrier", point.endswith("-commit")
    if (only_sources and layer != 0) or (point == "slot.aligned" and layer == 0) or (only_sinks and layer == 0):
        pytest.skip("this layer never gets there")
    run(job(), 5, Crash(point, layer=layer))

    assert_exact()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("during", ["slot.restored", "slot.before-commit", "slot.after-commit", "driver.triggered"])
@pytest.mark.parametrize("first", ["slot.before-ack", "slot.before-commit", "driver.after-log", "driver.before-notify"])
def test_a_crash_and_two_more_during_the_recovery(first: str, during: str, seed: int) -> None:
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
        return started._actions, started._attempts, kinds, ledger("both").rows()

    assert trace(11) == trace(11)
    assert trace(11) != trace(12)


# -- storage that fails -----------------------------------------------------------------------------------------------


def run_until_finished(storage: str, store: FlakyStore, seed: int = 0, **settings: Any) -> int:
    """As a user does: start again with resume="latest" when the driver gave up. How often it was started."""
    resume = None
    for number in range(1, 20):
        try:
            result = InProcessRun(job(storage, resume=resume, **settings), seed, store=store).run()
        except tg.StorageError:
            resume = "latest"
            continue
        if result.status is JobStatus.FINISHED:
            return number
        assert isinstance(result.error, tg.StorageError), result.error
        resume = "latest"
    raise AssertionError("the job never ended")


@pytest.mark.parametrize("after_effect", [False, True], ids=["fails", "answer-lost"])
@pytest.mark.parametrize("call", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("method", ["put", "get", "get_range", "create", "exists", "delete"])
def test_one_request_that_fails(method: str, call: int, after_effect: bool) -> None:
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), [Fail(method, call=call, after_effect=after_effect)])
    run_until_finished(storage, store, limits={"inline_limit_bytes": 0})

    assert_exact()


@pytest.mark.parametrize("after_effect", [False, True], ids=["fails", "answer-lost"])
@pytest.mark.parametrize("call", range(1, 7))
def test_a_log_that_cannot_be_written_for_longer_than_the_driver_tries(call: int, after_effect: bool) -> None:
    """Six in a row: whether the record stands is in doubt, and the next attempt finds out."""
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), [Fail("create", call=call, after_effect=after_effect, times=6)])
    run_until_finished(storage, store)

    assert_exact()
    kinds = [record.kind for record in log_records(storage)]
    assert kinds.count(LogKind.FINISHED) == 1


@pytest.mark.parametrize("call", range(1, 6))
def test_a_create_that_the_client_repeats_by_itself(call: int) -> None:
    storage = fresh_storage()
    run_until_finished(storage, FlakyStore(open_store(storage), [RepeatedCreate(call)]))

    assert_exact()


def test_finished_that_stands_in_the_log_though_nobody_was_told_is_finished() -> None:
    storage = fresh_storage()
    env = job(storage, every=None)
    env.restart_strategy("fixed-delay", attempts=5, delay="1s")
    store = FlakyStore(open_store(storage), [Fail("create", call=3, after_effect=True, times=5)])
    result = run_in_process(env, store=store)

    assert [record.kind.value for record in log_records(storage)] == ["generation", "checkpoint", "finished"]
    assert (result.status, result.error) == (JobStatus.FINISHED, None)
    assert_exact()


def test_a_storage_that_is_full_fails_checkpoints_and_the_job_goes_on_when_there_is_space_again() -> None:
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), [NoSpace(after_bytes=30_000)])
    env = job(storage, limits={"inline_limit_bytes": 0})
    env.restart_strategy("fixed-delay", attempts=2, delay="1s")
    result = run_in_process(env, store=store)
    assert result.status is JobStatus.FAILED

    result = run_in_process(job(storage, resume="latest"))
    assert result.status is JobStatus.FINISHED
    assert_exact()


# -- user code that fails ---------------------------------------------------------------------------------------------

trouble: dict[str, int] = {}  #: method to the number of its calls until it raises, once


class Trouble(RuntimeError): ...


def maybe(method: str) -> None:
    if method in trouble:
        trouble[method] -= 1
        if trouble[method] <= 0:
            del trouble[method]
            raise Trouble(f"in {method}")


class TroubledSource(Numbered):
    def discover_splits(self, parallelism: int) -> Any:
        maybe("discover_splits")
        return super().discover_splits(parallelism)

    def reader(self, context: ReaderContext) -> SourceReader:
        maybe("reader")
        reader = super().reader(context)
        poll, splits, notify = reader.poll, reader.splits, reader.notify_complete

        def troubled_poll(deadline: float) -> Any:
            maybe("poll")
            return poll(deadline)

        def troubled_splits() -> Any:
            maybe("splits")
            return splits()

        def troubled_notify(checkpoint: CheckpointId) -> None:
            maybe("notify_complete")
            notify(checkpoint)

        reader.poll, reader.splits, reader.notify_complete = troubled_poll, troubled_splits, troubled_notify  # type: ignore[method-assign]
        return reader


class TroubledCount(CountEach):
    def open(self, ctx: tg.Context) -> None:
        maybe("open")

    def process_element(self, value: tuple[int, int], ctx: tg.Context) -> Iterable[Any]:
        maybe("process_element")
        return super().process_element(value, ctx)

    def end_input(self, ctx: tg.Context) -> None:
        maybe("end_input")


class TroubledSink(LedgerSink):
    def writer(self, context: WriterContext) -> SinkWriter:
        maybe("writer")
        return _TroubledWriter(super().writer(context))

    def committer(self, context: WriterContext) -> Committer:
        return _TroubledCommitter(super().committer(context))


class _TroubledWriter(SinkWriter):
    def __init__(self, inner: SinkWriter) -> None:
        self._inner = inner

    def write(self, batch: Batch) -> None:
        maybe("write")
        self._inner.write(batch)

    def flush(self) -> None:
        maybe("flush")

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        maybe("prepare")
        return self._inner.prepare(checkpoint)

    def end_input(self) -> None:
        maybe("sink end_input")


class _TroubledCommitter(Committer):
    def __init__(self, inner: Committer) -> None:
        self._inner = inner

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        maybe("commit")
        return self._inner.commit(committables)


ENDS_ATTEMPT = {
    "discover_splits": "source",
    "poll": "source",
    "splits": "source",
    "notify_complete": "source",
    "open": "count",
    "process_element": "count",
    "end_input": "count",
    "write": "out",
    "flush": "out",
    "prepare": "out",
    "sink end_input": "out",
}


def troubled_job(method: str, call: int, **settings: Any) -> tuple[tg.StreamEnvironment, Numbered]:
    trouble.clear()
    trouble[method] = call
    env = environment(**settings)
    source = TroubledSource(1, 5, 16)
    counted = (
        env.from_source(source, uid="source", returns=tuple[int, int])
        .key_by(lambda row: row[1] % 5, key_type=int)
        .process(TroubledCount(), uid="count", returns=COUNTED)
    )
    counted.sink_to(TroubledSink("out"), uid="out")
    return env, source


@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("method", [*ENDS_ATTEMPT, "commit"])
def test_an_exception_in_each_of_the_users_methods_costs_an_attempt_and_no_record(method: str, call: int) -> None:
    once_an_attempt, once_a_subtask = ("discover_splits",), ("open", "end_input", "sink end_input")
    call = 1 if method in once_an_attempt else min(call, 2) if method in once_a_subtask else call
    env, source = troubled_job(method, call)
    result = run_in_process(env, seed=call)

    assert not trouble, f"{method} was not called so often"
    assert result.status is JobStatus.FINISHED
    assert_counted_once(ledger("out").rows(), source)
    assert result.attempts == (1 if method in ("commit", "discover_splits") else 2)


@pytest.mark.parametrize("method", ENDS_ATTEMPT)
def test_without_restarts_the_users_exception_is_what_the_job_ends_with(method: str) -> None:
    env, _ = troubled_job(method, 1)
    env.restart_strategy("none")
    result = run_in_process(env)

    assert result.status is JobStatus.FAILED
    assert isinstance(result.error, UserCodeFailed), result.error
    assert f"Trouble: in {method}" in str(result.error)
    assert result.error.uid == ENDS_ATTEMPT[method]
    assert "test_in_process_jobs.py" in result.error.cause
    if method in ("flush", "prepare", "splits"):
        assert result.error.checkpoint is None or result.error.checkpoint >= 1


def test_a_job_that_failed_goes_on_where_its_checkpoint_was() -> None:
    storage = fresh_storage()
    env, source = troubled_job("process_element", 60, storage=storage)
    env.restart_strategy("none")
    assert run_in_process(env).status is JobStatus.FAILED
    assert log_records(storage)[-1].kind is LogKind.FAILED
    before = len(ledger("out").rows())

    env, _ = troubled_job("nothing", 1, storage=storage, resume="latest")
    assert run_in_process(env).status is JobStatus.FINISHED
    assert before < len(ledger("out").rows())
    assert_counted_once(ledger("out").rows(), source)


class LosingSink(LedgerSink):
    """Loses what was prepared for the second commit that it is asked for."""

    def committer(self, context: WriterContext) -> Committer:
        return _LosingCommitter(self.name)


class _LosingCommitter(Committer):
    def __init__(self, name: str) -> None:
        self._name = name

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        ledger(self._name).commits_asked += 1
        return [
            CommitOutcome.LOST if ledger(self._name).commits_asked > 1 else CommitOutcome.DONE for _ in committables
        ]


def test_prepared_data_that_is_lost_ends_the_job_without_a_restart() -> None:
    result = run_in_process(counting_job(environment(), SOURCE, LosingSink("out")))

    assert result.status is JobStatus.FAILED
    assert isinstance(result.error, CommitLost)
    assert "'out'" in str(result.error)
    assert result.attempts == 1


class WatchingSink(Sink):
    """At each commit, looks whether what is committed stands in the log already."""

    def __init__(self, storage: str) -> None:
        self.storage = storage

    def writer(self, context: WriterContext) -> SinkWriter:
        return LedgerSink("watched").writer(context)

    def committer(self, context: WriterContext) -> Committer:
        return _WatchingCommitter(self.storage, LedgerSink("watched").committer(context))


class _WatchingCommitter(Committer):
    def __init__(self, storage: str, inner: Committer) -> None:
        self._storage = storage
        self._inner = inner

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        logged = max(logged_checkpoints(self._storage), default=0)
        for committable in committables:
            prepared_for = int(committable.decode().split('"name": "')[1][:8])
            if prepared_for > logged:
                too_early.append((prepared_for, logged))
        return self._inner.commit(committables)


too_early: list[tuple[int, int]] = []


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_committed_before_its_checkpoint_stands_in_the_log(seed: int) -> None:
    too_early.clear()
    storage = fresh_storage()
    env = counting_job(environment(storage=storage, max_concurrent=3, every="10ms"), SOURCE, WatchingSink(storage))
    run(env, seed, Crash("slot.before-commit", nth=2))

    assert too_early == []
    assert_counted_once(ledger("watched").rows(), SOURCE)


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
    with pytest.raises(JobFolderInUse, match='Continue it with resume="latest"'):
        run_in_process(job(storage))
    assert log_records(storage) == before
    assert_exact()


def test_a_job_without_checkpoints_still_commits_at_its_end() -> None:
    env = job(every=None)
    run(env)

    assert_exact()


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
    assert ledger("out").rows() == before


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
    faults = [Fail("create", call=2, after_effect=stands, times=1)]
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
        expired += run(env, seed)._view.failed
        assert_exact()

    assert expired > 0


@pytest.mark.parametrize("point", DRIVER_POINTS[:6])
def test_several_checkpoints_at_a_time_and_a_driver_that_dies(point: str) -> None:
    run(job(every="10ms", max_concurrent=4), 6, Crash(point, nth=2))

    assert_exact()
