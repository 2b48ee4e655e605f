"""A command whose output nobody reads any more ends quietly: real processes, real pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidegate as tg
from tidegate.cli.main import main

EXIT_PIPE = 141  #: 128 + SIGPIPE, as shells count it
PROGRAM = """
import tidegate

for number in range(100_000):
    print(number)
"""
OWN_PIPE = """
import os

end, other = os.pipe()
os.close(end)
os.write(other, b"x")
"""


class Count(tg.KeyedProcessFunction):
    total = tg.ValueState(int)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a savepoint of more rows than a pipe holds, and programs."""
    made = tmp_path_factory.mktemp("pipes")
    rows = [{"key": f"key-{number:06}", "value": number} for number in range(20_000)]
    new = tg.Savepoint.new("shop").add_operator("count", Count, key_type=str, name="Count")
    new.add_state("count", "total", rows).write(str(made / "savepoint"))
    (made / "prints.py").write_text(PROGRAM)
    (made / "own_pipe.py").write_text(OWN_PIPE)
    return made


def environment(folder: Path) -> dict[str, str]:
    """As a user's: without it Python writes without a buffer, and does not see what became of the end of a long text."""
    return {**os.environ, "TIDEGATE_REGISTRY": str(folder / "registry"), "PYTHONUNBUFFERED": ""}


def run_unread(folder: Path, *arguments: str) -> tuple[int, str]:
    """The exit code and standard error of a command whose reader has gone before it writes its first word."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tidegate.cli.main", *arguments],
            stdout=write_end,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            cwd=folder,
            env=environment(folder),
        )
    finally:
        os.close(write_end)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "inspect savepoint --state total --limit 20000",
        "history .",
        "--help",
        "run prints.py",
    ],
)
def test_it_ends_as_a_shell_expects_without_a_word(command: str, folder: Path) -> None:
    assert run_unread(folder, *command.split()) == (EXIT_PIPE, "")


def test_head_has_its_lines_and_the_command_ends(folder: Path) -> None:
    command = f"{sys.executable} -m tidegate.cli.main inspect savepoint --state total --limit 20000 | head -2"
    done = subprocess.run(
        ["bash", "-c", f"{command}; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=folder,
        env=environment(folder),
    )

    *_, code = lines = done.stdout.splitlines()
    assert (len(lines), code, done.stderr) == (3, str(EXIT_PIPE), "")


def test_a_pipe_of_the_programs_own_that_breaks_is_its_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(folder / "own_pipe.py")]) == 1
    assert "BrokenPipeError" in capsys.readouterr().err
