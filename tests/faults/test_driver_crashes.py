"""Drivers killed at every step of the protocol, twice in a row; then the next driver continues. Real Spark."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import Settings
from faults.kit import (
    assert_exact,
    await_that,
    committed_rows,
    crashes_that_happened,
    drive_until_finished,
    driver,
    gateway_of,
    is_running,
)
from tidegate.testing.crash_points import DRIVER_POINTS, Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]


#: Neighbours share a job: what costs time is starting one. Those around the commit point are in `make test`; all of them are
#: there in process.
STEPS = [
    pytest.param(points, marks=() if points[0] == "driver.before-log" else pytest.mark.slow)
    for points in (DRIVER_POINTS[i : i + 2] for i in range(0, len(DRIVER_POINTS), 2))
]


@pytest.mark.parametrize("points", STEPS, ids="+".join)
def test_a_driver_killed_at_a_step_of_the_protocol_changes_nothing(
    points: tuple[str, ...], tmp_path: Path, spark_session: SparkSession
) -> None:
    crashes = []
    for point in points:
        # Past "finished" there is nothing to resume, so no second driver gets that far.
        times = 1 if point == "driver.after-finished" else 2
        crashes += [Crash(point, nth=1 if "finished" in point else 2), *[Crash(point)] * (times - 1)]
    settings = Settings(
        name="steps", folder=str(tmp_path), readings=180, crashes=crashes, gateway=gateway_of(spark_session)
    )

    drivers = drive_until_finished(settings, most_drivers=len(crashes) + 1)

    assert_exact(settings)
    assert drivers == len(crashes) + 1
    assert crashes_that_happened(settings) == [crash.point for crash in crashes]


def test_workers_and_drivers_killed_while_the_job_recovers_from_a_killed_driver_change_nothing(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    crashes = [
        Crash("driver.after-log", nth=3),  # the checkpoint counts, and nothing of it is committed
        Crash("slot.restored"),
        Crash("slot.before-commit"),  # of what the dead driver's workers had prepared
        Crash("slot.after-commit"),
        Crash("driver.triggered"),
        Crash("slot.restored", layer=1),
        Crash("driver.before-log"),
    ]
    settings = Settings(
        name="recovering", folder=str(tmp_path), readings=150, crashes=crashes, gateway=gateway_of(spark_session)
    )

    drivers = drive_until_finished(settings, most_drivers=4)

    assert_exact(settings)
    assert drivers == 4
    assert crashes_that_happened(settings) == [crash.point for crash in crashes]


def test_after_a_driver_with_its_checkpoints_in_memory_the_next_says_that_all_comes_again(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = Settings(name="forgetful", folder=str(tmp_path), storage="memory", gateway=gateway_of(spark_session))
    with driver(settings) as killed:
        killed.await_checkpoints(2)
        await_that("something is committed", lambda: Path(settings.output).exists() and committed_rows(settings.output))
        killed.send_signal(signal.SIGKILL)
        killed.await_death()
        await_that("its workers have ended", lambda: not any(map(is_running, killed.workers())))

    again = replace(settings, folder=str(tmp_path / "again"), resume="latest")
    with driver(again) as following:
        assert following.await_end() == "FINISHED", following.story()
        said = "".join(following.noise)
    assert "there is nothing to resume: the checkpoints of 'forgetful' are kept in the driver's memory" in said
    assert "So the job begins at the beginning" in said
    assert_exact(again)
