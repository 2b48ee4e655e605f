"""Explores the small worlds of scenarios.py: every choice, instead of one drawn.

    python tests/exploration/explore.py                                  all, two at a time, for at most 29 minutes
    python tests/exploration/explore.py aligned savepoint --deviations 1
    python tests/exploration/explore.py aligned --to-the-end             every interleaving, however long that takes
    python tests/exploration/explore.py --path 'aligned: 0 17 kill 1.0'  one path again, as a story

A path is told by its deviations from the plain run: the number of the step and what happens there, separated by commas. The
last line of the output is JSON; the exit status is 1 when something is wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from scenarios import SCENARIOS, Scenario, small_tables, validated_machines
from search import Found, Search, Violation
from story import tell

SECONDS = 29 * 60
PROCESSES = 2
COMPARE_EVERY = 5_000


def scenario_of(name: str) -> Scenario:
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    raise SystemExit(f"there is no scenario {name!r}; there are {', '.join(each.name for each in SCENARIOS)}")


def prepare() -> None:
    logging.disable(logging.CRITICAL)
    gc.set_threshold(200_000, 20, 50)  # most of what is made is dropped at once, and has no cycles
    small_tables()
    validated_machines()


@dataclass(frozen=True, slots=True)
class Work:
    """One scenario for one process."""

    name: str
    deviations: int | None
    seconds: float
    max_worlds: int | None
    part: float
    compare_every: int


def explored(work: Work) -> Found:
    name, deadline = work.name, time.monotonic() + work.seconds
    prepare()

    def progress(found: Found) -> None:
        print(f"  {name}: {found.worlds} worlds", file=sys.stderr, flush=True)

    return Search(
        scenario_of(name),
        work.deviations,
        work.max_worlds,
        part=work.part,
        compare_every=work.compare_every,
        is_over=lambda: time.monotonic() > deadline,
        tell=progress,
    ).run()


def deviations_of(violation: Violation) -> str:
    """The path in short: what differs from the plain run."""
    run = scenario_of(violation.scenario).begin()
    told = []
    for number, name in enumerate(violation.path, 1):
        plain, _, trouble = name.partition(" !")
        steps = run.steps()
        if trouble or steps[0].name != plain:
            told.append(f"{number} {name}")
        run.take(next(each for each in steps if each.name == plain), trouble)
    return f"{violation.scenario}: {len(violation.path)}" + "".join(f", {each}" for each in told)


def path_of(text: str) -> tuple[Scenario, tuple[str, ...]]:
    """What `deviations_of` has told."""
    name, _, told = text.partition(": ")
    length, *deviations = told.split(", ")
    at = {int(each.partition(" ")[0]): each.partition(" ")[2] for each in deviations}
    scenario = scenario_of(name)
    run = scenario.begin()
    path = []
    for number in range(1, int(length) + 1):
        steps = run.steps()
        chosen = at.get(number) or steps[0].name
        path.append(chosen)
        plain, _, trouble = chosen.partition(" !")
        run.take(next(each for each in steps if each.name == plain), trouble)
    return scenario, tuple(path)


def show(found: Found) -> None:
    how = "to the end" if found.max_deviations is None else f"up to {found.max_deviations} deviations"
    whole = "all" if found.complete else "a part"
    print(
        f"{found.scenario:<12} {how:<22} {found.worlds:>9} worlds  {found.steps:>9} steps  {found.seconds:6.0f} s  {whole}",
        flush=True,
    )
    for violation in found.violations:
        short = deviations_of(violation)
        print(f"\n{violation.scenario}: wrong after {violation.deviations} deviations: {violation.what}\n")
        print(tell(scenario_of(violation.scenario), violation.path))
        print(f"\nagain: python tests/exploration/explore.py --path '{short}'\n", flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", help="all of them unless named")
    parser.add_argument("--deviations", type=int, default=2, help="from the plain run, at most")
    parser.add_argument("--to-the-end", action="store_true", help="without a bound of deviations")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--worlds", type=int, help="of each scenario, at most")
    parser.add_argument("--part", type=float, default=1.0, help="of the deviations, spread over all: 0.1 for a tenth")
    parser.add_argument(
        "--compare-every", type=int, default=COMPARE_EVERY, help="worlds: reached again from the beginning"
    )
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--first", action="store_true", help="end as soon as one scenario has found something")
    parser.add_argument("--path", help="tell this path again")
    given = parser.parse_args(arguments)
    prepare()
    if given.path is not None:
        scenario, path = path_of(given.path)
        print(tell(scenario, path))
        return 0
    names = given.scenarios or [each.name for each in SCENARIOS]
    began = time.monotonic()
    rounds = [None] if given.to_the_end else range(min(1, given.deviations), given.deviations + 1)
    widest: dict[str, Found] = {}
    with _mapper(given.processes) as mapper:
        for number, deviations in enumerate(rounds):
            left = began + given.seconds - time.monotonic()
            # Rounds before the last end by themselves; in the last one every scenario gets its part of the time.
            share = left if number < len(rounds) - 1 else left / -(-len(names) // given.processes)
            works = [Work(name, deviations, share, given.worlds, given.part, given.compare_every) for name in names]
            for found in mapper(explored, works):
                show(found)
                if found.scenario not in widest or found.worlds > widest[found.scenario].worlds or found.violations:
                    widest[found.scenario] = found
                if given.first and found.violations:
                    break
            if any(found.violations for found in widest.values()):
                break
    violations = sum(len(found.violations) for found in widest.values())
    result = {
        "worlds": sum(found.worlds for found in widest.values()),
        "steps": sum(found.steps for found in widest.values()),
        "compared_with_a_run_from_the_beginning": sum(found.compared for found in widest.values()),
        "violations": violations,
        "seconds": round(time.monotonic() - began, 1),
        "scenarios": {
            name: {"worlds": found.worlds, "max_deviations": found.max_deviations, "complete": found.complete}
            for name, found in widest.items()
        },
    }
    print(json.dumps(result))
    return 1 if violations else 0


@contextmanager
def _mapper(processes: int) -> Iterator[Callable[[Callable[[Work], Found], list[Work]], Iterable[Found]]]:
    if processes == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=1) as pool:
        yield pool.imap_unordered


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
