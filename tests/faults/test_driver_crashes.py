"""Drivers killed at every step of the protocol, twice in a row; then the next driver continues. Real Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import Settings
from faults.kit import assert_exact, crashes_that_happened, drive_until_finished, gateway_of
from tidegate.testing.crash_points import DRIVER_POINTS, Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]


@pytest.mark.parametrize("point", DRIVER_POINTS)
def test_a_driver_killed_at_a_step_of_the_protocol_changes_nothing(
    point: str, tmp_path: Path, spark_session: SparkSession
) -> None:
    # Past "finished" there is nothing to resume, so no second driver gets that far.
    times = 1 if point == "driver.after-finished" else 2
    crashes = [Crash(point, nth=1 if "finished" in point else 3), *[Crash(point)] * (times - 1)]
    settings = Settings(
        name="steps", folder=str(tmp_path), readings=150, crashes=crashes, gateway=gateway_of(spark_session)
    )

    drivers = drive_until_finished(settings, most_drivers=times + 1)

    assert drivers == times + 1
    assert crashes_that_happened(settings) == [point] * times
    assert_exact(settings)
