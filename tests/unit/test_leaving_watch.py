"""Executors that leave, as the coordinator hears of them: the job moves, and no failure is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from execution_kit import DEADLINE_S, RunningJob, start_job

from tidegate.coordinator.observing import JobStatus


@pytest.fixture
def job(tmp_path: Path) -> Iterator[RunningJob]:
    running = start_job(tmp_path, interval_s=1000.0)  # the strategy is "none": a failure would end the job
    running.until(JobStatus.RUNNING)
    yield running
    running.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_job_moves_through_a_checkpoint_with_the_reason_and_without_a_failure(job: RunningJob) -> None:
    job.cluster.leaving.add("1")
    until(lambda: job.client.view.restarts == 1)
    job.cluster.leaving.clear()
    job.until(JobStatus.RUNNING)

    view = job.client.view
    assert list(view.failures) == []
    assert view.restored_from == 1, "the checkpoint with which its sources stopped"
    said = [line.message for line in view.lines]
    assert "leaving, with slots of the job: executors 1" in said
    assert "RESTARTING (moved: executor is leaving: 1)" in said
    until(lambda: any("moved; nothing was processed for" in line.message for line in view.lines))


def test_without_room_others_are_asked_for_and_checkpoints_taken_until_there_is_some(job: RunningJob) -> None:
    job.cluster.has_room = False
    job.cluster.leaving.add("0")
    until(lambda: job.client.view.completed >= 2)
    assert job.client.view.restarts == 0
    job.cluster.has_room = True
    until(lambda: job.client.view.restarts == 1)
    assert list(job.client.view.failures) == []
    until(lambda: job.cluster.asked_for == [[], ["0"], []])  # the next attempt begins with as many as usual


def test_executors_without_slots_of_the_job_are_nothing_to_it(job: RunningJob) -> None:
    job.cluster.executors.remove("1")
    job.cluster.leaving.add("1")
    seen = len(job.client.view.lines)
    time.sleep(0.6)  # two looks
    assert job.client.view.restarts == 0
    assert len(job.client.view.lines) == seen
