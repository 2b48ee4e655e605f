"""The command line: `tidegate run job.py ...`, and commands for jobs that run or have run. Driver, or any machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tidegate.cli.completion import add_completion, print_candidates
from tidegate.cli.job_parsers import add_history, add_job_commands
from tidegate.cli.pipes import until_nobody_reads
from tidegate.cli.savepoints import add_savepoint_commands
from tidegate.cli.simulate import add_simulate
from tidegate.cli.sinks import add_sinks, sinks
from tidegate.version import __version__

ON_TERM = ("checkpoint", "savepoint", "cancel")
_DESCRIPTION = "Stateful stream jobs in Python on Spark, with Flink's checkpoint barriers."
_RUN_EPILOG = """\
exit codes:
  0    the program has ended, and its jobs with it
  1    a job, or the program, failed
  2    the settings or the program are wrong; nothing has run
  4    another driver has taken the job over, and runs it: do not start this one again
  5    the job runs already: nothing was started
  130  interrupted: the job was canceled
  141  nobody reads the output any more (a closed pipe)
  143  ended by SIGTERM, as --on-term says

Settings go over the program's own; later ones win: --config, then -D, then the options above.
Keys are Flink's (execution.checkpointing.interval=10s); spark.* keys go to Spark. All are in docs/configuration.md.
"""
_WITH_VALUE = {"-m", "--master", "-p", "--parallelism", "-D", "--config", "--py-files", "--archives", "--python",
               "--on-term"}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """The `tidegate` command; gives the exit code."""
    return until_nobody_reads(lambda: _main(list(sys.argv[1:] if arguments is None else arguments)))


def _main(given: list[str]) -> int:
    parser = make_parser()
    if given[:1] == ["complete"]:  # for the shells' scripts; not a command for people, so the parser does not know it
        return print_candidates(parser, given[2:] if given[1:2] == ["--"] else given[1:])
    if given[:1] == ["run"]:
        given, program_arguments = _split_at_program(given)
        options = parser.parse_args(given)
        return _run(options, program_arguments)
    of_program: list[str] = []
    if given[:1] == ["simulate"] and "--" in given:
        place = given.index("--")
        given, of_program = given[:place], given[place + 1 :]
    options = parser.parse_args(given)
    if of_program:
        options.arguments = of_program
    if options.command is None:
        parser.print_help()
        return 2
    if options.command == "sinks":
        return sinks(options)
    code: int = options.run(options)
    return code


class _CommandList(argparse.HelpFormatter):
    """Names and what they do in two columns. argparse forgets that commands are indented, and breaks the longest names."""

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        for command in self._iter_indented_subactions(action):
            width = len(self._format_action_invocation(command)) + self._current_indent
            self._action_max_length = max(self._action_max_length, width)


class _Command(argparse.ArgumentParser):
    """Says what it takes itself when it is given more; else the usage of `tidegate` would be shown."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tidegate", description=_DESCRIPTION, formatter_class=_CommandList)
    parser.add_argument("--version", action="version", version=f"tidegate {__version__}")
    parser_class: type[argparse.ArgumentParser] = _Command
    commands = parser.add_subparsers(dest="command", metavar="command", parser_class=parser_class)
    _add_run(commands)
    add_job_commands(commands)
    add_history(commands)
    add_sinks(commands)
    add_savepoint_commands(commands)
    add_simulate(commands)
    add_completion(commands)
    return parser


def _add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    run = commands.add_parser(
        "run",
        help="run a program with its jobs",
        description="Run a program as it is, with settings over its own and a live display of its jobs.",
        epilog=_RUN_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="tidegate run [options] job.py [arguments of the program ...]",
    )
    run.add_argument("program", metavar="job.py", help="what follows it are the program's own arguments")
    run.add_argument(
        "-m", "--master", metavar="URL", help="Spark's master, like spark://host:7077; default: this machine"
    )
    run.add_argument(
        "--py-files", metavar="PATHS", help="modules, packages, wheels or zips that the executors need, with commas"
    )
    run.add_argument(
        "--archives", metavar="PATHS", help="archives for the executors, like a packed environment: env.tar.gz#env"
    )
    run.add_argument("--python", metavar="PATH", help="the executors' Python, like ./env/bin/python")
    run.add_argument("-p", "--parallelism", metavar="N", help="subtasks of each operator that has no number of its own")
    run.add_argument(
        "--resume",
        nargs="?",
        const="latest",
        metavar="CHECKPOINT",
        help="continue from the newest checkpoint, from chk-N, or from a checkpoint's path",
    )
    run.add_argument(
        "-D",
        dest="settings",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting; can be given many times",
    )
    run.add_argument(
        "--config", metavar="FILE", help='settings from a file: "key: value" as in Flink\'s config.yaml, or key=value'
    )
    run.add_argument(
        "--on-term",
        choices=ON_TERM,
        metavar="HOW",
        help="what SIGTERM ends the jobs with: checkpoint (the default), savepoint or cancel",
    )
    run.add_argument("--plain", action="store_true", help="no live display: a line for each thing that happens")
    run.add_argument("--json", action="store_true", help="a JSON object for each of them, on standard error")
    run.add_argument("--quiet", action="store_true", help="show only what the job prints, and errors")
    run.add_argument("--version", action="version", version=f"tidegate {__version__}")


def _split_at_program(given: list[str]) -> tuple[list[str], list[str]]:
    """The arguments up to the program, and the program's own. A --resume right before the program has no value."""
    options: list[str] = []
    position = 0
    while position < len(given):
        argument = given[position]
        following = given[position + 1] if position + 1 < len(given) else ""
        if argument == "--resume" and (following.startswith("-") or following.endswith(".py") or not following):
            options.append("--resume=latest")
        elif argument in _WITH_VALUE or argument == "--resume":
            options += given[position : position + 2]
            position += 1
        else:
            options.append(argument)
            if position > 0 and not argument.startswith("-"):
                return options, given[position + 1 :]
        position += 1
    return options, []


def _run(options: argparse.Namespace, program_arguments: list[str]) -> int:
    # PySpark and pyarrow are imported below this line: --help and mistakes in the options must not wait for them.
    from tidegate.cli.config_file import read_config_file
    from tidegate.cli.run import RunRequest, run, say_error
    from tidegate.cli.settings import WrittenSetting, by_option, overrides_of, setting_of
    from tidegate.config import SETTINGS
    from tidegate.errors import ConfigurationError
    from tidegate.telling.exit_codes import EXIT_CONFIGURATION

    options.resume = _from_here(options.resume)
    named = [
        WrittenSetting(setting.key, value, by_option(setting.option))
        for setting in SETTINGS.values()
        if setting.option and (value := getattr(options, setting.option[2:].replace("-", "_"))) is not None
    ]
    try:
        settings = [] if options.config is None else read_config_file(options.config)
        settings += [setting_of(text) for text in options.settings]
        overrides = overrides_of(settings + named)
    except ConfigurationError as error:
        say_error(str(error))
        return EXIT_CONFIGURATION
    return run(
        RunRequest(options.program, tuple(program_arguments), overrides, options.quiet, options.plain, options.json)
    )


def _from_here(checkpoint: str | None) -> str | None:
    """A folder or file of the working directory, as a shell completes it, by its whole path. Others are the storage's."""
    if checkpoint is not None and "/" in checkpoint and os.path.exists(checkpoint):
        return os.path.abspath(checkpoint)
    return checkpoint


if __name__ == "__main__":
    sys.exit(main())
