"""Workers killed while records are in flight to the outside and in open windows. Real Spark.

The answer is worked out in plain Python over the whole input, and what was committed is read with `open` and a parser.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import tidegate as tg
from faults.jobs.paced import Hold, Paced
from faults.kit import await_that, committed_rows
from tidegate.coordinator.observing import AttemptFailed, CheckpointStatus, JobEvent, JobStatus

pytestmark = [pytest.mark.spark, pytest.mark.faults]

KEYS, RECORDS, HELD = 7, 1200, 400
WINDOW_MS = 1000
SLOTS = 4  #: two layers


@dataclass(frozen=True)
class Reading:
    sensor: int
    at: int
    level: int


def reading(index: int) -> Reading:
    """Out of order by up to 90 ms."""
    return Reading(index % KEYS, index * 20 - index * 37 % 90, index % 11)


async def looked_up(record: Reading) -> Reading:
    await asyncio.sleep(0.02)
    return Reading(record.sensor, record.at, record.level * 10)


def expected() -> Counter[tuple[int, int, int, int]]:
    """SELECT sensor, window, count(*), sum(level * 10) ... GROUP BY sensor, window."""
    windows: dict[tuple[int, int], list[int]] = {}
    for index in range(RECORDS):
        record = reading(index)
        start = record.at - record.at % WINDOW_MS
        windows.setdefault((record.sensor, start), []).append(record.level * 10)
    return Counter((sensor, start, len(levels), sum(levels)) for (sensor, start), levels in windows.items())


@pytest.mark.parametrize(
    ("backend", "unaligned"), [("rocksdb", True), pytest.param("hashmap", False, marks=pytest.mark.slow)]
)
def test_no_record_is_lost_or_counted_twice_in_a_call_or_a_window(
    tmp_path: Path, spark_session: SparkSession, seed: int, backend: str, unaligned: bool
) -> None:
    let_go = tmp_path / "let-go"
    env = tg.StreamEnvironment("calls-and-windows", parallelism=2, spark=spark_session)
    env.checkpointing(every="100ms", storage=f"file://{tmp_path}/checkpoints", unaligned=unaligned)
    env.state_backend(backend)
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    source = Paced(tg.DataGenerator(reading, count=RECORDS, type=Reading, splits=2), 40, Hold(HELD, str(let_go)))
    times = tg.WatermarkStrategy.bounded_out_of_orderness("100ms", timestamp="at")
    (
        env.from_source(source, uid="readings")
        .assign_timestamps_and_watermarks(times, uid="times")
        .async_map(looked_up, returns=Reading, ordered=False, capacity=50, uid="calls")
        .key_by("sensor")
        .window(tg.TumblingEventTimeWindows("1s"))
        .aggregate(n=tg.count(), total=tg.sum("level"), uid="windows")
        .sink_to(tg.FileSink(tmp_path / "out"), uid="files")
    )
    moments = random.Random(seed)

    events: list[JobEvent] = []
    client = env.execute_async()
    client.subscribe(events.append)
    try:
        for _ in range(2):
            kill_a_worker(client, events, moments)
        let_go.touch()
        client.wait()
    finally:
        client.cancel()

    rows: list[Any] = committed_rows(str(tmp_path / "out"))
    got = Counter((row["sensor"], row["window_start"], row["n"], row["total"]) for row in rows)
    assert sorted((got - expected()).elements()) == [], "what never was, or was written twice"
    assert sorted((expected() - got).elements()) == [], "what was lost"


def kill_a_worker(client: tg.JobClient, events: list[JobEvent], moments: random.Random) -> None:
    """Of any layer, some checkpoints after the job has come to run; until its driver has noticed."""
    await_that("it runs", lambda: client.status is JobStatus.RUNNING and len(client.workers()) == SLOTS)
    wanted, failures = completed(client) + moments.randrange(4), failed(events)
    await_that("checkpoints", lambda: completed(client) >= wanted)
    os.kill(client.workers()[moments.choice(sorted(client.workers()))].pid, signal.SIGKILL)
    await_that("it is noticed", lambda: failed(events) > failures)


def failed(events: list[JobEvent]) -> int:
    return sum(isinstance(event, AttemptFailed) for event in events)


def completed(client: tg.JobClient) -> int:
    return sum(each.status is CheckpointStatus.COMPLETED for each in client.checkpoints())
