"""The arguments of `tidegate simulate job.py`. Imports nothing that takes its time: --help must not wait."""

from __future__ import annotations

import argparse
from importlib import import_module

_EPILOG = """\
The program runs up to its execute() and no further. Its job then runs in this process, once for each seed, on a clock of its
own: nobody waits, and Spark is not needed. Sinks write to models of their outside, never to the real one.

examples:
  tidegate simulate job.py
  tidegate simulate job.py --seeds 1000 --records 500
  tidegate simulate job.py --input orders=sample.jsonl --instead notify
  tidegate simulate job.py --first-seed 17 --seeds 1

exit codes:
  0    every seed came to the same as without a misfortune
  1    one did not
  2    the program, the settings or the arguments are wrong, or nothing can be compared
  130  interrupted; what was seen so far is told
"""


def add_simulate(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    simulate = commands.add_parser(
        "simulate",
        help="what comes out of a program's job when everything goes wrong",
        description="Run the job of a program many times, each time with other misfortunes: workers and drivers die, "
        "storage and sinks fail, answers are lost. Compare what was committed with runs without any.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="tidegate simulate job.py [options] [-- arguments of the program ...]",
    )
    simulate.add_argument("program", metavar="job.py")
    simulate.add_argument("--seeds", type=_positive, default=100, metavar="N", help="how many runs (100)")
    simulate.add_argument("--first-seed", type=_number, default=0, metavar="N", help="the seed of the first (0)")
    simulate.add_argument(
        "--records", type=_positive, metavar="N", help="of each source; default: all, and 100 of one without an end"
    )
    simulate.add_argument(
        "--input",
        action="append",
        default=[],
        type=_input,
        metavar="UID=FILE",
        help="the records of a source: .jsonl, .csv, .parquet, .txt; can be given many times",
    )
    simulate.add_argument(
        "--instead",
        action="append",
        default=[],
        metavar="UID",
        help="a sink whose own code is not to run; can be given many times",
    )
    simulate.add_argument(
        "--shrink",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="of a seed that fails, find the fewest misfortunes by which it still does",
    )
    simulate.add_argument(
        "--most-failures", type=_positive, default=3, metavar="N", help="stop when so many seeds have failed (3)"
    )
    simulate.add_argument("-p", "--parallelism", type=_positive, metavar="N", help="as for tidegate run")
    simulate.add_argument(
        "--json", action="store_true", help="one JSON value; what the program prints goes to standard error"
    )
    simulate.set_defaults(arguments=[])  # what follows "--": main.py
    simulate.set_defaults(run=lambda options: import_module("tidegate.cli.simulating").run_simulate(options))


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) >= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number below a thousand million")
    return int(text)


def _positive(text: str) -> int:
    if _number(text) == 0:
        raise argparse.ArgumentTypeError("0 is too few")
    return int(text)


def _input(text: str) -> tuple[str, str]:
    uid, equals, path = text.partition("=")
    if not uid or not equals or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not UID=FILE")
    return uid, path
