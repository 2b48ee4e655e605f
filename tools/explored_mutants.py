"""Plants the faults of tools/planted that touch the protocol, one at a time, and lets the exploration of small worlds look for
each (tests/exploration).

    python tools/explored_mutants.py                all whose files belong to the protocol
    python tools/explored_mutants.py NAME ...       these
    python tools/explored_mutants.py --worlds 9000  of each scenario, at most

Of each it says which scenario found it, after how many deviations from the plain run. The last line is JSON: what was found,
and what was not. Faults in what no scenario has (RocksDB, event time, a connector) are not found by it; `make mutants` has
tests for those.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time

from mutants import copy_of_the_source, plant
from planted import MUTANTS, Mutant

ROOMS = (
    "protocol/",
    "task/slot",
    "task/snapshots",
    "task/committing",
    "task/inbox",
    "task/capture",
    "coordinator/",
    "storage/log",
)
TIMEOUT_S = 600
PART = 0.06
#: What the explorer says of a violation: the scenario, the deviations, what is wrong.
FOUND = re.compile(r"^([\w-]+): wrong after (\d+) deviations: (.*)$", re.MULTILINE)


def touches_the_protocol(mutant: Mutant) -> bool:
    return any(change.file.startswith(ROOMS) for change in mutant.changes)


def look_for(mutant: Mutant, worlds: int) -> str:
    """Who found it, or nothing."""
    with copy_of_the_source() as copy:
        plant(mutant, copy)
        environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "tests/exploration/explore.py", "--deviations", "1", "--first"]
        command += ["--worlds", str(worlds), "--part", str(PART)]
        try:
            done = subprocess.run(
                command, cwd=copy, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            return f"the exploration did not end within {TIMEOUT_S} s"
    if done.returncode == 0:
        return ""
    found = FOUND.search(done.stdout)
    if found is None:
        return f"the exploration itself failed: {done.stderr.strip().splitlines()[-1][:160] if done.stderr.strip() else ''}"
    return f"{found[1]}, {found[2]} deviations: {found[3][:120]}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--worlds", type=int, default=3000)
    given = parser.parse_args(arguments)
    known = {mutant.name: mutant for mutant in MUTANTS}
    if unknown := set(given.names) - known.keys():
        raise SystemExit(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [known[name] for name in given.names] or [each for each in MUTANTS if touches_the_protocol(each)]
    caught: dict[str, str] = {}
    for mutant in mutants:
        began = time.monotonic()
        by = look_for(mutant, given.worlds)
        if by:
            caught[mutant.name] = by
        print(f"{mutant.name:<40} {time.monotonic() - began:5.0f} s  {by or 'not found'}", flush=True)
    missed = [mutant.name for mutant in mutants if mutant.name not in caught]
    print(json.dumps({"mutants": len(mutants), "caught": caught, "not_found": missed}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
