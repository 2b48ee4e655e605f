"""The last half hour of a job, a moment every five seconds, in the driver's memory: what plots begin with. Driver; pure.

Bounded: MOMENTS moments, each with at most MAX_VERTICES loads. A job that stands still has no moments: heartbeats bring them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

STEP_S = 5.0
KEPT_S = 1800.0
MOMENTS = int(KEPT_S / STEP_S)
MAX_VERTICES = 50


@dataclass(frozen=True, slots=True)
class Moment:
    at: float  #: epoch seconds
    from_sources_per_s: float | None  #: records
    lag_ms: int | None  #: of the watermark that is furthest behind the clock; None: there is no event time
    checkpoint_ms: int | None  #: the duration of the newest completed checkpoint
    restarts: int
    loads: dict[str, tuple[float, float]]  #: busy and back-pressured parts of the busiest subtask's time, by vertex


@dataclass(slots=True)
class JobPast:
    """The oldest first."""

    moments: deque[Moment] = field(default_factory=lambda: deque(maxlen=MOMENTS))

    def is_due(self, now: float) -> bool:
        """Also after the clock was set back."""
        return not self.moments or not 0.0 <= now - self.moments[-1].at < STEP_S

    def note(self, moment: Moment) -> None:
        self.moments.append(moment)
