"""A job's way from attempt to attempt, as events in and the next step out."""

from __future__ import annotations

import itertools
import random

import pytest

from tidegate.errors import ProtocolViolation
from tidegate.protocol.job_machine import (
    MOVES,
    SLOTS_POLL_S,
    AttemptEnd,
    AttemptOver,
    AttemptPlanned,
    EndJob,
    JobEnd,
    JobEvent,
    JobMachine,
    JobState,
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


def steps(*events: JobEvent, canceled: bool = False) -> list[NextStep]:
    """Of a job that is canceled before the last of the events, if at all."""
    job = JobMachine()
    return [job.on(event, canceled and number == len(events) - 1, float(number)) for number, event in enumerate(events)]


RUNNING = (AttemptPlanned(),)
FAILED = (*RUNNING, AttemptOver(AttemptEnd.FAILED))


def test_a_failed_attempt_is_judged_and_the_next_is_planned_after_a_pause() -> None:
    assert steps(*FAILED, RestartGranted(2.0), PauseOver()) == [RunAttempt(), Judge(), Pause(2.0), PlanAttempt()]


def test_a_rescaled_attempt_is_followed_by_one_with_another_plan() -> None:
    assert steps(*RUNNING, AttemptOver(AttemptEnd.RESCALED), RestartGranted(0.0))[1:] == [Judge(), Pause(0.0)]


def test_too_few_slots_are_not_a_failure() -> None:
    over = AttemptOver(AttemptEnd.NO_SLOTS)
    assert steps(*RUNNING, over, PauseOver())[1:] == [Pause(SLOTS_POLL_S, for_slots=True), PlanAttempt()]


@pytest.mark.parametrize("how", [JobEnd.FAILED, JobEnd.FINISHED])
def test_what_may_not_restart_ends_the_job(how: JobEnd) -> None:
    assert steps(*FAILED, RestartRefused(how))[-1] == EndJob(how)


def test_storage_that_does_not_answer_is_a_failure_like_any_other() -> None:
    assert steps(PlanningFailed(hopeless=False)) == [Judge()]


def test_what_no_retry_can_help_against_ends_the_job() -> None:
    assert steps(PlanningFailed(hopeless=True)) == [EndJob(JobEnd.FAILED)]


def test_a_log_that_says_finished_ends_the_job() -> None:
    assert steps(LogSaysFinished(), canceled=True) == [EndJob(JobEnd.FINISHED)]


@pytest.mark.parametrize(
    "events",
    [
        (AttemptPlanned(),),
        (*RUNNING, AttemptOver(AttemptEnd.FAILED)),
        (*RUNNING, AttemptOver(AttemptEnd.RESCALED)),
        (*RUNNING, AttemptOver(AttemptEnd.NO_SLOTS)),
        (*FAILED, RestartGranted(2.0), PauseOver()),
        (*RUNNING, AttemptOver(AttemptEnd.NO_SLOTS), PauseOver()),
    ],
    ids=str,
)
def test_a_cancel_ends_the_job_wherever_it_comes(events: tuple[JobEvent, ...]) -> None:
    assert steps(*events, canceled=True)[-1] == EndJob(JobEnd.CANCELED)


def test_a_cancel_that_comes_after_the_end_of_the_stream_changes_nothing() -> None:
    assert steps(*RUNNING, AttemptOver(AttemptEnd.FINISHED), canceled=True)[-1] == Judge()


ANSWERS: dict[type, list[JobEvent]] = {
    PlanAttempt: [AttemptPlanned(), LogSaysFinished(), PlanningFailed(True), PlanningFailed(False)],
    RunAttempt: [AttemptOver(how) for how in AttemptEnd],
    Judge: [RestartGranted(1.0), *(RestartRefused(how) for how in JobEnd)],
    Pause: [PauseOver()],
}


@pytest.mark.parametrize("seed", range(100))
def test_every_answer_to_every_step_has_a_next_step(seed: int) -> None:
    rng = random.Random(seed)
    job, step, canceled, ran_after_cancel = JobMachine(), PlanAttempt(), False, False
    for number in itertools.count():
        canceled = canceled or rng.random() < 0.02
        step = job.on(rng.choice(ANSWERS[type(step)]), canceled, float(number))  # type: ignore[assignment]
        ran_after_cancel = ran_after_cancel or (canceled and isinstance(step, RunAttempt))
        if isinstance(step, EndJob):
            break
    assert not ran_after_cancel
    assert job.state is JobState.ENDED


@pytest.mark.parametrize("state", JobState)
def test_an_event_that_cannot_be_is_refused_with_the_story(state: JobState) -> None:
    job = JobMachine()
    job.on(AttemptPlanned(), False, 0.0)
    job.state = state
    if JobState.PLANNING in MOVES[state]:
        assert job.on(PauseOver(), False, 1.0) == PlanAttempt()
        return
    with pytest.raises(ProtocolViolation, match=f"the job cannot go from {state.name} to PLANNING") as raised:
        job.on(PauseOver(), False, 1.0)
    assert [line.partition(" ")[2] for line in raised.value.story] == [  # type: ignore[attr-defined]
        "AttemptPlanned() -> RunAttempt()",
        "PauseOver()",
    ]
