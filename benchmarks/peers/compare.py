"""Tidegate beside its peers: the same work, records, keys and guarantee, on this machine, in turn.

    make peers
    python benchmarks/peers/compare.py [--only columns,flink_sql] [--rounds 3] [--scale 1.0] [--save NAME] [--check]

A running sum for each of 100,000 keys, each new sum emitted where the peer emits for each record, parallelism 2, checkpoints
each second (exactly-once where the peer has it). Each peer runs in an environment of its own (environments.py), each run in a
process of its own. A run has two sizes; start-up and end are in both, so

    records/s = (large - small) / (seconds of large - seconds of small)

Rounds go round by round through all candidates; a ratio is the median of the ratios of each round, with their spread. `--check`
runs each once with few records, and compares every sum that it emits with what it has to be; a wrong one ends the comparison. A
peer that cannot be had or fails is left out of the table, and said with its reason.

`--save NAME` also writes benchmarks/results/NAME.json, with the machine and all versions. Last line: JSON.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import environments
import harness
import work

HERE = Path(__file__).parent
PATIENCE_S = 600.0
CHECKED = 3 * work.KEYS
US = "tidegate"


@dataclass(frozen=True)
class Candidate:
    what: str
    package: str  #: whose environment; `tidegate` and `pyspark`: this one's
    script: str
    small: int
    large: int
    options: list[str] = field(default_factory=list)
    each_record: bool = True  #: emits a sum for each record
    checkable: bool = True  #: emits sums
    check_options: list[str] | None = None


CANDIDATES = {
    "bare": Candidate(
        "bare Spark pipeline, no state", US, "tidegate_job.py", 10_000_000, 50_000_000, ["bare"], checkable=False
    ),
    "quiet": Candidate(
        "Tidegate, batch function, no output", US, "tidegate_job.py", 10_000_000, 40_000_000, ["quiet"], checkable=False
    ),
    "columns": Candidate("Tidegate, built-in sum", US, "tidegate_job.py", 5_000_000, 25_000_000, ["columns"]),
    "record": Candidate("Tidegate, Python function", US, "tidegate_job.py", 400_000, 2_400_000, ["record"]),
    "string": Candidate("the same, string keys", US, "tidegate_job.py", 400_000, 2_400_000, ["string"]),
    "flink_sql": Candidate("Flink SQL, Java, heap", "apache-flink", "flink_sql.py", 500_000, 2_500_000),
    "pyflink_process": Candidate(
        "PyFlink, process mode", "apache-flink", "flink_datastream.py", 50_000, 250_000, ["process"]
    ),
    "pyflink_thread": Candidate(
        "PyFlink, thread mode", "apache-flink", "flink_datastream.py", 20_000, 120_000, ["thread"]
    ),
    "spark": Candidate(
        "Spark, native aggregation", "pyspark", "spark_streaming.py", 3_000_000, 11_000_000,
        ["native", "--batch", "1000000"], each_record=False, check_options=["native", "--batch", "100000"],
    ),
    "tws": Candidate(
        "Spark, Python transformWithState", "pyspark", "spark_streaming.py", 60_000, 180_000,
        ["tws", "--batch", "20000"], check_options=["tws", "--batch", "100000"],
    ),
    "bytewax": Candidate("Bytewax, two processes", "bytewax", "bytewax_flow.py", 200_000, 1_000_000),
    "pathway": Candidate("Pathway, two workers", "pathway", "pathway_job.py", 100_000, 500_000, each_record=False),
}  # fmt: skip

RATIOS = {
    "columns_vs_bare": ("quiet", "bare"),
    "columns_vs_flink_sql": ("columns", "flink_sql"),
    "columns_vs_spark": ("columns", "spark"),
    "columns_vs_pathway": ("columns", "pathway"),
    "record_vs_flink_sql": ("record", "flink_sql"),
    "record_vs_bytewax": ("record", "bytewax"),
    "record_vs_pyflink_thread": ("record", "pyflink_thread"),
    "record_vs_pyflink_process": ("record", "pyflink_process"),
    "record_vs_tws": ("record", "tws"),
    "record_vs_pathway": ("record", "pathway"),
    "string_vs_bytewax": ("string", "bytewax"),
}
#: Peers that do other work than this, so that nothing could be compared.
NOT_COMPARED = {
    "quix": "Quix Streams reads and writes nothing but Kafka, which would be measured with it",
    "spark_rtm": "Spark's Real-time Mode reads nothing but Kafka, and takes no function with state from Python",
}


class Failed(Exception):
    """A run that gave no result."""


def python_for(candidate: Candidate) -> str:
    return sys.executable if candidate.package in (US, "pyspark") else environments.python_of(candidate.package)


def run(candidate: Candidate, records: int, options: list[str], answers: Path | None = None) -> dict[str, Any]:
    """:raises Failed: :raises environments.CannotBeHad:"""
    with tempfile.TemporaryDirectory(prefix="tidegate-peer-") as state:
        command = [python_for(candidate), str(HERE / candidate.script), *options]
        command += ["--records", str(records), "--state", f"{state}/state"]
        if answers is not None:
            command += ["--answers", str(answers)]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=PATIENCE_S, env=environment(candidate)
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"no end within {PATIENCE_S:g} s") from error
    if done.returncode != 0:
        raise Failed(done.stderr.strip()[-500:])
    return work.said(done.stdout)


def environment(candidate: Candidate) -> dict[str, str]:
    """Without what was set for another Spark, or for this process's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    if candidate.package == "pyspark":
        kept["PYTHONPATH"] = environments.with_protobuf()
    return kept | {"PYSPARK_PYTHON": sys.executable, "PYTHONWARNINGS": "ignore"}


def speed(candidate: Candidate, scale: float) -> float:
    sizes = [round_to_batch(candidate, int(size * scale)) for size in (candidate.small, candidate.large)]
    small, large = (run(candidate, size, candidate.options) for size in sizes)
    if large["seconds"] <= small["seconds"]:
        raise Failed(f"{sizes[1]} records took no longer than {sizes[0]}: give a larger --scale")
    return float((large["records"] - small["records"]) / (large["seconds"] - small["seconds"]))


def round_to_batch(candidate: Candidate, records: int) -> int:
    if "--batch" not in candidate.options:
        return max(records // work.PARALLELISM, 1) * work.PARALLELISM
    batch = int(candidate.options[candidate.options.index("--batch") + 1])
    return max(records // batch, 1) * batch


def check(candidate: Candidate) -> None:
    """:raises work.WrongAnswer:"""
    if not candidate.checkable:
        return  # it asserts for itself what it has counted
    answers = Path(tempfile.mkdtemp(prefix="tidegate-answers-"))
    try:
        run(candidate, CHECKED, candidate.check_options or candidate.options, answers)
        work.check(answers, CHECKED, candidate.each_record)
    finally:
        shutil.rmtree(answers)


def measure(names: list[str], rounds: int, scale: float) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Speeds of each round, and why others are missing."""
    speeds: dict[str, list[float]] = {name: [] for name in names}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            if name in missing:
                continue
            try:
                speeds[name].append(speed(CANDIDATES[name], scale))
                harness.say(f"round {number + 1}/{rounds}  {name}: {speeds[name][-1]:,.0f} records/s")
            except (Failed, environments.CannotBeHad) as error:
                missing[name] = str(error)
                speeds.pop(name)
                harness.say(f"{name} is left out: {error}")
    return {name: found for name, found in speeds.items() if found}, missing


def summary(speeds: dict[str, list[float]], missing: dict[str, str]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, (over, under) in RATIOS.items():
        if over in speeds and under in speeds:
            found = harness.ratios(speeds[over], speeds[under])
            result[name], result[f"{name}_spread"] = harness.median(found), harness.spread(found)
    result["records_per_s"] = {name: int(harness.median(found)) for name, found in speeds.items()}
    result["records_per_s_spread"] = {name: [int(v) for v in harness.spread(found)] for name, found in speeds.items()}
    return result | {"missing": missing | NOT_COMPARED, "rounds": len(next(iter(speeds.values()), []))}


def table(result: dict[str, Any]) -> str:
    lines = ["", f"{'':36}{'thousand records/s':>20}{'spread':>18}   Tidegate is so many times as fast"]
    for name, candidate in CANDIDATES.items():
        if name in result["records_per_s"]:
            low, high = (f"{value / 1000:,.0f}" for value in result["records_per_s_spread"][name])
            beside = [f"{ratio.split('_vs_')[0]} {result[ratio]:.3g}"
                      for ratio, (_, under) in RATIOS.items() if under == name and ratio in result]  # fmt: skip
            median = f"{result['records_per_s'][name] / 1000:,.0f}"
            lines.append(f"{candidate.what:36}{median:>20}{f'{low} to {high}':>18}   {', '.join(beside)}")
        elif name in result["missing"]:
            lines.append(f"{candidate.what:36}{'not measured':>20}   {result['missing'][name].splitlines()[0]}")
    return "\n".join([*lines, *(f"{name}: {reason}" for name, reason in NOT_COMPARED.items())])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(CANDIDATES), help="names of candidates")
    parser.add_argument("--rounds", type=int, default=3, help="0: only the checks")
    parser.add_argument("--scale", type=float, default=1.0, help="of all sizes")
    parser.add_argument("--check", action="store_true", help="also the answers of each")
    parser.add_argument("--save", help="name of a file in benchmarks/results")
    options = parser.parse_args()
    names = options.only.split(",")
    unknown = sorted(set(names) - CANDIDATES.keys())
    if unknown:
        parser.error(f"no such candidate: {', '.join(unknown)}; there are {', '.join(CANDIDATES)}")
    checked = []
    for name in names if options.check else ():
        try:
            check(CANDIDATES[name])
            checked.append(name)
            harness.say(f"{name}: every sum is right")
        except (Failed, environments.CannotBeHad) as error:
            harness.say(f"{name} cannot be checked: {error}")
    speeds, missing = measure(names, options.rounds, options.scale)
    result = summary(speeds, missing) | {
        "checked": checked,
        "machine": harness.machine() | {"peers": environments.RELEASES},
    }
    print(table(result))
    if options.save:
        harness.save(options.save, result)
    harness.finish(result)


if __name__ == "__main__":
    main()
