"""What the job of these tests reads and writes, from a host of its own: plain clients, nothing of ours."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import boto3
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from faults.jobs.tally import KAFKA_PARTITIONS, SOURCES
from hosts.network import Host
from kafka.kit import make_topic, read_json

Rows = list[list[int]]

ROW_PARTITIONS = 2
ROUND_S = 0.1  #: a reading of each source


@dataclass
class Readings:
    """What was sent: `count` readings of each source, all of them confirmed."""

    host: Host
    servers: str
    topic: str
    count: int = 0
    sent_at: list[float] = field(default_factory=list)  #: of the n-th of each source

    def make_topic(self) -> None:
        with self.host.inside():
            make_topic(self.servers, self.topic, KAFKA_PARTITIONS)

    @contextmanager
    def coming(self) -> Iterator[None]:
        """A reading of each source ten times a second, while the block lasts."""
        over = threading.Event()
        with self.host.inside():
            producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "linger.ms": 0})
            thread = threading.Thread(target=self._send, args=(producer, over), name="readings")
            thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _send(self, producer: Producer, over: threading.Event) -> None:
        while not over.wait(ROUND_S):
            self.sent_at.append(time.time())
            for source in range(SOURCES):
                reading = json.dumps([source, self.count]).encode()
                producer.produce(self.topic, reading, partition=source % KAFKA_PARTITIONS)
            assert producer.flush(60.0) == 0
            self.count += 1


class Sightings:
    """When each row was first seen by a read-committed consumer that looks all the time."""

    def __init__(self, host: Host, servers: str, topic: str) -> None:
        self.first: dict[tuple[int, int], float] = {}  #: by source and number
        self._ending = threading.Event()
        with host.inside():
            make_topic(servers, topic, ROW_PARTITIONS)
            self._consumer = Consumer(
                {
                    "bootstrap.servers": servers,
                    "group.id": "sightings",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "fetch.wait.max.ms": 20,
                }
            )
            self._consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in range(ROW_PARTITIONS)])
            self._thread = threading.Thread(target=self._look, name="sightings", daemon=True)
            self._thread.start()

    def _look(self) -> None:
        while not self._ending.is_set():
            for message in self._consumer.consume(1000, 0.1):
                if message.error() is None:
                    source, number, *_ = json.loads(message.value())
                    self.first.setdefault((source, number), time.time())
        self._consumer.close()

    def seen_by(self, number: int) -> float | None:
        """When the readings of that number were all seen; None: some were not."""
        times = [self.first.get((source, number)) for source in range(SOURCES)]
        return None if None in times else max(time for time in times if time is not None)

    def longest_silence(self, since: float, until: float) -> float:
        """The longest time between two new rows."""
        times = sorted({since, until, *(at for at in list(self.first.values()) if since < at < until)})
        return max(later - earlier for earlier, later in pairwise(times))

    def close(self) -> None:
        self._ending.set()
        self._thread.join()


def rows_in_kafka(host: Host, servers: str, topic: str) -> Rows:
    with host.inside():
        return read_json(servers, topic)


class Files:
    """Rows in files of a bucket's folder. Files never change: each is fetched once."""

    def __init__(self, host: Host, environment: dict[str, str], folder: str) -> None:
        self._host = host
        self._folder = folder
        self._known: dict[str, Rows] = {}
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=environment["AWS_ENDPOINT_URL"],
            region_name=environment["AWS_REGION"],
            aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        )

    def rows(self) -> Rows:
        with self._host.inside():
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket="checkpoints", Prefix=f"{self._folder}/"
            )
            names = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
            visible = [name for name in names if not name.rpartition("/")[2].startswith(("_", "."))]
            there = [name for name in visible if f"{self._folder}/_" not in name]
            for name in set(there) - self._known.keys():
                text = self._client.get_object(Bucket="checkpoints", Key=name)["Body"].read().decode()
                self._known[name] = [json.loads(line) for line in text.splitlines()]
        return [row for name in there for row in self._known[name]]
