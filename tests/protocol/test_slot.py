"""One slot of the product over scripted channels: what it processes, says, forwards and stores, and in which order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from protocol_kit import Later, Reached, Said, attempt_id, fresh_storage

import tidegate as tg
from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.errors import CommitLost, ProtocolViolation, StorageError
from tidegate.graph.plan import JobPlan, PlannedEdge, plan_job
from tidegate.ids import SlotId
from tidegate.storage.metadata import Committable
from tidegate.storage.snapshot_file import read_sections
from tidegate.storage.store import ObjectStore, open_store
from tidegate.task.inbox import Inbox
from tidegate.task.mailbox import Mailbox
from tidegate.task.operators.base import OperatorFailed
from tidegate.task.outbox import Outbox
from tidegate.task.program import SlotProgram, SlotSettings
from tidegate.task.slot import Slot
from tidegate.testing.clock import ManualClock
from tidegate.testing.stepped_loop import SteppedCalls
from tidegate.testing.stores import FailCall, FlakyStore
from tidegate.wire.control import (
    Abort,
    Acknowledge,
    Committed,
    Complete,
    Decline,
    Ended,
    Finish,
    Ready,
    Start,
    SubtaskRestore,
    ToSlot,
    Trigger,
)
from tidegate.wire.frame import Frame, Kind, decode_frame
from tidegate.wire.records import decode_records, encode_records
from tidegate.wire.seal import FrameSeal

KEY = b"frame key"

# -- the job: two slots of sources -> Track, in one slot -> a sink -------------------------------------------------------

#: What `Track` and the sink see, in order. Of one test at a time.
events: list[Any] = []
clock = ManualClock()
outcomes: list[CommitOutcome] = []  #: what the committer answers next; DONE when empty


@pytest.fixture(autouse=True)
def nothing_has_happened() -> None:
    events.clear()
    outcomes.clear()
    clock.now = 1000.0


class Track(tg.KeyedProcessFunction):
    seen = tg.ListState(int)
    slow_s = 0.0

    def process_element(self, value: int, ctx: tg.Context) -> list[int]:
        events.append(value)
        clock.advance(self.slow_s)
        self.seen.add(value)
        return [value]

    def end_input(self, ctx: tg.Context) -> list[int]:
        events.append("end")
        return [-1]


class SlowTrack(Track):
    slow_s = 1.0


class TrackedSink(Sink):
    def writer(self, context: WriterContext) -> SinkWriter:
        return _Writer()

    def committer(self, context: WriterContext) -> Committer:
        return _Committer()


class _Writer(SinkWriter):
    def __init__(self) -> None:
        self.rows: list[int] = []

    def write(self, batch: Batch) -> None:
        self.rows += batch.rows()

    def prepare(self, checkpoint: int) -> list[bytes]:
        prepared, self.rows = self.rows, []
        return [repr(prepared).encode()] if prepared else []


class _Committer(Committer):
    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        events.append(("commit", *(each.decode() for each in committables)))
        return [outcomes.pop(0) if outcomes else CommitOutcome.DONE for _ in committables]


def planned(function: Track | None = None, sink_parallelism: int = 1) -> JobPlan:
    env = tg.StreamEnvironment("job", parallelism=1)
    numbers = env.from_collection([1], uid="source", parallelism=2)
    tracked = numbers.key_by(lambda value: 0, key_type=int).process(function or Track(), uid="track", returns=int)
    tracked.sink_to(TrackedSink(), uid="out", parallelism=sink_parallelism)
    return plan_job("job", env._graph, 1)


@dataclass(slots=True)
class Channel:
    """One upstream slot's end of a channel to the slot under test."""

    outbox: Outbox
    edge: PlannedEdge
    origin: int
    receiver: int = 0
    target: int = 0

    def records(self, *values: int) -> list[Frame]:
        flags, payload = encode_records(Batch(self.edge.record_type, rows=list(values)))
        self.outbox.send(
            self.receiver,
            Kind.RECORDS,
            origin=self.origin,
            target=self.target,
            edge=self.edge.index,
            count=len(values),
            flags=flags,
            payload=payload,
        )
        return self._frames()

    def barrier(self, checkpoint: int, flags: int = 0) -> list[Frame]:
        self.outbox.send(self.receiver, Kind.CHECKPOINT_BARRIER, value=checkpoint, flags=flags)
        return self._frames()

    def end(self) -> list[Frame]:
        self.outbox.send(self.receiver, Kind.END_OF_INPUT, origin=self.origin, target=self.target, edge=self.edge.index)
        return self._frames()

    def _frames(self) -> list[Frame]:
        return [decode_frame(FrameSeal(KEY), SlotId(1, to), memoryview(row)) for to, row in self.outbox.take(1 << 30)]


@dataclass(slots=True)
class Worker:
    """The slot under test and all around it."""

    plan: JobPlan = field(default_factory=planned)
    id: SlotId = SlotId(1, 0)
    settings: SlotSettings = field(default_factory=lambda: SlotSettings(inline_limit_bytes=0))
    store: ObjectStore = field(default_factory=lambda: open_store(fresh_storage()))
    said: Said = field(default_factory=Said)
    uploads: Later = field(default_factory=Later)
    commits: Later = field(default_factory=Later)
    points: Reached = field(default_factory=Reached)
    triggered: set[int] = field(default_factory=set)
    slot: Slot = field(init=False)
    a: Channel = field(init=False)
    b: Channel = field(init=False)

    def __post_init__(self) -> None:
        self.slot = Slot(
            program=SlotProgram(self.plan, self.id, attempt_id(1), KEY, self.settings),
            mailbox=Mailbox(
                Inbox(self.settings.inbox_bytes, self.settings.held_memory_bytes, self.settings.held_disk_bytes),
                self.said.send,
            ),
            control=self.said,
            storage=self.store,
            uploads=self.uploads,
            commits=self.commits,
            calls=SteppedCalls(clock),
            crash_points=self.points,
            clock=clock,
            wall_clock=clock,
            sleep=clock.sleep,
        )
        edge = next((edge for edge in self.plan.edges if edge.edge.downstream == "track"), self.plan.edges[0])
        self.a = Channel(Outbox(FrameSeal(KEY), SlotId(0, 0), 1), edge, 0)
        self.b = Channel(Outbox(FrameSeal(KEY), SlotId(0, 1), 1), edge, 1)

    def start(self, start: Start | None = None) -> Worker:
        self.tell(start or Start(None, [SubtaskRestore("track", 0), SubtaskRestore("out", 0)], []))
        return self

    def tell(self, *messages: ToSlot) -> None:
        for message in messages:
            if isinstance(message, Trigger):
                self.triggered.add(message.checkpoint)
            self.slot.mailbox.post(message)
        self.turn()

    def get(self, *frames: list[Frame]) -> None:
        """Frames arrive, in this order, and the slot does all that it can."""
        for frame in (each for many in frames for each in many):
            if frame.kind is Kind.CHECKPOINT_BARRIER and frame.value not in self.triggered:
                self.tell(Trigger(frame.value))  # as the coordinator tells every slot
            self.slot.mailbox.put_frame(frame)
        self.turn()

    def turn(self) -> None:
        while self.slot.turn(0.0):
            pass
        self.slot.on_time()

    def sent(self) -> list[Any]:
        """What has left for the next layer: values of records, ("barrier", id), "end"."""
        self.slot.flush()
        found: list[Any] = []
        for to, row in self.slot.outbox.take(1 << 30):
            frame = decode_frame(FrameSeal(KEY), SlotId(self.id.layer + 1, to), memoryview(row))
            match frame.kind:
                case Kind.RECORDS:
                    found += decode_records(frame, self.plan.edges[frame.edge].record_type).rows()
                case Kind.CHECKPOINT_BARRIER:
                    found.append(("barrier", frame.value))
                case Kind.END_OF_INPUT:
                    found.append("end")
        return found

    def acknowledged(self, checkpoint: int) -> Acknowledge:
        (ack,) = [ack for ack in self.said.of(Acknowledge) if ack.checkpoint == checkpoint]
        return ack

    def stored(self, checkpoint: int) -> list[int]:
        """What `Track` had seen, as the checkpoint has it."""
        file = self.acknowledged(checkpoint).snapshot.file
        return [
            value
            for section, batch in read_sections(self.store, file)
            if section.uid == "track" and section.state == "seen"
            for row in batch.to_pylist()
            for value in _ints(row)
        ]


def _ints(row: dict[str, Any]) -> list[int]:
    """The values of a stored list, whatever the columns are called."""
    found = [value for value in row.values() if isinstance(value, list)]
    return list(found[0]) if found else [row["value"]]


# -- alignment --------------------------------------------------------------------------------------------------------


def test_what_comes_behind_a_barrier_waits_until_the_snapshot_is_taken() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1), worker.a.barrier(1), worker.a.records(2), worker.b.records(3))
    assert events == [1, 3]
    assert worker.slot.held_bytes > 0

    worker.get(worker.b.barrier(1), worker.b.records(4))
    assert events == [1, 3, 2, 4]
    assert worker.slot.held_bytes == 0
    worker.uploads.run_all()
    assert worker.stored(1) == [1, 3]


def test_held_frames_are_processed_before_anything_newer_of_their_channel() -> None:
    worker = Worker().start()
    worker.get(worker.a.barrier(1), worker.a.records(1), worker.a.records(2))
    worker.get(worker.b.barrier(1), worker.a.records(3), worker.b.records(4))

    assert events == [1, 2, 3, 4]


def test_the_barrier_leaves_after_all_records_before_it_and_before_all_behind_it() -> None:
    worker = Worker(planned(sink_parallelism=2)).start()
    worker.get(worker.a.records(1), worker.a.barrier(1), worker.a.records(2))
    worker.get(worker.b.records(3), worker.b.barrier(1), worker.b.records(4))
    seen = worker.sent()

    assert seen.count(("barrier", 1)) == 2  # one for each slot of the next layer
    first, last = seen.index(("barrier", 1)), len(seen) - 1 - seen[::-1].index(("barrier", 1))
    assert sorted(seen[:first]) == [1, 3]
    assert sorted(seen[last + 1 :]) == [2, 4]


def test_two_checkpoints_may_be_under_way_and_each_cut_is_exact() -> None:
    worker = Worker().start()
    worker.get(worker.a.barrier(1), worker.a.records(1), worker.a.barrier(2), worker.a.records(2))
    worker.get(worker.b.records(3), worker.b.barrier(1), worker.b.records(4), worker.b.barrier(2), worker.b.records(5))
    worker.uploads.run_all()

    assert worker.stored(1) == [3]
    assert worker.stored(2) == [3, 1, 4]
    assert sorted(events) == [1, 2, 3, 4, 5]


def test_an_aborted_checkpoint_lets_the_held_frames_go_and_its_late_barrier_passes() -> None:
    worker = Worker().start()
    worker.get(worker.a.barrier(1), worker.a.records(1))
    assert events == []
    worker.tell(Abort(1, 0))
    assert events == [1]
    worker.get(worker.b.barrier(1), worker.b.records(2))
    assert events == [1, 2]
    assert not worker.uploads.jobs

    worker.get(worker.a.barrier(2), worker.b.barrier(2))
    worker.uploads.run_all()
    assert worker.stored(2) == [1, 2]


def test_the_abort_of_a_newer_checkpoint_leaves_the_older_one_aligning() -> None:
    worker = Worker().start()
    worker.get(worker.a.barrier(1), worker.a.records(1))
    worker.tell(Abort(2, 0))
    worker.get(worker.b.barrier(1), worker.a.barrier(2), worker.b.barrier(2))
    worker.uploads.run_all()

    assert [ack.checkpoint for ack in worker.said.of(Acknowledge)] == [1]


def test_a_newer_barrier_that_overtakes_makes_the_slot_decline_the_older_checkpoint() -> None:
    worker = Worker().start()
    worker.get(worker.a.barrier(1), worker.a.records(1), worker.b.barrier(2), worker.b.records(2))
    assert [decline.checkpoint for decline in worker.said.of(Decline)] == [1]
    assert events == [1]

    worker.get(worker.a.barrier(2))
    worker.uploads.run_all()
    assert worker.stored(2) == [1]
    assert events == [1, 2]


@pytest.mark.parametrize(("memory", "disk"), [(0, 0), (150, 0), (0, 150), (150, 150)])
def test_past_the_alignment_limit_the_checkpoint_is_declined_and_no_record_is_lost(memory: int, disk: int) -> None:
    settings = SlotSettings(held_memory_bytes=memory, held_disk_bytes=disk)
    worker = Worker(settings=settings).start()
    worker.get(worker.a.barrier(1), *(worker.a.records(number) for number in range(10)))

    (decline,) = worker.said.of(Decline)
    assert decline.checkpoint == 1
    assert "had to be held back during alignment" in decline.reason
    assert events == list(range(10))
    worker.get(worker.b.barrier(1), worker.b.records(10))
    assert events == list(range(11))
    assert not worker.uploads.jobs


def test_held_frames_on_disk_come_back_in_order() -> None:
    worker = Worker(settings=SlotSettings(held_memory_bytes=200, held_disk_bytes=1 << 20)).start()
    worker.get(worker.a.barrier(1), *(worker.a.records(number) for number in range(20)))
    assert events == []
    worker.get(worker.b.barrier(1))

    assert events == list(range(20))
    assert not worker.said.of(Decline)


def test_held_frames_do_not_fill_the_inbox() -> None:
    worker = Worker(settings=SlotSettings(inbox_bytes=1)).start()
    worker.get(worker.a.barrier(1))
    for number in range(50):
        worker.get(worker.a.records(number))
    worker.get(worker.b.barrier(1))

    assert events == list(range(50))


def test_what_was_held_and_for_how_long_is_reported() -> None:
    worker = Worker().start()
    worker.tell(Trigger(1))
    clock.advance(2.0)
    worker.get(worker.a.barrier(1), worker.a.records(1))
    held = worker.slot.held_bytes
    clock.advance(3.0)
    worker.get(worker.b.barrier(1))
    worker.uploads.run_all()

    timings = worker.acknowledged(1).timings
    assert (timings.start_delay_s, timings.alignment_s, timings.alignment_bytes) == (2.0, 3.0, held)


def test_a_checkpoint_says_how_long_the_slot_heard_nothing_since_the_one_before() -> None:
    worker = Worker().start()
    for pause_s in (0.5, 4.0, 0.25):
        worker.slot.paused(pause_s)
    for checkpoint in (1, 2):
        worker.get(worker.a.barrier(checkpoint), worker.b.barrier(checkpoint))
        worker.uploads.run_all()

    assert [worker.acknowledged(checkpoint).timings.pause_s for checkpoint in (1, 2)] == [4.0, 0.0]


# -- a frame at a time ------------------------------------------------------------------------------------------------


def test_a_frame_that_takes_long_is_processed_in_slices_and_letters_are_read_between() -> None:
    worker = Worker(planned(SlowTrack())).start()
    for frame in worker.a.records(*range(100)):
        worker.slot.mailbox.put_frame(frame)
    worker.slot.turn(0.0)
    first = len(events)
    assert 0 < first < 100
    worker.slot.mailbox.post(Complete(1))
    worker.slot.turn(0.0)
    assert worker.said.of(Committed) == [Committed(1)]
    assert len(events) == first


def test_a_barrier_behind_a_frame_waits_until_the_whole_frame_is_processed() -> None:
    worker = Worker(planned(SlowTrack())).start()
    worker.get(worker.a.records(*range(100)), worker.a.barrier(1), worker.b.barrier(1), worker.a.records(100))
    worker.uploads.run_all()

    assert events == list(range(101))
    assert worker.stored(1) == list(range(100))


def test_a_gap_and_a_repeat_in_a_channel_end_the_slot() -> None:
    gap, repeat = Worker().start(), Worker().start()
    gap.a.records(1)
    with pytest.raises(ProtocolViolation, match="got frame 1 from sender 0 where 0 was due"):
        gap.get(gap.a.records(2))
    frames = repeat.a.records(1)
    with pytest.raises(ProtocolViolation, match="got frame 0 from sender 0 where 1 was due"):
        repeat.get(frames, frames)


def test_a_frame_of_an_unknown_sender_or_for_another_subtask_ends_the_slot() -> None:
    stranger, misled = Worker().start(), Worker().start()
    with pytest.raises(ProtocolViolation, match="no such sender"):
        stranger.get(Channel(Outbox(FrameSeal(KEY), SlotId(0, 7), 1), stranger.a.edge, 0).records(1))
    with pytest.raises(ProtocolViolation, match="for subtask 3"):
        misled.get(Channel(Outbox(FrameSeal(KEY), SlotId(0, 0), 1), misled.a.edge, 0, target=3).records(1))


# -- storing and acknowledging ----------------------------------------------------------------------------------------


def test_the_acknowledgement_comes_only_after_the_file_is_stored() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1), worker.a.barrier(1), worker.b.barrier(1))
    assert not worker.said.of(Acknowledge)
    path = "job/chk-1/g1-a1/slot-1-0.snapshot"
    assert not worker.store.exists(path)

    worker.uploads.run_all()
    assert worker.acknowledged(1).snapshot.file.path == path
    assert worker.store.exists(path)
    steps = [point for point in worker.points.points if point.startswith("slot.")]
    assert steps == [
        "slot.restoring",
        "slot.restored",
        "slot.aligned",
        "slot.barrier-forwarded",
        "slot.snapshot-taken",
        "slot.before-store",
        "slot.before-ack",
        "slot.after-ack",
    ]


def test_what_is_processed_after_the_synchronous_part_is_not_in_the_snapshot() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1), worker.a.barrier(1), worker.b.barrier(1), worker.a.records(2))
    worker.uploads.run_all()

    assert worker.stored(1) == [1]


@pytest.mark.parametrize("after_effect", [False, True])
def test_a_snapshot_that_cannot_be_stored_is_declined_and_the_slot_goes_on(after_effect: bool) -> None:
    store = FlakyStore(open_store(fresh_storage()), [FailCall("put", after_effect=after_effect)])
    worker = Worker(store=store).start()
    worker.get(worker.a.records(1), worker.a.barrier(1), worker.b.barrier(1))
    worker.uploads.run_all()
    assert [decline.checkpoint for decline in worker.said.of(Decline)] == [1]
    assert not worker.said.of(Acknowledge)

    worker.get(worker.a.barrier(2), worker.b.barrier(2))
    worker.uploads.run_all()
    assert worker.stored(2) == [1]


def test_a_snapshot_of_an_aborted_checkpoint_is_not_stored() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1), worker.a.barrier(1), worker.b.barrier(1))
    worker.tell(Abort(1, 0))
    worker.uploads.run_all()

    assert not worker.said.of(Acknowledge)
    assert not worker.said.of(Decline)
    assert worker.store.list("job/") == []


def test_a_source_slot_takes_part_when_it_hears_the_trigger() -> None:
    worker = Worker(id=SlotId(0, 0))
    worker.start(Start(None, [SubtaskRestore("source", 0)], []))
    worker.tell(Trigger(1))
    worker.uploads.run_all()

    assert worker.acknowledged(1).snapshot.layer == 0
    assert ("barrier", 1) in worker.sent()


# -- committing -------------------------------------------------------------------------------------------------------


def prepared(worker: Worker, checkpoint: int) -> list[bytes]:
    """The committables that the checkpoint has."""
    subtasks = worker.acknowledged(checkpoint).snapshot.subtasks
    return [committable.payload for subtask in subtasks for committable in subtask.committables]


def run_checkpoint(worker: Worker, number: int) -> None:
    worker.get(worker.a.barrier(number), worker.b.barrier(number))
    worker.uploads.run_all()


def test_sinks_commit_only_when_the_checkpoint_is_complete() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1, 2))
    run_checkpoint(worker, 1)
    assert prepared(worker, 1) == [b"[1, 2]"]
    assert not worker.commits.jobs

    worker.tell(Complete(1))
    worker.commits.run_all()
    worker.turn()
    assert events[-1] == ("commit", "[1, 2]")
    assert worker.said.of(Committed) == [Committed(1)]


def test_a_committable_stays_in_every_snapshot_until_its_commit_has_returned() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1))
    run_checkpoint(worker, 1)
    worker.get(worker.a.records(2))
    run_checkpoint(worker, 2)
    worker.tell(Complete(1))
    worker.get(worker.a.records(3))
    run_checkpoint(worker, 3)  # the commit of 1 is under way
    assert prepared(worker, 2) == [b"[1]", b"[2]"]
    assert prepared(worker, 3) == [b"[1]", b"[2]", b"[3]"]

    worker.commits.run_all()
    worker.turn()
    run_checkpoint(worker, 4)
    assert prepared(worker, 4) == [b"[2]", b"[3]"]


def test_what_a_declined_checkpoint_prepared_is_committed_with_the_next() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1))
    run_checkpoint(worker, 1)
    worker.tell(Abort(1, 0))
    assert not worker.commits.jobs
    worker.get(worker.a.records(2))
    run_checkpoint(worker, 2)
    worker.tell(Complete(2))
    worker.commits.run_all()

    assert events[-1] == ("commit", "[1]", "[2]")


def test_an_abort_repairs_a_lost_completion() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1))
    run_checkpoint(worker, 1)
    worker.tell(Abort(2, 1))
    worker.commits.run_all()
    worker.turn()

    assert events[-1] == ("commit", "[1]")
    assert worker.said.of(Committed) == [Committed(1)]


def test_operators_hear_of_each_completion_once_also_when_the_message_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker().start()
    heard: list[int] = []
    monkeypatch.setattr(worker.slot._operators[0], "notify_complete", heard.append)
    worker.tell(Complete(1), Complete(1))
    worker.tell(Abort(3, 2))  # the completion of 2 was lost
    worker.tell(Complete(2), Abort(4, 2), Complete(5))

    assert heard == [1, 2, 5]


def test_a_completion_that_is_repeated_commits_nothing_twice() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1))
    run_checkpoint(worker, 1)
    for message in (Complete(1), Complete(1), Abort(2, 1)):
        worker.tell(message)
        worker.commits.run_all()
        worker.turn()

    assert events.count(("commit", "[1]")) == 1
    assert worker.said.of(Committed) == [Committed(1)]


def test_a_commit_that_must_wait_is_asked_again_later_and_only_for_what_is_missing() -> None:
    worker = Worker().start()
    for number in (1, 2):
        worker.get(worker.a.records(number))
        run_checkpoint(worker, number)
    outcomes[:] = [CommitOutcome.RETRY, CommitOutcome.DONE]
    worker.tell(Complete(2))
    worker.commits.run_all()
    worker.turn()
    assert events[-1] == ("commit", "[1]", "[2]")
    assert not worker.said.of(Committed)

    deadline = worker.slot.next_deadline()
    assert deadline is not None
    assert deadline > clock()
    clock.now = deadline
    worker.turn()
    worker.commits.run_all()
    worker.turn()
    assert events[-1] == ("commit", "[1]")
    assert worker.said.of(Committed) == [Committed(2)]


def test_prepared_data_that_is_lost_ends_the_job_by_name() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1))
    run_checkpoint(worker, 1)
    outcomes[:] = [CommitOutcome.LOST]
    worker.tell(Complete(1))
    worker.commits.run_all()

    with pytest.raises(OperatorFailed) as caught:
        worker.turn()
    assert isinstance(caught.value.cause, CommitLost)
    assert caught.value.operator.uid == "out"
    assert caught.value.checkpoint == 1


# -- starting and ending ----------------------------------------------------------------------------------------------


def restored_start(worker: Worker, file: Any) -> Start:
    committables = [Committable("out", 3, 1, b"[9]")]
    subtasks = [SubtaskRestore("track", 0), SubtaskRestore("out", 0, committables=committables)]
    return Start(5, subtasks, [file])


def test_no_record_is_processed_before_state_is_restored_and_restored_committables_are_committed() -> None:
    before = Worker().start()
    before.get(before.a.records(7), before.a.barrier(5), before.b.barrier(5))
    before.uploads.run_all()
    events.clear()
    worker = Worker(store=before.store)
    worker.get(worker.a.records(1))
    assert events == []
    worker.start(restored_start(worker, before.acknowledged(5).snapshot.file))
    assert events == []
    assert not worker.said.of(Ready)

    worker.commits.run_all()
    worker.turn()
    assert events == [("commit", "[9]"), 1]
    assert len(worker.said.of(Ready)) == 1
    run_checkpoint(worker, 6)
    assert worker.stored(6) == [7, 1]
    assert prepared(worker, 6) == [b"[1]"]


def test_a_restored_commit_that_must_wait_keeps_the_input_waiting() -> None:
    before = Worker().start()
    run_checkpoint(before, 5)
    worker = Worker(store=before.store)
    outcomes[:] = [CommitOutcome.RETRY]
    worker.start(restored_start(worker, before.acknowledged(5).snapshot.file))
    worker.get(worker.a.records(1))
    worker.commits.run_all()
    worker.turn()
    assert events == [("commit", "[9]")]

    clock.advance(60)
    worker.turn()
    worker.commits.run_all()
    worker.turn()
    assert events == [("commit", "[9]"), ("commit", "[9]"), 1]


def test_state_that_cannot_be_read_ends_the_slot_before_anything_is_committed() -> None:
    before = Worker().start()
    before.get(before.a.records(7))
    run_checkpoint(before, 5)
    worker = Worker(store=FlakyStore(before.store, [FailCall("get_range")]))

    with pytest.raises(StorageError):
        worker.start(restored_start(worker, before.acknowledged(5).snapshot.file))
    assert not worker.commits.jobs
    assert not worker.said.of(Ready)


def test_a_slot_that_is_started_twice_ends() -> None:
    with pytest.raises(ProtocolViolation, match="started twice"):
        Worker().start().start()


def test_input_ends_when_the_last_channel_has_ended_and_its_end_is_said_once() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1), worker.a.end())
    assert events == [1]
    assert not worker.said.of(Ended)
    worker.get(worker.b.records(2), worker.b.end())
    assert events == [1, 2, "end"]
    worker.turn()
    assert worker.said.of(Ended) == [Ended()]

    run_checkpoint(worker, 1)
    assert [subtask.ended for subtask in worker.acknowledged(1).snapshot.subtasks] == [True, True]
    assert prepared(worker, 1) == [b"[1, 2, -1]"]


def test_an_end_behind_a_barrier_is_not_in_the_checkpoint() -> None:
    worker = Worker().start()
    worker.get(worker.a.end(), worker.b.barrier(1), worker.b.end(), worker.a.barrier(1))
    worker.uploads.run_all()

    assert events == ["end"]
    assert [subtask.ended for subtask in worker.acknowledged(1).snapshot.subtasks] == [False, False]


def test_an_end_that_has_run_does_not_run_again_after_a_restore() -> None:
    before = Worker().start()
    before.get(before.a.end(), before.b.end())
    run_checkpoint(before, 5)
    events.clear()
    worker = Worker(store=before.store)
    ended = [SubtaskRestore("track", 0, ended=True), SubtaskRestore("out", 0, ended=True)]
    worker.start(Start(5, ended, [before.acknowledged(5).snapshot.file]))
    worker.get(worker.a.end(), worker.b.end())

    assert events == []
    assert worker.said.of(Ended) == [Ended()]


def test_a_slot_ends_when_it_is_told_and_its_input_is_through() -> None:
    worker = Worker().start()
    worker.get(worker.a.end(), worker.b.end())
    worker.tell(Finish())
    assert not worker.slot.finished
    worker.slot.mailbox.end_input()
    worker.turn()
    assert worker.slot.finished


def test_a_slot_that_was_stopped_is_not_woken_by_frames_until_the_stop_fails_or_the_job_ends() -> None:
    """A slot that turned for what comes after its last barrier would turn until the slowest slot has stored its state."""
    worker = Worker()
    assert not worker.slot.takes_frames  # restoring comes first
    worker.start()
    assert worker.slot.takes_frames
    worker.tell(Trigger(1, None, None, True))
    worker.get(worker.a.barrier(1), worker.b.barrier(1), worker.a.records(1))
    assert not worker.slot.takes_frames
    worker.tell(Abort(1, 0))
    assert events == [1]
    assert worker.slot.takes_frames

    worker.tell(Trigger(2, None, None, True))
    worker.get(worker.a.barrier(2), worker.b.barrier(2), worker.a.records(2))
    worker.tell(Finish())
    assert worker.slot.takes_frames
    assert not worker.slot.mailbox.has_frames
    assert events == [1]


def test_input_that_ends_before_the_job_does_is_a_failure() -> None:
    worker = Worker().start()
    worker.slot.mailbox.end_input()
    with pytest.raises(ProtocolViolation, match="ended before the job did"):
        worker.turn()


# -- relays -----------------------------------------------------------------------------------------------------------


def relaying() -> JobPlan:
    env = tg.StreamEnvironment("job", parallelism=1)
    numbers = env.from_collection([1], uid="source", parallelism=2)
    deep = numbers.rebalance().map(lambda value: value, uid="deep", returns=int)
    both = deep.rebalance().union(numbers.rebalance()).map(lambda value: value, uid="both", returns=int, parallelism=3)
    both.sink_to(TrackedSink(), uid="out", parallelism=3)
    return plan_job("job", env._graph, 1)


@pytest.mark.parametrize("target", [0, 1, 2])
def test_a_relaying_slot_passes_frames_on_in_order_to_the_slot_they_are_for(target: int) -> None:
    plan = relaying()
    (edge,) = [edge for edge in plan.edges if (edge.edge.upstream, edge.edge.downstream) == ("source", "both")]
    index = plan.next_slot(edge, target, 0)
    worker = Worker(plan, SlotId(1, index), SlotSettings(inline_limit_bytes=0, in_flight_target_s=None))
    channels = [
        Channel(Outbox(FrameSeal(KEY), SlotId(0, sender), 3), edge, sender, index, target) for sender in range(2)
    ]
    worker.start(Start(None, [SubtaskRestore("deep", 0)], []))
    worker.get(*(channels[0].records(number) for number in range(5)), channels[0].end(), channels[1].records(9))

    rows = worker.slot.outbox.take(1 << 30)
    frames = [(to, decode_frame(FrameSeal(KEY), SlotId(2, to), memoryview(row))) for to, row in rows]
    records = [(to, frame) for to, frame in frames if frame.kind in (Kind.RECORDS, Kind.END_OF_INPUT)]
    assert {to for to, _ in records} == {(edge.down_offset + target) % plan.layers[2].width}
    assert [(frame.origin, frame.target, frame.edge) for _, frame in records[:6]] == [(0, target, edge.index)] * 6
    values = [decode_records(frame, edge.record_type).rows() for _, frame in records if frame.kind is Kind.RECORDS]
    assert values == [[0], [1], [2], [3], [4], [9]]
    assert records[5][1].kind is Kind.END_OF_INPUT
