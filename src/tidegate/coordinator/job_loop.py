"""Attempt after attempt, until the job ends. Driver; the coordinator's thread.

protocol/job_machine.py decides; this asks the job and its shell, and tells the machine what came of it. The shells are
coordinator/execution.py (a cluster) and testing/runner.py (this process, one seed): they run attempts and let time pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

from tidegate.coordinator.job import AttemptInputs, JobEnded, JobRun, RestartIn
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.outcomes import AttemptEnded, AttemptFinished, AttemptRescaled, Outcome
from tidegate.errors import (
    CheckpointDamaged,
    CommitLost,
    ConfigurationError,
    JobFolderInUse,
    Superseded,
    TidegateError,
)
from tidegate.protocol.job_machine import (
    AttemptEnd,
    AttemptOver,
    AttemptPlanned,
    EndJob,
    JobEnd,
    JobEvent,
    JobMachine,
    Judge,
    LogSaysFinished,
    NextStep,
    Pause,
    PauseOver,
    PlanAttempt,
    PlanningFailed,
    RestartGranted,
    RestartRefused,
    RunAttempt,
)

HOPELESS = (ConfigurationError, CheckpointDamaged, CommitLost, JobFolderInUse, Superseded)
ENDS = {JobStatus.FINISHED: JobEnd.FINISHED, JobStatus.CANCELED: JobEnd.CANCELED, JobStatus.FAILED: JobEnd.FAILED}


class AttemptShell(Protocol):
    @property
    def canceled(self) -> bool: ...

    @property
    def keeps_checkpoints(self) -> bool:
        """By a cancel, whatever the settings say."""

    def run_attempt(self, inputs: AttemptInputs) -> Outcome | None:
        """None: the cluster had no slots for it."""

    def pause(self, seconds: float, for_slots: bool) -> None:
        """Less when the job is canceled meanwhile."""


class JobLoop:
    """One job in one driver; `run` is called once. Whoever wants to stand between the steps calls its parts instead."""

    def __init__(self, job: JobRun, shell: AttemptShell, clock: Callable[[], float]) -> None:
        self._job = job
        self._shell = shell
        self._clock = clock
        self._machine = JobMachine()
        self._inputs: AttemptInputs | None = None
        self._outcome: Outcome | None = None
        self._ended: JobEnded | None = None

    def run(self) -> JobEnded:
        """:raises TidegateError: that no retry can help against; the caller ends the job by it."""
        step = self.begin()
        while not isinstance(step, EndJob):
            step = self.heard(self._shell.run_attempt(self.inputs)) if isinstance(step, RunAttempt) else self.do(step)
        return self.ended(step)

    def begin(self) -> NextStep:
        self._job.begin()
        return PlanAttempt()

    def do(self, step: PlanAttempt | Judge | Pause) -> NextStep:
        return self._next(self._do(step))

    @property
    def inputs(self) -> AttemptInputs:
        """Of the attempt that is to be run."""
        assert self._inputs is not None
        return self._inputs

    def heard(self, outcome: Outcome | None) -> NextStep:
        """The attempt is over."""
        self._outcome = outcome
        return self._next(AttemptOver(_how(outcome)))

    def ended(self, step: EndJob) -> JobEnded:
        if step.how is JobEnd.CANCELED:
            return self._job.canceled(self._shell.keeps_checkpoints)
        assert self._ended is not None
        return self._ended

    def _next(self, event: JobEvent) -> NextStep:
        return self._machine.on(event, self._shell.canceled, self._clock())

    def _do(self, step: PlanAttempt | Judge | Pause) -> JobEvent:
        match step:
            case PlanAttempt():
                return self._plan()
            case Judge():
                return self._judge()
            case Pause(seconds, for_slots):
                self._shell.pause(seconds, for_slots)
                return PauseOver()
            case _:
                assert_never(step)

    def _plan(self) -> JobEvent:
        try:
            planned = self._job.next_attempt()
        except TidegateError as error:
            if isinstance(error, HOPELESS):
                self._machine.on(PlanningFailed(hopeless=True), self._shell.canceled, self._clock())
                raise
            self._outcome = AttemptEnded(error)
            return PlanningFailed(hopeless=False)
        if isinstance(planned, JobEnded):
            self._ended = planned
            return LogSaysFinished()
        self._inputs = planned
        return AttemptPlanned()

    def _judge(self) -> JobEvent:
        assert self._outcome is not None
        decision = self._job.attempt_ended(self._outcome)
        if isinstance(decision, RestartIn):
            return RestartGranted(decision.seconds)
        self._ended = decision
        return RestartRefused(ENDS[decision.status])


def _how(outcome: Outcome | None) -> AttemptEnd:
    match outcome:
        case None:
            return AttemptEnd.NO_SLOTS
        case AttemptFinished():
            return AttemptEnd.FINISHED
        case AttemptRescaled():
            return AttemptEnd.RESCALED
        case AttemptEnded():
            return AttemptEnd.FAILED
        case _:
            assert_never(outcome)
