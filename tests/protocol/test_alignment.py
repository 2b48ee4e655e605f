"""Barrier alignment, as scripts of barriers per channel. After Flink's AlignedCheckpointsTest."""

from __future__ import annotations

import itertools
import random

import pytest

from tidegate.errors import ProtocolViolation
from tidegate.ids import ChannelId, CheckpointId
from tidegate.protocol.alignment import (
    MAX_ABORTED,
    AlignmentAction,
    BarrierAligner,
    BarrierTracker,
    ForwardBarrier,
    GiveUp,
    HoldChannel,
    ReleaseChannels,
    TakeSnapshot,
)

A, B, C = ChannelId(0), ChannelId(1), ChannelId(2)
ONE, TWO, THREE, FOUR, FIVE = (CheckpointId(number) for number in range(1, 6))


def aligner(*channels: ChannelId) -> BarrierAligner:
    return BarrierAligner(frozenset(channels))


def taken(checkpoint: CheckpointId) -> list[AlignmentAction]:
    return [ForwardBarrier(checkpoint), TakeSnapshot(checkpoint), ReleaseChannels()]


def test_the_snapshot_waits_for_the_slowest_channel() -> None:
    slot = aligner(A, B, C)

    assert slot.on_barrier(B, ONE) == [HoldChannel(B)]
    assert slot.on_barrier(A, ONE) == [HoldChannel(A)]
    assert slot.on_barrier(C, ONE) == taken(ONE)


def test_one_channel_needs_no_alignment() -> None:
    slot = aligner(A)

    assert slot.on_barrier(A, ONE) == taken(ONE)
    assert slot.on_barrier(A, TWO) == taken(TWO)
    assert not slot.is_held(A)


@pytest.mark.parametrize("order", list(itertools.permutations([A, B, C])))
def test_the_order_of_the_channels_plays_no_part(order: tuple[ChannelId, ...]) -> None:
    slot = aligner(A, B, C)
    for checkpoint in (ONE, TWO):
        *first, last = order
        for number, channel in enumerate(first):
            assert slot.on_barrier(channel, checkpoint) == [HoldChannel(channel)]
            assert {each for each in (A, B, C) if slot.is_held(each)} == set(first[: number + 1])
        assert slot.on_barrier(last, checkpoint) == taken(checkpoint)
        assert not any(slot.is_held(each) for each in (A, B, C))


def test_the_barrier_is_forwarded_before_the_snapshot_and_frames_are_released_after_it() -> None:
    slot = aligner(A, B)
    slot.on_barrier(A, ONE)
    actions = slot.on_barrier(B, ONE)

    assert [type(action) for action in actions] == [ForwardBarrier, TakeSnapshot, ReleaseChannels]


def test_a_newer_barrier_ends_the_alignment_of_an_older_checkpoint() -> None:
    slot = aligner(A, B, C)
    slot.on_barrier(A, ONE)
    slot.on_barrier(B, ONE)

    assert slot.on_barrier(C, TWO) == [GiveUp(ONE), ReleaseChannels(), HoldChannel(C)]
    assert not slot.is_held(A)
    assert slot.on_barrier(A, TWO) == [HoldChannel(A)]
    assert slot.on_barrier(B, TWO) == taken(TWO)


def test_a_newer_barrier_on_the_last_channel_gives_up_the_older_and_waits() -> None:
    slot = aligner(A, B)
    slot.on_barrier(A, ONE)

    assert slot.on_barrier(B, THREE) == [GiveUp(ONE), ReleaseChannels(), HoldChannel(B)]
    assert slot.on_barrier(A, TWO) == []
    assert slot.on_barrier(A, THREE) == taken(THREE)


def test_a_late_barrier_of_a_given_up_checkpoint_is_ignored() -> None:
    slot = aligner(A, B)
    slot.on_barrier(A, ONE)
    slot.on_barrier(B, TWO)

    assert slot.on_barrier(B, ONE) == []
    assert slot.on_barrier(A, TWO) == taken(TWO)
    assert slot.on_barrier(A, ONE) == []
    assert slot.on_barrier(A, TWO) == []


def test_an_abort_releases_the_held_channels_and_later_barriers_of_it_are_ignored() -> None:
    slot = aligner(A, B)
    slot.on_barrier(A, ONE)

    assert slot.on_abort(ONE) == [ReleaseChannels()]
    assert not slot.is_held(A)
    assert slot.on_barrier(B, ONE) == []
    assert not slot.is_held(B)
    assert slot.on_barrier(A, TWO) == [HoldChannel(A)]
    assert slot.on_barrier(B, TWO) == taken(TWO)


def test_an_abort_before_the_first_barrier_makes_its_barriers_pass_unseen() -> None:
    slot = aligner(A, B)

    assert slot.on_abort(ONE) == []
    assert slot.on_barrier(A, ONE) == []
    assert slot.on_barrier(B, ONE) == []
    assert not slot.is_held(A)


def test_an_abort_after_the_snapshot_changes_nothing() -> None:
    slot = aligner(A)
    slot.on_barrier(A, TWO)

    assert slot.on_abort(TWO) == []
    assert slot.on_abort(ONE) == []
    assert slot.on_barrier(A, THREE) == taken(THREE)


def test_the_abort_of_a_newer_checkpoint_does_not_end_the_alignment_of_an_older_one() -> None:
    slot = aligner(A, B)
    slot.on_barrier(A, ONE)

    assert slot.on_abort(TWO) == []
    assert slot.is_held(A)
    assert slot.on_barrier(B, ONE) == taken(ONE)
    assert slot.on_barrier(A, TWO) == []
    assert slot.on_barrier(B, TWO) == []
    assert slot.on_barrier(A, THREE) == [HoldChannel(A)]


def test_the_abort_of_a_newer_checkpoint_leaves_an_older_one_to_come() -> None:
    slot = aligner(A, B)

    assert slot.on_abort(FIVE) == []
    assert slot.on_barrier(A, FOUR) == [HoldChannel(A)]
    assert slot.on_barrier(B, FOUR) == taken(FOUR)
    assert slot.on_barrier(A, FIVE) == []


def test_the_abort_of_an_older_checkpoint_does_not_end_the_alignment_of_a_newer_one() -> None:
    slot = aligner(A, B)
    slot.on_barrier(A, TWO)

    assert slot.on_abort(ONE) == []
    assert slot.is_held(A)
    assert slot.on_barrier(B, TWO) == taken(TWO)


def test_aborts_whose_barriers_never_come_do_not_pile_up() -> None:
    slot = aligner(A, B)
    for number in range(1, 10_000):
        slot.on_abort(CheckpointId(number))

    assert len(slot.aborted) <= MAX_ABORTED
    assert slot.on_barrier(A, CheckpointId(1)) == []
    assert slot.on_barrier(A, CheckpointId(9_999)) == []
    assert slot.on_barrier(A, CheckpointId(10_000)) == [HoldChannel(A)]


def test_a_barrier_that_comes_twice_on_a_channel_is_a_bug_of_ours() -> None:
    slot = aligner(A, B)
    slot.on_barrier(A, ONE)

    with pytest.raises(ProtocolViolation, match="came twice on channel 0"):
        slot.on_barrier(A, ONE)


def test_a_barrier_on_an_unknown_channel_is_a_bug_of_ours() -> None:
    with pytest.raises(ProtocolViolation, match="channel 2, which is not an input"):
        aligner(A, B).on_barrier(C, ONE)


# -- at least once ----------------------------------------------------------------------------------------------------


def test_at_least_once_the_abort_of_a_newer_checkpoint_leaves_an_older_one_under_way() -> None:
    slot = BarrierTracker(frozenset({A, B}))
    slot.on_barrier(A, ONE)

    assert slot.on_abort(TWO) == []
    assert slot.aligning == ONE
    assert slot.on_barrier(B, ONE) == [ForwardBarrier(ONE), TakeSnapshot(ONE)]
    assert [slot.on_barrier(channel, TWO) for channel in (A, B)] == [[], []]
    assert [slot.on_barrier(channel, THREE) for channel in (A, B)][-1] == [ForwardBarrier(THREE), TakeSnapshot(THREE)]


def test_at_least_once_an_aborted_checkpoint_is_not_taken() -> None:
    slot = BarrierTracker(frozenset({A, B}))
    slot.on_barrier(A, ONE)
    slot.on_abort(ONE)

    assert slot.on_barrier(B, ONE) == []
    assert slot.aligning is None


def test_at_least_once_a_checkpoint_whose_barrier_was_left_out_is_given_up_with_the_next() -> None:
    slot = BarrierTracker(frozenset({A, B}))
    slot.on_barrier(A, ONE)
    slot.on_barrier(A, TWO)

    assert slot.on_barrier(B, TWO) == [GiveUp(ONE), ForwardBarrier(TWO), TakeSnapshot(TWO)]


def test_at_least_once_aborts_whose_barriers_never_come_do_not_pile_up() -> None:
    slot = BarrierTracker(frozenset({A, B}))
    for number in range(1, 10_000):
        slot.on_abort(CheckpointId(number))

    assert len(slot.aborted) <= MAX_ABORTED
    assert slot.on_barrier(A, CheckpointId(9_999)) == []


# -- both -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [BarrierAligner, BarrierTracker])
@pytest.mark.parametrize("case", range(200))
def test_in_any_interleaving_of_barriers_records_and_aborts_every_cut_is_exact(
    case: int, machine: type[BarrierAligner | BarrierTracker]
) -> None:
    """After Flink's AlignedCheckpointsMassiveRandomTest: channels bring records and barriers; some checkpoints are
    aborted on the way. What was processed when a snapshot is taken is exactly what came before its barriers; at least
    once, no less."""
    rng = random.Random(case)
    channels = [ChannelId(number) for number in range(rng.randint(1, 4))]
    checkpoints = [CheckpointId(number) for number in range(1, 8)]
    scripts = {}
    for channel in channels:
        script: list[tuple[str, int]] = []
        for checkpoint in checkpoints:
            script += [("record", len(script) + number) for number in range(rng.randint(0, 3))]
            if rng.random() < 0.95:  # an upstream slot that gave the checkpoint up forwards no barrier
                script.append(("barrier", checkpoint))
        scripts[channel] = script
    slot = machine(frozenset(channels))
    waiting = {channel: list(script) for channel, script in scripts.items()}
    processed: dict[ChannelId, int] = dict.fromkeys(channels, 0)  #: lines of each script
    snapshots: list[CheckpointId] = []
    aborted: set[CheckpointId] = set()

    def act(actions: list[AlignmentAction]) -> None:
        for action in actions:
            if isinstance(action, TakeSnapshot):
                snapshots.append(action.checkpoint)
                for channel in channels:
                    cut = scripts[channel].index(("barrier", action.checkpoint))
                    assert processed[channel] == cut + 1 or (machine is BarrierTracker and processed[channel] > cut)

    while True:
        # A held channel is not read on: that is what holding means, whether in memory or on disk.
        readable = [channel for channel in channels if waiting[channel] and not slot.is_held(channel)]
        if not readable:
            break
        if rng.random() < 0.1:
            checkpoint = rng.choice(checkpoints)
            aborted.add(checkpoint)
            act(slot.on_abort(checkpoint))
            continue
        channel = rng.choice(readable)
        kind, value = waiting[channel].pop(0)
        processed[channel] += 1
        if kind == "barrier":
            act(slot.on_barrier(channel, CheckpointId(value)))

    assert snapshots == sorted(set(snapshots))
    everywhere = {each for each in checkpoints if all(("barrier", each) in scripts[channel] for channel in channels)}
    assert set(snapshots) <= everywhere
    if everywhere == set(checkpoints):  # nothing was left out, so nothing but an abort may lose a checkpoint
        assert set(checkpoints) - set(snapshots) <= aborted
