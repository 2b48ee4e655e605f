"""The checkpoints of a slot, as scripts of events: aligned, unaligned, with a time-out, at least once, savepoints, stops.

After Flink's AlignedCheckpointsTest, UnalignedCheckpointsTest and AlternatingCheckpointsTest. `validate` after every event.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from protocol_kit import logged

from tidegate.errors import ProtocolViolation
from tidegate.ids import ChannelId, CheckpointId
from tidegate.protocol.slot_events import (
    BarrierKind,
    BarrierSeen,
    BarrierTaken,
    BeginCut,
    CheckpointAborted,
    CheckpointCompleted,
    CommitUpTo,
    CutWhole,
    DeclineCheckpoint,
    DropSnapshot,
    ForwardBarrier,
    HeldOverflowed,
    HoldChannel,
    InboxOverflowed,
    OpenInbox,
    ReleaseChannels,
    RestoredProcessed,
    ShutInbox,
    SlotAction,
    SlotEvent,
    SlotOpened,
    SnapshotFailed,
    SnapshotTaken,
    StoreSnapshot,
    TakeSnapshot,
    TimePassed,
    Triggered,
)
from tidegate.protocol.slot_machine import MAX_KNOWN, MOVES, SlotMachine, SlotState

A, B, C = ChannelId(0), ChannelId(1), ChannelId(2)
ONE, TWO, THREE, FOUR, FIVE = (CheckpointId(number) for number in range(1, 6))
OVERTAKEN = "the barrier of a newer one came first"


@dataclass(slots=True)
class Slot:
    """A machine, and a task that takes each snapshot at once."""

    machine: SlotMachine
    now: float = 100.0
    broken: bool = False  #: snapshots fail

    def on(self, event: SlotEvent) -> list[SlotAction]:
        actions: list[SlotAction] = []
        for action in self.machine.on(event, self.now):
            actions.append(action)
            if isinstance(action, TakeSnapshot):
                id = action.checkpoint
                actions += self.on(SnapshotFailed(id, "disk full") if self.broken else SnapshotTaken(id))
        self.machine.validate()
        return actions

    def barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[SlotAction]:
        return self.on(BarrierTaken(channel, checkpoint))

    def abort(self, checkpoint: CheckpointId, latest: int = 0) -> list[SlotAction]:
        return self.on(CheckpointAborted(checkpoint, logged(latest) if latest else None))

    def after(self, seconds: float) -> list[SlotAction]:
        self.now += seconds
        return self.on(TimePassed())

    def held(self) -> set[ChannelId]:
        return set() if self.machine.aligning is None else self.machine.checkpoints[self.machine.aligning].arrived


def slot(*channels: ChannelId, told: Iterable[CheckpointId] = (), exactly_once: bool = True) -> Slot:
    made = Slot(SlotMachine(frozenset(channels), exactly_once, "3 bytes"))
    assert made.on(SlotOpened(CheckpointId(0))) == []
    for checkpoint in told:
        assert made.on(Triggered(checkpoint)) == []
    return made


def taken(checkpoint: CheckpointId, kind: BarrierKind = BarrierKind.ALIGNED) -> list[SlotAction]:
    return [ForwardBarrier(checkpoint, kind), TakeSnapshot(checkpoint)]


def aligned(checkpoint: CheckpointId) -> list[SlotAction]:
    """Its trigger was heard, and its last barrier has come."""
    return [*taken(checkpoint), StoreSnapshot(checkpoint), ShutInbox(checkpoint), ReleaseChannels()]


def cut(checkpoint: CheckpointId, *waiting: ChannelId) -> list[SlotAction]:
    return [BeginCut(checkpoint, frozenset(waiting)), *taken(checkpoint, BarrierKind.UNALIGNED)]


# -- aligned ----------------------------------------------------------------------------------------------------------


def test_the_snapshot_waits_for_the_slowest_channel() -> None:
    one = slot(A, B, C, told=[ONE])

    assert one.barrier(B, ONE) == [HoldChannel(B)]
    assert one.barrier(A, ONE) == [HoldChannel(A)]
    assert one.barrier(C, ONE) == aligned(ONE)


def test_one_channel_needs_no_alignment() -> None:
    one = slot(A, told=[ONE, TWO])

    assert one.barrier(A, ONE) == aligned(ONE)
    assert one.barrier(A, TWO) == aligned(TWO)


@pytest.mark.property
@pytest.mark.parametrize("order", list(itertools.permutations([A, B, C])))
def test_the_order_of_the_channels_plays_no_part(order: tuple[ChannelId, ...]) -> None:
    one = slot(A, B, C, told=[ONE, TWO])
    for checkpoint in (ONE, TWO):
        *first, last = order
        for number, channel in enumerate(first):
            assert one.barrier(channel, checkpoint) == [HoldChannel(channel)]
            assert one.held() == set(first[: number + 1])
        assert one.barrier(last, checkpoint) == aligned(checkpoint)
        assert not one.held()


def test_a_newer_barrier_ends_the_alignment_of_an_older_checkpoint() -> None:
    one = slot(A, B, C, told=[ONE, TWO])
    one.barrier(A, ONE)
    one.barrier(B, ONE)

    assert one.barrier(C, TWO) == [DeclineCheckpoint(ONE, OVERTAKEN, True), ReleaseChannels(), HoldChannel(C)]
    assert one.barrier(A, TWO) == [HoldChannel(A)]
    assert one.barrier(B, ONE) == []
    assert one.barrier(B, TWO) == aligned(TWO)
    assert one.barrier(A, ONE) == one.barrier(A, TWO) == []


def test_a_barrier_that_is_older_than_the_one_under_way_is_late() -> None:
    one = slot(A, B)
    one.barrier(A, TWO)

    assert one.barrier(B, ONE) == []
    assert one.held() == {A}


def test_an_abort_releases_the_held_channels_and_later_barriers_of_it_are_ignored() -> None:
    one = slot(A, B, told=[ONE, TWO])
    one.barrier(A, ONE)

    assert one.abort(ONE) == [ShutInbox(ONE), ReleaseChannels()]
    assert one.barrier(B, ONE) == []
    assert one.barrier(A, TWO) == [HoldChannel(A)]
    assert one.barrier(B, TWO) == aligned(TWO)


def test_an_abort_before_the_first_barrier_makes_its_barriers_and_its_trigger_pass_unseen() -> None:
    one = slot(A, B)

    assert one.abort(ONE) == [ShutInbox(ONE)]
    assert one.barrier(A, ONE) == one.barrier(B, ONE) == one.on(Triggered(ONE)) == []
    assert one.abort(ONE) == [ShutInbox(ONE)]
    assert one.on(BarrierSeen(ONE, True)) == []


def test_the_abort_of_a_newer_checkpoint_does_not_end_an_older_one() -> None:
    one = slot(A, B, told=[ONE])
    one.barrier(A, ONE)

    assert one.abort(TWO) == [ShutInbox(TWO)]
    assert one.held() == {A}
    assert one.barrier(B, ONE) == aligned(ONE)
    assert one.barrier(A, TWO) == one.barrier(B, TWO) == []
    assert one.barrier(A, THREE) == [HoldChannel(A)]


def test_the_abort_of_an_older_checkpoint_does_not_end_a_newer_one() -> None:
    one = slot(A, B, told=[TWO])
    one.barrier(A, TWO)

    assert one.abort(ONE) == [ShutInbox(ONE)]
    assert one.barrier(B, TWO) == aligned(TWO)


@pytest.mark.parametrize("exactly_once", [True, False])
def test_what_never_comes_does_not_pile_up(exactly_once: bool) -> None:
    one = slot(A, B, exactly_once=exactly_once)
    for number in range(1, 2_000):
        one.machine.on(CheckpointAborted(CheckpointId(number), None), 0.0)
        one.machine.on(Triggered(CheckpointId(number + 1)), 0.0)

    assert len(one.machine.checkpoints) <= MAX_KNOWN
    assert one.barrier(A, ONE) == one.barrier(A, CheckpointId(1_999)) == []
    assert one.barrier(A, CheckpointId(2_001)) == ([HoldChannel(A)] if exactly_once else [])


def test_savepoints_that_are_stored_do_not_pile_up() -> None:
    one = slot(A)
    for number in range(1, 2 * MAX_KNOWN):
        one.on(Triggered(CheckpointId(number), order="folder"))
        one.barrier(A, CheckpointId(number))

    assert len(one.machine.checkpoints) <= MAX_KNOWN


def test_who_is_aligning_is_not_passed_by_what_never_comes() -> None:
    one = slot(A, B, told=[ONE])
    one.barrier(A, ONE)
    for number in range(2, 2 * MAX_KNOWN):
        one.abort(CheckpointId(number))

    assert one.barrier(B, ONE) == aligned(ONE)


def test_a_barrier_that_comes_twice_on_a_channel_is_a_bug_of_ours_and_the_story_is_told() -> None:
    one = slot(A, B)
    one.barrier(A, ONE)

    with pytest.raises(ProtocolViolation, match="came twice on channel 0") as raised:
        one.barrier(A, ONE)
    assert [line.partition(" ")[2] for line in raised.value.story[1:]] == [  # type: ignore[attr-defined]
        "BarrierTaken(channel=0, checkpoint=1) -> HoldChannel(channel=0)",
        "BarrierTaken(channel=0, checkpoint=1)",
    ]


def test_a_barrier_on_an_unknown_channel_is_a_bug_of_ours() -> None:
    with pytest.raises(ProtocolViolation, match="channel 2, which is not an input"):
        slot(A, B).barrier(C, ONE)


def test_a_failed_snapshot_is_declined_and_input_continues() -> None:
    one = slot(A, B, told=[ONE])
    one.broken = True
    one.barrier(A, ONE)

    assert one.barrier(B, ONE) == [
        *taken(ONE),
        DeclineCheckpoint(ONE, "disk full"),
        ShutInbox(ONE),
        ShutInbox(ONE),
        ReleaseChannels(),
    ]


def test_too_much_held_back_is_declined_and_released() -> None:
    one = slot(A, B)
    assert one.on(HeldOverflowed(5)) == []
    one.barrier(A, ONE)
    why = "5 bytes had to be held back during alignment, more than 3 bytes allow"

    assert one.on(HeldOverflowed(5)) == [DeclineCheckpoint(ONE, why), ShutInbox(ONE), ReleaseChannels()]


# -- at least once ----------------------------------------------------------------------------------------------------


def test_at_least_once_nothing_is_held_back_and_several_are_under_way() -> None:
    one = slot(A, B, told=[ONE, TWO], exactly_once=False)

    assert one.barrier(A, ONE) == one.barrier(A, TWO) == one.on(BarrierSeen(ONE, True)) == []
    assert one.barrier(B, ONE) == [*taken(ONE), StoreSnapshot(ONE), ShutInbox(ONE)]
    assert one.barrier(B, TWO) == [*taken(TWO), StoreSnapshot(TWO), ShutInbox(TWO)]


def test_at_least_once_a_checkpoint_whose_barrier_was_left_out_is_given_up_with_the_next() -> None:
    one = slot(A, B, told=[TWO], exactly_once=False)
    one.barrier(A, ONE)
    one.barrier(A, TWO)

    assert one.barrier(B, TWO)[:2] == [DeclineCheckpoint(ONE, OVERTAKEN, True), *taken(TWO)[:1]]


def test_at_least_once_the_abort_of_a_newer_checkpoint_leaves_an_older_one_under_way() -> None:
    one = slot(A, B, told=[ONE], exactly_once=False)
    one.barrier(A, ONE)
    one.abort(TWO)

    assert one.barrier(B, ONE) == [*taken(ONE), StoreSnapshot(ONE), ShutInbox(ONE)]


def test_at_least_once_what_was_under_way_ends_when_a_newer_one_is_complete() -> None:
    one = slot(A, B, exactly_once=False)
    one.barrier(A, ONE)

    assert one.on(CheckpointCompleted(logged(2))) == [ShutInbox(TWO), CommitUpTo(logged(2))]
    assert one.machine.checkpoints == {}


# -- unaligned --------------------------------------------------------------------------------------------------------


def test_the_first_unaligned_barrier_takes_the_snapshot_and_the_cut_is_stored_when_it_is_whole() -> None:
    one = slot(A, B, told=[ONE])

    assert one.on(BarrierSeen(ONE, True)) == cut(ONE, A, B)
    assert one.on(BarrierSeen(ONE, True)) == one.barrier(A, ONE) == one.barrier(B, ONE) == []
    assert one.on(CutWhole(ONE)) == [StoreSnapshot(ONE)]
    assert one.on(CutWhole(ONE)) == []


def test_what_an_older_checkpoint_holds_back_is_released_before_the_cut_begins() -> None:
    """Fault A1: the frames that were held back stand before the barriers of the cut, or the barriers are among them."""
    one = slot(A, B, told=[ONE, TWO])
    one.barrier(A, ONE)

    assert one.on(BarrierSeen(TWO, True)) == [
        DeclineCheckpoint(ONE, OVERTAKEN, True),
        ReleaseChannels(),
        *cut(TWO, A, B),
    ]


def test_an_aligned_checkpoint_turns_when_its_time_is_over_and_a_barrier_is_there() -> None:
    one = slot(A, B)
    one.on(Triggered(ONE, 5.0))

    assert one.machine.next_time() == 105.0
    assert one.after(5) == [OpenInbox(ONE)]
    assert one.machine.next_time() is None, "nothing of it has arrived: the slot must not spin"
    assert one.on(BarrierSeen(ONE, False)) == []
    assert one.after(0) == cut(ONE, A, B)


@pytest.mark.parametrize(("told_s", "at"), [(None, 102.0), (5.0, 102.0), (1.0, 101.0), (0.0, 100.0)])
def test_where_no_barrier_may_wait_for_long_each_checkpoint_turns_in_time(told_s: float | None, at: float) -> None:
    """Calls to the outside may take for ever; what the job has set is a limit of its own."""
    one = slot(A, B)
    one.machine.aligned_at_most_s = 2.0
    one.on(Triggered(ONE, told_s))

    assert one.machine.next_time() == at
    one.on(BarrierSeen(ONE, False))
    assert one.after(at - 100.0) == [OpenInbox(ONE), *cut(ONE, A, B)]


@pytest.mark.parametrize("kind", [{"order": "savepoint"}, {"halts": True}, {"order": "savepoint", "halts": True}])
def test_what_another_program_may_continue_from_stays_aligned_where_no_barrier_may_wait_for_long(
    kind: dict[str, Any],
) -> None:
    one = slot(A, B)
    one.machine.aligned_at_most_s = 2.0
    one.on(Triggered(ONE, None, **kind))

    assert one.machine.next_time() is None
    one.on(BarrierSeen(ONE, False))
    assert one.after(10.0) == []


def test_channels_whose_barrier_was_taken_are_not_in_the_cut() -> None:
    one = slot(A, B)
    one.on(Triggered(ONE, 5.0))
    assert one.barrier(A, ONE) == [HoldChannel(A)]

    assert one.after(5) == [OpenInbox(ONE), ReleaseChannels(), *cut(ONE, B)]
    assert not one.held()


def test_one_that_is_aligned_in_time_says_that_it_may_turn_further_down() -> None:
    one = slot(A)
    one.on(Triggered(ONE, 5.0))

    assert one.barrier(A, ONE)[0] == ForwardBarrier(ONE, BarrierKind.MAY_TURN)
    assert one.after(5) == []
    one.on(BarrierSeen(TWO, False))
    assert one.barrier(A, TWO)[0] == ForwardBarrier(TWO, BarrierKind.MAY_TURN), "though its trigger is late"


def test_an_older_one_does_not_turn_when_a_newer_is_aligning() -> None:
    one = slot(A, B)
    one.on(Triggered(ONE, 5.0))
    one.on(BarrierSeen(ONE, False))
    one.barrier(A, TWO)

    assert one.after(5) == [OpenInbox(ONE)]
    assert one.machine.next_time() is None


def test_a_stop_that_was_given_up_lets_the_cut_of_the_next_begin() -> None:
    one = slot(A, B)
    one.on(Triggered(ONE, halts=True))
    one.barrier(A, ONE)
    one.barrier(B, ONE)
    assert one.machine.halted

    assert one.on(BarrierSeen(TWO, True)) == one.after(1) == []
    assert one.machine.next_time() is None
    assert one.abort(ONE) == [ShutInbox(ONE), DropSnapshot(ONE)]
    assert one.machine.flows
    assert one.after(0) == [OpenInbox(TWO), *cut(TWO, A, B)]
    assert one.on(Triggered(TWO, 0.0)) == []
    assert one.on(CutWhole(TWO)) == [StoreSnapshot(TWO)]


def test_the_trigger_after_the_barrier_of_a_slot_that_stands_still_does_not_put_the_cut_off() -> None:
    one = slot(A, B)
    one.on(Triggered(ONE, halts=True))
    one.barrier(A, ONE)
    one.barrier(B, ONE)
    one.on(BarrierSeen(TWO, True))
    one.on(Triggered(TWO, 60.0))
    one.abort(ONE)

    assert one.after(0) == [OpenInbox(TWO), *cut(TWO, A, B)]


@pytest.mark.parametrize("state", ["announced", "cutting"])
def test_an_inbox_that_overflows_ends_the_checkpoint(state: str) -> None:
    one = slot(A, B)
    one.on(Triggered(ONE, 0.0))
    if state == "cutting":
        one.on(BarrierSeen(ONE, True))
    why = "5 bytes had to be kept until its barriers had come, more than 3 bytes allow"
    dropped = [DropSnapshot(ONE)] if state == "cutting" else []

    assert one.on(InboxOverflowed(ONE, 5)) == [DeclineCheckpoint(ONE, why), ShutInbox(ONE), *dropped]
    assert one.on(InboxOverflowed(ONE, 5)) == one.on(CutWhole(ONE)) == one.barrier(A, ONE) == []


def test_an_abort_lets_go_of_a_cut_that_is_not_whole() -> None:
    one = slot(A, B, told=[ONE])
    one.on(BarrierSeen(ONE, True))

    assert one.abort(ONE) == [ShutInbox(ONE), DropSnapshot(ONE)]
    assert one.on(CutWhole(ONE)) == []


def test_a_newer_completed_checkpoint_lets_go_of_older_cuts() -> None:
    one = slot(A, B)
    one.on(BarrierSeen(ONE, True))

    assert one.on(CheckpointCompleted(logged(2))) == [ShutInbox(TWO), DropSnapshot(ONE), CommitUpTo(logged(2))]


def test_exactly_once_an_alignment_ends_when_a_newer_one_is_complete() -> None:
    one = slot(A, B)
    one.barrier(A, ONE)

    assert one.on(CheckpointCompleted(logged(2))) == [ShutInbox(TWO), ReleaseChannels(), CommitUpTo(logged(2))]


# -- orders, stops, completions ---------------------------------------------------------------------------------------


def test_a_snapshot_whose_barriers_were_quicker_waits_to_hear_where_it_goes() -> None:
    one = slot(A)

    assert one.barrier(A, ONE) == [*taken(ONE), ShutInbox(ONE), ReleaseChannels()]
    assert one.on(Triggered(ONE, order="folder")) == [StoreSnapshot(ONE, "folder")]
    assert one.on(Triggered(ONE, order="folder")) == []


def test_a_snapshot_that_waits_for_its_trigger_is_let_go_by_an_abort() -> None:
    one = slot(A)
    one.barrier(A, ONE)

    assert one.abort(ONE) == [ShutInbox(ONE), DropSnapshot(ONE)]


def test_a_savepoint_may_still_be_given_up_when_a_newer_checkpoint_is_complete() -> None:
    one = slot(A)
    for number, order in ((ONE, "folder"), (TWO, None)):
        one.on(Triggered(number, order=order))
        one.barrier(A, number)
    one.on(CheckpointCompleted(logged(2)))

    assert one.abort(ONE, latest=2) == [ShutInbox(ONE), DropSnapshot(ONE)]


@pytest.mark.parametrize("quicker", ["trigger", "barrier", "unaligned barrier"])
def test_nothing_flows_after_the_barrier_of_a_stop(quicker: str) -> None:
    one = slot(A)
    if quicker == "trigger":
        one.on(Triggered(ONE, halts=True))
        assert one.machine.flows
        one.barrier(A, ONE)
    else:
        one.on(BarrierSeen(ONE, True)) if quicker == "unaligned barrier" else one.barrier(A, ONE)
        assert one.machine.flows
        one.on(Triggered(ONE, halts=True))
    assert not one.machine.flows
    one.on(CheckpointCompleted(logged(1)))
    assert one.machine.halted


def test_operators_hear_of_each_completed_checkpoint_once_and_an_abort_repairs_a_lost_one() -> None:
    one = Slot(SlotMachine(frozenset({A})))
    one.on(SlotOpened(TWO))

    assert one.abort(FOUR, latest=2) == [ShutInbox(FOUR)], "it was restored from that one"
    assert one.abort(FOUR, latest=3) == [ShutInbox(FOUR), CommitUpTo(logged(3))]
    assert one.on(CheckpointCompleted(logged(3))) == [ShutInbox(THREE)]


# -- the first layer --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after_s", "kind"),
    [(None, BarrierKind.ALIGNED), (0.0, BarrierKind.UNALIGNED), (5.0, BarrierKind.MAY_TURN)],
)
def test_a_source_takes_its_snapshot_at_the_trigger(after_s: float | None, kind: BarrierKind) -> None:
    source = slot()

    assert source.on(Triggered(ONE, after_s)) == [*taken(ONE, kind), StoreSnapshot(ONE)]
    assert source.on(Triggered(ONE, after_s)) == source.after(10) == []
    assert source.machine.next_time() is None


def test_an_aligned_checkpoint_of_a_source_waits_for_restored_records() -> None:
    """Faults A4 and A5: what does not come through the queue of frames must not overtake restored records."""
    source = slot()

    assert source.on(Triggered(ONE, restored_wait=True)) == []
    assert source.on(Triggered(TWO)) == [], "after the first"
    assert source.on(RestoredProcessed()) == [*taken(ONE), StoreSnapshot(ONE), *taken(TWO), StoreSnapshot(TWO)]


def test_an_unaligned_checkpoint_of_a_source_holds_the_restored_records_that_wait() -> None:
    source = slot()
    source.on(Triggered(ONE, restored_wait=True))

    assert source.on(Triggered(TWO, 0.0, restored_wait=True)) == [DeclineCheckpoint(ONE, OVERTAKEN, True), *cut(TWO)]
    assert source.on(CutWhole(TWO)) == [StoreSnapshot(TWO)]


def test_a_postponed_checkpoint_that_was_given_up_is_not_taken() -> None:
    source = slot()
    source.on(Triggered(ONE, restored_wait=True))
    source.abort(ONE)

    assert source.on(RestoredProcessed()) == []


# -- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_", SlotState)
@pytest.mark.parametrize("to", SlotState)
def test_a_move_that_the_table_does_not_have_is_refused(from_: SlotState, to: SlotState) -> None:
    one = slot(A, B, told=[ONE])
    known = one.machine.checkpoints[ONE]
    known.state = from_
    if to in MOVES[from_]:
        one.machine._move(known, to)
        assert known.state is to
    else:
        with pytest.raises(ProtocolViolation, match=f"checkpoint 1 cannot go from {from_.name} to {to.name}"):
            one.machine._move(known, to)


def test_validate_finds_a_state_that_cannot_be() -> None:
    one = slot(A, B, told=[ONE])
    one.machine.checkpoints[ONE].state = SlotState.STORING

    with pytest.raises(ProtocolViolation, match="what was taken is done"):
        one.machine.validate()


# -- any interleaving -------------------------------------------------------------------------------------------------

Item = tuple[str, int, BarrierKind]  #: ("record" or "barrier", number, kind of the barrier)


@dataclass
class World:
    """A slot with its queue, as task/ has it: what arrives waits in an inbox; letters are read before frames."""

    scripts: dict[ChannelId, list[Item]]
    exactly_once: bool = True
    slot: Slot = field(init=False)
    unsent: dict[ChannelId, list[Item]] = field(init=False)
    inbox: list[tuple[ChannelId, Item]] = field(default_factory=list)
    released: list[tuple[ChannelId, Item]] = field(default_factory=list)
    held: list[tuple[ChannelId, Item]] = field(default_factory=list)
    held_channels: set[ChannelId] = field(default_factory=set)
    processed: dict[ChannelId, list[int]] = field(init=False)
    snapshots: dict[int, dict[ChannelId, list[int]]] = field(default_factory=dict)
    cutting: tuple[int, set[ChannelId]] | None = None
    stored: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slot = Slot(SlotMachine(frozenset(self.scripts), self.exactly_once))
        self.unsent = {channel: list(script) for channel, script in self.scripts.items()}
        self.processed = {channel: [] for channel in self.scripts}
        self.on(SlotOpened(CheckpointId(0)))

    def on(self, event: SlotEvent) -> None:
        for action in self.slot.machine.on(event, self.slot.now):
            self.act(action)
        self.slot.machine.validate()

    def act(self, action: SlotAction) -> None:
        match action:
            case HoldChannel(channel):
                self.held_channels.add(channel)
            case ReleaseChannels():
                self.released, self.held = self.held + self.released, []
                self.held_channels.clear()
            case BeginCut(id, waiting):
                self.cutting = id, set(waiting)
                self.snapshots[id] = {channel: [] for channel in self.scripts}
                for channel, item in self.released + self.inbox:
                    self.offer(channel, item)
            case TakeSnapshot(id):
                under_way = self.snapshots.get(id, {})
                self.snapshots[id] = {c: rows + under_way.get(c, []) for c, rows in self.processed.items()}
                self.on(SnapshotTaken(id))
            case ShutInbox(id):
                if self.cutting is not None and self.cutting[0] <= id:
                    self.cutting = None
            case StoreSnapshot(id):
                self.check(id)
                self.stored.append(id)
            case DropSnapshot(id):
                self.snapshots.pop(id, None)

    def offer(self, channel: ChannelId, item: Item) -> None:
        if self.cutting is not None and channel in self.cutting[1]:
            if item[0] == "record":
                self.snapshots[self.cutting[0]][channel].append(item[1])
            elif item[1] == self.cutting[0]:
                self.cutting[1].discard(channel)

    def arrive(self, channel: ChannelId) -> None:
        item = self.unsent[channel].pop(0)
        self.inbox.append((channel, item))
        self.offer(channel, item)
        if item[0] == "barrier" and item[2] is not BarrierKind.ALIGNED:
            self.on(BarrierSeen(CheckpointId(item[1]), item[2] is BarrierKind.UNALIGNED))

    def letters(self) -> None:
        if self.cutting is not None and not self.cutting[1]:
            id, self.cutting = self.cutting[0], None
            self.on(CutWhole(CheckpointId(id)))
        due = self.slot.machine.next_time()
        if due is not None and due <= self.slot.now:
            self.on(TimePassed())

    def process(self) -> bool:
        queue = self.released or self.inbox
        if not queue:
            return False
        channel, item = queue.pop(0)
        if channel in self.held_channels:
            self.held.append((channel, item))
        elif item[0] == "record":
            self.processed[channel].append(item[1])
        else:
            self.on(BarrierTaken(channel, CheckpointId(item[1])))
        return True

    def check(self, id: int) -> None:
        for channel, script in self.scripts.items():
            (place,) = [at for at, item in enumerate(script) if item[:2] == ("barrier", id)]
            before = [item[1] for item in script[:place] if item[0] == "record"]
            got = self.snapshots[id][channel]
            assert got == before if self.exactly_once else got[: len(before)] == before, (id, channel)


KINDS = {
    "aligned": [None],
    "unaligned": [0.0],
    "time-out": [2.0],
    "savepoints between": [None, 0.0, 2.0],
}


@pytest.mark.property
@pytest.mark.parametrize("mode", [*KINDS, "at least once"])
@pytest.mark.parametrize("case", range(200))
def test_in_any_interleaving_every_cut_is_exact(case: int, mode: str) -> None:
    """After Flink's AlignedCheckpointsMassiveRandomTest. Channels bring records and barriers, the network and the slot take
    turns, checkpoints are aborted on the way: what is stored is what came before the barriers, no more and no less."""
    rng = random.Random(f"{case} {mode}")
    after_s = {id: rng.choice(KINDS.get(mode, [None])) for id in range(1, 8)}
    kinds = {None: BarrierKind.ALIGNED, 0.0: BarrierKind.UNALIGNED, 2.0: BarrierKind.MAY_TURN}
    scripts: dict[ChannelId, list[Item]] = {}
    for channel in map(ChannelId, range(rng.randint(1, 4))):
        numbers = itertools.count()
        scripts[channel] = script = []
        for id, after in after_s.items():
            script += [("record", next(numbers), BarrierKind.ALIGNED) for _ in range(rng.randint(0, 3))]
            # What turned unaligned at an earlier slot comes so; what has not is seen on its arrival.
            script.append(("barrier", id, rng.choice([kinds[after], BarrierKind.UNALIGNED]) if after else kinds[after]))
    world = World(scripts, exactly_once=mode != "at least once")
    aborts = rng.random() < 0.5
    aborted: set[int] = set()
    to_trigger = list(after_s)
    while True:
        world.letters()
        channels = [channel for channel, unsent in world.unsent.items() if unsent]
        match rng.choice(["arrive", "process", "process", "trigger", "time", "abort"]):
            case "arrive" if channels:
                world.arrive(rng.choice(channels))
            case "trigger" if to_trigger:
                id = to_trigger.pop(0)
                world.on(Triggered(CheckpointId(id), after_s[id]))
            case "time":
                world.slot.now += rng.choice([0.0, 0.5, 3.0])
            case "abort" if aborts and rng.random() < 0.2:
                aborted.add(id := rng.randint(1, 7))
                world.on(CheckpointAborted(CheckpointId(id), None))
            case "process" if not world.process() and not channels and not to_trigger:
                break
    world.letters()
    assert world.stored == sorted(set(world.stored)) or mode != "aligned"
    assert max(Counter(world.stored).values(), default=1) == 1
    assert not world.held
    if mode in ("aligned", "at least once") and len(scripts) == 1 and not aborted:
        assert sorted(world.stored) == list(after_s)
