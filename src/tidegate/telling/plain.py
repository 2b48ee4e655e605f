"""The display of `tidegate run` where nobody watches a terminal: a line for each thing that happens, on standard error.

Standard output belongs to the job. Checkpoints are summed up, at most every ten seconds. Driver; called in the
coordinator's thread, so it only writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.coordinator.moving import ExecutorsLeaving, ScalingDecided
from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatistics,
    CheckpointStatus,
    JobEvent,
    JobStatus,
    StatusChanged,
    when_it_restarts,
)
from tidegate.graph.plan import JobPlan
from tidegate.telling.silent_jobs import nothing_came_out
from tidegate.wording import counted, how_big_in_all, how_long

SUMMARY_EVERY_S = 10.0
WITHOUT_CHECKPOINTS = (
    "no checkpoints are taken: what the job has read when it fails is gone (at-most-once). "
    'env.checkpointing(every="10s", storage="file:///...") keeps it'
)


@dataclass(slots=True)
class PlainDisplay:
    """Implements overrides.Onlooker."""

    write: Callable[[str], object]
    clock: Callable[[], float] = time.time
    steady: Callable[[], float] = time.monotonic  #: for intervals

    def launching(self, draft: JobPlan, config: JobConfig) -> None:
        where = config.master or "this machine"
        self._say(draft.job, f"starting Spark for {counted(len(draft.slots), 'slot')} on {where}")
        if config.interval_s is None:
            self._say(draft.job, WITHOUT_CHECKPOINTS)

    def launched(self, client: JobClient, plan: JobPlan) -> None:
        silent = partial(_nothing_came_out, client)
        job = PlainJob(partial(self._say, client.name), self.steady, silent)
        client.view.subscribe(job.on)
        if client.url is not None:
            self._say(client.name, f"dashboard and REST at {client.url}")

    def _say(self, job: str, text: str, level: int = logging.INFO) -> None:
        at = time.strftime("%H:%M:%S", time.localtime(self.clock()))
        self.write(f"{at} {job}: {text}\n")


@dataclass(slots=True)
class PlainJob:
    """What is said of one job."""

    say: Callable[..., None]  #: (text), and a level of logging where it is a trouble
    clock: Callable[[], float]  #: monotonic
    silent: Callable[[], str] = str  #: asked at the end: what to say of a job from which nothing came
    _restored_from: int | None = None
    _completed: int = 0
    _failed: int = 0
    _told_failed: int = 0
    _why: str = ""  #: the latest has failed
    _told: str = ""  #: the latest failure of an attempt
    _latest: CheckpointStatistics | None = None
    _summed_up: tuple[int, int] = (0, 0)
    _summary_at: float = field(default=float("-inf"))

    def on(self, event: JobEvent) -> None:
        match event:
            case AttemptStarted(_, restored_from, _):
                self._restored_from = restored_from
            case StatusChanged(JobStatus.RESTARTING, _, _):
                pass  # said with the failure
            case StatusChanged(status, detail, _):
                if status.is_terminal:
                    self._sum_up()
                self._status(status, detail)
            case AttemptFailed(attempt, error, restart_in_s, _):
                self._told = error
                self.say(f"attempt {attempt} failed: {error.strip()}", logging.ERROR)
                if restart_in_s is not None:
                    self.say(f"RESTARTING {when_it_restarts(restart_in_s)}", logging.WARNING)
            case CheckpointChanged(statistics):
                self._checkpoint(statistics)
            case ScalingDecided() | ExecutorsLeaving():
                self.say(event.sentence)
            case _:
                pass  # heartbeats

    def _status(self, status: JobStatus, detail: str) -> None:
        if status is JobStatus.INITIALIZING and self._restored_from is not None:
            detail += f", from checkpoint {self._restored_from}"
        if status is JobStatus.FAILED and detail in self._told:
            detail = (
                ""  # said with the failure, and again by the error. What failed before the first attempt was not said
            )
        if status is JobStatus.FINISHED and (nothing := self.silent()):
            self.say(nothing, logging.WARNING)
        level = logging.ERROR if status is JobStatus.FAILED else logging.INFO
        self.say(f"{status.value} ({detail})" if detail else status.value, level)

    def _checkpoint(self, statistics: CheckpointStatistics) -> None:
        match statistics.status:
            case CheckpointStatus.COMPLETED:
                self._completed += 1
                self._latest = statistics
            case CheckpointStatus.FAILED:
                self._failed += 1
                self._why = f"{statistics.checkpoint}: {statistics.failure}"
            case CheckpointStatus.IN_PROGRESS:
                return
        if self.clock() - self._summary_at >= SUMMARY_EVERY_S:
            self._sum_up()

    def _sum_up(self) -> None:
        if (self._completed, self._failed) == self._summed_up:
            return
        self._summed_up = (self._completed, self._failed)
        self._summary_at = self.clock()
        parts = [f"{counted(self._completed, 'checkpoint')} completed"]
        if self._failed:
            parts.append(f"{self._failed} failed (the latest, {self._why})")
        if self._latest is not None:
            latest = self._latest
            duration, size = how_long(latest.duration_s or 0.0), how_big_in_all(latest.size_bytes, latest.added_bytes)
            parts.append(f"latest {latest.checkpoint}: {duration}, {size}")
        newly_failed = self._failed > self._told_failed
        self._told_failed = self._failed
        self.say(", ".join(parts), logging.WARNING if newly_failed else logging.INFO)


def _nothing_came_out(client: JobClient) -> str:
    return nothing_came_out(client.plan, client.view.snapshot())
