"""The keys of a batch as columns, for operators that work on whole batches. Executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.state.key_arrays import key_arrays
from tidegate.state.key_columns import canonical_column
from tidegate.state.keys import TupleKey

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.state.key_selector import KeySelector


def key_columns(selector: KeySelector, key_types: Sequence[pa.DataType], batch: Batch) -> list[pa.Array]:
    """The key of each record: a column, or one for each part of a tuple. Equal keys are equal values."""
    key_type = selector.key_type()
    column = selector.key_column(batch)
    if column is None:
        ((_, column),) = key_arrays(key_type, selector.keys_of(batch))
    columns, parts = (column.flatten(), key_type.parts) if isinstance(key_type, TupleKey) else ([column], [key_type])
    return [
        canonical_column(part, each if each.type == type else each.cast(type))
        for part, each, type in zip(parts, columns, key_types, strict=True)
    ]
