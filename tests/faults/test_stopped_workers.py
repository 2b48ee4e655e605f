"""A worker that is stopped (SIGSTOP) and wakes up when the new attempt has committed must end without effect. Real Spark.

Spark notices nothing by itself; the heartbeats do.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import Settings
from faults.kit import assert_exact, await_that, crash_pid, crashes_that_happened, is_running, watched
from tidegate.coordinator.observing import JobStatus
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

#: In each layer, and right before each thing that a worker does to the outside.
MOMENTS = {
    "a source": Crash("source.before-barrier", nth=2),
    "while it aligns": Crash("slot.aligned", nth=2, layer=1),
    "before it stores a snapshot": Crash("slot.before-store", nth=2, layer=1),
    "before it commits": Crash("slot.before-commit", nth=2, layer=2),
}


@pytest.mark.parametrize("crash", MOMENTS.values(), ids=MOMENTS)
def test_a_stopped_worker_that_wakes_up_behind_the_new_attempt_ends_without_effect(
    crash: Crash, tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = Settings(name="stopped", folder=str(tmp_path), crashes=[crash], stops=1, heartbeat_s=2.5, held=60)

    with watched(settings, spark_session) as job:
        await_that("a worker stopped", lambda: crashes_that_happened(settings))
        stopped = crash_pid(settings)
        job.await_running(attempts=2)
        job.await_checkpoints(2)
        assert is_running(stopped), "it was killed before it could wake up"
        os.kill(stopped, signal.SIGCONT)

        await_that("the woken worker ended", lambda: not is_running(stopped), patience_s=10)
        job.let_go()
        assert job.await_end() is JobStatus.FINISHED

    assert_exact(settings)
    (failure,) = job.failures()
    assert "silent for 2.5 s" in failure.error
