"""The life of checkpoints in one attempt, as values in and values out. Pure; driven by coordinator/attempt.py.

    (trigger) -> PENDING --all slots acked--> STORING --log record stands--> COMPLETED --> slots are told
                    |                            |
                    +-- timeout, decline --------+-- storing failed --> ABORTED --> slots are told

A savepoint commits nothing, and nobody is told of it. But it holds what sinks have prepared for it, and a restart from an
older checkpoint would throw that away. So it is stored only when a checkpoint after it is complete, which commits the same:

    (trigger) -> PENDING --all slots acked--> uncovered --a newer checkpoint completed--> STORING --> it stands

If none is under way one is triggered (COVER). The failure of either is not a failure of the job's. The savepoint of a stop is
the last checkpoint of the job: what it stands for is committed, and the job ends.

    suspend   no other checkpoint under way -> the savepoint -> committed everywhere -> FinishJob
    drain     DrainSources -> every slot has ended -> the savepoint -> committed everywhere -> FinishJob
              no other checkpoint is triggered after DrainSources: if the savepoint fails, or a slot dies, the job continues
              from one in which nothing has ended

Invariant 1. Ids only grow, and none is given out twice in one generation.
Invariant 2. StoreCheckpoint is returned once for an id, after every slot of this attempt acked it.
Invariant 3. NotifyComplete is returned only after CheckpointStored: the log record is the commit point.
Invariant 4. Whatever an older attempt says changes nothing.
Invariant 5. After the last checkpoint (`final`) nothing is triggered, unless it is given up; after EndRequested nothing at all.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, assert_never

from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.protocol.checkpoint_events import (
    AbortReason,
    AckAnswer,
    Action,
    CheckpointRequested,
    CheckpointStored,
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
class PendingCheckpoint:
    """Waiting for acknowledgements, or being stored."""

    checkpoint: CheckpointId
    purpose: Purpose
    deadline: float
    snapshots: dict[SlotId, Any] = field(default_factory=dict)
    storing: bool = False
    request: int | None = None


@dataclass(slots=True)
class CheckpointScheduler:
    """Decides on triggers, acknowledgements, completion and the end of a bounded job."""

    attempt: AttemptId
    slots: frozenset[SlotId]
    policy: CheckpointPolicy
    next_id: CheckpointId
    latest_completed: CheckpointId = CheckpointId(0)  #: 0: none yet
    pending: dict[CheckpointId, PendingCheckpoint] = field(default_factory=dict)
    ready: set[SlotId] = field(default_factory=set)
    ended: set[SlotId] = field(default_factory=set)
    committed: dict[SlotId, CheckpointId] = field(default_factory=dict)
    requested: int = 0  #: user requests that wait for a turn
    next_periodic: float | None = None  #: None until every slot is ready
    last_completion: float = float("-inf")
    failures_in_a_row: int = 0
    savepoints: deque[SavepointRequested] = field(default_factory=deque)  #: that wait for a turn; none of them stops
    uncovered: dict[CheckpointId, PendingCheckpoint] = field(default_factory=dict)  #: savepoints, all slots acked
    stop: SavepointRequested | None = None  #: the stop that was asked for and is not given up
    drained: bool = False  #: DrainSources was returned
    final: CheckpointId | None = None  #: the last checkpoint, once triggered
    final_purpose: Purpose = Purpose.FINAL
    final_not_before: float = float("-inf")  #: it failed, and is tried again then
    finished: bool = False
    ends_by: float | None = None  #: the job is to end without another checkpoint, at this moment at the latest
    restored: CheckpointId = field(init=False)  #: all that it holds is committed before a slot is ready

    def __post_init__(self) -> None:
        self.restored = self.latest_completed

    def on(self, event: Event, now: float) -> list[Action]:
        """The one door in. `now` is monotonic."""
        actions: list[Action] = []
        final = self.final
        match event:
            case SlotBecameReady(slot):
                self.ready.add(slot)
                if self.ready == self.slots and self.policy.interval_s is not None and self.next_periodic is None:
                    self.next_periodic = now + self.policy.interval_s
            case SlotEnded(slot):
                self.ended.add(slot)
            case SnapshotAcknowledged():
                actions += self._acknowledged(event)
            case SnapshotDeclined(slot, attempt, checkpoint, reason, overtaken):
                if attempt == self.attempt and checkpoint in self.pending and not self.pending[checkpoint].storing:
                    why = AbortReason.OVERTAKEN if overtaken else AbortReason.DECLINED
                    actions += self._abort(checkpoint, why, f"slot {slot}: {reason}")
            case CheckpointStored(checkpoint):
                actions += self._completed(checkpoint, now)
            case CheckpointStoreFailed(checkpoint, reason):
                if checkpoint in self.pending:
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

    def next_wake(self) -> float | None:
        """When TimePassed is due, at the latest."""
        times = [p.deadline for p in (*self.pending.values(), *self.uncovered.values()) if not p.storing]
        if self.ends_by is not None:
            return min([*times, self.ends_by])
        # After the end of all input nothing periodic comes any more: a time in the past would keep the driver spinning.
        periodic = self.ready == self.slots and self.ended != self.slots and self.final is None and not self.finished
        if self.stop is not None:
            periodic = False
        if periodic and self.next_periodic is not None and len(self.pending) < self.policy.max_concurrent:
            times.append(max(self.next_periodic, self.last_completion + self.policy.min_pause_s))
        if self.ready == self.slots == self.ended and self.final is None and not self.pending:
            times.append(self.final_not_before)
        return min(times, default=None)

    # -- acknowledgements ---------------------------------------------------------------------------------------

    def _acknowledged(self, ack: SnapshotAcknowledged) -> list[Action]:
        answer = self._judge(ack)
        if answer is not AckAnswer.ACCEPTED:
            return [DiscardSnapshot(ack.slot, ack.checkpoint, ack.snapshot, answer)]
        pending = self.pending[ack.checkpoint]
        pending.snapshots[ack.slot] = ack.snapshot
        if pending.snapshots.keys() != self.slots:
            return []
        if pending.purpose is Purpose.SAVEPOINT:
            self.uncovered[ack.checkpoint] = self.pending.pop(ack.checkpoint)
            return self._store_covered()
        newer = [other for other in self.pending.values() if other.checkpoint > pending.checkpoint]
        if any(other.storing and other.purpose is not Purpose.SAVEPOINT for other in newer):
            return self._abort(pending.checkpoint, AbortReason.SUBSUMED, "a newer one is being stored")
        return [self._store(pending)]

    def _store(self, pending: PendingCheckpoint) -> StoreCheckpoint:
        pending.storing = True
        return StoreCheckpoint(pending.checkpoint, pending.purpose, dict(pending.snapshots), pending.request)

    def _store_covered(self) -> list[Action]:
        """Savepoints that a completed checkpoint has followed: it holds all that sinks have prepared for them."""
        covered = [savepoint for id, savepoint in self.uncovered.items() if id < self.latest_completed]
        for savepoint in covered:
            self.pending[savepoint.checkpoint] = self.uncovered.pop(savepoint.checkpoint)
        return [self._store(savepoint) for savepoint in covered]

    def _judge(self, ack: SnapshotAcknowledged) -> AckAnswer:
        if ack.attempt != self.attempt or ack.slot not in self.slots:
            return AckAnswer.FOREIGN
        pending = self.pending.get(ack.checkpoint)
        if pending is None:
            return AckAnswer.UNKNOWN
        if ack.slot in pending.snapshots:
            return AckAnswer.DUPLICATE
        return AckAnswer.ACCEPTED

    # -- ends ---------------------------------------------------------------------------------------------------

    def _completed(self, checkpoint: CheckpointId, now: float) -> list[Action]:
        if self.pending.pop(checkpoint).purpose is Purpose.SAVEPOINT:
            return []  # commits nothing, and no checkpoint is older because of it
        self.latest_completed = max(self.latest_completed, checkpoint)
        self.last_completion = now
        self.failures_in_a_row = 0
        older = [
            id
            for id, pending in self.pending.items()
            if id < checkpoint and not pending.storing and pending.purpose is not Purpose.SAVEPOINT
        ]
        aborts: list[Action] = []
        for id in older:
            aborts += self._abort(id, AbortReason.SUBSUMED, f"by checkpoint {checkpoint}")
        return [*aborts, NotifyComplete(checkpoint), *self._store_covered()]

    def _abort(self, checkpoint: CheckpointId, reason: AbortReason, detail: str) -> list[Action]:
        aborted = (self.uncovered if checkpoint in self.uncovered else self.pending).pop(checkpoint)
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
            for savepoint in [id for id in self.uncovered if id < checkpoint]:
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
        late = [p.checkpoint for p in self.pending.values() if p.deadline <= now and not p.storing]
        actions: list[Action] = []
        for checkpoint in late:
            pending = self.pending[checkpoint]
            missing = sorted(self.slots - pending.snapshots.keys())
            detail = f"no answer from slots {', '.join(map(str, missing[:8]))}" + (" ..." if len(missing) > 8 else "")
            actions += self._abort(checkpoint, AbortReason.EXPIRED, detail)
        for checkpoint in [id for id, savepoint in self.uncovered.items() if savepoint.deadline <= now]:
            actions += self._abort(checkpoint, AbortReason.EXPIRED, "no checkpoint after it was complete")
        return actions

    def _may_finish(self) -> bool:
        return (
            not self.finished
            and not self.pending  # a savepoint may be on its way to storage
            and self.final is not None
            and self.latest_completed >= self.final
            and all(self.committed.get(slot, 0) >= self.final for slot in self.slots)
        )

    def _may_end(self, by: float, now: float) -> bool:
        """A checkpoint that is being stored may be complete in a moment; one that waits for slots is given up."""
        storing = any(pending.storing for pending in self.pending.values())
        is_committed = all(self.committed.get(slot, self.restored) >= self.latest_completed for slot in self.slots)
        return now >= by or (is_committed and not storing)

    # -- triggers -----------------------------------------------------------------------------------------------

    def _trigger(self, now: float) -> list[Action]:
        if self.finished or self.ready != self.slots or self.final is not None:
            return []
        if self.stop is not None and self.stop.stop is StopMode.DRAIN and not self.drained:
            self.drained = True
            return [DrainSources()]
        last = self._last_purpose()
        request: SavepointRequested | None = None
        if last is not None and (self.pending or now < self.final_not_before):
            return []
        if last is not None and not self.savepoints:
            purpose, request = last, None if last is Purpose.FINAL else self.stop
        elif len(self.pending) >= self.policy.max_concurrent:
            return []
        elif self.savepoints:
            purpose, request = Purpose.SAVEPOINT, self.savepoints.popleft()
        elif self.drained:
            return []  # it would commit what the end of the stream has brought about: only the savepoint may do that
        elif self.requested:
            self.requested -= 1
            purpose = Purpose.REQUESTED
        elif any(id > max(self.pending, default=0) for id in self.uncovered):
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
        self.pending[checkpoint] = PendingCheckpoint(checkpoint, purpose, now + limit, request=number)
        if purpose.is_last:
            self.final, self.final_purpose = checkpoint, purpose
        return [TriggerCheckpoint(checkpoint, purpose, number)]

    def _last_purpose(self) -> Purpose | None:
        """Of the last checkpoint, when it is time for it."""
        if self.ended == self.slots:
            # Input that has ended cannot be suspended: the savepoint is that of a drained job.
            return Purpose.FINAL if self.stop is None or self.stop.stop is StopMode.RESCALE else Purpose.DRAIN
        if self.stop is None or self.stop.stop is StopMode.DRAIN:
            return None
        return Purpose.SUSPEND if self.stop.stop is StopMode.SUSPEND else Purpose.RESCALE

    def _periodic_is_due(self, now: float) -> bool:
        if self.next_periodic is None or now < self.next_periodic:
            return False
        return now >= self.last_completion + self.policy.min_pause_s
