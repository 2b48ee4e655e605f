"""Each pair of outsides under real Spark and real kills: every input comes out once, and nothing before its checkpoint.

| | Kafka to Kafka | to MariaDB | to PostgreSQL | files to Parquet | to a manifest table | to Delta |
| --- | --- | --- | --- | --- | --- | --- |
| worker killed between prepare and commit, twice in a row | W | W | W | W | W | W |
| worker killed after the commit, before it could say so | W | W | W | W | W | W |
| worker stopped before the commit; wakes up after its successors | W | W | W | W | W | W |
| driver killed between prepare and commit, twice in a row | D | D | D | D | D | D |
| the service killed between prepare and commit, twice in a row | W, D | W, D | W, D | | | |
| the broker of the source killed with it | as above | W | W | | | |
| an outage longer than the service's transaction timeout | W, D | W, D | W, D | | | |
| worker killed right after a savepoint; long after, the job comes back to it | S | S | S | S | S | S |

W, D and S are the tests of this module. `make test` has each pair in one of them; the others are slow. A folder has no service
that could be killed. What came out is read by a read-committed consumer, the servers' own command-line clients and pyarrow; the
answer is computed from the settings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from endtoend.outsides import DatabaseOutlet, FilesInlet, FolderOutlet, Inlet, KafkaInlet, KafkaOutlet, Outlet
from endtoend.sightings import FirstSightings
from faults.jobs.tally import Settings
from faults.kit import (
    assert_exact,
    assert_written_again_from,
    await_that,
    crash_pid,
    crashes_that_happened,
    driver,
    gateway_of,
    is_running,
    savepoint_and_a_death_right_behind_it,
    watched,
)
from matrices import chosen
from tidegate.coordinator.observing import JobStatus
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

Fixtures = Callable[[str], Any]


@dataclass(frozen=True)
class Pair:
    inlet: Inlet
    outlet: Outlet

    def settings(self, **more: Any) -> Settings:
        return Settings(source=self.inlet.words, sink=self.outlet.words, ahead=10, **more)


def kafka_to_kafka(fixture: Fixtures, folder: Path, name: str) -> Pair:
    broker = fixture("broker")
    return Pair(KafkaInlet(broker, name, mortal=False), KafkaOutlet(broker, name))


def kafka_to(database: str) -> Callable[[Fixtures, Path, str], Pair]:
    return lambda fixture, folder, name: Pair(
        KafkaInlet(fixture("broker"), name, mortal=True), DatabaseOutlet(fixture(database))
    )


def files_to(kind: str) -> Callable[[Fixtures, Path, str], Pair]:
    return lambda fixture, folder, name: Pair(FilesInlet(folder / "readings"), FolderOutlet(kind, folder / "rows"))


PAIRS: dict[str, Callable[[Fixtures, Path, str], Pair]] = {
    "Kafka to Kafka": kafka_to_kafka,
    "Kafka to MariaDB": kafka_to("mariadb"),
    "Kafka to PostgreSQL": kafka_to("postgres"),
    "files to Parquet": files_to("parquet"),
    "files to a manifest table": files_to("table"),
    "files to Delta": files_to("delta"),
}


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Pair:
    return PAIRS[request.param](request.getfixturevalue, tmp_path, f"{tmp_path.name}-{os.getpid()}")


def assert_as_it_should_be(pair: Pair, settings: Settings, sightings: FirstSightings) -> None:
    assert crashes_that_happened(settings) == [crash.point for crash in settings.crashes]
    assert_exact(settings, pair.outlet.rows())
    sightings.assert_none_was_early()
    assert not pair.outlet.in_doubt()
    if pair.outlet.secret is not None:
        stored = [file for file in (Path(settings.folder) / "checkpoints").rglob("*") if file.is_file()]
        assert not [file for file in stored if pair.outlet.secret.encode() in file.read_bytes()]


#: Tables are committed by the driver, so workers that die are the lesser question for them.
@pytest.mark.parametrize("pair", chosen({"Kafka to Kafka", "files to Delta"}, PAIRS), indirect=True)
def test_workers_are_stopped_and_killed_around_the_commit_and_the_service_is_away(
    pair: Pair, tmp_path: Path, spark_session: SparkSession
) -> None:
    crashes = [
        Crash("slot.before-commit", nth=2, layer=2),
        Crash("slot.before-commit", layer=2),
        Crash("slot.before-commit", layer=2),
        Crash("slot.after-commit", layer=2),
    ]
    settings = pair.settings(
        name="workers", folder=str(tmp_path), readings=150, crashes=crashes, stops=1, heartbeat_s=2.5
    )

    with (
        pair.outlet.looking() as look,
        FirstSightings(look, settings) as sightings,
        pair.inlet.open(settings),
        watched(settings, spark_session) as job,
    ):
        for number in (2, 3):  # an epoch is prepared, and whoever was to commit it is dead
            await_that(f"crash {number}", lambda number=number: len(crashes_that_happened(settings)) >= number, 120)
            with pair.inlet.away() if number == 3 else contextlib.nullcontext():
                pair.outlet.outage()
        await_that("all crashes", lambda: len(crashes_that_happened(settings)) == len(crashes), 120)
        sleeper = crash_pid(settings)
        assert is_running(sleeper), "it was killed before it could wake up"
        job.await_running(attempts=len(crashes) + 1)
        os.kill(sleeper, signal.SIGCONT)
        await_that("the woken worker ended", lambda: not is_running(sleeper), patience_s=30)
        assert job.await_end() is JobStatus.FINISHED

    assert_as_it_should_be(pair, settings, sightings)


@pytest.mark.parametrize("pair", chosen({"Kafka to PostgreSQL"}, PAIRS), indirect=True)
def test_drivers_are_killed_when_the_checkpoint_counts_and_nothing_is_committed_and_the_service_is_away(
    pair: Pair, tmp_path: Path, spark_session: SparkSession
) -> None:
    crashes = [Crash("driver.after-log", nth=2), Crash("driver.after-log")]
    settings = pair.settings(
        name="drivers", folder=str(tmp_path), readings=90, crashes=crashes, gateway=gateway_of(spark_session)
    )

    with (
        pair.outlet.looking() as look,
        FirstSightings(look, settings) as sightings,
        pair.inlet.open(settings),
    ):
        for resume in (None, "latest"):
            with driver(dataclasses.replace(settings, resume=resume)) as running:
                assert running.await_death(120.0) == -signal.SIGKILL
            waiting = pair.outlet.in_doubt()
            assert waiting != [], "nothing was in doubt"
            pair.outlet.outage()
            assert pair.outlet.in_doubt() == waiting
        with driver(dataclasses.replace(settings, resume="latest")) as running:
            assert running.await_end() == "FINISHED"

    assert_as_it_should_be(pair, settings, sightings)


@pytest.mark.parametrize("pair", chosen({"Kafka to MariaDB"}, PAIRS), indirect=True)
def test_a_worker_is_killed_right_behind_a_savepoint_and_long_after_the_job_comes_back_to_it(
    pair: Pair, tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = pair.settings(name="savepoints", folder=str(tmp_path), readings=60, every="1h")

    with pair.inlet.open(settings):
        with watched(settings, spark_session) as job:
            savepoint = savepoint_and_a_death_right_behind_it(job)
        settings = dataclasses.replace(settings, every="100ms")
        with watched(dataclasses.replace(settings, resume="latest"), spark_session) as job:
            assert job.await_end() is JobStatus.FINISHED
        rows = pair.outlet.rows()
        assert_exact(settings, rows)
        pair.outlet.allow_doubles()

        with watched(dataclasses.replace(settings, resume=str(savepoint)), spark_session) as job:
            assert job.await_end() is JobStatus.FINISHED

    assert_written_again_from(savepoint, settings, rows, pair.outlet.rows())
    assert not pair.outlet.in_doubt()


def test_the_table_of_the_docs_has_a_column_for_each_pair() -> None:
    page = Path(__file__).parents[2] / "docs" / "failure-scenarios.md"

    assert f"| | {' | '.join(PAIRS)} |\n" in page.read_text()
