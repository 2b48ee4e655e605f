"""Python workers killed at every step of the protocol, twice in a row and while the job recovers from it. Real Spark."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import LAYERS, Settings
from faults.kit import assert_exact, crashes_that_happened, watched
from tidegate.coordinator.observing import JobStatus
from tidegate.ids import SlotId
from tidegate.testing.crash_points import SLOT_POINTS, Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

#: Neighbours share a job: what costs time is starting one.
STEPS = [SLOT_POINTS[i : i + 2] for i in range(0, len(SLOT_POINTS), 2)]


#: Each way of keeping and storing state meets some of the steps here, and all of them in process.
BACKENDS = [("hashmap", False), ("rocksdb", True), ("hashmap", True), ("rocksdb", False), ("rocksdb", True)]
#: Every second one in `make test`.
CASES = [
    pytest.param(points, backend, marks=pytest.mark.slow if number % 2 else ())
    for number, (points, backend) in enumerate(zip(STEPS, BACKENDS, strict=True))
]


@pytest.mark.parametrize(("points", "backend"), CASES, ids=str)
def test_a_worker_killed_at_a_step_of_the_protocol_changes_nothing(
    points: tuple[str, ...], backend: tuple[str, bool], tmp_path: Path, spark_session: SparkSession
) -> None:
    crashes = []
    for point in points:
        crashes += [Crash(point, nth=2 if point != "slot.restored" else 1), Crash(point), Crash("slot.restored")]
    settings = Settings("steps", str(tmp_path), crashes=crashes, backend=backend[0], incremental=backend[1])

    with watched(settings, spark_session) as job:
        assert job.await_end() is JobStatus.FINISHED

    assert_exact(settings)
    assert crashes_that_happened(settings) == [crash.point for crash in crashes]
    assert len(job.failures()) == len(crashes)


def test_workers_of_each_layer_killed_at_random_moments_change_nothing(
    tmp_path: Path, spark_session: SparkSession, seed: int
) -> None:
    moments = random.Random(seed)
    settings = Settings(name="random-moments", folder=str(tmp_path), held=60)

    with watched(settings, spark_session) as job:
        for kills, layer in enumerate(moments.sample(range(LAYERS), LAYERS)):
            job.await_running(attempts=kills + 1)
            job.await_checkpoints(moments.randrange(3))
            pid = job.client.workers()[SlotId(layer, moments.randrange(2))].pid
            os.kill(pid, signal.SIGKILL)
        job.let_go()
        assert job.await_end() is JobStatus.FINISHED
    assert_exact(settings)
    assert len(job.failures()) == LAYERS


def test_the_daemon_that_forks_the_workers_may_die_too(tmp_path: Path, spark_session: SparkSession) -> None:
    settings = Settings(name="daemon", folder=str(tmp_path), held=60)

    with watched(settings, spark_session) as job:
        job.await_running()
        job.await_checkpoints(2)
        worker = psutil.Process(job.client.workers()[SlotId(1, 0)].pid)
        worker.parent().kill()
        worker.kill()
        job.let_go()
        assert job.await_end() is JobStatus.FINISHED

    assert_exact(settings)
