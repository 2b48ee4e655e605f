"""The unaligned checkpoints of a slot that are under way: when one turns unaligned, and its cut until that is whole.

Executor; the task's thread. At most one is under way, but an aborted one may still be forgotten late.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.ids import CheckpointId
from tidegate.task.capture import Capture
from tidegate.task.operators.base import OperatorSnapshot
from tidegate.wire.control import SnapshotTimings


@dataclass(slots=True)
class Cut:
    """A snapshot whose in-flight records are still being gathered."""

    snapshots: list[OperatorSnapshot]
    timings: SnapshotTimings
    capture: Capture


def release(snapshots: Iterable[OperatorSnapshot]) -> None:
    """They will not be stored."""
    for snapshot in snapshots:
        if snapshot.keyed is not None:
            snapshot.keyed.release()


@dataclass(slots=True)
class UnalignedCuts:
    _turns_at: dict[CheckpointId, float] = field(default_factory=dict)  #: when an aligned one turns unaligned
    _turned: set[CheckpointId] = field(default_factory=set)  #: that time has come, and the inbox is open
    _arrived: set[CheckpointId] = field(default_factory=set)  #: a barrier of it has arrived, read or not
    _cuts: dict[CheckpointId, Cut] = field(default_factory=dict)

    def turns_at(self, checkpoint: CheckpointId, at: float) -> None:
        self._turns_at[checkpoint] = at

    def may_turn(self, checkpoint: CheckpointId) -> bool:
        return checkpoint in self._turns_at

    def barrier_arrived(self, checkpoint: CheckpointId) -> None:
        self._arrived.add(checkpoint)

    def turned(self, now: float) -> list[CheckpointId]:
        """Those whose time has come since the last call: their barriers may not wait for processing any more."""
        news = [id for id, at in self._turns_at.items() if at <= now and id not in self._turned]
        self._turned.update(news)
        return news

    def due(self, now: float) -> list[CheckpointId]:
        """Those that must be taken now: their time is over and a barrier is there."""
        return [id for id, at in self._turns_at.items() if at <= now and id in self._arrived]

    def due_times(self) -> list[float]:
        return [at for id, at in self._turns_at.items() if id in self._arrived or id not in self._turned]

    def aligned(self, checkpoint: CheckpointId) -> None:
        """It was taken; it does not turn any more."""
        self._turns_at.pop(checkpoint, None)

    def begin(self, cut: Cut) -> None:
        self._cuts[cut.capture.checkpoint] = cut

    def take(self, checkpoint: CheckpointId) -> Cut | None:
        """The cut is whole. None when it was given up meanwhile."""
        return self._cuts.pop(checkpoint, None)

    def forget_up_to(self, checkpoint: CheckpointId) -> None:
        """Complete or aborted: nothing of it is needed any more."""
        for old in [id for id in self._cuts if id <= checkpoint]:
            release(self._cuts.pop(old).snapshots)
        self._turned = {id for id in self._turned if id > checkpoint}
        self._turns_at = {id: at for id, at in self._turns_at.items() if id > checkpoint}
        self._arrived = {id for id in self._arrived if id > checkpoint}
