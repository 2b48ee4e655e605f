"""Payload of a Records frame: typed Arrow columns, or pickled rows for an untyped stream. Executor only.

Typed: one Arrow IPC record batch without its schema, which both sides know from the plan. Untyped: one pickle of the list
of rows; it is read only after the frame's tag was checked (wire/frame.py), and so are columns of `Pickled`. Event-time
timestamps, where the stream has them, stand before it: a 4-byte length and little-endian int64 milliseconds.
"""

from __future__ import annotations

import pickle
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.errors import ProtocolViolation
from tidegate.types.pickled import pickled
from tidegate.wire.frame import FLAG_PICKLED, FLAG_TIMESTAMPS, Frame

if TYPE_CHECKING:
    from tidegate.types import RecordType

_LENGTH = struct.Struct("<I")
_WRITE_OPTIONS = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5)


def encode_records(batch: Batch) -> tuple[int, memoryview | bytes]:
    """Flags and payload. :raises TypeDeclarationError: when a row does not fit the stream's type."""
    flags = 0
    payload: memoryview | bytes
    if batch.type.typed:
        payload = memoryview(batch.columns().serialize())
    else:
        flags |= FLAG_PICKLED
        payload = pickled(batch.rows())
    if batch.timestamps is not None:
        flags |= FLAG_TIMESTAMPS
        stamps = np.ascontiguousarray(batch.timestamps, dtype="<i8").tobytes()
        payload = b"".join((_LENGTH.pack(len(stamps)), stamps, payload))
    return flags, payload


def decode_records(frame: Frame, record_type: RecordType) -> Batch:
    """The batch of a checked frame."""
    payload = frame.payload
    timestamps: np.ndarray[Any, Any] | None = None
    if frame.flags & FLAG_TIMESTAMPS:
        (length,) = _LENGTH.unpack(payload[: _LENGTH.size])
        timestamps = np.frombuffer(payload[_LENGTH.size : _LENGTH.size + length], dtype="<i8")
        payload = payload[_LENGTH.size + length :]
    if frame.flags & FLAG_PICKLED:
        if record_type.typed:  # a checkpoint of somebody else may hold such a frame: it would run what it likes
            raise ProtocolViolation(
                f"records for a stream of {record_type.name} are pickled, and pickles are read for streams without a type "
                "alone. If they were in flight when the stream had none: restore with the old program, take an aligned "
                "checkpoint or a savepoint, and change the program then"
            )
        return Batch(record_type, rows=pickle.loads(payload), timestamps=timestamps)
    columns = pa.ipc.read_record_batch(pa.py_buffer(payload), record_type.schema)
    return Batch(record_type, columns=columns, timestamps=timestamps)
