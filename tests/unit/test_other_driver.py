"""Who runs the job that is to be started: what is refused, with which words and which exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_kit import checkpoint, client_of, planned_sums

from tidegate.cli.main import main
from tidegate.cli.run import Jobs, exit_code_of
from tidegate.coordinator.observing import JobView
from tidegate.errors import JobFolderInUse, JobRunning, Superseded
from tidegate.other_driver import other_driver, refusal, where_it_goes_on
from tidegate.rest import registry
from tidegate.rest.registry import Entry
from tidegate.storage.log import JobLog, LogRecord
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store

HERE = socket.gethostname()
PROGRAM = """
import sys
import tidegate as tg

env = tg.StreamEnvironment("clicks")
env.checkpointing(every="1s", storage=sys.argv[1])
env.from_sequence(1, 3, uid="numbers").collect(uid="all")
env.execute()
"""


@pytest.fixture(autouse=True)
def own_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_REGISTRY", str(tmp_path / "registry"))


@pytest.fixture(scope="module")
def other_process() -> int:
    """Of a process of this machine that is alive and is not this one."""
    return os.getppid()


@pytest.fixture(scope="module")
def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as process:
        process.wait()
    return process.pid


def written_by(driver: str, storage: str = "memory://drivers", now: float | None = None) -> JobLog:
    log = JobLog(open_store(storage), JobPaths("clicks"))
    log.take_generation(driver, now=time.time() if now is None else now)
    return log


def newest(driver: str, now: float | None = None) -> LogRecord:
    last = written_by(driver, f"memory://{driver}-{time.monotonic_ns()}", now).last
    assert last is not None
    return last


IN_USE = JobFolderInUse(
    "the job 'clicks' has already run. Continue it with resume=\"latest\"", uri="file:///data/clicks", job="clicks"
)


def test_a_job_that_runs_is_refused_with_where_it_runs_and_without_advice_to_take_it_over(other_process: int) -> None:
    registry.add(Entry("1" * 32, "clicks", "http://localhost:8082", other_process, HERE, 0.0))
    error = refusal(IN_USE, other_driver(newest(f"{HERE}:{other_process}")))

    assert isinstance(error, JobRunning)
    assert f"runs already: process {other_process} on this machine, at http://localhost:8082." in str(error)
    assert "tidegate status clicks" in str(error)
    assert "resume" not in str(error)
    assert exit_code_of(error) == 5


def test_a_job_whose_driver_is_dead_may_be_continued(dead_process: int) -> None:
    assert refusal(IN_USE, other_driver(newest(f"{HERE}:{dead_process}"))) is IN_USE
    assert exit_code_of(IN_USE) == 2


def test_a_process_that_began_after_the_log_was_written_is_another_one(other_process: int) -> None:
    found = other_driver(newest(f"{HERE}:{other_process}", now=1000.0))

    assert found is not None
    assert found.is_alive is False, "the number was given out again, or the container was started anew"


@pytest.mark.parametrize("runs_here", [True, False])
def test_this_very_process_runs_the_job_only_where_it_knows_of_it(runs_here: bool) -> None:
    found = other_driver(newest(f"{HERE}:{os.getpid()}"), runs_here)

    assert found is not None
    assert found.is_alive is runs_here


def test_of_a_driver_on_another_machine_both_is_said() -> None:
    error = refusal(IN_USE, other_driver(newest("elsewhere:17")))

    assert not isinstance(error, JobRunning)
    assert "may be running: its log has no end" in str(error)
    assert "process 17 on elsewhere" in str(error)
    assert 'If that driver is dead, continue with resume="latest"' in str(error)


@pytest.mark.parametrize("end", ["canceled", "finished"])
def test_a_log_with_an_end_has_no_driver(end: str, other_process: int) -> None:
    log = written_by(f"{HERE}:{other_process}", f"memory://{end}")

    assert other_driver(log.append(getattr(log, end)(now=2.0))) is None
    assert other_driver(None) is None


@pytest.mark.parametrize("command", [[], ["-m", "tidegate.cli.main", "run", "--plain"]], ids=["python", "tidegate run"])
def test_a_second_start_has_an_exit_code_of_its_own(command: list[str], tmp_path: Path, other_process: int) -> None:
    (tmp_path / "job.py").write_text(PROGRAM)
    storage = f"file://{tmp_path}/storage"
    written_by(f"{HERE}:{other_process}", storage)
    ran = subprocess.run(
        [sys.executable, *command, str(tmp_path / "job.py"), storage], capture_output=True, text=True, timeout=120
    )

    assert ran.returncode == 5, ran.stderr
    assert ran.stderr.partition("error: ")[2] == (
        f"the job 'clicks' in {storage}/clicks/ runs already: process {other_process} on this machine. Nothing was started "
        "here. tidegate status clicks shows it, tidegate stop clicks ends it with a savepoint; or give this run another job "
        f"name or storage.\n  at {tmp_path}/job.py:8\n      env.execute()\n"
    )


def test_a_finished_job_is_not_advised_to_be_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = written_by("host:1", f"file://{tmp_path}/storage")
    log.append(log.finished(now=2.0))
    (tmp_path / "job.py").write_text(PROGRAM)

    assert main(["run", "--plain", str(tmp_path / "job.py"), f"file://{tmp_path}/storage"]) == 2
    said = capsys.readouterr().err
    assert "It is FINISHED: name a checkpoint to start from again" in said
    assert "run --resume" not in said


# -- superseded ----------------------------------------------------------------------------------------------------------


def superseded(driver: str) -> Superseded:
    return Superseded(f"another driver ({driver}) has taken over the job", driver=driver, written_at=time.time())


def test_a_superseded_driver_is_told_where_the_job_goes_on_and_not_to_take_it_back(
    other_process: int, capsys: pytest.CaptureFixture[str]
) -> None:
    registry.add(Entry("1" * 32, "clicks", "http://localhost:8082", other_process, HERE, 0.0))
    view = JobView()
    view.publish(checkpoint(576, path="file:///data/chk-576"))
    jobs = Jobs()
    jobs.launched(client_of(view), planned_sums())
    error = superseded(f"{HERE}:{other_process}")

    jobs.say_how_to_continue(error)

    said = capsys.readouterr().err
    assert (
        said == "the job continues at http://localhost:8082. Do not start this one again: it would take the job back\n"
    )
    assert exit_code_of(error) == 4


def test_where_the_newer_driver_is_not_known_no_address_is_made_up() -> None:
    assert where_it_goes_on(superseded("elsewhere:17")).startswith("the job continues there.")


def test_a_superseded_plain_program_ends_with_that_code_too(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        "from tidegate.errors import Superseded\n"
        "from tidegate.api.uncaught import say_errors_in_words\n"
        "say_errors_in_words()\n"
        "raise Superseded('another driver has taken over', driver='elsewhere:17', written_at=1.0)\n"
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)

    assert ran.returncode == 4
    assert ran.stderr.startswith("error: another driver has taken over\n")
    assert "Do not start this one again" in ran.stderr
