"""Kafka topics as a source. A split is a partition, its position the next offset.

Where it runs: topics are looked at on the driver before each attempt; readers, one consumer each, on the executors.

Positions live in the checkpoint alone, as {"offset": next, "end": where a bounded source ends}. The consumer group's offsets
are committed after a checkpoint is complete, for whoever watches the lag, and are never read.

Where a job begins is asked once, before the first attempt. A partition that appears later, while the job runs or while it is
down, is read from its beginning whatever `start` says: what it holds was written after the job began.
"""

from __future__ import annotations

import logging
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.contract import JsonValue, Polled, ReaderContext, Source, SourceReader, Split
from tidegate.connectors.kafka_client import METADATA_S, KafkaConnection, Options, Trouble, kafka
from tidegate.connectors.kafka_lag import PartitionLag
from tidegate.connectors.kafka_records import BadRecord, Decode, bad_record, decoded_type, decoder
from tidegate.connectors.kafka_topics import Place, Topics, bounds, checked_place, parted, resolved
from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError, ConnectorError
from tidegate.functions.process import OutputTag
from tidegate.ids import CheckpointId

log = logging.getLogger("tidegate.kafka")

BAD_RECORDS = OutputTag("bad-records", BadRecord)
_ROWS_PER_POLL = 2000
_FETCHED_KBYTES = 16 * 1024  #: what the client may hold that nobody has polled yet
_KEPT_CHECKPOINTS = 100
_LOOK_S = 30.0  #: how often to look whether the topics are still there


class KafkaSource(Source):
    """The messages of Kafka topics, in order within each partition.

    :param servers: "host:port", or several with commas.
    :param topics: one name, several, or a compiled regular expression that whole names must fit. Topics that appear later are
        found as new partitions are; Kafka's own (`__...`) are never read.
    :param decode: "json", "text", "bytes", "record" (a KafkaRecord), or a function from a KafkaRecord to the record.
    :param type: annotation or pyarrow schema of a record, for "json" and functions.
    :param start: where a job without a checkpoint begins: "earliest", "latest", a datetime, or offsets. Partitions that a
        mapping leaves out begin at their beginning.
    :param end: None: never. "latest" (what is there when the job begins), a datetime, or offsets: a bounded source.
    :param group: the consumer group whose offsets follow the checkpoints; None: none.
    :param bad_records: what happens to a message that cannot be decoded: "fail", or "side-output":
        `stream.side_output(KafkaSource.BAD_RECORDS)` is a stream of BadRecord.
    :param discover_every: how often to look for new partitions, and topics, while the job runs; None: only when it (re)starts.
    :param read_committed: False: also what transactions have written that are open or were aborted.
    :param options: settings of librdkafka (security.protocol, sasl.password, ...), or a function that returns them.
    """

    BAD_RECORDS = BAD_RECORDS
    makes_new_records = True

    def __init__(
        self,
        servers: str,
        topics: str | Sequence[str] | re.Pattern[str],
        *,
        decode: Decode = "json",
        type: Any = None,
        start: Place = "earliest",
        end: Place | None = None,
        group: str | None = None,
        bad_records: str = "fail",
        discover_every: Duration | None = "30s",
        read_committed: bool = True,
        options: Options | None = None,
    ) -> None:
        self.topics = Topics(topics)
        if bad_records not in ("fail", "side-output"):
            raise ConfigurationError(f'bad_records is "fail" or "side-output"; got {bad_records!r}.')
        self.connection = KafkaConnection(servers, options)
        self.decode = decode
        self.record_type = decoded_type(decode, type)
        self.start = checked_place("start", start, self.topics)
        self.end = None if end is None else checked_place("end", end, self.topics)
        self.group = group
        self.bad_records = bad_records
        self.read_committed = read_committed
        self.bounded = end is not None
        self.discover_s = None if discover_every is None or self.bounded else seconds(discover_every, "discover_every")
        self._first: dict[str, Split] = {}  #: driver: where each partition began, asked once
        decoder(decode, self.record_type)  # refuses a type that cannot be read, before anything runs

    def __repr__(self) -> str:
        return f"<KafkaSource {self.topics} at {self.connection.servers}>"

    @property
    def what(self) -> str:
        return f"The Kafka source of {self.topics}"

    def discover_splits(self, parallelism: int) -> list[Split]:
        trouble = Trouble(self.connection, self.what)
        consumer = self.connection.consumer(trouble, group_id="tidegate-discovery", enable_auto_commit=False)
        begun = bool(self._first)
        try:
            found = self.topics.partitions(consumer, trouble, known={parted(split_id)[0] for split_id in self._first})
            if not found:
                raise ConfigurationError(
                    f"{self.what} at {self.connection.servers} finds no topic that fits. Create one, or correct the pattern."
                )
            for topic, partitions in found.items():
                for partition in partitions:
                    split_id = f"{topic}/{partition}"
                    if split_id not in self._first:
                        first = self._first_split(consumer, trouble, topic, partition)
                        self._first[split_id] = self.appeared(first) if begun else first
        finally:
            consumer.close()
        return list(self._first.values())

    def _first_split(self, consumer: Any, trouble: Trouble, topic: str, partition: int) -> Split:
        low, high = bounds(consumer, trouble, topic, partition)
        offset = resolved(consumer, trouble, topic, partition, self.start, low, high)
        end = None if self.end is None else resolved(consumer, trouble, topic, partition, self.end, high, high)
        return Split(f"{topic}/{partition}", {"offset": offset, "end": end, "beginning": low})

    def appeared(self, split: Split) -> Split:
        assert isinstance(split.position, dict)
        return Split(split.id, {**split.position, "offset": split.position["beginning"]})

    def owner(self, split_id: str, parallelism: int) -> int:
        # Partitions of a topic in turn; topics begin at different subtasks.
        topic, partition = parted(split_id)
        return (zlib.crc32(topic.encode()) + partition) % parallelism

    def reader(self, context: ReaderContext) -> SourceReader:
        return _KafkaReader(self, context)


@dataclass(slots=True)
class _Progress:
    """A partition that is being read."""

    topic: str
    partition: int
    offset: int  #: next
    end: int | None
    finished: bool = False

    def position(self) -> JsonValue:
        return {"offset": self.offset, "end": self.end}


class _KafkaReader(SourceReader):
    def __init__(self, source: KafkaSource, context: ReaderContext) -> None:
        self._source = source
        self._clock = context.clock
        self._sleep = context.sleep
        self._wanted = context.wanted
        self._trouble = Trouble(source.connection, source.what)
        self._decode = decoder(source.decode, source.record_type)
        self._progress: dict[tuple[str, int], _Progress] = {}
        self._kept: dict[CheckpointId, list[tuple[str, int, int]]] = {}
        self._consumer = source.connection.consumer(
            self._trouble,
            group_id=source.group or "tidegate",
            enable_auto_commit=False,
            enable_auto_offset_store=False,
            auto_offset_reset="error",
            enable_partition_eof=source.bounded,
            isolation_level="read_committed" if source.read_committed else "read_uncommitted",
            queued_max_messages_kbytes=_FETCHED_KBYTES,
            max_poll_interval_ms=86_400_000,
        )
        self._lag = PartitionLag(self._consumer)
        self.finds_splits = source.discover_s is not None
        self._finder = _Finder(source, context.subtask, context.parallelism)  #: knows the topics of `_progress`

    def add_splits(self, splits: Sequence[Split]) -> None:
        for split in splits:
            topic, partition = parted(split.id)
            position = split.position
            offset = position.get("offset") if isinstance(position, dict) else None
            if not isinstance(position, dict) or not isinstance(offset, int):
                raise ConfigurationError(
                    f"Position {position!r} of {split.id} is none of a Kafka partition.", split=split.id
                )
            end = position.get("end")
            progress = _Progress(topic, partition, offset, end if isinstance(end, int) else None)
            progress.finished = progress.end is not None and progress.offset >= progress.end
            self._progress[topic, partition] = progress
        self._finder.known = frozenset(topic for topic, _ in self._progress)
        self._assign()

    def _assign(self) -> None:
        self._consumer.assign(
            [kafka().TopicPartition(p.topic, p.partition, p.offset) for p in self._progress.values() if not p.finished]
        )

    def poll(self, deadline: float) -> Polled | None:
        if self._finder.has_news and (found := self._finder.take(self._progress)):
            self.add_splits(found)
        # The first message is waited for; `consume` would wait until it had all that it was asked for.
        first = self._consumer.poll(max(0.0, min(deadline - self._clock(), 0.1)))
        if first is None:
            self._trouble.raise_if_refused("read")
            return None
        return self._taken([first, *self._consumer.consume(min(_ROWS_PER_POLL, self._wanted()) - 1, 0.0)])

    def _taken(self, messages: list[Any]) -> Polled:
        decode, bounded = self._decode, self._source.bounded
        wanted = messages
        if bounded or any(message.error() is not None for message in messages):
            wanted = [message for message in messages if self._is_record(message)]
        try:
            records = [decode(message) for message in wanted]
            bad: list[BadRecord] = []
            good = wanted
        except Exception:
            records, good, bad = self._one_by_one(wanted)
        # The last one of each partition stands.
        read = {(message.topic(), message.partition()): message.offset() for message in wanted}
        names = {(topic, partition): f"{topic}/{partition}" for topic, partition in read}
        for place, offset in read.items():
            self._progress[place].offset = offset + 1
        if bounded:
            for progress in self._progress.values():
                if progress.end is not None and progress.offset >= progress.end:
                    self._finish(progress)
        origins = [names[message.topic(), message.partition()] for message in good]
        return Polled(records, {BAD_RECORDS.name: bad} if bad else {}, origins)

    def _is_record(self, message: Any) -> bool:
        """Else it is an event, or lies after the end."""
        error = message.error()
        if error is not None:
            self._on_error(message, error)
            return False
        progress = self._progress[message.topic(), message.partition()]
        if progress.end is None or message.offset() < progress.end:
            return True
        self._finish(progress)
        return False

    def _on_error(self, message: Any, error: Any) -> None:
        codes = kafka().KafkaError
        if error.code() == codes._PARTITION_EOF:
            # Where a transaction's marker is the last thing in a partition, no record brings the reader to the end.
            progress = self._progress[message.topic(), message.partition()]
            if progress.end is not None and message.offset() >= progress.end:
                self._finish(progress)
        elif error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            progress = self._progress[message.topic(), message.partition()]
            raise ConnectorError(
                f"{self._source.what}: offset {progress.offset} of {progress.topic}/{progress.partition}, where the job "
                "continues, is not in the topic any more, or not yet. Its retention has deleted it while the job was down, or "
                "the topic was made anew. Records are missing: start without resume to continue, and give the topic a longer "
                "retention.",
                split=f"{progress.topic}/{progress.partition}",
            )
        elif error.fatal() or not (error.retriable() or error.code() in (codes._TRANSPORT, codes._ALL_BROKERS_DOWN)):
            raise self._trouble.in_words("read", kafka().KafkaException(error))

    def _finish(self, progress: _Progress) -> None:
        """All before the end was read. What comes after it is not fetched any more."""
        if not progress.finished:
            progress.offset, progress.finished = max(progress.offset, progress.end or 0), True
            self._consumer.pause([kafka().TopicPartition(progress.topic, progress.partition)])

    def _one_by_one(self, messages: list[Any]) -> tuple[list[Any], list[Any], list[BadRecord]]:
        """Records, the messages that they are from, and what is not a record."""
        records, good, bad = [], [], []
        for message in messages:
            try:
                records.append(self._decode(message))
                good.append(message)
            except Exception as error:
                odd = bad_record(message, error)
                if self._source.bad_records == "fail":
                    raise ConnectorError(
                        f"{self._source.what}: the message at {odd.topic}/{odd.partition}, offset {odd.offset}, cannot be read "
                        f"({odd.problem}). Correct decode= or type=, or send such messages to a side output with "
                        'bad_records="side-output".',
                        split=f"{odd.topic}/{odd.partition}",
                        offset=odd.offset,
                    ) from error
                bad.append(odd)
        return records, good, bad

    def splits(self) -> list[Split]:
        return [Split(f"{p.topic}/{p.partition}", p.position(), p.finished) for p in self._progress.values()]

    def snapshot(self, checkpoint: CheckpointId) -> list[Split]:
        if self._source.group is not None:
            self._kept[checkpoint] = [(p.topic, p.partition, p.offset) for p in self._progress.values()]
            while len(self._kept) > _KEPT_CHECKPOINTS:
                del self._kept[min(self._kept)]
        return self.splits()

    def notify_complete(self, checkpoint: CheckpointId) -> None:
        offsets = self._kept.get(checkpoint)
        self._kept = {id: kept for id, kept in self._kept.items() if id > checkpoint}
        if offsets:
            self._consumer.commit(offsets=[kafka().TopicPartition(*place) for place in offsets], asynchronous=True)

    def metrics(self) -> Mapping[str, float]:
        return self._lag.metrics([(p.topic, p.partition, p.offset, p.end) for p in list(self._progress.values())])

    def close(self) -> None:
        self._finder.close()
        self._lag.close()
        self._consumer.close()


class _Finder:
    """Looks at the topics now and then, in a thread of its own: a broker that does not answer must not hold up the reader. It
    finds new partitions, and topics that are gone: the client keeps fetching from those without a word."""

    def __init__(self, source: KafkaSource, subtask: int, parallelism: int) -> None:
        self._source = source
        self._subtask = subtask
        self._parallelism = parallelism
        self.has_news = False
        self.known: frozenset[str] = frozenset()  #: topics that are read; they must stay. Replaced, never changed
        self._found: list[Split] = []  #: replaced, never changed
        self._gone: ConfigurationError | None = None
        self._failed: BaseException | None = None  #: by surprise: the thread has ended
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tidegate-kafka-topics", daemon=True)
        self._thread.start()

    def take(self, known: Mapping[tuple[str, int], _Progress]) -> list[Split]:
        """What is ours and new. :raises ConnectorError: when a topic is gone, or nobody looks any more."""
        self.has_news = False
        if self._failed is not None:
            raise ConnectorError(
                f"{self._source.what} looks for new partitions no more: {type(self._failed).__name__}: {self._failed}"
            ) from self._failed
        if self._gone is not None:  # a look before the next attempt tells for sure
            raise ConnectorError(self._gone.message)
        return [split for split in self._found if parted(split.id) not in known]

    def _run(self) -> None:
        try:
            self._look_now_and_then()
        except BaseException as error:  # without it new partitions would never be read, and nobody would know
            self._failed, self.has_news = error, True

    def _look_now_and_then(self) -> None:
        source = self._source
        trouble = Trouble(source.connection, source.what)
        consumer = source.connection.consumer(trouble, group_id="tidegate-discovery", enable_auto_commit=False)
        missing = 0
        try:
            while not self._ending.wait(_LOOK_S if source.discover_s is None else source.discover_s):
                try:
                    self._look(consumer, trouble)
                    missing = 0
                except ConfigurationError as error:  # twice: a broker that has just started may not know all of them
                    missing += 1
                    if missing > 1:
                        self._gone, self.has_news = error, True
                except (
                    ConnectorError,
                    kafka().KafkaException,
                ) as error:  # told, and tried again: the reader says what is wrong
                    log.warning("%s could not look for new partitions: %s", source.what, error)
        finally:
            consumer.close()

    def _look(self, consumer: Any, trouble: Trouble) -> None:
        source = self._source
        found = []
        for topic, partitions in source.topics.partitions(consumer, trouble, self.known).items():
            for partition in partitions if source.discover_s is not None else ():
                if source.owner(f"{topic}/{partition}", self._parallelism) == self._subtask:
                    low, _ = bounds(consumer, trouble, topic, partition)
                    found.append(Split(f"{topic}/{partition}", {"offset": low, "end": None}))
        self._found, self.has_news = found, bool(found)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(METADATA_S)
