"""The built-in aggregations over whole Arrow batches: what `count`, `sum`, `min` and `max` are on a typed stream whose key is
made of columns. Results, order and stored state are those of api/aggregates.py, record for record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.functions.process import Context, KeyedBatchFunction
from tidegate.graph.specs import RowByRow
from tidegate.state.declarations import ValueState
from tidegate.state.key_columns import column_type
from tidegate.types import data_type

if TYPE_CHECKING:
    from tidegate.graph.key_selector import KeySelector
    from tidegate.types import RecordType


def why_row_by_row(records: RecordType, key: KeySelector, value_type: Any, operation: str) -> RowByRow | None:
    """Why numbers of that type under that key cannot be folded in batches; None where they can."""
    if not records.typed:
        return RowByRow("its stream is untyped", "declare the type with returns=, or annotate the function before it")
    if key.fields is None:
        return RowByRow(
            "its key is computed by a function",
            "name the field, as in key_by('name') or key_by(0); what is not a field can be made one by with_columns",
        )
    if column_type(key.key_type()) is None:
        return RowByRow(
            "nothing says of which type its keys are", "name the field, as in key_by('name'), or say key_type= as well"
        )
    try:
        found = data_type(value_type)
    except TypeDeclarationError:
        return RowByRow("nothing says of which type its values are", "declare the type of the stream before it")
    if found.number is None or found.number.kind not in "iuf":
        return RowByRow(f"values of type {found.name} are folded one by one, and only int and float by column")
    return None


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
