"""`tidegate run` without Spark: arguments, exit codes, what is said of errors."""

from __future__ import annotations

import json
import os
import sys
import threading
import warnings
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest
from cli_kit import checkpoint, client_of, planned_sums, status
from rest_kit import life

from tidegate.cli.json_lines import JsonDisplay
from tidegate.cli.main import _split_at_program, main, make_parser
from tidegate.cli.run import Jobs, exit_code_of
from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.coordinator.job import JobEnded
from tidegate.coordinator.moving import ExecutorsLeaving, ScalingDecided
from tidegate.coordinator.observing import JobStatus, JobView
from tidegate.errors import (
    ConfigurationError,
    GraphError,
    JobFailed,
    JobFolderInUse,
    StorageError,
    TidegateError,
    UserCodeFailed,
)
from tidegate.telling.failures import describe_error, without_our_frames

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _process_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program changes its process; each test gets it back."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("PYTHONPATH", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")


def program(folder: Path, text: str) -> str:
    path = folder / "job.py"
    path.write_text(dedent(text), encoding="utf-8")
    return str(path)


# -- what is said, for programs ------------------------------------------------------------------------------------------


def test_as_json_each_thing_that_happens_is_an_object_on_its_line() -> None:
    lines: list[str] = []
    display = JsonDisplay(lines.append, clock=lambda: 5.0)
    view = JobView()
    display.launching(planned_sums(), JobConfig(master="spark://h:1"))
    display.launched(client_of(view), planned_sums())
    for event in [*life(), ScalingDecided({"sums": 4}, "95% busy", 0.0), ExecutorsLeaving(("3",), 0.0)]:
        view.publish(event)
    said = [json.loads(line) for line in lines]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    assert said[0] == {"event": "launching", "at": 5.0, "job": "sums", "slots": 4, "master": "spark://h:1"}
    assert [line["status"] for line in said if line["event"] == "status"] == [
        "INITIALIZING", "RUNNING", "RESTARTING", "RUNNING",
    ]  # fmt: skip
    assert [line["id"] for line in said if line["event"] == "checkpoint"] == [1, 2, 4]
    (failure,) = [line for line in said if line["event"] == "failure"]
    assert (failure["uid"], failure["subtask"], failure["user_line"]) == ("numbers~map double", 1, "job.py:7")
    assert failure["restart_in_s"] == 1.0
    scaling, leaving = said[-2:]
    assert (scaling["event"], scaling["parallelism"], scaling["reason"]) == ("scaling", {"sums": 4}, "95% busy")
    assert (leaving["event"], leaving["executors"]) == ("leaving", ["3"])


def test_as_json_errors_are_objects_too_and_standard_output_is_the_programs(tmp_path: Path, capsys: Captured) -> None:
    path = program(
        tmp_path,
        """
        import warnings
        import tidegate as tg
        print("mine")
        warnings.warn("look out")
        tg.StreamEnvironment("x").checkpointing(every="1s", storage="s3://b", mode="sometimes")
        """,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert main(["run", "--json", path]) == 2
    out, err = capsys.readouterr()
    assert out == "mine\n"
    warning, error = [json.loads(line) for line in err.splitlines()]
    assert (warning["event"], warning["message"]) == ("warning", "look out")
    assert error["event"] == "error"
    assert "sometimes" in error["message"]

    assert main(["run", "--json", program(tmp_path, "1 / 0")]) == 1
    (error,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert error["event"] == "error"
    assert error["message"].rstrip().endswith("ZeroDivisionError: division by zero")


def test_every_command_speaks_json() -> None:
    (commands,) = [action for action in make_parser()._actions if hasattr(action, "choices") and action.choices]
    without = {
        name
        for name, command in commands.choices.items()
        if not any("--json" in option.option_strings for option in command._actions)
    }
    assert without <= {"completion", "complete", "sinks", "check", "inspect"}, (
        "sinks has it below; the others tell people"
    )


# -- arguments -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "own"),
    [
        ("run job.py a --b", "run job.py", "a --b"),
        ("run -p 2 -D a=1 job.py -p 3", "run -p 2 -D a=1 job.py", "-p 3"),
        ("run --resume job.py x", "run --resume=latest job.py", "x"),
        ("run --resume --plain job.py", "run --resume=latest --plain job.py", ""),
        ("run --resume chk-7 job.py", "run --resume chk-7 job.py", ""),
        ("run --resume file:///d/chk-7 job", "run --resume file:///d/chk-7 job", ""),
        ("run job.py --resume other.py", "run job.py", "--resume other.py"),
        (
            "run -Da=1 --master spark://h:1 --config c.yaml job.py",
            "run -Da=1 --master spark://h:1 --config c.yaml job.py",
            "",
        ),
    ],
)
def test_arguments_behind_the_program_are_its_own(given: str, options: str, own: str) -> None:
    assert _split_at_program(given.split()) == (options.split(), own.split())


def test_the_program_runs_as_main_with_its_arguments_and_its_folder(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'found'", encoding="utf-8")
    path = program(tmp_path, "import sys, helper\nif __name__ == '__main__':\n    print(helper.WORD, sys.argv[1:])")

    assert main(["run", path, "--x", "1"]) == 0
    assert capsys.readouterr().out == "found ['--x', '1']\n"
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path), "executors must find helper too"


def test_settings_reach_the_jobs_of_the_program_and_the_later_wins(tmp_path: Path, capsys: Captured) -> None:
    config = tmp_path / "flink.yaml"
    config.write_text(
        "parallelism.default: 3\nexecution.checkpointing:\n  interval: 1 min\n  timeout: 2 min\n", encoding="utf-8"
    )
    path = program(
        tmp_path,
        """
        import threading
        import tidegate as tg

        env = tg.StreamEnvironment("j", parallelism=1)
        env.checkpointing(every="1s", storage="file:///own")

        def show():
            c = env.config()
            print(env.parallelism, c.interval_s, c.timeout_s, c.storage, c.resume, c.master)

        thread = threading.Thread(target=show)
        thread.start()
        thread.join()
        """,
    )

    arguments = ["--config", str(config), "-D", "execution.checkpointing.interval=7s", "-p", "5", "-m", "local[4]"]
    assert main(["run", *arguments, "--resume", path]) == 0
    assert capsys.readouterr().out == "5 7.0 120.0 file:///own latest local[4]\n"


def test_a_savepoint_may_be_named_as_the_shell_completes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "saved" / "savepoint-1").mkdir(parents=True)
    path = program(tmp_path, "import tidegate as tg\nprint(tg.StreamEnvironment('j').config().resume)")
    monkeypatch.chdir(tmp_path)

    for named in ("saved/savepoint-1", "chk-7", "elsewhere/savepoint-1", "s3://b/savepoint-1"):
        assert main(["run", "--resume", named, path]) == 0

    assert capsys.readouterr().out.splitlines() == [
        str(tmp_path / "saved" / "savepoint-1"), "chk-7", "elsewhere/savepoint-1", "s3://b/savepoint-1",
    ]  # fmt: skip


def test_spark_s_settings_reach_spark_s_command_line(tmp_path: Path) -> None:
    assert main(["run", "-D", "spark.executor.extraJavaOptions=-Xss4m -Dx=1", program(tmp_path, "")]) == 0

    assert os.environ["PYSPARK_SUBMIT_ARGS"] == "--conf 'spark.executor.extraJavaOptions=-Xss4m -Dx=1' pyspark-shell"


# -- exit codes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("import sys; sys.exit(7)", 7),
        ("import sys; sys.exit()", 0),
        ("import sys; sys.exit('no')", 1),
        ("1 / 0", 1),
        ("def", 1),
        ("raise KeyboardInterrupt", 130),
        ("import tidegate as tg; raise tg.ConfigurationError('x')", 2),
        ("import tidegate as tg; raise tg.StorageError('x')", 1),
        ("import tidegate as tg; tg.StreamEnvironment('j').execute()", 2),
    ],
)
def test_the_exit_code_says_how_the_program_ended(tmp_path: Path, text: str, code: int) -> None:
    assert main(["run", program(tmp_path, text)]) == code


def test_a_failed_job_is_one_and_wrong_settings_are_two() -> None:
    assert [exit_code_of(kind("x")) for kind in (JobFailed, UserCodeFailed, StorageError, TidegateError)] == [
        1,
        1,
        1,
        1,
    ]
    assert [exit_code_of(kind("x")) for kind in (ConfigurationError, GraphError, JobFolderInUse)] == [2, 2, 2]


def test_a_program_that_is_not_there_is_a_configuration_error(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", str(tmp_path / "none.py")]) == 2
    assert "there is no program" in capsys.readouterr().err


def test_an_unknown_key_runs_nothing(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", "-D", "execution.checkpointing.intervall=1s", program(tmp_path, "print('ran')")]) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: execution.checkpointing.intervall (-D) is not a key that Tidegate knows.")


# -- what is said --------------------------------------------------------------------------------------------------------


def test_an_error_of_ours_is_a_message_with_the_line_of_the_program(tmp_path: Path, capsys: Captured) -> None:
    path = program(tmp_path, "import tidegate as tg\nenv = tg.StreamEnvironment('j')\nenv.buffer_timeout(10)\n")
    assert main(["run", path]) == 2

    error = capsys.readouterr().err
    assert error.startswith("error: buffer_timeout(timeout=...): 10 has no unit.")
    assert f"  at {path}:3\n      env.buffer_timeout(10)\n" in error
    assert "Traceback" not in error


def test_an_error_of_the_program_is_python_s_own_traceback_from_the_program_on(
    tmp_path: Path, capsys: Captured
) -> None:
    path = program(tmp_path, "def f():\n    return 1 / 0\nf()\n")
    assert main(["run", path]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f'Traceback (most recent call last):\n  File "{path}", line 3, in <module>\n')
    assert error.endswith("ZeroDivisionError: division by zero\n")
    assert "runpy" not in error


def test_a_failure_of_user_code_shows_the_place_and_the_remote_cause(tmp_path: Path) -> None:
    path = program(tmp_path, "def parse(text):\n    return int(text)\n")
    error = UserCodeFailed(
        f"ValueError: no number\n  in map parse (uid 'm'), subtask 1, at {path}:2",
        operator="map parse",
        uid="m",
        subtask=1,
        checkpoint=None,
        user_line=f"{path}:2",
        cause=(
            f'Traceback (most recent call last):\n  File "{path}", line 2, in parse\n    return int(text)\n'
            "ValueError: no number\n"
        ),
    )

    assert describe_error(error).splitlines() == [
        "the job failed: ValueError: no number",
        f"  in map parse (uid 'm'), subtask 1, at {path}:2",
        "      return int(text)",
        "",
        "  Traceback (most recent call last):",
        f'    File "{path}", line 2, in parse',
        "      return int(text)",
        "  ValueError: no number",
    ]


def test_frames_of_this_package_are_left_out_of_a_remote_traceback() -> None:
    import tidegate

    ours = os.path.join(os.path.dirname(tidegate.__file__), "task", "slot.py")
    text = (
        "Traceback (most recent call last):\n"
        f'  File "{ours}", line 5, in turn\n    self.process()\n    ^^^^^\n'
        '  File "/home/me/job.py", line 2, in parse\n    return int(text)\n'
        "ValueError: no number\n"
    )

    assert without_our_frames(text).splitlines() == [
        "Traceback (most recent call last):",
        '  File "/home/me/job.py", line 2, in parse',
        "    return int(text)",
        "ValueError: no number",
    ]


def test_a_traceback_of_this_package_alone_is_kept_whole() -> None:
    import tidegate

    ours = os.path.join(os.path.dirname(tidegate.__file__), "task", "slot.py")
    text = f'Traceback (most recent call last):\n  File "{ours}", line 5, in turn\n    x\nKeyError: 1'

    assert without_our_frames(text) == text


@pytest.mark.parametrize(("path", "said"), [("file:///data/chk-3", True), ("memory://job/chk-3", False)])
def test_a_checkpoint_that_is_left_is_pointed_out(path: str, said: bool, capsys: Captured) -> None:
    view = JobView()
    view.publish(checkpoint(3, path=path))
    jobs = Jobs()
    jobs.launched(client_of(view), planned_sums())
    jobs.say_how_to_continue()

    assert ("checkpoint 3 is kept: tidegate run --resume continues from it" in capsys.readouterr().err) is said


def test_a_job_that_failed_while_the_program_did_something_else_is_told_and_fails_the_run() -> None:
    def client(heard: bool) -> JobClient:
        view, end = JobView(), threading.Event()
        view.publish(status(JobStatus.FAILED, "no such topic"))
        end.set()
        ended = JobEnded(JobStatus.FAILED, JobFailed("no such topic"))
        made = JobClient("sums", SimpleNamespace(end_event=end, ended=ended), view, None)  # type: ignore[arg-type]
        if heard:
            with pytest.raises(JobFailed):
                made.wait()
        return made

    with pytest.raises(JobFailed, match="no such topic"):
        Jobs(clients=[client(heard=False)]).wait()
    Jobs(clients=[client(heard=True)]).wait()  # the program knows, and went on


def test_warnings_and_the_log_are_single_lines(tmp_path: Path, capsys: Captured) -> None:
    path = program(tmp_path, "import warnings\nwarnings.simplefilter('always')\nwarnings.warn('look out')\n")
    assert main(["run", path]) == 0

    assert capsys.readouterr().err == "warning: look out\n"
