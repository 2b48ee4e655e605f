"""Two whole drivers of one job on S3, under real Spark: one of them holds the job, the other says that it is superseded, and
what was committed is exact. The log is read with a client that is not Tidegate's."""

from __future__ import annotations

import json
import os
import secrets
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from pyspark.sql import SparkSession

from faults.jobs.tally import Settings
from faults.kit import Driver, assert_exact, await_that, crash_pid, crashes_that_happened, driver, gateway_of, let_go
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

BUCKET = "checkpoints"


def settings_on_s3(name: str, folder: Path, s3: dict[str, str], spark: SparkSession, **more: Any) -> Settings:
    return Settings(
        name=name,
        folder=str(folder),
        storage=f"s3://{BUCKET}/{secrets.token_hex(8)}",
        environment=s3,
        gateway=gateway_of(spark),
        **more,
    )


def log_in_s3(settings: Settings) -> list[dict[str, Any]]:
    """Its records, in order."""
    assert settings.storage is not None
    environment = settings.environment
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        region_name=environment["AWS_REGION"],
    )
    prefix = f"{settings.storage.removeprefix(f's3://{BUCKET}/')}/{settings.name}/log/"
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
    keys = sorted(found["Key"] for page in pages for found in page.get("Contents", ()))
    assert keys, "the log is not where it should be"
    return [json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())["record"] for key in keys]


def assert_one_driver_after_the_other(settings: Settings, generations: int) -> None:
    """Each record is of the generation of the one before it, or begins the next: an old driver never writes again."""
    records = log_in_s3(settings)
    assert [record["sequence"] for record in records] == list(range(len(records)))
    assert [record["generation"] for record in records] == sorted(record["generation"] for record in records)
    assert {record["generation"] for record in records} == set(range(1, generations + 1))
    assert [record["kind"] for record in records].count("generation") >= generations
    assert records[-1]["kind"] == "finished"


def assert_superseded(old: Driver) -> None:
    said = old.await_line("the end", lambda line: "ended" in line)
    assert said["ended"] == "Superseded", old.story()
    assert "has taken over the job" in said["error"]
    assert "ends and commits nothing more" in said["error"]


def test_of_two_drivers_started_at_once_the_older_is_superseded(
    tmp_path: Path, s3: dict[str, str], spark_session: SparkSession
) -> None:
    settings = settings_on_s3("twins", tmp_path, s3, spark_session, resume="latest")

    with driver(settings) as one, driver(settings) as other:
        ends = {one.await_end(): one, other.await_end(): other}
        assert set(ends) == {"FINISHED", "Superseded"}, one.story() + other.story()
        assert_superseded(ends["Superseded"])

    assert_exact(settings)
    assert_one_driver_after_the_other(settings, 2)
    finished = log_in_s3(settings)[-1]
    assert finished["driver"].endswith(f":{ends['FINISHED'].pid}"), "the younger one was superseded"


def test_an_older_driver_that_wakes_up_at_its_commit_point_is_superseded(
    tmp_path: Path, s3: dict[str, str], spark_session: SparkSession
) -> None:
    crash = Crash("driver.before-log", nth=3)
    settings = settings_on_s3("sleeper", tmp_path, s3, spark_session, crashes=[crash], stops=1, held=90)

    with driver(settings) as old:
        await_that("the old driver stopped", lambda: crashes_that_happened(settings))
        with driver(replace(settings, crashes=[], resume="latest")) as new:
            new.await_checkpoints(2)
            os.kill(crash_pid(settings), signal.SIGCONT)
            assert_superseded(old)
            let_go(settings)
            assert new.await_end() == "FINISHED", new.story()

    assert_exact(settings)
    assert_one_driver_after_the_other(settings, 2)
