"""What a driver remembers of a job: its attempts with what ended them and what that cost, and its last half hour."""

from __future__ import annotations

from dataclasses import replace

from cli_kit import attempt, checkpoint, status
from rest_kit import ScriptedHands, beats, served

from tidegate.config import JobConfig
from tidegate.coordinator.observing import (
    LEAST_REMEMBERED,
    MAX_PARTS,
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatus,
    JobEvent,
    JobStatus,
    JobView,
)
from tidegate.coordinator.past import MOMENTS, JobPast, Moment
from tidegate.coordinator.timeline import MAX_ATTEMPTS, AttemptEnd, Timeline, Worker
from tidegate.rest.attempts import rescales_history, timeline
from tidegate.rest.failures import failures
from tidegate.rest.past import past
from tidegate.rest.served import ServedJob

RUNNING, RESTARTING = JobStatus.RUNNING, JobStatus.RESTARTING


def began(number: int, at: float, restored_from: int | None = None) -> AttemptStarted:
    return AttemptStarted(attempt(number), restored_from, at)


def raised(number: int, at: float, error: str = "ValueError: bad", **more: object) -> AttemptFailed:
    return AttemptFailed(attempt(number), error, 1.0, at, "UserCodeFailed", "map", "numbers~map double", 1, **more)  # type: ignore[arg-type]


def lost(number: int, at: float) -> AttemptFailed:
    return AttemptFailed(attempt(number), "slot 1.0 was lost", 0.0, at, "JobFailed", "sum", "sums", 0, lost_slot="1.0")


def told(*events: JobEvent) -> Timeline:
    timeline = Timeline()
    for event in events:
        timeline.on(event, {"v": 2})
    return timeline


def job_with(*events: JobEvent) -> ServedJob:
    hands = ScriptedHands()
    job = served(hands, "sums", JobConfig(storage="file:///data", interval_s=1.0))
    for event in events:
        hands.view.publish(event)
    return job


# -- attempts ---------------------------------------------------------------------------------------------------------


def test_attempts_end_by_a_failure_a_rescale_or_the_jobs_end() -> None:
    spans = told(
        began(1, 10.0),
        status(RUNNING, at=12.0),
        raised(1, 20.0),
        status(RESTARTING, "in 1.0 s", at=20.0),
        began(2, 21.0, restored_from=3),
        status(RUNNING, at=22.0),
        status(RESTARTING, "with parallelism 3", at=30.0),
        began(3, 31.0, restored_from=4),
        status(RUNNING, at=33.0),
        status(JobStatus.FINISHED, at=40.0),
    ).spans
    assert [(s.started_at, s.running_at, s.ended_at, s.end, s.restored_from) for s in spans] == [
        (10.0, 12.0, 20.0, AttemptEnd.FAILED, None),
        (21.0, 22.0, 30.0, AttemptEnd.RESCALED, 3),
        (31.0, 33.0, 40.0, AttemptEnd.FINISHED, 4),
    ]


def test_attempts_that_found_no_slots_are_one_that_began_with_the_first() -> None:
    (span,) = told(began(1, 10.0), began(2, 10.5), began(3, 11.0), status(RUNNING, at=12.0)).spans
    assert (span.attempt, span.started_at, span.running_at) == (attempt(3), 10.0, 12.0)


def test_a_failure_between_attempts_changes_none() -> None:
    (span,) = told(began(1, 10.0), raised(1, 11.0), raised(1, 12.0)).spans
    assert span.ended_at == 11.0


def test_attempts_are_bounded() -> None:
    events: list[JobEvent] = []
    for number in range(1, MAX_ATTEMPTS + 10):
        events += [began(number, float(number)), raised(number, float(number))]
    spans = told(*events).spans
    assert len(spans) == MAX_ATTEMPTS
    assert spans[0].attempt == attempt(10)


def test_what_is_read_again_counts_from_the_newest_completed_checkpoint() -> None:
    timeline = Timeline()
    timeline.on(began(1, 1.0), {})
    timeline.on(checkpoint(1, CheckpointStatus.IN_PROGRESS, acknowledged=0), {}, read=100)
    timeline.on(checkpoint(1), {}, read=150)
    timeline.on(checkpoint(2, CheckpointStatus.IN_PROGRESS, acknowledged=0), {}, read=300)
    timeline.on(raised(1, 2.0), {}, Worker("node", 7), read=420)
    assert timeline.spans[-1].replayed == 320, "checkpoint 2 was not complete"
    assert str(timeline.spans[-1].worker) == "node:7"

    timeline.on(began(2, 3.0, restored_from=1), {})
    timeline.on(raised(2, 4.0), {}, read=50)
    assert timeline.spans[-1].replayed == 50, "a new attempt counts from zero"
    timeline.on(began(3, 5.0, restored_from=1), {})
    timeline.on(raised(3, 6.0), {})
    assert timeline.spans[-1].replayed is None, "nobody was heard"


def test_the_timeline_says_why_each_attempt_began_and_what_a_rescale_changed() -> None:
    job = job_with(began(1, 10.0), status(RUNNING, at=12.0), status(RESTARTING, "with parallelism 3", at=20.0))
    from cli_kit import planned_sums

    job.hands.plan = planned_sums(3)  # type: ignore[misc]
    job.view.publish(began(2, 21.0, restored_from=5))
    first, second = timeline(job)["attempts"]
    assert (first["why"], second["why"]) == ("with parallelism 3", ""), "why it ended"
    assert (first["began"], first["end"], first["subtasks"], first["parallelism"]) == (
        "INITIAL_SCHEDULE",
        "RESCALED",
        4,
        [],
    )
    assert (second["began"], second["restoredFrom"], second["running"]) == ("UPDATE_REQUIREMENT", 5, None)
    assert [(c["before"], c["after"]) for c in second["parallelism"]] == [(2, 3), (2, 3)]

    newest, oldest = rescales_history(job)
    assert (oldest["terminalState"], oldest["endTimestampInMillis"]) == ("COMPLETED", 12_000)
    assert (newest["terminalState"], newest["startTimestampInMillis"]) == (None, 20_000)
    assert {v["postRescaleParallelism"] for v in newest["vertices"].values()} == {0}, "it does not run yet"


# -- failures ---------------------------------------------------------------------------------------------------------


def test_equal_failures_are_one_group_with_each_time_and_what_followed() -> None:
    job = job_with(
        began(1, 10.0),
        status(RUNNING, at=11.0),
        *beats(1),
        raised(1, 20.0),
        status(RESTARTING, at=20.0),
        began(2, 21.0, restored_from=3),
        status(RUNNING, at=22.5),
        raised(2, 30.0, error="ValueError: bad\n  in another subtask"),
        status(RESTARTING, at=30.0),
        began(3, 31.0, restored_from=3),
        status(RUNNING, at=32.0),
        lost(3, 40.0),
    )
    gone, bad = failures(job)["groups"]
    assert (bad["title"], bad["count"], bad["first"], bad["last"]) == ("Your function failed", 2, 20_000, 30_000)
    assert bad["vertex"] == job.vertices()[0].id
    newest, oldest = bad["times"]
    assert (oldest["attempt"], oldest["worker"], oldest["restoredFrom"]) == ("g1-a1", "node:101", 3)
    assert (oldest["stoodStill"], oldest["replayed"]) == (2500, 200)
    assert (newest["stoodStill"], newest["replayed"]) == (2000, None)

    assert (gone["title"], gone["count"]) == ("A worker was lost", 1)
    (only,) = gone["times"]
    assert (only["worker"], only["isRestored"], only["restoredFrom"]) == ("node:102", False, None)


# -- the last half hour -----------------------------------------------------------------------------------------------


def test_moments_come_every_five_seconds_and_are_bounded() -> None:
    past = JobPast()
    for second in range(10 * MOMENTS):
        if past.is_due(float(second)):
            past.note(Moment(float(second), None, None, None, 0, {}))
    assert len(past.moments) == MOMENTS
    assert past.moments[1].at - past.moments[0].at == 5.0
    assert past.is_due(0.0), "the clock was set back"


def test_the_past_has_throughput_lag_load_and_checkpoints() -> None:
    hands = ScriptedHands()
    job = served(hands, "sums", JobConfig())
    ticks = iter(range(1000))
    job.clock = lambda: float(next(ticks) // 4)  # four slots beat in each second
    now = [100.0]
    job.memory.wall_clock = lambda: now[0]
    for event in (began(1, 90.0), status(RUNNING, at=91.0), *beats(1)):
        hands.view.publish(event)
    hands.view.publish(checkpoint(1, duration_s=0.25))
    now[0] = 110.0
    for event in beats(2):
        hands.view.publish(event)
    found = past(job)
    assert found["at"] == [100_000, 110_000]
    assert found["checkpointDuration"] == [None, 250]
    assert found["lag"][-1] == 110_000 - 4000, "of the watermark that is furthest behind"
    assert found["fromSourcesPerSecond"][0] is None, "a rate needs two heartbeats"
    assert found["fromSourcesPerSecond"][1] == 100.0, "one of two sources had beaten twice"
    assert found["vertices"][0]["busy"] == [None, 0.6]
    assert job.memory.heard_at().keys() == job.hands.workers().keys()


def test_of_many_slots_fewer_checkpoints_are_remembered() -> None:
    for slots, remembered in [(4, 1000), (1000, MAX_PARTS // 1000), (10_000, LEAST_REMEMBERED)]:
        view = JobView()
        for id in range(1, 1100):
            view.publish(CheckpointChanged(replace(checkpoint(id).statistics, slots=slots)))
        assert list(view.checkpoints) == list(range(1100 - remembered, 1100))
