"""How the Spark job of an attempt ends decides whether another attempt can be of any help."""

from __future__ import annotations

from pathlib import Path

import pytest
from execution_kit import start_job

from tidegate.config import RestartSettings
from tidegate.coordinator.observing import JobStatus
from tidegate.ports import GangEnd

RESTARTS = RestartSettings("fixed-delay", delay_s=0.0, attempts=1000)


@pytest.mark.parametrize("end", [GangEnd.NO_PYTHON, GangEnd.NO_SPARK])
def test_a_job_is_not_restarted_where_every_attempt_would_end_just_so(end: GangEnd, tmp_path: Path) -> None:
    job = start_job(tmp_path, interval_s=1000.0, restart=RESTARTS)
    job.until(JobStatus.RUNNING)
    job.cluster.end_gang(end, "this is why")
    assert job.ended is JobStatus.FAILED
    assert job.client.view.restarts == 0
    assert "this is why" in str(job.execution.ended.error)  # type: ignore[union-attr]
    job.close()


def test_after_another_failure_it_is(tmp_path: Path) -> None:
    job = start_job(tmp_path, interval_s=1000.0, restart=RESTARTS)
    job.until(JobStatus.RUNNING)
    job.cluster.end_gang(GangEnd.FAILED, "a worker died")
    job.until_attempt(2)
    job.until(JobStatus.RUNNING)
    job.close()
