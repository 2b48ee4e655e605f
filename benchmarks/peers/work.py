"""The work that every system does: a running sum for each key, each new sum emitted. The standard library alone, because each
peer's own Python imports it.

Record i, of N, is (key_of(i), value_of(i)). Values are above 0, so the sums of a key grow, and all of them are distinct. A
script is run in one of two ways, and says what it did in its last line, JSON:

    python SCRIPT.py --records N                      timed: the sums are thrown away where the system would hand them on
    python SCRIPT.py --records N --answers FOLDER     checked: each sum becomes a line `key,sum` of a file in FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = 100_000
PARALLELISM = 2
CHECKPOINT_S = 1
VALUES = 9


def key_of(index: Any) -> Any:
    return index % KEYS


def value_of(index: Any) -> Any:
    return 1 + index % VALUES


@dataclass(frozen=True)
class Task:
    records: int
    answers: Path | None  #: None: timed
    state: Path  #: an empty folder for checkpoints and databases
    options: list[str]  #: what only this script knows


def task() -> Task:
    """What the command line asks for. The folder for state goes with the process that asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--state", type=Path)
    given, options = parser.parse_known_args()
    state = given.state or Path(tempfile.gettempdir()) / "tidegate-benchmarks" / f"peer-{os.getpid()}"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir(parents=True)
    return Task(given.records, given.answers, state, options)


def finish(records: int, seconds: float, **more: Any) -> None:
    print(json.dumps({"records": records, "seconds": seconds, **more}), flush=True)


# -- checking -----------------------------------------------------------------------------------------------------------------


class WrongAnswer(Exception):
    """What a system emitted is not what it had to."""


def write(folder: Path, rows: Iterable[tuple[Any, Any]], name: str | int) -> None:
    with (folder / f"sums-{name}").open("a") as file:
        file.writelines(f"{key},{value}\n" for key, value in rows)


def check(folder: Path, records: int, each_record: bool = True) -> None:
    """:raises WrongAnswer:

    :param each_record: a sum for every record; else only the newest of each key has to be right.
    """
    expected: dict[int, list[int]] = {}
    for index in range(records):
        expected.setdefault(key_of(index), []).append(value_of(index))
    got: dict[int, list[int]] = {}
    for file in folder.glob("sums-*"):
        for line in file.read_text().splitlines():
            key, _, value = line.partition(",")
            got.setdefault(int(key), []).append(int(value))
    if got.keys() != expected.keys():
        raise WrongAnswer(f"{len(got)} keys instead of {len(expected)}")
    for key, values in expected.items():
        if max(got[key]) != sum(values):
            raise WrongAnswer(f"key {key}: the last sum is {max(got[key])} instead of {sum(values)}")
        if each_record and (len(got[key]) != len(values) or len(set(got[key])) != len(values)):
            raise WrongAnswer(f"key {key}: {len(got[key])} sums instead of {len(values)} distinct ones")


def said(output: str) -> dict[str, Any]:
    """The last line that is JSON: systems write lines of their own."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    sys.exit(f"no result in:\n{output[-2000:]}")
