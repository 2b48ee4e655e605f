"""`tidegate history`: what is read from a job's folder is true, and of use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from execution_kit import start_job

from tidegate.cli.history import MAX_RECORDS
from tidegate.cli.main import main
from tidegate.coordinator.observing import JobStatus
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.checkpoints import load_checkpoint, resolve
from tidegate.storage.log import CheckpointPointer, JobLog
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store

Captured = pytest.CaptureFixture[str]


def history(capsys: Captured, *arguments: str) -> Any:
    assert main(["history", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_savepoint_of_a_stop_is_named_by_a_path_that_a_next_run_can_resume_from(
    tmp_path: Path, capsys: Captured
) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    savepoint = job.client.stop(f"file://{tmp_path}/elsewhere")
    job.close()
    storage = f"file://{tmp_path}/storage"

    (retained,) = history(capsys, storage, "job")["retained"]

    assert retained["path"] == f"{savepoint}/_metadata.json"
    store = reaching_anywhere(open_store(storage))
    assert load_checkpoint(store, resolve(store, JobPaths("job"), retained["path"])).job == "job"


def pointer(checkpoint: int) -> CheckpointPointer:
    return CheckpointPointer(
        checkpoint, f"job/chk-{checkpoint}/g1-a1/_metadata.json", "00", 10, 1, 1, float(checkpoint)
    )


def test_the_start_of_a_run_is_when_its_driver_took_the_job_however_long_ago(capsys: Captured) -> None:
    storage = "memory://long-history"
    log = JobLog(open_store(storage), JobPaths("job"))
    log.take_generation("host:1", now=1.0)
    log.append(log.canceled(now=2.0))
    log = JobLog(open_store(storage), JobPaths("job"))
    log.take_generation("host:2", now=1000.0)
    for checkpoint in range(1, MAX_RECORDS + 50):
        new = pointer(checkpoint)
        log.append(log.completed(new, [new], now=1000.0 + checkpoint))

    (run,) = history(capsys, storage, "job")["runs"]

    assert (run["generation"], run["driver"]) == (2, "host:2")
    assert run["started"] == 1_000_000
    assert run["last-written"] == 1_000_000 + (MAX_RECORDS + 49) * 1000


def test_why_a_job_was_ended_is_shown_with_its_run(tmp_path: Path, capsys: Captured) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    job.client.cancel("the month is over")
    assert job.ended is JobStatus.CANCELED
    job.close()
    storage = str(tmp_path / "storage")

    (run,) = history(capsys, storage, "job")["runs"]
    assert (run["state"], run["reason"]) == ("CANCELED", "the month is over")
    assert main(["history", storage, "job"]) == 0
    assert "the month is over" in capsys.readouterr().out


@pytest.mark.parametrize("job", [[], ["job"]], ids=["all", "one"])
def test_a_folder_that_is_not_there_is_an_error(job: list[str], tmp_path: Path, capsys: Captured) -> None:
    assert main(["history", f"{tmp_path}/nowhere", *job]) == 3

    out, err = capsys.readouterr()
    assert (out, err) == ("", f"error: there is no folder {tmp_path}/nowhere\n")
