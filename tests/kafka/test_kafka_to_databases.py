"""From a real topic into a real table on real Spark: workers, the broker and the database are killed."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession

import tidegate as tg
from databases.conftest import mariadb, postgres, server  # noqa: F401 - fixtures
from databases.kit import ids_in, new_table, prepared_of
from databases.servers import DatabaseServer
from faults.jobs.crashes import CrashesInOrder
from faults.kit import await_that
from kafka.kit import send
from tidegate.coordinator.observing import JobStatus
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

MESSAGES = 3000
CHUNK = 50
_jobs = itertools.count(1)

for pickler in (cloudpickle, spark_cloudpickle):  # the executors cannot import the tests
    pickler.register_pickle_by_value(sys.modules[__name__])


@dataclass
class Order:
    id: int
    customer: str
    amount: float


def test_each_message_is_in_the_table_once_when_workers_the_broker_and_the_database_are_killed(
    server: DatabaseServer,  # noqa: F811
    broker: Any,
    topic: Callable[..., str],
    tmp_path: Path,
    spark_session: SparkSession,
) -> None:
    source, table = topic(partitions=2), new_table(server)
    rows = [{"id": number, "customer": f"c{number % 5}", "amount": number / 2} for number in range(MESSAGES)]
    chunks = [rows[start : start + CHUNK] for start in range(0, MESSAGES, CHUNK)]
    crashes = [Crash("slot.before-commit", nth=2), Crash("slot.before-commit"), Crash("slot.after-ack")]
    env = tg.StreamEnvironment(f"kafka-to-table-{next(_jobs)}", parallelism=2, spark=spark_session)
    env.checkpointing(every="200ms", storage=f"file://{tmp_path}/checkpoints")
    env.restart_strategy("fixed-delay", attempts=1000, delay="0s")
    notes = tmp_path / "notes"
    notes.mkdir()
    env._crash_points = CrashesInOrder(notes, crashes)
    end = {0: MESSAGES // 2, 1: MESSAGES // 2}
    stream = env.from_source(tg.KafkaSource(broker.address, source, type=Order, end=end), uid="topic")
    stream.sink_to(tg.DatabaseSink(server.url, table), uid="table")

    client = env.execute_async()
    try:
        # A chunk for each checkpoint, so that there is something to commit whenever somebody is to die.
        while len(list(notes.glob("crash-*"))) < len(crashes):
            send(broker.address, source, chunks.pop())
            done = client.view.completed
            await_that("a checkpoint", lambda done=done: client.view.completed > done, patience_s=60)
        assert chunks, "nothing is left to send: they would be killed after the end"
        broker.kill()
        server.restart()
        broker.start()
        for chunk in chunks:
            send(broker.address, source, chunk)
        assert client.wait(timedelta(seconds=120)) is JobStatus.FINISHED
    finally:
        if not client.status.is_terminal:
            client.cancel()
            client.wait(timedelta(seconds=60))

    assert len(client.view.failures) >= len(crashes)
    assert ids_in(server, table) == list(range(MESSAGES))
    assert prepared_of(server) == []
