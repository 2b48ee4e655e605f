"""Plants faults in a copy of the source, one at a time, and expects the tests to fail for each.

The faults are in tools/planted: a text that must stand exactly once in its file, and what takes its place. The unchanged
copy runs first and must pass. The last line of the output is JSON; the exit status is 1 when a fault survives.

    python tools/mutants.py             all
    python tools/mutants.py NAME ...    these
    python tools/mutants.py --by ...    of the faults in the protocol instead: which means finds each by itself

These means do not know the fault that they look for: tests whose input is drawn or enumerated (`property`), every choice in
small worlds (`exploration`), seeded runs whose output is compared with the right answer (`random runs`), and the same runs
compared with the specification (`traces`). They are tried in this order until one finds it, or all of them with
`--every-means`. The exit status is 1 when a fault is found by none of them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from planted import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[1]
AT_ONCE = 2
TEST_TIMEOUT_S = 90  #: a fault may well make a test hang
NOTHING_TO_RUN = 5  #: what pytest says
RUN_TIMEOUT_S = 330
ALL_TESTS_TIMEOUT_S = 1800  #: without a fault: the tests of all of them, one after the other


@dataclass(frozen=True, slots=True)
class Means:
    """A program of the copy. The last line that it prints is JSON, in which these fields are not empty when they have found
    something."""

    command: tuple[str, ...]
    finds: dict[str, str]  #: field -> what it is called in the table


MEANS = (
    Means(
        ("tests/exploration/explore.py", "--deviations", "1", "--first", "--worlds", "3000", "--part", "0.06"),
        {"violations": "exploration"},
    ),
    Means(("tests/protocol/traced_runs.py", "--first", "24"), {"invalid": "traces", "wrong": "random runs"}),
)
MEANS_TIMEOUT_S = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    passed: bool
    seconds: float
    caught_by: str  #: the test that failed first


@contextmanager
def copy_of_the_source() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tidegate-mutant-") as folder:
        copy = Path(folder)
        ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(ROOT / "src", copy / "src", ignore=ignore)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignore)
        shutil.copytree(ROOT / "tools", copy / "tools", ignore=ignore)  # the tests import some of it
        shutil.copytree(ROOT / "spec", copy / "spec")
        shutil.copy(ROOT / "pyproject.toml", copy)
        yield copy


def plant(mutant: Mutant, copy: Path) -> None:
    """:raises SystemExit: when the text to replace is not there exactly once."""
    for change in mutant.changes:
        path = copy / "src" / "tidegate" / change.file
        text = path.read_text(encoding="utf-8")
        found = text.count(change.old)
        if found != 1:
            raise SystemExit(
                f"mutant {mutant.name}: the text to replace stands {found} times in src/tidegate/{change.file}, not once. "
                f"The code has changed: bring the mutant up to date.\n{change.old}"
            )
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")


def run_tests(copy: Path, tests: Sequence[str], timeout_s: float = RUN_TIMEOUT_S, which: str = "not slow") -> Outcome:
    environment = {name: value for name, value in os.environ.items() if name != "TIDEGATE_SEED"}
    environment |= {"PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    # The package of this checkout is installed too: make sure that the copy is what is tested.
    where = subprocess.run(
        [sys.executable, "-c", "import tidegate; print(tidegate.__file__)"],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    if Path(where).resolve() != (copy / "src" / "tidegate" / "__init__.py").resolve():
        raise SystemExit(f"the tests would run against {where}, not against the copy in {copy}")
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", which, f"--timeout={TEST_TIMEOUT_S}"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return Outcome(False, time.monotonic() - began, f"did not end within {timeout_s} s")
    seconds = time.monotonic() - began
    if done.returncode == NOTHING_TO_RUN and which != "not slow":
        return Outcome(True, seconds, "")
    if done.returncode not in (0, 1):  # 1: tests failed; anything else says nothing about the fault
        raise SystemExit(f"pytest ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return Outcome(done.returncode == 0, seconds, failed[0].split(" ")[1] if failed else "")


def try_out(mutant: Mutant) -> Outcome:
    with copy_of_the_source() as copy:
        plant(mutant, copy)
        return run_tests(copy, mutant.tests)


def found_by(mutant: Mutant, every_means: bool) -> list[str]:
    """Names of the means; `?` after one that came to no end."""
    found = []
    with copy_of_the_source() as copy:
        plant(mutant, copy)
        whole_files = list(dict.fromkeys(test.split("::")[0] for test in mutant.tests))
        if not run_tests(copy, whole_files, which="property and not slow").passed:
            found.append("property")
        for means in MEANS:
            if found and not every_means and not found[-1].endswith("?"):
                break
            environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
            try:
                done = subprocess.run(
                    [sys.executable, *means.command],
                    cwd=copy,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=MEANS_TIMEOUT_S,
                    check=False,
                )
                told = json.loads(done.stdout.splitlines()[-1])
            except (subprocess.TimeoutExpired, ValueError, IndexError):
                found += [f"{name}?" for name in means.finds.values()]
                continue
            found += [name for field, name in means.finds.items() if told[field]]
    return found


def try_unchanged(mutants: list[Mutant]) -> Outcome:
    """All tests that any of them runs: a test that fails anyway catches nothing."""
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    with copy_of_the_source() as copy:
        return run_tests(copy, list(tests), ALL_TESTS_TIMEOUT_S)


def table_of_means(mutants: list[Mutant], every_means: bool) -> int:
    """Of those that touch the protocol; that each is caught by its own tests is for `make mutants` to say."""
    rows = {}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        touching = [mutant for mutant in mutants if mutant.of_the_protocol]
        found_by_each = pool.map(lambda mutant: found_by(mutant, every_means), touching)
        for mutant, found in zip(touching, found_by_each, strict=True):
            rows[mutant.name] = found
            print(f"{mutant.name:<50} {', '.join(found) or 'NONE'}", flush=True)
    missed = [name for name, found in rows.items() if not any(not means.endswith("?") for means in found)]
    print(json.dumps({"mutants": len(rows), "found_by": rows, "missed": missed}))
    return 1 if missed else 0


def chosen(names: list[str]) -> list[Mutant]:
    unknown = set(names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    return [mutant for mutant in MUTANTS if not names or mutant.name in names]


def main(arguments: list[str]) -> int:
    mutants = chosen([argument for argument in arguments if not argument.startswith("--")])
    for mutant in mutants:  # what is out of date is said at once, not after minutes
        with copy_of_the_source() as copy:
            plant(mutant, copy)
    if "--by" in arguments:
        return table_of_means(mutants, "--every-means" in arguments)
    unchanged = try_unchanged(mutants)
    if not unchanged.passed:
        print(f"the tests fail without any fault: {unchanged.caught_by}", file=sys.stderr)
        return 1
    print(f"{'unchanged':<30} passes {unchanged.seconds:6.0f} s", flush=True)
    survived = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for mutant, outcome in zip(mutants, pool.map(try_out, mutants), strict=True):
            if outcome.passed:
                survived.append(mutant.name)
            verdict = "SURVIVED" if outcome.passed else "caught"
            print(f"{mutant.name:<30} {verdict} {outcome.seconds:6.0f} s  {outcome.caught_by}", flush=True)
            if outcome.passed:
                print(f"    {mutant.what}", flush=True)
    print(json.dumps({"mutants": len(mutants), "caught": len(mutants) - len(survived), "survived": survived}))
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
