"""`collect()`: records back to the program that started the job, each exactly once for the run of one driver.

Where it runs: writer and committer on the executors, `CollectedResults` on the driver. Records travel on the control
connection (topic "collect"), when their checkpoint is complete.

A committable is a header and a payload:

    4 bytes "TGCO", version, encoding (1 Arrow IPC stream, 2 pickle), checkpoint u64, subtask u32, sequence u32,
    big-endian

Exactly-once: (checkpoint, subtask, sequence) is never used for two things that are both committed, so the driver takes
a message that comes again, after a failure, for what it is. The acknowledgement of a later checkpoint, which no longer
holds the committable, follows the message on one connection: it cannot come without it. What a driver has collected
dies with it. A new driver gets the output that the checkpoint it starts from holds, whether an older one had it or not, and
all that follows.

A stream with a type travels as Arrow, and a pickle for one is refused. The records of one without are pickled: they are the
user's own objects on their way to the user's own program, inside the authenticated control connection and the job's own
checkpoint storage. Whoever can write to that storage could run code in the driver; give the stream a type (returns=) where that
matters.
"""

from __future__ import annotations

import itertools
import pickle
import struct
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.errors import ConfigurationError, ConnectorError, ProtocolViolation, TypeDeclarationError
from tidegate.ids import CheckpointId
from tidegate.types import UNTYPED, RecordType
from tidegate.types.pickled import pickled

TOPIC = "collect"
FORMAT_VERSION = 1
_MAGIC = b"TGCO"
_HEADER = struct.Struct(">4sBBQII")
_ARROW, _PICKLE = 1, 2
_ROWS_PER_MESSAGE = 8192
_ENOUGH_ROWS = 128  #: for columns of their own


class CollectSink(Sink):
    """Hands the records to the driver; for tests, notebooks and small results.

    :param max_buffered_bytes: the most that one subtask holds between two checkpoints; more fails the job.
    """

    guarantee = "exactly-once"

    def __init__(self, *, max_buffered_bytes: int = 64 * 1024 * 1024) -> None:
        if max_buffered_bytes < 1:
            raise ConfigurationError(f"max_buffered_bytes must be at least 1; got {max_buffered_bytes}.")
        self.max_buffered_bytes = max_buffered_bytes

    def writer(self, context: WriterContext) -> SinkWriter:
        return _CollectWriter(context, self.max_buffered_bytes)

    def committer(self, context: WriterContext) -> Committer:
        return _CollectCommitter(context)


class _CollectWriter(SinkWriter):
    def __init__(self, context: WriterContext, max_buffered_bytes: int) -> None:
        self._type: RecordType = context.record_type
        self._subtask = context.subtask
        self._max_bytes = max_buffered_bytes
        self._batches: list[Batch] = []  #: not yet encoded: a few small ones make one message
        self._batched_rows = 0
        self._encoded: list[bytes] = []  #: since the last prepare
        self._encoded_bytes = 0

    def write(self, batch: Batch) -> None:
        if len(batch) == 0:
            return
        self._batches.append(batch)
        self._batched_rows += len(batch)
        if self._batched_rows >= _ROWS_PER_MESSAGE:
            self.flush()

    def flush(self) -> None:
        """Encode what has come. It leaves the process only with the checkpoint: that is the guarantee."""
        if not self._batches:
            return
        payload = self._arrow() if self._type.typed else self._pickle()
        self._batches, self._batched_rows = [], 0
        self._encoded.append(payload)
        self._encoded_bytes += len(payload)
        if self._encoded_bytes > self._max_bytes:
            raise ConnectorError(
                f"Subtask {self._subtask} of collect() holds {self._encoded_bytes} bytes since the last checkpoint; "
                f"the limit is max_buffered_bytes={self._max_bytes}. Checkpoint more often, or write to a FileSink.",
                subtask=self._subtask,
            )

    def _arrow(self) -> bytes:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, self._type.schema) as stream:
            for batch in _joined(self._type, self._batches):
                stream.write_batch(batch.columns())
        data: bytes = out.getvalue().to_pybytes()
        return data

    def _pickle(self) -> bytes:
        rows = [row for batch in self._batches for row in batch.rows()]
        try:
            return pickled(rows)
        except TypeDeclarationError as error:
            raise ConnectorError(
                f"A record cannot be sent to the driver ({error}). Give the stream a type with returns=, or map the "
                "records to dataclasses, tuples or scalars; classes must stand in a module that the executors can "
                "import."
            ) from error

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        self.flush()
        encoding = _ARROW if self._type.typed else _PICKLE
        committables = [
            _HEADER.pack(_MAGIC, FORMAT_VERSION, encoding, checkpoint, self._subtask, sequence) + payload
            for sequence, payload in enumerate(self._encoded)
        ]
        self._encoded, self._encoded_bytes = [], 0
        return committables


def _joined(type: RecordType, batches: Iterable[Batch]) -> Iterator[Batch]:
    """In order. A slow stream's rows come one by one, and columns of one row take as long as of a hundred: they are joined."""
    for stays, some in itertools.groupby(batches, lambda batch: batch.has_columns or len(batch) >= _ENOUGH_ROWS):
        if stays:
            yield from some
        else:
            yield Batch(type, rows=[row for batch in some for row in batch.rows()])


class _CollectCommitter(Committer):
    version = FORMAT_VERSION

    def __init__(self, context: WriterContext) -> None:
        self._send = context.send_to_driver

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        for committable in committables:
            self._send(TOPIC, committable)
        return [CommitOutcome.DONE] * len(committables)


class _MessageKey(NamedTuple):
    """Orders the results, too: by checkpoint, then by subtask, then as they were written."""

    checkpoint: int
    subtask: int
    sequence: int


@dataclass(frozen=True, slots=True)
class _Message:
    encoding: int
    payload: bytes


class CollectedResults:
    """Driver. What collect() sinks have sent. Messages come on one thread, the user asks on another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._types: dict[str, RecordType] = {}
        self._messages: dict[str, dict[_MessageKey, _Message]] = {}

    def expect(self, uid: str, record_type: RecordType) -> None:
        """The type of the sink's stream, which makes rows of columns. Without it typed rows are dicts of columns."""
        self._types[uid] = record_type

    def uids(self) -> list[str]:
        """The sinks that are expected to send."""
        return list(self._types)

    def accept(self, uid: str, subtask: int, topic: str, payload: bytes) -> bool:
        """Whether the message is new. `subtask` is who sent it, which after a rescale need not be who wrote it.

        :raises ProtocolViolation: when it is not a message of a collect() sink.
        """
        if topic != TOPIC or len(payload) < _HEADER.size:
            raise ProtocolViolation(
                f"Not a collected message: topic {topic!r}, {len(payload)} bytes.", uid=uid, subtask=subtask
            )
        magic, version, encoding, checkpoint, wrote, sequence = _HEADER.unpack_from(payload)
        if magic != _MAGIC or version != FORMAT_VERSION or encoding not in (_ARROW, _PICKLE):
            raise ProtocolViolation(
                f"A collected message of {uid!r} has mark {magic!r}, version {version} and encoding {encoding}; this "
                f"release reads {_MAGIC!r}, version {FORMAT_VERSION}.",
                uid=uid,
                subtask=subtask,
            )
        if encoding == _PICKLE and self._types.get(uid, UNTYPED).typed:  # a foreign checkpoint may hold anything
            raise ProtocolViolation(
                f"What collect() {uid!r} is to be given is pickled, and its stream has a type: pickles are read for "
                "streams without one alone. If it had none when this was prepared: start the job once with that program.",
                uid=uid,
            )
        key = _MessageKey(checkpoint, wrote, sequence)
        with self._lock:
            of_sink = self._messages.setdefault(uid, {})
            if key in of_sink:
                return False
            of_sink[key] = _Message(encoding, payload[_HEADER.size :])
            return True

    def rows(self, uid: str) -> list[Any]:
        """All records so far, in order within each subtask."""
        with self._lock:
            messages = sorted(self._messages.get(uid, {}).items())
        declared = self._types.get(uid, UNTYPED)
        rows: list[Any] = []
        for _, message in messages:
            rows.extend(_decoded(message, declared))
        return rows


def _decoded(message: _Message, declared: RecordType) -> list[Any]:
    if message.encoding == _PICKLE:
        pickled_rows: list[Any] = pickle.loads(message.payload)
        return pickled_rows
    rows: list[Any] = []
    with pa.ipc.open_stream(message.payload) as stream:
        for batch in stream:
            rows.extend(declared.to_rows(batch) if declared.typed else batch.to_pylist())
    return rows
