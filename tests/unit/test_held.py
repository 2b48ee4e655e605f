"""Frames held back during an alignment: order holds, whatever is in memory and whatever on disk; past the limits, no."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate.task.held import HeldFrames
from tidegate.wire.frame import OVERHEAD_BYTES, Frame, Kind

SIZE = OVERHEAD_BYTES + 100


def frame(sequence: int, size_bytes: int = 100) -> Frame:
    payload = bytes([sequence % 256]) * size_bytes
    return Frame(Kind.RECORDS, 3, 2, 1, 7, sequence, 11, -5, 2, memoryview(payload))


def drained(held: HeldFrames) -> list[Frame]:
    return [held.pop() for _ in range(len(held))]


def sequences(frames: list[Frame]) -> list[int]:
    return [each.sequence for each in frames]


@contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    """As a disk that is full: a write past the size fails with an OSError."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_frames_come_out_of_memory_in_order_and_unchanged() -> None:
    held = HeldFrames(10 * SIZE, 0)
    frames = [frame(sequence) for sequence in range(10)]

    assert all(held.append(each) for each in frames)
    assert held.size_bytes == 10 * SIZE
    assert drained(held) == frames
    assert (len(held), held.size_bytes) == (0, 0)


def test_what_does_not_fit_in_memory_goes_to_disk_and_comes_after_it(tmp_path: Path) -> None:
    held = HeldFrames(2 * SIZE, 100 * SIZE, str(tmp_path))
    frames = [frame(sequence, 100 + sequence) for sequence in range(8)]

    assert all(held.append(each) for each in frames)
    assert len(held) == 8
    assert held.size_bytes == sum(each.size_bytes for each in frames)
    back = drained(held)
    assert [bytes(each.payload) for each in back] == [bytes(each.payload) for each in frames]
    assert back == frames
    assert held.size_bytes == 0


def test_a_small_frame_does_not_overtake_those_on_disk() -> None:
    held = HeldFrames(SIZE, 100 * SIZE)
    held.append(frame(0, 1))
    held.append(frame(1, 500))
    held.append(frame(2, 1))  # it would fit into memory

    assert sequences(drained(held)) == [0, 1, 2]


def test_past_both_limits_the_frame_is_kept_in_order_and_the_answer_is_no() -> None:
    held = HeldFrames(SIZE, 2 * SIZE)
    assert [held.append(frame(sequence)) for sequence in range(4)] == [True, True, True, False]

    assert sequences(drained(held)) == [0, 1, 2, 3]


def test_frames_may_be_added_after_a_no() -> None:
    held = HeldFrames(0, 0)
    assert not held.append(frame(0))
    assert not held.append(frame(1))

    assert sequences(drained(held)) == [0, 1]


def test_what_was_kept_in_memory_behind_the_disk_goes_there_before_the_answer_is_no() -> None:
    held = HeldFrames(SIZE, 100 * SIZE)
    for number in range(2):
        assert held.append(frame(number))
    held.keep(frame(2))
    assert [held.append(frame(number)) for number in range(3, 8)] == [True] * 5
    assert [held.pop().sequence for _ in range(len(held))] == list(range(8))


def test_without_memory_everything_goes_to_disk() -> None:
    held = HeldFrames(0, 100 * SIZE)
    assert all(held.append(frame(sequence)) for sequence in range(5))

    assert sequences(drained(held)) == [0, 1, 2, 3, 4]


def test_frames_may_be_taken_and_added_in_turn() -> None:
    rng = random.Random(1)
    held = HeldFrames(3 * SIZE, 1 << 30)
    added, taken = 0, []
    for _ in range(2000):
        if len(held) and rng.random() < 0.48:
            taken.append(held.pop().sequence)
        else:
            assert held.append(frame(added, rng.randint(0, 300)))
            added += 1
    taken += sequences(drained(held))

    assert taken == list(range(added))


def test_a_folder_that_is_gone_makes_the_checkpoint_fail_not_the_slot(tmp_path: Path) -> None:
    held = HeldFrames(SIZE, 100 * SIZE, str(tmp_path / "gone"))
    assert held.append(frame(0))
    assert not held.append(frame(1))

    assert sequences(drained(held)) == [0, 1]


@pytest.mark.parametrize("fits", [0, 1, 3])
def test_a_disk_that_becomes_full_makes_the_checkpoint_fail_and_loses_nothing(tmp_path: Path, fits: int) -> None:
    held = HeldFrames(SIZE, 1 << 30, str(tmp_path))
    with files_of_at_most(fits * 200 + 50):
        answers = [held.append(frame(sequence)) for sequence in range(6)]
        back = drained(held)

    assert answers[0]
    assert False in answers
    assert sequences(back) == [0, 1, 2, 3, 4, 5]
    assert [bytes(each.payload) for each in back] == [bytes([number]) * 100 for number in range(6)]


def test_no_file_stays_behind(tmp_path: Path) -> None:
    held = HeldFrames(0, 100 * SIZE, str(tmp_path))
    held.append(frame(0))
    held.append(frame(1))
    open_before = len(os.listdir("/proc/self/fd"))
    held.close()

    assert len(os.listdir("/proc/self/fd")) == open_before - 1
    assert list(tmp_path.iterdir()) == []
