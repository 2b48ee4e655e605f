"""Two drivers of one job: started at once, or an old one that was stopped and wakes when the new one has committed. Only one
of them may ever commit anything. Real Spark."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import Settings
from faults.kit import assert_exact, await_that, crash_pid, crashes_that_happened, driver, gateway_of, let_go
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]


def generations_in_the_log(settings: Settings) -> list[int]:
    """Of each record, in order; read without Tidegate."""
    folder = Path(settings.folder) / "checkpoints" / settings.name / "log"
    return [json.loads(file.read_text())["record"]["generation"] for file in sorted(folder.glob("*.json"))]


def test_of_two_drivers_started_at_once_one_ends_and_the_other_is_exact(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = Settings(name="twins", folder=str(tmp_path), resume="latest", gateway=gateway_of(spark_session))

    with driver(settings) as one, driver(settings) as other:
        ends = [one.await_end(), other.await_end()]

    assert sorted(ends) == ["FINISHED", "Superseded"], one.story() + other.story()
    assert_exact(settings)
    assert generations_in_the_log(settings) == sorted(generations_in_the_log(settings))


def test_a_driver_stopped_before_its_commit_point_commits_nothing_when_it_wakes_up_behind_a_new_one(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = Settings(
        name="sleeper",
        folder=str(tmp_path),
        crashes=[Crash("driver.before-log", nth=3)],
        stops=1,
        held=90,
        gateway=gateway_of(spark_session),
    )

    with driver(settings) as old:
        await_that("the old driver stopped", lambda: crashes_that_happened(settings))
        with driver(replace(settings, crashes=[], resume="latest")) as new:
            new.await_checkpoints(3)
            os.kill(crash_pid(settings), signal.SIGCONT)

            assert old.await_end() == "Superseded"
            let_go(settings)
            assert new.await_end() == "FINISHED"

    assert_exact(settings)
    assert generations_in_the_log(settings) == sorted(generations_in_the_log(settings))


def test_an_old_driver_that_restarts_its_job_behind_a_new_one_touches_nothing_of_the_new_ones(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    # Many are retained, so that the old driver finds its own newest checkpoint and gets as far as it can.
    settings = Settings(
        name="restarter", folder=str(tmp_path), retained=100, held=60, gateway=gateway_of(spark_session)
    )

    with driver(settings) as old:
        workers = old.await_running()
        old.await_checkpoints(2)
        old.send_signal(signal.SIGSTOP)
        os.kill(workers["1.0"], signal.SIGKILL)
        with driver(replace(settings, resume="latest")) as new:
            new.await_checkpoints(2)
            old.send_signal(signal.SIGCONT)  # it finds a worker gone, and would begin another attempt

            assert old.await_end() == "Superseded"
            let_go(settings)
            assert new.await_end() == "FINISHED", new.story()

    assert_exact(settings)
