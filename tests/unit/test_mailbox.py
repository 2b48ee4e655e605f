"""The mailbox between a slot's threads: letters before frames, and a bound on frames that makes the reader wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tidegate.task.inbox import Inbox
from tidegate.task.mailbox import BarrierArrived, Mailbox
from tidegate.wire.control import Finish, InboxOverBound, InboxWithinBound, Trigger
from tidegate.wire.frame import FLAG_UNALIGNED, OVERHEAD_BYTES, Frame, Kind

PATIENCE_S = 20.0


def frame(sequence: int, payload_bytes: int = 56) -> Frame:
    payload = memoryview(bytes(payload_bytes))
    return Frame(Kind.RECORDS, 0, 0, 0, 0, sequence, 1, 0, 0, payload)


FRAME_BYTES = OVERHEAD_BYTES + 56


def mailbox_of(bound_bytes: int, told: list[Any] | None = None) -> Mailbox:
    return Mailbox(Inbox(bound_bytes, 1 << 20, 1 << 20), ([] if told is None else told).append)


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_letters_and_frames_come_out_in_order() -> None:
    mailbox = mailbox_of(1000)
    mailbox.post(Trigger(1))
    mailbox.put_frame(frame(0))
    mailbox.post(Finish())
    mailbox.put_frame(frame(1))

    assert [mailbox.take_letter(), mailbox.take_letter(), mailbox.take_letter()] == [Trigger(1), Finish(), None]
    assert [taken.sequence for taken in (mailbox.take_frame(), mailbox.take_frame()) if taken] == [0, 1]
    assert mailbox.take_frame() is None


def test_a_reader_that_may_not_wait_is_turned_away_at_the_bound() -> None:
    mailbox = mailbox_of(2 * FRAME_BYTES)

    assert mailbox.put_frame(frame(0), wait=False)
    assert mailbox.has_room
    assert mailbox.put_frame(frame(1), wait=False)
    assert not mailbox.has_room
    assert not mailbox.put_frame(frame(2), wait=False)
    assert mailbox.frames_bytes == 2 * FRAME_BYTES
    mailbox.take_frame()
    assert mailbox.put_frame(frame(2), wait=False)


def test_a_frame_larger_than_the_bound_passes_when_there_is_nothing_else() -> None:
    mailbox = mailbox_of(10)

    assert mailbox.put_frame(frame(0, payload_bytes=100_000), wait=False)
    assert not mailbox.put_frame(frame(1), wait=False)


def test_the_reader_waits_at_the_bound_until_a_frame_is_taken() -> None:
    mailbox = mailbox_of(FRAME_BYTES)
    mailbox.put_frame(frame(0))
    done = threading.Event()
    reader = in_a_thread(lambda: (mailbox.put_frame(frame(1)), done.set()))

    assert not done.wait(0.05)
    assert mailbox.frames_bytes == FRAME_BYTES
    mailbox.take_frame()
    assert done.wait(PATIENCE_S)
    reader.join(PATIENCE_S)
    taken = mailbox.take_frame()
    assert taken is not None
    assert taken.sequence == 1


def test_letters_pass_a_full_inbox() -> None:
    mailbox = mailbox_of(1)
    mailbox.put_frame(frame(0))
    mailbox.post(Trigger(1))

    assert mailbox.take_letter() == Trigger(1)


def test_taken_frames_do_not_count_so_a_slot_that_holds_them_back_is_given_more() -> None:
    """The missing barrier may stand behind any number of held frames."""
    mailbox = mailbox_of(FRAME_BYTES)
    held = []
    for sequence in range(1000):
        assert mailbox.put_frame(frame(sequence), wait=False)
        held.append(mailbox.take_frame())

    assert mailbox.frames_bytes == 0
    assert len(held) == 1000


def test_closing_ends_the_wait_of_the_reader() -> None:
    mailbox = mailbox_of(1)
    mailbox.put_frame(frame(0))
    answers: list[bool] = []
    reader = in_a_thread(lambda: answers.append(mailbox.put_frame(frame(1))))
    mailbox.close()
    reader.join(PATIENCE_S)

    assert answers == [False]
    assert not mailbox.put_frame(frame(2))


def test_input_has_ended_only_when_the_last_frame_is_taken() -> None:
    mailbox = mailbox_of(1000)
    mailbox.put_frame(frame(0))
    mailbox.end_input()

    assert not mailbox.input_ended
    mailbox.take_frame()
    assert mailbox.input_ended


def test_a_failure_of_a_helper_is_raised_in_the_tasks_thread_and_the_first_one_stays() -> None:
    mailbox = mailbox_of(1000)
    mailbox.fail(OSError("first"))
    mailbox.fail(OSError("second"))

    assert mailbox.has_letters
    with pytest.raises(OSError, match="first"):
        mailbox.take_letter()


@pytest.mark.parametrize("what", ["letter", "frame", "end", "failure"])
def test_a_waiting_slot_is_woken_by_whatever_comes(what: str) -> None:
    mailbox = mailbox_of(1000)
    woken = threading.Event()
    slot = in_a_thread(lambda: (mailbox.wait(PATIENCE_S), woken.set()))
    match what:
        case "letter":
            mailbox.post(Finish())
        case "frame":
            mailbox.put_frame(frame(0))
        case "end":
            mailbox.end_input()
        case "failure":
            mailbox.fail(OSError())

    assert woken.wait(PATIENCE_S / 2)
    slot.join(PATIENCE_S)


def test_a_wait_ends_with_its_time() -> None:
    mailbox = mailbox_of(1000)
    mailbox.wait(0.001)

    assert mailbox.take_letter() is None


def test_the_trigger_of_an_unaligned_checkpoint_opens_the_inbox_before_anybody_reads_it() -> None:
    """The task's thread may be busy with one record, and the barrier must not wait for that."""
    told: list[Any] = []
    mailbox = mailbox_of(FRAME_BYTES, told)
    mailbox.put_frame(frame(0))
    assert not mailbox.put_frame(frame(1), wait=False)
    mailbox.post(Trigger(7, unaligned_after_s=0.0))

    assert all(mailbox.put_frame(frame(sequence), wait=False) for sequence in (1, 2, 3))
    assert told == [InboxOverBound()]  # once
    for _ in range(3):
        mailbox.take_frame()
    assert told == [InboxOverBound()]
    mailbox.take_frame()
    assert told == [InboxOverBound(), InboxWithinBound()]


def test_a_reader_that_waits_is_let_in_by_the_trigger() -> None:
    mailbox = mailbox_of(1)
    mailbox.put_frame(frame(0))
    reader = in_a_thread(lambda: mailbox.put_frame(frame(1)))
    mailbox.post(Trigger(1, unaligned_after_s=0.0))
    reader.join(PATIENCE_S)

    assert not reader.is_alive()


@pytest.mark.parametrize("after_s", [None, 5.0])
def test_an_aligned_checkpoint_opens_nothing(after_s: float | None) -> None:
    mailbox = mailbox_of(1)
    mailbox.put_frame(frame(0))
    mailbox.post(Trigger(1, after_s))

    assert not mailbox.put_frame(frame(1), wait=False)


def test_the_arrival_of_an_unaligned_barrier_is_a_letter_and_passes_the_frames_before_it() -> None:
    mailbox = mailbox_of(1000)
    mailbox.put_frame(frame(0))
    mailbox.put_frame(Frame(Kind.CHECKPOINT_BARRIER, 0, 0, 0, 0, 1, 0, 3, FLAG_UNALIGNED, memoryview(b"")))

    assert mailbox.take_letter() == BarrierArrived(3, True)
