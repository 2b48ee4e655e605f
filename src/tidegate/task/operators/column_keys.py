"""The keys of a batch as columns, for operators that work on whole batches. Executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.state.key_arrays import key_arrays

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.state.key_selector import KeySelector


def key_columns(selector: KeySelector, key_types: Sequence[pa.DataType], batch: Batch) -> list[pa.Array]:
    """The key of each record: a column, or one for each part of a tuple."""
    column = selector.key_column(batch)
    if column is None:
        ((_, column),) = key_arrays(selector.key_type(), selector.keys_of(batch))
    columns = [column] if len(key_types) == 1 else column.flatten()
    return [each if each.type == type else each.cast(type) for each, type in zip(columns, key_types, strict=True)]
