"""What the profiler costs: one keyed sum in plain Python, without an end, while somebody asks for the flame graph of its keyed
vertex once a second, or nobody does, in turn. While somebody asks, every slot of that vertex samples its thread.

    python benchmarks/profiling.py [pairs] [seconds of each half]

As in watching.py both halves of a pair are of one run, rates are taken by the slots' own clocks, and the order is turned pair
by pair. Orders to sample are short here, so that the slots are quiet soon after the last look.

Last line, JSON: `ratio` = profiled / not profiled, records a second; `cpu_ratio` = the same of the records that the slots
process in a second of CPU time, which other work on the machine changes much less. Both are medians over the pairs, with the
spread of the ratios; the costs are 1 - ratio.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import bare
import harness
import watching

import tidegate as tg
from tidegate.coordinator import profiling
from tidegate.coordinator.observing import SlotSampled
from tidegate.rest import flame_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tidegate.client import JobClient

WARM_UP_S = 20.0
SETTLE_S = 1.5


class Total(tg.KeyedProcessFunction):
    """A function for each record: the sampler and the user's code share one interpreter lock."""

    total = tg.ValueState(int, default=0)

    def process_element(self, value: int, ctx: tg.Context) -> Iterator[int]:
        total = self.total.get() + value
        self.total.set(total)
        if total < 0:
            yield total


class Onlooker:
    """Asks for the flame graph once a second while it is switched on."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._on = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def switch(self, on: bool) -> None:
        (self._on.set if on else self._on.clear)()

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(self._url + path, timeout=60) as answer:
            return json.load(answer)

    def _run(self) -> None:
        (job,) = [entry["jid"] for entry in self._ask("/jobs/overview")["jobs"]]
        vertex = self._ask(f"/jobs/{job}")["vertices"][1]["id"]
        while True:
            self._on.wait()
            self._ask(f"/jobs/{job}/vertices/{vertex}/flamegraph?type=on_cpu")
            time.sleep(1.0)


def counted(client: JobClient) -> tuple[int, float, float]:
    """Of the keyed subtasks: records taken in, seconds on their clocks, seconds of CPU time."""
    records, seconds = watching.counted(client)
    cpu_ms = 0
    for heartbeat in client.view.snapshot().heartbeats.values():
        if heartbeat.process is not None and any(metrics.uid == "total" for metrics in heartbeat.operators):
            cpu_ms += heartbeat.process.cpu_ms
    return records, seconds, cpu_ms / 1000


def main(pairs: int = 20, seconds: float = 5.0) -> None:
    profiling.ORDER_S = flame_graph.ORDER_S = SETTLE_S
    spark = harness.session()
    env = tg.StreamEnvironment("profiling", parallelism=bare.WIDTH, spark=spark)
    env.checkpointing(every="1s", storage=harness.fresh_folder("profiling").as_uri())
    source = env.from_source(tg.DataGenerator(lambda i: i % 1000, type=int, splits=bare.WIDTH), uid="source")
    source.key_by(lambda n: n, key_type=int).process(Total(), uid="total", returns=int).collect(uid="out")
    client = env.execute_async()
    client.wait_until_running()
    samples: list[int] = []
    client.subscribe(
        lambda event: (
            samples.append(sum(stack.samples for stack in event.sampled.stacks))
            if isinstance(event, SlotSampled)
            else None
        )
    )
    time.sleep(WARM_UP_S)
    assert client.url is not None
    onlooker = Onlooker(client.url)
    per_cpu_s: dict[bool, list[float]] = {True: [], False: []}

    def half(on: bool) -> float:
        onlooker.switch(on)
        time.sleep(2 * SETTLE_S)
        records, began, cpu_s = counted(client)
        time.sleep(seconds)
        records_now, now, cpu_now_s = counted(client)
        per_cpu_s[on].append((records_now - records) / (cpu_now_s - cpu_s))
        return (records_now - records) / (now - began)

    results = harness.interleave(pairs, {"profiled": lambda: half(True), "not profiled": lambda: half(False)})
    client.cancel()
    client.wait()
    ratios = harness.ratios(results["profiled"], results["not profiled"])
    cpu_ratios = harness.ratios(per_cpu_s[True], per_cpu_s[False])
    harness.finish(
        {
            "ratio": harness.median(ratios),
            "spread": harness.spread(ratios),
            "cost": round(1 - harness.median(ratios), 4),
            "cpu_ratio": harness.median(cpu_ratios),
            "cpu_spread": harness.spread(cpu_ratios),
            "cpu_cost": round(1 - harness.median(cpu_ratios), 4),
            "not_profiled_per_s": round(harness.median(results["not profiled"])),
            "samples": sum(samples),
        }
    )


if __name__ == "__main__":
    main(*(type_(text) for type_, text in zip((int, float), sys.argv[1:])))
