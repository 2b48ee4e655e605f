"""The built-in aggregations over whole Arrow batches: what `count`, `sum`, `min` and `max` are on a typed stream whose key is
made of columns. Results, order and stored state are those of api/aggregates.py, record for record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.functions.process import Context, KeyedBatchFunction
from tidegate.state.canonical_rows import column_type
from tidegate.state.declarations import ValueState
from tidegate.types import data_type

if TYPE_CHECKING:
    from tidegate.state.key_selector import KeySelector
    from tidegate.types import RecordType


def in_batches(records: RecordType, key: KeySelector, value_type: Any) -> bool:
    """Whether numbers of that type under that key can be folded in batches."""
    if not records.typed or key.fields is None or value_type is None or column_type(key.key_type()) is None:
        return False
    try:
        numpy = data_type(value_type).numpy
    except TypeDeclarationError:
        return False
    return numpy is not None and numpy.kind in "if"


def count_function(out: RecordType) -> KeyedBatchFunction:
    """Emits (key, number of records so far)."""

    class Count(KeyedBatchFunction):
        count = ValueState(int, default=0)

        def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
            return _pairs(out, keys, self.count.add_many(keys, 1, running=True))

    return Count()


def sum_function(field: str, value_type: Any, out: RecordType) -> KeyedBatchFunction:
    """Emits (key, sum so far)."""

    class Sum(KeyedBatchFunction):
        value = ValueState(value_type)

        def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
            return _pairs(out, keys, self.value.add_many(keys, batch.column(field), running=True))

    return Sum()


def extreme_function(field: str, value_type: Any, how: Any, out: RecordType) -> KeyedBatchFunction:
    """Emits (key, smallest or largest so far)."""

    class Extreme(KeyedBatchFunction):
        value = ValueState(value_type)

        def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: Context) -> pa.RecordBatch:
            return _pairs(out, keys, self.value.fold_many(keys, batch.column(field), how))

    return Extreme()


def _pairs(out: RecordType, keys: pa.Array, results: pa.Array | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([keys, results], out.field_names)
