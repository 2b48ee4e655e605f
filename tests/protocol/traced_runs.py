"""Random runs, each compared with the specification: what happened must be a behaviour of spec/Layers.tla.

    python tests/protocol/traced_runs.py 1000              so many, of every kind and backend in turn
    python tests/protocol/traced_runs.py 100 unaligned     of this kind
    python tests/protocol/traced_runs.py --first 100       only until the first that is not as it must be

What the runs are made of stands in random_runs.py, how they are told and checked in tests/traces.py. A run that came out wrong
counts as wrong here, too. The last line is JSON; the exit status is 1 when something was not as it must be.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from random_runs import BACKENDS, KINDS, check, draw_case, run_case

from observed import Event, traced
from traces import Run, assembled, explained, refused

FIRST_SEED = 50_000
AT_ONCE = 2  #: processes
RUNS_AT_A_TIME = 24  #: of one start of TLC
ENOUGH_WRONG = 3  #: runs, when only the first is looked for: they may take long

Named = tuple[str, str, int]  #: kind, backend, seed


@dataclass(slots=True)
class Found:
    """Of some runs."""

    runs: int = 0
    events: int = 0
    invalid: list[str] = field(default_factory=list)  #: not behaviours of the specification
    wrong: list[str] = field(default_factory=list)  #: what came out of them is not right
    text: list[str] = field(default_factory=list)


def traced_run(kind: str, backend: str, seed: int, folder: str) -> tuple[Run, str]:
    """What happened, and what was wrong with what came out of it."""
    events: list[Event] = []
    case, wrong = draw_case(kind, backend, seed, folder), ""
    with traced(events.append):
        try:
            check(case, run_case(case))
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:600]}"
    return assembled(events), wrong


def look_at(cases: list[Named], most_wrong: int) -> Found:
    """One process's share."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found = Found()
    folder = tempfile.mkdtemp(prefix="tidegate-traces-")
    names, runs = [], []
    try:
        for kind, backend, seed in cases:
            run, trouble = traced_run(kind, backend, seed, folder)
            names.append(f"{kind} {backend} {seed}")
            runs.append(run)
            if trouble:
                found.wrong.append(names[-1])
                found.text.append(f"{names[-1]}: {trouble}")
            if len(found.wrong) >= most_wrong:
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    found.runs, found.events = len(runs), sum(map(len, runs))
    for place in refused(runs):
        found.invalid.append(names[place])
        if len(found.invalid) == 1:
            found.text.append(f"{names[place]}: {explained(runs[place])}")
    return found


def main(count: int, kinds: Sequence[str] = KINDS, first: bool = False) -> int:
    kinds_in_turn = itertools.cycle(itertools.product(kinds, BACKENDS))
    cases = [(kind, backend, FIRST_SEED + number) for number, (kind, backend) in zip(range(count), kinds_in_turn)]
    shares = [cases[start : start + RUNS_AT_A_TIME] for start in range(0, count, RUNS_AT_A_TIME)]
    began, all_ = time.monotonic(), Found()
    with ProcessPoolExecutor(AT_ONCE, mp_context=get_context("spawn")) as pool:
        for found in pool.map(look_at, shares, itertools.repeat(ENOUGH_WRONG if first else count)):
            all_.runs, all_.events = all_.runs + found.runs, all_.events + found.events
            all_.invalid += found.invalid
            all_.wrong += found.wrong
            print(
                "\n".join(
                    [*found.text, f"{all_.runs:>6} runs {all_.events:>9,} events {time.monotonic() - began:5.0f} s"]
                ),
                flush=True,
            )
            if first and (all_.invalid or all_.wrong):
                pool.shutdown(wait=False, cancel_futures=True)
                break
    print(json.dumps({"runs": all_.runs, "events": all_.events, "invalid": all_.invalid, "wrong": all_.wrong}))
    return 1 if all_.invalid or all_.wrong else 0


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--first"]
    sys.exit(main(int(arguments[0]), arguments[1:] or KINDS, first="--first" in sys.argv))
