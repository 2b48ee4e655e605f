"""What happens in a job, as events for whoever looks: display, REST, benchmarks, tests. Driver.

Observers subscribe; they never stand in the acknowledgement path. An observer that raises is dropped, and said so.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Union

from tidegate.ids import AttemptId, SlotId
from tidegate.wire.control import Heartbeat, SnapshotTimings

log = logging.getLogger("tidegate.coordinator")


class JobStatus(enum.Enum):
    """Flink's names."""

    CREATED = "CREATED"
    INITIALIZING = "INITIALIZING"  #: slots are starting or restoring
    WAITING = "WAITING FOR SLOTS"  #: the cluster has too few free slots at the moment
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        return self in (JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED)


@dataclass(frozen=True, slots=True)
class StatusChanged:
    status: JobStatus
    detail: str
    at: float  #: epoch seconds


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    attempt: AttemptId
    restored_from: int | None
    at: float


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    attempt: AttemptId
    error: str
    restart_in_s: float | None  #: None: it stays failed
    at: float


@dataclass(frozen=True, slots=True)
class SlotReported:
    slot: SlotId
    heartbeat: Heartbeat


class CheckpointStatus(enum.Enum):
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class SlotCheckpoint:
    """One slot's part of a checkpoint."""

    acknowledged_after_s: float  #: since the trigger
    timings: SnapshotTimings


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """Everything known of one checkpoint; a new value for each change."""

    checkpoint: int
    attempt: AttemptId
    purpose: str
    status: CheckpointStatus
    triggered_at: float  #: epoch seconds
    slots: int
    acknowledged: dict[SlotId, SlotCheckpoint] = field(default_factory=dict)
    duration_s: float | None = None
    size_bytes: int = 0
    path: str = ""
    failure: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointChanged:
    statistics: CheckpointStatistics


JobEvent = Union[StatusChanged, AttemptStarted, AttemptFailed, SlotReported, CheckpointChanged]
Observer = Callable[[JobEvent], None]


class JobView:
    """The model that all displays share: the newest of everything, and a bounded history. Thread-safe."""

    def __init__(self, history: int = 1000) -> None:
        self._lock = threading.RLock()
        self._observers: list[Observer] = []
        self.status = JobStatus.CREATED
        self.status_detail = ""
        self.attempt: AttemptId | None = None
        self.restored_from: int | None = None
        self.restarts = 0
        self.completed = 0
        self.failed = 0
        self.failures: deque[AttemptFailed] = deque(maxlen=100)
        self.checkpoints: dict[int, CheckpointStatistics] = {}
        self.heartbeats: dict[SlotId, Heartbeat] = {}
        self._history = history

    def subscribe(self, observer: Observer) -> None:
        with self._lock:
            self._observers.append(observer)

    def publish(self, event: JobEvent) -> None:
        with self._lock:
            self._note(event)
            observers = list(self._observers)
        for observer in observers:
            try:
                observer(event)
            except Exception:
                log.exception("an observer of the job failed and is not called again")
                self._observers.remove(observer)

    def latest_completed(self) -> CheckpointStatistics | None:
        with self._lock:
            done = [c for c in self.checkpoints.values() if c.status is CheckpointStatus.COMPLETED]
            return done[-1] if done else None

    def _note(self, event: JobEvent) -> None:
        match event:
            case StatusChanged(status, detail, _):
                self.status, self.status_detail = status, detail
            case AttemptStarted(attempt, restored_from, _):
                if self.attempt is not None:
                    self.restarts += 1
                self.attempt, self.restored_from = attempt, restored_from
                self.heartbeats.clear()
            case AttemptFailed():
                self.failures.append(event)
                for id, checkpoint in self.checkpoints.items():
                    if checkpoint.status is CheckpointStatus.IN_PROGRESS:
                        self.checkpoints[id] = replace(
                            checkpoint, status=CheckpointStatus.FAILED, failure="the attempt ended"
                        )
            case SlotReported(slot, heartbeat):
                self.heartbeats[slot] = heartbeat
            case CheckpointChanged(statistics):
                self.checkpoints[statistics.checkpoint] = statistics
                if statistics.status is CheckpointStatus.COMPLETED:
                    self.completed += 1
                elif statistics.status is CheckpointStatus.FAILED:
                    self.failed += 1
                while len(self.checkpoints) > self._history:
                    del self.checkpoints[next(iter(self.checkpoints))]
