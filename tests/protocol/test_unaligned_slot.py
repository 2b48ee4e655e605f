"""One slot under unaligned checkpoints: what is in its cut, what is not, and what happens at each bound.

Frames arrive without being processed: the slot reads its letters first, so it takes its cut while they wait.
"""

from __future__ import annotations

import itertools
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import test_slot as kit
from test_slot import KEY, Channel, SlowTrack, Worker, clock, events, planned, relaying

from tidegate.ids import SlotId
from tidegate.storage.metadata import IN_FLIGHT, SplitState
from tidegate.storage.snapshot_file import read_sections
from tidegate.storage.store import ObjectStore, open_store
from tidegate.task.in_flight import edge_name, read_in_flight
from tidegate.task.outbox import Outbox
from tidegate.task.program import SlotSettings
from tidegate.wire.control import (
    Abort,
    Acknowledge,
    Complete,
    Decline,
    InboxOverBound,
    InboxWithinBound,
    PauseSources,
    ResumeSources,
    Start,
    SubtaskRestore,
    Trigger,
)
from tidegate.wire.frame import FLAG_TIMEOUTABLE, FLAG_UNALIGNED, Frame, barrier_flags
from tidegate.wire.records import decode_records
from tidegate.wire.seal import FrameSeal

nothing_has_happened = kit.nothing_has_happened
UNALIGNED = Trigger(1, 0.0)


def arrive(worker: Worker, *frames: list[Frame]) -> None:
    for frame in (each for many in frames for each in many):
        assert worker.slot.mailbox.put_frame(frame, wait=False)


def barrier(channel: Channel, checkpoint: int = 1) -> list[Frame]:
    return channel.barrier(checkpoint, FLAG_UNALIGNED)


def stored_in_flight(worker: Worker, checkpoint: int = 1) -> list[int]:
    """The records under way that the checkpoint holds, in the order in which they would be restored."""
    worker.uploads.run_all()
    found: list[int] = []
    for file in worker.acknowledged(checkpoint).snapshot.files():
        for section, rows in read_sections(worker.store, file, lambda section: section.kind == IN_FLIGHT):
            (edge,) = [edge for edge in worker.plan.edges if edge_name(edge) == section.state]
            for target in range(edge.down_parallelism):
                for frame in read_in_flight(rows, edge, target, edge.down_parallelism):
                    found += decode_records(frame, edge.record_type).rows()
    return found


# -- the cut ----------------------------------------------------------------------------------------------------------


def test_the_first_barrier_takes_the_snapshot_and_what_waits_before_it_is_in_flight() -> None:
    worker = Worker().start()
    worker.get(worker.a.records(1))
    worker.tell(UNALIGNED)
    arrive(worker, worker.a.records(2, 3), worker.b.records(4), barrier(worker.a), worker.a.records(5))
    worker.turn()
    assert events == [1, 2, 3, 4, 5]  # nothing was held back
    arrive(worker, worker.b.records(6), barrier(worker.b), worker.b.records(7))
    worker.turn()

    assert stored_in_flight(worker) == [2, 3, 4, 6]
    assert worker.stored(1) == [1]
    timings = worker.acknowledged(1).timings
    assert timings.unaligned
    assert timings.in_flight_bytes > 0


def test_the_frames_of_the_barriers_own_channel_are_in_the_cut() -> None:
    worker = Worker().start()
    worker.tell(UNALIGNED)
    arrive(worker, worker.a.records(1), barrier(worker.a), barrier(worker.b))
    worker.turn()

    assert stored_in_flight(worker) == [1]


def test_frames_behind_a_barrier_are_never_in_the_cut() -> None:
    worker = Worker().start()
    worker.tell(UNALIGNED)
    arrive(worker, barrier(worker.a), worker.a.records(1), worker.b.records(2))
    worker.turn()
    arrive(worker, worker.a.records(3), barrier(worker.b), worker.b.records(4))
    worker.turn()

    assert stored_in_flight(worker) == [2]
    assert worker.stored(1) == []
    assert events == [1, 2, 3, 4]


def test_the_rest_of_a_frame_at_hand_is_in_the_cut_and_what_was_processed_of_it_is_in_the_state() -> None:
    worker = Worker(planned(SlowTrack())).start()
    worker.tell(UNALIGNED)
    arrive(worker, worker.a.records(*range(100)))
    worker.slot.turn(0.0)
    done = len(events)
    assert 0 < done < 100
    arrive(worker, barrier(worker.a), barrier(worker.b))
    worker.turn()

    assert stored_in_flight(worker) == list(range(done, 100))
    assert worker.stored(1) == list(range(done))
    assert events == list(range(100))


def test_relayed_records_are_in_the_cut_of_the_slot_that_has_not_passed_them_on() -> None:
    plan = relaying()
    (edge,) = [edge for edge in plan.edges if (edge.edge.upstream, edge.edge.downstream) == ("source", "both")]
    index = plan.next_slot(edge, 2, 0)
    worker = Worker(plan, SlotId(1, index))
    worker.start(Start(None, [SubtaskRestore("deep", 0)], []))
    channels = [Channel(Outbox(FrameSeal(KEY), SlotId(0, sender), 3), edge, sender, index, 2) for sender in range(2)]
    worker.tell(UNALIGNED)
    arrive(worker, channels[0].records(1, 2), barrier(channels[0]), channels[0].records(3), barrier(channels[1]))
    worker.turn()

    assert stored_in_flight(worker) == [1, 2]
    sent = worker.sent()
    first = sent.index(("barrier", 1))
    assert [value for value in sent[:first] if isinstance(value, int)] == []  # the barrier has overtaken them
    assert [value for value in sent[first:] if isinstance(value, int)] == [1, 2, 3]


def test_the_barrier_leaves_before_the_records_that_it_overtook() -> None:
    worker = Worker(planned(sink_parallelism=2)).start()
    worker.get(worker.a.records(1))
    worker.tell(UNALIGNED)
    arrive(worker, worker.a.records(2), barrier(worker.a), barrier(worker.b))
    worker.turn()
    sent = worker.sent()

    assert [each for each in sent if each != ("barrier", 1)] == [1, 2]
    assert sent.index(1) < sent.index(("barrier", 1)) < sent.index(2)


def test_the_snapshot_waits_for_the_last_barrier_before_it_is_stored() -> None:
    worker = Worker().start()
    worker.tell(UNALIGNED)
    arrive(worker, barrier(worker.a))
    worker.turn()
    assert not worker.uploads.jobs
    arrive(worker, barrier(worker.b))
    worker.turn()
    assert len(worker.uploads.jobs) == 1


def test_a_barrier_that_comes_before_the_trigger_takes_the_cut_and_the_late_trigger_changes_nothing() -> None:
    worker = Worker(settings=SlotSettings(inbox_bytes=1, inline_limit_bytes=0)).start()
    arrive(worker, barrier(worker.a))
    worker.turn()
    arrive(worker, barrier(worker.b))
    worker.turn()
    worker.tell(UNALIGNED)
    arrive(worker, worker.a.records(1))
    assert not worker.slot.mailbox.put_frame(worker.a.records(2)[0], wait=False)  # the inbox is shut

    assert stored_in_flight(worker) == []


def test_restored_records_that_still_wait_are_in_the_next_cut_before_anything_newer() -> None:
    first = Worker(planned(SlowTrack())).start()
    first.tell(UNALIGNED)
    arrive(first, first.a.records(1, 2, 3), barrier(first.a), barrier(first.b))
    first.turn()
    assert stored_in_flight(first) == [1, 2, 3]
    file = first.acknowledged(1).snapshot.file
    events.clear()

    again = Worker(planned(SlowTrack()), store=first.store)
    subtasks = [SubtaskRestore("track", 0, old_parallelism=1), SubtaskRestore("out", 0, old_parallelism=1)]
    again.slot._slices.rows = 1
    again.slot.mailbox.post(Start(1, subtasks, [], in_flight=[file]))
    again.slot.turn(0.0)
    while not events:
        again.slot.turn(0.0)
    assert events == [1]
    again.slot.mailbox.post(Trigger(2, 0.0))
    arrive(again, again.a.records(4), barrier(again.a, 2), barrier(again.b, 2))
    again.turn()

    assert stored_in_flight(again, 2) == [2, 3, 4]
    assert again.stored(2) == [1]
    assert events == [1, 2, 3, 4]


def test_what_an_older_checkpoint_holds_back_is_in_the_cut_of_the_newer() -> None:
    worker = Worker().start()
    worker.tell(Trigger(1))
    arrive(worker, worker.a.records(1), worker.a.barrier(1), worker.a.records(2, 3))
    worker.turn()
    assert events == [1]
    arrive(worker, barrier(worker.a, 2), worker.a.records(5), worker.b.records(4))  # the abort of 1 is on its way
    worker.turn()
    arrive(worker, worker.b.records(6), worker.b.barrier(1), worker.b.records(7), barrier(worker.b, 2))
    worker.turn()
    worker.tell(Abort(1, 0), Trigger(2, 0.0))

    assert sorted(stored_in_flight(worker, 2)) == [2, 3, 4, 6, 7]
    assert worker.stored(2) == [1]
    assert sorted(events) == [1, 2, 3, 4, 5, 6, 7]


def test_a_barrier_that_is_itself_held_back_for_an_older_checkpoint_is_not_waited_for() -> None:
    worker = Worker().start()
    worker.tell(Trigger(1), Trigger(2, 5.0))
    timed = FLAG_TIMEOUTABLE
    worker.get(worker.a.barrier(1), worker.a.records(2), worker.a.barrier(2, timed), worker.a.records(3))
    assert events == []
    clock.advance(5.0)
    worker.turn()
    worker.get(worker.b.records(4), worker.b.barrier(1), worker.b.barrier(2, timed))

    assert stored_in_flight(worker, 2) == [2, 4]
    assert worker.stored(2) == []


@pytest.mark.property
@pytest.mark.parametrize("case", range(150))
def test_in_any_order_of_frames_and_letters_every_cut_is_exact(case: int) -> None:
    """Checkpoints follow each other, aligned, unaligned or aligned for a while. The coordinator gives some up and triggers
    the next at once; what it says, and each channel's frames, come when they come."""
    rng = random.Random(case)
    worker = Worker(settings=SlotSettings(inline_limit_bytes=0, held_memory_bytes=rng.choice([0, 1 << 20]))).start()
    checkpoints = range(1, 6)
    modes = {checkpoint: rng.choice([None, 0.0, 0.0, 5.0]) for checkpoint in checkpoints}
    given_up = {checkpoint for checkpoint in checkpoints if checkpoint < max(checkpoints) and rng.random() < 0.5}
    frames: dict[int, list[Frame]] = {}
    before: dict[int, list[int]] = {checkpoint: [] for checkpoint in checkpoints}
    records = itertools.count(1)
    for number, channel in enumerate((worker.a, worker.b)):
        frames[number], sent = [], []
        for checkpoint in checkpoints:
            for _ in range(rng.randint(0, 3)):
                sent.append(next(records))
                frames[number] += channel.records(sent[-1])
            before[checkpoint] += sent
            frames[number] += channel.barrier(checkpoint, barrier_flags(modes[checkpoint]))
    letters: list[Any] = []
    for checkpoint in checkpoints:
        letters.append(Trigger(checkpoint, modes[checkpoint]))
        letters += [Abort(checkpoint, 0)] if checkpoint in given_up else []
    while letters or any(frames.values()) or worker.slot.mailbox.has_frames:
        draw = rng.random()
        if draw < 0.15 and letters:
            worker.slot.mailbox.post(letters.pop(0))
        elif draw < 0.5 and (waiting := [each for each in frames.values() if each]):
            assert worker.slot.mailbox.put_frame(rng.choice(waiting).pop(0), wait=False)
        elif draw < 0.55:
            clock.advance(3.0)
            worker.slot.on_time()
        else:
            worker.slot.turn(0.0)
    clock.advance(10.0)
    worker.turn()
    worker.turn()
    worker.uploads.run_all()

    taken = {ack.checkpoint for ack in worker.said.of(Acknowledge)}
    assert max(checkpoints) in taken, "nothing stood in the way of the last one"
    for checkpoint in taken:
        assert sorted(worker.stored(checkpoint) + stored_in_flight(worker, checkpoint)) == sorted(before[checkpoint])
    assert sorted(events) == sorted(before[max(checkpoints)])


# -- aligned with a timeout -------------------------------------------------------------------------------------------


def test_a_timeout_that_is_not_reached_leaves_the_checkpoint_aligned() -> None:
    worker = Worker().start()
    worker.tell(Trigger(1, 5.0))
    worker.get(worker.a.records(1), worker.a.barrier(1, FLAG_TIMEOUTABLE), worker.a.records(2))
    clock.advance(4.9)
    worker.turn()
    assert events == [1]
    worker.get(worker.b.records(3), worker.b.barrier(1, FLAG_TIMEOUTABLE))

    assert stored_in_flight(worker) == []
    assert worker.stored(1) == [1, 3]
    assert not worker.acknowledged(1).timings.unaligned


def test_after_the_timeout_the_cut_is_taken_and_what_was_held_behind_a_barrier_is_not_in_it() -> None:
    worker = Worker().start()
    worker.tell(Trigger(1, 5.0))
    worker.get(worker.a.records(1), worker.a.barrier(1, FLAG_TIMEOUTABLE), worker.a.records(2), worker.b.records(3))
    assert worker.slot.next_deadline() == clock() + 5.0
    clock.advance(5.0)
    worker.turn()
    worker.turn()
    assert events == [1, 3, 2]
    worker.get(worker.b.records(4), worker.b.barrier(1, FLAG_TIMEOUTABLE))

    assert stored_in_flight(worker) == [4]
    assert worker.stored(1) == [1, 3]
    assert worker.acknowledged(1).timings.unaligned


def test_the_inbox_keeps_its_bound_until_the_timeout_and_is_opened_by_it() -> None:
    worker = Worker(planned(SlowTrack()), settings=SlotSettings(inbox_bytes=1, inline_limit_bytes=0)).start()
    worker.tell(Trigger(1, 5.0))
    arrive(worker, worker.a.records(1))
    (second,) = worker.a.records(2)
    assert not worker.slot.mailbox.put_frame(second, wait=False)
    clock.advance(5.0)
    worker.slot.on_time()

    assert worker.slot.mailbox.put_frame(second, wait=False)


def test_a_barrier_that_has_turned_unaligned_upstream_is_not_waited_for() -> None:
    worker = Worker().start()
    worker.tell(Trigger(1, 5.0))
    arrive(worker, worker.a.records(1), barrier(worker.a), worker.b.barrier(1, FLAG_TIMEOUTABLE))
    worker.turn()

    assert stored_in_flight(worker) == [1]


@pytest.mark.parametrize("after_s", [5.0, None])
def test_a_barrier_that_has_turned_unaligned_upstream_opens_the_inbox_for_the_others(after_s: float | None) -> None:
    """Whatever the trigger says here, and while the task's thread is busy."""
    worker = Worker(settings=SlotSettings(inbox_bytes=1, inline_limit_bytes=0)).start()
    worker.tell(Trigger(1, after_s))
    arrive(worker, barrier(worker.a), worker.b.records(1), barrier(worker.b))
    worker.turn()

    assert stored_in_flight(worker) == [1]
    arrive(worker, worker.a.records(2))
    assert not worker.slot.mailbox.has_room  # the cut is whole


# -- bounds -----------------------------------------------------------------------------------------------------------


def test_an_inbox_past_memory_and_disk_makes_the_slot_decline_and_go_on_and_lose_nothing() -> None:
    settings = SlotSettings(inbox_bytes=1, held_memory_bytes=500, held_disk_bytes=500, inline_limit_bytes=0)
    worker = Worker(settings=settings).start()
    worker.slot.mailbox.post(UNALIGNED)
    arrived = 0
    while worker.slot.mailbox.put_frame(worker.a.records(arrived)[0], wait=False):
        arrived += 1
    assert arrived > 3
    worker.turn()

    (decline,) = worker.said.of(Decline)
    assert decline.checkpoint == 1
    assert "had to be kept until its barriers had come, more than memory (500) and disk (500) allow" in decline.reason
    assert events == list(range(arrived))
    worker.tell(Abort(1, 0))
    assert not worker.uploads.jobs


def test_more_in_flight_than_memory_and_disk_hold_makes_the_slot_decline() -> None:
    settings = SlotSettings(held_memory_bytes=300, held_disk_bytes=300, inline_limit_bytes=0)
    worker = Worker(settings=settings).start()
    worker.slot.mailbox.post(UNALIGNED)
    arrive(worker, *(worker.a.records(number) for number in range(20)), barrier(worker.a), barrier(worker.b))
    worker.turn()
    worker.uploads.run_all()

    assert [decline.checkpoint for decline in worker.said.of(Decline)] == [1]
    assert not worker.said.of(Acknowledge)
    assert events == list(range(20))
    worker.tell(Abort(1, 0), Trigger(2, 0.0))
    arrive(worker, worker.a.records(20), barrier(worker.a, 2), barrier(worker.b, 2))
    worker.turn()
    assert stored_in_flight(worker, 2) == [20]
    assert worker.stored(2) == list(range(20))


def test_in_flight_records_on_disk_are_stored_in_order() -> None:
    settings = SlotSettings(inbox_bytes=1, held_memory_bytes=100, held_disk_bytes=1 << 20, inline_limit_bytes=0)
    worker = Worker(settings=settings).start()
    worker.slot.mailbox.post(UNALIGNED)
    arrive(worker, *(worker.a.records(number) for number in range(50)), barrier(worker.a), barrier(worker.b))
    worker.turn()

    assert stored_in_flight(worker) == list(range(50))
    assert events == list(range(50))


def test_an_inbox_over_its_bound_is_told_at_once_and_again_when_it_is_within() -> None:
    worker = Worker(settings=SlotSettings(inbox_bytes=1)).start()
    worker.slot.mailbox.post(UNALIGNED)
    arrive(worker, worker.a.records(1), worker.a.records(2), worker.a.records(3))
    assert worker.said.of(InboxOverBound) == [InboxOverBound()]  # before the slot has read its trigger
    assert not worker.said.of(InboxWithinBound)
    worker.turn()
    assert worker.said.of(InboxWithinBound) == [InboxWithinBound()]


def test_a_paused_source_reads_nothing_and_still_sends_its_barrier() -> None:
    worker = Worker(id=SlotId(0, 0))
    splits = [SplitState("part-00-of-1-in-1")]
    worker.slot.mailbox.post(Start(None, [SubtaskRestore("source", 0, splits=splits)], []))
    worker.slot.mailbox.post(PauseSources())
    worker.slot.mailbox.post(UNALIGNED)
    worker.turn()
    assert not worker.slot.has_active_source()
    assert worker.sent() == [("barrier", 1)]
    worker.uploads.run_all()
    assert worker.acknowledged(1).snapshot.layer == 0

    worker.tell(ResumeSources())
    assert worker.sent() == [1, "end"]


def test_a_source_that_waits_has_nothing_due_and_does_not_spin_until_the_checkpoint_is_complete() -> None:
    worker = Worker(id=SlotId(0, 0))
    splits = [SplitState("part-00-of-1-in-1")]
    worker.slot.mailbox.post(Start(None, [SubtaskRestore("source", 0, splits=splits)], []))
    worker.slot.mailbox.post(PauseSources())
    worker.slot.mailbox.post(UNALIGNED)
    worker.turn()
    assert worker.sent() == [("barrier", 1)]
    assert worker.slot.next_deadline() is None


def test_a_checkpoint_that_is_aborted_forgets_its_cut_and_shuts_the_inbox() -> None:
    worker = Worker(settings=SlotSettings(inbox_bytes=1)).start()
    worker.tell(UNALIGNED)
    arrive(worker, barrier(worker.a))
    worker.turn()
    worker.tell(Abort(1, 0))
    arrive(worker, worker.b.records(1))
    assert not worker.slot.mailbox.put_frame(worker.b.records(2)[0], wait=False)
    worker.turn()
    assert not worker.uploads.jobs
    assert events == [1]


def test_a_completed_checkpoint_shuts_the_inbox() -> None:
    worker = Worker(settings=SlotSettings(inbox_bytes=1)).start()
    worker.tell(Trigger(3, 0.0), Complete(3))
    arrive(worker, worker.b.records(1))

    assert not worker.slot.mailbox.put_frame(worker.b.records(2)[0], wait=False)


@pytest.mark.parametrize("rows", [1, 3])
def test_sections_of_in_flight_records_are_of_bounded_size(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.task.in_flight.SECTION_BYTES", rows * 60)
    worker = Worker().start()
    worker.tell(UNALIGNED)
    arrive(worker, *(worker.a.records(number) for number in range(10)), barrier(worker.a), barrier(worker.b))
    worker.turn()

    assert stored_in_flight(worker) == list(range(10))
    sections = [each for each in worker.acknowledged(1).snapshot.file.sections if each.kind == IN_FLIGHT]
    assert len(sections) > 2


class _Watched:
    """Notes what stands in memory whenever something is stored, and passes all on to a store on disk."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self.most_bytes = 0
        self.stored_bytes = 0

    def put(self, path: str, data: Any) -> None:
        size = memoryview(data).nbytes
        self.stored_bytes += size
        self.most_bytes = max(self.most_bytes, pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0])
        self._inner.put(path, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_what_is_in_flight_is_stored_part_by_part_and_never_stands_in_memory_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = 1 << 20
    monkeypatch.setattr("tidegate.task.in_flight.PART_BYTES", part)
    monkeypatch.setattr("tidegate.task.in_flight.SECTION_BYTES", part // 4)
    store = _Watched(open_store(str(tmp_path)))
    settings = SlotSettings(held_memory_bytes=part, held_disk_bytes=1 << 30, inline_limit_bytes=0)
    worker = Worker(settings=settings, store=store).start()  # type: ignore[arg-type]
    worker.tell(UNALIGNED)
    rows = 10_000
    for number in range(200):  # 16 MB and more, of which one may stay in memory
        arrive(worker, worker.a.records(*range(number * rows, (number + 1) * rows)))
    arrive(worker, barrier(worker.a), barrier(worker.b))
    while not worker.uploads.jobs:
        worker.slot.turn(0.0)
    worker.slot.mailbox.close()
    tracemalloc.start()
    try:
        before = pa.total_allocated_bytes() + tracemalloc.get_traced_memory()[0]
        worker.uploads.run_all()
    finally:
        tracemalloc.stop()

    assert store.stored_bytes > 15 * part
    assert store.most_bytes - before < 4 * part
    assert [file.path and file.path.rpartition("/")[2] for file in worker.acknowledged(1).snapshot.tables][:2] == [
        "slot-1-0.in-flight-0",
        "slot-1-0.in-flight-1",
    ]
    assert stored_in_flight(worker) == list(range(200 * rows))
