"""Kafka topics as a sink: exactly-once with transactions, or at-least-once. Executor.

Exactly-once: the writer keeps the records of an epoch and hands them to the checkpoint; the committer writes them, with a
marker, in one transaction (kafka_epochs.py). So records travel twice, and appear with their checkpoint. A reader must use
isolation.level=read_committed.

At-least-once: the writer sends at once, and `flush` waits until the brokers have it all. Records appear at once; after a
failure some come again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, Union

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.connectors.epoch_room import EPOCH_BYTES, EpochRoom, checked_epoch_bytes
from tidegate.connectors.kafka_checks import (
    Headers,
    checked_headers,
    checked_partition,
    checked_topic,
    headers_size,
    refuse_partition,
)
from tidegate.connectors.kafka_client import METADATA_S, KafkaConnection, Options, Trouble, kafka
from tidegate.connectors.kafka_epochs import (
    FORMAT_VERSION,
    Epoch,
    FencedProducer,
    Marker,
    MarkerBlocked,
    decode_epoch,
    encode_epoch,
    first_marker,
    owner_key,
)
from tidegate.connectors.kafka_records import Encode, KeyOf, encoder, key_encoder
from tidegate.connectors.kafka_topics import partitions_of
from tidegate.durations import Duration, duration_ms
from tidegate.errors import ConfigurationError, ConnectorError, TidegateError, TypeDeclarationError
from tidegate.ids import CheckpointId

log = logging.getLogger("tidegate.kafka")

Topic = Union[str, Callable[[Any], str]]

MARKERS = "__tidegate_epochs"
_WAIT_S = 30.0  #: for a transaction's steps; then the commit is tried again
_DEFAULT_MESSAGE_BYTES = 1_000_000
_OVERHEAD_BYTES = 512  #: of a message, at the most that is usual


class KafkaSink(Sink):
    """Writes a stream to a topic.

    :param servers: "host:port", or several with commas.
    :param topic: its name, or a function from the record to a name.
    :param value: "json", "text", "bytes", or a function from the record to bytes.
    :param key: a column's name or place, or a function; bytes stay, str becomes UTF-8, anything else JSON. None: no key.
    :param partition: a function from the record to a partition (or None); None: by the key, as Java's clients do.
    :param headers: a function from the record to [(name, bytes)].
    :param guarantee: "exactly-once" or "at-least-once".
    :param transaction_timeout: how long the brokers keep a transaction open whose writer is gone. Readers wait that long;
        nothing is lost by it.
    :param markers: the compacted topic, made when it is not there, that says which epochs were committed.
    :param max_epoch_bytes: what one subtask may take between two checkpoints; 128 MiB at the most.
    :param options: settings of librdkafka, or a function that returns them.
    """

    def __init__(
        self,
        servers: str,
        topic: Topic,
        *,
        value: Encode = "json",
        key: KeyOf = None,
        partition: Callable[[Any], int] | None = None,
        headers: Callable[[Any], list[tuple[str, bytes]]] | None = None,
        guarantee: str = "exactly-once",
        transaction_timeout: Duration = "60s",
        markers: str = MARKERS,
        max_epoch_bytes: int = EPOCH_BYTES,
        options: Options | None = None,
    ) -> None:
        if guarantee not in ("exactly-once", "at-least-once"):
            raise ConfigurationError(f'guarantee is "exactly-once" or "at-least-once"; got {guarantee!r}.')
        if not callable(topic) and not (isinstance(topic, str) and topic):
            raise ConfigurationError(f"topic must be a name or a function; got {topic!r}.")
        self.connection = KafkaConnection(servers, options)
        self.topic = topic
        self.value = value
        self.key = key
        self.partition = partition
        self.headers = headers
        self.guarantee = guarantee  # type: ignore[misc]
        self.transaction_timeout_ms = duration_ms(transaction_timeout, "transaction_timeout")
        self.markers = markers
        self.max_epoch_bytes = checked_epoch_bytes(max_epoch_bytes)
        encoder(value)  # refuses what there is not, before anything runs

    def __repr__(self) -> str:
        return f"<KafkaSink {self.target} at {self.connection.servers}>"

    @property
    def target(self) -> str:
        return "topics by record" if callable(self.topic) else self.topic

    @property
    def what(self) -> str:
        return f"The Kafka sink to {self.target}"

    def writer(self, context: WriterContext) -> SinkWriter:
        return _EpochWriter(self, context) if self.guarantee == "exactly-once" else _SendingWriter(self, context)

    def committer(self, context: WriterContext) -> Committer | None:
        return KafkaCommitter(self) if self.guarantee == "exactly-once" else None


class _Encoding:
    """Records as messages of a size that the topic takes. A message that is too large is refused here: in a checkpoint it
    could never be committed."""

    def __init__(self, sink: KafkaSink, context: WriterContext, trouble: Trouble) -> None:
        self._sink = sink
        self._value = encoder(sink.value)
        self._key = key_encoder(sink.key, context.record_type)
        self._limit = int(sink.connection.option("message.max.bytes", _DEFAULT_MESSAGE_BYTES))
        self._trouble = trouble
        self._partitions: dict[str, int] = {}  #: how many each topic had when it was last looked at
        self._unknown: set[str] = set()  #: topics that nobody can tell of: made when they are first written to, say
        if isinstance(sink.topic, str):
            checked_topic(sink.what, sink.topic)
            limit, self._partitions[sink.topic] = _topic_limit(sink.connection, sink.topic, trouble)
            self._limit = min(self._limit, limit)

    def messages(self, batch: Batch, name: Callable[[str], Any] = str) -> tuple[list[tuple[Any, ...]], int]:
        """(name of the topic, partition or -1, key, value, timestamp or 0, headers) of each record, and the bytes of all keys,
        values and headers. Column by column, because that is quicker.

        :raises TypeDeclarationError: :raises ConfigurationError: for what could not be committed.
        """
        sink, rows = self._sink, batch.rows()
        fixed = sink.topic if isinstance(sink.topic, str) else None
        names = repeat(fixed) if fixed is not None else [checked_topic(sink.what, sink.topic(row)) for row in rows]  # type: ignore[operator]
        topics = repeat(name(fixed)) if fixed is not None else map(name, names)
        partitions = repeat(-1) if sink.partition is None else self._checked_partitions(names, rows)
        headers = (
            repeat([]) if sink.headers is None else [checked_headers(sink.what, sink.headers(row)) for row in rows]
        )
        stamps = repeat(0) if batch.timestamps is None else [max(0, int(stamp)) for stamp in batch.timestamps]
        values, keys = self._values(rows), None if sink.key is None else list(map(self._key, rows))
        size = self._checked_size(values, keys, None if sink.headers is None else headers)
        return list(zip(topics, partitions, keys or repeat(None), values, stamps, headers)), size

    def _checked_partitions(self, topics: Iterable[str], rows: list[Any]) -> list[int]:
        sink = self._sink
        assert sink.partition is not None
        partitions = [checked_partition(sink.what, sink.partition(row)) for row in rows]
        for topic, partition in {*zip(topics, partitions)}:
            if partition >= self._partitions.get(topic, 0) and partition >= 0 and topic not in self._unknown:
                self._look_at(topic)  # partitions are added to topics
                if topic in self._partitions and partition >= self._partitions[topic]:
                    raise refuse_partition(sink.what, topic, partition, self._partitions[topic])
        return partitions

    def _look_at(self, topic: str) -> None:
        try:
            found = partitions_of(self._sink.connection.admin(self._trouble), [topic], self._trouble)
            self._partitions[topic] = len(found[topic])
        except (ConfigurationError, ConnectorError) as error:
            if topic not in self._partitions:
                log.info(
                    "%s: whether %s has the partitions is seen when they are written: %s", self._sink.what, topic, error
                )
                self._unknown.add(topic)

    def _values(self, rows: list[Any]) -> list[bytes]:
        sink, value_of = self._sink, self._value
        try:
            values = [value_of(row) for row in rows]
        except (TypeError, ValueError, TypeDeclarationError) as error:
            if callable(sink.value):
                raise
            raise TypeDeclarationError(
                f"{sink.what}: a record cannot be written as {sink.value!r}: {error} Map it before the sink, or give value= a "
                "function."
            ) from None
        wrong = (
            next((value for value in values if not isinstance(value, bytes)), None) if callable(sink.value) else None
        )
        if wrong is not None:
            raise TypeDeclarationError(
                f"{sink.what}: the function of value= must give bytes; it has given {type(wrong).__qualname__}."
            )
        return values

    def _checked_size(
        self, values: list[bytes], keys: list[bytes | None] | None, headers: Iterable[Headers] | None
    ) -> int:
        sizes = list(map(len, values)) if keys is None else [len(v) + len(k or b"") for v, k in zip(values, keys)]
        if headers is not None:
            sizes = [size + headers_size(each) for size, each in zip(sizes, headers)]
        largest = max(sizes, default=0)
        if largest + _OVERHEAD_BYTES > self._limit:
            raise ConfigurationError(
                f"{self._sink.what}: a record is {largest} bytes long as a message, and the topic takes messages of at most "
                f"{self._limit} bytes. Make records smaller, or raise max.message.bytes of the topic and message.max.bytes in "
                "options."
            )
        return sum(sizes)


def _topic_limit(connection: KafkaConnection, topic: str, trouble: Trouble) -> tuple[int, int]:
    """The largest message, and the number of partitions. Also the look whether the topic is there."""
    from confluent_kafka.admin import ConfigResource, ResourceType

    admin = connection.admin(trouble)
    partitions = len(partitions_of(admin, [topic], trouble)[topic])
    resource = ConfigResource(ResourceType.TOPIC, topic)
    try:
        limit = int(admin.describe_configs([resource])[resource].result(METADATA_S)["max.message.bytes"].value)
    except kafka().KafkaException:  # a user may have no right to look
        limit = _DEFAULT_MESSAGE_BYTES
    return limit, partitions


# -- exactly-once -----------------------------------------------------------------------------------------------------


class _EpochWriter(SinkWriter):
    def __init__(self, sink: KafkaSink, context: WriterContext) -> None:
        self._sink = sink
        self._context = context
        trouble = Trouble(sink.connection, sink.what)
        self._encoding = _Encoding(sink, context, trouble)
        owner = owner_key(context.incarnation, context.uid, context.subtask)
        try:
            self._first = first_marker(
                sink.connection,
                sink.markers,
                owner,
                context.job,
                context.attempt,
                sink.transaction_timeout_ms,
                trouble,
                _WAIT_S,
            )
        except (kafka().KafkaException, MarkerBlocked) as error:
            raise trouble.in_words("begin", error) from None
        self._after = CheckpointId(0)
        self._topics: dict[str, int] = {}
        self._records: list[Any] = []  #: each an EpochRecord
        self._room = EpochRoom(sink.what, context.subtask, sink.max_epoch_bytes)

    def write(self, batch: Batch) -> None:
        records, size = self._encoding.messages(batch, self._place)
        self._records += records
        self._room.take(size + 32 * len(records))

    def _place(self, topic: str) -> int:
        return self._topics.setdefault(topic, len(self._topics))

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        if not self._records:
            return []
        epoch = Epoch(
            version=FORMAT_VERSION,
            job=self._context.job,
            incarnation=self._context.incarnation,
            uid=self._context.uid,
            subtask=self._context.subtask,
            attempt=self._context.attempt,
            checkpoint=checkpoint,
            born=self._first.born,
            after=self._after,
            topics=list(self._topics),
            records=self._records,
        )
        self._after, self._topics, self._records = checkpoint, {}, []
        self._room.clear()
        return [encode_epoch(epoch)]


class KafkaCommitter(Committer):
    """Writes epochs, each in one transaction. Needs nothing but the committables and a way to the brokers."""

    version = FORMAT_VERSION

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._trouble = Trouble(sink.connection, sink.what)
        self._fenced: dict[str, FencedProducer] = {}  #: by owner; as long as nobody fences us

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        outcomes: dict[int, CommitOutcome] = {}
        by_owner: dict[str, list[tuple[int, Epoch]]] = {}
        for place, data in enumerate(committables):
            try:
                epoch = decode_epoch(data)
            except ValueError as error:
                outcomes[place] = self._lost(f"A committable of the Kafka sink cannot be read ({error}).")
                continue
            by_owner.setdefault(epoch.owner, []).append((place, epoch))
        for epochs in by_owner.values():
            epochs.sort(key=lambda item: item[1].checkpoint)
            for place, epoch in epochs:
                outcomes[place] = outcome = self._commit(epoch)
                if outcome in (CommitOutcome.RETRY, CommitOutcome.LOST):  # later ones must wait for it
                    outcomes |= {later: outcome for later, _ in epochs if later not in outcomes}
                    break
        return [outcomes[place] for place in range(len(committables))]

    def _commit(self, epoch: Epoch) -> CommitOutcome:
        sink, owner = self._sink, epoch.owner
        try:
            if owner not in self._fenced:
                self._fenced[owner] = FencedProducer(
                    sink.connection, sink.markers, owner, sink.transaction_timeout_ms, self._trouble, _WAIT_S
                )
            fenced = self._fenced[owner]
            first, marker = fenced.markers.get(owner), fenced.markers.get(epoch.key)
            committed = 0 if marker is None else marker.checkpoint
            if first is None or first.born != epoch.born or committed < epoch.after:
                return self._lost(_no_evidence(sink, epoch, first, committed))
            if committed >= epoch.checkpoint:
                return CommitOutcome.ALREADY_DONE
            done = Marker(epoch.born, epoch.checkpoint, epoch.job, epoch.attempt)
            fenced.commit(epoch.topics, epoch.records, epoch.key, done)
            return CommitOutcome.DONE
        except (kafka().KafkaException, MarkerBlocked) as error:
            # Nobody knows what became of it. The next try fences this producer, and then the marker tells.
            self._drop(owner)
            told = self._trouble.in_words(f"commit the epoch of checkpoint {epoch.checkpoint}", error)
            if isinstance(told, ConfigurationError) or _is_for_ever(error):
                raise _permanent(told) from None
            log.warning("%s; it is tried again", told)
            return CommitOutcome.RETRY

    def _drop(self, owner: str) -> None:
        fenced = self._fenced.pop(owner, None)
        if fenced is not None:
            fenced.close()

    def _lost(self, reason: str) -> CommitOutcome:
        self.lost_reason = reason
        return CommitOutcome.LOST

    def close(self) -> None:
        for owner in list(self._fenced):
            self._drop(owner)


def _is_for_ever(error: Exception) -> bool:
    """No further try can help: a broker or the client refuses a message of the epoch itself."""
    cause, codes = error.args[0] if error.args else None, kafka().KafkaError
    return isinstance(cause, codes) and cause.code() in (
        codes.MSG_SIZE_TOO_LARGE,
        codes.INVALID_TIMESTAMP,
        codes.INVALID_RECORD,
        codes.TOPIC_EXCEPTION,
        codes._UNKNOWN_PARTITION,
    )


def _permanent(told: TidegateError) -> ConfigurationError:
    return told if isinstance(told, ConfigurationError) else ConfigurationError(told.message, **told.context)


def _no_evidence(sink: KafkaSink, epoch: Epoch, first: Marker | None, committed: int) -> str:
    if first is None or first.born != epoch.born:
        wanted = f"a marker {epoch.owner!r}, born {epoch.born}"
        found = "there is none" if first is None else f"it was born {first.born}"
    else:
        wanted = f"a marker {epoch.key!r} of checkpoint {epoch.after} or later"
        found = f"it says checkpoint {committed}" if committed else "there is none"
    return (
        f"The topic {sink.markers!r} must hold {wanted}; "
        f"{found}. It was deleted or made anew, so it cannot be known whether the {len(epoch.records)} records of checkpoint "
        f"{epoch.checkpoint} are in {', '.join(epoch.topics)} already. Compare the topic with the job's input, then start from "
        "a savepoint of your choice, or anew."
    )


# -- at-least-once ----------------------------------------------------------------------------------------------------


class _SendingWriter(SinkWriter):
    def __init__(self, sink: KafkaSink, context: WriterContext) -> None:
        self._sink = sink
        self._trouble = Trouble(sink.connection, sink.what)
        self._encoding = _Encoding(sink, context, self._trouble)
        self._failed: Any = None
        self._producer = sink.connection.producer(
            self._trouble,
            enable_idempotence=True,
            delivery_report_only_error=True,  # nobody waits for the others
            linger_ms=sink.connection.option("linger.ms", 5),
            partitioner=sink.connection.option("partitioner", "murmur2_random"),
        )

    def write(self, batch: Batch) -> None:
        produce = self._producer.produce
        for topic, partition, key, value, stamp, headers in self._encoding.messages(batch)[0]:
            while True:
                try:
                    produce(topic, value, key, partition, self._delivered, timestamp=stamp, headers=headers or None)
                    break
                except BufferError:  # the client's queue is full: this is the back-pressure
                    self._producer.poll(0.1)
                    self._check()
        self._producer.poll(0)
        self._check()

    def flush(self) -> None:
        while self._producer.flush(1.0):
            self._check()
        self._check()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed = self._failed or error

    def _check(self) -> None:
        self._trouble.raise_if_refused("write")
        if self._failed is not None:
            raise self._trouble.in_words("write", kafka().KafkaException(self._failed))

    def close(self) -> None:
        self._producer.purge()
        self._producer.poll(0)
