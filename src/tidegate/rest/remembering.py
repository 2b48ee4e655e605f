"""What a driver remembers of a job beside its view: its attempts, its last half hour, when its slots were heard. Driver.

Filled in the coordinator's thread by events, read by any thread as copies. Bounded, as
coordinator/timeline.py and coordinator/past.py say.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobEvent,
    SlotReported,
)
from tidegate.coordinator.past import MAX_VERTICES, JobPast, Moment
from tidegate.coordinator.timeline import AttemptSpan, Timeline, Worker
from tidegate.graph.specs import SourceSpec
from tidegate.ids import SlotId
from tidegate.protocol.watermarks import MAX_WATERMARK

if TYPE_CHECKING:
    from tidegate.rest.served import ServedJob


@dataclass(slots=True)
class JobMemory:
    """Of one job; subscribes to its view."""

    job: ServedJob
    wall_clock: Callable[[], float] = time.time
    _heard_at: dict[SlotId, float] = field(default_factory=dict)  #: epoch seconds, of this attempt's slots
    _timeline: Timeline = field(default_factory=Timeline)
    _past: JobPast = field(default_factory=JobPast)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.job.view.subscribe(self._on)

    def attempts(self) -> list[AttemptSpan]:
        """The oldest first."""
        with self._lock:
            return list(self._timeline.spans)

    def past(self) -> list[Moment]:
        """The last half hour, the oldest first."""
        with self._lock:
            return list(self._past.moments)

    def heard_at(self) -> dict[SlotId, float]:
        """When each slot's newest heartbeat came."""
        with self._lock:
            return dict(self._heard_at)

    def _on(self, event: JobEvent) -> None:
        """In the coordinator's thread."""
        match event:
            case SlotReported():
                now = self.wall_clock()
                moment = self._moment(now) if self._past.is_due(now) else None
                with self._lock:
                    self._heard_at[event.slot] = now
                    if moment is not None:
                        self._past.note(moment)
            case CheckpointChanged(statistics) if not _begins_or_ends(statistics):
                pass  # one of many acknowledgements
            case _:
                self._note(event)

    def _note(self, event: JobEvent) -> None:
        is_start = isinstance(event, AttemptStarted)
        vertices = {vertex.id: vertex.parallelism for vertex in self.job.vertices()} if is_start else {}
        worker = self._worker_of(event) if isinstance(event, AttemptFailed) else None
        read = self._read() if isinstance(event, (AttemptFailed, CheckpointChanged)) else None
        with self._lock:
            self._timeline.on(event, vertices, worker, read)
            if is_start:
                self._heard_at.clear()

    def _sources(self) -> set[str]:
        return {planned.uid for planned in self.job.plan.operators if isinstance(planned.operator.spec, SourceSpec)}

    def _read(self) -> int | None:
        """What the sources have given in this attempt, as of the newest heartbeats."""
        sources = self._sources()
        beats = self.job.view.snapshot().heartbeats.values()
        counts = [metrics.records_out for beat in beats for metrics in beat.operators if metrics.uid in sources]
        return sum(counts) if counts else None

    def _worker_of(self, failure: AttemptFailed) -> Worker | None:
        """The process that has failed, or is gone."""
        lost = failure.lost_slot or next(
            (
                str(vertex.slot(failure.subtask))
                for vertex in self.job.vertices()
                if failure.uid in vertex.uids and 0 <= failure.subtask < vertex.parallelism
            ),
            "",
        )
        hellos = {str(slot): hello for slot, hello in self.job.hands.workers().items()}
        return Worker(hellos[lost].host, hellos[lost].pid) if lost in hellos else None

    def _moment(self, now: float) -> Moment:
        job, sources = self.job, self._sources()
        rates = [r.out_per_s for uid, r in job.operator_rates().items() if uid in sources and r.out_per_s is not None]
        snapshot = job.view.snapshot()
        metrics = [metrics for beat in snapshot.heartbeats.values() for metrics in beat.operators]
        lags = [int(now * 1000) - m.watermark for m in metrics if m.watermark not in (None, MAX_WATERMARK)]
        latest = job.view.latest_completed()
        loads = job.loads()
        busiest = {}
        for vertex in job.vertices()[:MAX_VERTICES]:
            parts = [loads[slot] for slot in vertex.slots() if slot in loads]
            if parts:
                top = max(parts, key=lambda load: load.busy)
                busiest[vertex.id] = (round(top.busy, 3), round(top.backpressured, 3))
        return Moment(
            at=now,
            from_sources_per_s=sum(rates) if rates else None,
            lag_ms=max(lags) if lags else None,
            checkpoint_ms=None if latest is None or latest.duration_s is None else int(latest.duration_s * 1000),
            restarts=snapshot.restarts,
            loads=busiest,
        )


def _begins_or_ends(checkpoint: CheckpointStatistics) -> bool:
    return checkpoint.status is not CheckpointStatus.IN_PROGRESS or not checkpoint.acknowledged
