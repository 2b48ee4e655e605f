"""A slot's part in checkpoints: alignment, the unaligned cut, the synchronous part. Executor; the task's thread.

The steps, numbered as in docs/architecture.md and task/slot.py:

    2.  a source slot hears the trigger: flush, forward the barrier, snapshot positions and state. Where restored records
        still wait, an aligned checkpoint is postponed until they are through, as if the barrier stood in the queue
    3.  any other slot holds back each channel after its barrier until all barriers have come; unaligned, it takes the
        snapshot at the first one, with what was received before each channel's barrier and not yet processed
    4a. prepare sinks, flush, forward the barrier   4b. take the synchronous part
    4c. the background stores it                    4d. and acknowledges (task/snapshots.py)

protocol/alignment.py decides; here is what it decides upon, done. Behind the barrier of a stop the slot stands still
(`halted`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from tidegate.ids import ChannelId, CheckpointId, SlotId
from tidegate.ports import ControlPort, CrashPoints
from tidegate.protocol.alignment import (
    AlignmentAction,
    BarrierAligner,
    BarrierTracker,
    ForwardBarrier,
    GiveUp,
    HoldChannel,
    ReleaseChannels,
    TakeSnapshot,
)
from tidegate.task.arrivals import Arrivals
from tidegate.task.capture import Capture
from tidegate.task.chains import HostedChain, call_all
from tidegate.task.cuts import Cut, UnalignedCuts, release
from tidegate.task.held import HeldFrames
from tidegate.task.mailbox import Mailbox
from tidegate.task.operators.base import OperatorFailed, OperatorSnapshot, RunningOperator
from tidegate.task.outbox import Outbox
from tidegate.task.program import SlotSettings
from tidegate.task.slicing import FrameAtHand
from tidegate.task.snapshots import SnapshotOrders
from tidegate.wire.control import Decline, SnapshotTimings, Trigger
from tidegate.wire.frame import FLAG_TIMEOUTABLE, FLAG_UNALIGNED, Frame, barrier_flags


@dataclass(slots=True, kw_only=True)
class SlotCheckpoints:
    """See the module."""

    slot: SlotId
    settings: SlotSettings
    channels: frozenset[ChannelId]  #: from the layer above; none for the first layer
    chains: Sequence[HostedChain]
    operators: Sequence[RunningOperator]
    mailbox: Mailbox
    arrivals: Arrivals
    outbox: Outbox
    flush: Callable[[], None]  #: everything emitted so far is on its way
    at_hand: Callable[[], FrameAtHand | None]  #: the frame that is processed in part
    restored_wait: Callable[[], bool]  #: whether restored records are not through yet
    orders: SnapshotOrders
    control: ControlPort
    crash_points: CrashPoints
    clock: Callable[[], float]
    opened: bool = False  #: restored, and what was prepared is committed
    halted: bool = False  #: the barrier of a stop has passed: no record, no timer after it
    postponed: list[CheckpointId] = field(default_factory=list)  #: aligned, in the first layer, before restored records
    _aligner: BarrierAligner | BarrierTracker = field(init=False)
    _cuts: UnalignedCuts = field(default_factory=UnalignedCuts, init=False)
    _held: HeldFrames = field(init=False)
    _halting: CheckpointId | None = field(
        default=None, init=False
    )  #: nothing is processed after the barrier of this one
    _triggered_at: dict[CheckpointId, float] = field(default_factory=dict, init=False)
    _alignment_began: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        exactly_once = self.settings.exactly_once
        self._aligner = BarrierAligner(self.channels) if exactly_once else BarrierTracker(self.channels)
        self._held = self.new_held()

    @property
    def ready(self) -> bool:
        """Input may flow."""
        return self.opened and not self.halted

    @property
    def done(self) -> CheckpointId:
        """The newest checkpoint whose snapshot was taken, or that was given up."""
        return self._aligner.done

    @property
    def held_bytes(self) -> int:
        return self._held.size_bytes

    def new_held(self) -> HeldFrames:
        return HeldFrames(self.settings.held_memory_bytes, self.settings.held_disk_bytes)

    # -- what the coordinator says ------------------------------------------------------------------------------------

    def triggered(self, trigger: Trigger) -> None:
        checkpoint = CheckpointId(trigger.checkpoint)
        if trigger.halt:
            self._halting = checkpoint
        self.orders.heard(checkpoint, trigger.savepoint)
        self._trigger(checkpoint, trigger.unaligned_after_s)
        if checkpoint <= self._aligner.done:  # its barriers were quicker
            self._halt_if_told(checkpoint)

    def _trigger(self, checkpoint: CheckpointId, unaligned_after_s: float | None) -> None:
        now = self.clock()
        self._triggered_at[checkpoint] = now
        if self.slot.layer > 0:
            if unaligned_after_s is not None and checkpoint > self._aligner.done:
                self._cuts.turns_at(checkpoint, now + unaligned_after_s)  # the inbox opens then
            return
        if unaligned_after_s is None and (self.postponed or self.restored_wait()):
            self.postponed.append(checkpoint)
            return
        self.postponed.clear()  # of older ones, which were given up: ids only grow
        self._begin_at_source(checkpoint, barrier_flags(unaligned_after_s))

    def take_postponed(self) -> None:
        """Restored records are through."""
        postponed, self.postponed = self.postponed, []
        for checkpoint in postponed:
            self._begin_at_source(checkpoint, barrier_flags(None))

    def _begin_at_source(self, checkpoint: CheckpointId, flags: int) -> None:
        self.crash_points.reach("source.before-barrier", self.slot, checkpoint)
        # Restored in-flight records that still wait here keep waiting, unless the checkpoint is aligned.
        waiting = self._unprocessed(checkpoint, arrived=frozenset())
        self._checkpoint(checkpoint, flags, capture=waiting if len(waiting.frames) else None)
        if len(waiting.frames):
            self.captured(checkpoint)

    def completed(self, checkpoint: CheckpointId) -> None:
        self._forget(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        self.postponed = [id for id in self.postponed if id != checkpoint]
        self._forget(checkpoint)
        self.orders.aborted(checkpoint)
        if self._halting == checkpoint:
            self._halting, self.halted = None, False
        self._act(self._aligner.on_abort(checkpoint))

    def _forget(self, checkpoint: CheckpointId) -> None:
        self.mailbox.shut_up_to(checkpoint)
        self._cuts.forget_up_to(checkpoint)
        self._triggered_at = {id: at for id, at in self._triggered_at.items() if id > checkpoint}
        self.orders.forget_before(checkpoint)

    # -- what arrives -------------------------------------------------------------------------------------------------

    def is_held(self, frame: Frame) -> bool:
        return self._aligner.is_held(ChannelId(frame.sender))

    def hold(self, frame: Frame) -> None:
        if not self._held.append(frame) and self._aligner.aligning is not None:
            self.give_up(self._aligner.aligning, "held back during alignment", self._held.size_bytes)

    def barrier(self, frame: Frame) -> None:
        """In its place among the frames of its channel."""
        if self._aligner.aligning is None:
            self._alignment_began = self.clock()
        self._act(self._aligner.on_barrier(ChannelId(frame.sender), CheckpointId(frame.value)))

    def barrier_seen(self, checkpoint: CheckpointId, unaligned: bool) -> None:
        """It has reached the inbox; frames before it may still wait there."""
        if checkpoint <= self._aligner.done:
            return
        self._cuts.barrier_arrived(checkpoint)
        if unaligned and self.ready:
            self._cut(checkpoint)
        elif unaligned:
            self._cuts.turns_at(checkpoint, float("-inf"))  # as soon as the slot is ready

    def captured(self, checkpoint: CheckpointId) -> None:
        """Every channel's barrier has come: the cut is whole."""
        cut = self._cuts.take(checkpoint)
        if cut is not None:
            timings = msgspec.structs.replace(cut.timings, in_flight_bytes=cut.capture.size_bytes)
            self.orders.store(checkpoint, cut.snapshots, timings, cut.capture.frames)

    def give_up(self, checkpoint: CheckpointId, what: str, kept_bytes: int) -> None:
        """What has to be kept for the checkpoint is too much: decline it, and let the frames pass in order."""
        limits = f"memory ({self.settings.held_memory_bytes}) and disk ({self.settings.held_disk_bytes})"
        self._decline(checkpoint, f"{kept_bytes} bytes had to be {what}, more than {limits} allow")
        self._act(self._aligner.on_abort(checkpoint))

    # -- time ---------------------------------------------------------------------------------------------------------

    def due_times(self) -> list[float]:
        return self._cuts.due_times()

    def on_time(self, now: float) -> None:
        if self.ready and self.slot.layer > 0:
            for checkpoint in self._cuts.turned(now):
                self.mailbox.open_for(checkpoint)
            for checkpoint in self._cuts.due(now):
                self._cut(checkpoint)

    # -- the snapshot -------------------------------------------------------------------------------------------------

    def _act(self, actions: list[AlignmentAction]) -> None:
        for action in actions:
            match action:
                case HoldChannel():
                    pass  # the aligner knows; `is_held` asks it
                case ForwardBarrier():
                    pass  # part of TakeSnapshot here: prepare, forward, snapshot are one step of the task's thread
                case TakeSnapshot(checkpoint):
                    self.crash_points.reach("slot.aligned", self.slot, checkpoint)
                    self._checkpoint(
                        checkpoint,
                        FLAG_TIMEOUTABLE if self._cuts.may_turn(checkpoint) else 0,
                        alignment_s=self.clock() - self._alignment_began,
                        alignment_bytes=self._held.size_bytes,
                    )
                    self._cuts.aligned(checkpoint)
                    self.mailbox.shut_up_to(checkpoint)
                case ReleaseChannels():
                    self.arrivals.release(self._held)
                    self._held = self.new_held()
                case GiveUp(checkpoint):
                    self.control.send(Decline(checkpoint, "the barrier of a newer one came first", overtaken=True))
                case _:
                    assert_never(action)

    def _decline(self, checkpoint: CheckpointId, reason: str, taken: Sequence[OperatorSnapshot] = ()) -> None:
        release(taken)
        self.control.send(Decline(checkpoint, reason))
        self.mailbox.shut_up_to(checkpoint)
        self._cuts.forget_up_to(checkpoint)

    def _cut(self, checkpoint: CheckpointId) -> None:
        """Unaligned: the snapshot now, with what was received before each channel's barrier and not yet processed."""
        self._cuts.aligned(checkpoint)
        overtaken = self._aligner.overtake(checkpoint)
        if overtaken is None:
            return
        actions, arrived = overtaken
        began = self._alignment_began if arrived else self.clock()
        self.crash_points.reach("slot.aligned", self.slot, checkpoint)
        # First what was held back is released: of an older checkpoint it stands before this one's barriers, and the barriers
        # may be among it. What was held after this one's own barriers the capture leaves out: they have come.
        self._act(actions)
        capture = self._unprocessed(checkpoint, arrived)
        self.mailbox.capture(capture)
        self._checkpoint(checkpoint, FLAG_UNALIGNED, self.clock() - began, capture=capture)

    def _unprocessed(self, checkpoint: CheckpointId, arrived: frozenset[ChannelId]) -> Capture:
        """What this slot has taken from the mailbox and not processed: the rest of a frame, and released frames."""
        capture = Capture(checkpoint, set(self.channels - arrived), self.new_held())
        work = self.at_hand()
        if work is not None:
            capture.offer(work.rest())
        for frame in self.arrivals.released():
            capture.offer(frame)
        return capture

    def _checkpoint(
        self,
        checkpoint: CheckpointId,
        flags: int,
        alignment_s: float = 0.0,
        alignment_bytes: int = 0,
        capture: Capture | None = None,
    ) -> None:
        began = self.clock()
        # 4a. what belongs to this epoch goes out, then the barrier
        call_all(self.operators, lambda operator: operator.prepare(checkpoint), checkpoint)
        for chain in self.chains:
            chain.flush()
        self.outbox.send_barrier(checkpoint, flags)
        self.flush()
        self.crash_points.reach("slot.barrier-forwarded", self.slot, checkpoint)
        # 4b. the synchronous part
        snapshots: list[OperatorSnapshot] = []
        for operator in self.operators:
            try:
                snapshots.append(operator.snapshot_sync(checkpoint))
            except OperatorFailed:  # no other attempt would do better
                release(snapshots)
                raise
            except Exception as error:  # nothing has changed by it: the job continues, unless the policy says otherwise
                self._decline(checkpoint, f"{operator.name}: {type(error).__name__}: {error}", snapshots)
                return
        now = self.clock()
        timings = SnapshotTimings(
            start_delay_s=max(0.0, began - alignment_s - self._triggered_at.get(checkpoint, began)),
            alignment_s=alignment_s,
            sync_s=now - began,
            alignment_bytes=alignment_bytes,
            unaligned=capture is not None,
        )
        self.crash_points.reach("slot.snapshot-taken", self.slot, checkpoint)
        # 4c, 4d. in the background; an unaligned one when its in-flight records are whole
        if capture is not None:
            self._cuts.begin(Cut(snapshots, timings, capture))
        else:
            self.orders.store(checkpoint, snapshots, timings, [])
        self._halt_if_told(checkpoint)

    def _halt_if_told(self, checkpoint: CheckpointId) -> None:
        if self._halting == checkpoint and self.opened:
            self.halted = True
