"""What the life of checkpoints is made of: what they are for, what can happen, what is to be done. Values; pure.

`checkpointing.py` decides: events in, actions out. `coordinator/attempt.py` brings the one and carries out the other.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Union

from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.protocol.logged import LoggedCheckpoint


class Purpose(enum.Enum):
    PERIODIC = "periodic"
    REQUESTED = "requested"
    FINAL = "final"  #: after all input has ended
    SAVEPOINT = "savepoint"
    COVER = "after a savepoint"  #: commits what sinks have prepared for it; only then it stands
    SUSPEND = "stop: suspend"  #: the savepoint of a stop, sources stopped before it
    DRAIN = "stop: drain"  #: the savepoint of a stop, after every operator has had its end of input
    RESCALE = "rescale"  #: a checkpoint with sources stopped, after which the attempt ends

    @property
    def is_savepoint(self) -> bool:
        return self in (Purpose.SAVEPOINT, Purpose.SUSPEND, Purpose.DRAIN)

    @property
    def halts(self) -> bool:
        """Nothing is processed after its barrier."""
        return self in (Purpose.SUSPEND, Purpose.RESCALE)

    @property
    def is_last(self) -> bool:
        """The attempt ends when it is committed."""
        return self in (Purpose.FINAL, Purpose.SUSPEND, Purpose.DRAIN, Purpose.RESCALE)

    @property
    def may_turn(self) -> bool:
        """Unaligned. What another program may read, or for ever, and what stops the sources, is aligned."""
        return not self.is_savepoint and not self.halts


class StopMode(enum.Enum):
    SUSPEND = "suspend"  #: continue later exactly where it stopped
    DRAIN = "drain"  #: the end of the stream: last watermark, every timer and window fires
    RESCALE = "rescale"  #: continue at once, with another plan


class AbortReason(enum.Enum):
    """Why a checkpoint did not complete. Counted ones add up to the tolerable failures."""

    EXPIRED = "it was not complete within its timeout"
    DECLINED = "a slot declined it"
    STORE_FAILED = "its metadata could not be stored"
    SUBSUMED = "a newer checkpoint completed first"
    OVERTAKEN = "a newer checkpoint overtook it at a slot"
    UNCOVERED = "the checkpoint after it failed"  #: of a savepoint

    @property
    def counted(self) -> bool:
        """Being passed by a newer one is not a failure: that one may succeed. Nor is that of a savepoint."""
        return self not in (AbortReason.SUBSUMED, AbortReason.OVERTAKEN, AbortReason.UNCOVERED)


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotBecameReady:
    slot: SlotId


@dataclass(frozen=True, slots=True)
class SlotEnded:
    """All input of the slot has ended."""

    slot: SlotId


@dataclass(frozen=True, slots=True)
class SnapshotAcknowledged:
    slot: SlotId
    attempt: AttemptId
    checkpoint: CheckpointId
    snapshot: Any = field(repr=False)  #: opaque here


@dataclass(frozen=True, slots=True)
class SnapshotDeclined:
    slot: SlotId
    attempt: AttemptId
    checkpoint: CheckpointId
    reason: str
    overtaken: bool = False  #: at that slot, by the barrier of a newer one


@dataclass(frozen=True, slots=True)
class CheckpointLogged:
    """The log record stands, which is the commit point."""

    logged: LoggedCheckpoint


@dataclass(frozen=True, slots=True)
class SavepointStored:
    """One that commits nothing: it has no record of its own."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointStoreFailed:
    """Nothing is in the log for it, and that is certain."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class SlotCommitted:
    slot: SlotId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CheckpointRequested:
    """By the user; ignores interval and pause."""


@dataclass(frozen=True, slots=True)
class SavepointRequested:
    """By the user; ignores interval and pause. `stop` None: the job continues."""

    request: int
    stop: StopMode | None = None
    timeout_s: float | None = None  #: None: that of checkpoints


@dataclass(frozen=True, slots=True)
class EndRequested:
    """By the user, without another checkpoint: nothing is triggered any more, and the attempt ends when what is complete is
    committed, or at `by`."""

    by: float


@dataclass(frozen=True, slots=True)
class TimePassed: ...


Event = Union[
    SlotBecameReady,
    SlotEnded,
    SnapshotAcknowledged,
    SnapshotDeclined,
    CheckpointLogged,
    SavepointStored,
    CheckpointStoreFailed,
    SlotCommitted,
    CheckpointRequested,
    SavepointRequested,
    EndRequested,
    TimePassed,
]


# -- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggerCheckpoint:
    checkpoint: CheckpointId
    purpose: Purpose
    request: int | None = None  #: of a savepoint
    unaligned_after_s: float | None = None  #: None: aligned; 0: unaligned; else aligned for so long first


@dataclass(frozen=True, slots=True)
class StoreCheckpoint:
    """Write the metadata, then the log record; answer with CheckpointLogged (a plain savepoint: SavepointStored) or
    CheckpointStoreFailed."""

    checkpoint: CheckpointId
    purpose: Purpose
    snapshots: dict[SlotId, Any] = field(repr=False)
    request: int | None = None


@dataclass(frozen=True, slots=True)
class NotifyComplete:
    logged: LoggedCheckpoint


@dataclass(frozen=True, slots=True)
class NotifyAborted:
    checkpoint: CheckpointId
    latest_completed: CheckpointId
    reason: AbortReason
    detail: str


@dataclass(frozen=True, slots=True)
class DiscardSnapshot:
    """A late, doubled or foreign acknowledgement: its files belong to nobody."""

    slot: SlotId
    checkpoint: CheckpointId
    snapshot: Any = field(repr=False)
    answer: AckAnswer


@dataclass(frozen=True, slots=True)
class FailAttempt:
    reason: str


@dataclass(frozen=True, slots=True)
class DrainSources:
    """Tell every slot: sources end as if they had nothing more to read."""


@dataclass(frozen=True, slots=True)
class RefuseSavepoint:
    """It was given up, or cannot be taken. The job continues."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class FinishJob:
    """The last checkpoint is complete and everything is committed."""

    purpose: Purpose = Purpose.FINAL


Action = Union[
    TriggerCheckpoint,
    StoreCheckpoint,
    NotifyComplete,
    NotifyAborted,
    DiscardSnapshot,
    FailAttempt,
    DrainSources,
    RefuseSavepoint,
    FinishJob,
]


class AckAnswer(enum.Enum):
    """What became of an acknowledgement."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"  #: the checkpoint is complete, aborted, or never was
    FOREIGN = "foreign"  #: from another attempt, or a slot that is not in the plan
