"""A checkpoint that somebody asked for and waits for. Driver; the thread of whoever asks.

Which one it is: the first with the purpose "requested" that begins after the request. Two who ask at the same time may be
told of the same one, which holds what both had seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate.coordinator.observing import (
    AttemptFailed,
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobEvent,
    JobStatus,
    JobView,
    StatusChanged,
)
from tidegate.errors import CheckpointFailed
from tidegate.protocol.checkpoint_events import Purpose


class RequestedCheckpoint:
    """For one request."""

    def __init__(self, view: JobView) -> None:
        self._view = view
        self._before = 0  #: ids up to this one were given out before the request
        self._ended = threading.Event()
        self._result: CheckpointStatistics | str | None = None

    def take(self, ask: Callable[[], None], timeout_s: float) -> int:
        """:raises CheckpointFailed:"""
        self._view.subscribe(self._on)  # first: an end that comes right after the look is heard
        try:
            if self._view.status is not JobStatus.RUNNING:
                raise CheckpointFailed(f"the job is {self._view.status.value}: only a running job takes checkpoints")
            self._before = max(self._view.snapshot().checkpoints, default=0)
            ask()
            self._ended.wait(timeout_s)
        finally:
            self._view.unsubscribe(self._on)
        match self._result:
            case None:
                raise CheckpointFailed(f"no checkpoint was complete within {timeout_s:g} s")
            case str(reason):
                raise CheckpointFailed(reason)
            case statistics if statistics.status is CheckpointStatus.COMPLETED:
                return statistics.checkpoint
            case statistics:
                raise CheckpointFailed(
                    f"checkpoint {statistics.checkpoint} failed: {statistics.failure}", checkpoint=statistics.checkpoint
                )

    def _on(self, event: JobEvent) -> None:
        match event:
            case CheckpointChanged(statistics):
                is_ours = statistics.checkpoint > self._before and statistics.purpose == Purpose.REQUESTED.value
                if is_ours and statistics.status is not CheckpointStatus.IN_PROGRESS:
                    self._end(statistics)
            case AttemptFailed(_, error):
                self._end(f"the job failed before the checkpoint was complete: {(error.splitlines() or [''])[0]}")
            case StatusChanged(status) if status.is_terminal:
                self._end(f"the job ended before the checkpoint was complete: {status.value}")
            case StatusChanged(JobStatus.RESTARTING, detail):
                self._end(f"the job was restarted before the checkpoint was complete: {detail}")
            case _:
                pass

    def _end(self, result: CheckpointStatistics | str) -> None:
        if self._result is None:
            self._result = result
            self._ended.set()
