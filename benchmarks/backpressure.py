"""Checkpoints of a job that cannot keep up: sources at full speed into a sink that takes 10 ms, then 100 ms, a record.

    python benchmarks/backpressure.py [checkpoints]

Two sources -> two keyed counts -> two sinks, records of 1 KB. When the pipeline is full, at least 100 unaligned checkpoints
at each speed: `unaligned_p99_s` is the slower of the two p99 (bar: 0.3), `slowdown_ratio` the larger over the smaller
(bar: 1.5). `in_flight_bytes`: what a checkpoint holds of records under way, the median and the largest. `aligned_s`: one
aligned checkpoint at 10 ms a record, for comparison; it has to wait for all records before its barrier.
Last line: JSON.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import harness

import tidegate as tg
from tidegate.connectors.contract import Sink, SinkWriter, WriterContext
from tidegate.coordinator.observing import CheckpointStatistics, CheckpointStatus

Record = tuple[int, bytes]
RECORD_BYTES = 1000
WIDTH = 2
FULL_S = 6.0  #: until inboxes and network are full
EVERY_S = 0.15
PATIENCE_S = 600.0


class SlowSink(Sink):
    """An outside world that takes its time for each record."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def writer(self, context: WriterContext) -> SinkWriter:
        return _SlowWriter(self.seconds)


class _SlowWriter(SinkWriter):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def write(self, batch: Any) -> None:
        for _ in range(len(batch)):
            time.sleep(self._seconds)


class Count(tg.KeyedProcessFunction):
    seen = tg.ValueState(int, default=0)

    def process_element(self, record: Record, ctx: tg.Context) -> list[Record]:
        self.seen.set(self.seen.get() + 1)
        return [record]


def start(spark: Any, seconds: float, **guarantee: Any) -> tg.JobClient:
    env = tg.StreamEnvironment("backpressure", parallelism=WIDTH, spark=spark)
    env.checkpointing(storage=harness.fresh_folder("backpressure").as_uri(), **guarantee)
    payload = b"x" * RECORD_BYTES
    source = tg.DataGenerator(lambda i: (i, payload), type=Record, splits=WIDTH)
    (
        env.from_source(source, uid="source")
        .key_by(lambda record: record[0] % 1000, key_type=int)
        .process(Count(), uid="count", returns=Record)
        .key_by(lambda record: record[0] % 997, key_type=int)
        .process(Count(), uid="again", returns=Record)
        .sink_to(SlowSink(seconds), uid="slow")
    )
    return env.execute_async()


def completed(client: tg.JobClient) -> list[CheckpointStatistics]:
    return [each for each in client.checkpoints() if each.status is CheckpointStatus.COMPLETED]


def unaligned(spark: Any, seconds: float, count: int) -> dict[str, Any]:
    """`count` checkpoints, taken one after another once everything is full."""
    found: dict[int, CheckpointStatistics] = {}
    client = start(spark, seconds, every=f"{EVERY_S}s", unaligned=True)
    try:
        await_running(client)
        time.sleep(FULL_S)
        warm = max((each.checkpoint for each in client.checkpoints()), default=0)
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count and time.monotonic() < deadline:
            time.sleep(EVERY_S / 2)
            found |= {each.checkpoint: each for each in completed(client) if each.checkpoint > warm}
    finally:
        client.cancel()
        client.wait()
    if len(found) < count:
        raise SystemExit(f"only {len(found)} of {count} checkpoints at {seconds} s a record")
    durations = [each.duration_s for each in found.values()]
    in_flight = [sum(p.timings.in_flight_bytes for p in each.acknowledged.values()) for each in found.values()]
    assert all(p.timings.unaligned for each in found.values() for s, p in each.acknowledged.items() if s.layer)
    slowest = max(found.values(), key=lambda each: each.duration_s)
    for slot, part in sorted(slowest.acknowledged.items()):
        harness.say(
            f"  slowest, {slowest.checkpoint}: slot {slot} after {part.acknowledged_after_s:.3f} s {part.timings}"
        )
    return {
        "p50_s": round(harness.percentile(durations, 0.5), 4),
        "p99_s": round(harness.percentile(durations, 0.99), 4),
        "max_s": round(max(durations), 4),
        "checkpoints": len(durations),
        "in_flight_bytes": [int(harness.percentile(in_flight, 0.5)), max(in_flight)],
    }


def aligned(spark: Any, seconds: float) -> float:
    client = start(spark, seconds, every=None)
    try:
        await_running(client)
        time.sleep(FULL_S)
        client.checkpoint()
        deadline = time.monotonic() + PATIENCE_S
        while not completed(client) and time.monotonic() < deadline:
            time.sleep(0.1)
        done = completed(client)
        return round(done[0].duration_s, 3) if done else float("inf")
    finally:
        client.cancel()
        client.wait()


def await_running(client: tg.JobClient) -> None:
    deadline = time.monotonic() + 120
    while client.status.value != "RUNNING":
        if time.monotonic() > deadline or client.status.is_terminal:
            raise SystemExit(f"the job is {client.status.value}")
        time.sleep(0.05)


def main(checkpoints: int = 150) -> None:
    spark = harness.session()
    results = {}
    for milliseconds in (10, 100):
        results[milliseconds] = unaligned(spark, milliseconds / 1000, checkpoints)
        harness.say(f"{milliseconds} ms a record: {results[milliseconds]}")
    p99 = [result["p99_s"] for result in results.values()]
    harness.finish(
        {
            "unaligned_p99_s": max(p99),
            "slowdown_ratio": round(max(p99) / min(p99), 3),
            "at_10_ms": results[10],
            "at_100_ms": results[100],
            "aligned_s": aligned(spark, 0.010),
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
