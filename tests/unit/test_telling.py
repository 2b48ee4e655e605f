"""What a plain Python program is told of its jobs, and how errors look that it does not catch."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_kit import client_of, failed, planned_sums, reported, started, status
from execution_kit import ScriptedCluster, job_run

import tidegate as tg
from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.coordinator.execution import JobExecution
from tidegate.coordinator.observing import JobStatus, JobView
from tidegate.ids import SlotId
from tidegate.launch import warn_of_late_results
from tidegate.ports import NoCrashPoints
from tidegate.storage.log import JobLog
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import open_store
from tidegate.telling import programs as telling
from tidegate.telling.failures import describe_error
from tidegate.telling.plain import PlainDisplay
from tidegate.testing.runner import run_in_process

CONFIG = JobConfig(interval_s=10.0, storage="file:///data")


def lived(view: JobView) -> None:
    teller = telling.JobTeller()
    teller.launching(planned_sums(), CONFIG)
    teller.launched(client_of(view), planned_sums())
    view.publish(status(JobStatus.RUNNING))
    view.publish(failed("ZeroDivisionError: division by zero, at job.py:7", restart_in_s=1.0))
    view.publish(status(JobStatus.FINISHED))


@pytest.fixture
def no_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a program that has not set it up; pytest has."""
    monkeypatch.setattr(telling.log, "hasHandlers", lambda: False)


def test_a_plain_program_is_told_on_standard_error_what_happens(
    no_logging: None, capfd: pytest.CaptureFixture[str]
) -> None:
    lived(JobView())

    said = capfd.readouterr()
    assert said.out == "", "it belongs to the job"
    lines = [line.partition(" sums: ")[2] for line in said.err.splitlines()]
    assert lines[0] == "starting Spark for 4 slots on this machine"
    assert lines[1] == "RUNNING"
    assert "ZeroDivisionError: division by zero, at job.py:7" in lines[2]
    assert lines[3] == "RESTARTING in 1.0 s"
    assert lines[4] == "FINISHED"


def test_a_restart_without_a_pause_is_at_once() -> None:
    view, lines = JobView(), []
    PlainDisplay(lines.append).launched(client_of(view), planned_sums())
    view.publish(failed("ValueError: bad", restart_in_s=0.0))

    assert lines[-1].endswith("sums: RESTARTING at once\n")


def test_the_line_of_an_error_stands_below_its_place_and_above_what_is_said_then(tmp_path: Path) -> None:
    program = tmp_path / "job.py"
    program.write_text("def double(n):\n    return n / 0\n")
    error = tg.JobFailed(f"ValueError: bad\n  in map, at {program}:2\n  Correct it.", user_line=f"{program}:2")

    assert describe_error(error).splitlines() == [
        "the job failed: ValueError: bad", f"  in map, at {program}:2", "      return n / 0", "  Correct it.",
    ]  # fmt: skip


def test_where_logging_is_set_up_it_is_told_there(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO):
        lived(JobView())

    assert capfd.readouterr().err == ""
    told = [(record.name, record.levelname) for record in caplog.records]
    assert told == [("tidegate.jobs", level) for level in ("INFO", "INFO", "ERROR", "WARNING", "INFO")]


def test_a_job_that_fails_before_its_first_attempt_says_why_at_once_and_whoever_waits_hears_it(
    no_logging: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The folder was free when the job was launched, and another driver has taken it since."""
    job = job_run(tmp_path)
    JobLog(open_store(f"file://{tmp_path}/storage"), JobPaths("job")).take_generation("quicker:1", now=0.0)
    execution = JobExecution(job, ScriptedCluster(job.plan), NoCrashPoints(), lambda message: None)
    client = JobClient("job", execution, job.view, None)  # type: ignore[arg-type]
    teller = telling.JobTeller()
    teller.launched(client, job.plan)

    execution.run()

    assert "job: FAILED (the job 'job' has already run in" in capfd.readouterr().err
    with pytest.raises(tg.StorageError, match="has already run in"):
        client.wait_until_running()


@pytest.mark.parametrize(("value", "quiet"), [(None, False), ("0", False), ("", False), ("1", True)])
def test_the_environment_can_ask_for_quiet(value: str | None, quiet: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(telling.QUIET_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(telling.QUIET_VARIABLE, value)

    assert telling.is_quiet(asked=False) is quiet
    assert telling.is_quiet(asked=True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("env.execute()", "the job has no sink"),
        ("env.from_sequence(1, 3).key_by('size')", "key_by: the stream has no field 'size'"),
        ("env.checkpointing(every='1s')", "checkpoints need a storage"),
        ("tg.StreamEnvironment('a job')", "'a job'"),
    ],
    ids=["at the start", "while it is built", "a setting", "a name"],
)
def test_a_refusal_is_a_sentence_with_the_programs_line_and_none_of_our_frames(
    line: str, words: str, tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(
        f"import tidegate as tg\nenv = tg.StreamEnvironment('job')\nenv.from_sequence(1, 3, uid='numbers')\n{line}\n"
    )
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)

    assert ran.returncode == 1
    assert ran.stderr.startswith("error: ")
    assert words in ran.stderr
    assert f"at {program}:4" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "tidegate/" not in ran.stderr


PROGRAM = """
import tidegate as tg

env = tg.StreamEnvironment("job")
env.checkpointing(every="1s", storage={storage!r})
env.from_sequence(1, 3, uid="numbers").collect(uid="all")
env.execute(resume={resume!r})
"""


@pytest.mark.parametrize(
    ("storage", "resume", "words"),
    [
        ("file://{used}", None, "the job 'job' has already run in file://"),
        ("file://{used}", "latest", "there is nothing to resume. Name a checkpoint to start from again"),
        ("file://{used}", "file://{used}/job/chk-77", "chk-77"),
        ("file:///proc/nowhere", None, "/proc/nowhere"),
    ],
    ids=["in use", "finished", "no such checkpoint", "cannot be written"],
)
def test_what_needs_no_spark_is_said_before_spark_is_started(
    storage: str, resume: str | None, words: str, tmp_path: Path
) -> None:
    used = tmp_path / "used"
    env = tg.StreamEnvironment("job")
    env.checkpointing(every="1s", storage=f"file://{used}")
    env.from_sequence(1, 3, uid="numbers").collect(uid="all")
    run_in_process(env)
    program = tmp_path / "job.py"
    program.write_text(PROGRAM.format(storage=storage.format(used=used), resume=resume and resume.format(used=used)))

    no_java = {**os.environ, "JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120, env=no_java)

    assert ran.returncode == 1
    assert ran.stderr.startswith("error: ")
    assert words in ran.stderr
    assert f"at {program}:" in ran.stderr


def test_an_interrupt_while_a_job_is_waited_for_is_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    class Interrupted:
        def wait(self, timeout: float | None = None) -> bool:
            raise KeyboardInterrupt

    execution = SimpleNamespace(end_event=Interrupted(), plan=planned_sums())
    client = JobClient("sums", execution, JobView(), None)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt) as caught:
        client.wait()
    telling.say_error(KeyboardInterrupt, caught.value, caught.tb)

    assert capfd.readouterr().err == f"{telling.INTERRUPTED}\n"


def test_other_errors_are_shown_as_python_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    telling.say_error(ZeroDivisionError, caught.value, caught.tb)

    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_job_without_checkpoints_is_told_at_its_start_what_that_means(
    no_logging: None, capfd: pytest.CaptureFixture[str]
) -> None:
    telling.JobTeller().launching(planned_sums(), JobConfig())

    said = [line.partition(" sums: ")[2] for line in capfd.readouterr().err.splitlines()]
    assert said == [
        "starting Spark for 4 slots on this machine",
        "no checkpoints are taken: what the job has read when it fails is gone (at-most-once). "
        'env.checkpointing(every="10s", storage="file:///...") keeps it',
    ]


def ended(keep: str, *more: object) -> list[str]:
    """What is said at the end of a job in which each operator has kept or passed on its records."""
    view, lines = JobView(), []
    display = PlainDisplay(lines.append)
    display.launched(client_of(view), planned_sums())
    counts = {"numbers": (0, 100), "numbers~map double": (100, 100), "sums": (100, 100), "printed": (100, 0)}
    after = False
    for uid, (taken, _) in list(counts.items()):
        if after:
            counts[uid] = (0, 0)
        elif uid == keep:
            counts[uid], after = (taken, 0), True
    for event in more:
        view.publish(event)  # type: ignore[arg-type]
    view.publish(reported(SlotId(0, 0), counts))
    view.publish(status(JobStatus.FINISHED))
    return [line.partition(" sums: ")[2] for line in lines]


def test_a_job_from_which_nothing_came_says_where_its_records_have_stayed() -> None:
    assert ended("numbers~map double") == ["no record has reached a sink. map double: 100 in, 0 out\n", "FINISHED\n"]
    assert ended("sums") == ["no record has reached a sink. sum 1 (uid sums): 100 in, 0 out\n", "FINISHED\n"]


def test_a_job_from_which_something_came_or_that_read_nothing_or_was_restarted_says_nothing_of_it() -> None:
    assert ended("none of them") == ["FINISHED\n"]
    assert ended("numbers") == ["FINISHED\n"]
    assert ended("sums", started(1), started(2))[-1:] == ["FINISHED\n"]
    assert not any("no record" in line for line in ended("sums", started(1), started(2)))


@pytest.mark.parametrize(
    ("ends", "every_s", "is_told"),
    [(False, None, True), (False, 1.0, False), (True, None, False)],
    ids=["neither an end nor checkpoints", "checkpoints", "an end"],
)
def test_a_job_whose_collected_results_would_come_only_at_its_end_is_told_so(
    ends: bool, every_s: float | None, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    env = tg.StreamEnvironment("job")
    source = tg.DataGenerator(lambda n: n, rate=10.0, count=10 if ends else None)
    env.from_source(source, uid="numbers").collect(uid="all")

    warn_of_late_results(env._graph, JobConfig(interval_s=every_s, storage="memory"))

    assert ("results of collect() come with checkpoints, and this job takes none" in caplog.text) == is_told
