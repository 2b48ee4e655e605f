"""The unit for systemd in operations/: it runs a command that there is, and leaves alone what must be left alone."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tidegate.cli.main import _split_at_program, make_parser
from tidegate.config import JobConfig
from tidegate.telling import exit_codes

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "operations" / "systemd" / "tidegate@.service"


@pytest.fixture(scope="module")
def unit() -> dict[str, str]:
    lines = [line for line in UNIT.read_text(encoding="utf-8").splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_its_command_is_one_that_the_command_line_takes(unit: dict[str, str]) -> None:
    program, *arguments = shlex.split(unit["ExecStart"].replace("%i", "orders"))
    assert program.endswith("/tidegate")
    options, own = _split_at_program(arguments)
    parsed = make_parser().parse_args(options)
    assert (parsed.program, parsed.resume, own) == ("/srv/orders/job.py", "latest", [])


def test_what_a_restart_would_harm_is_not_restarted(unit: dict[str, str]) -> None:
    left_alone = {int(code) for code in unit["RestartPreventExitStatus"].split()}
    assert left_alone == {exit_codes.EXIT_CONFIGURATION, exit_codes.EXIT_SUPERSEDED, exit_codes.EXIT_RUNNING}
    assert int(unit["SuccessExitStatus"]) == exit_codes.EXIT_TERMINATED


def test_it_waits_for_the_checkpoint_that_sigterm_asks_for(unit: dict[str, str]) -> None:
    assert unit["KillMode"] == "mixed"
    assert int(unit["TimeoutStopSec"]) > JobConfig().on_term_timeout_s
