"""What is told of the checkpoints of one attempt while they are under way. Driver; the coordinator's thread.

Each change of a checkpoint is published as a whole: who has acknowledged it, how long it took, how it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from tidegate.coordinator.hottest import hottest
from tidegate.coordinator.observing import (
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobView,
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

    def triggered(self, checkpoint: int, purpose: str) -> None:
        self._began[checkpoint] = self.clock()
        self._publish(
            CheckpointStatistics(
                checkpoint=checkpoint,
                attempt=self.attempt,
                purpose=purpose,
                status=CheckpointStatus.IN_PROGRESS,
                triggered_at=self.wall_clock(),
                slots=self.slots,
            )
        )

    def triggered_at(self, checkpoint: int) -> float:
        """Epoch seconds."""
        return self._open[checkpoint].triggered_at

    def acknowledged(self, checkpoint: int, slot: SlotId, snapshot: SlotSnapshot, timings: SnapshotTimings) -> None:
        """The first time counts; that of a checkpoint that has ended does not."""
        statistics = self._open.get(checkpoint)
        if statistics is not None and slot not in statistics.acknowledged:
            whole, added = operator_bytes(snapshot), operator_bytes(snapshot, added_for=checkpoint)
            part = SlotCheckpoint(self._since_trigger(checkpoint), timings, whole, added)
            self._publish(replace(statistics, acknowledged={**statistics.acknowledged, slot: part}))

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
            duration_s=self._since_trigger(checkpoint),
            size_bytes=size_bytes,
            path=path,
            failure=failure,
            hot_keys=hottest(self.view.heartbeats.values(), HOTTEST),
        )
        self._began.pop(checkpoint)
        self.view.publish(CheckpointChanged(ended))

    def _publish(self, statistics: CheckpointStatistics) -> None:
        self._open[statistics.checkpoint] = statistics
        self.view.publish(CheckpointChanged(statistics))

    def _since_trigger(self, checkpoint: int) -> float:
        return self.clock() - self._began[checkpoint]
