"""One attempt, seen from the driver: slots report in, checkpoints run, until it finishes or fails. One thread.

The protocol decides (protocol/checkpointing.py); this carries the decisions out, and only then tells whoever looks. The same
class runs under Spark (coordinator/execution.py) and in the in-process runner. Steps numbered as in docs/architecture.md:

    1.  trigger: every slot is told         5a. all acknowledged: write the metadata
    5b. write the log record: from here the checkpoint counts
    6.  tell every slot "complete"          7.  final checkpoint committed everywhere: FINISHED goes into the log
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import assert_never

from tidegate.coordinator.checkpoint_reports import CheckpointReports
from tidegate.coordinator.failures import failure_of, lost_slot, unsendable_start
from tidegate.coordinator.flow import Flow
from tidegate.coordinator.observing import (
    CheckpointsDiscarded,
    JobStatus,
    JobView,
    SlotReported,
    SlotRestored,
    SlotSampled,
    StatusChanged,
)
from tidegate.coordinator.outcomes import AttemptEnded, AttemptFinished, AttemptRescaled, Outcome
from tidegate.coordinator.recording import CheckpointRecorder, LogInDoubt, StoredCheckpoint, shared_files
from tidegate.coordinator.savepoints import SavepointDesk, SavepointRequest, TakenSavepoint
from tidegate.coordinator.storing import NamedWork
from tidegate.errors import (
    JobFailed,
    ProtocolViolation,
    StorageError,
    Superseded,
    TidegateError,
)
from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.ports import Background, CrashPoints, SlotLinks
from tidegate.protocol.checkpoint_events import (
    Action,
    CheckpointLogged,
    CheckpointRequested,
    CheckpointStoreFailed,
    DiscardSnapshot,
    DrainSources,
    EndRequested,
    Event,
    FailAttempt,
    FinishJob,
    NotifyAborted,
    NotifyComplete,
    Purpose,
    RefuseSavepoint,
    SavepointRequested,
    SavepointStored,
    SlotBecameReady,
    SlotCommitted,
    SlotEnded,
    SnapshotAcknowledged,
    SnapshotDeclined,
    StoreCheckpoint,
    TimePassed,
    TriggerCheckpoint,
)
from tidegate.protocol.checkpointing import CheckpointPolicy, CheckpointScheduler
from tidegate.protocol.shared_state import SharedStateRegistry
from tidegate.storage.metadata import SlotSnapshot
from tidegate.storage.sweep import OpenWork
from tidegate.wire.control import (
    Abort,
    Acknowledge,
    Cancel,
    Committed,
    Complete,
    Decline,
    Drain,
    Ended,
    Finish,
    FromSlot,
    Heartbeat,
    InboxOverBound,
    InboxWithinBound,
    LastCounts,
    Progressed,
    Ready,
    Sampled,
    SampleStacks,
    SavepointOrder,
    SlotFailed,
    Start,
    ToDriver,
    Trigger,
    Unsendable,
    WatermarkReached,
)

log = logging.getLogger("tidegate.coordinator")


@dataclass(slots=True)
class Timeouts:
    start_s: float = 120.0  #: a gang that starts only in part waits for ever otherwise
    heartbeat_s: float = 30.0  #: Spark does not notice a frozen worker


@dataclass(slots=True)
class Attempt:
    """Driven by its shell: `slot_connected`, `slot_said`, `slot_lost`, `tick`."""

    id: AttemptId
    starts: dict[SlotId, Start]
    policy: CheckpointPolicy
    next_checkpoint_id: CheckpointId
    latest_completed: CheckpointId
    links: SlotLinks
    recorder: CheckpointRecorder
    storing: Background
    post: Callable[[Callable[[], None]], None]  #: run in the coordinator's thread
    view: JobView
    crash_points: CrashPoints
    clock: Callable[[], float]  #: monotonic
    wall_clock: Callable[[], float]
    on_driver_payload: Callable[[ToDriver], None]
    shared: SharedStateRegistry = field(default_factory=SharedStateRegistry)  #: one for all attempts of a driver
    timeouts: Timeouts = field(default_factory=Timeouts)
    desk: SavepointDesk = field(default_factory=SavepointDesk)
    commit_only: bool = False  #: the savepoint of a stop is in the log: commit what it holds, and end
    outcome: Outcome | None = None
    scheduler: CheckpointScheduler = field(init=False)
    connected: dict[SlotId, float] = field(default_factory=dict, init=False)  #: when each was last heard
    running: bool = field(default=False, init=False)
    halted_at: float = field(default=0.0, init=False)  #: when sources were told to stop, for a suspend or a rescale
    _work: NamedWork = field(init=False)
    _began: float = field(init=False)
    _last_tick: float = field(init=False)
    _silence_due: float = field(default=float("-inf"), init=False)  #: all slots are looked at for it then, not before
    _reports: CheckpointReports = field(init=False)
    _finishing: bool = field(default=False, init=False)
    _orders: dict[CheckpointId, SavepointOrder] = field(default_factory=dict, init=False)  #: savepoints under way
    _of_users: set[CheckpointId] = field(default_factory=set, init=False)  #: savepoints, ended ones too
    _flow: Flow = field(init=False)
    _littered: bool = field(default=False, init=False)  #: given-up snapshots may lie in storage

    def __post_init__(self) -> None:
        self._began = self._last_tick = self.clock()
        self._work = NamedWork(self.storing, lambda failure: self.post(lambda: self.fail(failure)))
        self._flow = Flow(self.links, len(self.starts))
        self._reports = CheckpointReports(self.id, len(self.starts), self.view, self.clock, self.wall_clock)
        self.scheduler = CheckpointScheduler(
            attempt=self.id,
            slots=frozenset(self.starts),
            policy=self.policy,
            next_id=self.next_checkpoint_id,
            latest_completed=self.latest_completed,
            final=self.latest_completed if self.commit_only else None,
            final_purpose=Purpose.SUSPEND if self.commit_only else Purpose.FINAL,
        )

    # -- what happens -------------------------------------------------------------------------------------------

    def slot_connected(self, slot: SlotId) -> None:
        if slot not in self.starts or slot in self.connected:
            self.fail(ProtocolViolation(f"slot {slot} called twice, or is not in the plan"))
            return
        self.connected[slot] = self.clock()
        try:
            self.links.send(slot, self.starts[slot])
        except Unsendable as error:
            self.fail(unsendable_start(self.recorder.plan, slot, self.starts[slot], error), permanent=True)
            return
        self._flow.on_connected(slot, self.clock())

    def slot_said(self, slot: SlotId, message: FromSlot) -> None:
        if self.outcome is not None:
            return
        self.connected[slot] = self.clock()
        match message:
            case Ready(restore_s, local_bytes, storage_bytes, rejected_copies):
                self._decide(SlotBecameReady(slot))
                self.view.publish(
                    SlotRestored(slot, restore_s, local_bytes, storage_bytes, rejected_copies, self.wall_clock())
                )
                if not self.running and self.scheduler.all_ready:
                    self.running = True
                    self.view.publish(StatusChanged(JobStatus.RUNNING, "", self.wall_clock()))
                    self._sweep()
            case Heartbeat():
                self.view.publish(SlotReported(slot, message))
            case Sampled():
                self.view.publish(SlotSampled(slot, message))
            case LastCounts(operators):
                self.view.publish(SlotReported(slot, self.view.latest_heartbeat(slot, operators)))
            case Acknowledge(checkpoint, snapshot, timings):
                self._note_files(CheckpointId(checkpoint), snapshot)
                self._decide(SnapshotAcknowledged(slot, self.id, CheckpointId(checkpoint), snapshot))
                self._reports.acknowledged(checkpoint, slot, snapshot, timings)
                self._reports.tell()
            case Decline(checkpoint, reason, overtaken):
                self._decide(SnapshotDeclined(slot, self.id, CheckpointId(checkpoint), reason, overtaken))
            case InboxOverBound() | InboxWithinBound() | Progressed() | WatermarkReached():
                self._flow.on_news(slot, message, self.clock())
            case Ended():
                self._decide(SlotEnded(slot))
            case Committed(checkpoint):
                self._decide(SlotCommitted(slot, CheckpointId(checkpoint)))
            case SlotFailed():
                self.fail(*failure_of(message))
            case ToDriver():
                self.on_driver_payload(message)
            case _:
                assert_never(message)

    def slot_lost(self, slot: SlotId, reason: str) -> None:
        if self.outcome is None and not self._finishing:
            self.fail(lost_slot(self.recorder.plan, slot, reason))

    def request_checkpoint(self) -> None:
        self._decide(CheckpointRequested())

    def end_when_committed(self, within_s: float) -> None:
        """Without another checkpoint: what is complete is committed first, if that takes no longer."""
        self._decide(EndRequested(self.clock() + within_s))

    def request_samples(self, slots: Collection[SlotId], order: SampleStacks) -> None:
        for slot in slots:
            if slot in self.connected:
                self.links.send(slot, order)

    def request_savepoint(self, request: SavepointRequest) -> None:
        number = self.desk.take(request)
        self._decide(SavepointRequested(number, request.stop, request.timeout_s))

    def tick(self, all_heard: bool = True) -> None:
        """Time has passed. Silence counts only when everything that has arrived was heard."""
        if self.outcome is not None:
            return
        now = self.clock()
        if now - self._last_tick > self.timeouts.heartbeat_s / 2:
            # The driver itself was away (stopped, or a sleeping laptop): nobody could have been heard.
            self.connected = dict.fromkeys(self.connected, now)
        self._last_tick = now
        if len(self.connected) < len(self.starts) and now - self._began > self.timeouts.start_s:
            missing = sorted(set(self.starts) - set(self.connected))
            self.fail(
                JobFailed(
                    f"{len(missing)} of {len(self.starts)} slots did not start within {self.timeouts.start_s:g} s "
                    f"({', '.join(map(str, missing[:8]))}); an executor may be frozen"
                )
            )
            return
        if all_heard and now >= self._silence_due and not self._finishing:
            self._silence_due = now + self._often
            for slot, heard in self.connected.items():
                if now - heard > self.timeouts.heartbeat_s:
                    self.slot_lost(slot, f"silent for {self.timeouts.heartbeat_s:g} s")
                    return
        self._flow.pass_credits_on(now)
        self._decide(TimePassed())

    @property
    def _often(self) -> float:
        """Several ticks in one heartbeat timeout, or every pause between two would look as if the driver had been away."""
        return min(1.0, self.timeouts.heartbeat_s / 8)

    def next_wake(self) -> float:
        """When `tick` is due, at the latest."""
        times = [self.clock() + self._often, self._flow.due_at]
        wake = self.scheduler.next_wake()
        if wake is not None:
            times.append(wake)
        return min(times)

    def fail(self, error: TidegateError, permanent: bool = False) -> None:
        if self.outcome is None:
            self.outcome = AttemptEnded(error, permanent)

    def cancel_slots(self) -> None:
        for slot in self.connected:
            self.links.send(slot, Cancel())

    def abandon_savepoints(self) -> None:
        """The attempt has ended: what it had begun of savepoints belongs to nobody."""
        for checkpoint in self.scheduler.lost_savepoints():
            self.recorder.discard_savepoint(self._orders[checkpoint].folder)

    # -- decisions ----------------------------------------------------------------------------------------------

    def _decide(self, event: Event) -> None:
        if self.outcome is None:
            for action in self.scheduler.on(event, self.clock()):
                self._act(action)
        self._reports.tell()

    def _act(self, action: Action) -> None:
        match action:
            case TriggerCheckpoint(checkpoint, purpose, number, unaligned_after_s):
                self._reports.triggered(checkpoint, purpose.value)
                order = self._order(checkpoint, purpose, number)
                if purpose.halts:
                    self.halted_at = self.clock()
                self._tell_all(Trigger(checkpoint, unaligned_after_s, order, purpose.halts))
                self.crash_points.reach("driver.triggered", None, checkpoint)
            case StoreCheckpoint():
                triggered_at = self._reports.triggered_at(action.checkpoint)
                self._work.submit(f"storing checkpoint {action.checkpoint}", lambda: self._store(action, triggered_at))
            case NotifyComplete(logged):
                checkpoint = logged.id
                self.crash_points.reach("driver.before-notify", None, checkpoint)
                self._orders.pop(checkpoint, None)
                self._tell_all(Complete(checkpoint))
                self.crash_points.reach("driver.notified", None, checkpoint)
            case NotifyAborted(checkpoint, latest_completed, reason, detail):
                log.warning("checkpoint %d was given up: %s (%s)", checkpoint, reason.value, detail)
                self._reports.failed(checkpoint, f"{reason.value}: {detail}")
                self._tell_all(Abort(checkpoint, latest_completed))
                order = self._orders.pop(checkpoint, None)
                if order is not None:
                    self._work.submit(
                        f"discarding savepoint {checkpoint}", lambda: self.recorder.discard_savepoint(order.folder)
                    )
                self._littered = True
            case DiscardSnapshot(slot, checkpoint, _, answer):
                self._littered = True
                log.info("the snapshot of slot %s for checkpoint %d is discarded: %s", slot, checkpoint, answer.value)
            case FailAttempt(reason):
                self.fail(JobFailed(reason))
            case DrainSources():
                self._tell_all(Drain())
            case RefuseSavepoint(number, reason):
                log.warning("a savepoint was not taken: %s", reason)
                self.desk.refuse(number, reason)
            case FinishJob(Purpose.RESCALE):
                self._rescaled()
            case FinishJob():
                self._finishing = True
                self._work.submit("noting the end of the job in its log", self._finish)
            case _:
                assert_never(action)

    def _order(self, checkpoint: CheckpointId, purpose: Purpose, number: int | None) -> SavepointOrder | None:
        if number is None or not purpose.is_savepoint:
            return None
        request = self.desk.open[number]
        order = SavepointOrder(request.folder(self.recorder.plan.job, checkpoint), request.format)
        self._orders[checkpoint] = order
        self._of_users.add(checkpoint)
        return order

    def _tell_all(self, message: Trigger | Drain | Complete | Abort | Finish) -> None:
        for slot in self.connected:
            self.links.send(slot, message)

    # -- storing (background) -----------------------------------------------------------------------------------

    def _store(self, action: StoreCheckpoint, triggered_at: float) -> None:
        checkpoint = action.checkpoint
        order = self._orders.get(checkpoint)
        try:
            stored = self.recorder.complete(self.id, checkpoint, action.purpose, action.snapshots, triggered_at, order)
        except Superseded as error:
            superseded = error
            self.post(lambda: self.fail(superseded, permanent=True))
            return
        except LogInDoubt as error:
            in_doubt = error
            self.post(lambda: self.fail(in_doubt))
            return
        except StorageError as error:
            reason = str(error)
            self.post(lambda: self._decide(CheckpointStoreFailed(checkpoint, reason)))
            return
        self.post(lambda: self._stored(action, stored))
        discarded = self.recorder.delete_dropped()
        if discarded:
            self.post(lambda: self.view.publish(CheckpointsDiscarded(discarded)))

    def _stored(self, action: StoreCheckpoint, stored: StoredCheckpoint) -> None:
        checkpoint = action.checkpoint
        if action.request is not None and action.purpose.is_savepoint:
            self.desk.fulfil(action.request, TakenSavepoint(stored.uri, checkpoint, stored.size_bytes))
        if self.outcome is None:
            if stored.oldest_retained is not None:
                self._delete(self.shared.completed(stored.oldest_retained))
            self._reports.completed(checkpoint, stored.size_bytes, stored.uri)
            self._orders.pop(checkpoint, None)
            self._decide(SavepointStored(checkpoint) if stored.logged is None else CheckpointLogged(stored.logged))
            if self._littered:
                self._sweep()

    def _sweep(self) -> None:
        """When all slots run: what earlier attempts left. Later: after a completed checkpoint, when others were given up."""
        self._littered = False
        open_work = OpenWork(self.id, self.scheduler.first_open_id())
        self._work.submit("sweeping the job's folder", lambda: self.recorder.sweep(open_work))

    def _rescaled(self) -> None:
        request = self.desk.open[self.rescale_request]
        assert request.parallelism is not None
        if self.outcome is None:
            self.outcome = AttemptRescaled(request.parallelism, request.reason)
            self._tell_all(Finish(goes_on=True))

    @property
    def rescale_request(self) -> int:
        assert self.scheduler.stop is not None
        return self.scheduler.stop.request

    def _note_files(self, checkpoint: CheckpointId, snapshot: SlotSnapshot) -> None:
        """Before anyone asks whether the acknowledgement still counts: its files are there in any case."""
        if checkpoint in self._of_users:
            return  # a savepoint's files are the user's, never the job's to delete
        try:
            self._delete(self.shared.acknowledged(checkpoint, shared_files([snapshot])))
        except ProtocolViolation as error:
            self.fail(error)  # a new attempt builds on what the log retains, and on nothing else

    def _delete(self, paths: list[str]) -> None:
        if paths:
            self._work.submit("deleting files of old checkpoints", lambda: self.recorder.delete_files(paths))

    def _finish(self) -> None:
        # Before the record: after FINISHED nobody comes to look any more.
        self.recorder.sweep(OpenWork(self.id, self.scheduler.next_id))
        try:
            self.recorder.finish()
        except TidegateError as error:
            failure = error
            self.post(lambda: self.fail(failure, permanent=isinstance(failure, Superseded)))
            return
        self.post(self._finished)

    def _finished(self) -> None:
        if self.outcome is None:
            self.outcome = AttemptFinished()
            self._tell_all(Finish())
