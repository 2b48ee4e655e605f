"""What watching costs: a keyed sum with checkpoints each second, with and without another process that asks once a second for
all that the dashboard shows and for all metrics.

    python benchmarks/watching.py [rounds] [records]

Last line, JSON: `ratio` = watched / unwatched, the median over the rounds, which are interleaved.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import harness
import throughput

from tidegate.config import JobConfig
from tidegate.rest.server import RestSettings, server_for

if TYPE_CHECKING:
    from collections.abc import Iterator

PATHS = ("", "/operators", "/checkpoints", "/exceptions", "/logs")


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer) if "json" in answer.headers["Content-Type"] else answer.read()


def watch(url: str) -> None:
    """Until killed: once a second, what the dashboard asks for, of every job that runs. Says how many rounds it made."""
    while True:
        began = time.monotonic()
        for job in ask(f"{url}/jobs/overview")["jobs"]:
            if job["end-time"] < 0:
                for path in PATHS:
                    ask(f"{url}/jobs/{job['jid']}{path}")
        ask(f"{url}/metrics")
        print(time.monotonic() - began, flush=True)
        time.sleep(max(0.0, 1.0 - (time.monotonic() - began)))


@contextmanager
def watched(url: str, took: list[float]) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, __file__, "--watch", url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    took.append(float(process.stdout.readline()))  # it is up
    try:
        yield
    finally:
        process.kill()
        took += [float(line) for line in process.stdout.read().split()]
        process.wait()


def main(rounds: int = 7, records: int = 40_000_000) -> None:
    spark = harness.session()
    throughput.run(spark, 2_000_000, True)
    url = server_for(RestSettings.of(JobConfig())).url
    took: list[float] = []

    def run_watched() -> float:
        with watched(url, took):
            return throughput.run(spark, records, True)

    results = harness.interleave(
        rounds, {"watched": run_watched, "unwatched": lambda: throughput.run(spark, records, True)}
    )
    ratios = harness.ratios(results["watched"], results["unwatched"])
    harness.finish(
        {
            "ratio": round(harness.median(ratios), 3),
            "ratios": [round(ratio, 3) for ratio in ratios],
            "watched_per_s": round(harness.median(results["watched"])),
            "unwatched_per_s": round(harness.median(results["unwatched"])),
            "looks": len(took),
            "look_s": round(harness.median(took), 4),
        }
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        watch(sys.argv[2])
    else:
        main(*map(int, sys.argv[1:]))
