"""From topic to topic on real Spark: workers, drivers and the broker itself are killed between prepare and commit.

The transaction timeout is shorter than the broker's outage. The output is read by a read-committed consumer of its own, and
another one notes when it first saw each epoch: never before its checkpoint stood in the job's log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from databases.test_under_spark import FirstSightings
from faults.jobs.tally import KAFKA_PARTITIONS, SOURCES, Settings
from faults.kit import (
    assert_exact,
    await_that,
    crash_pid,
    crashes_that_happened,
    driver,
    gateway_of,
    is_running,
    watched,
)
from kafka.kit import make_topic, read_json
from tidegate.coordinator.observing import JobStatus
from tidegate.testing.crash_points import Crash

pytestmark = [pytest.mark.spark, pytest.mark.faults]

CHUNK = 10  #: readings of each source that are sent at a time; the next ones follow when a checkpoint has completed


@dataclasses.dataclass(frozen=True)
class Topics:
    servers: str
    readings: str
    rows: str
    markers: str

    @property
    def names(self) -> tuple[str, str, str, str]:
        return self.servers, self.readings, self.rows, self.markers

    def committed(self) -> list[list[int]]:
        rows: list[list[int]] = read_json(self.servers, self.rows)
        return rows


@pytest.fixture
def topics(broker: Any, tmp_path: Path) -> Topics:
    name = f"{tmp_path.name}-{os.getpid()}"
    made = Topics(broker.address, f"{name}-readings", f"{name}-rows", f"{name}-markers")
    make_topic(made.servers, made.readings, KAFKA_PARTITIONS)
    make_topic(made.servers, made.rows, 2)
    make_topic(made.servers, made.markers, 1, {"cleanup_policy": "compact"})
    return made


@contextlib.contextmanager
def fed(topics: Topics, settings: Settings, completed: Callable[[], int]) -> Iterator[None]:
    """The readings come bit by bit, as checkpoints complete: so that every epoch has some."""
    ending = threading.Event()

    def feed() -> None:
        producer = Producer({"bootstrap.servers": topics.servers, "enable.idempotence": True})
        for start in range(0, settings.readings, CHUNK):
            for number in range(start, min(start + CHUNK, settings.readings)):
                for source in range(SOURCES):
                    producer.produce(
                        topics.readings, json.dumps([source, number]).encode(), partition=source % KAFKA_PARTITIONS
                    )
            producer.flush()
            before = completed()
            while completed() <= before and not ending.wait(0.02):
                pass
        producer.flush()

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


class MarkerSightings(FirstSightings):
    """A marker is in the same transaction as its records: who sees one sees the others."""

    def __init__(self, topics: Topics, settings: Settings) -> None:
        super().__init__(None, settings)  # type: ignore[arg-type]
        self._topics = topics

    def _read(self) -> None:
        consumer = Consumer(
            {"bootstrap.servers": self._topics.servers, "group.id": "sightings", "isolation.level": "read_committed"}
        )
        consumer.assign([TopicPartition(self._topics.markers, 0, OFFSET_BEGINNING)])
        while not self._stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                checkpoint = json.loads(message.value())["checkpoint"]
                if checkpoint:  # 0: made before anything was prepared
                    self.seen.setdefault(checkpoint, time.time())
        consumer.close()


def restart(broker: Any) -> None:
    broker.kill()
    broker.start()


def test_workers_and_the_broker_killed_between_prepare_and_commit_twice_in_a_row(
    broker: Any, topics: Topics, tmp_path: Path, spark_session: SparkSession
) -> None:
    crashes = [Crash("slot.before-commit", nth=2, layer=2), Crash("slot.before-commit", layer=2)]
    crashes += [Crash("slot.after-commit", layer=2)]
    settings = Settings(name="to-topic", folder=str(tmp_path), crashes=crashes, readings=200, kafka=topics.names)

    with (
        watched(settings, spark_session) as job,
        MarkerSightings(topics, settings) as sightings,
        fed(topics, settings, lambda: job.client.view.completed),
    ):
        for number in (1, 2):
            await_that(f"crash {number}", lambda number=number: len(crashes_that_happened(settings)) >= number, 90)
            restart(broker)
        assert job.await_end() is JobStatus.FINISHED

    assert crashes_that_happened(settings) == [crash.point for crash in crashes]
    assert_exact(settings, topics.committed())
    sightings.assert_none_was_early()


def test_drivers_and_the_broker_killed_when_the_checkpoint_counts_and_nothing_is_committed(
    broker: Any, topics: Topics, tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = Settings(
        name="driverless",
        folder=str(tmp_path),
        readings=90,
        crashes=[Crash("driver.after-log", nth=2), Crash("driver.after-log")],
        kafka=topics.names,
        gateway=gateway_of(spark_session),
    )
    for resume in (None, "latest"):
        with driver(dataclasses.replace(settings, resume=resume)) as running:
            if resume is None:
                with fed(topics, settings, lambda: running.count("completed")):
                    assert running.await_death(120.0) == -signal.SIGKILL
            else:
                assert running.await_death(120.0) == -signal.SIGKILL
            restart(broker)

    sent = {tuple(reading) for reading in read_json(topics.servers, topics.readings)}
    rest = [(source, number) for number in range(settings.readings) for source in range(SOURCES)]
    producer = Producer({"bootstrap.servers": topics.servers})
    for reading in rest:
        if reading not in sent:
            producer.produce(topics.readings, json.dumps(reading).encode(), partition=reading[0] % KAFKA_PARTITIONS)
    producer.flush()
    with driver(dataclasses.replace(settings, resume="latest")) as running:
        assert running.await_end() == "FINISHED"

    assert_exact(settings, topics.committed())


def test_a_stopped_worker_that_wakes_up_late_changes_nothing_in_the_topic(
    topics: Topics, tmp_path: Path, spark_session: SparkSession
) -> None:
    settings = Settings(
        name="stopped",
        folder=str(tmp_path),
        crashes=[Crash("slot.before-commit", nth=2, layer=2)],
        signal="SIGSTOP",
        heartbeat_s=2.5,
        readings=120,
        kafka=topics.names,
    )

    with watched(settings, spark_session) as job, fed(topics, settings, lambda: job.client.view.completed):
        await_that("a worker stopped", lambda: crashes_that_happened(settings))
        stopped = crash_pid(settings)
        job.await_running(attempts=2)
        job.await_checkpoints(2)
        assert is_running(stopped), "it was killed before it could wake up"
        os.kill(stopped, signal.SIGCONT)
        await_that("the woken worker ended", lambda: not is_running(stopped), patience_s=10)
        assert job.await_end() is JobStatus.FINISHED

    assert_exact(settings, topics.committed())
