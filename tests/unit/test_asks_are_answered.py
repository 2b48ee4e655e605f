"""Whoever asks a job for something hears an answer, however the job continues or ends. Every ask is crossed with every end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from execution_kit import DEADLINE_S, HoldAt, RunningJob, job_run, start_job

from tidegate.client import JobClient
from tidegate.config import RestartSettings
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.savepoints import Rescaled, TakenSavepoint
from tidegate.errors import CheckpointFailed, ConfigurationError, JobFailed, SavepointFailed, TidegateError, TimedOut
from tidegate.rest.operations import Kind, Operations
from tidegate.storage.memory_store import MemoryStore
from tidegate.wire.control import Acknowledge, Committed, Ended, Heartbeat, LogLine, Ready

ASKS: dict[str, Callable[[JobClient], Any]] = {
    "checkpoint": lambda client: client.checkpoint_now(),
    "savepoint": lambda client: client.savepoint(),
    "stop": lambda client: client.stop(),
    "drain": lambda client: client.stop(drain=True),
    "rescale": lambda client: client.rescale(3),
    "wait": lambda client: client.wait(),
}


def finish(job: RunningJob) -> None:
    job.cluster.say(Ended())
    job.cluster.release()


def fail(job: RunningJob) -> None:
    job.cluster.fail_a_slot()


def surprise(job: RunningJob) -> None:
    job.cluster.surprise_the_driver()


def cancel(job: RunningJob) -> None:
    job.client.cancel()


def supersede(job: RunningJob, folder: Path) -> None:
    """Another driver takes the job over; this one hears of it when it writes to the log."""
    job_run(folder, resume="latest").begin()
    job.client.checkpoint()
    job.cluster.release()


#: How the job ends, and in which status.
ENDS: dict[str, tuple[Callable[..., None], JobStatus]] = {
    "finishes": (finish, JobStatus.FINISHED),
    "fails": (fail, JobStatus.FAILED),
    "fails by a surprise in the driver": (surprise, JobStatus.FAILED),
    "is canceled": (cancel, JobStatus.CANCELED),
    "is superseded": (supersede, JobStatus.FAILED),
}


class Threads:
    """A thread for each call. Nobody waits for its end: an answer that never comes is what these tests look for."""

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        asked: Future[Any] = Future()

        def run() -> None:
            try:
                asked.set_result(call(*arguments))
            except BaseException as error:
                asked.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return asked


@pytest.fixture
def threads() -> Threads:
    return Threads()


def answer_to(asked: Future[Any]) -> Any:
    """What came back: a value, or the error. Never nothing."""
    error = asked.exception(DEADLINE_S)
    assert error is None or isinstance(error, TidegateError), repr(error)
    return asked.result() if error is None else error


def bring_about(end: str, job: RunningJob, folder: Path) -> None:
    act = ENDS[end][0]
    if act is supersede:
        act(job, folder)
    else:
        act(job)


@pytest.mark.property
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("ask", ASKS)
def test_an_ask_under_way_is_answered_when_the_job(ask: str, end: str, tmp_path: Path, threads: Threads) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    job.cluster.holds |= {Acknowledge, Committed}
    asked = threads.submit(ASKS[ask], job.client)
    if ask == "drain":
        job.client.wait_until_running()
    elif ask != "wait":
        job.cluster.wait_until_held(Acknowledge)

    bring_about(end, job, tmp_path)

    answer = answer_to(asked)
    if isinstance(answer, SavepointFailed):
        assert "continues" not in str(answer), "the job has ended"
    if isinstance(answer, Rescaled):  # it was quicker than the end of the input
        job.client.cancel()
        assert job.ended is JobStatus.CANCELED
    else:
        assert job.ended in (ENDS[end][1], JobStatus.FINISHED)
    job.close()


@pytest.mark.property
@pytest.mark.parametrize("end", ["fails", "fails by a surprise in the driver", "is canceled", "is superseded"])
def test_a_rescale_is_answered_when_the_job_ends_before_it_runs_again(
    end: str, tmp_path: Path, threads: Threads
) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    job.cluster.holds |= {Ready}
    operations = Operations()
    asked = threads.submit(job.client.rescale, 3)
    job.cluster.wait_until_held(Ready)  # its checkpoint is complete, and the slots of the new plan are starting
    assert not asked.done()

    if end == "is superseded":  # the new attempt fails, and the next one would read the log
        job_run(tmp_path, resume="latest").begin()
        fail(job)
    else:
        bring_about(end, job, tmp_path)

    answer = answer_to(asked)
    assert isinstance(answer, SavepointFailed)
    assert f"before it ran with the new parallelism the job has ended {ENDS[end][1].value}" in str(answer)
    assert job.ended is ENDS[end][1]
    trigger = operations.start(Kind.RESCALE, "job", None, lambda: {"late": job.client.rescale(2)})
    job.close()
    operations.wait_until_fetched(0.0)
    assert answer_to(threads.submit(until_completed, operations, trigger))["operation"]["failure-cause"]


def until_completed(operations: Operations, trigger: str) -> dict[str, Any]:
    while (status := operations.status(Kind.RESCALE, "job", trigger))["status"]["id"] != "COMPLETED":
        operations.wait_until_fetched(0.01)
    return status


@pytest.mark.property
@pytest.mark.parametrize("ask", ["checkpoint", "savepoint", "stop", "drain"])
def test_an_ask_under_way_is_refused_when_the_job_restarts(ask: str, tmp_path: Path, threads: Threads) -> None:
    job = start_job(tmp_path, restart=RestartSettings("fixed-delay", attempts=5, delay_s=0.0))
    job.until(JobStatus.RUNNING)
    job.cluster.holds |= {Acknowledge}
    asked = threads.submit(ASKS[ask], job.client)
    if ask != "drain":
        job.cluster.wait_until_held(Acknowledge)
        fail(job)
        assert isinstance(answer_to(asked), SavepointFailed | CheckpointFailed)
    job.close()
    assert asked.done() or isinstance(answer_to(asked), TidegateError)


STORING = ["driver.before-metadata", "driver.tables-stored", "driver.before-log", "driver.after-log"]


@pytest.mark.property
@pytest.mark.parametrize("ask", ["savepoint", "stop", "drain"])
@pytest.mark.parametrize("point", STORING)
@pytest.mark.parametrize("restarts", [True, False], ids=["restarts", "fails"])
def test_what_is_stored_when_the_attempt_fails_is_told_as_it_is(
    restarts: bool, point: str, ask: str, tmp_path: Path
) -> None:
    """The storing thread is the last to end, and what it does then counts: whoever is told that nothing was taken relies on
    a job that has stopped by it."""
    settings = {"restart": RestartSettings("fixed-delay", attempts=1, delay_s=0.0)} if restarts else {}
    job = start_job(tmp_path, **settings)
    job.until(JobStatus.RUNNING)
    job.job.recorder.crash_points = held = HoldAt(point)
    storing, entered = job.execution._storing, threading.Event()
    drain = storing.drain

    def watched_drain() -> None:
        entered.set()
        drain()

    storing.drain = watched_drain  # type: ignore[method-assign]
    future = job.client.request_savepoint() if ask == "savepoint" else job.client.request_stop(drain=ask == "drain")
    assert held.is_there.wait(DEADLINE_S)
    fail(job)
    assert entered.wait(DEADLINE_S)

    held.may_continue.set()

    answer = answer_to(future)
    if ask != "savepoint" and restarts:
        assert job.ended is JobStatus.FINISHED
    elif restarts:
        job.close()
    stands = {str(path.parent) for path in (tmp_path / "savepoints").rglob("_metadata.json")}
    told = {answer.path.removeprefix("file://")} if isinstance(answer, TakenSavepoint) else set()
    assert told == stands
    job.close()


def test_a_rescale_is_answered_when_the_job_runs_again_though_its_first_attempt_fails(
    tmp_path: Path, threads: Threads
) -> None:
    job = start_job(tmp_path, restart=RestartSettings("fixed-delay", attempts=5, delay_s=0.0))
    job.until(JobStatus.RUNNING)
    job.cluster.holds |= {Ready}
    asked = threads.submit(job.client.rescale, 3)
    job.cluster.wait_until_held(Ready)
    job.cluster.holds.clear()

    fail(job)

    assert isinstance(answer := answer_to(asked), Rescaled)
    assert answer.parallelism == 3
    job.close()


def test_a_checkpoint_that_was_asked_for_is_answered_when_the_job_is_rescaled(tmp_path: Path, threads: Threads) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    job.cluster.holds |= {Committed}
    rescaled = threads.submit(job.client.rescale, 3)
    job.cluster.wait_until_held(Committed)  # no checkpoint is triggered any more
    asked = threads.submit(job.client.checkpoint_now)
    until_asked(job)

    job.cluster.release()

    assert isinstance(answer_to(asked), CheckpointFailed)
    assert isinstance(answer_to(rescaled), Rescaled)
    job.close()


def until_asked(job: RunningJob) -> None:
    """Until the request has reached the scheduler: it is the next thing in the coordinator's queue."""
    attempt = job.execution._attempt
    assert attempt is not None
    while not attempt.scheduler.requested:
        job.execution.end_event.wait(0.001)


@pytest.mark.property
@pytest.mark.parametrize("ask", ASKS)
def test_an_ask_of_a_job_that_has_ended_is_answered(ask: str, tmp_path: Path, threads: Threads) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    job.client.cancel()
    assert job.ended is JobStatus.CANCELED

    answer = answer_to(threads.submit(ASKS[ask], job.client))

    assert answer is JobStatus.CANCELED or isinstance(answer, SavepointFailed | CheckpointFailed)
    job.close()


def test_whoever_takes_back_what_he_asked_for_does_not_end_the_job(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    job.cluster.holds |= {Acknowledge}
    asked = job.client.request_savepoint()
    job.cluster.wait_until_held(Acknowledge)

    assert not asked.cancel()
    job.cluster.release()

    assert "savepoint-job-1" in answer_to(asked).path
    assert job.client.checkpoint_now() > 0
    job.close()


def test_a_savepoint_in_a_folder_that_has_no_name_in_utf_8_is_refused_and_the_job_goes_on(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)

    with pytest.raises(ConfigurationError, match="not text that UTF-8 can write"):
        job.client.savepoint(f"file://{tmp_path}/caf\udce9")

    assert job.client.checkpoint_now() > 0
    job.close()


# -- waiting -------------------------------------------------------------------------------------------------------------


def test_a_wait_that_is_over_before_the_job_says_so(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)

    with pytest.raises(TimedOut, match=r"'job' is still RUNNING after 0.01 s") as raised:
        job.client.wait("10ms")

    assert isinstance(raised.value, TimeoutError)  # what users of concurrent.futures expect
    job.close()


def test_whoever_waits_until_the_job_runs_hears_when_it_does(tmp_path: Path, threads: Threads) -> None:
    job = start_job(tmp_path)
    job.cluster.holds |= {Ready}
    job.cluster.wait_until_held(Ready)
    asked = threads.submit(job.client.wait_until_running)
    with pytest.raises(TimedOut, match=r"'job' is still INITIALIZING after 0.01 s"):
        job.client.wait_until_running("10ms")

    job.cluster.release()

    assert answer_to(asked) is JobStatus.RUNNING
    assert job.client.wait_until_running() is JobStatus.RUNNING
    job.close()


@pytest.mark.parametrize(
    ("end", "answer"),
    [(fail, JobFailed), (surprise, JobFailed), (cancel, JobStatus.CANCELED)],
    ids=["a failure", "a surprise", "a cancel"],
)
def test_whoever_waits_until_the_job_runs_hears_that_it_will_not(
    end: Callable[[RunningJob], None], answer: Any, tmp_path: Path, threads: Threads
) -> None:
    job = start_job(tmp_path)
    job.cluster.holds |= {Ready}
    job.cluster.wait_until_held(Ready)
    asked = threads.submit(job.client.wait_until_running)

    end(job)

    got = answer_to(asked)
    assert got is answer or (isinstance(answer, type) and isinstance(got, answer))
    job.close()


def test_every_wait_takes_a_duration_and_refuses_a_bare_number(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)

    assert job.client.checkpoint_now("30s") == 1
    assert job.client.checkpoint_now(timeout=timedelta(seconds=30)) == 2
    for ask in (job.client.checkpoint_now, job.client.wait, job.client.wait_until_running):
        with pytest.raises(ConfigurationError, match=r'30 has no unit\. Write a string like "10s"'):
            ask(timeout=30)
    job.close()


# -- one operator at a time ----------------------------------------------------------------------------------------------


def parallelism_of(job: RunningJob) -> dict[str, int]:
    return {planned.uid: planned.parallelism for planned in job.client.plan.operators}


def test_operators_are_rescaled_by_their_uids_and_the_others_stay(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)

    job.client.rescale({"same": 3, "sink": 3})
    assert parallelism_of(job) == {"numbers": 2, "same": 3, "sink": 3}
    job.client.rescale({"numbers": 1})
    assert parallelism_of(job) == {"numbers": 1, "same": 3, "sink": 3}
    job.client.rescale(2)
    assert parallelism_of(job) == {"numbers": 2, "same": 2, "sink": 2}
    job.close()


def test_an_operator_that_is_not_there_is_not_rescaled_and_the_job_goes_on(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)

    with pytest.raises(ConfigurationError, match="the job has no operator 'others'; it has numbers, same, sink"):
        job.client.rescale({"others": 3})
    with pytest.raises(ConfigurationError, match="parallelism must be a positive integer, not 0"):
        job.client.rescale({"same": 0})
    assert job.client.checkpoint_now() == 1
    job.close()


# -- surprises in the storing thread ---------------------------------------------------------------------------------------


class Surprising(MemoryStore):
    """Raises what nobody has foreseen when the metadata of a checkpoint is written."""

    def put(self, path: str, data: Any) -> None:
        if path.endswith("_metadata.json"):
            raise TypeError("keys must be str, not tuple")
        super().put(path, data)


def test_a_surprise_when_a_checkpoint_is_stored_fails_the_attempt_and_is_named(
    tmp_path: Path, threads: Threads
) -> None:
    job = start_job(tmp_path, store=Surprising("memory://surprising"))
    job.until(JobStatus.RUNNING)

    asked = threads.submit(job.client.checkpoint_now)

    assert "storing checkpoint 1 failed unexpectedly: TypeError: keys must be str, not tuple" in str(answer_to(asked))
    assert job.ended is JobStatus.FAILED
    assert [checkpoint.status.value for checkpoint in job.client.checkpoints()] == ["FAILED"]
    job.close()


def test_a_thread_of_the_driver_that_is_told_to_leave_fails_the_attempt_too(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)

    def leave() -> None:
        raise SystemExit("told to leave")

    job.execution._storing.submit(leave)

    assert job.ended is JobStatus.FAILED
    assert "work on storage failed unexpectedly: SystemExit: told to leave" in str(job.execution.ended)
    job.close()


def test_what_cannot_be_noted_for_displays_ends_no_job(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)

    job.job.view.lines = None  # type: ignore[assignment]  # so that no line can be kept
    job.cluster.say(Heartbeat(0, 0, 0, 0, 0, logs=[LogLine(0.0, "INFO", "user", "a line")]))

    assert job.client.checkpoint_now() > 0
    job.close()
