"""Jobs whose storage or whose user's code fails, in each method and at each time: an attempt is lost, never a record."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from protocol_kit import (
    COUNTED,
    CountEach,
    Numbered,
    assert_counted_once,
    counting_job,
    environment,
    fresh_storage,
    log_records,
    logged_checkpoints,
)
from protocol_kit import RELAYED_SOURCE as SOURCE
from protocol_kit import assert_relayed_exactly as assert_exact
from protocol_kit import relayed_job as job
from protocol_kit import run_to_the_end as run

import tidegate as tg
from matrices import in_turn
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
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.recording import LOG_TRIES
from tidegate.errors import (
    CommitLost,
    StorageError,
    UserCodeFailed,
)
from tidegate.ids import CheckpointId
from tidegate.storage.log import LogKind
from tidegate.storage.store import Data, ObjectStore, open_store
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import InProcessRun, run_in_process
from tidegate.testing.stores import FailCall, FlakyStore, NoSpace, RepeatedCreate

SEEDS = range(3)


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


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


@pytest.mark.parametrize(
    ("method", "call", "after_effect"),
    in_turn(product(["put", "get", "get_range", "create", "exists", "delete"], [1, 2, 3, 5, 8]), [False, True]),
)
def test_one_request_that_fails(method: str, call: int, after_effect: bool) -> None:
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), [FailCall(method, call=call, after_effect=after_effect)])
    run_until_finished(storage, store, limits={"inline_limit_bytes": 0})

    assert_exact()


@pytest.mark.parametrize("after_effect", [False, True], ids=["fails", "answer-lost"])
@pytest.mark.parametrize("call", range(1, 7))
def test_a_log_that_cannot_be_written_for_longer_than_the_driver_tries(call: int, after_effect: bool) -> None:
    """Six in a row: whether the record stands is in doubt, and the next attempt finds out."""
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), [FailCall("create", call=call, after_effect=after_effect, times=6)])
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
    store = FlakyStore(open_store(storage), [FailCall("create", call=3, after_effect=True, times=5)])
    result = run_in_process(env, store=store)

    assert [record.kind.value for record in log_records(storage)] == ["generation", "checkpoint", "finished"]
    assert (result.status, result.error) == (JobStatus.FINISHED, None)
    assert_exact()


class LateStore(FlakyStore):
    """Nobody answers those who would create the `nth` log record; when they have given up, it is created all the same, right
    before the next call of `before`."""

    def __init__(self, inner: ObjectStore, nth: int, before: str) -> None:
        super().__init__(inner, [])
        self._nth, self._call = nth, before
        self._late: tuple[str, bytes] | None = None
        self._tries = LOG_TRIES
        self._begun: list[str] = []

    def _comes(self, call: str) -> None:
        if call == self._call and self._late is not None and not self._tries:
            self._inner.create(*self._late)
            self._late = None

    def create(self, path: str, data: Data) -> bool:
        self._comes("create")
        if "/log/" in path:
            self._begun += [path] if path not in self._begun else []
            if self._tries and len(self._begun) >= self._nth and path == self._begun[self._nth - 1]:
                self._late, self._tries = (path, bytes(memoryview(data))), self._tries - 1
                raise StorageError("nobody answers")
        return super().create(path, data)

    def exists(self, path: str) -> bool:
        self._comes("exists")
        return super().exists(path)

    def list(self, prefix: str) -> builtins.list[str]:
        self._comes("list")
        return super().list(prefix)

    def get(self, path: str) -> bytes:
        self._comes("get")
        return super().get(path)


@pytest.mark.parametrize("before", ["create", "exists", "list", "get"])
@pytest.mark.parametrize("nth", [2, 3, 4])
def test_a_record_that_comes_when_nobody_waits_for_it_any_more(nth: int, before: str) -> None:
    storage = fresh_storage()
    env = job(storage, every="40ms")
    env.restart_strategy("fixed-delay", attempts=5, delay="1s")
    result = run_in_process(env, store=LateStore(open_store(storage), nth, before))

    assert (result.status, result.error, result.drivers) == (JobStatus.FINISHED, None, 1)
    assert_exact()


@pytest.mark.parametrize("before", ["create", "exists", "list", "get"])
def test_the_last_record_that_comes_when_nobody_waits_for_it_any_more(before: str) -> None:
    """The job has finished, and says so, whenever its driver learns of it."""
    storage = fresh_storage()
    env = job(storage, every=None)
    env.restart_strategy("fixed-delay", attempts=5, delay="1s")
    result = run_in_process(env, store=LateStore(open_store(storage), 3, before))

    assert (result.status, result.error, result.drivers) == (JobStatus.FINISHED, None, 1)
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
    if method == "splits":  # in a snapshot it would decline the checkpoint
        env._config = replace(env._config, interval_s=None)
    result = run_in_process(env)

    assert result.status is JobStatus.FAILED
    assert isinstance(result.error, UserCodeFailed), result.error
    assert f"Trouble: in {method}" in str(result.error)
    assert result.error.uid == ENDS_ATTEMPT[method]
    assert "test_failing_storage_and_user_code.py" in result.error.cause
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
    """At each commit, looks whether what is committed is in the log already."""

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
