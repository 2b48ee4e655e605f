"""The Kafka source against a real broker: where it begins and ends, restores, new partitions, bad records."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

import tidegate as tg
from kafka.kit import LOGIN, await_that, delete_topics, read_json, send
from tidegate.connectors.contract import Polled, ReaderContext, Source, SourceReader, Split
from tidegate.connectors.kafka_lag import PartitionLag
from tidegate.errors import ConfigurationError, ConnectorError
from tidegate.testing import LedgerSink, ledger, run_in_process

TopicMaker = Callable[..., str]


@contextlib.contextmanager
def opened(source: Source, splits: Sequence[Split], subtask: int = 0, parallelism: int = 1) -> Iterator[SourceReader]:
    reader = source.reader(ReaderContext(subtask, parallelism, time.monotonic, time.sleep))
    # Positions go through JSON, as in a checkpoint.
    stored = [Split(split.id, json.loads(json.dumps(split.position))) for split in splits if not split.finished]
    if stored:
        reader.add_splits(stored)
    try:
        yield reader
    finally:
        reader.close()


def rows_of(polled: Any) -> list[Any]:
    return [] if polled is None else polled.records if isinstance(polled, Polled) else polled


def take(reader: SourceReader, count: int) -> list[Any]:
    """At least so many records."""
    rows: list[Any] = []
    await_that(
        f"{count} records", lambda: rows.extend(rows_of(reader.poll(time.monotonic() + 0.1))) or len(rows) >= count
    )
    return rows


def drain(reader: SourceReader) -> list[Any]:
    rows: list[Any] = []

    def ended() -> bool:
        rows.extend(rows_of(reader.poll(time.monotonic() + 0.05)))
        return all(split.finished for split in reader.splits())

    await_that("the end of the source", ended)
    return rows


def read_all(source: Source) -> list[Any]:
    with opened(source, source.discover_splits(1)) as reader:
        return drain(reader)


# -- begin and end ----------------------------------------------------------------------------------------------------


def test_a_bounded_source_reads_what_was_there_when_it_began(servers: str, topic: TopicMaker) -> None:
    name = topic("in")
    send(servers, name, range(100))
    source = tg.KafkaSource(servers, name, type=int, end="latest")
    splits = source.discover_splits(1)
    send(servers, name, range(100, 200))

    with opened(source, splits) as reader:
        assert sorted(drain(reader)) == list(range(100))
        assert [split.position["offset"] for split in reader.splits()] == [50, 50]  # type: ignore[index, call-overload]


def test_an_empty_topic_ends_at_once(servers: str, topic: TopicMaker) -> None:
    assert read_all(tg.KafkaSource(servers, topic("in"), end="latest")) == []


def test_begin_and_end_at_offsets_at_a_moment_and_at_the_newest(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=1)
    producer = Producer({"bootstrap.servers": servers})
    for number in range(20):
        producer.produce(name, str(number).encode(), timestamp=1_700_000_000_000 + number * 1000)
    producer.flush()
    moment = datetime.fromtimestamp(1_700_000_005, UTC)

    def numbers(**places: Any) -> list[Any]:
        return read_all(tg.KafkaSource(servers, name, type=int, **places))

    assert numbers(start={0: 7}, end={0: 9}) == [7, 8]
    assert numbers(start={name: {0: 18}}, end="latest") == [18, 19]
    assert numbers(start=moment, end={0: 8}) == [5, 6, 7]
    assert numbers(end=moment) == [0, 1, 2, 3, 4]
    assert numbers(start="latest", end="latest") == []
    assert numbers(start=datetime.now(UTC), end="latest") == []


def test_only_what_was_committed_is_read_and_a_transactions_marker_does_not_keep_the_source_from_ending(
    servers: str, topic: TopicMaker
) -> None:
    name = topic("in", partitions=1)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions()
    for value, end in (
        (b"1", producer.commit_transaction),
        (b"2", producer.abort_transaction),
        (b"3", producer.commit_transaction),
    ):
        producer.begin_transaction()
        producer.produce(name, value)
        producer.flush()
        end()

    assert read_all(tg.KafkaSource(servers, name, type=int, end="latest")) == [1, 3]
    assert read_all(tg.KafkaSource(servers, name, type=int, end="latest", read_committed=False)) == [1, 2, 3]


# -- positions --------------------------------------------------------------------------------------------------------


def test_every_record_once_over_restores_at_other_parallelisms(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=5)
    send(servers, name, range(1000), partitions=5)
    source = tg.KafkaSource(servers, name, type=int, end="latest")
    splits = source.discover_splits(3)
    rows: list[Any] = []
    for parallelism in (3, 1, 2):
        kept: list[Split] = [split for split in splits if split.finished]
        for subtask in range(parallelism):
            mine = [split for split in splits if source.owner(split.id, parallelism) == subtask and not split.finished]
            with opened(source, mine, subtask, parallelism) as reader:
                if mine:
                    rows += take(reader, 1)
                kept += reader.splits()
        assert sorted(split.id for split in kept) == sorted(split.id for split in splits)
        splits = kept
    with opened(source, splits) as reader:
        rows += drain(reader)

    assert sorted(rows) == list(range(1000))


def test_the_groups_offsets_follow_completed_checkpoints_and_are_never_read(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=1)
    send(servers, name, range(10), partitions=1)
    source = tg.KafkaSource(servers, name, type=int, group=f"group-{name}", end={0: 5})

    with opened(source, source.discover_splits(1)) as reader:
        assert drain(reader) == [0, 1, 2, 3, 4]
        assert reader.metrics()["pendingRecords"] == 0  # after the end there are five more
        lag = PartitionLag(reader._consumer)  # type: ignore[attr-defined]
        assert lag.metrics([(name, 0, 2, None)])["KafkaSourceReader.KafkaConsumer.records-lag-max"] == 8
        reader.snapshot(1)  # type: ignore[arg-type]
        assert committed_offset(servers, name) < 0
        reader.notify_complete(1)  # type: ignore[arg-type]
        await_that("the group's offset", lambda: committed_offset(servers, name) == 5)

    again = tg.KafkaSource(servers, name, type=int, group=f"group-{name}", end={0: 3})
    assert read_all(again) == [0, 1, 2]


def committed_offset(servers: str, name: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": f"group-{name}"})
    try:
        (found,) = consumer.committed([TopicPartition(name, 0)], timeout=10)
        return int(found.offset)
    finally:
        consumer.close()


# -- new partitions ---------------------------------------------------------------------------------------------------


def add_partitions(servers: str, name: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_partitions([NewPartitions(name, total)])[name].result(30)
    await_that("the partitions", lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == total)


def test_a_partition_that_appears_is_found_by_its_owner_alone_and_read_from_its_beginning(
    servers: str, topic: TopicMaker
) -> None:
    name = topic("in", partitions=1)
    send(servers, name, [0], partitions=1)
    source = tg.KafkaSource(servers, name, type=int, start="latest", discover_every="100ms")
    (split,) = source.discover_splits(2)
    first = source.owner(split.id, 2)
    other = 1 - first
    assert source.owner(f"{name}/1", 2) == other
    with opened(source, [split], first, 2) as reader, opened(source, [], other, 2) as idle:
        assert idle.finds_splits
        assert reader.poll(time.monotonic()) is None
        add_partitions(servers, name, 2)
        send(servers, name, [10, 11], partitions=2)  # before anybody has found it

        assert take(idle, 1) == [11]
        assert take(reader, 1) == [10]
        assert [split.id for split in idle.splits()] == [f"{name}/1"]
        assert [split.id for split in reader.splits()] == [f"{name}/0"]


def test_a_partition_that_appeared_while_the_job_was_down_is_read_from_its_beginning(
    servers: str, topic: TopicMaker
) -> None:
    name = topic("in", partitions=1)
    send(servers, name, [0, 1], partitions=1)
    add_partitions(servers, name, 2)
    send(servers, name, [2, 3], partitions=2)
    source = tg.KafkaSource(servers, name, type=int, start="latest")

    new = next(split for split in source.discover_splits(1) if split.id == f"{name}/1")

    assert new.position["offset"] == 1  # type: ignore[index, call-overload]
    assert source.appeared(new).position["offset"] == 0  # type: ignore[index, call-overload]


def test_a_pattern_finds_topics_and_those_that_appear_later_but_never_kafkas_own(
    servers: str, topic: TopicMaker
) -> None:
    one = topic("fit", partitions=1)
    topic("unfit", partitions=1)
    send(servers, one, [1], partitions=1)
    mark = one.rpartition("-")[2]
    source = tg.KafkaSource(servers, re.compile(f"(fit-{mark}|later-{mark}.*|__.*)"), type=int, discover_every="100ms")

    splits = source.discover_splits(1)
    assert [split.id for split in splits] == [f"{one}/0"]
    with opened(source, splits) as reader:
        assert take(reader, 1) == [1]
        later = topic(f"later-{mark}", partitions=1)
        send(servers, later, [2], partitions=1)  # before anybody has found it
        assert take(reader, 1) == [2]
        delete_topics(servers, [later])
        with pytest.raises(ConnectorError, match=f"topics like .* look at the topic {later!r}: a topic is not there"):
            await_that("the reader notices", lambda: reader.poll(time.monotonic() + 0.1) and None)
    assert [split.id for split in source.discover_splits(1)] == [f"{one}/0"]  # a driver that has never read it


def test_a_pattern_that_fits_nothing_is_an_error(servers: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"topics like 'no-such-.\*' at .* finds no topic that fits. Create one"
    ):
        tg.KafkaSource(servers, re.compile("no-such-.*")).discover_splits(1)


# -- decoding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    customer: str
    amount: int


def test_every_way_to_decode(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=1)
    send(servers, name, [{"customer": "ada", "amount": 3}], partitions=1, key=b"k")

    def decoded(**options: Any) -> Any:
        (row,) = read_all(tg.KafkaSource(servers, name, end="latest", **options))
        return row

    text = '{"customer": "ada", "amount": 3}'
    assert decoded() == {"customer": "ada", "amount": 3}
    assert decoded(type=Order) == Order("ada", 3)
    assert decoded(decode="text") == text
    assert decoded(decode="bytes") == text.encode()
    assert decoded(decode=lambda record: (record.key, record.offset)) == (b"k", 0)
    record = decoded(decode="record")
    assert (record.topic, record.partition, record.offset, record.key, record.value) == (
        name,
        0,
        0,
        b"k",
        text.encode(),
    )


BAD = [
    {"customer": "ada", "amount": 1},
    b"{no json",
    {"customer": "bob", "amount": "many"},
    None,
    {"customer": "cy", "amount": 2},
]


def test_a_bad_record_fails_the_job_and_says_where_it_is(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=1)
    send(servers, name, BAD, partitions=1)

    with pytest.raises(ConnectorError, match=rf"{name}/0, offset 1, cannot be read .*JSON.*side-output"):
        read_all(tg.KafkaSource(servers, name, type=Order, end="latest"))


def test_bad_records_go_to_a_side_output_and_the_others_go_on(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=1)
    send(servers, name, BAD, partitions=1)
    env = tg.StreamEnvironment("bad-records")
    env.checkpointing(every="20ms", storage="memory://bad-records")
    source = tg.KafkaSource(servers, name, type=Order, end="latest", bad_records="side-output")
    orders = env.from_source(source, uid="in")
    orders.sink_to(LedgerSink(f"{name}-good"), uid="good")
    orders.side_output(tg.KafkaSource.BAD_RECORDS).sink_to(LedgerSink(f"{name}-bad"), uid="bad")

    run_in_process(env, seed=1)

    assert ledger(f"{name}-good").rows() == [Order("ada", 1), Order("cy", 2)]
    bad = ledger(f"{name}-bad").rows()
    assert [record.offset for record in bad] == [1, 2, 3]
    assert "malformed" in bad[0].problem
    assert "Expected `int`" in bad[1].problem
    assert "tombstone" in bad[2].problem


# -- trouble ----------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_named_before_anything_runs(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Kafka source of nowhere .*topic 'nowhere'.*Create it"):
        tg.KafkaSource(servers, "nowhere").discover_splits(1)


def test_a_topic_that_is_deleted_while_it_is_read_fails_the_reader(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=1)
    send(servers, name, range(5), partitions=1)
    source = tg.KafkaSource(servers, name, type=int, discover_every="100ms")

    with opened(source, source.discover_splits(1)) as reader:
        assert take(reader, 5) == [0, 1, 2, 3, 4]
        delete_topics(servers, [name])
        with pytest.raises(ConnectorError, match=f"topic {name!r}: a topic is not there"):
            await_that("the reader notices", lambda: reader.poll(time.monotonic() + 0.1) and None)
    with pytest.raises(ConfigurationError, match="Create it"):
        source.discover_splits(1)


def test_a_position_that_is_gone_is_an_error_and_not_a_jump(servers: str, topic: TopicMaker) -> None:
    name = topic("in", partitions=1)
    send(servers, name, range(5), partitions=1)
    source = tg.KafkaSource(servers, name, type=int)

    with (
        opened(source, [Split(f"{name}/0", {"offset": 1000, "end": None})]) as reader,
        pytest.raises(ConnectorError, match=rf"offset 1000 of {name}/0, where the job continues, is not in the topic"),
    ):
        take(reader, 1)


def test_a_wrong_password_is_told_and_never_shown(broker: Any) -> None:
    source = tg.KafkaSource(broker.login_address, "any", options={**LOGIN, "sasl.password": "hunter2secret"})

    with pytest.raises(ConfigurationError, match=r"Kafka source of any .*does not let it in.*sasl") as caught:
        source.discover_splits(1)
    assert "hunter2secret" not in f"{caught.value} {caught.value.__dict__} {source!r} {source.connection!r}"


def test_nobody_at_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.connectors.kafka_client.METADATA_S", 1.0)
    source = tg.KafkaSource("127.0.0.1:9", "orders", options={"socket.connection.setup.timeout.ms": 1000})

    with pytest.raises(
        ConnectorError, match=r"Kafka source of orders at 127.0.0.1:9 could not look.*Are the brokers up"
    ):
        source.discover_splits(1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start": "yesterday"}, "start must be"),
        ({"start": {"other": {0: 1}}}, "topics are a"),
        ({"decode": "avro"}, "decode is"),
        ({"decode": "text", "type": int}, "leave type= out"),
        ({"bad_records": "drop"}, "bad_records is"),
        ({"options": {"group.id": "x"}}, "set group.id themselves"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        tg.KafkaSource("127.0.0.1:1", "a", **options)


def test_without_the_client_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[kafka\]'"):
        tg.KafkaSource("127.0.0.1:1", "a").discover_splits(1)


# -- from topic to topic, in one process ------------------------------------------------------------------------------


def test_from_topic_to_topic(servers: str, topic: TopicMaker) -> None:
    before, after, markers = topic("in"), topic("out"), topic("markers", partitions=1, cleanup_policy="compact")
    send(servers, before, range(300))
    env = tg.StreamEnvironment("copy", parallelism=2)
    env.checkpointing(every="20ms", storage=f"memory://{before}")
    numbers = env.from_source(tg.KafkaSource(servers, before, type=int, end="latest"), uid="in")
    doubled = numbers.map(lambda n: n * 2, returns=int).rebalance()
    doubled.sink_to(tg.KafkaSink(servers, after, markers=markers), uid="out")

    run_in_process(env, seed=3)

    assert sorted(read_json(servers, after)) == list(range(0, 600, 2))


# -- event time -------------------------------------------------------------------------------------------------------


class Late(tg.KeyedProcessFunction):
    def process_element(self, number: int, ctx: Any) -> Any:
        if number <= ctx.current_watermark:
            yield number


def test_no_record_is_late_only_because_another_partition_is_ahead(servers: str, topic: TopicMaker) -> None:
    name = topic("in")
    send(servers, name, [number + (10_000_000 if number % 2 else 0) for number in range(20_000)])
    env = tg.StreamEnvironment("partitions", parallelism=1)
    env.checkpointing(every="1s", storage="memory://partitions")
    strategy = tg.WatermarkStrategy.monotonous(timestamp=lambda number: number)
    numbers = env.from_source(tg.KafkaSource(servers, name, type=int, end="latest"), uid="in")
    timed = numbers.assign_timestamps_and_watermarks(strategy)
    timed.key_by(lambda number: number % 3).process(Late(), uid="late", returns=int).sink_to(
        LedgerSink("late"), uid="out"
    )
    timed.sink_to(LedgerSink("all"), uid="all")
    run_in_process(env, 1)

    assert len(ledger("all").rows()) == 20_000
    assert ledger("late").rows() == []
