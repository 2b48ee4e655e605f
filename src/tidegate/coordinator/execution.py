"""Runs a job's attempts on a cluster: the coordinator's thread, its queue, the control server, the gang. Driver.

Everything that happens (a slot's message, a lost connection, a stored checkpoint, the end of the Spark job, a user's call)
is put into one queue and handled by one thread, in order.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from tidegate.coordinator.attempt import Attempt, Timeouts
from tidegate.coordinator.job import AttemptInputs, JobEnded, JobRun
from tidegate.coordinator.job_loop import JobLoop
from tidegate.coordinator.leaving import LeavingWatch
from tidegate.coordinator.observing import JobLine, JobStatus, StatusChanged
from tidegate.coordinator.outcomes import AttemptEnded, AttemptFinished, AttemptRescaled, Outcome
from tidegate.coordinator.savepoints import SavepointDesk, SavepointRequest, refuse
from tidegate.coordinator.server import ControlServer
from tidegate.coordinator.storing import StoringThread
from tidegate.errors import (
    ConfigurationError,
    JobFailed,
    TidegateError,
)
from tidegate.graph.plan import JobPlan
from tidegate.ids import AttemptId, SlotId
from tidegate.ports import CrashPoints, GangEnd
from tidegate.shown import first_line, shown_error
from tidegate.wire.control import FromSlot, SampleStacks, ToDriver
from tidegate.wire.handshake import ControlAddress, Hello

if TYPE_CHECKING:
    from tidegate.wire.certificates import Certificate

log = logging.getLogger("tidegate.coordinator")

GANG_END_S = 20.0  #: how long the Spark job of an ended attempt may take to end before the next is started anyway
#: How long its tasks may hold their slots after that. Spark kills a Python worker that does not answer in 2 to 4 s.
LEAVE_S = 8.0
FINISH_S = 30.0


class RunningGang(Protocol):
    """The Spark job of one attempt."""

    def start(self) -> None: ...
    def cancel(self) -> None: ...
    def join(self, timeout_s: float) -> bool: ...
    def executors(self) -> list[str]:
        """On which tasks of the gang run; after the end: those that still hold its slots."""


class Cluster(Protocol):
    """What runs the slots; spark/cluster.py is one."""

    bind_address: str
    call_address: str

    def gang(
        self, attempt: AttemptId, coordinator: ControlAddress, on_end: Callable[[GangEnd, str], None]
    ) -> RunningGang:
        """`on_end(how, message)` is called from another thread."""

    def check_plan(self, plan: JobPlan) -> None:
        """:raises NotEnoughSlots: when the cluster is too small for it."""

    def use_plan(self, plan: JobPlan) -> None:
        """For the gangs from now on."""

    def leaving_executors(self) -> frozenset[str]:
        """That were told to go, and take no new tasks. `check_plan` does not count them."""

    def ask_for_others(self, executors: frozenset[str]) -> None:
        """As many executors as usual, and one more for each of these, which leave. Returns at once, and promises nothing."""

    def warm_up(self, done: Callable[[], None]) -> None:
        """Have executors that have never run a slot ready for some; returns at once. `done` is called from another thread."""

    def replace_executor(self, executor: str) -> None:
        """It does not answer: have it killed and replaced, where there is somebody who can."""


class JobExecution:
    """The shell around JobRun and Attempt."""

    def __init__(
        self,
        job: JobRun,
        cluster: Cluster,
        crash_points: CrashPoints,
        on_driver_payload: Callable[[ToDriver], None],
        certificate: Certificate | None = None,
    ) -> None:
        """`certificate`: the one that a job that encrypts was given; without it each attempt makes its own."""
        self._job = job
        self._given_certificate = certificate
        self._cluster = cluster
        self._crash_points = crash_points
        self._on_driver_payload = on_driver_payload
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._attempt: Attempt | None = None
        self._cancel_requested = False
        self._keep_checkpoints = False  #: by a cancel, although the settings delete them
        self._gang_running = False
        self._no_slots = False
        self._waiting_for_slots = False
        self._hellos: dict[SlotId, Hello] = {}
        self._leaving: list[tuple[RunningGang, float]] = []  #: gangs whose tasks may still hold slots, and since when
        self._desk = SavepointDesk()
        self._storing = StoringThread(lambda failure: self._to_attempt(lambda attempt: attempt.fail(failure)))
        self.ended: JobEnded | None = None
        self.end_event = threading.Event()
        self._ending = threading.Lock()

    # -- any thread -------------------------------------------------------------------------------------------------

    def request_cancel(self, why: str = "", keep: bool = False, commits_within_s: float = 0.0) -> None:
        """`why` is noted with the end; with `keep` the checkpoints stay, whatever the settings say. What is complete is
        committed first, if that takes no longer than `commits_within_s`."""
        self._post(lambda: self._cancel(why, keep, commits_within_s))

    def note_why(self, why: str) -> None:
        """Should the job end now, by a stop that is asked for next, this is noted with the end."""
        self._post(lambda: setattr(self._job.recorder, "why", why))

    def request_checkpoint(self) -> None:
        self._to_attempt(lambda attempt: attempt.request_checkpoint())

    def request_samples(self, slots: Collection[SlotId], order: SampleStacks) -> None:
        self._to_attempt(lambda attempt: attempt.request_samples(slots, order))

    @property
    def plan(self) -> JobPlan:
        """As it runs now."""
        return self._job.plan

    def request_savepoint(self, request: SavepointRequest) -> None:
        """Its future is answered in any case."""
        self._post(lambda: self._savepoint(request))
        if self.end_event.is_set():
            self._refuse_rest()

    def workers(self) -> dict[SlotId, Hello]:
        return dict(self._hellos)

    def run(self) -> None:
        """Until the job ends. The coordinator's thread."""
        try:
            self.ended = JobLoop(self._job, self, time.monotonic).run()
        except TidegateError as error:
            self.ended = self._fail(error)
        except BaseException as error:
            log.exception("the coordinator failed")
            cause = "".join(traceback.format_exception(error))
            self.ended = self._fail(JobFailed(f"the coordinator failed: {shown_error(error)}", cause=cause))
        finally:
            self._storing.close()
            self.end_event.set()
            self._refuse_rest()

    def _fail(self, error: TidegateError) -> JobEnded:
        """Whatever goes wrong now, the job has ended, and everybody hears it."""
        try:
            return self._job.fail(error)
        except BaseException:
            log.exception("the end of the job could not be noted")
            self._job.view.publish(StatusChanged(JobStatus.FAILED, first_line(error), time.time()))
            return JobEnded(JobStatus.FAILED, error)

    def _refuse_rest(self) -> None:
        """Nobody works on the queue any more, but whoever has asked waits for an answer."""
        with self._ending:
            self._handle_waiting()
            assert self.ended is not None
            how = f"the job has ended {self.ended.status.value}"
            self._desk.close(how if self.ended.error is None else f"{how}: {first_line(self.ended.error)}")

    # -- the coordinator's thread -----------------------------------------------------------------------------------

    @property
    def canceled(self) -> bool:
        return self._cancel_requested

    @property
    def keeps_checkpoints(self) -> bool:
        return self._keep_checkpoints

    def run_attempt(self, inputs: AttemptInputs) -> Outcome | None:
        attempt = self._run_attempt(inputs)
        if self._no_slots:
            return None
        if isinstance(attempt.outcome, AttemptRescaled) and not self._cancel_requested:
            self._desk.rescale_begins(attempt.rescale_request, attempt.halted_at)
        return attempt.outcome

    def pause(self, seconds: float, for_slots: bool) -> None:
        if not for_slots:
            self._desk.refuse_all("the attempt that was to take it has ended")
            self._cluster.use_plan(self._job.plan)
        elif not self._waiting_for_slots:
            # Not a failure: the dying tasks of the last attempt still hold slots, or an executor is being replaced.
            self._waiting_for_slots = True
            detail = "the cluster has too few free slots at the moment"
            self._job.view.publish(StatusChanged(JobStatus.WAITING, detail, time.time()))
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._cancel_requested:
            self._handle_next(deadline)

    def _run_attempt(self, inputs: AttemptInputs) -> Attempt:
        token = secrets.token_bytes(32)
        self._hellos.clear()
        self._no_slots = False
        certificate = self._certificate()
        server = ControlServer(self._cluster.bind_address, inputs.id, token, _Relay(self, inputs.id), certificate)
        attempt = Attempt(
            id=inputs.id,
            starts=inputs.starts,
            policy=self._job.config.policy(),
            next_checkpoint_id=inputs.next_checkpoint_id,
            shared=inputs.shared,
            latest_completed=inputs.latest_completed,
            links=server,
            recorder=self._job.recorder,
            storing=self._storing,
            post=self._post,
            view=self._job.view,
            crash_points=self._crash_points,
            clock=time.monotonic,
            wall_clock=time.time,
            on_driver_payload=self._on_driver_payload,
            timeouts=Timeouts(self._job.config.start_timeout_s, self._job.config.heartbeat_timeout_s),
            desk=self._desk,
            commit_only=inputs.commit_only,
        )
        self._attempt = attempt
        fingerprint = None if certificate is None else certificate.fingerprint
        address = ControlAddress(self._cluster.call_address, server.port, token, fingerprint)
        gang = self._cluster.gang(inputs.id, address, self._gang_ended_callback(inputs.id))
        watch = LeavingWatch(
            self._cluster, self._job.plan, self._job.view, self._savepoint, self._post, time.monotonic, time.time
        )
        self._gang_running = True
        gang.start()
        try:
            while attempt.outcome is None:
                self._handle_next(attempt.next_wake())
                if time.monotonic() >= attempt.next_wake() - 1e-4 or self._queue.empty():
                    attempt.tick(all_heard=self._queue.empty())
                self._replace_stuck_executors(attempt)
                watch.look(attempt, gang)
                if self._desk.rescaling is not None and attempt.running:
                    done = self._desk.rescaled(time.monotonic(), attempt.latest_completed)
                    self._say_gap("moved" if done.parallelism == {} else f"rescaled to {done.parallelism}", done.gap_s)
            if isinstance(attempt.outcome, AttemptFinished | AttemptRescaled):
                self._await_gang(FINISH_S)
        finally:
            self._job.used_ids_below(attempt.scheduler.next_id)
            if self._gang_running:
                attempt.cancel_slots()
                gang.cancel()
                self._await_gang(GANG_END_S)
            if self._gang_running:
                log.warning(
                    "tasks of attempt %s have not ended after %g s; continuing without them", inputs.id, GANG_END_S
                )
            if isinstance(attempt.outcome, AttemptEnded) and not self._no_slots:
                self._leaving.append((gang, time.monotonic()))
            server.close()
            self._storing.drain()
            self._handle_waiting()  # a savepoint that stands now is told before it is refused
            attempt.abandon_savepoints()
            self._attempt = None
        return attempt

    def _say_gap(self, what: str, gap_s: float) -> None:
        line = f"{what}; nothing was processed for {gap_s:.2f} s"
        log.info("%s", line)
        attempt = "" if self._attempt is None else str(self._attempt.id)
        self._job.view.log(JobLine(time.time(), "INFO", "tidegate.job", line, attempt))

    def _certificate(self) -> Certificate | None:
        """For one attempt's control connections."""
        if not self._job.config.encrypt:
            return None
        if self._given_certificate is not None:
            return self._given_certificate
        from tidegate.wire.certificates import made_certificate

        return made_certificate(["tidegate"])

    def _savepoint(self, request: SavepointRequest) -> None:
        if self._attempt is None or not self._attempt.running:
            refuse(request, f"the job is not running but {self._job.view.status.value}")
            return
        if request.parallelism is not None:
            try:
                self._cluster.check_plan(self._job.check_parallelism(request.parallelism))
            except ConfigurationError as error:
                request.future.set_exception(error)
                return
            except Exception as error:  # Spark could not be asked: no reason to end the job
                log.exception("whether the job can be rescaled could not be found out")
                refuse(request, shown_error(error))
                return
        self._attempt.request_savepoint(request)

    def _replace_stuck_executors(self, attempt: Attempt) -> None:
        """An executor that is frozen keeps the slots of the last attempt, so this one starts only in part, and would wait.

        Only then: with slots to spare the job runs, and a task that is slow to leave is not a reason to kill its neighbours.
        """
        if len(attempt.connected) == len(attempt.starts):
            self._leaving.clear()
        for gang, since in [entry for entry in self._leaving if time.monotonic() - entry[1] > LEAVE_S]:
            self._leaving.remove((gang, since))
            for executor in gang.executors():
                log.warning("executor %s has not let go of an ended attempt for %g s; replacing it", executor, LEAVE_S)
                # The cluster manager may take its time to answer.
                threading.Thread(
                    target=self._replace_executor, args=(executor,), name="tidegate-replacing", daemon=True
                ).start()

    def _replace_executor(self, executor: str) -> None:
        try:
            self._cluster.replace_executor(executor)
        except Exception:  # the attempt fails for want of slots, and tries again
            log.exception("executor %s could not be replaced", executor)

    def _await_gang(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while self._gang_running and time.monotonic() < deadline:
            self._handle_next(deadline)

    def _handle_next(self, deadline: float) -> None:
        try:
            self._queue.get(timeout=max(0.0, min(deadline - time.monotonic(), 1.0)))()
        except queue.Empty:
            return

    def _handle_waiting(self) -> None:
        """All that was said by now. The attempt, or the job, is over: no failure changes that."""
        while not self._queue.empty():
            try:
                self._queue.get()()
            except Exception:
                log.exception("what was still to be handled at the end failed")

    def _to_attempt(self, action: Callable[[Attempt], None]) -> None:
        """In the coordinator's thread, if an attempt runs by then."""
        self._post(lambda: None if self._attempt is None else action(self._attempt))

    def _post(self, action: Callable[[], object]) -> None:
        self._queue.put(action)  # type: ignore[arg-type]

    def _cancel(self, why: str, keep: bool, commits_within_s: float) -> None:
        self._cancel_requested = True
        self._job.recorder.why = why
        self._keep_checkpoints = keep
        if self._attempt is not None:
            self._attempt.end_when_committed(commits_within_s)

    # -- from the gang and the control server -------------------------------------------------------------------------

    def _gang_ended_callback(self, attempt: AttemptId) -> Callable[[GangEnd, str], None]:
        return lambda end, message: self._post(lambda: self._gang_ended(attempt, end, message))

    def _gang_ended(self, id: AttemptId, end: GangEnd, message: str) -> None:
        if self._attempt is None or self._attempt.id != id:
            return  # the tasks of an attempt that we did not wait for
        self._gang_running = False
        if self._attempt.outcome is None:
            self._no_slots = end is GangEnd.NO_SLOTS
            match end:
                case GangEnd.COMPLETED:
                    what = "the Spark job ended before the stream did"
                case GangEnd.NO_PYTHON | GangEnd.NO_SPARK:
                    what = message
                case GangEnd.FAILED | GangEnd.NO_SLOTS:
                    what = f"the Spark job failed: {message}"
            self._attempt.fail(JobFailed(what), permanent=end.is_final)

    def slot_connected(self, id: AttemptId, slot: SlotId, hello: Hello) -> None:
        if self._attempt is not None and self._attempt.id == id:
            self._waiting_for_slots = False
            self._hellos[slot] = hello
            self._attempt.slot_connected(slot)

    def slot_said(self, id: AttemptId, slot: SlotId, message: FromSlot) -> None:
        if self._attempt is not None and self._attempt.id == id:
            self._attempt.slot_said(slot, message)

    def slot_lost(self, id: AttemptId, slot: SlotId, reason: str) -> None:
        if self._attempt is not None and self._attempt.id == id:
            self._attempt.slot_lost(slot, reason)


class _Relay:
    """From the control server's thread to the coordinator's."""

    def __init__(self, execution: JobExecution, attempt: AttemptId) -> None:
        self._execution = execution
        self._attempt = attempt

    def connected(self, slot: SlotId, hello: Hello) -> None:
        self._execution._post(lambda: self._execution.slot_connected(self._attempt, slot, hello))

    def said(self, slot: SlotId, message: FromSlot) -> None:
        self._execution._post(lambda: self._execution.slot_said(self._attempt, slot, message))

    def lost(self, slot: SlotId, reason: str) -> None:
        self._execution._post(lambda: self._execution.slot_lost(self._attempt, slot, reason))
