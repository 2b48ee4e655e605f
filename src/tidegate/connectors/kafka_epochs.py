"""Epochs of the Kafka sink: what a checkpoint keeps of them, and the marker that tells whether one was committed. Executor.

The records of an epoch are in the checkpoint until they are committed, so no outage and no transaction timeout can lose them.
A commit is one transaction: the records, and a marker in a compacted topic of ours:

    key    <incarnation>/<uid>/<subtask that wrote>       value  {"v": 1, "born": ..., "checkpoint": n, ...}

    1. init_transactions with the transactional id of that key: whoever had it before can no longer commit, and what they had
       under way is settled, one way or the other
    2. read the marker. Only now: before 1 an older worker might still write one
    3. marker >= n: done already. Else begin, records, marker n, commit

Commits of one key are in the order of their checkpoints, so marker n stands for everything up to n.

"No marker" must never be taken for "not committed". So the writer makes one with checkpoint 0 before anything is prepared, with
a random `born` that stays the same ever after; each epoch knows it, and knows the checkpoint `after` which it comes. A marker
that is gone, born anew or older than `after` says that the evidence was lost: the job stops.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from tidegate.connectors.kafka_client import METADATA_S, KafkaConnection, Trouble, kafka
from tidegate.errors import ConfigurationError

FORMAT_VERSION = 1
#: Readers of the topic wait behind transactions that other subtasks have open; this long, then the commit is tried later.
MARKER_S = 20.0
_POLL_S = 0.05
_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.05",
}

#: topic (its place in Epoch.topics), partition or -1, key, value, timestamp or 0, headers
EpochRecord = tuple[int, int, bytes | None, bytes | None, int, list[tuple[str, bytes]]]


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """A committable: everything that a commit needs. As msgpack; the version comes first."""

    version: int
    job: str
    incarnation: str
    uid: str
    subtask: int
    attempt: str
    checkpoint: int
    born: str  #: of the marker
    after: int  #: the checkpoint of the epoch before it, of the same writer
    topics: list[str]
    records: list[EpochRecord]

    @property
    def key(self) -> str:
        return marker_key(self.incarnation, self.uid, self.subtask)


class Marker(msgspec.Struct, frozen=True, rename={"version": "v"}):
    """As JSON, for people who look into the topic."""

    born: str
    checkpoint: int
    job: str
    attempt: str
    version: int = FORMAT_VERSION


def encode_epoch(epoch: Epoch) -> bytes:
    return msgspec.msgpack.encode(epoch)


def decode_epoch(data: bytes) -> Epoch:
    """:raises msgspec.MsgspecError: when it is none."""
    return msgspec.msgpack.decode(data, type=Epoch)


def marker_key(incarnation: str, uid: str, subtask: int) -> str:
    return f"{incarnation}/{uid}/{subtask}"


class MarkerBlocked(Exception):
    """A transaction of somebody else stands before the end of the topic. It ends, or times out; then it can be read."""


class FencedProducer:
    """A transactional producer that nobody else has, and the marker as it stands. Steps 1 and 2 of a commit."""

    def __init__(
        self, connection: KafkaConnection, topic: str, key: str, timeout_ms: int, trouble: Trouble, wait_s: float
    ) -> None:
        self.key = key
        self._topic = topic
        self._failures: list[Any] = []
        self._wait_s = wait_s
        self.producer = connection.producer(
            trouble,
            transactional_id=f"tidegate/{key}",
            transaction_timeout_ms=timeout_ms,
            delivery_report_only_error=True,  # the commit tells of the others
            partitioner=connection.option("partitioner", "murmur2_random"),  # as Java's clients
        )
        self.producer.init_transactions(wait_s)  # 1
        self.marker = read_marker(connection, topic, key, trouble)  # 2

    def commit(self, topics: Sequence[str], records: Iterable[EpochRecord], marker: Marker) -> None:
        """One transaction; step 3. :raises KafkaException: when it failed, or nobody knows. Then this object is of no use."""
        producer = self.producer
        self._failures.clear()
        producer.begin_transaction()
        produce, delivered = producer.produce, self._delivered
        names = [*topics, self._topic]
        last: EpochRecord = (-1, -1, self.key.encode(), msgspec.json.encode(marker), 0, [])
        for place, partition, key, value, timestamp, headers in chain(records, [last]):
            while True:
                try:
                    if timestamp or headers:
                        produce(
                            names[place], value, key, partition, delivered, timestamp=timestamp, headers=headers or None
                        )
                    else:
                        produce(names[place], value, key, partition, delivered)
                    break
                except BufferError:  # the client's queue is full: let it send
                    producer.poll(0.1)
        try:
            producer.commit_transaction(self._wait_s)
        except kafka().KafkaException:
            if self._failures:  # why: the message that a broker has refused
                raise kafka().KafkaException(self._failures[0]) from None
            raise
        self.marker = marker

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failures.append(error)

    def close(self) -> None:
        """An open transaction is left to the next one's `init_transactions`, or to its timeout."""
        self.producer.purge()
        self.producer.poll(0)


def first_marker(
    connection: KafkaConnection,
    topic: str,
    key: str,
    job: str,
    attempt: str,
    timeout_ms: int,
    trouble: Trouble,
    wait_s: float,
) -> Marker:
    """The marker of the key; made when there is none. Fences whoever had the key before."""
    make_topic(connection, topic, trouble)
    fenced = FencedProducer(connection, topic, key, timeout_ms, trouble, wait_s)
    try:
        if fenced.marker is None:
            fenced.commit([], [], Marker(secrets.token_hex(8), 0, job, attempt))
        assert fenced.marker is not None
        return fenced.marker
    finally:
        fenced.close()


def read_marker(connection: KafkaConnection, topic: str, key: str, trouble: Trouble) -> Marker | None:
    """The newest committed one. :raises MarkerBlocked: :raises KafkaException:"""
    confluent = kafka()
    place = confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)
    # Up to everything that was there when we began, committed or not: what is committed may stand behind what is not yet.
    end = _end_of(connection, place, trouble)
    consumer = connection.consumer(
        trouble,
        group_id="tidegate-markers",
        enable_auto_commit=False,
        isolation_level="read_committed",
        enable_partition_eof=True,
        auto_offset_reset="earliest",
        fetch_wait_max_ms=10,  # the end of the topic is told when a fetch comes back empty
    )
    found: Marker | None = None
    wanted = key.encode()
    try:
        consumer.list_topics(
            topic, timeout=METADATA_S
        )  # a client that does not know the topic yet waits half a second for it
        consumer.assign([place])
        idle = 0
        while True:
            messages = consumer.consume(1000, _POLL_S)
            for message in messages:
                if message.error() is None:
                    if message.key() == wanted:
                        found = None if message.value() is None else msgspec.json.decode(message.value(), type=Marker)
                    if message.offset() + 1 >= end:
                        return found
                elif message.error().code() != confluent.KafkaError._PARTITION_EOF:
                    raise confluent.KafkaException(message.error())
                elif message.offset() >= end:
                    return found
            idle = idle + 1 if all(message.error() for message in messages) else 0
            if idle * _POLL_S > MARKER_S:
                raise MarkerBlocked(f"{topic} cannot be read to its end: a transaction is open, or no broker answers")
    finally:
        consumer.close()


def _end_of(connection: KafkaConnection, place: Any, trouble: Trouble) -> int:
    consumer = connection.consumer(
        trouble, group_id="tidegate-markers", enable_auto_commit=False, isolation_level="read_uncommitted"
    )
    try:
        _, high = consumer.get_watermark_offsets(place, timeout=METADATA_S)
        return int(high)
    finally:
        consumer.close()


def make_topic(connection: KafkaConnection, topic: str, trouble: Trouble) -> None:
    """:raises ConfigurationError: when it is there and would lose markers."""
    from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

    confluent = kafka()
    admin = connection.admin(trouble)
    try:
        known = admin.list_topics(topic, timeout=METADATA_S).topics[topic]
        if known.error is not None:
            made = admin.create_topics(
                [NewTopic(topic, num_partitions=1, replication_factor=-1, config=_TOPIC_SETTINGS)]
            )
            try:
                made[topic].result(METADATA_S)
            except confluent.KafkaException as error:
                if error.args[0].code() != confluent.KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            return
        resource = ConfigResource(ResourceType.TOPIC, topic)
        policy = admin.describe_configs([resource])[resource].result(METADATA_S)["cleanup.policy"].value
    except confluent.KafkaException as error:
        raise trouble.in_words(f"make its topic of markers {topic!r}", error) from None
    if policy != "compact" or len(known.partitions) != 1:
        raise ConfigurationError(
            f"The topic {topic!r}, which holds the markers of the Kafka sinks, has cleanup.policy={policy} and "
            f"{len(known.partitions)} partitions; it must have cleanup.policy=compact and one partition, or markers are lost. "
            "Correct it, or name another one with markers=."
        )
