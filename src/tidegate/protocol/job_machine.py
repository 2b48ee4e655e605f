"""A job's way from attempt to attempt in one driver. Pure; driven by coordinator/job_loop.py, under Spark and in one process.

    PLANNING --planned--> ATTEMPTING --it failed, or is to be rescaled--> JUDGING --may restart--> PAUSING --> PLANNING
        |                     |                                              |                        |
        +-- hopeless ---------+-- finished, canceled ------------------------+-- may not --------------+--> ENDED
        +-- storage does not answer: JUDGING, like any failure

Too few slots are not a failure: the dying tasks of the last attempt may still hold some. The job waits, and plans again.

Invariant 1. After a cancel no attempt begins, and the job ends CANCELED, unless it had finished before.
Invariant 2. Every event has exactly one answer, the next thing to do; the table has every legal move.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union, assert_never

from tidegate.protocol.story import Story

SLOTS_POLL_S = 0.25


class AttemptEnd(enum.Enum):
    FINISHED = "the job has reached its end"
    FAILED = "it failed, or could not be planned"
    RESCALED = "its last checkpoint stands; the next attempt has another plan"
    NO_SLOTS = "the cluster has too few free slots at the moment"


class JobEnd(enum.Enum):
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"


class JobState(enum.Enum):
    PLANNING = "what the next attempt starts from is read from the log"
    ATTEMPTING = "an attempt runs"
    JUDGING = "may it be started again?"
    PAUSING = "before the next attempt"
    ENDED = "for good"


S = JobState
MOVES: Mapping[JobState, frozenset[JobState]] = {
    S.PLANNING: frozenset({S.ATTEMPTING, S.JUDGING, S.ENDED}),
    S.ATTEMPTING: frozenset({S.JUDGING, S.PAUSING, S.ENDED}),
    S.JUDGING: frozenset({S.PAUSING, S.ENDED}),
    S.PAUSING: frozenset({S.PLANNING, S.ENDED}),
    S.ENDED: frozenset(),
}


# -- events ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptPlanned: ...


@dataclass(frozen=True, slots=True)
class LogSaysFinished:
    """It was in doubt whether that record stands."""


@dataclass(frozen=True, slots=True)
class PlanningFailed:
    hopeless: bool  #: no retry can help


@dataclass(frozen=True, slots=True)
class AttemptOver:
    how: AttemptEnd


@dataclass(frozen=True, slots=True)
class RestartGranted:
    after_s: float


@dataclass(frozen=True, slots=True)
class RestartRefused:
    how: JobEnd  #: how the job ends


@dataclass(frozen=True, slots=True)
class PauseOver: ...


JobEvent = Union[
    AttemptPlanned,
    LogSaysFinished,
    PlanningFailed,
    AttemptOver,
    RestartGranted,
    RestartRefused,
    PauseOver,
]


# -- what is to be done next ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanAttempt: ...


@dataclass(frozen=True, slots=True)
class RunAttempt: ...


@dataclass(frozen=True, slots=True)
class Judge:
    """Answer with RestartGranted or RestartRefused."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Until the time is over, or a cancel."""

    seconds: float
    for_slots: bool = False


@dataclass(frozen=True, slots=True)
class EndJob:
    how: JobEnd


NextStep = Union[PlanAttempt, RunAttempt, Judge, Pause, EndJob]


@dataclass(slots=True)
class JobMachine:
    """See the module. It begins with PlanAttempt."""

    state: JobState = S.PLANNING
    story: Story = field(default_factory=Story)

    def on(self, event: JobEvent, canceled: bool, now: float) -> NextStep:
        """`canceled`: somebody has asked for it by now. :raises ProtocolViolation: with the story of what led there."""
        self.story.begin(event, now)
        step = self._on(event, canceled)
        self.story.end([step])
        return step

    def _on(self, event: JobEvent, canceled: bool) -> NextStep:
        match event:
            case AttemptPlanned():
                return self._end(JobEnd.CANCELED) if canceled else self._go(S.ATTEMPTING, RunAttempt())
            case LogSaysFinished():
                return self._end(JobEnd.FINISHED)
            case PlanningFailed(hopeless):
                return self._end(JobEnd.FAILED) if hopeless else self._go(S.JUDGING, Judge())
            case AttemptOver(how):
                if canceled and how is not AttemptEnd.FINISHED:
                    return self._end(JobEnd.CANCELED)
                if how is AttemptEnd.NO_SLOTS:
                    return self._go(S.PAUSING, Pause(SLOTS_POLL_S, for_slots=True))
                return self._go(S.JUDGING, Judge())
            case RestartGranted(after_s):
                return self._go(S.PAUSING, Pause(after_s))
            case RestartRefused(how):
                return self._end(how)
            case PauseOver():
                return self._end(JobEnd.CANCELED) if canceled else self._go(S.PLANNING, PlanAttempt())
            case _:
                assert_never(event)

    def _end(self, how: JobEnd) -> NextStep:
        return self._go(S.ENDED, EndJob(how))

    def _go(self, to: JobState, step: NextStep) -> NextStep:
        self.story.check_move("the job", MOVES, self.state, to)
        self.state = to
        return step
