"""A piece of the exploration, spread over all of it: `make explore` does the rest."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def explored(*arguments: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own: it makes the tables of state small, for the whole process. `code` runs before."""
    run = f"import explore; sys.exit(explore.main({list(arguments)!r}))"
    script = f"import sys; sys.path.insert(0, {str(HERE)!r})\n{code}\n{run}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)


def test_a_piece_of_every_small_world_has_nothing_wrong() -> None:
    done = explored(
        "--deviations", "1", "--worlds", "120", "--part", "0.05", "--compare-every", "40", "--processes", "1"
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert '"violations": 0' in done.stdout
    compared = re.search(r'"compared_with_a_run_from_the_beginning": (\d+)', done.stdout)
    assert compared is not None
    assert int(compared[1]) > 10


PLANTED = """
from tidegate.coordinator import attempt
from tidegate.wire.control import Complete
act = attempt.Attempt._act
def early(self, action):
    if isinstance(action, attempt.StoreCheckpoint):
        self._tell_all(Complete(action.checkpoint))
    act(self, action)
attempt.Attempt._act = early
"""


def test_a_planted_fault_is_found_with_no_deviation_and_told_as_a_story_that_can_be_run_again() -> None:
    planted = PLANTED
    arguments = ("aligned-lazy", "--deviations", "0", "--processes", "1")
    done = explored(*arguments, code=f"exec({planted!r})")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "aligned-lazy: wrong after 0 deviations" in done.stdout
    assert "are committed, and the newest checkpoint in the log is 0" in done.stdout
    assert re.search(r"slot 1\.\d asks its sinks to commit", done.stdout), done.stdout
    again = re.search(r"--path '(.*)'", done.stdout)
    assert again is not None
    told = explored("--path", again[1], code=f"exec({planted!r})")
    assert "WRONG: " in told.stdout, told.stdout + told.stderr


@pytest.mark.parametrize("path", ["aligned: 12", "aligned: 60, 50 kill 1.0"])
def test_a_path_with_nothing_wrong_says_so(path: str) -> None:
    done = explored("--path", path)

    assert done.returncode == 0, done.stderr
    assert "nothing is wrong" in done.stdout
