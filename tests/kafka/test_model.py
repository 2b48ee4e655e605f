"""The model of Kafka that simulations write to (testing/simulation/brokers.py) beside a broker: the same calls of the client
library, in the same order, and the same answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from kafka.kit import read
from tidegate.connectors.kafka_client import KafkaConnection, Trouble
from tidegate.connectors.kafka_epochs import FencedProducer, Marker, first_marker, read_markers
from tidegate.testing.simulation.brokers import ModelConnection, broker
from tidegate.testing.simulation.misfortunes import OutsideFails
from tidegate.testing.simulation.outside import opened

WAIT_S = 30.0


@dataclass
class World:
    connection: KafkaConnection
    topic: str
    markers: str
    look: Callable[[], list[tuple[bytes | None, bytes | None]]]  #: what an independent reader of committed records sees
    told: list[Any] = field(default_factory=list)

    @property
    def trouble(self) -> Trouble:
        return Trouble(self.connection, "the test")

    def producer(self, owner: str = "abc/out/0") -> Any:
        made = self.connection.producer(
            self.trouble, transactional_id=f"tidegate/{self.topic}/{owner}", transaction_timeout_ms=60_000
        )
        made.init_transactions(WAIT_S)
        return made

    def tell_records(self) -> None:
        self.told.append(sorted(self.look()))

    def tell_error(self, act: Callable[[], Any]) -> None:
        try:
            self.told.append(act())
        except KafkaException as error:
            cause = error.args[0]
            fenced = cause.code() in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
            self.told.append("fenced" if fenced or cause.fatal() else cause.name())


def a_transaction_is_seen_when_it_is_committed(world: World) -> None:
    producer = world.producer()
    producer.begin_transaction()
    producer.produce(world.topic, b"one", b"k")
    producer.flush(WAIT_S)
    world.tell_records()
    producer.commit_transaction(WAIT_S)
    world.tell_records()


def what_another_left_open_is_given_up(world: World) -> None:
    left = world.producer()
    left.begin_transaction()
    left.produce(world.topic, b"lost", b"k")
    left.flush(WAIT_S)
    producer = world.producer()
    world.tell_records()
    producer.begin_transaction()
    producer.produce(world.topic, b"kept", b"k")
    producer.commit_transaction(WAIT_S)
    world.tell_records()


def the_older_of_two_is_fenced(world: World) -> None:
    older = world.producer()
    older.begin_transaction()
    older.produce(world.topic, b"older", b"k")
    world.producer()

    def commit() -> str:
        older.commit_transaction(WAIT_S)
        return "committed"

    world.tell_error(commit)
    world.tell_records()


def readers_wait_for_a_transaction_that_is_open(world: World) -> None:
    waiting = world.producer("abc/out/1")
    waiting.begin_transaction()
    waiting.produce(world.topic, b"open", b"k", 0)
    waiting.flush(WAIT_S)
    producer = world.producer()
    producer.begin_transaction()
    producer.produce(world.topic, b"after it", b"k", 0)
    producer.commit_transaction(WAIT_S)
    world.tell_records()
    waiting.commit_transaction(WAIT_S)
    world.tell_records()


def markers_are_what_was_committed(world: World) -> None:
    def markers(owner: str) -> dict[str, int]:
        return {
            key: each.checkpoint
            for key, each in read_markers(world.connection, world.markers, owner, world.trouble).items()
        }

    owner = f"{world.topic}/out/0"
    first = first_marker(world.connection, world.markers, owner, "job", "g1-a1", 60_000, world.trouble, WAIT_S)
    again = first_marker(world.connection, world.markers, owner, "job", "g1-a2", 60_000, world.trouble, WAIT_S)
    world.told.append(first == again)
    fenced = FencedProducer(world.connection, world.markers, owner, 60_000, world.trouble, WAIT_S)
    fenced.commit([world.topic], [(0, -1, b"k", b"v", 0, [])], f"{owner}/g1-a1", Marker(first.born, 3, "job", "g1-a1"))
    world.told.append(sorted(markers(owner).values()))
    world.told.append(markers(f"{world.topic}/out/1"))
    world.tell_records()
    fenced.close()


SCRIPTS = (
    a_transaction_is_seen_when_it_is_committed,
    what_another_left_open_is_given_up,
    the_older_of_two_is_fenced,
    readers_wait_for_a_transaction_that_is_open,
    markers_are_what_was_committed,
)


@pytest.fixture
def real(servers: str, topic: Callable[..., str]) -> World:
    name, markers = topic("model"), topic("markers", 1, cleanup_policy="compact")

    def look() -> list[tuple[bytes | None, bytes | None]]:
        return [(message.key(), message.value()) for message in read(servers, name)]

    return World(KafkaConnection(servers, None), name, markers, look)


@pytest.fixture
def modelled(tmp_path: Any) -> Iterator[World]:
    with opened(str(tmp_path), ()) as outside:
        connection = ModelConnection(KafkaConnection("nowhere:9092", None), outside.name, "out")
        brokers = broker(outside, connection.servers)

        def look() -> list[tuple[bytes | None, bytes | None]]:
            logs = brokers.topic("model")
            return [
                (each.key(), each.value())
                for number, log in enumerate(logs)
                for each in log[: brokers.stable_end("model", number)]
                if each.transaction is None or each.transaction.committed
            ]

        yield World(connection, "model", "__markers", look)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_model_answers_as_a_broker_does(real: World, modelled: World, script: Callable[[World], None]) -> None:
    script(real)
    script(modelled)

    assert modelled.told == real.told


def test_the_model_delays_the_end_of_a_transaction_and_a_reader_of_markers_waits_for_it(tmp_path: Any) -> None:
    with opened(str(tmp_path), [OutsideFails("out", "end")]) as outside:
        connection = ModelConnection(KafkaConnection("nowhere:9092", None), outside.name, "out")
        world = World(connection, "model", "__markers", list)
        markers_are_what_was_committed(world)

        assert outside.story == ["the end of a transaction of the sink 'out' is seen late"]
        assert world.told[1] == [0, 3]
