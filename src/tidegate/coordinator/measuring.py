"""What is counted over the whole run of a job, for metrics: failures by kind, and how long things take, as histograms. Driver.

End-to-end latency is read off the barriers. They travel with the records, through every queue and in their order, and pass the
user's functions by, which is just what Flink's latency markers do; but they are sent anyway. So each aligned checkpoint gives
one measurement for each slot: from the trigger until the last of its barriers has come, all that the sources had emitted before
was taken in. Nothing is done for a record. An unaligned barrier overtakes records and is not counted.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass, field, replace

from tidegate.coordinator.moving import ScalingDecided
from tidegate.coordinator.observing import (
    AttemptFailed,
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobEvent,
)

#: Upper bounds in seconds, of all histograms: from a quick frame to a checkpoint's timeout.
BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)


@dataclass(slots=True)
class Histogram:
    """How many measurements are in each bucket; the last one is for those above all bounds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def copy(self) -> Histogram:
        return replace(self, buckets=list(self.buckets))


@dataclass(slots=True)
class Measures:
    """A job's, since its driver began."""

    failures: dict[str, int] = field(default_factory=dict)  #: of attempts, by the error's class
    failed_checkpoints: dict[str, int] = field(default_factory=dict)  #: by reason
    scalings: dict[str, int] = field(default_factory=dict)  #: decisions of the autoscaler, by outcome
    checkpoint_s: Histogram = field(default_factory=Histogram)
    latency_s: dict[int, Histogram] = field(default_factory=dict)  #: by layer, from the second on

    def copy(self) -> Measures:
        return Measures(
            dict(self.failures),
            dict(self.failed_checkpoints),
            dict(self.scalings),
            self.checkpoint_s.copy(),
            {layer: histogram.copy() for layer, histogram in self.latency_s.items()},
        )


class JobMeasures:
    """Takes the events of one job. `note` in the coordinator's thread, `read` in any."""

    def __init__(self) -> None:
        self._measures = Measures()
        self._lock = threading.Lock()

    def read(self) -> Measures:
        with self._lock:
            return self._measures.copy()

    def note(self, event: JobEvent) -> None:
        with self._lock:
            match event:
                case AttemptFailed(kind=kind):
                    _count(self._measures.failures, kind or "unknown")
                case ScalingDecided(parallelism):
                    _count(self._measures.scalings, "rescaled" if parallelism else "held")
                case CheckpointChanged(statistics) if statistics.status is CheckpointStatus.FAILED:
                    _count(self._measures.failed_checkpoints, statistics.failure.partition(":")[0] or "unknown")
                case CheckpointChanged(statistics) if statistics.status is CheckpointStatus.COMPLETED:
                    self._completed(statistics)
                case _:
                    pass

    def _completed(self, statistics: CheckpointStatistics) -> None:
        self._measures.checkpoint_s.observe(statistics.duration_s or 0.0)
        for slot, part in statistics.acknowledged.items():
            timings = part.timings
            if slot.layer > 0 and not timings.unaligned:
                histogram = self._measures.latency_s.setdefault(slot.layer, Histogram())
                histogram.observe(timings.start_delay_s + timings.alignment_s)


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
