"""The attempts of a job, one after another: when each began, ran and ended, what ended it, what that cost. Driver; pure.

    started --RUNNING--> running --AttemptFailed------> FAILED
       |                    +------RESTARTING---------> RESCALED    (an attempt that has not failed ends by its own wish)
       |                    +------a terminal status--> FINISHED | CANCELED | FAILED
       +--another attempt starts: no slots were free. The two are one entry, which began when the first did

Bounded: the newest MAX_ATTEMPTS.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatus,
    JobEvent,
    JobStatus,
    StatusChanged,
)
from tidegate.ids import AttemptId

MAX_ATTEMPTS = 200


class AttemptEnd(enum.Enum):
    FAILED = "FAILED"
    RESCALED = "RESCALED"
    FINISHED = "FINISHED"
    CANCELED = "CANCELED"


_ENDS = {
    JobStatus.FINISHED: AttemptEnd.FINISHED,
    JobStatus.CANCELED: AttemptEnd.CANCELED,
    JobStatus.FAILED: AttemptEnd.FAILED,
}


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that ran a slot."""

    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


@dataclass(frozen=True, slots=True)
class AttemptSpan:
    """One attempt. Times are epoch seconds."""

    attempt: AttemptId
    started_at: float
    restored_from: int | None
    restored_path: str
    parallelism: Mapping[str, int]  #: of each vertex, by its id
    running_at: float | None = None
    ended_at: float | None = None
    end: AttemptEnd | None = None  #: None: it still runs
    failure: AttemptFailed | None = None
    detail: str = ""  #: of a rescale: to what, or why
    worker: Worker | None = None  #: that failed or was lost, where it is known
    replayed: int | None = None  #: records that sources had given after the checkpoint that the next one continues from


@dataclass(slots=True)
class Timeline:
    """Takes the events of one job, in order."""

    spans: deque[AttemptSpan] = field(default_factory=lambda: deque(maxlen=MAX_ATTEMPTS))
    _read_at: dict[int, int] = field(
        default_factory=dict
    )  #: by checkpoint of this attempt: what sources had given then
    _read_at_latest: int = 0  #: when the newest completed one began

    def on(
        self, event: JobEvent, parallelism: Mapping[str, int], worker: Worker | None = None, read: int | None = None
    ) -> None:
        """`parallelism`: of each vertex now. `worker`: the one that an AttemptFailed is about. `read`: the records that the
        sources have given in this attempt, as far as it is known."""
        match event:
            case AttemptStarted():
                self._started(event, parallelism)
            case StatusChanged(JobStatus.RUNNING, _, at):
                self._change(running_at=at)
            case AttemptFailed():
                replayed = None if read is None else max(0, read - self._read_at_latest)
                self._end(AttemptEnd.FAILED, event.at, failure=event, worker=worker, replayed=replayed)
            case StatusChanged(JobStatus.RESTARTING, detail, at):
                self._end(AttemptEnd.RESCALED, at, detail=detail)
            case StatusChanged(status, _, at) if status in _ENDS:
                self._end(_ENDS[status], at)
            case CheckpointChanged(statistics):
                if statistics.status is CheckpointStatus.IN_PROGRESS:
                    if read is not None:
                        self._read_at.setdefault(statistics.checkpoint, read)
                else:
                    began_with = self._read_at.pop(statistics.checkpoint, None)
                    if statistics.status is CheckpointStatus.COMPLETED and began_with is not None:
                        self._read_at_latest = began_with
            case _:
                pass

    def _started(self, event: AttemptStarted, parallelism: Mapping[str, int]) -> None:
        since = event.at
        if self.spans and self.spans[-1].end is None:
            since = self.spans.pop().started_at
        self._read_at.clear()
        self._read_at_latest = 0
        self.spans.append(
            AttemptSpan(event.attempt, since, event.restored_from, event.restored_path, dict(parallelism))
        )

    def _end(self, end: AttemptEnd, at: float, **more: object) -> None:
        self._change(end=end, ended_at=at, **more)

    def _change(self, **fields: object) -> None:
        """Of the attempt that runs; of one that has ended nothing changes any more."""
        if self.spans and self.spans[-1].end is None:
            self.spans[-1] = replace(self.spans[-1], **fields)  # type: ignore[arg-type]
