"""SIGTERM ends a job with a checkpoint or a savepoint, as set, within its time. The job's driver is real; its slots follow a
script."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from execution_kit import HoldAt, RunningJob, start_job

import tidegate as tg
from tidegate import terminating
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import ConfigurationError
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import JobLog, LogKind, LogRecord
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store
from tidegate.terminating import TermHandler, cancel_live, end_jobs, live_jobs, watch, way_of
from tidegate.wire.control import Acknowledge, Ready

KIT = Path(__file__).parent


@pytest.fixture(autouse=True)
def handler_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(terminating.VARIABLE, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def running(folder: Path, **settings: Any) -> RunningJob:
    job = start_job(folder, **settings)
    watch(job.client, job.job.config)
    job.until(JobStatus.RUNNING)
    return job


def newest_record(folder: Path) -> LogRecord:
    newest = JobLog(open_store(f"file://{folder}/storage"), JobPaths("job")).read_newest()
    assert newest is not None
    return newest


def ended_by_sigterm(job: RunningJob) -> str:
    """What is said of the job."""
    (ended,) = end_jobs(live_jobs())
    assert job.ended.is_terminal
    job.thread.join()
    return ended.sentence(lambda place: f"--resume {place}")


def test_the_default_is_a_checkpoint_from_which_a_next_run_continues(tmp_path: Path) -> None:
    job = running(tmp_path)
    before = job.client.checkpoint_now()

    said = ended_by_sigterm(job)

    assert said == f"job: stopped by SIGTERM; checkpoint {before + 1} is kept: --resume latest continues from it"
    newest = newest_record(tmp_path)
    assert (newest.kind, newest.reason) == (
        LogKind.CANCELED,
        f"stopped by SIGTERM; checkpoint {before + 1} is kept",
    )
    assert newest.latest is not None
    assert newest.latest.id == before + 1
    assert job.client.view.status_detail == newest.reason
    assert live_jobs() == [], "it is not one to be ended any more"


def test_a_job_is_canceled_by_its_name_for_a_caller_who_was_interrupted_before_it_waited(tmp_path: Path) -> None:
    job = running(tmp_path)

    cancel_live("another", job.job.config.storage)
    assert job.client.checkpoint_now() >= 1, "another job's name cancels nothing"
    cancel_live("job", job.job.config.storage)

    assert job.client.wait() is JobStatus.CANCELED
    job.thread.join()
    assert live_jobs() == []


def test_the_checkpoint_stays_also_where_a_cancel_deletes_them(tmp_path: Path) -> None:
    ended_by_sigterm(running(tmp_path, retention="delete"))

    latest = newest_record(tmp_path).latest
    assert latest is not None
    assert load_checkpoint(open_store(f"file://{tmp_path}/storage"), latest).checkpoint == latest.id


def test_with_savepoint_it_stops_with_one(tmp_path: Path) -> None:
    said = ended_by_sigterm(running(tmp_path, on_term="savepoint"))

    newest = newest_record(tmp_path)
    assert (newest.kind, newest.reason) == (LogKind.FINISHED, "stopped by SIGTERM, with a savepoint")
    assert newest.latest is not None
    place = newest.latest.metadata_path.removesuffix("/_metadata.json")
    assert place.startswith(f"file://{tmp_path}/savepoints/savepoint-job-")
    assert said == f"job: stopped by SIGTERM; a savepoint is stored: --resume {place} continues from it"


def test_a_savepoint_without_a_place_goes_into_the_jobs_own_folder(tmp_path: Path) -> None:
    ended_by_sigterm(running(tmp_path, on_term="savepoint", savepoint_dir=None))

    latest = newest_record(tmp_path).latest
    assert latest is not None
    assert latest.metadata_path.startswith(f"file://{tmp_path}/storage/job/savepoints/savepoint-job-")
    assert load_checkpoint(reaching_anywhere(open_store(f"file://{tmp_path}/storage")), latest).savepoint


def test_with_cancel_it_ends_without_another_checkpoint(tmp_path: Path) -> None:
    job = running(tmp_path, on_term="cancel")
    kept = job.client.checkpoint_now()

    assert (
        ended_by_sigterm(job)
        == f"job: stopped by SIGTERM; checkpoint {kept} is kept: --resume latest continues from it"
    )
    assert len(job.client.checkpoints()) == 1


@pytest.mark.parametrize("how", ["checkpoint", "savepoint"])
def test_what_is_not_done_in_time_is_given_up_and_the_job_ends_all_the_same(how: str, tmp_path: Path) -> None:
    job = running(tmp_path, on_term=how, on_term_timeout_s=1.0)
    kept = job.client.checkpoint_now()
    job.cluster.holds |= {Acknowledge}

    said = ended_by_sigterm(job)

    assert said.startswith(f"job: stopped by SIGTERM; no new {how} was taken (")
    assert said.endswith(f"); checkpoint {kept} is kept: --resume latest continues from it")
    assert newest_record(tmp_path).kind is LogKind.CANCELED


def test_a_savepoint_that_is_stored_a_little_too_late_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job has stopped by it: whoever was told to continue from "latest" would find it at its end."""
    job = running(tmp_path, on_term="savepoint", on_term_timeout_s=1.0)
    job.client.checkpoint_now()
    job.job.recorder.crash_points = held = HoldAt("driver.before-log")
    cancel = job.client.cancel

    def late(*arguments: Any, **more: Any) -> None:
        assert held.is_there.is_set()
        cancel(*arguments, **more)
        held.may_continue.set()

    monkeypatch.setattr(job.client, "cancel", late)

    said = ended_by_sigterm(job)

    (stored,) = (path.parent for path in (tmp_path / "savepoints").rglob("_metadata.json"))
    assert f"a savepoint is stored: --resume file://{stored} continues from it" in said.replace(
        "; it did not end in time", ""
    )


def test_a_job_that_does_not_run_yet_is_canceled(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    watch(job.client, job.job.config)
    job.cluster.holds |= {Ready}
    job.cluster.wait_until_held(Ready)

    assert ended_by_sigterm(job).endswith("only a running job takes checkpoints); no checkpoint is kept")
    assert job.ended is JobStatus.CANCELED


def test_a_job_that_has_ended_before_it_is_watched_is_not_one_to_be_ended(tmp_path: Path) -> None:
    job = start_job(tmp_path)
    job.until(JobStatus.RUNNING)
    job.close()

    watch(job.client, job.job.config)

    assert live_jobs() == []


# -- the setting ---------------------------------------------------------------------------------------------------------


def test_the_program_says_it_and_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    env = tg.StreamEnvironment("job")
    assert way_of(env.config()) == "checkpoint"
    monkeypatch.setenv(terminating.VARIABLE, "savepoint")
    assert way_of(env.config()) == "savepoint"
    env.on_term("cancel", timeout="5s")
    assert (way_of(env.config()), env.config().on_term_timeout_s) == ("cancel", 5.0)


def test_what_it_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match='on_term \'perhaps\' is unknown: use "checkpoint", "savepoint" or'):
        tg.StreamEnvironment("job").on_term("perhaps")
    monkeypatch.setenv(terminating.VARIABLE, "perhaps")
    env = tg.StreamEnvironment("job")
    env.from_sequence(1, 2, uid="numbers").print(uid="out")
    with pytest.raises(
        ConfigurationError, match="TIDEGATE_ON_TERM: on_term 'perhaps' is unknown: use checkpoint, savepoint or cancel"
    ):
        env.execute()


# -- the signal ----------------------------------------------------------------------------------------------------------


def test_the_signal_ends_the_program_where_it_is_and_says_what_it_did(tmp_path: Path) -> None:
    said: list[str] = []
    job = running(tmp_path)
    signal.signal(signal.SIGTERM, TermHandler(lambda place: f'resume="{place}"', said.append))

    with pytest.raises(SystemExit) as ended:
        signal.raise_signal(signal.SIGTERM)

    assert ended.value.code == 143
    assert said == [
        "job: SIGTERM: it ends with a checkpoint, within 25 s",
        'job: stopped by SIGTERM; checkpoint 1 is kept: resume="latest" continues from it',
    ]
    assert job.ended is JobStatus.CANCELED


def test_a_program_with_a_handler_of_its_own_keeps_it() -> None:
    own = lambda number, frame: None  # noqa: E731
    signal.signal(signal.SIGTERM, own)
    terminating.handle_sigterm()
    assert signal.getsignal(signal.SIGTERM) is own


PROGRAM = """
import sys
from pathlib import Path

sys.path.insert(0, {kit!r})
from execution_kit import start_job
from tidegate import terminating
from tidegate.coordinator.observing import JobStatus
from tidegate.wire.control import Acknowledge

terminating.handle_sigterm()
{begin}
sys.stdout.write("ready\\n")
sys.stdout.flush()
{wait}
"""
BEGIN = """
job = start_job(Path({folder!r}))
terminating.watch(job.client, job.job.config)
job.until(JobStatus.RUNNING)
"""


def program(folder: Path, begin: str, wait: str) -> subprocess.Popen[str]:
    """Up to where it is ready."""
    text = PROGRAM.format(kit=str(KIT), begin=begin.format(folder=str(folder)), wait=wait)
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    begin = BEGIN + "job.cluster.holds |= {{Acknowledge}}\n"
    with program(tmp_path, begin, "job.client.wait()") as process:
        assert process.stderr is not None
        process.terminate()
        assert process.stderr.readline() == "job: SIGTERM: it ends with a checkpoint, within 25 s\n"
        process.terminate()
        assert process.wait(10) == 143
        assert process.stderr.read() == "SIGTERM again: the process ends at once\n"

    assert newest_record(tmp_path).kind is LogKind.GENERATION, "nothing was written any more"


def test_a_program_without_a_running_job_ends_as_python_ends_it(tmp_path: Path) -> None:
    with program(tmp_path, "", "import threading; threading.Event().wait()") as process:
        process.terminate()
        assert process.wait(60) == -signal.SIGTERM
        assert process.stderr is not None
        assert process.stderr.read() == ""
