"""Calls to the outside: how close a slot comes to capacity / latency, and checkpoints while every call takes 10 s.

    python benchmarks/async_calls.py [checkpoints]

One slot asks, a source before the exchange feeds it as fast as it can. `in_flight_ratio`: answers a second with 1,000 calls in
flight of 1 s each, over 1,000 (bar: 0.9), ordered and unordered, over 10 s of a run. Calls are `asyncio.sleep`: what is
measured is the slot. `unaligned_p99_s` and `aligned_p99_s`: checkpoints, one after another, with 100 calls of 10 s in flight
and input that waits (bar: 0.3). Last line: JSON.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import harness

import tidegate as tg
from tidegate.coordinator.observing import CheckpointStatus

CAPACITY = 1000
LATENCY_S = 1.0
SLOW_S = 10.0
WARM_S = 4.0
MEASURED_S = 10.0
EVERY_S = 0.2
PATIENCE_S = 300.0


async def quick(n: int) -> int:
    await asyncio.sleep(LATENCY_S)
    return n


async def slow(n: int) -> int:
    await asyncio.sleep(SLOW_S)
    return n


def start(spark: Any, function: Any, capacity: int, ordered: bool, **checkpointing: Any) -> tg.JobClient:
    env = tg.StreamEnvironment("async-calls", parallelism=1, spark=spark)
    env.checkpointing(storage=harness.fresh_folder("async-calls").as_uri(), **checkpointing)
    numbers = env.from_source(tg.DataGenerator(lambda n: n, type=int, splits=1), uid="numbers")
    asked = numbers.rebalance().async_map(function, returns=int, capacity=capacity, ordered=ordered, uid="ask")
    asked.filter(lambda n: False).print(uid="none")
    client = env.execute_async()
    deadline = time.monotonic() + PATIENCE_S
    while client.status.value != "RUNNING":
        if time.monotonic() > deadline or client.status.is_terminal:
            raise SystemExit(f"the job is {client.status.value}")
        time.sleep(0.05)
    return client


def in_flight_ratio(spark: Any, ordered: bool) -> float:
    """By the heartbeats of the slot that asks, between the first and the last of the time that is measured."""
    heard: list[tuple[float, int]] = []

    def listen(event: Any) -> None:
        if isinstance(event, tg.SlotReported):
            heard.extend(
                (time.monotonic(), each.records_out) for each in event.heartbeat.operators if each.uid == "ask"
            )

    client = start(spark, quick, CAPACITY, ordered, every="1s")
    client.subscribe(listen)
    try:
        time.sleep(WARM_S)
        heard.clear()
        time.sleep(MEASURED_S)
    finally:
        client.cancel()
        client.wait()
    (began, before), (ended, after) = heard[0], heard[-1]
    return (after - before) / (ended - began) / (CAPACITY / LATENCY_S)


def durations(spark: Any, count: int, unaligned: bool) -> list[float]:
    client = start(spark, slow, 100, False, every=f"{EVERY_S}s", unaligned=unaligned)
    found: dict[int, float] = {}
    try:
        time.sleep(WARM_S)
        warm = max((each.checkpoint for each in client.checkpoints()), default=0)
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            time.sleep(EVERY_S / 2)
            for each in client.checkpoints():
                if each.status is CheckpointStatus.COMPLETED and each.checkpoint > warm:
                    found[each.checkpoint] = each.duration_s or 0.0
    finally:
        client.cancel()
        client.wait()
    if len(found) < count:
        raise SystemExit(f"only {len(found)} of {count} checkpoints")
    return list(found.values())


def main(checkpoints: int = 100) -> None:
    spark = harness.session(8)
    ratios = {name: in_flight_ratio(spark, name == "ordered") for name in ("ordered", "unordered")}
    harness.say(f"in flight: {ratios}")
    unaligned, aligned = durations(spark, checkpoints, True), durations(spark, checkpoints, False)
    harness.finish(
        {
            "in_flight_ratio": round(min(ratios.values()), 3),
            **{f"in_flight_ratio_{name}": round(ratio, 3) for name, ratio in ratios.items()},
            "unaligned_p99_s": round(harness.percentile(unaligned, 0.99), 3),
            "unaligned_p50_s": round(harness.percentile(unaligned, 0.5), 3),
            "aligned_p99_s": round(harness.percentile(aligned, 0.99), 3),
            "aligned_p50_s": round(harness.percentile(aligned, 0.5), 3),
            "checkpoints": len(unaligned) + len(aligned),
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
