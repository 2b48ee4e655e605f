"""Rows between a worker and its JVM: what pyarrow writes is read, and what is written pyarrow reads."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tidegate.errors import ProtocolViolation
from tidegate.spark.arrow_rows import IN_SCHEMA, OUT_SCHEMA, RowWriter, drain, frames

ROW = IN_SCHEMA.field(0).type


class Pieces(io.RawIOBase):
    """A socket: each read gives at most so many bytes."""

    def __init__(self, data: bytes, most: int) -> None:
        self._data = io.BytesIO(data)
        self._most = most

    def readable(self) -> bool:
        return True

    def readinto(self, into: memoryview) -> int:  # type: ignore[override]
        return self._data.readinto(memoryview(into)[: self._most])


def batch(sent: Sequence[bytes]) -> pa.RecordBatch:
    column = pa.StructArray.from_arrays([pa.array(sent, pa.binary())], fields=list(ROW))
    return pa.RecordBatch.from_arrays([column], schema=IN_SCHEMA)


def stream_of(batches: Sequence[pa.RecordBatch], schema: pa.Schema = IN_SCHEMA) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema) as writer:
        for each in batches:
            writer.write_batch(each)
    return sink.getvalue()


@pytest.mark.parametrize("seed", range(20))
def test_every_frame_comes_once_in_order_whatever_the_batches_and_the_pieces(seed: int) -> None:
    draw = random.Random(seed)
    sent = [
        [draw.randbytes(draw.choice([0, 0, 1, 56, 57, 300, 5000, 70_000])) for _ in range(draw.choice([1, 2, 2, 3, 9]))]
        for _ in range(draw.randrange(20))
    ]
    data = stream_of([batch(each) for each in sent])
    stream = io.BufferedReader(Pieces(data, draw.choice([1, 7, 100, 1 << 20])), draw.choice([16, 4096, 1 << 16]))

    assert [bytes(frame) for frame in frames(stream)] == [frame for each in sent for frame in each if frame]


def test_validity_of_rows_may_be_written_or_left_out() -> None:
    """Spark writes it, pyarrow does not where nothing is null."""
    frame = pa.Array.from_buffers(
        pa.binary(), 1, [pa.py_buffer(b"\1"), pa.py_buffer(bytes(4) + b"\3\0\0\0"), pa.py_buffer(b"abc")]
    )
    column = pa.Array.from_buffers(ROW, 1, [pa.py_buffer(b"\1")], children=[frame])
    data = stream_of([pa.RecordBatch.from_arrays([column], schema=IN_SCHEMA)])

    assert [bytes(each) for each in frames(io.BytesIO(data))] == [b"abc"]


def test_nothing_is_read_past_the_end() -> None:
    stream = io.BytesIO(stream_of([batch([b"", b"frame"])]) + b"what Spark says then")
    assert len(list(frames(stream))) == 1
    assert stream.read() == b"what Spark says then"

    numbers = pa.record_batch({"id": [1, 2]})
    stream = io.BytesIO(stream_of([numbers], numbers.schema) + b"what Spark says then")
    drain(stream)
    assert stream.read() == b"what Spark says then"


def test_a_stream_that_is_cut_off_anywhere_is_an_error() -> None:
    data = stream_of([batch([b"", b"frame"])])
    for length in range(len(data)):
        with pytest.raises((EOFError, pa.ArrowInvalid)):
            list(frames(io.BytesIO(data[:length])))


@pytest.mark.parametrize("other", [pa.record_batch({"id": [1, 2]}), pa.record_batch({"frame": [b"frame"]})])
def test_rows_of_another_form_are_refused(other: pa.RecordBatch) -> None:
    with pytest.raises(ProtocolViolation):
        list(frames(io.BytesIO(stream_of([other], other.schema))))
    with pytest.raises(ProtocolViolation, match="no Arrow message"):
        list(frames(io.BytesIO(b"neither head nor length")))


def test_rows_are_written_as_one_arrow_stream_each_flushed_at_once() -> None:
    sink = io.BytesIO()
    writer = RowWriter(io.BufferedWriter(sink, 1 << 16), b"head")  # type: ignore[arg-type]
    assert sink.getvalue() == b""
    sent = [[(1, b"one"), (0, b"two")], [(2, bytes(100_000))], [(7, b"")]]
    for rows in sent:
        before = len(sink.getvalue())
        writer.write(rows)
        assert len(sink.getvalue()) > before + sum(len(frame) for _, frame in rows)
    writer.end()

    assert sink.getvalue()[:4] == b"head"
    read = pa.ipc.open_stream(sink.getvalue()[4:])
    assert read.schema == OUT_SCHEMA
    assert [[(row["_0"]["dst"], row["_0"]["frame"]) for row in each.to_pylist()] for each in read] == sent


def test_where_there_were_no_rows_nothing_is_written() -> None:
    sink = io.BytesIO()
    RowWriter(sink, b"head").end()
    assert sink.getvalue() == b""
