"""One slot: the mailbox loop that hosts one subtask of each chain of a layer. Executor; the task's thread.

The same class runs under Spark (task/main.py) and in the in-process runner (testing/runner.py). Nothing here blocks but
a source's poll, for as long as the caller allows. The steps of a checkpoint, numbered as in docs/architecture.md:

    2. to 4. barriers and the snapshot: task/slot_checkpoints.py
    6.  "n is complete": sinks commit what they prepared up to n

Invariant 1. Frames of one physical channel are handled in the order they were sent; a gap or a repeat fails the slot.
Invariant 2. No record is processed before state is restored and restored committables are committed.
Invariant 3. Restored records go through before anything that does not come through the queue of frames: the end of a
             chain, its timers and watermarks, an aligned checkpoint of the first layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from tidegate.errors import ProtocolViolation
from tidegate.graph.plan import PlannedEdge
from tidegate.ids import ChannelId, CheckpointId
from tidegate.ports import Background, CallLoop, ControlPort, CrashPoints, RunAtOnce, SnapshotStorage
from tidegate.protocol import slot_events
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.protocol.slot_machine import SlotMachine
from tidegate.storage.paths import JobPaths
from tidegate.task.answers import SlotAnswers, nothing
from tidegate.task.capture import RESTORED
from tidegate.task.chains import call_all, close_all, host_chains, receivers
from tidegate.task.committing import Commits
from tidegate.task.flow import SlotFlow
from tidegate.task.held import HeldFrames
from tidegate.task.inbox import Captured, Overflowed
from tidegate.task.input_queue import InputQueue
from tidegate.task.keyed_files import SlotFiles
from tidegate.task.local_copies import LocalCopies, RestoreStorage
from tidegate.task.mailbox import BarrierArrived, Letter, Mailbox
from tidegate.task.operators.build import operator_context
from tidegate.task.operators.timers import Time
from tidegate.task.outbox import Outbox
from tidegate.task.processing_time import ProcessingTime
from tidegate.task.program import SlotProgram
from tidegate.task.restore import in_flight_frames, open_operators, restore_state
from tidegate.task.send_times import SendTimes
from tidegate.task.slicing import FrameAtHand, SliceSizer
from tidegate.task.slot_checkpoints import SlotCheckpoints
from tidegate.task.snapshots import SnapshotUploader
from tidegate.task.source_turns import SourceTurns
from tidegate.wire.control import (
    Abort,
    Cancel,
    Committed,
    Complete,
    Credits,
    Drain,
    Ended,
    Finish,
    GroupAt,
    LastCounts,
    OperatorMetrics,
    PauseSources,
    ResumeSources,
    SampleStacks,
    Start,
    Trigger,
)
from tidegate.wire.frame import Frame, Kind
from tidegate.wire.records import decode_records

CLEAN_UP_ENTRIES = 256  #: of expired state that are looked for after each frame: a little at a time, never a scan


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
        calls: CallLoop,
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
        layers = program.plan.layers
        self._is_first_layer = self.id.layer == 0
        below = layers[self.id.layer + 1].width if self.id.layer + 1 < len(layers) else 0
        above = 0 if self._is_first_layer else layers[self.id.layer - 1].width
        self._flow = SlotFlow(program.settings.in_flight_target_s, above, below, len(layers) - 1, control)
        self.outbox = Outbox(program.seal(), self.id, below, self._flow.credit)
        self._input = InputQueue(self.id, mailbox, above, self._new_held)
        self._processing_time = ProcessingTime(wall_clock, clock)
        wanted, wake = (lambda: self._flow.credit.records_left), (lambda: mailbox.post(nothing))
        context = operator_context(program, Time(clock, self._processing_time), sleep, wanted, control, calls, wake)
        self.chains = host_chains(program.plan, self.id, self.outbox, context)
        self._operators = [operator for chain in self.chains for operator in chain.operators]
        self._answers = SlotAnswers(self._operators)
        mailbox.tells_barriers = bool(self._answers)
        self._writers = [writer for chain in self.chains for writer in chain.writers]
        self._receivers = receivers(self.chains, program.plan.edges)
        self._sources = SourceTurns(self.chains, clock, control)
        paths = JobPaths(program.plan.job)
        copies = LocalCopies(self.settings.local_copies, program.plan.job, program.attempt, self.id, uploads)
        self._files = SlotFiles(copies)
        if program.settings.state.incremental:
            self._files.keep(self._operators, storage, lambda uid: paths.state_files(program.attempt, self.id, uid))
        uploader = SnapshotUploader(
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
        self._machine = SlotMachine(
            channels=frozenset(ChannelId(i) for i in range(above)),
            exactly_once=program.settings.exactly_once,
            limits=f"memory ({self.settings.held_memory_bytes}) and disk ({self.settings.held_disk_bytes})",
            aligned_at_most_s=self._answers.aligned_at_most_s,
        )
        self._checkpoints = SlotCheckpoints(
            slot=self.id,
            machine=self._machine,
            chains=self.chains,
            operators=self._operators,
            mailbox=mailbox,
            input=self._input,
            outbox=self.outbox,
            flush=self.flush,
            at_hand=lambda: self._work,
            commit=self._commit,
            new_held=self._new_held,
            uploader=uploader,
            uploads=uploads if program.settings.asynchronous_snapshots else RunAtOnce(),
            control=control,
            crash_points=crash_points,
            clock=clock,
        )
        self.paused = self._checkpoints.paused
        self._slices = SliceSizer()
        self._work: FrameAtHand | None = None
        self._started = False
        self._commit_only = False  #: nothing is processed any more; what was prepared is committed
        self._restoring = RestoreStorage(storage)
        self._restored_from = CheckpointId(0)
        self._said_ended = False
        self._finish_requested = self._goes_on = False
        self._send_times = SendTimes(self.settings.buffer_timeout_s, self.id.layer, clock)
        self.finished = False

    # -- the loop -------------------------------------------------------------------------------------------------

    def turn(self, patience_s: float) -> bool:
        """One piece of work. False when there was nothing to do; a source may wait up to `patience_s` for records."""
        letter = self.mailbox.take_letter()
        if letter is not None:
            self._read_letter(letter)
            return True
        if not self._machine.flows:
            if self.takes_frames:
                while self.mailbox.take_frame() is not None:
                    pass  # sent after the last barrier, by nobody whose state is kept
                self.finished = self._is_first_layer or self.mailbox.input_ended
            return False
        if self._is_first_layer and self._machine.postponed() and not self._restored_wait():
            self._checkpoints.on(slot_events.RestoredProcessed())
            return True
        if self._answers and self._may_send and not self._restored_wait() and self._answers.release():
            return True
        if not self.must_wait:
            if self._work is not None:
                self._go_on()
                return True
            frame = self._input.next(self._machine.done)
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
        if self._is_dirty() and self._send_times.is_due(idle):
            self.flush()

    def flush(self) -> None:
        """Everything emitted so far is in the outbox."""
        for chain in self.chains:
            chain.flush()
        self._send_times.sent()

    def next_deadline(self) -> float | None:
        """When the loop must turn again, even if nothing arrives."""
        times = [self._send_times.idle_at] if self._is_dirty() else []
        if self._commits.retry_at is not None:
            times.append(self._commits.retry_at)
        acting = self.chains if self._time_may_act() else ()
        times += [at for each in (self._machine, self._sources, *acting) if (at := each.next_time()) is not None]
        return min(times, default=None)

    def on_time(self) -> None:
        """Deadlines that have passed."""
        if self._commits.retry_at is not None and self._commits.retry_at <= self._clock():
            self._commits.resume()
        self._processing_time.follow()
        self._sources.tell()
        self._checkpoints.on_time(now := self._clock())
        if self._input_is_kept_back():
            for chain in self.chains:
                chain.on_kept_back()
        if self._time_may_act():
            for chain in self.chains:
                due = chain.next_time()
                if due is not None and due <= now:
                    chain.on_time()

    def _time_may_act(self) -> bool:
        """On the chains: not in the middle of a frame, nor before restored records. What may not act is not due either."""
        return self._machine.flows and self._work is None and not self._input.has_restored

    def _input_is_kept_back(self) -> bool:
        """That a chain gets no records says nothing about its source."""
        return self._sources.paused or self.must_wait or self._restored_wait()

    def _restored_wait(self) -> bool:
        """Some, or a part of one: whatever does not come through the queue of frames would overtake them."""
        work = self._work
        return self._input.has_restored or (work is not None and work.frame.sender == RESTORED)

    def close(self) -> None:
        """Let go of readers and writers; nothing becomes visible by this.

        :raises OperatorFailed: for the first that failed; the others are closed all the same.
        """
        self.mailbox.close()
        self._files.copies.close(job_ended=self._finish_requested and not self._goes_on)
        close_all(self._operators)

    def has_active_source(self) -> bool:
        return self._machine.flows and self._sources.any_active and not self.must_wait

    @property
    def must_wait(self) -> bool:
        """Back-pressure: as much is in flight as the slots after it have asked for, or as may be asked of the outside. Barriers
        are sent all the same."""
        if not self._answers or not self._may_send:
            return not self._may_send
        is_full = self._answers.room <= 0 and not self._restored_wait()  # restored records are in no order but this
        return is_full and not self._finish_requested

    @property
    def takes_frames(self) -> bool:
        """If not, only letters change anything. A slot that was stopped throws frames away, once the job has ended."""
        winds_down = self._finish_requested and (self._commit_only or self._machine.halted)
        return not self.must_wait if self._machine.flows else winds_down

    @property
    def has_more(self) -> bool:
        """Something has come that is not taken yet."""
        return self._work is not None or self.mailbox.has_frames or self.mailbox.has_letters or self._input.has_released

    @property
    def _may_send(self) -> bool:
        return not self._flow.credit.is_used_up or self._finish_requested

    def metrics(self) -> list[OperatorMetrics]:
        return [operator.metrics() for operator in self._operators]

    @property
    def held_bytes(self) -> int:
        return self._input.kept_bytes

    def _new_held(self) -> HeldFrames:
        return HeldFrames(self.settings.held_memory_bytes, self.settings.held_disk_bytes)

    # -- letters --------------------------------------------------------------------------------------------------

    def _read_letter(self, letter: Letter) -> None:
        match letter:
            case Start():
                self._start(letter)
            case Trigger(id, after_s, order, halt):
                about = after_s, order, halt, self._restored_wait()
                self._checkpoints.on(slot_events.Triggered(CheckpointId(id), *about))
            case Drain():
                self._sources.drain()
            case BarrierArrived(checkpoint, unaligned):
                self._checkpoints.on(slot_events.BarrierSeen(CheckpointId(checkpoint), unaligned))
            case Captured(checkpoint):
                self._checkpoints.on(slot_events.CutWhole(CheckpointId(checkpoint)))
            case Overflowed(checkpoint, kept_bytes):
                self._checkpoints.on(slot_events.InboxOverflowed(CheckpointId(checkpoint), kept_bytes))
            case PauseSources() | ResumeSources():
                self._sources.paused = isinstance(letter, PauseSources)
            case GroupAt():
                self._sources.on_group(letter)
            case Credits():
                self._flow.on_credits(letter)
            case SampleStacks():
                pass  # the process's part (task/main.py); where there is none, nobody can look
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
        self._input.restore(frames)
        self._commit_only = start.commit_only
        open_operators(start, self.chains)
        self._crash_points.reach("slot.restored", self.id, start.restored_from)
        if start.restored_from is None:
            self._become_ready()
        else:
            self._restored_from = CheckpointId(start.restored_from)
            self._commits.commit_up_to(LoggedCheckpoint.from_driver(self._restored_from))

    def _committed(self, checkpoint: CheckpointId) -> None:
        if not self._machine.opened and not self._commit_only:
            self._become_ready()
        self._control.send(Committed(checkpoint))

    def _become_ready(self) -> None:
        self._checkpoints.on(slot_events.SlotOpened(self._restored_from))
        self._send_times.sent()
        self._control.send(self._restoring.ready(self._clock()))

    def _complete(self, checkpoint: CheckpointId) -> None:
        self._files.completed(checkpoint)
        self._checkpoints.on(slot_events.CheckpointCompleted(LoggedCheckpoint.from_driver(checkpoint)))

    def _abort(self, checkpoint: CheckpointId, latest_completed: CheckpointId) -> None:
        self._files.aborted(checkpoint, latest_completed)
        logged = LoggedCheckpoint.from_driver(latest_completed) if latest_completed else None
        self._checkpoints.on(slot_events.CheckpointAborted(checkpoint, logged))

    def _commit(self, logged: LoggedCheckpoint) -> None:
        call_all(self._operators, lambda operator: operator.notify_complete(logged.id), logged.id)
        self._commits.commit_up_to(logged)

    # -- frames ---------------------------------------------------------------------------------------------------

    def _accept(self, frame: Frame) -> None:
        if frame.sender in self._input.held_channels:
            if not self._input.hold_back(frame):
                self._checkpoints.on(slot_events.HeldOverflowed(self._input.held_bytes))
        else:
            self._process(frame)

    def _process(self, frame: Frame) -> None:
        match frame.kind:
            case Kind.RECORDS | Kind.END_OF_INPUT | Kind.WATERMARK:
                edge = self._plan.edges[frame.edge]
                if edge.to_layer == self.id.layer:
                    self._deliver(frame, edge)
                else:
                    self.outbox.relay(self._plan.next_slot(edge, frame.target, self.id.layer), frame)
                    self._flow.processed(frame, frame.count, now := self._clock(), now)
            case Kind.CHECKPOINT_BARRIER:
                self._checkpoints.on(slot_events.BarrierTaken(ChannelId(frame.sender), CheckpointId(frame.value)))
            case Kind.PULSE:
                raise ProtocolViolation("a Pulse has nothing to say")  # the input queue passes over it
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
        if work.process_slice(self._slices, self._answers.room, self._flow, self._clock):
            self._work = None
            if work.operator.backend is not None:
                work.operator.backend.clean_up(CLEAN_UP_ENTRIES)

    def _end_chains(self) -> None:
        if self._input.has_restored:
            return
        for chain in self.chains:
            if not chain.ended and self._work is None and chain.input_has_ended():
                chain.end()
        if not self._said_ended and all(chain.ended for chain in self.chains):
            self._said_ended = True
            self._control.send(LastCounts(self.metrics()))
            self._control.send(Ended())

    def _is_dirty(self) -> bool:
        return any(writer.is_dirty for writer in self._writers)
