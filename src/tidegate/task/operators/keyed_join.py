"""Joins of two keyed streams by event time, as an operator. Executor; the task's thread.

The join decides (functions/joins.py); here are keys, timers, late records, and the pairs on their way: to a function of the
user's, or as columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.functions.joins import LATE, LATE_RECORDS, KeyedJoin
from tidegate.functions.user_metrics import UserMetrics
from tidegate.ids import EVENT_TIMERS
from tidegate.state.backend import bind_states
from tidegate.state.timers import TimerQueue
from tidegate.task.operators.base import OperatorFailed, RunningOperator, key_place
from tidegate.task.operators.checkpointed import keeper_for
from tidegate.task.operators.event_time_marks import EventTimeMarks
from tidegate.task.operators.late import held_back, refuse_join_without_time
from tidegate.types.copying import own_to_each

if TYPE_CHECKING:
    from tidegate.graph.plan import PlannedOperator
    from tidegate.graph.specs import KeyedJoinSpec
    from tidegate.state.backend import KeyedStateBackend
    from tidegate.types import RecordType
    from tidegate.wire.control import SubtaskRestore


class KeyedJoinOperator(RunningOperator):
    """Implements functions.joins.JoinSide."""

    def __init__(self, planned: PlannedOperator, subtask: int, spec: KeyedJoinSpec, backend: KeyedStateBackend) -> None:
        super().__init__(planned, subtask)
        self.backend = backend
        self._keyed_backend = backend
        self._join: KeyedJoin = spec.function
        self._spec = spec
        bind_states(spec.function, backend)
        self._inputs = [(key.row_key(), key.key_type().normalise_many) for key in spec.keys]
        self._key_places = [key_place(planned.operator, key) for key in spec.keys]
        self._key_type = spec.keys[0].key_type()
        self._marks = EventTimeMarks(backend.key_groups, planned.max_parallelism)
        self.keeper = keeper_for(self._marks, backend)
        self._timers = TimerQueue(backend, EVENT_TIMERS)
        self._key: Any = None
        self._lefts: list[Any] = []
        self._rights: list[Any] = []
        self._stamps: list[int] = []
        self.user_metrics = UserMetrics()
        self._late = self.user_metrics.counter(LATE_RECORDS)

    def open(self, restore: SubtaskRestore | None) -> None:
        self._marks.watermark = self.watermark
        super().open(restore)

    def process(self, batch: Batch, input_index: int) -> None:
        stamps = batch.timestamps
        if stamps is None:
            refuse_join_without_time(self, input_index)
        row_key, normalise_many = self._inputs[input_index]
        rows = batch.rows()
        try:
            keys = normalise_many(list(map(row_key, rows)))
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self, error, place=self._key_places[input_index]) from error
        join, backend = self._join, self._keyed_backend
        late: list[int] = []
        takes_late = input_index == 1 and join.takes_late_right
        marks = self._marks.of_keys(self._key_type, keys)
        for place, (row, key, stamp, mark) in enumerate(zip(rows, keys, stamps.tolist(), marks, strict=True)):
            if stamp <= mark and not takes_late:
                late.append(place)
                continue
            self._key = key
            backend.set_current_key(key)
            join.record(input_index, row, stamp, self)
        backend.clear_current_key()
        if self.hot_keys is not None:
            self.hot_keys.note(keys)
        self._send()
        if late:
            self._send_late(batch, late, input_index)

    def _send_late(self, batch: Batch, places: list[int], side: int) -> None:
        record_type = self.planned.operator.outputs.get(LATE[side])
        self._late.inc(len(places))
        if record_type is not None:
            rows = batch.rows()
            self.emit_to(LATE[side], batch.pick(places, [rows[place] for place in places], record_type))

    def on_watermark(self, watermark: int) -> None:
        self._marks.watermark = watermark
        for timestamp, key, _ in self._timers.due(watermark):
            self._key = key
            self._join.on_timer(timestamp, self)
        self._keyed_backend.clear_current_key()
        self._send()

    def pass_watermark(self, watermark: int) -> None:
        super().pass_watermark(held_back(watermark, self._join.hold_ms))

    # -- for the join -------------------------------------------------------------------------------------------------

    def pair(self, left: Any, right: Any, timestamp: int) -> None:
        self._lefts.append(left)
        self._rights.append(right)
        self._stamps.append(timestamp)

    def set_timer(self, timestamp: int) -> None:
        self._timers.register(self._key, timestamp)

    # -- pairs on their way -------------------------------------------------------------------------------------------

    def _send(self) -> None:
        if not self._stamps:
            return
        lefts, rights, stamps = self._lefts, self._rights, np.array(self._stamps, np.int64)
        self._lefts, self._rights, self._stamps = [], [], []
        function = self._spec.pair
        if function is None:
            types = self._spec.types
            arrays = [*_columns(types[0], lefts), *_columns(types[1], rights)]
            columns = pa.RecordBatch.from_arrays(arrays, schema=self.output_type.schema)
            self.emit(Batch(self.output_type, columns=columns, timestamps=stamps))
            return
        copy = self.copy
        left, right = (type.copier() for type in self._spec.types)
        made = map(function, own_to_each(lefts, left), own_to_each(rights, right))
        self.emit(Batch(self.output_type, list(made if copy is None else map(copy, made)), timestamps=stamps))


def _columns(record_type: RecordType, rows: list[Any]) -> list[pa.Array]:
    """Null where there is no record."""
    places = np.cumsum([row is not None for row in rows]) - 1
    missing = np.array([row is None for row in rows])
    found = record_type.to_batch([row for row in rows if row is not None])
    columns: list[pa.Array] = found.take(pa.array(places, pa.int64(), mask=missing)).columns
    return columns
