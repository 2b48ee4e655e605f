"""An independent client: plain producers and consumers, as somebody else's program would use them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE_S = 60.0
#: How to get in where the broker asks for a password ("gate").
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "tide"}


def make_topic(servers: str, name: str, partitions: int, settings: Mapping[str, str] | None = None) -> None:
    dotted = {key.replace("_", "."): value for key, value in (settings or {}).items()}
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while len(admin.list_topics(name, timeout=10).topics[name].partitions) != partitions:
        assert time.monotonic() < deadline, f"{name} was made, and is not there"
        time.sleep(0.05)


def delete_topics(servers: str, names: list[str]) -> None:
    """Gone for everybody when it returns."""
    admin = AdminClient({"bootstrap.servers": servers})
    there = [name for name in names if name in admin.list_topics(timeout=10).topics]
    for future in admin.delete_topics(there).values() if there else ():
        future.result(PATIENCE_S)
    await_that("the topics are gone", lambda: set(names).isdisjoint(admin.list_topics(timeout=10).topics))


def send(servers: str, topic: str, values: Iterable[Any], partitions: int = 2, key: bytes | None = None) -> None:
    """Values round robin over the partitions; what is not bytes is sent as JSON."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(error)

    for number, value in enumerate(values):
        data = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        producer.produce(topic, data, key, number % partitions, on_delivery=delivered)
        if number % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0
    assert not failed, failed


def read(servers: str, topic: str, committed: bool = True) -> list[Message]:
    """Everything that a reader can see now: up to the last stable offset of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "independent",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found: list[Message] = []
        open_partitions = set(partitions)
        deadline = time.monotonic() + PATIENCE_S
        while open_partitions:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            for message in consumer.consume(5000, 0.05):
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    open_partitions.discard(message.partition())
                else:
                    raise AssertionError(message.error())
        return found
    finally:
        consumer.close()


def read_json(servers: str, topic: str, committed: bool = True) -> list[Any]:
    return [json.loads(message.value()) for message in read(servers, topic, committed)]


def await_that(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.05)
    return value
