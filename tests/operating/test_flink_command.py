"""The unmodified `flink` command lists a job, checkpoints it, takes and disposes of a savepoint, stops it, cancels it."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import fetch
from operating.driver import Driver, assert_exact, rows_in
from operating.flink_command import Flink
from services import had

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def home() -> Path:
    """Of Flink's own programs."""
    found: Path = had("Flink's command", fetch.NotFetched, lambda: fetch.folder_of("flink"))
    return found / "pyflink"


@pytest.mark.timeout(600)
def test_flinks_own_command_operates_a_job(home: Path, tmp_path: Path) -> None:
    operated(home, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_flinks_own_command_gives_the_token_and_cancels_a_job_that_goes_on_from_its_savepoint(
    home: Path, tmp_path: Path
) -> None:
    savepoint, stopped_with = operated(home, tmp_path)

    with Driver(tmp_path, "-D", "rest.port=0", "-D", "tidegate.rest.token=s3cret", "--resume", savepoint) as driver:
        entry = driver.entry()
        address = entry.url.removeprefix("http://")
        assert "s3cret" not in driver.log.read_text()
        refused = Flink(home, tmp_path)("list", "-m", address)
        assert "a token is needed" in refused.stdout + refused.stderr
        driver.until("more has come out", lambda: len(rows_in(tmp_path)) > stopped_with)
        done = Flink(home, tmp_path, "s3cret").ok("cancel", "-m", address, entry.id)
        assert f"Cancelled job {entry.id}" in done
        assert driver.end() == 0
    assert assert_exact(tmp_path, at_least=stopped_with + 1) > stopped_with


def operated(home: Path, tmp_path: Path) -> tuple[str, int]:
    """A run that flink stops with a savepoint: where that is, and how many rows came out."""
    with Driver(tmp_path, "-D", "rest.port=0") as driver:
        entry = driver.entry()
        address = entry.url.removeprefix("http://")
        flink = Flink(home, tmp_path)

        elsewhere = f"file://{tmp_path}/elsewhere"
        with ThreadPoolExecutor() as at_once:  # each starts a JVM
            listing = at_once.submit(flink.ok, "list", "-m", address)
            checkpoint = at_once.submit(flink.ok, "checkpoint", "-m", address, entry.id)
            refusal = at_once.submit(flink, "savepoint", "-m", address, entry.id, elsewhere)
        assert re.search(rf"{entry.id} : endless \(RUNNING\)", listing.result())
        assert re.search(rf"Checkpoint \d+ for job {entry.id} completed", checkpoint.result())
        refused = refusal.result()
        assert refused.returncode == 1
        assert "only inside the job's own folders" in refused.stdout + refused.stderr
        assert not (tmp_path / "elsewhere").exists()

        done = flink.ok("savepoint", "-m", address, entry.id)
        found = re.search(r"Savepoint completed. Path: file://(\S+)", done)
        assert found is not None, done
        savepoint = Path(found[1])
        assert (savepoint / "_metadata.json").exists()
        assert savepoint.is_relative_to(tmp_path / "storage" / "endless" / "savepoints")

        done = flink.ok("savepoint", "-m", address, "-d", f"file://{savepoint}")
        assert "disposed" in done
        assert not (savepoint / "_metadata.json").exists()

        done = flink.ok("stop", "-m", address, "-p", f"file://{tmp_path}/storage/mine", entry.id)
        found = re.search(r"Savepoint completed. Path: (file://\S+/storage/mine/\S+)", done)
        assert found is not None, done
        assert driver.end() == 0, "the driver waits until the result is fetched, then ends"
    return found[1], assert_exact(tmp_path, at_least=1000)
