"""Workers killed with copies of their checkpoints on the local disk, and without. Real Spark, real kills."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import Settings
from faults.kit import Watched, assert_exact, watched
from tidegate.coordinator.observing import AttemptStarted, JobStatus, SlotRestored
from tidegate.ids import SlotId
from tidegate.task.copy_folder import base_in

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def test_a_killed_worker_restores_from_its_disk_and_without_it_from_storage(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    disk = tmp_path / "disk"
    settings = Settings("local-copies", str(tmp_path), backend="rocksdb", copies=str(disk), held=60)

    with watched(settings, spark_session) as job:
        for kills in (1, 2):
            job.await_running(attempts=kills)
            job.await_checkpoints(2)
            if kills == 2:
                base_in(str(disk)).rename(tmp_path / "gone")  # at once: a checkpoint may be under way
            os.kill(job.client.workers()[SlotId(1, 0)].pid, signal.SIGKILL)
        job.let_go()
        assert job.await_end() is JobStatus.FINISHED

    assert_exact(settings)
    with_copies, without = restored_bytes(job)[-2:]
    assert with_copies[0] > 0
    assert with_copies[1] == 0
    assert without[0] == 0
    assert without[1] > 0
    left = [path for path in base_in(str(disk)).rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == [], "the job has finished"


def restored_bytes(job: Watched) -> list[tuple[int, int]]:
    """(from local copies, from storage), for each attempt."""
    attempts: list[list[SlotRestored]] = [[]]
    for event in job.events:
        if isinstance(event, AttemptStarted):
            attempts.append([])
        elif isinstance(event, SlotRestored):
            attempts[-1].append(event)
    return [(sum(s.local_bytes for s in slots), sum(s.storage_bytes for s in slots)) for slots in attempts]
