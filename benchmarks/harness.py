"""What all benchmarks share: one warm Spark session, interleaved runs, medians with their spread, JSON as the last line.

Machines are noisy, so nothing here is absolute: everything is a ratio of runs made in turn, in one process.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate.spark.session import make_session

warnings.simplefilter("ignore")

RESULTS = Path(__file__).parent / "results"


def session(slots: int = 24) -> Any:
    return make_session("tidegate-benchmark", f"local[{slots}]", slots)


def fresh_folder(name: str) -> Path:
    folder = Path(tempfile.gettempdir()) / "tidegate-benchmarks" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def interleave(rounds: int, runs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Each round runs every candidate once, in turn; the order is turned round by round."""
    results: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            results[name].append(runs[name]())
            say(f"round {number + 1}/{rounds}  {name}: {results[name][-1]:,.3g}")
    return results


def ratios(over: list[float], under: list[float]) -> list[float]:
    return [a / b for a, b in zip(over, under)]


def median(values: list[float]) -> float:
    return round(statistics.median(values), 4)


def spread(values: list[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]


def percentile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def save(name: str, result: dict[str, Any]) -> None:
    """The file that stands behind a claim: benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def finish(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)
