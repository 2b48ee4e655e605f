"""The arguments of the commands for running jobs. Any machine; imports nothing that takes its time: --help must not wait."""

from __future__ import annotations

import argparse
from importlib import import_module

EXIT_CODES = """\
exit codes:
  0    done
  1    the job said no, or what was asked for failed
  2    the arguments are wrong
  3    no such job or storage, or the job's driver does not answer
  130  interrupted
  141  nobody reads the output any more (a closed pipe)
"""
_JOBS = "tidegate.cli.jobs"
_FORMATS = "canonical: Parquet, which any tool reads (default); native: quicker for large state, for Tidegate alone"


def add_job_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add(commands, "list", "list_jobs", "running jobs", has_job=False)
    _add(commands, "status", "status", "one job: operators, load, checkpoints, counters")
    checkpoints = _add(commands, "checkpoints", "checkpoints", "its checkpoints; with --id, where one's time went")
    checkpoints.add_argument("--id", type=_positive, metavar="N", help="one checkpoint in detail")
    checkpoints.add_argument("--last", type=_positive, metavar="N", default=20, help="how many are listed (20)")
    _add(commands, "checkpoint", "take_checkpoint", "take a checkpoint now, and wait for it")
    for name, what in (("savepoint", "take a savepoint"), ("stop", "stop with a savepoint")):
        command = _add(commands, name, name, what)
        command.add_argument(
            "--to", metavar="FOLDER", help="where the savepoint goes: a folder inside the job's storage"
        )
        command.add_argument("--format", choices=("canonical", "native"), default="canonical", help=_FORMATS)
        if name == "stop":
            command.add_argument(
                "--drain",
                action="store_true",
                help="end the stream first, so that all timers fire; for a job that will not continue",
            )
    _add(commands, "cancel", "cancel", "end it without a savepoint; checkpoints stay")
    rescale = _add(commands, "rescale", "rescale", "run it at another parallelism")
    rescale.add_argument(
        "-p", "--parallelism", type=_positive, metavar="N", required=True, help="subtasks of every operator"
    )
    logs = _add(commands, "logs", "logs", "what the job and its functions have logged")
    logs.add_argument(
        "-f", "--follow", action="store_true", help="continue until interrupted, or the job's driver ends"
    )
    logs.add_argument("--last", type=_positive, metavar="N", default=100, help="how many lines (100)")
    logs.add_argument(
        "--level", type=str.upper, choices=("DEBUG", "INFO", "WARNING", "ERROR"), default="INFO",
        help="this level and those above it (INFO)",
    )  # fmt: skip
    profile = _add(
        commands,
        "profile",
        "profile",
        "which lines of your functions take the time, by sampling",
        "tidegate.cli.profiling",
    )
    profile.add_argument("--operator", metavar="UID", help="one operator by its uid or name; default: all")
    profile.add_argument("--seconds", type=_up_to_two_minutes, metavar="N", default=20, help="for how long (20)")
    profile.add_argument("--folded", metavar="FILE", help="also write folded stacks there, for flame graph tools")


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    function: str,
    what: str,
    module: str = _JOBS,
    has_job: bool = True,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=what,
        description=what[0].upper() + what[1:] + ".",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if has_job:
        command.add_argument("job", nargs="?", metavar="JOB", help="name or id; not needed where only one job runs")
    command.add_argument(
        "-a", "--address", metavar="HOST:PORT", help="of a driver elsewhere; default: this user's jobs here"
    )
    command.add_argument("--token", metavar="TOKEN", help="of that driver; better is the variable TIDEGATE_REST_TOKEN")
    command.add_argument("--json", action="store_true", help="one JSON value instead of a table")
    command.set_defaults(run=lambda options: getattr(import_module(module), function)(options))
    return command


def _positive(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 10**12:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def _up_to_two_minutes(text: str) -> int:
    if _positive(text) > 120:
        raise argparse.ArgumentTypeError(f"{text} s are too many: the driver keeps the samples of 120 s")
    return int(text)


def add_history(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    what = "jobs that have run, from their checkpoint storage"
    history = commands.add_parser(
        "history",
        help=what,
        description=what[0].upper() + what[1:] + ": all of a storage, or one with its runs, checkpoints and failures.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    history.add_argument("storage", metavar="STORAGE", help="file:///..., s3://..., gs://..., az://..., or a folder")
    history.add_argument("job", nargs="?", metavar="JOB", help="one job by its name; default: all, a line each")
    history.add_argument("--json", action="store_true", help="one JSON value instead of a table")
    history.set_defaults(run=lambda options: import_module("tidegate.cli.history").history(options))
