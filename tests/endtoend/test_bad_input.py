"""Mistakes under real Spark: the job ends at once with one clear error, and a password is shown nowhere.

Mistakes of each connector, one by one and without Spark: `tests/databases/test_sink_steps.py`, `test_table_source.py`,
`tests/kafka/test_kafka_sink.py`, `test_kafka_source.py`, `tests/unit/test_connector_*.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from databases.servers import DatabaseServer
from endtoend.outsides import DatabaseOutlet
from faults.jobs.tally import Settings
from faults.kit import watched
from kafka.kit import make_topic
from tidegate.errors import JobFailed

pytestmark = [pytest.mark.spark]

SECRET = "hunter2-wrong"


def assert_refused(settings: Settings, spark: SparkSession, capfd: pytest.CaptureFixture[str], words: str) -> None:
    with watched(settings, spark) as job, pytest.raises(JobFailed, match=words) as raised:
        job.await_end()

    (failure,) = job.failures()
    assert f"(uid '{settings.sink[0]}')" in str(raised.value)
    shown = capfd.readouterr()
    files = [file for file in (Path(settings.folder) / "checkpoints").rglob("*") if file.is_file()]
    stored = "".join(file.read_text(errors="replace") for file in files)
    for text in (str(raised.value), failure.error, shown.out, shown.err, stored, *map(str, job.events)):
        assert SECRET not in text


def test_a_wrong_password_of_a_database_ends_the_job_at_once_and_is_shown_nowhere(
    postgres: DatabaseServer, tmp_path: Path, spark_session: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    _, _, table = DatabaseOutlet(postgres).words
    sink = ("database", postgres.url_of(password=SECRET), table)

    assert_refused(Settings("refused", str(tmp_path), sink=sink), spark_session, capfd, "user and password of the URL")


def test_a_wrong_password_of_kafka_ends_the_job_at_once_and_is_shown_nowhere(
    broker: Any, tmp_path: Path, spark_session: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    make_topic(broker.address, tmp_path.name, 1)
    sink = ("kafka-login", broker.login_address, tmp_path.name, SECRET)

    assert_refused(Settings("refused", str(tmp_path), sink=sink), spark_session, capfd, r"does not let it in.*sasl")
