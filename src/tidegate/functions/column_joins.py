"""The interval join over columns, as data: made on the driver, shipped, run by task/operators/column_join.py. Pure.

It means what `functions.joins.interval_join` means, record by record; `declare_column_join` makes it.
"""

from __future__ import annotations

import pyarrow as pa

from tidegate.state.declarations import ValueState

MET = "met"  #: the column of what is stored that says whether a record has met somebody


class ColumnIntervalJoin:
    """One operator. Its states `left` and `right` hold the records that can still meet somebody."""

    lower_ms: int
    upper_ms: int
    keeps: tuple[bool, bool]  #: whether records of each side leave without a partner
    key_types: tuple[pa.DataType, ...]
    schemas: tuple[pa.Schema, pa.Schema]

    @property
    def hold_ms(self) -> int:
        """By so much the watermark that leaves stays below the one that has come."""
        return max(0, self.upper_ms if self.keeps[0] else 0, -self.lower_ms if self.keeps[1] else 0)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return tuple(f"k{at}" for at in range(len(self.key_types)))


def value_type_of(schema: pa.Schema) -> pa.StructType:
    """What is stored for a record: whether it has met somebody, and its columns."""
    fields = [pa.field(f"v{at}", field.type, field.nullable) for at, field in enumerate(schema)]
    return pa.struct([pa.field(MET, pa.bool_()), *fields])


def declare_column_join(
    lower_ms: int, upper_ms: int, how: str, key_types: tuple[pa.DataType, ...], left: pa.Schema, right: pa.Schema
) -> ColumnIntervalJoin:
    """`key_types`: of the columns of the key."""
    states = {"left": ValueState(value_type_of(left)), "right": ValueState(value_type_of(right))}
    join: ColumnIntervalJoin = type("DeclaredColumnIntervalJoin", (ColumnIntervalJoin,), states)()
    join.lower_ms, join.upper_ms = lower_ms, upper_ms
    join.keeps = (how in ("left", "full"), how in ("right", "full"))
    join.key_types, join.schemas = key_types, (left, right)
    return join
