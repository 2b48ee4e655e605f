"""Checks the specification in spec/ with TLC: the protocol as it is, on small bounds, and then with a fault planted in it.

    python tools/prove.py            all
    python tools/prove.py NAME ...   the runs whose names begin so

The protocol as it is must hold: no invariant is broken, and nothing stands still. Each planted fault must be found. A table
with the numbers of states is printed; the last line is JSON; the exit status is 1 when something is not as it must be.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import fetch

SPEC = fetch.TOOLS.parent / "spec"
TIMEOUT_S = 600
INVARIANTS = {
    "Snapshots": (
        "ConsistentCut",
        "NothingTwice",
        "CommitsAfterTheLog",
        "NothingThrownAway",
        "NothingLost",
        "CountedIsWritten",
    ),
    "Log": ("OldGenerationsAreSilent", "OneDriverEach", "IdsGrow", "OneLine", "CommitsAfterTheLog"),
    "SmallLayers": (
        "ConsistentCut",
        "NobodyIsMissing",
        "CommitsAfterTheLog",
        "NothingThrownAway",
        "SavepointsAreCovered",
        "FinishedIsCommitted",
    ),
}
SPECS = {"Snapshots": "Spec", "Log": "Spec", "SmallLayers": "SmallSpec"}
EXTENDED = {"SmallLayers": ("Layers",)}  #: modules that a module is made of
#: A job of Layers.tla has no end of its own, at which it would have to arrive.
ENDLESS = frozenset({"SmallLayers"})


@dataclass(frozen=True, slots=True)
class Run:
    """One model: a module, its bounds, and the mistake that is planted in it."""

    name: str
    module: str
    bounds: dict[str, str] = field(hash=False)
    fault: str = "none"

    def model(self) -> str:
        """A module with the bounds: a configuration of TLC cannot say a sequence."""
        bounds = [f"The{name} == {value}" for name, value in self.bounds.items()]
        return "\n".join(["---- MODULE Model ----", f"EXTENDS {self.module}", *bounds, "====", ""])

    def config(self) -> str:
        lines = [
            f"SPECIFICATION {SPECS[self.module]}",
            "CONSTANTS",
            *(f"    {name} <- The{name}" for name in self.bounds),
        ]
        lines += [f'    Fault = "{self.fault}"', "INVARIANTS", *(f"    {name}" for name in INVARIANTS[self.module])]
        lines += ["CHECK_DEADLOCK FALSE"] * (self.module in ENDLESS)
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Outcome:
    distinct: int
    found: str  #: the invariant that is broken, or "Deadlock"; empty: none
    seconds: float
    text: str


def snapshots(name: str, *modes: str, widths: str = "{2}", checkpoints: int = 1, given_up: int = 0) -> Run:
    bounds = {
        "NSources": "2",
        "NRecords": "1",
        "Widths": widths,
        "Modes": "{" + ", ".join(f'"{mode}"' for mode in modes) + "}",
        "MaxCheckpoints": str(checkpoints),
        "MaxGivenUp": str(given_up),
        "MaxCrashes": "2",
    }
    return Run(name, "Snapshots", bounds)


def layers(name: str, shapes: str, may_turn: str = "{FALSE}", **bounds: str) -> Run:
    usual = {
        "MaxRecords": "1",
        "MaxCheckpoints": "2",
        "MaxGivenUp": "0",
        "MaxCrashes": "2",
        "Savepoints": "FALSE",
        "Concurrent": "1",
    }
    return Run(name, "SmallLayers", {"Shapes": shapes, "MayTurn": may_turn, **usual, **bounds})


def fewer(run: Run, **bounds: str) -> Run:
    """The same on smaller bounds: enough to find a planted fault, and quicker."""
    return replace(run, bounds={**run.bounds, **bounds})


# Two sources, and two crashes in each. A final checkpoint comes on top of those that are counted.
ALIGNED = snapshots("aligned", "aligned", checkpoints=2)
GIVEN_UP = snapshots("given up", "aligned", given_up=1)
UNALIGNED = snapshots("unaligned", "unaligned", "aligned")
MIXED = snapshots("mixed", "aligned", "unaligned", given_up=1, widths="{1}", checkpoints=2)
RESCALED = snapshots("rescaled", "unaligned", "aligned", widths="{1, 2}")
STOPPED = snapshots("stopped", "stop", "aligned", widths="{1, 2}")
SAVEPOINT = snapshots("savepoint", "savepoint", "aligned", widths="{1}", checkpoints=2)
DRIVERS = Run("drivers", "Log", {"NDrivers": "3", "MaxCheckpoints": "3", "MaxLost": "1", "Short": "FALSE"})
SHORT_LOG = Run("short log", "Log", {"NDrivers": "2", "MaxCheckpoints": "5", "MaxLost": "1", "Short": "TRUE"})
SHORT_LOGS = Run("short log: three", "Log", {"NDrivers": "3", "MaxCheckpoints": "4", "MaxLost": "0", "Short": "TRUE"})

# Layers.tla, with which runs are compared.
LAYERS = layers("layers", "{<<2, 1>>}", MaxCheckpoints="1")
THREE_LAYERS = layers("layers: three", "{<<1, 1, 1>>}", "{TRUE}", MaxCheckpoints="1")
SEVERAL = layers("layers: several at a time", "{<<1, 1>>}", "{TRUE, FALSE}", Concurrent="2")
PLAIN_SAVEPOINTS = layers("layers: savepoints", "{<<1, 1>>}", MaxGivenUp="1", Savepoints="TRUE")

HOLDS = (
    *(ALIGNED, GIVEN_UP, UNALIGNED, MIXED, RESCALED, STOPPED, SAVEPOINT),
    *(DRIVERS, SHORT_LOG, SHORT_LOGS),
    *(LAYERS, THREE_LAYERS, SEVERAL, PLAIN_SAVEPOINTS),
)

ONE_CRASH = {"MaxCheckpoints": "1", "MaxCrashes": "1"}
TWO_DRIVERS = {"NDrivers": "2", "MaxCheckpoints": "2"}
PLANTED = (
    (fewer(ALIGNED, **ONE_CRASH), "committed before the log record"),
    (fewer(ALIGNED, **ONE_CRASH), "frames after a barrier are not held back"),
    (fewer(ALIGNED, **ONE_CRASH), "restored committables are forgotten"),
    (fewer(ALIGNED, **ONE_CRASH), "clean-up takes what the checkpoint holds"),
    (fewer(ALIGNED, **ONE_CRASH), "a position includes a record after the barrier"),
    (fewer(ALIGNED, **ONE_CRASH), "complete without the last answer"),
    (fewer(GIVEN_UP, MaxCrashes="0"), "given up, and nothing is released"),
    (fewer(UNALIGNED, MaxCrashes="0"), "what arrives after the cut is not captured"),
    (fewer(UNALIGNED, MaxCrashes="0"), "acknowledged before the capture is whole"),
    (fewer(UNALIGNED, MaxCrashes="1"), "in-flight records are not restored"),
    (fewer(MIXED, MaxCrashes="0"), "an unaligned cut misses held frames"),
    (fewer(RESCALED, MaxCrashes="1"), "in-flight records stay with their old slot"),
    (fewer(DRIVERS, **TWO_DRIVERS), "an old generation may still append"),
    (fewer(DRIVERS, **TWO_DRIVERS), "committed before the log record"),
    (fewer(DRIVERS, **TWO_DRIVERS), "a record in doubt is taken for absent"),
    (fewer(DRIVERS, **TWO_DRIVERS), "a record in doubt is committed"),
    (fewer(SHORT_LOG, MaxCheckpoints="4", MaxLost="0"), "nobody looks again"),
    (fewer(SHORT_LOG, MaxCheckpoints="4", MaxLost="0"), "generations are deleted too"),
    (fewer(DRIVERS, NDrivers="2", MaxCheckpoints="1", MaxLost="0"), "restored committables are forgotten"),
    (fewer(LAYERS, MaxCrashes="0"), "frames after a barrier are not held back"),
    (fewer(LAYERS, MaxCrashes="0"), "complete without the last answer"),
    (fewer(LAYERS, MaxCrashes="0"), "committed before the log record"),
    (fewer(LAYERS, MaxCrashes="0"), "finished before all is committed"),
    (fewer(THREE_LAYERS, MaxCrashes="0"), "finished before all is processed"),
    (fewer(THREE_LAYERS, MaxCrashes="0"), "what arrives after the cut is not captured"),
    (fewer(SEVERAL, MaxCrashes="1", MayTurn="{FALSE}", Concurrent="1"), "continued from an older one"),
    (fewer(PLAIN_SAVEPOINTS, MaxCrashes="0", MaxGivenUp="0"), "a savepoint stands by itself"),
)
RUNS = (*HOLDS, *(replace(run, fault=fault) for run, fault in PLANTED))


def check(run: Run, workers: int = 2) -> Outcome:
    """:raises RuntimeError: when TLC gave no answer: the specification cannot be read, or it took too long."""
    (jar,) = fetch.folder_of("tlc").glob("*.jar")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidegate-prove-") as folder:
        for module in (run.module, *EXTENDED.get(run.module, ())):
            shutil.copy(SPEC / f"{module}.tla", folder)
        (Path(folder) / "Model.tla").write_text(run.model())
        (Path(folder) / "Model.cfg").write_text(run.config())
        done = subprocess.run(
            [fetch.java(), "-XX:+UseParallelGC", "-Xmx1500m", f"-Djava.io.tmpdir={folder}", "-cp", str(jar), "tlc2.TLC",
             "-workers", str(workers), "-nowarning", "Model.tla"],
            cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    broken = re.search(r"Invariant (\w+) is violated|(Deadlock) reached", done.stdout)
    states = re.findall(r"([\d,]+) distinct states found", done.stdout)
    if not states or (broken is None and "No error has been found" not in done.stdout):
        raise RuntimeError(f"{run.name}: TLC gave no answer:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    found = "" if broken is None else broken[1] or broken[2]
    return Outcome(int(states[-1].replace(",", "")), found, time.monotonic() - began, done.stdout)


def main(names: list[str]) -> int:
    chosen = [run for run in RUNS if not names or run.name.startswith(tuple(names))]
    wrong, states = [], 0
    for run in chosen:
        outcome = check(run)
        states += outcome.distinct
        holds = run.fault == "none"
        verdict = outcome.found or "holds"
        states_and_time = f"{outcome.distinct:>9,} states {outcome.seconds:4.0f} s"
        print(f"{run.name:<26} {run.fault:<46} {verdict:<24} {states_and_time}", flush=True)
        if holds == bool(outcome.found):
            wrong.append(f"{run.name}: {run.fault}")
            print(outcome.text if holds else "    this fault was not found", flush=True)
    print(json.dumps({"runs": len(chosen), "states": states, "wrong": wrong}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
