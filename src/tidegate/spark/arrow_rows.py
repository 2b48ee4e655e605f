"""Rows between a slot's worker and its JVM, as Arrow messages on a stream: frames in, rows out. Executor.

A slow stream has a record in a frame and a frame in a message, so reading one must be cheap. Messages are taken from the
stream whole, and of those that bring frames only three numbers are looked up: how many rows, where the offsets and where the
bytes of the column begin (Arrow's columnar format, "Encapsulated message format"). All else is pyarrow's.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, cast

import pyarrow as pa

from tidegate.errors import ProtocolViolation

#: What Spark's mapInArrow gives a function: a column that holds the row.
IN_SCHEMA = pa.schema([("struct", pa.struct([("frame", pa.binary())]))])
OUT_TYPE = pa.struct([("dst", pa.int32()), ("frame", pa.binary())])
OUT_SCHEMA = pa.schema([("_0", OUT_TYPE)])

_HEAD = struct.Struct("<Ii")
_CONTINUES = 0xFFFFFFFF
_END = _HEAD.pack(_CONTINUES, 0)
_ENDS = struct.Struct("<ii")
_RECORD_BATCH = 3
_OFFSETS, _BYTES = 2, 3  #: among the buffers of IN_SCHEMA: validity of the row, of the frame; offsets, bytes

_I32 = struct.Struct("<i").unpack_from
_U16 = struct.Struct("<H").unpack_from
_U32 = struct.Struct("<I").unpack_from
_I64 = struct.Struct("<q").unpack_from


def frames(stream: BinaryIO) -> Iterator[memoryview]:
    """Each frame as soon as it is there, until Spark says that no more will come. Empty rows are left out.

    :raises ProtocolViolation: when rows are of another form than ours.
    """
    for metadata, body in _messages(stream):
        header_at = _batch(metadata)
        if header_at is None:
            _check_schema(metadata)
            continue
        (rows,) = _I64(metadata, _field(metadata, header_at, 0))
        buffers = _table(metadata, _field(metadata, header_at, 2)) + 4
        (offsets_at,) = _I64(metadata, buffers + 16 * _OFFSETS)
        (bytes_at,) = _I64(metadata, buffers + 16 * _BYTES)
        view = memoryview(body)[bytes_at:]
        (begin,) = _I32(body, offsets_at)
        for row in range(1, rows + 1):
            (end,) = _I32(body, offsets_at + 4 * row)
            if end > begin:
                yield view[begin:end]
            begin = end


def drain(stream: BinaryIO) -> None:
    """Pass over everything up to the end."""
    for _ in _messages(stream):
        pass


class RowWriter:
    """Of one stream: its schema goes before the first rows."""

    def __init__(self, stream: BinaryIO, head: bytes) -> None:
        """`head` stands before everything, once there is something."""
        self._stream = stream
        self._head = head
        self._began = False

    def write(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """In one piece: the JVM wakes once."""
        if not self._began:
            self._began = True
            self._stream.write(self._head)
            self._stream.write(memoryview(OUT_SCHEMA.serialize()))
        receivers, sent = zip(*rows)
        columns = [pa.array(receivers, pa.int32()), _binary(sent)]
        struct_column = pa.StructArray.from_arrays(columns, fields=OUT_TYPE.fields)
        self._stream.write(memoryview(pa.RecordBatch.from_arrays([struct_column], schema=OUT_SCHEMA).serialize()))
        self._stream.flush()

    def end(self) -> None:
        if self._began:
            self._stream.write(_END)
            self._stream.flush()


def _binary(sent: Sequence[bytes]) -> pa.Array:
    """A large frame, which comes alone, is not copied for it."""
    if len(sent) > 1:
        return pa.array(sent, pa.binary())
    ends = pa.py_buffer(_ENDS.pack(0, len(sent[0])))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(sent[0])])


# -- Arrow's messages ---------------------------------------------------------------------------------------------------------


def _messages(stream: BinaryIO) -> Iterator[tuple[bytes, bytes]]:
    """What describes a message, and its body."""
    while True:
        continues, length = _HEAD.unpack(_read(stream, _HEAD.size))
        if continues != _CONTINUES:
            raise ProtocolViolation("what came from Spark is no Arrow message")
        if length == 0:
            return
        metadata = _read(stream, length)
        body_at = _field(metadata, _table(metadata, 0), 3)
        yield metadata, _read(stream, _I64(metadata, body_at)[0]) if body_at else b""


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the JVM has closed a slot's input before its end")
    return data


def _batch(metadata: bytes) -> int | None:
    """Where the header of a record batch begins; None: the message is something else."""
    message = _table(metadata, 0)
    if metadata[_field(metadata, message, 1)] != _RECORD_BATCH:
        return None
    return _table(metadata, _field(metadata, message, 2))


def _check_schema(metadata: bytes) -> None:
    schema = pa.ipc.read_schema(pa.py_buffer(_HEAD.pack(_CONTINUES, len(metadata)) + metadata))
    if [field.type for field in schema] != [field.type for field in IN_SCHEMA]:
        raise ProtocolViolation(f"rows that came from Spark are of {schema.types}, and not of {IN_SCHEMA.types}")


def _table(data: bytes, at: int) -> int:
    """Where what is referred to at a place of a flatbuffer begins."""
    return at + cast(int, _U32(data, at)[0])


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0: it has its default."""
    shape = table - _I32(data, table)[0]
    place = 4 + 2 * number
    if place >= _U16(data, shape)[0]:
        return 0
    offset = _U16(data, shape + place)[0]
    return table + cast(int, offset) if offset else 0
