"""What watching costs: one keyed sum without an end, with checkpoints each second, while another process asks once a second for
all that the dashboard shows and for all metrics, or keeps still, in turn.

    python benchmarks/watching.py [pairs] [seconds of each half]

A rate is taken by the slots' own clocks, from their heartbeats. Both halves of a pair are of the same run, one after the other,
and the order is turned round pair by pair: what changes slowly, or from run to run, is the same for both.

Last line, JSON: `ratio` = watched / unwatched, the median over the pairs; `look_s`: how long one look takes; `driver_cores`:
how much of a core the driver's Python takes more while it is watched, which other work on the machine hardly changes;
`cost` = that over all cores that the job keeps busy, driver, JVM and workers together: what watching costs. The onlooker itself
is not counted: it is somebody's browser.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import bare
import harness
import psutil
import throughput

import tidegate as tg
from tidegate.coordinator.observing import JobStatus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.client import JobClient

PATHS = ("", "/operators", "/checkpoints", "/checkpoint-history", "/exceptions", "/logs")
WARM_UP_S = 20.0
SETTLE_S = 1.5  #: after a change: the heartbeat that stems from before it


def look(url: str) -> None:
    """A browser's part, without the drawing: one connection for all requests of a look. "on" and "off" come by stdin."""
    watching = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            (watching.set if line.strip() == "on" else watching.clear)()

    threading.Thread(target=listen, daemon=True).start()

    def ask(*paths: str) -> list[bytes]:
        with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
            answers = []
            for path in paths:
                connection.request("GET", path)
                answers.append(connection.getresponse().read())
            return answers

    (overview,) = ask("/jobs/overview")
    (job,) = [entry["jid"] for entry in json.loads(overview)["jobs"]]
    while True:
        watching.wait()
        began = time.monotonic()
        ask("/jobs/overview", *(f"/jobs/{job}{path}" for path in PATHS), "/metrics")
        took = time.monotonic() - began
        print(took, flush=True)
        time.sleep(max(0.0, 1.0 - took))


@contextmanager
def onlooker(url: str, took: list[float]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--look", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        assert process.poll() is None, "the onlooker has died"
        process.kill()
        assert process.stdout is not None
        took += [float(line) for line in process.stdout.read().split()]
        process.wait()


def counted(client: JobClient) -> tuple[int, float]:
    """Records that the keyed subtasks have taken in, and the time on their slots' clocks."""
    records, clocks = 0, []
    for heartbeat in client.view.snapshot().heartbeats.values():
        for metrics in heartbeat.operators:
            if metrics.uid == "total":
                records += metrics.records_in
                clocks.append((heartbeat.busy_ms + heartbeat.idle_ms + heartbeat.backpressured_ms) / 1000)
    return records, sum(clocks) / len(clocks)


@dataclass(frozen=True, slots=True)
class Cores:
    """How many are busy: the driver's Python, and all of the job with it."""

    driver: float
    job: float


def cpu_s(but: int) -> float:
    """CPU time of this process, the JVM and the workers, without that of the process `but`."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            if process.pid != but:
                times = process.cpu_times()
                total += times.user + times.system
    return total


def rate(client: JobClient, seconds: float, cores: list[Cores], onlooker: int) -> float:
    time.sleep(SETTLE_S)
    (before, began), used, of_all, at = counted(client), time.process_time(), cpu_s(onlooker), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - at
    cores.append(Cores((time.process_time() - used) / took, (cpu_s(onlooker) - of_all) / took))
    after, ended = counted(client)
    return (after - before) / (ended - began)


def main(pairs: int = 12, seconds: float = 6.0) -> None:
    spark = harness.session()
    env = tg.StreamEnvironment("watching", parallelism=bare.WIDTH, spark=spark)
    env.checkpointing(every="1s", storage=harness.fresh_folder("watching").as_uri())
    source = tg.DataGenerator(throughput.numbers, vectorised=True, type=throughput.NUMBERS, splits=bare.WIDTH)
    stream = env.from_source(source, uid="source").key_by("k")
    stream.process_batches(throughput.Total(), uid="total", returns=throughput.TIMES).collect(uid="times")
    client = env.execute_async()
    while client.status is not JobStatus.RUNNING:
        time.sleep(0.1)
    time.sleep(WARM_UP_S)
    took: list[float] = []
    cores: dict[str, list[Cores]] = {"on": [], "off": []}
    assert client.url is not None
    with onlooker(client.url, took) as process:

        def half(word: str) -> float:
            assert process.stdin is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            return rate(client, seconds, cores[word], process.pid)

        results = harness.interleave(pairs, {"watched": lambda: half("on"), "unwatched": lambda: half("off")})
    checkpoints = client.view.snapshot().completed
    client.cancel()
    client.wait()
    ratios = harness.ratios(results["watched"], results["unwatched"])
    more = statistics.median(on.driver - off.driver for on, off in zip(cores["on"], cores["off"]))
    busy = statistics.median(off.job for off in cores["off"])
    summary: dict[str, Any] = {
        "ratio": round(harness.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "watched_per_s": round(harness.median(results["watched"])),
        "unwatched_per_s": round(harness.median(results["unwatched"])),
        "driver_cores": round(more, 4),
        "job_cores": round(busy, 3),
        "cost": round(more / busy, 4),
        "checkpoints": checkpoints,
        "looks": len(took),
        "look_s": round(harness.median(took), 4),
    }
    harness.finish(summary)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--look"]:
        look(sys.argv[2])
    else:
        main(*(type_(text) for type_, text in zip((int, float), sys.argv[1:])))
