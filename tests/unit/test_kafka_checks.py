"""What users' functions give for a message of Kafka: refused when it is written, or readable in a checkpoint as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from connector_kit import batch_of, writer_context
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as tg
from tidegate.connectors import kafka_client
from tidegate.connectors.kafka_client import Trouble, kafka
from tidegate.connectors.kafka_epochs import FORMAT_VERSION, Epoch, decode_epoch, encode_epoch
from tidegate.connectors.kafka_sink import _Encoding
from tidegate.connectors.kafka_source import _Finder
from tidegate.connectors.kafka_topics import bounds
from tidegate.errors import ConnectorError, TypeDeclarationError

pytest.importorskip("confluent_kafka")

ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(st.characters(), max_size=8),
    st.binary(max_size=8),
    st.sampled_from([np.int64(3), np.bool_(True), object(), {1}, "orders", "a" * 250, "..", "ä", bytearray(b"x")]),
)
PAIRS = st.one_of(st.tuples(ANYTHING, ANYTHING), st.tuples(st.text(max_size=5), st.binary(max_size=5)), ANYTHING)
HEADERS = st.one_of(
    ANYTHING,
    st.lists(PAIRS, max_size=3),
    st.dictionaries(st.text(max_size=3), st.one_of(st.text(max_size=3), st.binary())),
)


def prepared(**options: Any) -> Epoch:
    """Written and prepared as an epoch, and read as whoever commits it reads it. Nothing here needs a broker."""
    options.setdefault("topic", lambda row: "orders")
    sink = tg.KafkaSink("127.0.0.1:1", **options)
    encoding = _Encoding(sink, writer_context()[0], Trouble(sink.connection, sink.what))
    if "partition" in options:
        encoding._unknown.add("orders")  # as if nobody could tell its partitions
    topics: dict[str, int] = {}
    records, _ = encoding.messages(batch_of([{"a": 1}]), lambda topic: topics.setdefault(topic, len(topics)))
    epoch = Epoch(FORMAT_VERSION, "job", "i", "u", 0, "g1-a1", 1, "b", 0, list(topics), records)
    return decode_epoch(encode_epoch(epoch))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(topic=ANYTHING, partition=ANYTHING, headers=HEADERS)
def test_what_is_written_can_be_read_by_whoever_commits_it(topic, partition, headers):
    for name, value in {"topic": topic, "partition": partition, "headers": headers}.items():
        try:
            epoch = prepared(**{name: lambda row, value=value: value})
        except TypeDeclarationError as refused:
            assert f"the function of {name}= must give" in str(refused)  # noqa: PT017
            str(refused).encode()  # it can be sent and printed
            continue
        ((place, to, _, _, _, sent),) = epoch.records
        given = {"topic": epoch.topics[place], "partition": to, "headers": sent}[name]
        if name == "headers":
            pairs = list((value or {}).items() if isinstance(value, dict) else value or [])
            value = [(key, each.encode() if isinstance(each, str) else each) for key, each in pairs]
        assert given == (-1 if name == "partition" and value is None else value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": lambda row: None}, r"the function of topic= must give the name of a topic .*; it has given None"),
        ({"topic": lambda row: "two words"}, r"the function of topic= .* it has given 'two words'"),
        ({"topic": lambda row: ".."}, r"the function of topic= "),
        ({"partition": lambda row: "0"}, r"the function of partition= must give the number of a partition.* given '0'"),
        ({"partition": lambda row: 1.0}, r"the function of partition= .* given 1\.0"),
        ({"partition": lambda row: True}, r"the function of partition= .* given True"),
        ({"partition": lambda row: -2}, r"the function of partition= .* given -2"),
        ({"partition": lambda row: 2**31}, r"the function of partition= .* given 2147483648"),
        (
            {"headers": lambda row: [("trace", 5)]},
            r"the function of headers= must give \[\(name, bytes\)\].*\('trace', 5\)",
        ),
        ({"headers": lambda row: ["trace"]}, r"the function of headers= "),
        ({"headers": lambda row: [(b"trace", b"x")]}, r"the function of headers= "),
        ({"headers": lambda row: [("\ud83d", b"x")]}, r"the function of headers= .*ud83d"),
    ],
)
def test_a_slip_in_a_function_of_the_sink_is_refused_when_the_record_is_written(options, told):
    with pytest.raises(TypeDeclarationError, match=rf"The Kafka sink to .*: {told}"):
        prepared(**options)


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ([("trace", "abc")], [("trace", b"abc")]),
        ({"trace": b"abc", "né": "ü"}, [("trace", b"abc"), ("né", "ü".encode())]),
        ((("trace", None),), [("trace", None)]),
        (None, []),
    ],
)
def test_headers_may_be_text_a_dict_or_nothing_as_in_kafkas_own_client(headers, kept):
    assert prepared(headers=lambda row: headers).records[0][5] == kept


def test_a_thread_that_looks_for_partitions_and_dies_by_surprise_fails_the_reader():
    def broken() -> dict[str, Any]:
        raise ZeroDivisionError("in a function of the user's")

    finder = _Finder(tg.KafkaSource("127.0.0.1:1", "orders", options=broken), 0, 1)
    finder._thread.join(10)

    assert finder.has_news  # so the reader asks at its next poll
    with pytest.raises(ConnectorError, match=r"orders.* looks for new partitions no more: ZeroDivisionError: in a fun"):
        finder.take({})


class Leaderless:
    """A client of a topic whose leader is chosen only after some questions."""

    def __init__(self, errors: list[int]) -> None:
        self.errors = errors

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        if self.errors:
            raise kafka().KafkaException(kafka().KafkaError(self.errors.pop(0)))
        return 3, 7

    def poll(self, timeout: float) -> None:
        """Nothing to tell."""


def looked_at(client: Leaderless) -> tuple[int, int]:
    source = tg.KafkaSource("127.0.0.1:1", "orders")
    return bounds(client, Trouble(source.connection, source.what), "orders", 0)


def test_a_partition_without_a_leader_is_asked_again():
    codes = kafka().KafkaError

    assert looked_at(Leaderless([codes.NOT_LEADER_FOR_PARTITION, codes.LEADER_NOT_AVAILABLE, codes._TIMED_OUT])) == (
        3,
        7,
    )


def test_who_has_no_right_to_a_topic_is_told_at_once():
    client = Leaderless([kafka().KafkaError.TOPIC_AUTHORIZATION_FAILED])
    with pytest.raises(
        tg.ConfigurationError, match=r"could not look for the ends of orders/0: the broker does not let it in"
    ):
        looked_at(client)


def test_a_partition_that_has_no_leader_for_long_is_an_error_in_words(monkeypatch):
    monkeypatch.setattr(kafka_client, "METADATA_S", 0.0)
    with pytest.raises(
        ConnectorError, match=r"orders at .* could not look for the ends of orders/0: NOT_LEADER_FOR_PART"
    ):
        looked_at(Leaderless([kafka().KafkaError.NOT_LEADER_FOR_PARTITION]))
