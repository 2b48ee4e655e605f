"""Unaligned checkpoints of a job that cannot keep up, over real Spark: workers killed, then another parallelism.

The last function takes 3 ms a record and is chained with the two-phase file sink, so every channel before it is full. Its
worker is killed after its snapshot and before its commit. What the files hold is read without Tidegate.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import Settings
from faults.kit import Watched, assert_exact, crashes_that_happened, watched
from matrices import chosen, first
from tidegate.coordinator.observing import CheckpointStatus, JobStatus
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

SLOW: dict[str, Any] = {"readings": 150, "rate": 100_000.0, "slow_s": 0.003}
GUARANTEES = {
    "unaligned": {"unaligned": True},
    "timeout": {"unaligned": True, "aligned_timeout": "50ms"},
}


def in_flight_bytes(job: Watched) -> int:
    done = [each for each in job.client.checkpoints() if each.status is CheckpointStatus.COMPLETED]
    return sum(part.timings.in_flight_bytes for each in done for part in each.acknowledged.values())


@pytest.mark.parametrize("guarantee", chosen({"unaligned"}, GUARANTEES))
def test_the_file_sink_slowed_and_killed_between_snapshot_and_commit(
    guarantee: str, tmp_path: Path, spark_session: SparkSession
) -> None:
    crashes = [
        Crash("slot.after-ack", nth=3, layer=2),
        Crash("slot.before-commit", nth=2, layer=2),
        Crash("slot.snapshot-taken", nth=2, layer=1),
    ]
    settings = Settings("slowed", str(tmp_path), crashes=crashes, guarantee=GUARANTEES[guarantee], **SLOW)
    with watched(settings, spark_session) as job:
        assert job.await_end() is JobStatus.FINISHED
        assert in_flight_bytes(job) > 0

    assert_exact(settings)
    assert crashes_that_happened(settings) == [crash.point for crash in crashes]


@pytest.mark.parametrize(("before", "after"), first(1, [(3, 1), (2, 3)]))
def test_the_job_goes_on_at_another_parallelism_with_what_was_in_flight(
    before: int, after: int, tmp_path: Path, spark_session: SparkSession
) -> None:
    guarantee = GUARANTEES["unaligned"]
    before_it = Settings("rescaled", str(tmp_path), guarantee=guarantee, parallelism=before, **SLOW)
    with watched(before_it, spark_session) as job:
        job.await_running()
        job.await_checkpoints(4)
        job.client.cancel()
        assert job.await_end() is JobStatus.CANCELED
        assert in_flight_bytes(job) > 0

    second = Settings("rescaled", str(tmp_path), guarantee=guarantee, parallelism=after, resume="latest", **SLOW)
    with watched(second, spark_session) as job:
        assert job.await_end() is JobStatus.FINISHED
    assert_exact(second)
