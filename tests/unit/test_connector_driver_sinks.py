"""The sinks whose records end in the driver: print and collect."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pyarrow as pa
import pytest
from connector_kit import batch_of, writer_context
from pyspark import cloudpickle

from tidegate.batch import Batch
from tidegate.connectors.collect_sink import _HEADER, CollectedResults, CollectSink
from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.print_sink import PrintSink
from tidegate.errors import ConnectorError, ProtocolViolation
from tidegate.types import record_type


@dataclass(frozen=True)
class Order:
    id: int
    item: str


# -- print --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "parallelism", "line"),
    [("", 1, "x\n"), ("", 2, "2> x\n"), ("in", 1, "in> x\n"), ("in", 2, "in:2> x\n")],
)
def test_lines_are_marked_with_prefix_and_subtask(prefix, parallelism, line):
    context, sent = writer_context(parallelism=parallelism, subtask=parallelism - 1)
    cloudpickle.loads(cloudpickle.dumps(PrintSink(prefix))).writer(context).write(batch_of(["x"]))
    assert sent == [("print", line.encode())]


def test_a_write_is_one_message_and_long_ones_are_cut_between_lines():
    context, sent = writer_context()
    writer = PrintSink().writer(context)
    writer.write(batch_of([1, "zwölf", None, "lone \ud800"]))
    assert sent == [("print", "1\nzwölf\nNone\nlone \\ud800\n".encode())]
    writer.write(batch_of([]))
    assert len(sent) == 1

    sent.clear()
    lines = ["x" * 1000] * 200
    writer.write(batch_of(lines))
    assert len(sent) == 4
    assert all(payload.endswith(b"\n") and len(payload) <= 64 * 1024 for _, payload in sent)
    assert b"".join(payload for _, payload in sent).decode().splitlines() == lines


def test_a_huge_record_is_shortened_not_sent_whole():
    context, sent = writer_context()
    PrintSink().writer(context).write(batch_of(["x" * 10_000_000]))
    ((_, payload),) = sent
    assert len(payload) < 70_000
    assert payload.endswith(b"more characters)\n")


# -- collect ------------------------------------------------------------------------------------------------------


def deliver(results, sent, uid="out", subtask=0):
    return [results.accept(uid, subtask, topic, payload) for topic, payload in sent]


@pytest.mark.parametrize(
    ("record", "rows"),
    [
        (Order, [Order(1, "a"), Order(2, "b")]),
        (int, [1, 2, 3]),
        (tuple[str, int], [("a", 1)]),
        (pa.schema([("n", pa.int32())]), [{"n": 1}]),
        (None, [1, "mixed", {"a": [Order(1, "x")]}, None]),
    ],
)
def test_records_reach_the_driver_as_they_were_when_their_checkpoint_is_complete(record, rows):
    context, sent = writer_context(record)
    sink = cloudpickle.loads(cloudpickle.dumps(CollectSink()))
    results = CollectedResults()
    results.expect("out", record_type(record))
    writer = sink.writer(context)
    for row in rows:
        writer.write(batch_of([row], record))
    committables = writer.prepare(1)
    assert sent == []

    assert sink.committer(context).commit(committables) == [CommitOutcome.DONE]
    assert deliver(results, sent) == [True]
    assert results.rows("out") == rows
    assert results.rows("another") == []


def test_what_is_committed_again_after_a_crash_is_collected_once():
    context, sent = writer_context(int)
    writer = CollectSink().writer(context)
    results = CollectedResults()
    results.expect("out", record_type(int))
    writer.write(batch_of([1, 2], int))
    first = writer.prepare(1)
    writer.write(batch_of([3], int))
    second = writer.prepare(2)
    committer = CollectSink().committer(context)

    committer.commit(second)
    committer.commit(first)
    committer.commit(first + second)

    # After a rescale another subtask commits what this one wrote.
    assert deliver(results, sent, subtask=9) == [True, True, False, False]
    assert results.rows("out") == [1, 2, 3]


def test_subtasks_and_epochs_with_equal_records_are_kept_apart():
    results = CollectedResults()
    results.expect("out", record_type(int))
    for subtask in range(3):
        context, sent = writer_context(int, subtask=subtask, parallelism=3)
        writer = CollectSink().writer(context)
        for checkpoint in (1, 2):
            writer.write(batch_of([7], int))
            CollectSink().committer(context).commit(writer.prepare(checkpoint))
        assert writer.prepare(3) == []
        deliver(results, sent, subtask=subtask)
    assert results.rows("out") == [7] * 6


def test_records_that_come_one_by_one_travel_together_and_stay_in_order():
    context, sent = writer_context(int)
    writer = CollectSink().writer(context)
    numbers = iter(range(2000))
    sizes = [1] * 150 + [500, 1, 2, 200, 1, 1]
    for number, size in enumerate(sizes):
        batch = batch_of([next(numbers) for _ in range(size)], int)
        if number % 7 == 3:
            batch.columns()
        writer.write(batch)
    (committable,) = writer.prepare(1)
    CollectSink().committer(context).commit([committable])
    results = CollectedResults()
    results.expect("out", record_type(int))
    deliver(results, sent)

    assert results.rows("out") == list(range(sum(sizes)))
    with pa.ipc.open_stream(committable[_HEADER.size :]) as stream:
        assert len(list(stream)) < len(sizes) / 2, "a batch for each record: to make them takes longer than all else"


def test_many_records_travel_in_several_messages_in_order():
    context, sent = writer_context(int)
    writer = CollectSink().writer(context)
    for start in range(0, 50_000, 1000):
        writer.write(batch_of(list(range(start, start + 1000)), int))
    committables = writer.prepare(1)
    assert len(committables) > 3
    CollectSink().committer(context).commit(list(reversed(committables)))
    results = CollectedResults()
    results.expect("out", record_type(int))
    deliver(results, sent)
    assert results.rows("out") == list(range(50_000))


def test_what_is_pickled_for_a_stream_with_a_type_is_not_taken():
    """The committables of a savepoint may be of somebody else, and what they hold would be read in the driver."""
    context, sent = writer_context(None)
    writer = CollectSink().writer(context)
    writer.write(batch_of([1], None))
    CollectSink().committer(context).commit(writer.prepare(1))
    results = CollectedResults()
    results.expect("out", record_type(int))

    with pytest.raises(ProtocolViolation, match="its stream has a type"):
        deliver(results, sent)
    assert results.rows("out") == []


def test_columns_are_sent_as_they_are():
    context, sent = writer_context(int)
    writer = CollectSink().writer(context)
    type = record_type(int)
    writer.write(Batch(type, columns=type.to_batch([1, 2, 3]).slice(1)))
    CollectSink().committer(context).commit(writer.prepare(1))
    results = CollectedResults()
    deliver(results, sent)
    assert results.rows("out") == [{"value": 2}, {"value": 3}]  # nobody said what the columns mean


def test_more_than_the_limit_between_two_checkpoints_is_an_error_with_a_way_out():
    writer = CollectSink(max_buffered_bytes=10_000).writer(writer_context()[0])
    writer.write(batch_of(["x" * 20_000]))
    with pytest.raises(ConnectorError, match="FileSink"):
        writer.prepare(1)


def test_a_record_that_cannot_be_pickled_is_an_error_with_a_way_out():
    writer = CollectSink().writer(writer_context()[0])
    writer.write(batch_of([threading.Lock()]))
    with pytest.raises(ConnectorError, match="returns="):
        writer.prepare(1)


@pytest.mark.parametrize(
    ("topic", "damage"),
    [
        ("print", lambda message: message),
        ("collect", lambda message: message[:10]),
        ("collect", lambda message: b"XXXX" + message[4:]),
        ("collect", lambda message: message[:4] + b"\x09" + message[5:]),
    ],
)
def test_a_message_that_cannot_be_is_refused_before_its_payload_is_read(topic, damage):
    context, _ = writer_context()
    writer = CollectSink().writer(context)
    writer.write(batch_of([1]))
    (message,) = writer.prepare(1)
    with pytest.raises(ProtocolViolation):
        CollectedResults().accept("out", 0, topic, damage(message))
