"""What happens in a job, as events for whoever looks: display, REST, benchmarks, tests. Driver.

Observers subscribe; they are told when the coordinator has decided and acted, never before. An observer that
raises is dropped, and said so.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Union

import msgspec

from tidegate.coordinator.hottest import OperatorKey
from tidegate.coordinator.moving import ExecutorsLeaving, ScalingDecided
from tidegate.errors import TidegateError
from tidegate.ids import AttemptId, SlotId
from tidegate.wire.control import Heartbeat, OperatorMetrics, Sampled, SlotSnapshot, SnapshotTimings

log = logging.getLogger("tidegate.coordinator")

MAX_PARTS = 100_000  #: of slots, in all remembered checkpoints together: each takes the driver about 800 bytes
LEAST_REMEMBERED = 20  #: checkpoints, however many slots there are


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
    restored_path: str = ""  #: the metadata file of what was restored
    splits: Mapping[str, int] = field(default_factory=dict)  #: that each source has still to read, by uid


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    attempt: AttemptId
    error: str
    restart_in_s: float | None  #: None: it stays failed
    at: float
    kind: str = ""  #: the error's class
    operator: str = ""
    uid: str = ""
    subtask: int = -1
    user_line: str = ""
    cause: str = ""  #: what the executor said, a traceback as text
    lost_slot: str = ""  #: a worker was lost, and this is where it ran

    @classmethod
    def of(cls, attempt: AttemptId, error: TidegateError, restart_in_s: float | None, at: float) -> AttemptFailed:
        """With what the error knows of the place."""
        context = error.context
        return cls(
            attempt,
            str(error),
            restart_in_s,
            at,
            kind=type(error).__name__,
            operator=context.get("operator") or "",
            uid=context.get("uid") or "",
            subtask=context.get("subtask", -1),
            user_line=context.get("user_line") or "",
            cause=context.get("cause") or "",
            lost_slot=context.get("lost_slot") or "",
        )


def when_it_restarts(delay_s: float) -> str:
    """ "at once", or "in 1.5 s"."""
    return f"in {delay_s:.1f} s" if delay_s >= 0.05 else "at once"


@dataclass(frozen=True, slots=True)
class SlotReported:
    slot: SlotId
    heartbeat: Heartbeat


@dataclass(frozen=True, slots=True)
class SlotSampled:
    """Where its thread was, while somebody looks at the profile."""

    slot: SlotId
    sampled: Sampled


@dataclass(frozen=True, slots=True)
class SlotRestored:
    """Its state is there, and its input may flow."""

    slot: SlotId
    restore_s: float  #: since the slot was told what to continue from
    local_bytes: int  #: of state, from copies on the executor's disk
    storage_bytes: int
    rejected_copies: int  #: damaged ones, which were not used
    at: float


class CheckpointStatus(enum.Enum):
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class SlotCheckpoint:
    """One slot's part of a checkpoint."""

    acknowledged_after_s: float  #: since the trigger
    timings: SnapshotTimings
    operator_bytes: dict[str, int] = field(default_factory=dict)  #: size of its state, by uid
    operator_added: dict[str, int] = field(default_factory=dict)  #: of that, what was stored for this checkpoint


def operator_bytes(snapshot: SlotSnapshot, added_for: int | None = None) -> dict[str, int]:
    """How much state each operator of the slot has, by uid; with `added_for`, how much was stored for that checkpoint."""
    sizes: dict[str, int] = {}
    for section in snapshot.file.sections:
        sizes[section.uid] = sizes.get(section.uid, 0) + section.length
    for state in snapshot.states:
        size = state.size_bytes() if added_for is None else state.added_bytes(added_for)
        sizes[state.uid] = sizes.get(state.uid, 0) + size
    return sizes


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """Everything known of one checkpoint; a new value for each change of its status."""

    checkpoint: int
    attempt: AttemptId
    purpose: str
    status: CheckpointStatus
    triggered_at: float  #: epoch seconds
    slots: int
    acknowledged: dict[SlotId, SlotCheckpoint] = field(default_factory=dict)
    duration_s: float | None = None
    size_bytes: int = 0  #: of the whole state; what this checkpoint had to store is `added_bytes`
    path: str = ""
    failure: str = ""
    discarded: bool = False  #: newer ones have taken its place, and its files are gone
    hot_keys: tuple[OperatorKey, ...] = ()  #: when it ended, the hottest first

    @property
    def added_bytes(self) -> int:
        """What was stored for this checkpoint, by the slots that have acknowledged it: all of it, or, where checkpoints are
        incremental, what has changed."""
        return sum(part.timings.added_bytes for part in self.acknowledged.values())


@dataclass(frozen=True, slots=True)
class CheckpointChanged:
    statistics: CheckpointStatistics


@dataclass(frozen=True, slots=True)
class SlotAcknowledged:
    """Its part of a checkpoint is stored. The first acknowledgement of each slot, while the checkpoint is under way."""

    checkpoint: int
    slot: SlotId
    part: SlotCheckpoint


@dataclass(frozen=True, slots=True)
class CheckpointsDiscarded:
    """Completed ones whose files are gone."""

    checkpoints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class JobLine:
    """One line of the job's log, from the driver or from a slot."""

    at: float
    level: str
    logger: str
    message: str
    attempt: str = ""
    slot: str = ""  #: "": the driver
    operator: str = ""
    uid: str = ""
    subtask: int = -1


JobEvent = Union[
    StatusChanged,
    AttemptStarted,
    AttemptFailed,
    SlotReported,
    SlotSampled,
    SlotRestored,
    CheckpointChanged,
    SlotAcknowledged,
    CheckpointsDiscarded,
    ScalingDecided,
    ExecutorsLeaving,
]
Observer = Callable[[JobEvent], None]


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A copy of the view at one moment: what a display computes with, without holding the coordinator up."""

    status: JobStatus
    status_detail: str
    timestamps: dict[JobStatus, float]  #: when each status was last entered
    attempt: AttemptId | None
    attempt_at: float
    restored: AttemptStarted | None  #: the newest attempt that continued from a checkpoint
    restores: int
    restarts: int
    triggered: int
    completed: int
    failed: int
    failures: tuple[AttemptFailed, ...]  #: the newest last
    checkpoints: dict[int, CheckpointStatistics]  #: the newest last
    heartbeats: dict[SlotId, Heartbeat]
    restored_slots: dict[SlotId, SlotRestored]  #: of the attempt


class JobView:
    """The model that all displays share: the newest of everything, and a bounded history. Thread-safe."""

    def __init__(self, history: int = 1000, log_lines: int = 5000) -> None:
        self._lock = threading.RLock()
        self._observers: list[Observer] = []
        self.status = JobStatus.CREATED
        self.status_detail = ""
        self.attempt: AttemptId | None = None
        self.restored_from: int | None = None
        self.attempt_at = 0.0
        self.restored: AttemptStarted | None = None
        self.restores = 0
        self.restarts = 0
        self.triggered = 0
        self.completed = 0
        self.failed = 0
        self.failures: deque[AttemptFailed] = deque(maxlen=100)
        self.checkpoints: dict[int, CheckpointStatistics] = {}
        self.heartbeats: dict[SlotId, Heartbeat] = {}
        self.restored_slots: dict[SlotId, SlotRestored] = {}
        self.timestamps: dict[JobStatus, float] = {}
        self.lines: deque[JobLine] = deque(maxlen=log_lines)
        self.lines_seen = 0  #: ever; the first of `lines` has the number lines_seen - len(lines)
        self._history = history

    def subscribe(self, observer: Observer) -> None:
        with self._lock:
            self._observers.append(observer)

    def unsubscribe(self, observer: Observer) -> None:
        with self._lock:
            if observer in self._observers:
                self._observers.remove(observer)

    def publish(self, event: JobEvent) -> None:
        with self._lock:
            try:
                self._note(event)
            except Exception:  # what is only shown ends no job
                log.exception("an event could not be shown: %s", type(event).__name__)
            observers = list(self._observers)
        for observer in observers:
            try:
                observer(event)
            except Exception:
                log.exception("an observer of the job failed and is not called again")
                self.unsubscribe(observer)

    def log(self, line: JobLine) -> None:
        with self._lock:
            self.lines.append(line)
            self.lines_seen += 1

    def lines_from(self, number: int) -> tuple[int, list[JobLine]]:
        """The lines from this number on, and the number that the next one will have."""
        with self._lock:
            first = self.lines_seen - len(self.lines)
            return self.lines_seen, list(self.lines)[max(0, number - first) :]

    def snapshot(self) -> JobSnapshot:
        with self._lock:
            return JobSnapshot(
                status=self.status,
                status_detail=self.status_detail,
                timestamps=dict(self.timestamps),
                attempt=self.attempt,
                attempt_at=self.attempt_at,
                restored=self.restored,
                restores=self.restores,
                restarts=self.restarts,
                triggered=self.triggered,
                completed=self.completed,
                failed=self.failed,
                failures=tuple(self.failures),
                checkpoints=self._checkpoints(),
                heartbeats=dict(self.heartbeats),
                restored_slots=dict(self.restored_slots),
            )

    def _checkpoints(self) -> dict[int, CheckpointStatistics]:
        """Of one under way, the list of who has acknowledged it grows in the view alone: here it is a copy."""
        return {
            id: each
            if each.status is not CheckpointStatus.IN_PROGRESS
            else replace(each, acknowledged=dict(each.acknowledged))
            for id, each in self.checkpoints.items()
        }

    def latest_heartbeat(self, slot: SlotId, operators: list[OperatorMetrics]) -> Heartbeat:
        """The slot's newest one, with these counts."""
        newest = self.heartbeats.get(slot) or Heartbeat(0, 0, 0, 0, 0)
        return msgspec.structs.replace(newest, operators=operators, logs=[], logs_dropped=0)

    def latest_completed(self) -> CheckpointStatistics | None:
        with self._lock:
            done = [c for c in self.checkpoints.values() if c.status is CheckpointStatus.COMPLETED]
            return done[-1] if done else None

    def _note(self, event: JobEvent) -> None:
        match event:
            case StatusChanged(status, detail, at):
                self.status, self.status_detail = status, detail
                self.timestamps[status] = at
                self._say("INFO", at, f"{status.value} ({detail})" if detail else status.value)
                if status is JobStatus.RUNNING and self.restored_from is not None:
                    self._say("INFO", at, self._restored_line())
            case AttemptStarted(attempt, restored_from, at):
                self.attempt_at = at
                if restored_from is not None:
                    self.restored = event
                    self.restores += 1
                if self.attempt is not None:
                    self.restarts += 1
                self.attempt, self.restored_from = attempt, restored_from
                self.heartbeats.clear()
                self.restored_slots.clear()
            case AttemptFailed():
                self.failures.append(event)
                self._say("ERROR", event.at, event.error, event)
                for id, checkpoint in self.checkpoints.items():
                    if checkpoint.status is CheckpointStatus.IN_PROGRESS:
                        self.checkpoints[id] = replace(
                            checkpoint, status=CheckpointStatus.FAILED, failure="the attempt ended"
                        )
                        self.failed += 1
            case SlotReported(slot, heartbeat):
                self.heartbeats[slot] = heartbeat
                self._hear(slot, heartbeat)
            case SlotRestored():
                self.restored_slots[event.slot] = event
            case CheckpointChanged(statistics):
                self.triggered += statistics.checkpoint not in self.checkpoints
                if statistics.status is CheckpointStatus.IN_PROGRESS:
                    statistics = replace(statistics, acknowledged=dict(statistics.acknowledged))
                self.checkpoints[statistics.checkpoint] = statistics
                if statistics.status is CheckpointStatus.COMPLETED:
                    self.completed += 1
                elif statistics.status is CheckpointStatus.FAILED:
                    self.failed += 1
                kept = min(self._history, max(LEAST_REMEMBERED, MAX_PARTS // max(1, statistics.slots)))
                while len(self.checkpoints) > kept:
                    del self.checkpoints[next(iter(self.checkpoints))]
            case SlotAcknowledged(checkpoint, slot, part):
                self.checkpoints[checkpoint].acknowledged[slot] = part
            case ScalingDecided(parallelism, _, at):
                self._say("INFO" if parallelism else "WARNING", at, event.sentence)
            case ExecutorsLeaving(_, at):
                self._say("WARNING", at, event.sentence)
            case CheckpointsDiscarded(checkpoints):
                for id in checkpoints:
                    if id in self.checkpoints:
                        self.checkpoints[id] = replace(self.checkpoints[id], discarded=True)

    def _restored_line(self) -> str:
        slots = self.restored_slots.values()
        local, stored = sum(slot.local_bytes for slot in slots), sum(slot.storage_bytes for slot in slots)
        rejected = sum(slot.rejected_copies for slot in slots)
        line = f"restored from checkpoint {self.restored_from}: {local:,} bytes of files from local copies, "
        return f"{line}{stored:,} from storage" + (f"; {rejected} damaged copies were not used" if rejected else "")

    def _say(self, level: str, at: float, message: str, place: AttemptFailed | None = None) -> None:
        line = JobLine(at, level, "tidegate.job", message, str(self.attempt or ""))
        if place is not None:
            line = replace(line, operator=place.operator, uid=place.uid, subtask=place.subtask)
        self.log(line)

    def _hear(self, slot: SlotId, heartbeat: Heartbeat) -> None:
        attempt = str(self.attempt or "")
        for line in heartbeat.logs:
            self.log(
                JobLine(
                    at=line.at,
                    level=line.level,
                    logger=line.logger,
                    message=line.message,
                    attempt=attempt,
                    slot=str(slot),
                    operator=line.operator,
                    uid=line.uid,
                    subtask=line.subtask,
                )
            )
        if heartbeat.logs_dropped:
            what = f"{heartbeat.logs_dropped} more lines were logged within a second and are left out"
            at = heartbeat.logs[-1].at if heartbeat.logs else 0.0
            self.log(JobLine(at, "WARNING", "tidegate.job", what, attempt, str(slot)))
