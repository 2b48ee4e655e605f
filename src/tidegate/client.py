"""A running job, in the hands of the program that started it. Driver."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from typing import Any

from tidegate.connectors.collect_sink import CollectedResults
from tidegate.coordinator.execution import JobExecution
from tidegate.coordinator.observing import (
    CheckpointStatistics,
    JobEvent,
    JobStatus,
    JobView,
    Observer,
    StatusChanged,
)
from tidegate.coordinator.requested import RequestedCheckpoint
from tidegate.coordinator.savepoints import Rescaled, SavepointRequest, TakenSavepoint, savepoint_request
from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError, TimedOut
from tidegate.graph.plan import JobPlan, Parallelism
from tidegate.ids import SlotId
from tidegate.notebook import job_html
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.wire.control import SampleStacks
from tidegate.wire.handshake import Hello

LOOKS_EACH_S = 0.5  #: how long one wait is


class JobClient:
    """Status, wait, cancel, checkpoints, savepoints, results. `env.execute_async()` gives it.

    In the examples below `client` is that of a job without an end: its source "numbers" counts from 0 into the sink "all".
    """

    def __init__(
        self,
        name: str,
        execution: JobExecution,
        view: JobView,
        results: CollectedResults,
        savepoint_dir: str | None = None,
    ) -> None:
        self.name = name
        self.view = view  #: everything that displays show
        self.url: str | None = None  #: of the job's REST and dashboard; None: it has none
        self._execution = execution
        self._results = results
        self._savepoint_dir = savepoint_dir
        self._was_heard = False

    @property
    def has_unheard_failure(self) -> bool:
        """The job has failed, and nobody who waited for it was told.

        >>> client.has_unheard_failure
        False
        """
        return self.status is JobStatus.FAILED and not self._was_heard

    @property
    def status(self) -> JobStatus:
        """What the job does at this moment.

        >>> client.status is tg.JobStatus.RUNNING
        True
        """
        return self.view.status

    def wait(self, timeout: Duration | None = None, *, cancel_on_interrupt: bool = False) -> JobStatus:
        """Until the job ends. How it ended: FINISHED or CANCELED.

        :raises JobFailed: and its kin, when the job failed. :raises TimedOut: when it continues after so long.

        >>> client.cancel()
        >>> client.wait(timeout="1min").value
        'CANCELED'
        """
        limit = None if timeout is None else seconds(timeout, "wait(timeout)")
        try:
            has_ended = self._await_end(limit)
        except KeyboardInterrupt:
            if cancel_on_interrupt:
                self.cancel()
                self._await_end()
            raise
        if not has_ended:
            raise self._timed_out(limit)
        return self._how_it_ended()

    def _await_end(self, limit_s: float | None = None) -> bool:
        """In short waits: Python hears of an interrupt in its main thread alone, and one that the system has handed to another
        thread does not end a wait of the main thread's."""
        deadline = math.inf if limit_s is None else time.monotonic() + limit_s
        while not self._execution.end_event.wait(max(0.0, min(LOOKS_EACH_S, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
        return True

    def wait_until_running(self, timeout: Duration | None = None) -> JobStatus:
        """Until all slots are ready and records flow: RUNNING. A job that has ended by then has run, or never will: FINISHED or
        CANCELED.

        :raises JobFailed: and its kin, when the job failed. :raises TimedOut: when it does not run after so long.

        >>> client.wait_until_running(timeout="1min").value
        'RUNNING'
        """
        limit = None if timeout is None else seconds(timeout, "wait_until_running(timeout)")
        runs = threading.Event()

        def on(event: JobEvent) -> None:
            if isinstance(event, StatusChanged) and (event.status is JobStatus.RUNNING or event.status.is_terminal):
                runs.set()

        self.view.subscribe(on)
        try:
            status = self.status
            there = status is JobStatus.RUNNING or status.is_terminal
            if not there and not runs.wait(threading.TIMEOUT_MAX if limit is None else limit):
                raise self._timed_out(limit)
        finally:
            self.view.unsubscribe(on)
        if not self.status.is_terminal:
            return JobStatus.RUNNING
        self._await_end()  # what is left of the end is quick
        return self._how_it_ended()

    def _how_it_ended(self) -> JobStatus:
        self._was_heard = True
        ended = self._execution.ended
        if ended is not None and ended.error is not None:
            raise ended.error
        return self.status

    def _timed_out(self, after_s: float | None) -> TimedOut:
        status = self.status.value
        return TimedOut(
            f"job {self.name!r} is still {status} after {after_s:g} s. It continues: wait again, or cancel() it",
            job=self.name,
            status=status,
            after_s=after_s,
        )

    def cancel(
        self, reason: str = "", *, keep_checkpoints: bool = False, commits_within: Duration | None = None
    ) -> None:
        """End the job without another checkpoint. `wait` returns when it has ended.

        `reason` is noted in the job's history. `keep_checkpoints`: they stay, also where `delete_on_cancel` was set.
        `commits_within`: what completed checkpoints hold is committed first, if that takes no longer. What is not
        committed then is committed by the run that resumes from the checkpoint.

        >>> client.cancel("the month is over", keep_checkpoints=True)
        >>> client.wait().value
        'CANCELED'
        """
        limit = 0.0 if commits_within is None else seconds(commits_within, "cancel(commits_within)")
        self._execution.request_cancel(reason, keep_checkpoints, limit)

    def checkpoint(self) -> None:
        """Ask for a checkpoint now.

        >>> client.checkpoint()
        """
        self._execution.request_checkpoint()

    def checkpoint_now(self, timeout: Duration = "10min") -> int:
        """Take a checkpoint and wait until it is complete; gives its id.

        :raises CheckpointFailed: when it fails, or the job is not running, or not any more, or the time is over.

        >>> client.checkpoint_now(timeout="1min") > 0
        True
        """
        limit = seconds(timeout, "checkpoint_now(timeout)")
        return RequestedCheckpoint(self.view).take(self.checkpoint, limit)

    def subscribe(self, listener: Observer) -> None:
        """Call `listener` for every event of the job (tidegate.coordinator.observing), in the coordinator's thread: be quick.
        One that raises is not called again.

        >>> ended = []
        >>> client.subscribe(lambda event: ended.append(event) if isinstance(event, tg.StatusChanged) else None)
        >>> client.cancel()
        >>> client.wait() is ended[-1].status
        True
        """
        self.view.subscribe(listener)

    def unsubscribe(self, listener: Observer) -> None:
        """What `subscribe` was given is not called any more.

        >>> client.subscribe(print)
        >>> client.unsubscribe(print)
        """
        self.view.unsubscribe(listener)

    # -- savepoints. Each call has a form that returns at once, with a future: for servers ------------------------------

    def savepoint(
        self, directory: str | None = None, *, format: str = "canonical", timeout: Duration | None = None
    ) -> str:
        """Take a savepoint while the job runs; where it is: a new folder in `directory`. `resume` takes that path.

        "canonical" is Parquet and JSON, for every backend and reader; "native" is quicker, and only for Tidegate.

        :raises SavepointFailed: the job continues all the same.

        >>> path = client.savepoint("/tmp/savepoints")
        >>> tg.Savepoint.load(path).kind
        'savepoint'
        """
        path: str = self.request_savepoint(directory, format=format, timeout=timeout).result().path
        return path

    def request_savepoint(
        self, directory: str | None = None, *, format: str = "canonical", timeout: Duration | None = None
    ) -> Future[TakenSavepoint]:
        """As `savepoint`, and returns at once.

        >>> taken = client.request_savepoint("/tmp/savepoints")
        >>> taken.result().path.startswith("file:///")
        True
        """
        return self._ask(directory, format, None, timeout)

    def stop(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        format: str = "canonical",
        timeout: Duration | None = None,
    ) -> str:
        """Stop with a savepoint: sources stop, the savepoint is taken, sinks commit, the job ends FINISHED. Where it is.

        Whoever resumes from it continues exactly there. With `drain` the stream ends before: the last watermark passes,
        every timer fires, `end_input` runs. That is for a job that will not continue.

        :raises SavepointFailed: the job continues. (A drain that fails begins again from the last checkpoint.)
        :raises JobFailed: when the savepoint stands, but the job failed before its sinks had committed.

        >>> path = client.stop("/tmp/savepoints")
        >>> client.status.value
        'FINISHED'
        """
        path: str = self.request_stop(directory, drain=drain, format=format, timeout=timeout).result().path
        self.wait()
        return path

    def request_stop(
        self,
        directory: str | None = None,
        *,
        drain: bool = False,
        format: str = "canonical",
        timeout: Duration | None = None,
        reason: str = "",
    ) -> Future[TakenSavepoint]:
        """Answered when the savepoint stands; the job ends soon after (`wait`). `reason` is noted in the job's history.

        >>> stopped = client.request_stop("/tmp/savepoints", reason="a new release")
        >>> stopped.result().path.startswith("file:///"), client.wait().value
        (True, 'FINISHED')
        """
        self._execution.note_why(reason)
        return self._ask(directory, format, StopMode.DRAIN if drain else StopMode.SUSPEND, timeout)

    def rescale(self, parallelism: Parallelism, *, timeout: Duration | None = None) -> Rescaled:
        """Continue with another parallelism: a checkpoint with stopped sources, then a start from it. Says how long it took.

        A number is for every operator that has none of its own in the program; {"uid": number, ...} for these operators alone.

        :raises SavepointFailed: the job continues as it was. :raises NotEnoughSlots: it continues, too.

        >>> client.rescale(2).parallelism
        2
        """
        rescaled: Rescaled = self.request_rescale(parallelism, timeout=timeout).result()
        return rescaled

    def request_rescale(
        self, parallelism: Parallelism, *, timeout: Duration | None = None, reason: str = ""
    ) -> Future[Rescaled]:
        """As `rescale`, and returns at once. `reason` is shown in the job's log and timeline.

        >>> client.request_rescale({"numbers": 2}).result().parallelism
        {'numbers': 2}
        """
        for number in parallelism.values() if isinstance(parallelism, Mapping) else [parallelism]:
            if not isinstance(number, int) or number < 1:
                raise ConfigurationError(f"parallelism must be a positive integer, not {number!r}")
        limit = None if timeout is None else seconds(timeout, "rescale(timeout)")
        request = SavepointRequest(None, stop=StopMode.RESCALE, timeout_s=limit, parallelism=parallelism, reason=reason)
        self._execution.request_savepoint(request)
        return request.future

    def _ask(
        self, directory: str | None, format: str, stop: StopMode | None, timeout: Duration | None
    ) -> Future[TakenSavepoint]:
        limit = None if timeout is None else seconds(timeout, "timeout")
        request = savepoint_request(directory, self._savepoint_dir, format, stop, limit)
        self._execution.request_savepoint(request)
        return request.future

    def __repr__(self) -> str:
        return f"<job {self.name}: {self.status.value}{f', {self.url}' if self.url else ''}>"

    def _repr_html_(self) -> str:
        """As a notebook shows it."""
        return job_html(self.name, self.url, self.plan, self.view.snapshot())

    def checkpoints(self) -> list[CheckpointStatistics]:
        """The newest last.

        >>> newest = client.checkpoint_now()
        >>> client.checkpoints()[-1].status.value
        'COMPLETED'
        """
        return list(self.view.snapshot().checkpoints.values())

    def results(self, uid: str | None = None) -> list[Any]:
        """What a `collect()` sink has committed so far; `uid` may be left out when there is only one.

        A record is committed with the checkpoint that follows it: of a job without checkpoints all of them come at its end.

        >>> while len(client.results("all")) < 3:
        ...     newest = client.checkpoint_now()
        >>> client.results("all")[:3]
        [0, 1, 2]
        """
        if uid is None:
            uids = self._results.uids()
            if len(uids) != 1:
                raise ConfigurationError(
                    f"the job has {len(uids)} collect() sinks ({', '.join(uids) or 'none'}): say which, results(uid)"
                )
            (uid,) = uids
        return self._results.rows(uid)

    @property
    def plan(self) -> JobPlan:
        """Operators, chains, layers, as they run now.

        >>> [planned.uid for planned in client.plan.operators]
        ['numbers', 'all']
        """
        return self._execution.plan

    def sample_stacks(self, slots: Collection[SlotId], seconds: float, per_s: float) -> None:
        """Have slots say where their threads are, for so long; the events `SlotSampled` tell it. For the profiler."""
        self._execution.request_samples(slots, SampleStacks(seconds, per_s))

    def workers(self) -> dict[SlotId, Hello]:
        """The worker process of each slot: host, process id."""
        return self._execution.workers()
