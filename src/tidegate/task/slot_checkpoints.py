"""A slot's part in checkpoints, carried out. Executor; the task's thread.

protocol/slot_machine.py decides; here is what it decides upon, done. The steps, numbered as in docs/architecture.md:

    2.  a source slot hears the trigger
    3.  any other slot holds back each channel after its barrier until all barriers have come; unaligned, it takes the
        snapshot at the first one, with what was received before each channel's barrier and not yet processed
    4a. prepare sinks, flush, forward the barrier   4b. take the synchronous part
    4c. the background stores it                    4d. and acknowledges (task/snapshots.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from tidegate.ids import CheckpointId, SlotId
from tidegate.ports import Background, ControlPort, CrashPoints
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.protocol.slot_events import (
    BarrierKind,
    BeginCut,
    CommitUpTo,
    DeclineCheckpoint,
    DropSnapshot,
    ForwardBarrier,
    HoldChannel,
    OpenInbox,
    ReleaseChannels,
    ShutInbox,
    SlotAction,
    SlotEvent,
    SnapshotFailed,
    SnapshotTaken,
    StoreSnapshot,
    TakeSnapshot,
    TimePassed,
)
from tidegate.protocol.slot_machine import SlotMachine
from tidegate.task.capture import Capture
from tidegate.task.chains import HostedChain, call_all
from tidegate.task.held import HeldFrames
from tidegate.task.input_queue import InputQueue
from tidegate.task.mailbox import Mailbox
from tidegate.task.operators.base import OperatorFailed, OperatorSnapshot, RunningOperator
from tidegate.task.outbox import Outbox
from tidegate.task.slicing import FrameAtHand
from tidegate.task.snapshots import SnapshotUploader, Upload
from tidegate.wire.control import Decline, SavepointOrder, SnapshotTimings
from tidegate.wire.frame import FLAG_TIMEOUTABLE, FLAG_UNALIGNED

FLAGS = {BarrierKind.ALIGNED: 0, BarrierKind.MAY_TURN: FLAG_TIMEOUTABLE, BarrierKind.UNALIGNED: FLAG_UNALIGNED}


@dataclass(slots=True)
class _Kept:
    """What was taken for a checkpoint and is not handed over to be stored."""

    capture: Capture | None
    snapshots: list[OperatorSnapshot] = field(default_factory=list)
    timings: SnapshotTimings = field(default_factory=SnapshotTimings)


@dataclass(slots=True, kw_only=True)
class SlotCheckpoints:
    """See the module."""

    slot: SlotId
    machine: SlotMachine
    chains: Sequence[HostedChain]
    operators: Sequence[RunningOperator]
    mailbox: Mailbox
    input: InputQueue
    outbox: Outbox
    flush: Callable[[], None]  #: everything emitted so far is on its way
    at_hand: Callable[[], FrameAtHand | None]  #: the frame that is processed in part
    commit: Callable[[LoggedCheckpoint], None]
    new_held: Callable[[], HeldFrames]
    uploader: SnapshotUploader
    uploads: Background
    control: ControlPort
    crash_points: CrashPoints
    clock: Callable[[], float]
    pause_s: float = 0.0  #: the longest since the last snapshot
    _kept: dict[CheckpointId, _Kept] = field(default_factory=dict, init=False)
    _uploads: dict[CheckpointId, Upload] = field(default_factory=dict, init=False)

    def on(self, event: SlotEvent) -> None:
        for action in self.machine.on(event, self.clock()):
            self._act(action)

    def paused(self, seconds: float) -> None:
        """So long the last turn heard nothing: neither a barrier nor the driver."""
        self.pause_s = max(self.pause_s, seconds)

    def on_time(self, now: float) -> None:
        due = self.machine.next_time()
        if due is not None and due <= now:
            self.on(TimePassed())

    def _act(self, action: SlotAction) -> None:
        match action:
            case HoldChannel(channel):
                self.input.hold(channel)
            case ReleaseChannels():
                self.input.release()
            case OpenInbox(checkpoint):
                self.mailbox.open_for(checkpoint)
            case ShutInbox(checkpoint):
                self.mailbox.shut_up_to(checkpoint)
            case BeginCut():
                self._begin_cut(action)
            case ForwardBarrier(checkpoint, kind):
                self._forward(checkpoint, FLAGS[kind])
            case TakeSnapshot():
                self._take(action)
            case StoreSnapshot(checkpoint, order):
                self._store(checkpoint, order)
            case DropSnapshot(checkpoint):
                if (kept := self._kept.pop(checkpoint, None)) is not None:
                    self.uploader.let_go(kept.snapshots)
                if (upload := self._uploads.pop(checkpoint, None)) is not None:
                    upload.wanted = False
            case DeclineCheckpoint(checkpoint, reason, overtaken):
                self.control.send(Decline(checkpoint, reason, overtaken))
            case CommitUpTo(logged):
                self.commit(logged)
            case _:
                assert_never(action)

    def _begin_cut(self, action: BeginCut) -> None:
        """What this slot has taken from the mailbox and not processed, the rest of a frame and released frames; then what
        waits in the mailbox, and what still comes before the barriers."""
        capture = Capture(action.checkpoint, set(action.waiting), self.new_held())
        work = self.at_hand()
        if work is not None:
            capture.offer(work.rest())
        for frame in self.input.released():
            capture.offer(frame)
        self._kept[action.checkpoint] = _Kept(capture)
        self.mailbox.capture(capture)

    def _forward(self, checkpoint: CheckpointId, flags: int) -> None:
        self.crash_points.reach("slot.aligned" if self.slot.layer else "source.before-barrier", self.slot, checkpoint)
        # 4a. what belongs to this epoch goes out, then the barrier
        call_all(self.operators, lambda operator: operator.prepare(checkpoint), checkpoint)
        for chain in self.chains:
            chain.flush()
        self.outbox.send_barrier(checkpoint, flags)
        self.flush()
        self.crash_points.reach("slot.barrier-forwarded", self.slot, checkpoint)

    def _take(self, action: TakeSnapshot) -> None:
        # 4b. the synchronous part
        checkpoint, began = action.checkpoint, self.clock()
        kept = self._kept.setdefault(checkpoint, _Kept(None))
        for operator in self.operators:
            try:
                kept.snapshots.append(operator.snapshot_sync(checkpoint))
            except OperatorFailed:  # no other attempt would do better
                self.uploader.let_go(kept.snapshots)
                raise
            except Exception as error:  # nothing has changed by it: the job continues, unless the policy says otherwise
                self.uploader.let_go(self._kept.pop(checkpoint).snapshots)
                self.on(SnapshotFailed(checkpoint, f"{operator.name}: {type(error).__name__}: {error}"))
                return
        kept.timings = SnapshotTimings(
            start_delay_s=action.start_delay_s,
            alignment_s=action.alignment_s,
            sync_s=self.clock() - began,
            pause_s=self.pause_s,
            alignment_bytes=self.input.held_bytes,
            unaligned=kept.capture is not None,
        )
        self.pause_s = 0.0
        self.crash_points.reach("slot.snapshot-taken", self.slot, checkpoint)
        self.on(SnapshotTaken(checkpoint))

    def _store(self, checkpoint: CheckpointId, order: SavepointOrder | None) -> None:
        # 4c, 4d. in the background
        kept = self._kept.pop(checkpoint)
        timings = kept.timings
        if kept.capture is not None:
            timings = msgspec.structs.replace(timings, in_flight_bytes=kept.capture.size_bytes)
        frames = () if kept.capture is None else kept.capture.frames
        self._uploads = {id: upload for id, upload in self._uploads.items() if not upload.over}
        self._uploads[checkpoint] = upload = Upload(checkpoint, kept.snapshots, timings, frames, order)
        self.uploads.submit(lambda: self.uploader.store_and_acknowledge(upload))
