"""The arguments of `tidegate inspect PATH` and `tidegate check job.py --from PATH`. Any machine that can read the storage; no
Spark, nothing runs, nothing is unpickled. Imports nothing that takes its time: --help must not wait.
"""

from __future__ import annotations

import argparse
from importlib import import_module

_INSPECT_EPILOG = """\
examples:
  tidegate inspect savepoint-orders-17-3fa2c1
  tidegate inspect savepoint-orders-17-3fa2c1 --operator count --state total --key apple
  tidegate inspect savepoint-orders-17-3fa2c1 --key apple
  tidegate inspect savepoint-orders-17-3fa2c1 --sql 'SELECT key, value FROM "count.total" ORDER BY value DESC LIMIT 10'

exit codes:
  0    shown
  1    there is no such key
  2    it cannot be read, or the arguments are wrong
"""
_CHECK_EPILOG = """\
The program runs up to its execute() and no further.

exit codes:
  0    the program can start from it
  1    it would be refused
  2    the program or the arguments are wrong
"""


def add_savepoint_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    inspect = _add(
        commands,
        "inspect",
        "what a savepoint or checkpoint holds",
        "Show what a savepoint or checkpoint holds: operators, states, sizes; with --state or --key, rows.",
        _INSPECT_EPILOG,
    )
    inspect.add_argument("path", metavar="PATH", help="its folder: a local path, s3://bucket/folder ...")
    inspect.add_argument("--operator", metavar="UID", help="one operator")
    inspect.add_argument(
        "--state", metavar="NAME", help="its rows; with --operator where several have one of that name"
    )
    inspect.add_argument(
        "--key", metavar="KEY", help="the rows of one key, as it is shown; in all states, or in --state"
    )
    inspect.add_argument(
        "--largest", type=int, metavar="N", help="the N keys whose values take the most space in --state"
    )
    inspect.add_argument("--sql", metavar="QUERY", help='over the tables "<operator>.<state>", sources and prepared')
    inspect.add_argument("--limit", type=int, default=20, metavar="N", help="rows to show (20)")
    inspect.add_argument("--json", action="store_true", help="one JSON value, for programs")
    inspect.set_defaults(run=lambda options: import_module("tidegate.cli.inspecting").run_inspect(options))
    check = _add(
        commands,
        "check",
        "can a program start from a savepoint or checkpoint?",
        "Say what would be restored, converted, moved, dropped, new and refused. Nothing runs.",
        _CHECK_EPILOG,
    )
    check.add_argument("program", metavar="job.py", help="the new version of the program")
    check.add_argument(
        "--from", dest="path", required=True, metavar="PATH", help="the folder of the savepoint or checkpoint"
    )
    check.add_argument("-p", "--parallelism", type=int, metavar="N", help="as for tidegate run")
    check.add_argument("--allow-dropped-state", action="store_true", help="as the setting of the same name")
    check.add_argument(
        "--json", action="store_true", help="one JSON value; what the program prints goes to standard error"
    )
    check.add_argument("arguments", nargs="*", help="of the program")
    check.set_defaults(run=lambda options: import_module("tidegate.cli.checking").run_check(options))


def _add(
    commands: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help: str, description: str, epilog: str
) -> argparse.ArgumentParser:
    return commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
