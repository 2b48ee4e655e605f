"""What is told of the checkpoints of one attempt while they are under way. Driver; the coordinator's thread.

A change of its status is told as a whole: who has acknowledged it, how long it took, how it ended. What is noted here while
the coordinator decides and acts is told afterwards (`tell`): nobody who only looks stands in the way of an acknowledgement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidegate.coordinator.hottest import hottest
from tidegate.coordinator.observing import (
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobEvent,
    JobView,
    SlotAcknowledged,
    SlotCheckpoint,
    operator_bytes,
)
from tidegate.ids import AttemptId, SlotId
from tidegate.storage.metadata import SlotSnapshot
from tidegate.wire.control import SnapshotTimings

HOTTEST = 10  #: keys that are remembered with a checkpoint


@dataclass(slots=True)
class CheckpointReports:
    """Of one attempt."""

    attempt: AttemptId
    slots: int
    view: JobView
    clock: Callable[[], float]  #: monotonic
    wall_clock: Callable[[], float]
    _open: dict[int, CheckpointStatistics] = field(default_factory=dict)
    _began: dict[int, float] = field(default_factory=dict)  #: by the monotonic clock
    _parts: dict[int, dict[SlotId, SlotCheckpoint]] = field(default_factory=dict)  #: of those in _open
    _untold: list[JobEvent] = field(default_factory=list)

    def triggered(self, checkpoint: int, purpose: str) -> None:
        self._began[checkpoint] = self.clock()
        self._parts[checkpoint] = {}
        self._open[checkpoint] = CheckpointStatistics(
            checkpoint=checkpoint,
            attempt=self.attempt,
            purpose=purpose,
            status=CheckpointStatus.IN_PROGRESS,
            triggered_at=self.wall_clock(),
            slots=self.slots,
        )
        self._untold.append(CheckpointChanged(self._open[checkpoint]))

    def triggered_at(self, checkpoint: int) -> float:
        """Epoch seconds."""
        return self._open[checkpoint].triggered_at

    def acknowledged(self, checkpoint: int, slot: SlotId, snapshot: SlotSnapshot, timings: SnapshotTimings) -> None:
        """The first time counts; that of a checkpoint that has ended does not."""
        parts = self._parts.get(checkpoint)
        if parts is not None and slot not in parts:
            whole, added = operator_bytes(snapshot), operator_bytes(snapshot, added_for=checkpoint)
            parts[slot] = SlotCheckpoint(self._since_trigger(checkpoint), timings, whole, added)
            self._untold.append(SlotAcknowledged(checkpoint, slot, parts[slot]))

    def failed(self, checkpoint: int, failure: str) -> None:
        self._end(checkpoint, CheckpointStatus.FAILED, failure=failure)

    def completed(self, checkpoint: int, size_bytes: int, path: str) -> None:
        self._end(checkpoint, CheckpointStatus.COMPLETED, size_bytes=size_bytes, path=path)

    def _end(
        self, checkpoint: int, status: CheckpointStatus, size_bytes: int = 0, path: str = "", failure: str = ""
    ) -> None:
        ended = replace(
            self._open.pop(checkpoint),
            status=status,
            acknowledged=self._parts.pop(checkpoint),
            duration_s=self._since_trigger(checkpoint),
            size_bytes=size_bytes,
            path=path,
            failure=failure,
            hot_keys=hottest(self.view.heartbeats.values(), HOTTEST),
        )
        self._began.pop(checkpoint)
        self._untold.append(CheckpointChanged(ended))

    def tell(self) -> None:
        """All that was noted, in order, to whoever looks."""
        untold, self._untold = self._untold, []
        for event in untold:
            self.view.publish(event)

    def _since_trigger(self, checkpoint: int) -> float:
        return self.clock() - self._began[checkpoint]
