"""The checkpoints of one slot: aligned, unaligned, aligned for a time first, at least once. Pure.

Driven by task/slot_checkpoints.py on the executor.

    ANNOUNCED --first barrier taken--> ALIGNING --last one--> TAKING --snapshot taken--> TAKEN --trigger heard--> STORING
        |                                  |                   ^  |                        ^
        |                                  +-- time over: cut -+  +--> CUTTING --cut whole-+
        +-- an unaligned barrier was seen: a cut --------------+
        +-- first layer: the trigger; POSTPONED while restored records wait

Each may end before (ENDED): an abort, a newer one that overtakes it, a failed snapshot, too much to keep. MOVES is the table;
any other move is a bug of ours, told with the story of the last events.

Invariant 1. Frames after a channel's barrier wait until TakeSnapshot has been returned, or the checkpoint was given up (exactly
             once). An unaligned cut waits for nothing: it holds what was received before each barrier and not processed.
Invariant 2. TakeSnapshot is returned at most once for each checkpoint id, and ids only grow.
             The abort of one checkpoint ends no other, older or newer: with several at a time both may be on their way.
Invariant 3. A barrier is forwarded before the snapshot is taken, and before any frame that was held back for it.
Invariant 4. What an older checkpoint holds back is released before a cut begins: it stands before the cut's barriers.
Invariant 5. A snapshot is stored only when its trigger has been heard, which says where it goes, and its cut is whole.
Invariant 6. An aligned checkpoint of the first layer waits for restored records, as if its barrier stood in the queue.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, assert_never

from tidegate.ids import ChannelId, CheckpointId
from tidegate.protocol.logged import LoggedCheckpoint
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
from tidegate.protocol.story import Story

#: Checkpoints that are known and may never come. Far above any number of concurrent ones.
MAX_KNOWN = 128


class SlotState(enum.Enum):
    ANNOUNCED = "its trigger, or a barrier of it, is known"
    POSTPONED = "restored records go first"
    ALIGNING = "some of its barriers were taken"
    TAKING = "the snapshot is being taken"
    CUTTING = "taken; what was under way is being gathered"
    TAKEN = "whole; where it goes is not known yet"
    STORING = "handed over to be stored"
    ENDED = "given up; its barriers may still come"


S = SlotState
MOVES: Mapping[SlotState, frozenset[SlotState]] = {
    S.ANNOUNCED: frozenset({S.POSTPONED, S.ALIGNING, S.TAKING, S.ENDED}),
    S.POSTPONED: frozenset({S.TAKING, S.ENDED}),
    S.ALIGNING: frozenset({S.TAKING, S.ENDED}),
    S.TAKING: frozenset({S.CUTTING, S.TAKEN, S.ENDED}),
    S.CUTTING: frozenset({S.TAKEN, S.ENDED}),
    S.TAKEN: frozenset({S.STORING, S.ENDED}),
    S.STORING: frozenset({S.ENDED}),
    S.ENDED: frozenset(),
}
WAITING = frozenset({S.ANNOUNCED, S.POSTPONED, S.ALIGNING})  #: its snapshot is still to come
KEPT = frozenset({S.CUTTING, S.TAKEN, S.STORING})  #: its snapshot is kept


@dataclass(slots=True)
class SlotCheckpoint:
    """One checkpoint at this slot, from the first word of it to the last."""

    id: CheckpointId
    state: SlotState = S.ANNOUNCED
    triggered_at: float | None = None  #: None: the trigger has not been heard
    order: Any = None
    halts: bool = False
    turns_at: float | None = None  #: when it turns unaligned, unless it is taken before
    may_turn: bool = False  #: here, or at the slot that its barriers come from
    seen: bool = False  #: a barrier of it is here, taken or not
    opened_inbox: bool = False
    arrived: set[ChannelId] = field(default_factory=set)  #: all and only the channels whose barrier was taken
    began: float = 0.0  #: when the first of them was
    is_cut: bool = False


@dataclass(slots=True)
class SlotMachine:
    """See the module."""

    channels: frozenset[ChannelId]  #: every physical input; none for the first layer
    exactly_once: bool = True
    limits: str = "memory and disk"  #: of what may be kept for a checkpoint, in words
    aligned_at_most_s: float | None = (
        None  #: whatever the trigger says: no barrier waits here for longer, but a savepoint's
    )
    flows: bool = False  #: input is processed: the slot is open, and no barrier of a stop has passed
    opened: bool = False
    halted_by: CheckpointId | None = None
    aligning: CheckpointId | None = None  #: whose channels are held; None at least once
    done: CheckpointId = CheckpointId(0)  #: the highest id that was taken or given up here
    completed: CheckpointId = CheckpointId(0)  #: the newest that operators know of
    checkpoints: dict[CheckpointId, SlotCheckpoint] = field(default_factory=dict)
    story: Story = field(default_factory=Story)

    def on(self, event: SlotEvent, now: float) -> list[SlotAction]:
        """The one door in. `now` is monotonic. :raises ProtocolViolation: with the story of what led there."""
        self.story.begin(event, now)
        actions = self._on(event, now)
        self._bound()
        self.story.end(actions)
        return actions

    def _on(self, event: SlotEvent, now: float) -> list[SlotAction]:
        match event:
            case SlotOpened(restored_from):
                self.opened = self.flows = True
                self.completed = restored_from
                return []
            case Triggered():
                return self._triggered(event, now)
            case RestoredProcessed():
                return [action for each in self.postponed() for action in self._take(each, now, BarrierKind.ALIGNED)]
            case BarrierSeen(id, unaligned):
                return self._seen(id, unaligned, now)
            case BarrierTaken(channel, id):
                return self._barrier(channel, id, now)
            case SnapshotTaken(id):
                return self._snapshot_taken(id)
            case SnapshotFailed(id, reason):
                return self._give_up(self.checkpoints[id], reason)
            case CutWhole(id):
                cut = self.checkpoints.get(id)
                return [] if cut is None or cut.state is not S.CUTTING else self._whole(cut)
            case InboxOverflowed(id, kept_bytes):
                return self._too_much(id, f"{kept_bytes} bytes had to be kept until its barriers had come")
            case HeldOverflowed(kept_bytes):
                return self._too_much(self.aligning, f"{kept_bytes} bytes had to be held back during alignment")
            case CheckpointCompleted(logged):
                return self._completed(logged)
            case CheckpointAborted(id, latest_completed):
                return self._aborted(id, latest_completed)
            case TimePassed():
                return self._time_passed(now)
            case _:
                assert_never(event)

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def halted(self) -> bool:
        """The barrier of a stop has passed: no record, no timer after it."""
        return self.halted_by is not None

    def postponed(self) -> list[SlotCheckpoint]:
        return [each for each in self.checkpoints.values() if each.state is S.POSTPONED]

    def next_time(self) -> float | None:
        """When TimePassed is due."""
        if not self.checkpoints or not self.flows:
            return None
        times = [each.turns_at for each in self._may_turn() if each.seen or not each.opened_inbox]
        return min((at for at in times if at is not None), default=None)

    def _may_turn(self) -> list[SlotCheckpoint]:
        return [each for each in self.checkpoints.values() if each.turns_at is not None and each.state in WAITING]

    # -- what the coordinator says ----------------------------------------------------------------------------------

    def _triggered(self, event: Triggered, now: float) -> list[SlotAction]:
        told = self._know(event.checkpoint)
        if told is None or told.state is S.ENDED or told.triggered_at is not None:
            return []
        told.triggered_at, told.order, told.halts = now, event.order, event.halts
        after_s = self._unaligned_after(event)
        if not self.channels:
            return self._triggered_at_source(told, after_s, event.restored_wait, now)
        if told.state in WAITING:
            if after_s is not None and self.exactly_once:
                told.turns_at = now + after_s if told.turns_at is None else min(told.turns_at, now + after_s)
                told.may_turn = True
            return []
        return self._settle(told)  # its barriers were quicker

    def _unaligned_after(self, told: Triggered) -> float | None:
        limits = [told.unaligned_after_s]
        if told.order is None and not told.halts:  # another program may continue from it, without what was under way
            limits.append(self.aligned_at_most_s)
        return min((each for each in limits if each is not None), default=None)

    def _triggered_at_source(
        self, told: SlotCheckpoint, after_s: float | None, restored_wait: bool, now: float
    ) -> list[SlotAction]:
        older = [each for each in self.postponed() if each is not told]
        if after_s is None and (older or restored_wait):
            self._move(told, S.POSTPONED)
            return []
        actions = [action for each in older for action in self._overtaken(each)]
        if after_s is None:
            return actions + self._take(told, now, BarrierKind.ALIGNED)
        kind = BarrierKind.MAY_TURN if after_s else BarrierKind.UNALIGNED
        return actions + self._take(told, now, kind, cut=self.channels if restored_wait else None)

    def _completed(self, logged: LoggedCheckpoint) -> list[SlotAction]:
        actions: list[SlotAction] = [ShutInbox(logged.id)]
        for old in [each for each in self.checkpoints.values() if each.id <= logged.id]:
            if old.state is S.STORING and old.order is not None and old.id < logged.id:
                continue  # a savepoint, which may still be stored
            if old.state in (S.CUTTING, S.TAKEN):
                actions.append(DropSnapshot(old.id))
            if old.state is S.ALIGNING:
                actions += self._end(old)
            self.checkpoints.pop(old.id, None)
        self._pass(logged.id)
        return actions + self._commit(logged)

    def _commit(self, logged: LoggedCheckpoint | None) -> list[SlotAction]:
        """Ids only grow: what comes twice, or late, is not told again."""
        if logged is None or logged.id <= self.completed:
            return []
        self.completed = logged.id
        return [CommitUpTo(logged)]

    def _aborted(self, id: CheckpointId, latest_completed: LoggedCheckpoint | None) -> list[SlotAction]:
        """Its barriers may still come; they are ignored then."""
        actions: list[SlotAction] = [ShutInbox(id)]
        aborted = self._know(id)
        if aborted is not None and aborted.state is not S.ENDED:
            actions += self._end(aborted)
        if self.halted_by == id:
            self.halted_by, self.flows = None, self.opened
        return actions + self._commit(latest_completed)

    # -- barriers ---------------------------------------------------------------------------------------------------

    def _barrier(self, channel: ChannelId, id: CheckpointId, now: float) -> list[SlotAction]:
        if channel not in self.channels:
            raise self.story.violation(f"a barrier of checkpoint {id} came on channel {channel}, which is not an input")
        known = self._know(id)
        if known is None or known.state not in WAITING or (self.aligning is not None and id < self.aligning):
            return []  # late, or ended
        actions: list[SlotAction] = []
        if self.aligning is not None and id > self.aligning:
            actions += self._overtaken(self.checkpoints[self.aligning])
        if channel in known.arrived:
            raise self.story.violation(f"the barrier of checkpoint {id} came twice on channel {channel}")
        if not known.arrived:
            known.began = now
            self._move(known, S.ALIGNING)
        known.arrived.add(channel)
        known.seen = True
        if self.exactly_once:
            self.aligning = id
        if known.arrived != self.channels:
            return [*actions, HoldChannel(channel)] if self.exactly_once else actions
        # A channel that has brought the newer barrier will not bring an older one any more.
        for older in [each for each in self.checkpoints.values() if each.id < id and each.state is S.ALIGNING]:
            actions += self._overtaken(older)
        taken = self._take(known, now, BarrierKind.MAY_TURN if known.may_turn else BarrierKind.ALIGNED)
        return [*actions, *taken, ShutInbox(id), *([ReleaseChannels()] if self.exactly_once else [])]

    def _seen(self, id: CheckpointId, unaligned: bool, now: float) -> list[SlotAction]:
        known = self._know(id) if self.exactly_once else None
        if known is None or known.state not in WAITING:
            return []
        known.seen, known.may_turn = True, True
        if not unaligned:
            return []
        if self.flows:
            return self._cut(known, now)
        known.turns_at = float("-inf")  # as soon as input flows again
        return []

    def _time_passed(self, now: float) -> list[SlotAction]:
        actions: list[SlotAction] = []
        if not self.flows:
            return actions
        for known in [each for each in self._may_turn() if each.turns_at is not None and each.turns_at <= now]:
            if not known.opened_inbox:
                known.opened_inbox = True
                actions.append(OpenInbox(known.id))
            if known.seen and known.state in WAITING:
                actions += self._cut(known, now)
        return actions

    def _cut(self, known: SlotCheckpoint, now: float) -> list[SlotAction]:
        """Unaligned: the snapshot now, whatever channels its barrier has not come on."""
        known.turns_at = None
        if self.aligning is not None and known.id < self.aligning:
            return []
        waiting = self.channels - known.arrived
        actions: list[SlotAction] = []
        if self.aligning == known.id:
            actions.append(ReleaseChannels())
        elif self.aligning is not None:
            actions += self._overtaken(self.checkpoints[self.aligning])
        return actions + self._take(known, now, BarrierKind.UNALIGNED, cut=waiting)

    # -- the snapshot -----------------------------------------------------------------------------------------------

    def _take(
        self, known: SlotCheckpoint, now: float, kind: BarrierKind, cut: frozenset[ChannelId] | None = None
    ) -> list[SlotAction]:
        self._move(known, S.TAKING)
        if self.aligning == known.id:
            self.aligning = None
        self._pass(known.id)
        known.is_cut = cut is not None
        alignment_s = now - known.began if known.arrived else 0.0
        delay_s = 0.0 if known.triggered_at is None else max(0.0, now - alignment_s - known.triggered_at)
        take: list[SlotAction] = [ForwardBarrier(known.id, kind), TakeSnapshot(known.id, delay_s, alignment_s)]
        return take if cut is None else [BeginCut(known.id, cut), *take]

    def _snapshot_taken(self, id: CheckpointId) -> list[SlotAction]:
        taken = self.checkpoints[id]
        if not taken.is_cut:
            return self._whole(taken)
        self._move(taken, S.CUTTING)
        return self._settle(taken)

    def _whole(self, taken: SlotCheckpoint) -> list[SlotAction]:
        self._move(taken, S.TAKEN)
        return self._settle(taken)

    def _settle(self, taken: SlotCheckpoint) -> list[SlotAction]:
        """What follows as soon as both are there, the snapshot and the trigger."""
        if taken.triggered_at is None:
            return []
        if taken.halts and self.opened:
            self.halted_by, self.flows = taken.id, False
        if taken.state is not S.TAKEN:
            return []
        self._move(taken, S.STORING)
        return [StoreSnapshot(taken.id, taken.order)]

    # -- ends -------------------------------------------------------------------------------------------------------

    def _too_much(self, id: CheckpointId | None, what: str) -> list[SlotAction]:
        known = None if id is None else self.checkpoints.get(id)
        if known is None or (known.state not in WAITING and known.state is not S.CUTTING):
            return []
        return self._give_up(known, f"{what}, more than {self.limits} allow")

    def _give_up(self, known: SlotCheckpoint, reason: str) -> list[SlotAction]:
        return [DeclineCheckpoint(known.id, reason), ShutInbox(known.id), *self._end(known)]

    def _overtaken(self, known: SlotCheckpoint) -> list[SlotAction]:
        why = DeclineCheckpoint(known.id, "the barrier of a newer one came first", overtaken=True)
        return [why, *self._end(known)]

    def _end(self, known: SlotCheckpoint) -> list[SlotAction]:
        actions: list[SlotAction] = [DropSnapshot(known.id)] if known.state in KEPT else []
        self._move(known, S.ENDED)
        if self.aligning == known.id:
            self.aligning = None
            self._pass(known.id)
            actions.append(ReleaseChannels())
        return actions

    def _know(self, id: CheckpointId) -> SlotCheckpoint | None:
        """None: it was taken or given up, and nothing more of it is to come."""
        if id not in self.checkpoints and id > self.done:
            self.checkpoints[id] = SlotCheckpoint(id)
        return self.checkpoints.get(id)

    def _move(self, known: SlotCheckpoint, to: SlotState) -> None:
        self.story.check_move(f"checkpoint {known.id}", MOVES, known.state, to)
        known.state = to

    def _pass(self, id: CheckpointId) -> None:
        """Nothing up to this id is begun here any more."""
        self.done = max(self.done, id)
        spent = [
            each.id
            for each in self.checkpoints.values()
            if each.id <= self.done and each.state in (S.ANNOUNCED, S.POSTPONED, S.ENDED)
        ]
        for old in spent:
            del self.checkpoints[old]

    def _bound(self) -> None:
        """What was announced or aborted and never comes, and savepoints that are stored, must not pile up."""
        while len(self.checkpoints) > MAX_KNOWN:
            oldest = self.checkpoints[min(self.checkpoints)]
            if oldest.state is S.STORING:
                del self.checkpoints[oldest.id]
            elif oldest.state in (S.ANNOUNCED, S.ENDED):
                self._pass(oldest.id)
            else:
                return

    # -- invariants -------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """As far as a state shows them. For tests, after each event. :raises ProtocolViolation:"""
        broken = [what for what, holds in self._invariants() if not holds]
        if broken:
            raise self.story.violation("; ".join(broken))

    def _invariants(self) -> list[tuple[str, bool]]:
        known = list(self.checkpoints.values())
        held = None if self.aligning is None else self.checkpoints.get(self.aligning)
        taken = [each for each in known if each.state in KEPT or each.state is S.TAKING]
        return [
            ("each is under its own id", all(id == each.id for id, each in self.checkpoints.items())),
            ("what was taken is done", all(each.id <= self.done for each in taken)),
            ("what is done is not begun", all(each.id > self.done for each in known if each.state in WAITING)),
            (
                "channels are held for the one that is aligning",
                self.aligning is None or (held is not None and held.state is S.ALIGNING and self.exactly_once),
            ),
            (
                "exactly once, one at a time is aligning",
                not self.exactly_once or all(each.id == self.aligning for each in known if each.state is S.ALIGNING),
            ),
            (
                "who is aligning has some barriers, not all",
                all(0 < len(each.arrived) < len(self.channels) for each in known if each.state is S.ALIGNING),
            ),
            (
                "only what was told is stored",
                all(each.triggered_at is not None for each in known if each.state is S.STORING),
            ),
            (
                "a whole one that was told is stored",
                all(each.triggered_at is None for each in known if each.state is S.TAKEN),
            ),
            ("only the first layer postpones", not self.channels or not self.postponed()),
            ("input flows when the slot is open and not halted", self.flows == (self.opened and not self.halted)),
        ]
