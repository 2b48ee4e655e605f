"""A model of Kafka's brokers, at the door where the connectors' code ends: the client library's producer, consumer and admin.

What it has of the real ones, because a sink can be wrong about it (tests/kafka/test_model.py does the same with a broker and
with the model, and compares):

    of two producers with one transactional id the older is fenced: it can do nothing more
    init_transactions settles what the one before has left open: what was to be committed is, the rest is aborted
    a reader of committed records sees nothing after the first record of a transaction that is open, whoever wrote it
    the end of a transaction is decided at once, and its markers are written later: until then it is open to readers
    a call may be carried out, and its answer be lost: nobody knows then

It has no replicas, no retention and no compaction, and messages are not refused for their size.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tidegate.connectors.kafka_client import KafkaConnection, Trouble, kafka
from tidegate.errors import ConnectorError
from tidegate.testing.simulation.outside import Outside, outside_named

#: What may fail in it. "end" is the end of a transaction that takes its time.
KAFKA_CALLS = ("init_transactions", "begin_transaction", "commit_transaction", "commit_transaction", "end")
DELAYED_LOOKS = 3  #: of readers, before the markers of a transaction are written
_PARTITIONS = 3  #: of a topic that nobody has made


@dataclass(eq=False, slots=True)
class Transaction:
    name: str  #: the transactional id
    writes: list[Message] = field(default_factory=list)
    is_open: bool = True
    committed: bool = False
    looks: int = 0  #: until its decision is seen


@dataclass(eq=False, slots=True)
class Message:
    """As the client library has it; those of a partition are in order, and their offsets are their places."""

    _topic: str
    _partition: int
    _offset: int
    _key: bytes | None
    _value: bytes | None
    transaction: Transaction | None
    _error: Any = None

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes | None:
        return self._value

    def error(self) -> Any:
        return self._error


@dataclass(slots=True)
class Broker:
    topics: dict[str, list[list[Message]]] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)  #: of each transactional id
    open: dict[str, Transaction] = field(default_factory=dict)  #: by transactional id

    def topic(self, name: str) -> list[list[Message]]:
        return self.topics.setdefault(name, [[] for _ in range(_PARTITIONS)])

    def write(self, topic: str, partition: int, key: Any, value: Any, transaction: Transaction | None) -> None:
        partitions = self.topic(topic)
        if partition < 0:
            partition = zlib.crc32(key or b"") % len(partitions)
        log = partitions[partition]
        log.append(Message(topic, partition, len(log), _bytes(key), _bytes(value), transaction))
        if transaction is not None:
            transaction.writes.append(log[-1])

    def end(self, name: str, commit: bool, looks: int = 0) -> None:
        """Decided; who reads learns of it after so many looks."""
        ended = self.open.pop(name, None)
        if ended is not None:
            ended.committed, ended.looks = commit, looks
            ended.is_open = looks > 0

    def settle(self, name: str) -> None:
        """The markers of what was decided are written now."""
        for partitions in self.topics.values():
            for log in partitions:
                for each in log:
                    if each.transaction is not None and each.transaction.name == name:
                        each.transaction.looks, each.transaction.is_open = 0, False

    def stable_end(self, topic: str, partition: int) -> int:
        """Up to where readers of committed records come. Looking lets time pass."""
        log = self.topic(topic)[partition]
        for transaction in {id(each.transaction): each.transaction for each in log}.values():
            if transaction is not None and transaction.is_open and transaction.looks:
                transaction.looks -= 1
                transaction.is_open = transaction.looks > 0
        waiting = (each.offset() for each in log if each.transaction is not None and each.transaction.is_open)
        return min(waiting, default=len(log))

    def read(self, *but: str) -> list[tuple[Any, ...]]:
        """What a reader of committed records finds in the end: topic, key and value. `but`: topics to leave out."""
        logs = [log for name, partitions in self.topics.items() if name not in but for log in partitions]
        return [
            (each.topic(), each.key(), each.value())
            for log in logs
            for each in log
            if each.transaction is None or each.transaction.committed
        ]


def broker(outside: Outside, servers: str) -> Broker:
    """Each run has brokers of its own, empty at the beginning."""
    found = outside.models.setdefault(f"kafka://{servers}", Broker())
    assert isinstance(found, Broker)
    return found


class ModelConnection(KafkaConnection):
    """Clients of a model, in place of those of a connection."""

    def __init__(self, real: KafkaConnection, outside: str, uid: str) -> None:
        super().__init__(real.servers, real._options)
        self._outside = outside
        self._uid = uid

    def _made(self, kind: str, trouble: Trouble, settings: Any) -> Any:
        outside = outside_named(self._outside)
        brokers = broker(outside, self.servers)
        if kind == "Consumer":
            return ModelConsumer(brokers, settings.get("isolation_level") == "read_committed")
        return ModelProducer(brokers, settings.get("transactional_id"), self)

    def failing(self, call: str, act: Callable[[], Any]) -> Any:
        try:
            return outside_named(self._outside).failing(self._uid, call, act)
        except ConnectorError as error:
            raise _raised("_TIMED_OUT", str(error)) from None

    def is_delayed(self) -> bool:
        try:
            outside_named(self._outside).failing(self._uid, "end", lambda: None)
        except ConnectorError:
            return True
        return False

    def admin(self, trouble: Trouble) -> Any:
        return ModelAdmin(broker(outside_named(self._outside), self.servers))


class ModelProducer:
    def __init__(self, brokers: Broker, name: str | None, connection: ModelConnection) -> None:
        self._brokers = brokers
        self._name = name or ""
        self._connection = connection
        self._epoch = -1

    def init_transactions(self, timeout: float) -> None:
        def act() -> None:
            self._brokers.end(self._name, commit=False)
            self._brokers.settle(self._name)
            self._epoch = self._brokers.epochs[self._name] = self._brokers.epochs.get(self._name, -1) + 1

        self._connection.failing("init_transactions", act)

    def begin_transaction(self) -> None:
        def act() -> None:
            self._check()
            self._brokers.open[self._name] = Transaction(self._name)

        self._connection.failing("begin_transaction", act)

    def produce(
        self, topic: str, value: Any, key: Any = None, partition: int = -1, on_delivery: Any = None, **more: Any
    ) -> None:
        transaction = None
        if self._name:
            self._check()
            transaction = self._brokers.open[self._name]
        self._brokers.write(topic, partition, key, value, transaction)

    def commit_transaction(self, timeout: float) -> None:
        def act() -> None:
            self._check()
            looks = DELAYED_LOOKS if self._connection.is_delayed() else 0
            self._brokers.end(self._name, commit=True, looks=looks)

        self._connection.failing("commit_transaction", act)

    def _check(self) -> None:
        if self._epoch != self._brokers.epochs.get(self._name, -1):
            raise _raised("_FENCED", "another producer has this transactional id")

    def poll(self, timeout: float = 0.0) -> int:
        return 0

    def flush(self, timeout: float = 0.0) -> int:
        return 0

    def purge(self) -> None:
        """What was produced has left already."""


class ModelConsumer:
    def __init__(self, brokers: Broker, committed: bool) -> None:
        self._brokers = brokers
        self._committed = committed
        self._at: dict[tuple[str, int], int] = {}

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        return ModelAdmin(self._brokers).list_topics(topic, timeout)

    def get_watermark_offsets(self, place: Any, timeout: float = 0.0, cached: bool = False) -> tuple[int, int]:
        return 0, len(self._brokers.topic(place.topic)[place.partition])

    def assign(self, places: Any) -> None:
        self._at = {(place.topic, place.partition): max(0, place.offset) for place in places}

    def consume(self, count: int, timeout: float) -> list[Message]:
        found: list[Message] = []
        for (topic, partition), at in self._at.items():
            log = self._brokers.topic(topic)[partition]
            end = self._brokers.stable_end(topic, partition) if self._committed else len(log)
            read = log[at : min(end, at + count)]
            self._at[topic, partition] = at + len(read)
            found += [each for each in read if self._is_shown(each)]
            if not read and end == len(log):
                eof = kafka().KafkaError(kafka().KafkaError._PARTITION_EOF)
                found.append(Message(topic, partition, end, None, None, None, eof))
        return found

    def _is_shown(self, message: Message) -> bool:
        return not self._committed or message.transaction is None or message.transaction.committed

    def close(self) -> None: ...


class ModelAdmin:
    def __init__(self, brokers: Broker) -> None:
        self._brokers = brokers

    def poll(self, timeout: float = 0.0) -> int:
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = 0.0) -> Any:
        """A topic of the user's is there as soon as anybody asks; the sink's own must be made."""
        names = list(self._brokers.topics) if topic is None else [topic]
        found: dict[str, Any] = {}
        for name in names:
            missing = name.startswith("__") and name not in self._brokers.topics
            error = kafka().KafkaError(kafka().KafkaError.UNKNOWN_TOPIC_OR_PART) if missing else None
            partitions = {} if missing else dict.fromkeys(range(len(self._brokers.topic(name))))
            found[name] = SimpleNamespace(error=error, partitions=partitions)
        return SimpleNamespace(topics=found)

    def create_topics(self, topics: Any) -> dict[str, Any]:
        for topic in topics:
            self._brokers.topics[topic.topic] = [[] for _ in range(topic.num_partitions)]
            self._brokers.settings[topic.topic] = dict(topic.config or {})
        return {topic.topic: SimpleNamespace(result=lambda timeout: None) for topic in topics}

    def describe_configs(self, resources: Any) -> dict[Any, Any]:
        return {
            resource: SimpleNamespace(result=lambda timeout, r=resource: self._config(r.name)) for resource in resources
        }

    def _config(self, topic: str) -> dict[str, Any]:
        values = {"max.message.bytes": "1048588", "cleanup.policy": "delete", **self._brokers.settings.get(topic, {})}
        return {name: SimpleNamespace(value=value) for name, value in values.items()}


def _raised(code: str, text: str) -> Exception:
    errors = kafka().KafkaError
    error: Exception = kafka().KafkaException(errors(getattr(errors, code), text))
    return error


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
