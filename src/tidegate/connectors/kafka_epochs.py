"""Epochs of the Kafka sink: what a checkpoint keeps of them, and the marker that tells whether one was committed. Executor.

The records of an epoch are in the checkpoint until they are committed, so no outage and no transaction timeout can lose them.
A commit is one transaction: the records, and a marker in a compacted topic of ours. What wrote them is its owner, and each
attempt of it has a marker:

    key    <incarnation>/<uid>/<subtask that wrote>/<attempt>       value  {"v": 1, "born": ..., "checkpoint": n, ...}

    1. init_transactions with the transactional id of the owner: whoever had it before can no longer commit, and what they had
       under way is settled, one way or the other
    2. read the markers. Only now: before 1 an older worker might still write one
    3. marker >= n: done already. Else begin, records, marker n, commit

Commits of one attempt's epochs are in the order of their checkpoints, so its marker n stands for everything up to n. Of another
attempt's epochs it says nothing: a job may go back to before a checkpoint, on with others, and one day forward to it again.

"No marker" must never be taken for "not committed". So the owner's first writer leaves one, once, with the owner's key and a
random `born`; each epoch knows it, and knows the checkpoint `after` which it comes in its attempt. If that first marker is gone
or born anew, or that of the attempt is older than `after`, the evidence was lost: the job stops.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from tidegate.connectors.kafka_client import METADATA_S, KafkaConnection, Trouble, kafka
from tidegate.errors import ConfigurationError

FORMAT_VERSION = 2  #: of epochs
#: Readers of the topic wait for transactions that other subtasks have open; this long, then the commit is tried later.
MARKER_S = 20.0
_POLL_S = 0.05
_TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.05",
}

#: topic (its place in Epoch.topics), partition or -1, key, value, timestamp or 0, headers
EpochRecord = tuple[int, int, bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """A committable: everything that a commit needs. As msgpack; the version comes first."""

    version: int
    job: str
    incarnation: str
    uid: str
    subtask: int
    attempt: str
    checkpoint: int
    born: str  #: of the owner's first marker
    after: int  #: the checkpoint of the epoch before it, of the same writer; 0: it is the first
    topics: list[str]
    records: list[EpochRecord]

    @property
    def owner(self) -> str:
        return owner_key(self.incarnation, self.uid, self.subtask)

    @property
    def key(self) -> str:
        """Of its marker."""
        return f"{self.owner}/{self.attempt}"


class Marker(msgspec.Struct, frozen=True, rename={"version": "v"}):
    """As JSON, for people who look into the topic."""

    born: str
    checkpoint: int
    job: str
    attempt: str
    version: int = 1


def encode_epoch(epoch: Epoch) -> bytes:
    return msgspec.msgpack.encode(epoch)


def decode_epoch(data: bytes) -> Epoch:
    """:raises ValueError: when it is none, or of another version."""
    epoch = msgspec.msgpack.decode(data, type=Epoch)
    if epoch.version != FORMAT_VERSION:
        raise ValueError(
            f"it has version {epoch.version}, this release reads {FORMAT_VERSION}: start the job with the release that wrote it"
        )
    return epoch


def owner_key(incarnation: str, uid: str, subtask: int) -> str:
    return f"{incarnation}/{uid}/{subtask}"


class MarkerBlocked(Exception):
    """A transaction of somebody else stands before the end of the topic. It ends, or times out; then it can be read."""


class FencedProducer:
    """A transactional producer that nobody else has, and the owner's markers as they stand. Steps 1 and 2 of a commit."""

    def __init__(
        self, connection: KafkaConnection, topic: str, owner: str, timeout_ms: int, trouble: Trouble, wait_s: float
    ) -> None:
        self._topic = topic
        self._failures: list[Any] = []
        self._wait_s = wait_s
        self.producer = connection.producer(
            trouble,
            transactional_id=f"tidegate/{owner}",
            transaction_timeout_ms=timeout_ms,
            delivery_report_only_error=True,  # the commit tells of the others
            partitioner=connection.option("partitioner", "murmur2_random"),  # as Java's clients
        )
        self.producer.init_transactions(wait_s)  # 1
        self.markers = read_markers(connection, topic, owner, trouble)  # 2

    def commit(self, topics: Sequence[str], records: Iterable[EpochRecord], key: str, marker: Marker) -> None:
        """One transaction; step 3. :raises KafkaException: when it failed, or nobody knows. Then this object is of no use."""
        producer = self.producer
        self._failures.clear()
        producer.begin_transaction()
        produce, delivered = producer.produce, self._delivered
        names = [*topics, self._topic]
        last: EpochRecord = (-1, -1, key.encode(), msgspec.json.encode(marker), 0, [])
        for place, partition, its_key, value, stamp, headers in chain(records, [last]):
            while True:
                try:
                    if stamp or headers:
                        produce(
                            names[place], value, its_key, partition, delivered, timestamp=stamp, headers=headers or None
                        )
                    else:
                        produce(names[place], value, its_key, partition, delivered)
                    break
                except BufferError:  # the client's queue is full: let it send
                    producer.poll(0.1)
        try:
            producer.commit_transaction(self._wait_s)
        except kafka().KafkaException:
            if self._failures:  # why: the message that a broker has refused
                raise kafka().KafkaException(self._failures[0]) from None
            raise
        self.markers[key] = marker

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
    owner: str,
    job: str,
    attempt: str,
    timeout_ms: int,
    trouble: Trouble,
    wait_s: float,
) -> Marker:
    """The first marker of the owner; made when there is none. Fences whoever was the owner before."""
    make_topic(connection, topic, trouble)
    fenced = FencedProducer(connection, topic, owner, timeout_ms, trouble, wait_s)
    try:
        if owner not in fenced.markers:
            fenced.commit([], [], owner, Marker(secrets.token_hex(8), 0, job, attempt))
        return fenced.markers[owner]
    finally:
        fenced.close()


def read_markers(connection: KafkaConnection, topic: str, owner: str, trouble: Trouble) -> dict[str, Marker]:
    """The newest committed ones of the owner and its attempts, by key. :raises MarkerBlocked: :raises KafkaException:"""
    confluent = kafka()
    place = confluent.TopicPartition(topic, 0, confluent.OFFSET_BEGINNING)
    # Up to everything that was there when we began, committed or not: what is committed may come after what is not yet.
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
    found: dict[str, Marker] = {}
    first, of_attempts = owner.encode(), f"{owner}/".encode()
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
                    key = message.key() or b""
                    if key == first or key.startswith(of_attempts):
                        _note(found, key.decode(), message.value())
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


def _note(found: dict[str, Marker], key: str, value: bytes | None) -> None:
    if value is None:
        found.pop(key, None)
    else:
        found[key] = msgspec.json.decode(value, type=Marker)


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
