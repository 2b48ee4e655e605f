"""The life of checkpoints in one attempt, as values in and values out. Pure; driven by coordinator/attempt.py.

    (trigger) -> PENDING --all slots acked--> STORING --log record stands--> COMPLETED --> slots are told
                    |                            |
                    +-- timeout, decline --------+-- storing failed --> ABORTED --> slots are told

The table of these moves is MOVES (checkpoint_states.py); any other is a bug of ours, told with the story of the last events.

A savepoint commits nothing, and nobody is told of it. But it holds what sinks have prepared for it, and a restart from an
older checkpoint would throw that away. So it is stored only when a checkpoint after it is complete, which commits the same:

    (trigger) -> PENDING --all slots acked--> UNCOVERED --a newer checkpoint completed--> STORING --> it stands

If none is under way one is triggered (COVER). The failure of either is not a failure of the job's. The savepoint of a stop is
the last checkpoint of the job: what it stands for is committed, and the job ends.

    suspend   no other checkpoint under way -> the savepoint -> committed everywhere -> FinishJob
    drain     DrainSources -> every slot has ended -> the savepoint -> committed everywhere -> FinishJob
              no other checkpoint is triggered after DrainSources: if the savepoint fails, or a slot dies, the job continues
              from one in which nothing has ended

Invariant 1. Ids only grow, and none is given out twice in one generation.
Invariant 2. StoreCheckpoint is returned once for an id, after every slot of this attempt acked it.
Invariant 3. NotifyComplete is returned only after CheckpointLogged: the log record is the commit point, and the permit that
             only such a record makes (protocol/logged.py) is part of both.
Invariant 4. Whatever an older attempt says changes nothing.
Invariant 5. After the last checkpoint (`final`) nothing is triggered, unless it is given up; after EndRequested nothing at all.
Invariant 6. No two checkpoints that commit are stored at a time in the wrong order: one that is older than one being stored is
             given up. Only savepoints wait UNCOVERED.

`validate` asserts what of these can be seen in a state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.protocol.checkpoint_events import (
    AbortReason,
    AckAnswer,
    Action,
    CheckpointLogged,
    CheckpointRequested,
    CheckpointStoreFailed,
    DiscardSnapshot,
    DrainSources,
    EndRequested,
    Event,
    FailAttempt,
    FinishJob,
    NotifyAborted,
    NotifyComplete,
    Purpose,
    RefuseSavepoint,
    SavepointRequested,
    SavepointStored,
    SlotBecameReady,
    SlotCommitted,
    SlotEnded,
    SnapshotAcknowledged,
    SnapshotDeclined,
    StopMode,
    StoreCheckpoint,
    TimePassed,
    TriggerCheckpoint,
)
from tidegate.protocol.checkpoint_invariants import invariants
from tidegate.protocol.checkpoint_states import MOVES, CheckpointState, TriggeredCheckpoint
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.protocol.story import Story

MINIMAL_INTERVAL_S = 0.010
#: Pause before a final checkpoint that failed is tried again. At once, its barriers would pile up where it was declined.
FINAL_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """What the user asked for. `interval_s` None: no periodic checkpoints, only the final one and requested ones."""

    interval_s: float | None = None
    timeout_s: float = 600.0
    min_pause_s: float = 0.0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    unaligned_after_s: float | None = None  #: None: aligned; 0: unaligned; else aligned for so long first


@dataclass(slots=True)
class CheckpointScheduler:
    """Decides on triggers, acknowledgements, completion and the end of a bounded job."""

    attempt: AttemptId
    slots: frozenset[SlotId]
    policy: CheckpointPolicy
    next_id: CheckpointId
    latest_completed: CheckpointId = CheckpointId(0)  #: 0: none yet
    checkpoints: dict[CheckpointId, TriggeredCheckpoint] = field(default_factory=dict)  #: that have not ended
    ready: set[SlotId] = field(default_factory=set)
    ended: set[SlotId] = field(default_factory=set)
    committed: dict[SlotId, CheckpointId] = field(default_factory=dict)
    requested: int = 0  #: user requests that wait for a turn
    next_periodic: float | None = None  #: None until every slot is ready
    last_completion: float = float("-inf")
    failures_in_a_row: int = 0
    savepoints: deque[SavepointRequested] = field(default_factory=deque)  #: that wait for a turn; none of them stops
    stop: SavepointRequested | None = None  #: the stop that was asked for and is not given up
    drained: bool = False  #: DrainSources was returned
    final: CheckpointId | None = None  #: the last checkpoint, once triggered
    final_purpose: Purpose = Purpose.FINAL
    final_not_before: float = float("-inf")  #: it failed, and is tried again then
    finished: bool = False
    ends_by: float | None = None  #: the job is to end without another checkpoint, at this moment at the latest
    restored: CheckpointId = field(init=False)  #: all that it holds is committed before a slot is ready
    story: Story = field(default_factory=Story, init=False)

    def __post_init__(self) -> None:
        self.restored = self.latest_completed

    def on(self, event: Event, now: float) -> list[Action]:
        """The one door in. `now` is monotonic. :raises ProtocolViolation: with the story of what led there."""
        self.story.begin(event, now)
        actions = self._on(event, now)
        self.story.end(actions)
        return actions

    def _on(self, event: Event, now: float) -> list[Action]:
        actions: list[Action] = []
        final = self.final
        match event:
            case SlotBecameReady(slot):
                self.ready.add(slot)
                if self.all_ready and self.policy.interval_s is not None and self.next_periodic is None:
                    self.next_periodic = now + self.policy.interval_s
            case SlotEnded(slot):
                self.ended.add(slot)
            case SnapshotAcknowledged():
                actions += self._acknowledged(event)
            case SnapshotDeclined(slot, attempt, checkpoint, reason, overtaken):
                declined = self.checkpoints.get(checkpoint) if attempt == self.attempt else None
                if declined is not None and declined.state is CheckpointState.PENDING:
                    why = AbortReason.OVERTAKEN if overtaken else AbortReason.DECLINED
                    actions += self._abort(checkpoint, why, f"slot {slot}: {reason}")
            case CheckpointLogged(logged):
                actions += self._completed(logged, now)
            case SavepointStored(checkpoint):
                self._savepoint_stored(checkpoint)
            case CheckpointStoreFailed(checkpoint, reason):
                self._stored_one(checkpoint)
                actions += self._abort(checkpoint, AbortReason.STORE_FAILED, reason)
            case SlotCommitted(slot, checkpoint):
                self.committed[slot] = max(checkpoint, self.committed.get(slot, CheckpointId(0)))
            case CheckpointRequested():
                self.requested += 1
            case SavepointRequested():
                actions += self._savepoint_requested(event)
            case EndRequested(by):
                self.ends_by = by
            case TimePassed():
                pass
            case _:
                assert_never(event)
        actions += self._expired(now)
        if final is not None and self.final is None:
            self.final_not_before = now + FINAL_RETRY_S
        if self._may_finish():
            self.finished = True
            return [*actions, FinishJob(self.final_purpose)]
        if self.ends_by is not None:
            return [*actions, FailAttempt("canceled")] if self._may_end(self.ends_by, now) else actions
        return actions + self._trigger(now)

    def _savepoint_requested(self, request: SavepointRequested) -> list[Action]:
        if self.finished or self.final is not None:
            return [RefuseSavepoint(request.request, "the job is at its end")]
        if request.stop is None:
            self.savepoints.append(request)
            return []
        if self.stop is not None:
            return [RefuseSavepoint(request.request, "the job is being stopped already")]
        self.stop = request
        return []

    # Compared by their numbers: with thousands of slots, and an event of each, whole sets would be compared a million times.

    @property
    def all_ready(self) -> bool:
        return len(self.ready) == len(self.slots)

    @property
    def all_ended(self) -> bool:
        return len(self.ended) == len(self.slots)

    def in_state(self, *states: CheckpointState) -> list[TriggeredCheckpoint]:
        """Oldest first."""
        return [each for each in self.checkpoints.values() if each.state in states]

    @property
    def under_way(self) -> list[TriggeredCheckpoint]:
        """Those that count as concurrent. A savepoint that waits for a checkpoint after it must not keep that one out."""
        return self.in_state(CheckpointState.PENDING, CheckpointState.STORING)

    def lost_savepoints(self) -> list[CheckpointId]:
        """Once the attempt is over: they will never be whole. One that is on its way to storage may stand."""
        waiting = self.in_state(CheckpointState.PENDING, CheckpointState.UNCOVERED)
        return [each.checkpoint for each in waiting if each.purpose.is_savepoint]

    def first_open_id(self) -> CheckpointId:
        """What belongs to a smaller id is nobody's any more, unless it is in the log or a savepoint's."""
        return min((each.checkpoint for each in self.under_way), default=self.next_id)

    def _move(self, checkpoint: CheckpointId, to: CheckpointState) -> TriggeredCheckpoint:
        moved = self.checkpoints[checkpoint]
        self.story.check_move(f"checkpoint {checkpoint}", MOVES, moved.state, to)
        moved.state = to
        if not MOVES[to]:
            del self.checkpoints[checkpoint]
        return moved

    def validate(self) -> None:
        """The invariants, as far as a state shows them. For tests, after each event. :raises ProtocolViolation:"""
        broken = [what for what, holds in invariants(self) if not holds]
        if broken:
            raise self.story.violation("; ".join(broken))

    def next_wake(self) -> float | None:
        """When TimePassed is due, at the latest."""
        times = [each.deadline for each in self.checkpoints.values() if not each.storing]
        if self.ends_by is not None:
            return min([*times, self.ends_by])
        # After the end of all input nothing periodic comes any more: a time in the past would keep the driver spinning.
        periodic = self.all_ready and not self.all_ended and self.final is None and not self.finished
        if self.stop is not None:
            periodic = False
        if periodic and self.next_periodic is not None and len(self.under_way) < self.policy.max_concurrent:
            times.append(max(self.next_periodic, self.last_completion + self.policy.min_pause_s))
        if self.all_ready and self.all_ended and self.final is None and not self.under_way:
            times.append(self.final_not_before)
        return min(times, default=None)

    # -- acknowledgements ---------------------------------------------------------------------------------------

    def _acknowledged(self, ack: SnapshotAcknowledged) -> list[Action]:
        answer = self._judge(ack)
        if answer is not AckAnswer.ACCEPTED:
            return [DiscardSnapshot(ack.slot, ack.checkpoint, ack.snapshot, answer)]
        acked = self.checkpoints[ack.checkpoint]
        acked.snapshots[ack.slot] = ack.snapshot
        if acked.snapshots.keys() != self.slots:
            return []
        if not acked.commits:
            self._move(acked.checkpoint, CheckpointState.UNCOVERED)
            return self._store_covered()
        if any(each.commits and each.checkpoint > acked.checkpoint for each in self.in_state(CheckpointState.STORING)):
            return self._abort(acked.checkpoint, AbortReason.SUBSUMED, "a newer one is being stored")
        return [self._store(acked.checkpoint)]

    def _store(self, checkpoint: CheckpointId) -> StoreCheckpoint:
        stored = self._move(checkpoint, CheckpointState.STORING)
        return StoreCheckpoint(checkpoint, stored.purpose, dict(stored.snapshots), stored.request)

    def _store_covered(self) -> list[Action]:
        """Savepoints that a completed checkpoint has followed: it holds all that sinks have prepared for them."""
        uncovered = self.in_state(CheckpointState.UNCOVERED)
        return [self._store(each.checkpoint) for each in uncovered if each.checkpoint < self.latest_completed]

    def _judge(self, ack: SnapshotAcknowledged) -> AckAnswer:
        if ack.attempt != self.attempt or ack.slot not in self.slots:
            return AckAnswer.FOREIGN
        acked = self.checkpoints.get(ack.checkpoint)
        if acked is None or acked.state is CheckpointState.UNCOVERED:
            return AckAnswer.UNKNOWN
        if ack.slot in acked.snapshots:
            return AckAnswer.DUPLICATE
        return AckAnswer.ACCEPTED

    # -- ends ---------------------------------------------------------------------------------------------------

    def _stored_one(self, checkpoint: CheckpointId) -> TriggeredCheckpoint:
        """What storage answers about: it must have been asked."""
        stored = self.checkpoints.get(checkpoint)
        if stored is None or not stored.storing:
            raise self.story.violation(
                f"checkpoint {checkpoint} was stored, or failed to be, and nobody had asked for it"
            )
        return stored

    def _savepoint_stored(self, checkpoint: CheckpointId) -> None:
        if self._stored_one(checkpoint).commits:
            raise self.story.violation(f"checkpoint {checkpoint} was stored, and no log record makes it count")
        self._move(checkpoint, CheckpointState.COMPLETED)  # no checkpoint is older because of it

    def _completed(self, logged: LoggedCheckpoint, now: float) -> list[Action]:
        checkpoint = logged.id
        if not self._stored_one(checkpoint).commits:
            raise self.story.violation(f"savepoint {checkpoint} commits nothing, and has no record in the log")
        self._move(checkpoint, CheckpointState.COMPLETED)
        self.latest_completed = max(self.latest_completed, checkpoint)
        self.last_completion = now
        self.failures_in_a_row = 0
        pending = self.in_state(CheckpointState.PENDING)
        aborts: list[Action] = []
        for older in [each.checkpoint for each in pending if each.checkpoint < checkpoint and each.commits]:
            aborts += self._abort(older, AbortReason.SUBSUMED, f"by checkpoint {checkpoint}")
        return [*aborts, NotifyComplete(logged), *self._store_covered()]

    def _abort(self, checkpoint: CheckpointId, reason: AbortReason, detail: str) -> list[Action]:
        aborted = self._move(checkpoint, CheckpointState.ABORTED)
        if aborted.purpose.is_last:
            self.final = None  # after the end of all input it will be triggered again
        actions: list[Action] = [NotifyAborted(checkpoint, self.latest_completed, reason, detail)]
        if aborted.request is not None:
            actions.append(RefuseSavepoint(aborted.request, f"{reason.value}: {detail}"))
            if self.stop is not None and self.stop.request == aborted.request:
                self.stop = None
            if aborted.purpose is Purpose.DRAIN:
                # The ends of input cannot be taken back, but for the checkpoint before them.
                actions.append(FailAttempt(f"the savepoint of the drain failed ({reason.value}: {detail})"))
        elif aborted.purpose is Purpose.COVER and reason.counted:
            uncovered = [each.checkpoint for each in self.in_state(CheckpointState.UNCOVERED)]
            for savepoint in [id for id in uncovered if id < checkpoint]:
                actions += self._abort(savepoint, AbortReason.UNCOVERED, f"{reason.value}: {detail}")
        elif reason.counted:
            self.failures_in_a_row += 1
            if self.failures_in_a_row > self.policy.tolerable_failures:
                actions.append(
                    FailAttempt(
                        f"checkpoint {checkpoint} failed ({reason.value}: {detail}); "
                        f"{self.failures_in_a_row} failures in a row, {self.policy.tolerable_failures} are tolerated"
                    )
                )
        return actions

    def _expired(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for late in [each for each in self.in_state(CheckpointState.PENDING) if each.deadline <= now]:
            missing = sorted(self.slots - late.snapshots.keys())
            detail = f"no answer from slots {', '.join(map(str, missing[:8]))}" + (" ..." if len(missing) > 8 else "")
            actions += self._abort(late.checkpoint, AbortReason.EXPIRED, detail)
        for late in [each for each in self.in_state(CheckpointState.UNCOVERED) if each.deadline <= now]:
            actions += self._abort(late.checkpoint, AbortReason.EXPIRED, "no checkpoint after it was complete")
        return actions

    def _may_finish(self) -> bool:
        return (
            not self.finished
            and not self.under_way  # a savepoint may be on its way to storage
            and self.final is not None
            and self.latest_completed >= self.final
            and all(self.committed.get(slot, 0) >= self.final for slot in self.slots)
        )

    def _may_end(self, by: float, now: float) -> bool:
        """A checkpoint that is being stored may be complete in a moment; one that waits for slots is given up."""
        storing = bool(self.in_state(CheckpointState.STORING))
        is_committed = all(self.committed.get(slot, self.restored) >= self.latest_completed for slot in self.slots)
        return now >= by or (is_committed and not storing)

    # -- triggers -----------------------------------------------------------------------------------------------

    def _trigger(self, now: float) -> list[Action]:
        if self.finished or not self.all_ready or self.final is not None:
            return []
        if self.stop is not None and self.stop.stop is StopMode.DRAIN and not self.drained:
            self.drained = True
            return [DrainSources()]
        last = self._last_purpose()
        request: SavepointRequested | None = None
        if last is not None and (self.under_way or now < self.final_not_before):
            return []
        if last is not None and not self.savepoints:
            purpose, request = last, None if last is Purpose.FINAL else self.stop
        elif len(self.under_way) >= self.policy.max_concurrent:
            return []
        elif self.savepoints:
            purpose, request = Purpose.SAVEPOINT, self.savepoints.popleft()
        elif self.drained:
            return []  # it would commit what the end of the stream has brought about: only the savepoint may do that
        elif self.requested:
            self.requested -= 1
            purpose = Purpose.REQUESTED
        elif self._is_uncovered():
            purpose = Purpose.COVER
        elif self._periodic_is_due(now):
            assert self.policy.interval_s is not None
            assert self.next_periodic is not None
            self.next_periodic = max(self.next_periodic + self.policy.interval_s, now)
            purpose = Purpose.PERIODIC
        else:
            return []
        checkpoint = self.next_id
        self.next_id = CheckpointId(checkpoint + 1)
        limit = self.policy.timeout_s if request is None or request.timeout_s is None else request.timeout_s
        number = None if request is None else request.request
        self.checkpoints[checkpoint] = TriggeredCheckpoint(checkpoint, purpose, now + limit, request=number)
        if purpose.is_last:
            self.final, self.final_purpose = checkpoint, purpose
        unaligned_after_s = self.policy.unaligned_after_s if purpose.may_turn else None
        return [TriggerCheckpoint(checkpoint, purpose, number, unaligned_after_s)]

    def _is_uncovered(self) -> bool:
        """Some savepoint waits for a checkpoint after it, and none is under way."""
        newest = max((each.checkpoint for each in self.under_way), default=CheckpointId(0))
        return any(each.checkpoint > newest for each in self.in_state(CheckpointState.UNCOVERED))

    def _last_purpose(self) -> Purpose | None:
        """Of the last checkpoint, when it is time for it."""
        if self.all_ended:
            # Input that has ended cannot be suspended: the savepoint is that of a drained job.
            return Purpose.FINAL if self.stop is None or self.stop.stop is StopMode.RESCALE else Purpose.DRAIN
        if self.stop is None or self.stop.stop is StopMode.DRAIN:
            return None
        return Purpose.SUSPEND if self.stop.stop is StopMode.SUSPEND else Purpose.RESCALE

    def _periodic_is_due(self, now: float) -> bool:
        if self.next_periodic is None or now < self.next_periodic:
            return False
        return now >= self.last_completion + self.policy.min_pause_s
