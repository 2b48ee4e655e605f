"""What the checkpoints of a slot are made of: what can happen, what is to be done. Values; pure.

`slot_machine.py` decides: events in, actions out. `task/slot_checkpoints.py` brings the one and carries out the other.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Union

from tidegate.ids import ChannelId, CheckpointId
from tidegate.protocol.logged import LoggedCheckpoint


class BarrierKind(enum.Enum):
    """What a barrier says to the slot that it comes to."""

    ALIGNED = "in its place"
    MAY_TURN = "in its place, and seen on arrival: it may turn unaligned"
    UNALIGNED = "overtakes what was sent before it"


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SlotOpened:
    """State is restored, what was prepared is committed: input flows."""

    restored_from: CheckpointId


@dataclass(frozen=True, slots=True)
class Triggered:
    """The coordinator has said what the checkpoint is; its barriers may be quicker."""

    checkpoint: CheckpointId
    unaligned_after_s: float | None = None  #: None: aligned; 0: unaligned; else aligned for so long first
    order: Any = field(default=None, repr=False)  #: of a savepoint; opaque here
    halts: bool = False  #: nothing is processed after its barrier
    restored_wait: bool = False  #: restored records have not been processed yet


@dataclass(frozen=True, slots=True)
class RestoredProcessed:
    """No restored record waits any more."""


@dataclass(frozen=True, slots=True)
class BarrierSeen:
    """It has reached the inbox; frames before it may still wait there."""

    checkpoint: CheckpointId
    unaligned: bool


@dataclass(frozen=True, slots=True)
class BarrierTaken:
    """In its place among the frames of its channel."""

    channel: ChannelId
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class SnapshotTaken:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """Nothing has changed by it, and nothing of it is kept."""

    checkpoint: CheckpointId
    reason: str


@dataclass(frozen=True, slots=True)
class CutWhole:
    """Every channel's barrier has come: all that was under way is known."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class InboxOverflowed:
    """What has to be kept for the checkpoint fits neither into memory nor on disk."""

    checkpoint: CheckpointId
    kept_bytes: int


@dataclass(frozen=True, slots=True)
class HeldOverflowed:
    """The same, for what is held back during an alignment."""

    kept_bytes: int


@dataclass(frozen=True, slots=True)
class CheckpointCompleted:
    logged: LoggedCheckpoint


@dataclass(frozen=True, slots=True)
class CheckpointAborted:
    checkpoint: CheckpointId
    latest_completed: LoggedCheckpoint | None  #: repairs a lost "complete"


@dataclass(frozen=True, slots=True)
class TimePassed: ...


SlotEvent = Union[
    SlotOpened,
    Triggered,
    RestoredProcessed,
    BarrierSeen,
    BarrierTaken,
    SnapshotTaken,
    SnapshotFailed,
    CutWhole,
    InboxOverflowed,
    HeldOverflowed,
    CheckpointCompleted,
    CheckpointAborted,
    TimePassed,
]


# -- actions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HoldChannel:
    """Keep what this channel brings next, in order, until ReleaseChannels."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class ReleaseChannels:
    """Continue with the held frames, before anything newer."""


@dataclass(frozen=True, slots=True)
class OpenInbox:
    """Let frames in past the bound, so that barriers wait for the network and never for processing."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ShutInbox:
    """This checkpoint and older ones need no open inbox any more; a cut of theirs is gathered no further."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class BeginCut:
    """Gather what was received and not processed; of the waiting channels also what comes before their barriers."""

    checkpoint: CheckpointId
    waiting: frozenset[ChannelId]


@dataclass(frozen=True, slots=True)
class ForwardBarrier:
    """What belongs to this epoch goes out, then the barrier."""

    checkpoint: CheckpointId
    kind: BarrierKind


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """The synchronous part; answer with SnapshotTaken or SnapshotFailed."""

    checkpoint: CheckpointId
    start_delay_s: float = field(default=0.0, compare=False)  #: figures to be shown
    alignment_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """In the background; then it is acknowledged."""

    checkpoint: CheckpointId
    order: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class DropSnapshot:
    """It will not be needed: let go of it, or of its upload if that has not begun."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """Tell the coordinator."""

    checkpoint: CheckpointId
    reason: str
    overtaken: bool = False  #: by the barrier of a newer one


@dataclass(frozen=True, slots=True)
class CommitUpTo:
    """Tell the operators, and let sinks commit."""

    logged: LoggedCheckpoint


SlotAction = Union[
    HoldChannel,
    ReleaseChannels,
    OpenInbox,
    ShutInbox,
    BeginCut,
    ForwardBarrier,
    TakeSnapshot,
    StoreSnapshot,
    DropSnapshot,
    DeclineCheckpoint,
    CommitUpTo,
]
