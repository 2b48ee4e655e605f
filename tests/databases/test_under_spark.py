"""Jobs on real Spark into real tables: workers, drivers and the database itself are killed between prepare and commit.

The tables are read by the servers' own clients, and a reader notes when it first saw each epoch: never before its checkpoint
stood in the job's log.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from databases.kit import new_table, prepared_of
from databases.servers import DatabaseServer
from faults.jobs.tally import SOURCES, Settings
from faults.kit import (
    assert_exact,
    await_that,
    crash_pid,
    crashes_that_happened,
    driver,
    gateway_of,
    is_running,
    watched,
)
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import JobFailed
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

COLUMNS = ", ".join(f"f{number} bigint NOT NULL" for number in range(6)) + ", PRIMARY KEY (f0, f1)"


class FirstSightings:
    """A reader that reads committed rows all the time, and notes when it first saw anything of a checkpoint."""

    def __init__(self, server: DatabaseServer, settings: Settings) -> None:
        self._server = server
        self._log = Path(settings.folder) / "checkpoints" / settings.name / "log"
        self.seen: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> FirstSightings:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._stop.wait(0.05):
            try:
                rows = self._server.ask("SELECT DISTINCT checkpoint_id FROM tidegate_ledger")
            except AssertionError:
                continue  # the server is down, or has not got the table yet
            now = time.time()
            for (checkpoint,) in rows:
                self.seen.setdefault(int(checkpoint), now)

    def assert_none_was_early(self) -> None:
        logged = {}
        for file in self._log.glob("*.json"):
            record = json.loads(file.read_text())["record"]
            if record["kind"] == "checkpoint":
                logged.setdefault(record["latest"]["id"], file.stat().st_mtime)
        assert self.seen
        early = {
            checkpoint: at for checkpoint, at in self.seen.items() if not logged.get(checkpoint, float("inf")) <= at
        }
        assert not early, f"seen before they stood in the log: {early}, {logged}"


def rows_in(server: DatabaseServer, table: str) -> list[list[int]]:
    return [[int(value) for value in row] for row in server.ask(f"SELECT f0, f1, f2, f3, f4, f5 FROM {table}")]


def forget(server: DatabaseServer) -> None:
    server.ask("DROP TABLE IF EXISTS tidegate_ledger")


def test_workers_and_the_database_killed_between_prepare_and_commit_twice_in_a_row(
    server: DatabaseServer, tmp_path: Path, spark_session: SparkSession
) -> None:
    forget(server)
    table = new_table(server, COLUMNS)
    crashes = [Crash("slot.after-ack", nth=2, layer=2), Crash("slot.before-commit", layer=2, times=2)]
    crashes += [Crash("slot.after-commit", layer=2)]
    settings = Settings(name="to-table", folder=str(tmp_path), crashes=crashes, readings=240, table=(server.url, table))

    with watched(settings, spark_session) as job, FirstSightings(server, settings) as sightings:
        await_that("the workers died", lambda: len(crashes_that_happened(settings)) == 4)
        job.await_running(attempts=5)
        job.await_checkpoints(1)
        server.restart()
        job.await_checkpoints(1)
        server.restart()
        assert job.await_end() is JobStatus.FINISHED

    assert_exact(settings, rows_in(server, table))
    sightings.assert_none_was_early()
    assert prepared_of(server) == []


def test_drivers_and_the_database_killed_when_the_checkpoint_counts_and_nothing_is_committed(
    server: DatabaseServer, tmp_path: Path, spark_session: SparkSession
) -> None:
    table = new_table(server, COLUMNS)
    settings = Settings(
        name="driverless",
        folder=str(tmp_path),
        readings=90,
        crashes=[Crash("driver.after-log", nth=2), Crash("driver.after-log")],
        table=(server.url, table),
        gateway=gateway_of(spark_session),
    )
    for resume in (None, "latest"):
        with driver(dataclasses.replace(settings, resume=resume)) as running:
            assert running.await_death(120.0) == -signal.SIGKILL
            waiting = prepared_of(server)
            server.restart()
            assert prepared_of(server) == waiting
            assert waiting, "nothing was in doubt"

    with driver(dataclasses.replace(settings, resume="latest")) as running:
        assert running.await_end() == "FINISHED"

    assert_exact(settings, rows_in(server, table))
    assert prepared_of(server) == []


def test_a_stopped_worker_that_wakes_up_late_changes_nothing_in_the_table(
    server: DatabaseServer, tmp_path: Path, spark_session: SparkSession
) -> None:
    table = new_table(server, COLUMNS)
    settings = Settings(
        name="stopped",
        folder=str(tmp_path),
        crashes=[Crash("slot.before-commit", nth=2, layer=2)],
        signal="SIGSTOP",
        heartbeat_s=2.5,
        readings=150,
        table=(server.url, table),
    )

    with watched(settings, spark_session) as job:
        await_that("a worker stopped", lambda: crashes_that_happened(settings))
        stopped = crash_pid(settings)
        job.await_running(attempts=2)
        job.await_checkpoints(2)
        assert is_running(stopped), "it was killed before it could wake up"
        os.kill(stopped, signal.SIGCONT)
        await_that("the woken worker ended", lambda: not is_running(stopped), patience_s=10)
        assert job.await_end() is JobStatus.FINISHED

    assert len(rows_in(server, table)) == SOURCES * settings.readings
    assert_exact(settings, rows_in(server, table))
    assert prepared_of(server) == []


def test_a_wrong_password_ends_the_job_at_once_and_is_shown_nowhere(
    postgres: DatabaseServer, tmp_path: Path, spark_session: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    table = new_table(postgres, COLUMNS)
    url = postgres.url_of(password="hunter2-wrong")
    settings = Settings(name="refused", folder=str(tmp_path), table=(url, table))

    with watched(settings, spark_session) as job, pytest.raises(JobFailed, match="user and password") as raised:
        job.await_end()

    (failure,) = job.failures()
    assert "DatabaseSink (uid 'table')" in str(raised.value)
    shown = capfd.readouterr()
    stored = "".join(
        file.read_text(errors="replace")
        for file in tmp_path.rglob("*")
        if file.is_file() and "checkpoints" in str(file)
    )
    for text in (
        str(raised.value),
        failure.error,
        shown.out,
        shown.err,
        stored,
        str([str(event) for event in job.events]),
    ):
        assert "hunter2" not in text
