"""How a keyed stream finds the key of a record: by column, by position or by a function of the user's.

Used by the sender (to route) and by the receiver (to find the state); both see the same record, as columns make it
(task/edges.py), so a key function must be deterministic. Hashes are the same for rows and for columns (docs/decisions/0003).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.state.key_columns import column_type
from tidegate.state.keys import KeyType, key_type
from tidegate.types import data_type

if TYPE_CHECKING:
    import numpy as np

    from tidegate.batch import Batch


@dataclass(frozen=True, slots=True)
class KeySelector:
    """`fields` are column names, or None when `function` computes the key. One field: the bare value; more: a tuple. Both: the
    function reads that field and nothing else."""

    key_annotation: Any  #: declared type of the key, None when it is not known
    fields: tuple[str, ...] | None = None
    function: Callable[[Any], Any] | None = None
    rows_are: str = "object"  #: "object" (attributes), "mapping", "tuple" or "scalar": how fields are read from a row
    line: str = field(default="", compare=False)  #: where the user has called key_by, for messages

    def key_type(self) -> KeyType:
        return key_type(self.key_annotation)

    def row_key(self) -> Callable[[Any], Any]:
        """The key of one row, as a function."""
        if self.function is not None:
            return self.function
        assert self.fields is not None
        if self.rows_are == "scalar":
            return _identity
        if self.rows_are == "mapping":
            return itemgetter(*self.fields)
        if self.rows_are == "tuple":
            return itemgetter(*(int(field[1:]) for field in self.fields))
        return attrgetter(*self.fields)

    def keys_of(self, batch: Batch) -> list[Any]:
        return list(map(self.row_key(), batch.rows()))

    def key_column(self, batch: Batch) -> pa.Array | None:
        """The key as one Arrow column, where it is made of columns: of several it is a struct of them."""
        if self.fields is None or not batch.type.typed:
            return None
        columns = [batch.columns().column(field) for field in self.fields]
        if len(columns) == 1:
            return columns[0]
        if column_type(self.key_type()) is None:  # the parts may have any type, so they stay as they are
            return pa.StructArray.from_arrays(columns, [f"f{at}" for at in range(len(columns))])
        fields = list(data_type(self.key_annotation).arrow)
        parts = [column.cast(field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.StructArray.from_arrays(parts, fields=fields)

    def hashes(self, batch: Batch, type_of_key: KeyType) -> np.ndarray[Any, Any]:
        """An unsigned 64-bit hash for each record."""
        if self.fields is not None and batch.has_columns:
            columns = [batch.columns().column(field) for field in self.fields]
            return type_of_key.hash_column(columns[0]) if len(columns) == 1 else type_of_key.hash_columns(columns)
        return type_of_key.hash_many(self.keys_of(batch))


def _identity(row: Any) -> Any:
    return row
