"""The Kafka sink against a real broker: the crash matrix, evidence, fencing, bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

import tidegate as tg
from kafka.kit import LOGIN, await_that, delete_topics, make_topic, read, read_json
from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, WriterContext
from tidegate.connectors.kafka_client import Trouble
from tidegate.errors import ConfigurationError, ConnectorError, TidegateError, TypeDeclarationError
from tidegate.ids import CheckpointId
from tidegate.testing import CrashCase, crash_matrix
from tidegate.types import record_type

TopicMaker = Callable[..., str]


def context(
    subtask: int = 0, attempt: str = "g1-a1", incarnation: str = "abc", type: Any = int, uid: str = "out"
) -> WriterContext:
    return WriterContext(
        job="orders",
        uid=uid,
        subtask=subtask,
        parallelism=2,
        attempt=attempt,
        clock=lambda: 0.0,
        record_type=record_type(type),
        send_to_driver=lambda topic, payload: None,
        incarnation=incarnation,
    )


def batch(*rows: Any, type: Any = int) -> Batch:
    return Batch(record_type(type), rows=list(rows))


# -- the matrix -------------------------------------------------------------------------------------------------------

#: The slow test goes through all cases; the end-to-end tests kill workers and drivers around the commit under Spark.
AROUND_THE_OUTSIDE = {False: {"within commit", "after writer"}, True: {"after prepare", "after commit"}}


@pytest.mark.parametrize("kill", [False, True])
def test_every_record_once_wherever_the_job_dies(servers: str, kill: bool, seed: int) -> None:
    check_matrix(servers, kill, seed, lambda case: case.name in AROUND_THE_OUTSIDE[kill])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kill", [False, True])
def test_every_record_once_wherever_the_job_dies_all_cases(servers: str, kill: bool, seed: int) -> None:
    check_matrix(servers, kill, seed, lambda case: True)


def check_matrix(servers: str, kill: bool, seed: int, only: Callable[[CrashCase], bool]) -> None:
    prefix = f"matrix-{seed}-{kill}"

    def make(place: str) -> tg.Sink:
        ensure_topic(servers, f"{prefix}-{place}")
        return tg.KafkaSink(servers, f"{prefix}-{place}", markers=f"{prefix}-markers", transaction_timeout="20s")

    report = crash_matrix(make, lambda place: read_json(servers, f"{prefix}-{place}"), kill=kill, only=only, seed=seed)

    print(report)
    report.check()
    assert len(report.results) >= 3
    delete_topics(servers, [name for name in topics_at(servers) if name.startswith(prefix)])


def ensure_topic(servers: str, name: str) -> None:
    if name not in topics_at(servers):
        make_topic(servers, name, 2)


def topics_at(servers: str) -> set[str]:
    return set(AdminClient({"bootstrap.servers": servers}).list_topics(timeout=10).topics)


# -- evidence ---------------------------------------------------------------------------------------------------------


class Out:
    """A sink with the topics of one test, and what a writer and a committer of some attempt do with it."""

    def __init__(self, servers: str, topic: TopicMaker, **options: Any) -> None:
        self.servers = servers
        self.topic = topic("out")
        self.markers = topic("markers", partitions=1, cleanup_policy="compact")
        self.sink = tg.KafkaSink(servers, self.topic, markers=self.markers, **options)

    def prepared(self, checkpoint: int, *rows: Any, **of: Any) -> list[bytes]:
        writer = self.sink.writer(context(**of))
        writer.write(batch(*rows))
        return writer.prepare(checkpoint)  # type: ignore[arg-type]

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        """By a process that never saw the writer."""
        committer = self.sink.committer(context())
        assert committer is not None
        try:
            return committer.commit(committables)
        finally:
            self.reason = committer.lost_reason
            committer.close()

    def rows(self) -> list[Any]:
        return sorted(read_json(self.servers, self.topic))


@pytest.fixture
def out(servers: str, topic: TopicMaker) -> Out:
    return Out(servers, topic)


def test_records_appear_with_the_commit_and_only_once(out: Out) -> None:
    prepared = out.prepared(1, 10, 11)
    assert out.rows() == []

    assert out.commit(prepared) == [CommitOutcome.DONE]
    assert out.commit(prepared) == [CommitOutcome.ALREADY_DONE]

    assert out.rows() == [10, 11]


def test_epochs_are_committed_in_order_whatever_order_they_come_in(out: Out) -> None:
    writer = out.sink.writer(context())
    epochs = []
    for checkpoint in (1, 2, 3):
        writer.write(batch(checkpoint))
        epochs += writer.prepare(checkpoint)  # type: ignore[arg-type]

    assert out.commit(epochs[::-1]) == [CommitOutcome.DONE] * 3
    assert [json.loads(message.value())["checkpoint"] for message in read(out.servers, out.markers)] == [0, 1, 2, 3]
    assert out.rows() == [1, 2, 3]
    assert out.commit(epochs[:2]) == [CommitOutcome.ALREADY_DONE] * 2


def test_a_job_that_begins_anew_does_not_find_the_markers_of_the_old_one(out: Out) -> None:
    out.commit(out.prepared(5, 1, incarnation="old"))

    assert out.commit(out.prepared(1, 2, incarnation="new")) == [CommitOutcome.DONE]
    assert out.rows() == [1, 2]


def test_an_epoch_of_a_line_that_the_job_has_left_is_committed_when_it_comes_back(out: Out) -> None:
    """A start from an older checkpoint leaves checkpoint 6 behind, uncommitted; a larger number is not a sign of it."""
    writer = out.sink.writer(context(attempt="g1-a1"))
    writer.write(batch(5))
    five = writer.prepare(5)  # type: ignore[arg-type]
    writer.write(batch(6))
    six = writer.prepare(6)  # type: ignore[arg-type]
    assert out.commit(five) == [CommitOutcome.DONE]
    assert out.commit(out.prepared(7, 7, attempt="g2-a1")) == [CommitOutcome.DONE]

    assert out.commit(five + six) == [CommitOutcome.ALREADY_DONE, CommitOutcome.DONE]
    assert out.commit(six) == [CommitOutcome.ALREADY_DONE]

    assert out.rows() == [5, 6, 7]


def test_the_epochs_of_two_subtasks_have_nothing_to_do_with_each_other(out: Out) -> None:
    both = out.prepared(1, 1, subtask=0) + out.prepared(1, 2, subtask=1)

    assert out.commit(both) == [CommitOutcome.DONE, CommitOutcome.DONE]
    assert out.rows() == [1, 2]


def test_an_old_worker_that_wakes_up_late_commits_nothing(out: Out) -> None:
    old = out.sink.committer(context(attempt="g1-a1"))
    assert old is not None
    first, second = out.prepared(1, 1), out.prepared(2, 2)
    assert old.commit(first) == [CommitOutcome.DONE]  # it has a producer now, and stops here

    assert out.commit(second) == [CommitOutcome.DONE]  # the next attempt does what it was about to do
    assert old.commit(second) == [CommitOutcome.RETRY]  # fenced
    assert old.commit(second) == [CommitOutcome.ALREADY_DONE]

    assert out.rows() == [1, 2]
    old.close()


def test_a_transaction_that_a_dead_worker_left_open_is_settled_by_the_next(out: Out) -> None:
    from tidegate.connectors.kafka_client import Trouble
    from tidegate.connectors.kafka_epochs import FencedProducer, decode_epoch

    prepared = out.prepared(1, 1, 2)
    epoch = decode_epoch(prepared[0])
    trouble = Trouble(out.sink.connection, "test")
    dead = FencedProducer(out.sink.connection, out.markers, epoch.owner, 60_000, trouble, 30.0)
    dead.producer.begin_transaction()
    dead.producer.produce(out.topic, b"1")
    dead.producer.produce(out.markers, b"{}", epoch.key)
    dead.producer.flush()

    assert out.commit(prepared) == [CommitOutcome.DONE]
    assert out.rows() == [1, 2]
    dead.close()


def test_a_marker_that_should_be_there_and_is_not_stops_the_job(servers: str, out: Out) -> None:
    prepared = out.prepared(1, 1)
    delete_topics(servers, [out.markers])
    make_topic(servers, out.markers, 1, {"cleanup_policy": "compact"})

    assert out.commit(prepared) == [CommitOutcome.LOST]
    assert "there is none" in out.reason

    # The writer of the next attempt makes a marker, but that one was born later.
    out.prepared(2, 2)
    assert out.commit(prepared) == [CommitOutcome.LOST]
    assert "made anew" in out.reason
    assert out.rows() == []


def test_a_marker_of_the_attempt_that_should_be_there_and_is_not_stops_the_job(out: Out) -> None:
    writer = out.sink.writer(context())
    writer.write(batch(1))
    first = writer.prepare(1)  # type: ignore[arg-type]
    writer.write(batch(2))
    second = writer.prepare(2)  # type: ignore[arg-type]
    assert out.commit(first) == [CommitOutcome.DONE]
    markers = [message.key() for message in read(out.servers, out.markers)]
    tombstone(out.servers, out.markers, markers[-1])

    assert out.commit(second) == [CommitOutcome.LOST]
    assert "/g1-a1' of checkpoint 1 or later; there is none" in out.reason
    assert out.rows() == [1]


def tombstone(servers: str, topic: str, key: bytes) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, None, key)
    assert producer.flush(30) == 0


def test_an_epoch_of_another_version_is_refused_with_a_way_out(out: Out) -> None:
    import msgspec

    old = msgspec.msgpack.encode([1, *msgspec.msgpack.decode(out.prepared(1, 1)[0])[1:]])
    assert out.commit([old]) == [CommitOutcome.LOST]
    assert "start the job with the release that wrote it" in out.reason


def test_an_epoch_survives_a_transaction_timeout(servers: str, topic: TopicMaker) -> None:
    """The epoch is not kept by the brokers, so it does not matter how long the outage is."""
    out = Out(servers, topic, transaction_timeout="1s")
    prepared = out.prepared(1, 1, 2)
    committer = out.sink.committer(context())
    assert committer is not None
    fenced = open_transaction(committer, prepared)
    await_abort(out, fenced)

    assert committer.commit(prepared) == [CommitOutcome.RETRY]  # the brokers have ended its transaction
    assert committer.commit(prepared) == [CommitOutcome.DONE]
    assert out.rows() == [1, 2]
    committer.close()


def open_transaction(committer: Any, prepared: list[bytes]) -> Any:
    """A committer that has stopped in the middle."""
    from tidegate.connectors.kafka_epochs import FencedProducer, decode_epoch

    epoch = decode_epoch(prepared[0])
    sink = committer._sink
    fenced = FencedProducer(
        sink.connection, sink.markers, epoch.owner, sink.transaction_timeout_ms, committer._trouble, 30.0
    )
    committer._fenced[epoch.owner] = fenced
    fenced.producer.begin_transaction()
    fenced.producer.produce(epoch.topics[0], b"99")
    fenced.producer.flush()
    return fenced


def await_abort(out: Out, fenced: Any) -> None:
    """Until a reader is no longer held back by it: the partition's last stable offset moves on."""
    from kafka.kit import await_that

    marker_at = len(read(out.servers, out.topic, committed=False))
    assert marker_at == 1
    await_that("the brokers end the transaction", lambda: stable_end(out.servers, out.topic) > 1)


def stable_end(servers: str, topic: str) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": servers, "group.id": "x", "isolation.level": "read_committed"})
    try:
        return max(consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10)[1] for number in (0, 1))
    finally:
        consumer.close()


# -- at-least-once ----------------------------------------------------------------------------------------------------


def test_at_least_once_has_sent_everything_when_flush_returns(servers: str, topic: TopicMaker) -> None:
    name = topic("out")
    sink = tg.KafkaSink(servers, name, guarantee="at-least-once")
    assert sink.committer(context()) is None
    writer = sink.writer(context())

    writer.write(batch(*range(1000)))
    writer.flush()

    assert sorted(read_json(servers, name)) == list(range(1000))
    writer.close()


# -- what is written --------------------------------------------------------------------------------------------------


def test_keys_headers_partitions_and_topics_by_record(servers: str, topic: TopicMaker) -> None:
    names = {0: topic("even"), 1: topic("odd")}
    sink = tg.KafkaSink(
        servers,
        lambda row: names[row["n"] % 2],
        key="name",
        partition=lambda row: row["n"] // 2 % 2,
        headers=lambda row: [("n", str(row["n"]).encode())],
        guarantee="at-least-once",
    )
    writer = sink.writer(context(type=None))

    writer.write(batch(*[{"n": n, "name": f"name-{n}"} for n in range(4)], type=None))
    writer.flush()

    found = [message for name in names.values() for message in read(servers, name)]
    shown = sorted((m.topic(), m.partition(), m.key(), json.loads(m.value())["n"], m.headers()) for m in found)
    assert shown == sorted((names[n % 2], n // 2, f"name-{n}".encode(), n, [("n", str(n).encode())]) for n in range(4))
    writer.close()


# -- bad input --------------------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_named(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r"Kafka sink to nowhere .*look at the topic 'nowhere'.*Create it"):
        tg.KafkaSink(servers, "nowhere").writer(context())


def test_a_topic_that_is_gone_when_an_epoch_is_to_be_committed_stops_the_job_until_it_is_back(
    servers: str, topic: TopicMaker
) -> None:
    out = Out(servers, topic, options={"topic.metadata.propagation.max.ms": 500})
    prepared = out.prepared(1, 1, 2)
    delete_topics(servers, [out.topic])

    with pytest.raises(ConfigurationError, match=r"commit the epoch of checkpoint 1: a topic is not there. Create it"):
        out.commit(prepared)

    make_topic(servers, out.topic, 2)
    assert out.commit(prepared) == [CommitOutcome.DONE]
    assert out.rows() == [1, 2]


class Unwritable:
    """No JSON can hold it."""


def test_a_record_that_cannot_be_written_is_named(servers: str, topic: TopicMaker) -> None:
    name = topic("out")

    for sink, type, row in (
        (tg.KafkaSink(servers, name), None, Unwritable()),
        (tg.KafkaSink(servers, name, value="text"), int, 5),
        (tg.KafkaSink(servers, name, value=lambda record: record), int, 5),
    ):
        writer = sink.writer(context(type=type))
        with pytest.raises(TypeDeclarationError, match=f"(?s)Kafka sink to {name}.*(Unwritable|int)"):
            writer.write(batch(row, type=type))


def test_a_key_that_records_do_not_have_is_refused_before_anything_is_written(servers: str, topic: TopicMaker) -> None:
    with pytest.raises(TidegateError, match="customer"):
        tg.KafkaSink(servers, topic("out"), key="customer").writer(context(type=tuple[int, str]))


def test_a_record_that_is_too_large_is_refused_before_it_is_in_a_checkpoint(servers: str, topic: TopicMaker) -> None:
    sink = tg.KafkaSink(servers, topic("small", max_message_bytes="2000"), value="text")
    writer = sink.writer(context(type=str))

    with pytest.raises(ConfigurationError, match=r"a record is 3000 bytes.*at most 2000 bytes.*max.message.bytes"):
        writer.write(batch("x" * 3000, type=str))


@pytest.mark.parametrize("by_record", [False, True])
def test_a_partition_that_the_topic_does_not_have_is_refused_before_it_is_in_a_checkpoint(
    servers: str, topic: TopicMaker, by_record: bool
) -> None:
    name = topic("two", partitions=2)
    sink = tg.KafkaSink(servers, (lambda row: name) if by_record else name, partition=lambda row: row)
    writer = sink.writer(context(incarnation=name))
    writer.write(batch(0, 1))

    with pytest.raises(
        ConfigurationError, match=r"partition= has given 2, and the topic '.*' has the partitions 0 to 1"
    ):
        writer.write(batch(2))

    connection = sink.connection.admin(Trouble(sink.connection, sink.what))
    connection.create_partitions([NewPartitions(name, 3)])[name].result(10)
    await_that(
        "the topic has a third partition", lambda: len(connection.list_topics(name).topics[name].partitions) == 3
    )
    writer.write(batch(2))
    committer = sink.committer(context(incarnation=name))
    assert committer is not None
    assert committer.commit(writer.prepare(CheckpointId(1))) == [CommitOutcome.DONE]
    assert sorted(read_json(servers, name)) == [0, 1, 2]


def test_an_epoch_has_a_bound(servers: str, topic: TopicMaker) -> None:
    writer = tg.KafkaSink(servers, topic("out"), max_epoch_bytes=10_000).writer(context())
    writer.write(batch(*range(200)))

    with pytest.raises(ConnectorError, match=r"max_epoch_bytes is 10000.*Checkpoint more often"):
        writer.write(batch(*range(200)))


def test_an_epoch_that_no_checkpoint_could_hold_is_refused_before_anything_runs() -> None:
    with pytest.raises(ConfigurationError, match=r"max_epoch_bytes is between 1 and 134217728.*higher parallelism"):
        tg.KafkaSink("127.0.0.1:1", "x", max_epoch_bytes=1 << 30)


def test_a_topic_of_markers_that_forgets_is_refused(servers: str, topic: TopicMaker) -> None:
    forgetful = topic("markers", partitions=1, cleanup_policy="delete")

    with pytest.raises(ConfigurationError, match=r"cleanup.policy=delete.*must have cleanup.policy=compact"):
        tg.KafkaSink(servers, topic("out"), markers=forgetful).writer(context())


def test_a_wrong_password_is_told_and_never_shown(broker: Any, topic: TopicMaker) -> None:
    sink = tg.KafkaSink(broker.login_address, "any", options={**LOGIN, "sasl.password": "hunter2secret"})

    with pytest.raises(ConfigurationError, match="does not let it in") as caught:
        sink.writer(context())
    assert "hunter2secret" not in f"{caught.value} {caught.value.__dict__} {sink!r} {sink.connection!r}"


def test_a_right_password_works_and_may_come_from_a_function(broker: Any, topic: TopicMaker) -> None:
    name = topic("out")

    def options() -> dict[str, str]:
        return {**LOGIN, "sasl.password": "gate"}

    sink = tg.KafkaSink(broker.login_address, name, guarantee="at-least-once", options=options)
    writer = sink.writer(context())
    writer.write(batch(1))
    writer.flush()

    assert read_json(broker.address, name) == [1]
    writer.close()


@pytest.mark.parametrize("name", ["transactional.id", "bootstrap.servers", "isolation.level"])
def test_an_option_that_the_sink_sets_itself_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"set {name} themselves"):
        tg.KafkaSink("127.0.0.1:1", "x", options={name: "mine"})


def test_an_option_that_there_is_not_is_refused(servers: str) -> None:
    with pytest.raises(ConfigurationError, match=r'refuses the options: No such configuration property: "no.such"'):
        tg.KafkaSink(servers, "x", options={"no.such": 1}).writer(context())
