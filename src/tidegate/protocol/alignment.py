"""Barrier alignment for one slot. Pure; driven by task/slot.py on the executor.

    IDLE --first barrier of n--> ALIGNING --last barrier of n--> IDLE
                                    +------- abort of n -------> IDLE
                                    +--- barrier of m > n -----> ALIGNING (m); n is given up

Invariant 1. Frames after a channel's barrier wait until TakeSnapshot has been returned, or the checkpoint was given up.
Invariant 2. TakeSnapshot is returned at most once for each checkpoint id, and ids only grow.
             The abort of one checkpoint ends no other, older or newer: with several at a time both may be on their way.
Invariant 3. A barrier is forwarded before the snapshot is taken, and before any frame that was held back for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from tidegate.errors import ProtocolViolation
from tidegate.ids import ChannelId, CheckpointId


@dataclass(frozen=True, slots=True)
class HoldChannel:
    """Keep what this channel brings next, in order, until ReleaseChannels."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class ForwardBarrier:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class ReleaseChannels:
    """Continue with the held frames, before anything newer."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A newer checkpoint overtook this one here: tell the coordinator."""

    checkpoint: CheckpointId


#: Ids that were aborted before their barriers came. Far above any number of concurrent checkpoints.
MAX_ABORTED = 128

AlignmentAction = Union[HoldChannel, ForwardBarrier, TakeSnapshot, ReleaseChannels, GiveUp]


@dataclass(slots=True)
class BarrierAligner:
    """Aligned, exactly-once."""

    channels: frozenset[ChannelId]  #: every physical input of the slot
    aligning: CheckpointId | None = None  #: None when idle
    arrived: set[ChannelId] = field(default_factory=set)  #: all and only the channels whose barrier has come
    done: CheckpointId = CheckpointId(0)  #: the highest id that was taken or given up here
    aborted: set[CheckpointId] = field(default_factory=set)  #: above `done`, and their barriers may still come

    def is_held(self, channel: ChannelId) -> bool:
        return channel in self.arrived

    def on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[AlignmentAction]:
        if channel not in self.channels:
            raise ProtocolViolation(
                f"a barrier of checkpoint {checkpoint} came on channel {channel}, which is not an input"
            )
        if checkpoint <= self.done or checkpoint in self.aborted:
            return []
        if self.aligning is not None and checkpoint < self.aligning:
            return []  # late: a newer one is on its way
        actions: list[AlignmentAction] = []
        if self.aligning is not None and checkpoint > self.aligning:
            actions += [GiveUp(self.aligning), ReleaseChannels()]
            self._finish(self.aligning)
        if channel in self.arrived:
            raise ProtocolViolation(f"the barrier of checkpoint {checkpoint} came twice on channel {channel}")
        self.aligning = checkpoint
        self.arrived.add(channel)
        if self.arrived != self.channels:
            return [*actions, HoldChannel(channel)]
        self._finish(checkpoint)
        return [*actions, ForwardBarrier(checkpoint), TakeSnapshot(checkpoint), ReleaseChannels()]

    def on_abort(self, checkpoint: CheckpointId) -> list[AlignmentAction]:
        """The coordinator gave the checkpoint up. Its barriers may still come; they are ignored then."""
        if self.aligning == checkpoint:
            self._finish(checkpoint)
            return [ReleaseChannels()]
        if checkpoint > self.done:
            self.aborted.add(checkpoint)
            if len(self.aborted) > MAX_ABORTED:
                self._pass(min(self.aborted))
        return []

    def overtake(self, checkpoint: CheckpointId) -> tuple[list[AlignmentAction], frozenset[ChannelId]] | None:
        """The checkpoint is taken now, whatever channels its barrier has not come on: it turns unaligned here.

        None when it is late. Else what follows from it, and the channels after whose barrier everything waits already.
        """
        if checkpoint <= self.done or checkpoint in self.aborted:
            return None
        if self.aligning is not None and checkpoint < self.aligning:
            return None
        actions: list[AlignmentAction] = []
        arrived: frozenset[ChannelId] = frozenset()
        if self.aligning == checkpoint:
            arrived = frozenset(self.arrived)
        elif self.aligning is not None:
            actions.append(GiveUp(self.aligning))
        if self.aligning is not None:
            actions.append(ReleaseChannels())
        self._finish(checkpoint)
        return actions, arrived

    def _finish(self, checkpoint: CheckpointId) -> None:
        self.aligning = None
        self.arrived.clear()
        self._pass(checkpoint)

    def _pass(self, checkpoint: CheckpointId) -> None:
        self.done = max(self.done, checkpoint)
        self.aborted = {id for id in self.aborted if id > self.done}


@dataclass(slots=True)
class BarrierTracker:
    """At-least-once: never holds back; the snapshot is taken when the last barrier has come.

    Records that came after an early barrier are in it, and come again after a restore.
    """

    channels: frozenset[ChannelId]
    pending: dict[CheckpointId, set[ChannelId]] = field(default_factory=dict)  #: the channels each barrier came on
    done: CheckpointId = CheckpointId(0)  #: the highest id that was taken here
    aligning: CheckpointId | None = None  #: the oldest one under way
    aborted: set[CheckpointId] = field(default_factory=set)  #: above `done`, and their barriers may still come

    def is_held(self, channel: ChannelId) -> bool:
        return False

    def on_barrier(self, channel: ChannelId, checkpoint: CheckpointId) -> list[AlignmentAction]:
        if checkpoint <= self.done or checkpoint in self.aborted:
            return []
        came = self.pending.setdefault(checkpoint, set())
        came.add(channel)
        actions: list[AlignmentAction] = []
        if came == self.channels:
            # A channel that has brought the newer barrier will not bring the older one any more.
            actions += [GiveUp(older) for older in sorted(self.pending) if older < checkpoint]
            actions += [ForwardBarrier(checkpoint), TakeSnapshot(checkpoint)]
            self._pass(checkpoint)
        self.aligning = min(self.pending, default=None)
        return actions

    def on_abort(self, checkpoint: CheckpointId) -> list[AlignmentAction]:
        """The coordinator gave the checkpoint up. Its barriers may still come; they are ignored then."""
        if checkpoint > self.done:
            self.pending.pop(checkpoint, None)
            self.aborted.add(checkpoint)
            if len(self.aborted) > MAX_ABORTED:
                self._pass(min(self.aborted))
        self.aligning = min(self.pending, default=None)
        return []

    def overtake(self, checkpoint: CheckpointId) -> None:
        return None

    def _pass(self, checkpoint: CheckpointId) -> None:
        self.done = max(self.done, checkpoint)
        self.pending = {id: came for id, came in self.pending.items() if id > self.done}
        self.aborted = {id for id in self.aborted if id > self.done}
