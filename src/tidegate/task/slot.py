"""One slot: the mailbox loop that hosts one subtask of each chain of a layer. Executor; the task's thread.

The same class runs under Spark (task/main.py) and in the in-process runner (testing/runner.py). Nothing here blocks but
a source's poll, for as long as the caller allows. The steps of a checkpoint, numbered as in docs/architecture.md:

    2.  a source slot hears the trigger: flush, forward the barrier, snapshot positions and state
    3.  any other slot holds back each channel behind its barrier until all barriers have come
    4a. prepare sinks, flush, forward the barrier   4b. take the synchronous part
    4c. the background stores it                    4d. and acknowledges
    6.  "n is complete": sinks commit what they prepared up to n

Invariant 1. Frames of one physical channel are handled in the order they were sent; a gap or a repeat fails the slot.
Invariant 2. No record is processed before state is restored and restored committables are committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

from tidegate.errors import ProtocolViolation
from tidegate.graph.plan import PlannedEdge
from tidegate.ids import ChannelId, CheckpointId
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
from tidegate.state.backends import StateBackends
from tidegate.storage.paths import JobPaths
from tidegate.task.arrivals import Arrivals
from tidegate.task.capture import Capture
from tidegate.task.chains import HostedChain, call_all, close_all, host_chains
from tidegate.task.committing import Commits
from tidegate.task.cuts import Cut, UnalignedCuts, release
from tidegate.task.flow import SlotFlow
from tidegate.task.held import HeldFrames
from tidegate.task.inbox import Captured, Overflowed
from tidegate.task.keyed_files import SlotFiles
from tidegate.task.local_copies import LocalCopies, RestoreStorage
from tidegate.task.mailbox import BarrierArrived, Letter, Mailbox
from tidegate.task.operators.base import OperatorSnapshot, RunningOperator
from tidegate.task.operators.build import OperatorSurroundings
from tidegate.task.operators.timers import Time
from tidegate.task.outbox import Outbox
from tidegate.task.ports import Background, ControlPort, CrashPoints, RunAtOnce, SnapshotStorage
from tidegate.task.program import SlotProgram
from tidegate.task.restore import in_flight_frames, open_operators, restore_state
from tidegate.task.slicing import FrameAtHand, SliceSizer
from tidegate.task.snapshots import SnapshotOrders, SnapshotUploader
from tidegate.task.source_turns import SourceTurns
from tidegate.wire.control import (
    Abort,
    Cancel,
    Committed,
    Complete,
    Credits,
    Decline,
    Drain,
    Ended,
    Finish,
    LastCounts,
    OperatorMetrics,
    PauseSources,
    ResumeSources,
    SnapshotTimings,
    Start,
    ToDriver,
    Trigger,
)
from tidegate.wire.frame import FLAG_TIMEOUTABLE, FLAG_UNALIGNED, Frame, FrameSeal, Kind, barrier_flags
from tidegate.wire.records import decode_records

#: Expired state that is looked for after each frame: a little at a time, never a scan.
CLEAN_UP_ENTRIES = 256
#: An idle slot has time for small frames: it sends that many times in one buffer timeout.
IDLE_SENDS_PER_TIMEOUT = 4


class Slot:
    """See the module. `turn` does one piece of work; rows for Spark gather in `outbox`."""

    def __init__(
        self,
        program: SlotProgram,
        mailbox: Mailbox,
        control: ControlPort,
        storage: SnapshotStorage,
        uploads: Background,
        commits: Background,
        crash_points: CrashPoints,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.program = program
        self.id = program.slot
        self.settings = program.settings
        self.mailbox = mailbox
        self._plan = program.plan
        self._control = control
        self._storage = storage
        self._crash_points = crash_points
        self._clock = clock
        self._sleep = sleep
        layers = program.plan.layers
        self._is_first_layer = self.id.layer == 0
        below = layers[self.id.layer + 1].width if self.id.layer + 1 < len(layers) else 0
        above = 0 if self._is_first_layer else layers[self.id.layer - 1].width
        self._flow = SlotFlow(program.settings.in_flight_target_s, above, below, len(layers) - 1, control)
        self.outbox = Outbox(FrameSeal(program.frame_key), self.id.index, below, self._flow.credit)
        self._channels = channels = frozenset(ChannelId(i) for i in range(above))
        self._aligner = BarrierAligner(channels) if program.settings.exactly_once else BarrierTracker(channels)
        self._cuts = UnalignedCuts()
        self._arrivals = Arrivals(self.id, mailbox, above)
        self._held = self._new_held()
        around = OperatorSurroundings(
            job=program.plan.job,
            attempt=str(program.attempt),
            time=Time(clock, wall_clock),
            backends=StateBackends(program.settings.state, wall_clock),
            sleep=sleep,
            hot_keys=program.settings.hot_keys,
            wanted=lambda: self._flow.credit.records_left,
            send_to_driver=lambda uid, subtask, topic, payload: control.send(ToDriver(uid, subtask, topic, payload)),
        )
        self.chains = host_chains(program.plan, self.id, self.outbox, around)
        self._operators = [operator for chain in self.chains for operator in chain.operators]
        self._receivers: dict[int, tuple[HostedChain, RunningOperator]] = {
            edge.index: (chain, operator)
            for chain in self.chains
            for operator in chain.operators
            for edge in program.plan.edges
            if edge.edge.downstream == operator.uid
        }
        self._sources = SourceTurns(self.chains, clock)
        paths = JobPaths(program.plan.job)
        copies = LocalCopies(self.settings.local_copies, program.plan.job, program.attempt, self.id, uploads)
        self._files = SlotFiles(copies)
        if program.settings.state.incremental:
            self._files.keep(self._operators, storage, lambda uid: paths.state_files(program.attempt, self.id, uid))
        self._uploader = SnapshotUploader(
            slot=self.id,
            plan=program.plan,
            storage=storage,
            path_of=lambda checkpoint: paths.slot_file(checkpoint, program.attempt, self.id),
            part_path_of=lambda checkpoint, part: paths.in_flight_file(checkpoint, program.attempt, self.id, part),
            control=control,
            crash_points=crash_points,
            clock=clock,
            inline_limit_bytes=program.settings.inline_limit_bytes,
            files=self._files,
            state_limit_bytes=program.settings.state_limit_bytes,
        )
        self._commits = Commits(
            slot=self.id,
            sinks=[sink for chain in self.chains for sink in chain.sinks],
            background=commits,
            post=mailbox.post,
            on_committed=self._committed,
            crash_points=crash_points,
            clock=clock,
        )
        self._slices = SliceSizer()
        self._work: FrameAtHand | None = None
        self._started = False
        self._ready = False  #: input may flow
        self._restoring = RestoreStorage(storage)
        self._restored_from = CheckpointId(0)
        self._notified = CheckpointId(0)  #: the newest completed checkpoint that operators were told of
        self._said_ended = False
        self._finish_requested = self._goes_on = False
        self._orders = SnapshotOrders(
            uploads if program.settings.asynchronous_snapshots else RunAtOnce(), self._uploader
        )
        self._halting: CheckpointId | None = None  #: nothing is processed behind the barrier of this one
        self._halted = False
        self._last_flush = float("-inf")
        self._idle_gap_s = self.settings.buffer_timeout_s / IDLE_SENDS_PER_TIMEOUT
        self._triggered_at: dict[CheckpointId, float] = {}
        self._alignment_began = 0.0
        self.finished = False

    # -- the loop -------------------------------------------------------------------------------------------------

    def turn(self, patience_s: float) -> bool:
        """One piece of work. False when there was nothing to do; a source may wait up to `patience_s` for records."""
        letter = self.mailbox.take_letter()
        if letter is not None:
            self._read_letter(letter)
            return True
        if not self._ready:
            if self._halted and self._finish_requested:
                while self.mailbox.take_frame() is not None:
                    pass  # sent behind the last barrier, by nobody whose state is kept
                self.finished = self._is_first_layer or self.mailbox.input_ended
            return False
        if not self.must_wait:
            if self._work is not None:
                self._go_on()
                return True
            frame = self._arrivals.next(self._aligner.done)
            if frame is not None:
                self._accept(frame)
                return True
            if self._sources.poll(patience_s):
                return True
            self._flow.idle()
        self._end_chains()
        if self._finish_requested and (self._is_first_layer or self.mailbox.input_ended):
            self.finished = True
        elif self.mailbox.input_ended and not self._is_first_layer:
            raise ProtocolViolation(
                f"the input of slot {self.id} ended before the job did; an upstream slot has failed"
            )
        return False

    def flush_if_due(self, idle: bool) -> None:
        """Send what waits in buffers: when it is overdue, or soon when there is nothing else to do."""
        if self._is_dirty():
            if self._clock() - self._last_flush >= (self._idle_gap_s if idle else self.settings.buffer_timeout_s):
                self.flush()
        elif idle and self.outbox.needs_flush:
            self.outbox.send_flushes()

    def flush(self) -> None:
        """Everything emitted so far is in the outbox, and nothing will be stuck in Spark's look-ahead."""
        for chain in self.chains:
            chain.flush()
        self.outbox.send_flushes()
        self._last_flush = self._clock()

    def next_deadline(self) -> float | None:
        """When the loop must turn again, even if nothing arrives."""
        times = []
        if self._is_dirty():
            times.append(self._last_flush + self._idle_gap_s)
        if self._commits.retry_at is not None:
            times.append(self._commits.retry_at)
        times += self._cuts.due_times()
        if self._ready:
            times += [time for chain in self.chains if (time := chain.next_time()) is not None]
        return min(times, default=None)

    def on_time(self) -> None:
        """Deadlines that have passed."""
        if self._commits.retry_at is not None and self._commits.retry_at <= self._clock():
            self._commits.resume()
        now = self._clock()
        if self._ready and not self._is_first_layer:
            for checkpoint in self._cuts.turned(now):
                self.mailbox.open_for(checkpoint)
            for checkpoint in self._cuts.due(now):
                self._cut(checkpoint)
        if self._ready and self._work is None:
            for chain in self.chains:
                due = chain.next_time()
                if due is not None and due <= now:
                    chain.on_time()

    def close(self) -> None:
        """Let go of readers and writers; nothing becomes visible by this.

        :raises OperatorFailed: for the first that failed; the others are closed all the same.
        """
        self.mailbox.close()
        self._files.copies.close(job_ended=self._finish_requested and not self._goes_on)
        close_all(self._operators)

    def has_active_source(self) -> bool:
        return self._ready and self._sources.any_active and not self.must_wait

    @property
    def must_wait(self) -> bool:
        """Back-pressure: as much is under way as the slots behind have asked for. Barriers are sent all the same."""
        return self._flow.credit.is_used_up and not self._finish_requested

    def metrics(self) -> list[OperatorMetrics]:
        return [operator.metrics() for operator in self._operators]

    @property
    def held_bytes(self) -> int:
        return self._held.size_bytes + self._arrivals.released_bytes

    # -- letters --------------------------------------------------------------------------------------------------

    def _read_letter(self, letter: Letter) -> None:
        match letter:
            case Start():
                self._start(letter)
            case Trigger(checkpoint, unaligned_after_s, savepoint, halt):
                if halt:
                    self._halting = CheckpointId(checkpoint)
                self._orders.heard(CheckpointId(checkpoint), savepoint)
                self._trigger(CheckpointId(checkpoint), unaligned_after_s)
                if checkpoint <= self._aligner.done:  # its barriers were quicker
                    self._halt_if_told(CheckpointId(checkpoint))
            case Drain():
                self._sources.drain()
            case BarrierArrived(checkpoint, unaligned):
                self._barrier_arrived(CheckpointId(checkpoint), unaligned)
            case Captured(checkpoint):
                self._captured(CheckpointId(checkpoint))
            case Overflowed(checkpoint, kept_bytes):
                self._give_up(CheckpointId(checkpoint), "kept until its barriers had come", kept_bytes)
            case PauseSources() | ResumeSources():
                self._sources.paused = isinstance(letter, PauseSources)
            case Credits():
                self._flow.on_credits(letter)
            case Complete(checkpoint):
                self._complete(CheckpointId(checkpoint))
            case Abort(checkpoint, latest_completed):
                self._abort(CheckpointId(checkpoint), CheckpointId(latest_completed))
            case Finish(goes_on):
                self._finish_requested, self._goes_on = True, goes_on
            case Cancel():
                self.finished = True
            case _ if callable(letter):
                letter()
            case _:
                assert_never(letter)

    def _start(self, start: Start) -> None:
        """Restore, commit what was prepared, then let input flow."""
        if self._started:
            raise ProtocolViolation(f"slot {self.id} was started twice")
        self._started = True
        self._restoring = self._files.copies.begin(self._storage, start, self._clock())
        self._crash_points.reach("slot.restoring", self.id, start.restored_from)
        restore_state(self._restoring, start, self.chains, self._files)
        frames = self._new_held()
        for frame in in_flight_frames(self._restoring, start, self._plan, self._receivers):
            frames.append(frame)
        self._arrivals.release(frames)
        self._halted = start.commit_only
        open_operators(start, self.chains)
        self._crash_points.reach("slot.restored", self.id, start.restored_from)
        if start.restored_from is None:
            self._become_ready()
        else:
            self._restored_from = CheckpointId(start.restored_from)
            self._commits.commit_up_to(self._restored_from)

    def _committed(self, checkpoint: CheckpointId) -> None:
        if not self._ready and not self._halted:
            self._become_ready()
        self._control.send(Committed(checkpoint))

    def _become_ready(self) -> None:
        self._ready = True
        self._last_flush = self._clock()
        self._control.send(self._restoring.ready(self._clock()))

    def _trigger(self, checkpoint: CheckpointId, unaligned_after_s: float | None) -> None:
        now = self._clock()
        self._triggered_at[checkpoint] = now
        if unaligned_after_s is not None and checkpoint > self._aligner.done:
            self._cuts.turns_at(checkpoint, now + unaligned_after_s)  # the inbox opens then
        if self._is_first_layer:
            self._crash_points.reach("source.before-barrier", self.id, checkpoint)
            # Restored in-flight records may still wait here, where no barrier comes behind them: they go on waiting.
            waiting = self._unprocessed(checkpoint, arrived=frozenset())
            self._checkpoint(
                checkpoint, barrier_flags(unaligned_after_s), capture=waiting if len(waiting.frames) else None
            )
            if len(waiting.frames):
                self._captured(checkpoint)

    def _barrier_arrived(self, checkpoint: CheckpointId, unaligned: bool) -> None:
        if checkpoint <= self._aligner.done:
            return
        self._cuts.barrier_arrived(checkpoint)
        if unaligned and self._ready:
            self._cut(checkpoint)
        elif unaligned:
            self._cuts.turns_at(checkpoint, float("-inf"))  # as soon as the slot is ready

    def _complete(self, checkpoint: CheckpointId) -> None:
        self._forget_trigger(checkpoint)
        self._files.completed(checkpoint)
        self._notify_complete(checkpoint)
        self._commits.commit_up_to(checkpoint)

    def _notify_complete(self, checkpoint: CheckpointId) -> None:
        """Ids only grow: what comes twice, or late, is not told again."""
        if checkpoint <= self._notified:
            return
        self._notified = checkpoint
        call_all(self._operators, lambda operator: operator.notify_complete(checkpoint), checkpoint)

    def _abort(self, checkpoint: CheckpointId, latest_completed: CheckpointId) -> None:
        self._forget_trigger(checkpoint)
        self._uploader.aborted.add(checkpoint)
        self._orders.heard(checkpoint, None)  # a snapshot that waits for its trigger is let go
        if self._halting == checkpoint:
            self._halting, self._ready, self._halted = None, self._ready or self._halted, False
        self._files.aborted(checkpoint, latest_completed)
        self._act(self._aligner.on_abort(checkpoint))
        if latest_completed > self._restored_from:  # repairs a lost "complete"
            self._notify_complete(latest_completed)
            self._commits.commit_up_to(latest_completed)

    def _forget_trigger(self, checkpoint: CheckpointId) -> None:
        self.mailbox.shut_up_to(checkpoint)
        self._cuts.forget_up_to(checkpoint)
        self._triggered_at = {id: at for id, at in self._triggered_at.items() if id > checkpoint}
        self._uploader.aborted -= {id for id in self._uploader.aborted if id < checkpoint}

    # -- frames ---------------------------------------------------------------------------------------------------

    def _accept(self, frame: Frame) -> None:
        if self._aligner.is_held(ChannelId(frame.sender)):
            self._hold(frame)
            return
        match frame.kind:
            case Kind.RECORDS | Kind.END_OF_INPUT | Kind.WATERMARK:
                edge = self._plan.edges[frame.edge]
                if edge.to_layer == self.id.layer:
                    self._deliver(frame, edge)
                else:
                    self.outbox.relay(self._plan.next_slot(edge, frame.target, self.id.layer), frame)
                    self._flow.processed(frame, frame.count, now := self._clock(), now)
            case Kind.CHECKPOINT_BARRIER:
                if self._aligner.aligning is None:
                    self._alignment_began = self._clock()
                self._act(self._aligner.on_barrier(ChannelId(frame.sender), CheckpointId(frame.value)))
            case Kind.FLUSH:
                raise ProtocolViolation("a Flush has nothing to say")  # Arrivals passes over it
            case _:
                assert_never(frame.kind)

    def _deliver(self, frame: Frame, edge: PlannedEdge) -> None:
        chain, operator = self._receivers.get(frame.edge, (None, None))
        if chain is None or operator is None or chain.subtask != frame.target:
            raise ProtocolViolation(
                f"slot {self.id} got a frame for subtask {frame.target} of {edge.edge.downstream!r}"
            )
        if frame.kind is Kind.END_OF_INPUT:
            chain.end_channel((frame.edge, frame.origin))
            self._end_chains()
        elif frame.kind is Kind.WATERMARK:
            chain.on_watermark((frame.edge, frame.origin), frame.value)
        else:
            operator.bytes_in += len(frame.payload)
            batch = decode_records(frame, edge.record_type)
            self._work = FrameAtHand(operator, edge.edge.input_index, frame, batch)
            self._go_on()

    def _go_on(self) -> None:
        """The next slice of the frame at hand: short enough that letters are read in between."""
        work = self._work
        assert work is not None
        if work.process_slice(self._slices, self._flow, self._clock):
            self._work = None
            if work.operator.backend is not None:
                work.operator.backend.clean_up(CLEAN_UP_ENTRIES)

    def _end_chains(self) -> None:
        for chain in self.chains:
            if not chain.ended and self._work is None and chain.input_has_ended():
                chain.end()
                self.outbox.send_flushes()
        if not self._said_ended and all(chain.ended for chain in self.chains):
            self._said_ended = True
            self._control.send(LastCounts(self.metrics()))
            self._control.send(Ended())

    def _is_dirty(self) -> bool:
        return any(chain.is_dirty for chain in self.chains)

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def _act(self, actions: list[AlignmentAction]) -> None:
        for action in actions:
            match action:
                case HoldChannel():
                    pass  # the aligner knows; `_accept` asks it
                case ForwardBarrier():
                    pass  # part of TakeSnapshot here: prepare, forward, snapshot are one step of the task's thread
                case TakeSnapshot(checkpoint):
                    self._crash_points.reach("slot.aligned", self.id, checkpoint)
                    self._checkpoint(
                        checkpoint,
                        FLAG_TIMEOUTABLE if self._cuts.may_turn(checkpoint) else 0,
                        alignment_s=self._clock() - self._alignment_began,
                        alignment_bytes=self._held.size_bytes,
                    )
                    self._cuts.aligned(checkpoint)
                    self.mailbox.shut_up_to(checkpoint)
                case ReleaseChannels():
                    self._arrivals.release(self._held)
                    self._held = self._new_held()
                case GiveUp(checkpoint):
                    self._control.send(Decline(checkpoint, "the barrier of a newer one came first", overtaken=True))
                case _:
                    assert_never(action)

    def _hold(self, frame: Frame) -> None:
        if not self._held.append(frame) and self._aligner.aligning is not None:
            self._give_up(self._aligner.aligning, "held back during alignment", self._held.size_bytes)

    def _give_up(self, checkpoint: CheckpointId, what: str, kept_bytes: int) -> None:
        """What has to be kept for the checkpoint is too much: decline it, and let the frames go on in order."""
        limits = f"memory ({self.settings.held_memory_bytes}) and disk ({self.settings.held_disk_bytes})"
        self._decline(checkpoint, f"{kept_bytes} bytes had to be {what}, more than {limits} allow")
        self._act(self._aligner.on_abort(checkpoint))

    def _decline(self, checkpoint: CheckpointId, reason: str, taken: Sequence[OperatorSnapshot] = ()) -> None:
        release(taken)
        self._control.send(Decline(checkpoint, reason))
        self.mailbox.shut_up_to(checkpoint)
        self._cuts.forget_up_to(checkpoint)

    def _cut(self, checkpoint: CheckpointId) -> None:
        """Unaligned: the snapshot now, with what was received before each channel's barrier and not yet processed."""
        self._cuts.aligned(checkpoint)
        overtaken = self._aligner.overtake(checkpoint)
        if overtaken is None:
            return
        actions, arrived = overtaken
        began = self._alignment_began if arrived else self._clock()
        self._crash_points.reach("slot.aligned", self.id, checkpoint)
        capture = self._unprocessed(checkpoint, arrived)
        self._act(actions)  # releases what was held for an older checkpoint, or behind this one's barriers
        self.mailbox.capture(capture)
        self._checkpoint(checkpoint, FLAG_UNALIGNED, self._clock() - began, capture=capture)

    def _unprocessed(self, checkpoint: CheckpointId, arrived: frozenset[ChannelId]) -> Capture:
        """What this slot has taken from the mailbox and not processed: the rest of a frame, and released frames."""
        capture = Capture(checkpoint, set(self._channels - arrived), self._new_held())
        if self._work is not None:
            capture.offer(self._work.rest())
        for frame in self._arrivals.released():
            capture.offer(frame)
        return capture

    def _captured(self, checkpoint: CheckpointId) -> None:
        """Every channel's barrier has come: the cut is whole."""
        cut = self._cuts.take(checkpoint)
        if cut is not None:
            timings = msgspec.structs.replace(cut.timings, in_flight_bytes=cut.capture.size_bytes)
            self._orders.store(checkpoint, cut.snapshots, timings, cut.capture.frames)

    def _checkpoint(
        self,
        checkpoint: CheckpointId,
        flags: int,
        alignment_s: float = 0.0,
        alignment_bytes: int = 0,
        capture: Capture | None = None,
    ) -> None:
        began = self._clock()
        # 4a. what belongs to this epoch goes out, then the barrier
        call_all(self._operators, lambda operator: operator.prepare(checkpoint), checkpoint)
        for chain in self.chains:
            chain.flush()
        self.outbox.send_barrier(checkpoint, flags)
        self.outbox.send_flushes()
        self._last_flush = began
        self._crash_points.reach("slot.barrier-forwarded", self.id, checkpoint)
        # 4b. the synchronous part
        snapshots = []
        for operator in self._operators:
            try:
                snapshots.append(operator.snapshot_sync(checkpoint))
            except Exception as error:  # nothing has changed by it: the job goes on, unless the policy says otherwise
                self._decline(checkpoint, f"{operator.name}: {type(error).__name__}: {error}", snapshots)
                return
        now = self._clock()
        timings = SnapshotTimings(
            start_delay_s=max(0.0, began - alignment_s - self._triggered_at.get(checkpoint, began)),
            alignment_s=alignment_s,
            sync_s=now - began,
            alignment_bytes=alignment_bytes,
            unaligned=capture is not None,
        )
        self._crash_points.reach("slot.snapshot-taken", self.id, checkpoint)
        # 4c, 4d. in the background; an unaligned one when its in-flight records are whole
        if capture is not None:
            self._cuts.begin(Cut(snapshots, timings, capture))
        else:
            self._orders.store(checkpoint, snapshots, timings, [])
        self._halt_if_told(checkpoint)

    def _halt_if_told(self, checkpoint: CheckpointId) -> None:
        """The savepoint of a stop: no record, no timer behind it."""
        if self._halting == checkpoint and self._ready:
            self._ready, self._halted = False, True

    def _new_held(self) -> HeldFrames:
        return HeldFrames(self.settings.held_memory_bytes, self.settings.held_disk_bytes)
