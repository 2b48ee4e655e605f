"""A slot's inbox: bounded when shut; opened for a checkpoint it grows in memory, then on disk, then says that it is over."""

from __future__ import annotations

import pytest

from tidegate.ids import CheckpointId
from tidegate.task.capture import RESTORED, Capture
from tidegate.task.held import HeldFrames
from tidegate.task.inbox import Captured, Inbox, InboxNews, Overflowed
from tidegate.wire.frame import OVERHEAD_BYTES, Frame, Kind

SIZE = OVERHEAD_BYTES + 56


def records(sequence: int, sender: int = 0) -> Frame:
    return Frame(Kind.RECORDS, sender, 0, 0, 0, sequence, 1, 0, 0, memoryview(bytes(56)))


def barrier(checkpoint: int, sender: int = 0) -> Frame:
    return Frame(Kind.CHECKPOINT_BARRIER, sender, 0, 0, 0, 0, 0, checkpoint, 0, memoryview(b""))


def filled(inbox: Inbox, frames: int) -> list[list[InboxNews]]:
    return [inbox.add(records(sequence)) for sequence in range(frames)]


def drained(inbox: Inbox) -> list[int]:
    taken = []
    while (frame := inbox.take()) is not None:
        taken.append(frame.sequence)
    return taken


def capture(checkpoint: int, *channels: int, memory: int = 1 << 20, disk: int = 0) -> Capture:
    return Capture(CheckpointId(checkpoint), set(channels), HeldFrames(memory, disk))


def test_shut_it_has_room_below_its_bound_and_nothing_goes_to_disk() -> None:
    inbox = Inbox(2 * SIZE, 0, 0)
    assert filled(inbox, 2) == [[], []]

    assert not inbox.has_room
    assert inbox.size_bytes == 2 * SIZE
    inbox.take()
    assert inbox.has_room


def test_opened_it_grows_in_memory_then_on_disk_then_gives_the_checkpoint_up_and_keeps_every_frame() -> None:
    inbox = Inbox(2 * SIZE, 4 * SIZE, 3 * SIZE)
    inbox.open_for(7)
    news = filled(inbox, 8)

    assert news[:7] == [[]] * 7
    assert inbox._frames.disk_bytes == 3 * SIZE  # four in memory, three on disk
    assert news[7] == [Overflowed(7, 8 * SIZE)]
    assert not inbox.has_room  # back-pressure is back, at once
    assert drained(inbox) == list(range(8))
    assert inbox.has_room


@pytest.mark.parametrize("disk_frames", [0, 1, 5])
def test_what_it_kept_past_the_bound_goes_out_before_there_is_room_again(disk_frames: int) -> None:
    inbox = Inbox(SIZE, 2 * SIZE, disk_frames * SIZE)
    inbox.open_for(1)
    filled(inbox, 2 + disk_frames)
    inbox.shut_up_to(1)
    for _ in range(1 + disk_frames):
        assert not inbox.has_room
        inbox.take()

    assert not inbox.has_room
    inbox.take()
    assert inbox.has_room


def test_it_is_over_its_bound_only_when_it_was_opened_and_until_that_is_processed() -> None:
    inbox = Inbox(2 * SIZE, 10 * SIZE, 0)
    filled(inbox, 2)
    assert not inbox.is_over  # full, as back-pressure wants it
    inbox.open_for(1)
    assert not inbox.is_over
    inbox.add(records(2))
    assert inbox.is_over
    inbox.shut_up_to(1)
    inbox.take()
    assert inbox.is_over
    inbox.take()
    assert not inbox.is_over
    inbox.add(records(3))
    assert not inbox.is_over


def test_frames_that_come_while_some_are_still_on_disk_stay_behind_them() -> None:
    inbox = Inbox(4 * SIZE, 4 * SIZE, 9 * SIZE)
    inbox.open_for(1)
    filled(inbox, 8)  # four in memory, four on disk
    inbox.shut_up_to(1)
    taken = [frame.sequence for frame in (inbox.take() for _ in range(6)) if frame is not None]
    assert inbox.has_room
    inbox.add(records(8))
    inbox.open_for(2)
    for sequence in (9, 10, 11):
        assert not [each for each in inbox.add(records(sequence)) if isinstance(each, Overflowed)]

    assert taken + drained(inbox) == list(range(12))


def test_it_is_shut_by_the_end_of_its_checkpoint_and_by_that_of_a_newer_one_not_by_an_older() -> None:
    inbox = Inbox(SIZE, 10 * SIZE, 0)
    inbox.open_for(5)
    filled(inbox, 2)
    inbox.shut_up_to(4)
    assert inbox.has_room
    inbox.shut_up_to(6)
    assert not inbox.has_room


def test_a_trigger_that_comes_after_the_end_of_its_checkpoint_opens_nothing() -> None:
    inbox = Inbox(SIZE, 10 * SIZE, 0)
    filled(inbox, 1)
    inbox.shut_up_to(3)
    inbox.open_for(3)
    assert not inbox.has_room
    inbox.open_for(4)
    assert inbox.has_room


def test_a_capture_takes_what_waits_and_what_comes_before_each_barrier_and_nothing_behind_one() -> None:
    inbox = Inbox(100 * SIZE, 0, 0)
    for frame in (records(0), records(1, sender=1), barrier(1, sender=0), records(2)):
        inbox.add(frame)
    cut = capture(1, 0, 1)
    assert inbox.capture(cut) == []
    assert inbox.add(records(3, sender=1)) == []
    assert inbox.add(records(4)) == []
    assert inbox.add(barrier(1, sender=1)) == [Captured(1)]
    assert inbox.add(records(5, sender=1)) == []

    assert [frame.sequence for frame in cut.frames] == [0, 1, 3]
    assert len(inbox) == 8  # all is still there to be processed


def test_a_capture_is_whole_at_once_when_every_barrier_is_there() -> None:
    inbox = Inbox(100 * SIZE, 0, 0)
    inbox.add(barrier(1, sender=0))
    inbox.add(barrier(1, sender=1))

    assert inbox.capture(capture(1, 0, 1)) == [Captured(1)]


def test_a_barrier_of_another_checkpoint_ends_no_capture() -> None:
    inbox = Inbox(100 * SIZE, 0, 0)
    inbox.capture(capture(2, 0))

    assert inbox.add(barrier(1)) == []
    assert inbox.add(barrier(2)) == [Captured(2)]


def test_restored_frames_are_before_every_barrier() -> None:
    cut = capture(1, 0)
    cut.offer(barrier(1))
    cut.offer(records(0, sender=RESTORED))

    assert len(cut.frames) == 1


@pytest.mark.parametrize("waiting", [True, False])
def test_more_in_flight_than_may_be_kept_gives_the_checkpoint_up(waiting: bool) -> None:
    """The inbox alone would hold it: what counts is what would be stored."""
    inbox = Inbox(100 * SIZE, 0, 0)
    inbox.open_for(1)
    small = capture(1, 0, memory=2 * SIZE, disk=SIZE)
    if waiting:
        filled(inbox, 4)
        assert inbox.capture(small) == [Overflowed(1, 4 * SIZE)]
    else:
        assert inbox.capture(small) == []
        assert filled(inbox, 4)[3] == [Overflowed(1, 4 * SIZE)]
    assert inbox.add(barrier(1)) == []  # its capture is over
    assert drained(inbox) == [0, 1, 2, 3, 0]


def test_a_captured_frame_may_come_from_disk() -> None:
    inbox = Inbox(SIZE, SIZE, 10 * SIZE)
    inbox.open_for(1)
    filled(inbox, 6)
    cut = capture(1, 0, memory=SIZE, disk=10 * SIZE)
    inbox.capture(cut)
    inbox.add(barrier(1))

    assert [frame.sequence for frame in cut.frames] == list(range(6))
    assert [frame.sequence for frame in cut.frames] == list(range(6))  # looking takes nothing
    assert cut.size_bytes == 6 * SIZE
