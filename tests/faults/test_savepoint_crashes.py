"""kill -9 at every step of taking a savepoint, stopping with one, and starting from one. Real Spark, workers and drivers.

    taking      the job continues and loses nothing; a folder with _metadata.json is a whole savepoint, any other is none
    stopping    until the record is in the log the job continues; from then on the savepoint is where it continues from
    starting    the next attempt, or driver, begins at the savepoint again
    long after  the job comes back to each savepoint that stands: exactly what comes after it is written once more

Checkpoints are taken on request here, so that what dies at a point dies for the savepoint's sake. Savepoints are read with
pandas and json alone; each must be exactly the state of its positions. The job continues from what each stop has left.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from faults.jobs.tally import SOURCES, Settings, carry_out
from faults.kit import (
    Watched,
    assert_exact,
    assert_written_again_from,
    committed_rows,
    crashes_that_happened,
    driver,
    gateway_of,
    savepoint_and_a_death_right_behind_it,
    watched,
)
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import ConfigurationError
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

#: (what is asked for, where a worker dies then). Each is one attempt: the next is asked of the next one.
WORKER_STEPS = [
    ("savepoint", "slot.table-stored"),
    ("savepoint", "slot.after-ack"),
    ("savepoint", "slot.before-commit"),  # of the checkpoint after it
    ("stop", "slot.table-stored"),
    ("stop", "slot.before-commit"),
]
MORE_WORKER_STEPS = [
    ("savepoint", "source.before-barrier"),
    *(("savepoint", f"slot.{point}") for point in ("aligned", "barrier-forwarded", "snapshot-taken", "before-store")),
    ("savepoint", "slot.before-ack"),
    ("savepoint", "slot.after-commit"),
    ("stop", "source.before-barrier"),
    *(("stop", f"slot.{point}") for point in ("aligned", "barrier-forwarded", "snapshot-taken", "before-store")),
    *(("stop", f"slot.{point}") for point in ("before-ack", "after-ack", "after-commit")),
    *(("drain", f"slot.{point}") for point in ("table-stored", "before-ack", "before-commit")),
]
DRIVER_STEPS = [
    ("savepoint", "driver.tables-stored"),
    ("savepoint", "driver.savepoint-stored"),
    ("stop", "driver.before-log"),
    ("stop", "driver.after-log"),
]
MORE_DRIVER_STEPS = [
    *(("savepoint", f"driver.{point}") for point in ("triggered", "before-metadata", "before-log", "after-log")),
    *(("stop", f"driver.{point}") for point in ("triggered", "before-metadata", "tables-stored", "before-notify")),
    *(("stop", f"driver.{point}") for point in ("notified", "before-finished", "after-finished")),
    *(("drain", f"driver.{point}") for point in ("tables-stored", "before-log", "after-log")),
]
#: Of a start from the savepoint of a stop, one after another.
START_STEPS = ["slot.restoring", "slot.after-commit"]
MORE_START_STEPS = ["slot.restored", "slot.before-commit"]
READINGS_PER_STEP = 70  #: of each source, more than an attempt and the checkpoint in it can read


# -- what stands --------------------------------------------------------------------------------------------------------


def stored_folders(settings: Settings) -> Iterator[tuple[Path, bool]]:
    """Each folder beside the others, and whether it says that it is a savepoint."""
    for folder in sorted(Path(settings.savepoints).glob("savepoint-*")):
        yield folder, (folder / "_metadata.json").exists()


def assert_whole(folder: Path) -> None:
    """Its state is that of its positions, and every file that it names is there. Nothing of Tidegate is asked."""
    metadata = json.loads((folder / "_metadata.json").read_text())
    tables = [table for slot in metadata["slots"] for table in slot["tables"]]
    assert tables
    assert all((folder / table["path"]).stat().st_size == table["size"] for table in tables)
    positions = pd.read_parquet(folder / "sources.parquet")
    expected = {}
    for split, position in zip(positions["split"], positions["position"], strict=True):
        source, of = map(int, split.split("-of-"))
        assert of == SOURCES
        expected[source] = len(range(source, json.loads(position) or 0, SOURCES))
    counts = pd.read_parquet(folder / "keyed" / "of-source" / "count")
    assert dict(zip(counts["key"], counts["value"], strict=True)) == {s: n for s, n in expected.items() if n}


def assert_each_is_whole_or_none(settings: Settings) -> int:
    """How many savepoints stand."""
    whole = 0
    for folder, is_savepoint in stored_folders(settings):
        if is_savepoint:
            assert_whole(folder)
            whole += 1
        else:
            with pytest.raises(ConfigurationError, match="there is no savepoint"):
                tg.Savepoint.load(str(folder))
    return whole


def assert_the_job_comes_back(settings: Settings, spark: SparkSession) -> None:
    """To each savepoint after which it has continued. The job has ended: everything was written, once, before."""
    stand = [folder for folder, is_savepoint in stored_folders(settings) if is_savepoint]
    passed = [folder for folder in stand if json.loads((folder / "_metadata.json").read_text())["stopped"] is None]
    settings = dataclasses.replace(settings, crashes=[], only_while_asked=False, every="50ms")
    for folder in passed:
        before = committed_rows(settings.output)
        with watched(dataclasses.replace(settings, resume=str(folder)), spark) as job:
            assert job.await_end() is JobStatus.FINISHED
        assert_written_again_from(folder, settings, before, committed_rows(settings.output))


# -- workers ------------------------------------------------------------------------------------------------------------


def settings_of(steps: list[tuple[str, str]], tmp_path: Path, backend: str = "hashmap") -> Settings:
    return Settings(
        "savepoints",
        str(tmp_path),
        every="1h",
        readings=READINGS_PER_STEP * (len(steps) + 2),
        rate=20_000.0,
        crashes=[Crash(point) for _, point in steps],
        only_while_asked=True,
        backend=backend,
    )


def ask_on_and_on(job: Watched, steps: list[tuple[str, str]], done: int) -> tuple[int, str | None]:
    """Until the job has stopped, or nothing is left to ask for. How many were asked, and the savepoint of the stop."""
    begun = done
    while done < len(steps):
        job.await_running(attempts=done - begun + 1)
        path = carry_out(job.client, job.settings, steps[done][0])
        done += 1
        assert crashes_that_happened(job.settings) == [point for _, point in steps[:done]]
        if job.client.status.is_terminal:
            assert job.client.status is JobStatus.FINISHED
            return done, path
    return done, None


def go_through(steps: list[tuple[str, str]], settings: Settings, spark: SparkSession) -> Settings:
    """Ask for each; what a stop has left is where the job continues from. Returns the settings to continue with."""
    done = 0
    while done < len(steps):
        with watched(settings, spark) as job:
            done, path = ask_on_and_on(job, steps, done)
            if path is None:
                job.client.cancel()
                job.await_end()
        settings = dataclasses.replace(settings, resume=path or "latest")
    return settings


def test_workers_killed_at_steps_of_savepoints_of_a_stop_and_of_the_start_from_it(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = go_through(WORKER_STEPS, settings_of(WORKER_STEPS, tmp_path), spark_session)
    assert settings.resume not in (None, "latest"), "the last stop has left its savepoint"
    assert assert_each_is_whole_or_none(settings) >= 1

    crashes = [*settings.crashes, *map(Crash, START_STEPS)]
    settings = dataclasses.replace(settings, crashes=crashes, only_while_asked=False, every="50ms")
    with watched(settings, spark_session) as job:
        assert job.await_end() is JobStatus.FINISHED
        assert len(job.failures()) == len(START_STEPS)
    assert_exact(settings)
    assert_the_job_comes_back(settings, spark_session)


def test_a_worker_killed_right_behind_a_savepoint_does_not_take_the_savepoint_with_it(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    """What the sink had staged for the savepoint would be swept away, were no checkpoint after it."""
    settings = settings_of([], tmp_path)
    with watched(settings, spark_session) as job:
        savepoint_and_a_death_right_behind_it(job)

    with watched(dataclasses.replace(settings, resume="latest", every="50ms"), spark_session) as job:
        assert job.await_end() is JobStatus.FINISHED
    assert_exact(settings)
    assert assert_each_is_whole_or_none(settings) == 1
    assert_the_job_comes_back(settings, spark_session)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_workers_killed_at_all_steps(backend: str, tmp_path: Path, spark_session: SparkSession) -> None:
    steps = [*WORKER_STEPS, *MORE_WORKER_STEPS]
    settings = go_through(steps, settings_of(steps, tmp_path, backend), spark_session)
    assert assert_each_is_whole_or_none(settings) >= 1

    crashes = [*settings.crashes, *map(Crash, [*START_STEPS, *MORE_START_STEPS])]
    settings = dataclasses.replace(settings, crashes=crashes, only_while_asked=False, every="50ms")
    with watched(settings, spark_session) as job:
        assert job.await_end() is JobStatus.FINISHED
    assert_exact(settings)
    assert crashes_that_happened(settings) == [crash.point for crash in crashes]
    assert_the_job_comes_back(settings, spark_session)


# -- drivers ------------------------------------------------------------------------------------------------------------


def drive_through(steps: list[tuple[str, str]], settings: Settings) -> Settings:
    """A driver for each step, which dies there; then one that does what is left of a stop."""
    for number, (what, _) in enumerate(steps):
        with driver(dataclasses.replace(settings, ask=what)) as running:
            assert running.await_death(120.0) == -9, running.story()
        assert len(crashes_that_happened(settings)) == number + 1
        settings = dataclasses.replace(settings, resume="latest")
        stop = stop_that_stands(settings)
        if stop is not None:
            with driver(settings) as running:  # it commits what the savepoint holds, and nothing else
                assert running.await_death(120.0) == 0, running.story()
                assert running.await_end() in ("FINISHED", "JobFolderInUse")
                assert not running.count("completed")
            settings = dataclasses.replace(settings, resume=stop)
    return settings


def stop_that_stands(settings: Settings) -> str | None:
    """What the job's log says, read as text: where the savepoint of a stop is that nobody has gone on from."""
    newest = max((Path(settings.folder) / "checkpoints" / settings.name / "log").glob("*.json"))
    record = json.loads(newest.read_text())["record"]
    ended = record["stopping"] or record["kind"] == "finished"
    return record["latest"]["metadata_path"] if ended else None


def test_drivers_killed_at_steps_of_savepoints_of_a_stop_and_of_the_start_from_it(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = dataclasses.replace(settings_of(DRIVER_STEPS, tmp_path), gateway=gateway_of(spark_session))
    settings = drive_through(DRIVER_STEPS, settings)
    assert assert_each_is_whole_or_none(settings) == 2, "savepoint-stored and after-log"

    settings = dataclasses.replace(
        settings, crashes=[*settings.crashes, Crash("driver.generation-taken")], only_while_asked=False, every="50ms"
    )
    with driver(settings) as running:
        assert running.await_death(120.0) == -9, running.story()
    with driver(dataclasses.replace(settings, resume="latest")) as running:
        assert running.await_end() == "FINISHED", running.story()
    assert_exact(settings)
    assert_the_job_comes_back(settings, spark_session)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drivers_killed_at_all_steps(tmp_path: Path, spark_session: SparkSession) -> None:
    steps = [*DRIVER_STEPS, *MORE_DRIVER_STEPS]
    settings = dataclasses.replace(settings_of(steps, tmp_path), gateway=gateway_of(spark_session))
    settings = drive_through(steps, settings)
    assert assert_each_is_whole_or_none(settings) >= 3

    with driver(dataclasses.replace(settings, crashes=[], every="50ms")) as running:
        assert running.await_end() == "FINISHED", running.story()
    assert_exact(settings)
    assert_the_job_comes_back(settings, spark_session)
