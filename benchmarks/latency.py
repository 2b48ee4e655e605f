"""Latency of a record through two shuffles, with exactly-once checkpoints every second.

    python benchmarks/latency.py [seconds]

1,000 records a second for 60 s (`p50_ms`, `p99_ms`), then one record and 5 s of silence, 20 times (`lone_max_ms`). The stamp is
taken when the source makes the record, and read where the last operator gets it; both on one machine's clock.
Last line: JSON.
"""

from __future__ import annotations

import sys
from time import time
from typing import Any

import harness

import tidegate as tg

WARM_UP_S = 10
Stamped = tuple[int, float]


class Count(tg.KeyedProcessFunction):
    seen = tg.ValueState(int, default=0)

    def process_element(self, record: Stamped, ctx: tg.Context) -> list[Stamped]:
        self.seen.set(self.seen.get() + 1)
        return [record]


class Measure(tg.KeyedProcessFunction):
    """Emits (number, latency in ms)."""

    def process_element(self, record: Stamped, ctx: tg.Context) -> list[tuple[int, float]]:
        return [(record[0], (time() - record[1]) * 1e3)]


def run(spark: Any, rate: float, count: int) -> list[tuple[int, float]]:
    env = tg.StreamEnvironment("latency", parallelism=2, spark=spark)
    env.checkpointing(every="1s", storage=harness.fresh_folder("latency").as_uri())
    source = tg.DataGenerator(lambda i: (i, time()), count=count, rate=rate, type=Stamped, splits=2)
    (
        env.from_source(source, uid="source")
        .key_by(0)
        .process(Count(), uid="count", returns=Stamped)
        .key_by(lambda record: record[0] % 97, key_type=int)
        .process(Measure(), uid="measure", returns=Stamped)
        .collect(uid="latencies")
    )
    return env.execute().results("latencies")


def main(seconds: int = 60) -> None:
    spark = harness.session()
    run(spark, 1000, 5000)
    harness.say(f"1,000 records/s for {seconds + WARM_UP_S} s")
    steady = [ms for number, ms in run(spark, 1000, 1000 * (seconds + WARM_UP_S)) if number >= 1000 * WARM_UP_S]
    harness.say("one record each 5 s, 20 times")
    lone = [ms for _, ms in run(spark, 0.2, 21)][1:]
    harness.finish(
        {
            "p50_ms": round(harness.percentile(steady, 0.5), 2),
            "p90_ms": round(harness.percentile(steady, 0.9), 2),
            "p99_ms": round(harness.percentile(steady, 0.99), 2),
            "max_ms": round(max(steady), 2),
            "lone_max_ms": round(max(lone), 2),
            "lone_median_ms": round(harness.percentile(lone, 0.5), 2),
            "records": len(steady),
        }
    )


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:]))
