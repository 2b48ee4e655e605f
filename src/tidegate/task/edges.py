"""Network edges, sending side: choose the receiver of each record, gather records into frames. Executor.

Frames grow under load and leave early when the stream is slow: a buffer is sent when it is full, when the slot says so
(task/send_times.py), and always before a barrier.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.errors import TypeDeclarationError
from tidegate.graph.logical import Partitioning
from tidegate.graph.plan import JobPlan, PlannedEdge
from tidegate.graph.specs import method_of
from tidegate.protocol.watermarks import IDLE
from tidegate.state.key_groups import key_group, key_groups, subtask_of
from tidegate.task.operators.base import OperatorFailed, RunningOperator, key_place
from tidegate.task.operators.first_rows import misfitting_row
from tidegate.task.outbox import Outbox
from tidegate.types.inference import inferred_annotation, written
from tidegate.wire.frame import Kind
from tidegate.wire.records import encode_records

log = logging.getLogger("tidegate.task")

MAX_FRAME_BYTES = 1 << 20  #: a frame is one credit of Spark's back-pressure, whatever its size
FULL_BUFFER_BYTES = 256 * 1024
FULL_BUFFER_ROWS = 2048
#: Rows make smaller frames: whoever takes records one by one is slow, and what is in flight stands before each barrier.
ROW_FRAME_BYTES = 64 * 1024
FIRST_FRAME_ROWS = 256  #: as long as the size of a row is not known


class _Buffer:
    """Records for one receiver, not yet in a frame: batches of one form, so that order holds when they are joined."""

    __slots__ = ("columns_bytes", "parts", "rows")

    def __init__(self) -> None:
        self.parts: list[Batch] = []
        self.rows = 0
        self.columns_bytes = 0

    def fits(self, batch: Batch) -> bool:
        if not self.parts:
            return True
        first = self.parts[0]
        return first.has_columns == batch.has_columns and (first.timestamps is None) == (batch.timestamps is None)

    def add(self, batch: Batch, most_rows: int) -> bool:
        """Whether the buffer is full now."""
        self.parts.append(batch)
        if batch.has_columns:
            self.columns_bytes += batch.columns().nbytes
            return self.columns_bytes >= FULL_BUFFER_BYTES
        self.rows += len(batch)
        return self.rows >= most_rows

    def take(self) -> Batch | None:
        parts, self.parts, self.rows, self.columns_bytes = self.parts, [], 0, 0
        if len(parts) <= 1:
            return parts[0] if parts else None
        stamps = None if parts[0].timestamps is None else np.concatenate([part.timestamps for part in parts])
        if parts[0].has_columns:
            columns = pa.concat_batches([part.columns() for part in parts])
            return Batch(parts[0].type, columns=columns, timestamps=stamps)
        rows: list[Any] = []
        for part in parts:
            rows += part.rows()
        return Batch(parts[0].type, rows, timestamps=stamps)


class EdgeWriter:
    """One logical edge of one sending subtask. Order is kept from origin to target."""

    def __init__(self, plan: JobPlan, edge: PlannedEdge, origin: int, outbox: Outbox, owner: RunningOperator) -> None:
        self._owner = owner
        self._edge = edge
        self._origin = origin
        self._outbox = outbox
        self._type = edge.record_type
        self._key = edge.edge.key
        self._key_type = None if self._key is None else self._key.key_type()
        if self._key is not None:
            keyed = next(op.operator for op in plan.operators if op.uid == edge.edge.downstream)
            self._key_place = key_place(keyed, self._key)
            self._row_key = self._key.row_key()
        chooses = self._key if edge.edge.partitioner is None else edge.edge.partitioner.key
        #: What chooses the receiver of a record may read of it what is another for the receiver.
        self._changes = chooses is not None and self._type.typed and not self._type.come_back(chooses.fields)
        self._slots = [plan.next_slot(edge, target, edge.from_layer) for target in range(edge.down_parallelism)]
        self._buffers = [_Buffer() for _ in range(edge.down_parallelism)]
        self._receivers = edge.receivers_of(origin)
        self._turn = origin % len(self._receivers)  #: whose turn it is in a rebalance
        #: Of a shuffle. From a seed of its own: the load must be even, not unpredictable, and a run can be repeated.
        self._chance = np.random.default_rng([edge.index, origin])
        self._most_rows = FIRST_FRAME_ROWS  #: of a frame that is made of rows; follows their size
        self._has_told = origin > 0  #: what type an untyped stream could have; one subtask says it for all
        self.is_dirty = False  #: something waits to be sent
        self._watermark: int | None = None  #: to be sent with the next flush
        self._idle = False  #: and then this, that the channel is idle

    def write(self, batch: Batch) -> None:
        if batch.has_lists and self._type.typed:
            self._in_columns(batch)
        match self._edge.partitioning:
            case Partitioning.FORWARD:
                self._append(self._origin, batch)
            case Partitioning.BROADCAST:
                for target in range(len(self._buffers)):
                    self._append(target, batch)
            case Partitioning.REBALANCE | Partitioning.RESCALE:
                self._rebalance(batch)
            case Partitioning.SHUFFLE:
                self._deal(batch, self._chance.integers(len(self._buffers), size=len(batch)))
            case Partitioning.CUSTOM:
                self._by_choice(batch)
            case Partitioning.GLOBAL:
                self._append(0, batch)
            case Partitioning.HASH:
                self._by_key(batch)

    def _in_columns(self, batch: Batch) -> None:
        """Keys are hashed, and shares are taken, by whole columns from here on."""
        try:
            batch.columns()
        except TypeDeclarationError as error:
            raise OperatorFailed(self._owner, misfitting_row(self._owner, self._edge.edge.tag, error)) from error

    def write_watermark(self, watermark: int) -> None:
        """Goes out after everything written so far, with the next flush: a frame each would be too many."""
        self._idle = watermark == IDLE
        if not self._idle:
            self._watermark = watermark
        self.is_dirty = True

    def flush(self) -> None:
        """Everything written so far is in the outbox when this returns."""
        if not self.is_dirty:
            return
        for target, buffer in enumerate(self._buffers):
            self._send(target, buffer)
        if self._watermark is not None:
            self._tell_all(Kind.WATERMARK, self._watermark)
            self._watermark = None
        if self._idle:
            self._tell_all(Kind.WATERMARK, IDLE)
            self._idle = False
        self.is_dirty = False

    def end(self) -> None:
        """No more records on this edge from this subtask."""
        self.flush()
        self._tell_all(Kind.END_OF_INPUT)

    def _tell_all(self, kind: Kind, value: int = 0) -> None:
        """To every receiver that this subtask can send to."""
        for target in self._receivers:
            self._outbox.send(
                self._slots[target], kind, origin=self._origin, target=target, edge=self._edge.index, value=value
            )

    # -- routing ------------------------------------------------------------------------------------------------

    def _as_received(self, batch: Batch) -> Batch:
        """The receiver takes the key of what it gets."""
        if not self._changes:
            return batch
        self._in_columns(batch)
        return batch.as_received()

    def _rebalance(self, batch: Batch) -> None:
        """Contiguous shares, so that columns stay slices; small batches go whole to the next in turn."""
        receivers = self._receivers
        share = max(1, -(-len(batch) // len(receivers)))
        for start in range(0, len(batch), share):
            self._append(receivers[self._turn], batch.slice(start, start + share))
            self._turn = (self._turn + 1) % len(receivers)

    def _by_choice(self, batch: Batch) -> None:
        partitioner = self._edge.edge.partitioner
        assert partitioner is not None
        batch = self._as_received(batch)
        try:
            targets = partitioner.targets(batch, len(self._buffers))
        except Exception as error:  # the user's functions
            raise OperatorFailed(self._owner, error) from error
        self._deal(batch, targets)

    def _by_key(self, batch: Batch) -> None:
        receivers = len(self._buffers)
        if receivers == 1:
            self._append(0, batch)
            return
        assert self._key is not None
        assert self._key_type is not None
        batch = self._as_received(batch)
        max_parallelism = self._edge.down_max_parallelism
        if len(batch) == 1 and not batch.has_columns:  # as for many, in a fifth of the time
            try:
                hash = self._key_type.hash(self._row_key(batch.rows()[0]))
            except Exception as error:
                raise OperatorFailed(self._owner, error, place=self._key_place) from error
            self._append(subtask_of(key_group(hash, max_parallelism), receivers, max_parallelism), batch)
            return
        try:
            hashes = self._key.hashes(batch, self._key_type)
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self._owner, error, place=self._key_place) from error
        self._deal(batch, subtask_of(key_groups(hashes, max_parallelism), receivers, max_parallelism))

    def _deal(self, batch: Batch, targets: np.ndarray[Any, Any]) -> None:
        """Each record to its receiver."""
        receivers = len(self._buffers)
        if batch.has_columns:
            for target in range(receivers):
                picked = np.flatnonzero(targets == target)
                if len(picked) == len(batch):
                    self._append(target, batch)
                elif len(picked):
                    columns = batch.columns().take(pa.array(picked))
                    self._append(target, Batch(self._type, columns=columns, timestamps=_picked(batch, picked)))
        else:
            rows: list[list[Any]] = [[] for _ in range(receivers)]
            for row, target in zip(batch.rows(), targets.tolist()):
                rows[target].append(row)
            for target, mine in enumerate(rows):
                if mine:
                    self._append(target, Batch(self._type, mine, timestamps=_picked(batch, targets == target)))

    # -- buffers ------------------------------------------------------------------------------------------------

    def _append(self, target: int, batch: Batch) -> None:
        if not self._type.typed and batch.has_columns:
            batch = Batch(self._type, batch.rows(), timestamps=batch.timestamps)
        buffer = self._buffers[target]
        self.is_dirty = True
        self._outbox.credit.sending(self._slots[target], len(batch))
        if not buffer.fits(batch):
            self._send(target, buffer)
        if not batch.has_columns:
            while len(batch) > self._most_rows:
                head, batch = batch.slice(0, self._most_rows), batch.slice(self._most_rows, len(batch))
                buffer.add(head, 0)
                self._send(target, buffer)
        if buffer.add(batch, self._most_rows):
            self._send(target, buffer)

    def _send(self, target: int, buffer: _Buffer) -> None:
        batch = buffer.take()
        if batch is not None:
            rows = 0 if batch.has_columns else len(batch)
            size = self._send_batch(target, batch)
            if rows:
                self._most_rows = max(1, min(FULL_BUFFER_ROWS, ROW_FRAME_BYTES * rows // size))

    def _tell_type(self, batch: Batch) -> None:
        """Once: what to write so that the records travel as columns."""
        self._has_told = True
        annotation = inferred_annotation(batch.rows())
        if annotation is not None:
            operator = self._owner.planned.operator
            log.warning(
                "%s at %s emits %s and does not say so: its records travel as pickled rows, several times slower than columns. "
                "Write there: %s(..., returns=%s)",
                operator, operator.line, written(annotation), method_of(operator.spec), written(annotation),
            )  # fmt: skip

    def _send_batch(self, target: int, batch: Batch) -> int:
        """The payload's size."""
        if not self._type.typed and not self._has_told:
            self._tell_type(batch)
        try:
            flags, payload = encode_records(batch)
        except TypeDeclarationError as error:
            raise OperatorFailed(self._owner, misfitting_row(self._owner, self._edge.edge.tag, error)) from error
        except Exception as error:  # a record that cannot be pickled
            raise OperatorFailed(self._owner, error) from error
        if len(payload) > MAX_FRAME_BYTES and len(batch) > 1:
            half = len(batch) // 2
            first = self._send_batch(target, batch.slice(0, half))
            return first + self._send_batch(target, batch.slice(half, len(batch)))
        self._owner.bytes_out += len(payload)
        self._outbox.send(
            self._slots[target],
            Kind.RECORDS,
            origin=self._origin,
            target=target,
            edge=self._edge.index,
            count=len(batch),
            flags=flags,
            payload=payload,
        )
        return len(payload)


def _picked(batch: Batch, places: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    return None if batch.timestamps is None else batch.timestamps[places]
