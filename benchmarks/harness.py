"""What all benchmarks share: one warm Spark session, interleaved runs, medians with their spread, JSON as the last line.

Machines are noisy, so nothing here is absolute: everything is a ratio of runs made in turn, in one process.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tidegate.coordinator.observing import CheckpointChanged, CheckpointStatistics, CheckpointStatus, JobEvent
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


class Checkpoints:
    """Every checkpoint of a job that ended: `client.view.subscribe(Checkpoints())`."""

    def __init__(self) -> None:
        self.ended: dict[int, CheckpointStatistics] = {}

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, CheckpointChanged) and event.statistics.duration_s is not None:
            self.ended[event.statistics.checkpoint] = event.statistics

    def completed_s(self) -> list[float]:
        """How long each took that was completed."""
        found = list(self.ended.values())
        return [each.duration_s or 0.0 for each in found if each.status is CheckpointStatus.COMPLETED]

    def failed(self) -> int:
        return sum(each.status is CheckpointStatus.FAILED for each in list(self.ended.values()))


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


def machine() -> dict[str, Any]:
    """What a number belongs to; without the name of anything."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("tidegate", "pyspark", "pyarrow", "numpy")},
    }


def save(name: str, result: dict[str, Any]) -> None:
    """The file that stands behind a claim: benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


def finish(result: dict[str, Any]) -> None:
    print(json.dumps(result), flush=True)
