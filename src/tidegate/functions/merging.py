"""Rows of one key that become one, whole tables at a time: what the slices of windows are made of. Pure.

A table has the columns of the key, and then a column for each accumulator. `merged` gives a table of the same columns with one
row for each key. Arrow groups and folds; only what Arrow has no function for takes a second round:

    first, last   over rows in the order of their time, whose accumulator follows that of the value
    distinct      over the elements of the lists

Rows of a second round are put after one row for each key, so that its keys come in the order of the first round's.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidegate.errors import TypeDeclarationError

Merge = Literal["sum", "min", "max", "first", "last", "distinct"]
# Columns that came by the wire begin anywhere in their frame. Arrow's grouping wants them aligned: it is to copy such.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "reallocate")
_MAX = 2**63 - 1
_WIDE = pa.decimal128(38, 0)


@dataclass(frozen=True, slots=True)
class Accumulator:
    """One column of what is kept for a key: its type, and how two rows become one. Nulls play no part.

    >>> import pyarrow as pa
    >>> tg.Accumulator(pa.int64(), "sum").merge
    'sum'
    """

    type: pa.DataType
    merge: Merge


@dataclass(frozen=True, slots=True)
class Merging:
    """How rows of one key become one."""

    keys: tuple[str, ...]
    accumulators: tuple[Accumulator, ...]

    @property
    def columns(self) -> list[str]:
        """Of the accumulators."""
        return [f"a{at}" for at in range(len(self.accumulators))]

    @property
    def value_type(self) -> pa.StructType:
        """What is kept for a key, as one value."""
        return pa.struct([(name, each.type) for name, each in zip(self.columns, self.accumulators, strict=True)])

    def merged(self, tables: Sequence[pa.Table]) -> pa.Table:
        """One row for each key. :raises TypeDeclarationError: for a sum of ints beyond 64 bits."""
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        plain, again = [], []
        for at, (name, each) in enumerate(zip(self.columns, self.accumulators, strict=True)):
            if each.merge in ("sum", "min", "max"):
                plain.append((name, each.merge))
                if each.merge == "sum" and pat.is_integer(each.type):
                    self._check_range(table, name)
            else:
                again.append((at, name, each))
        groups = table.group_by(list(self.keys), use_threads=False).aggregate(plain)
        found = {name: groups.column(f"{name}_{how}") for name, how in plain}
        for at, name, each in again:
            found[name] = self._second_round(table, groups, at, name, each)
        columns = [groups.column(key) for key in self.keys]
        for name, each in zip(self.columns, self.accumulators, strict=True):
            column = found[name]
            columns.append(column if column.type == each.type else column.cast(each.type))
        return pa.table(columns, names=[*self.keys, *self.columns]).combine_chunks()

    def merged_of(self, tables: Sequence[pa.Table], wanted: Sequence[pa.Table]) -> pa.Table:
        """The same, of the keys alone that `wanted` has."""
        mark = f"a{len(self.accumulators)}"
        marking = Merging(self.keys, (*self.accumulators, Accumulator(pa.int8(), "max")))
        rows = [table.append_column(mark, pa.array(np.zeros(table.num_rows, np.int8))) for table in tables]
        for table in wanted:
            keys = table.select(list(self.keys))
            for name, each in zip(self.columns, self.accumulators, strict=True):
                keys = keys.append_column(name, pa.nulls(keys.num_rows, each.type))
            rows.append(keys.append_column(mark, pa.array(np.ones(keys.num_rows, np.int8))))
        merged = marking.merged(rows)
        return merged.filter(pc.equal(merged.column(mark), 1)).drop_columns([mark])

    def _second_round(self, table: pa.Table, groups: pa.Table, at: int, name: str, each: Accumulator) -> pa.Array:
        keys = list(self.keys)
        if each.merge == "distinct":
            lists = table.column(name).combine_chunks()
            rows = table.select(keys).take(pc.list_parent_indices(lists))
            rows = rows.append_column(name, pc.list_flatten(lists))
            found = self._of_groups(groups, rows, name, ("distinct", pc.CountOptions(mode="only_valid")))
        else:
            time = self.columns[at + 1]
            values = table.select([*keys, name, time]).filter(pc.is_valid(table.column(name)))
            values = values.take(pc.sort_indices(values, [(time, "ascending")]))
            # By their places, because Arrow has "first" and "last" for some types alone.
            rows = values.select(keys).append_column(name, pa.array(np.arange(values.num_rows)))
            places = self._of_groups(groups, rows, name, ("min" if each.merge == "first" else "max",))
            found = values.column(name).take(places)
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    def _of_groups(self, groups: pa.Table, rows: pa.Table, name: str, how: tuple[Any, ...]) -> pa.ChunkedArray:
        """A column folded for each group, in their order."""
        keys = list(self.keys)
        heads = groups.select(keys).append_column(name, pa.nulls(groups.num_rows, rows.schema.field(name).type))
        grouped = pa.concat_tables([heads, rows]).group_by(keys, use_threads=False).aggregate([(name, *how)])
        return grouped.column(f"{name}_{how[0]}")

    def _check_range(self, table: pa.Table, name: str) -> None:
        """Arrow's sums wrap without a word. While no row is so large that all of them could, no sum needs a look."""
        extremes = pc.min_max(table.column(name)).as_py()
        if extremes["max"] is None or max(extremes["max"], -extremes["min"]) * table.num_rows <= _MAX:
            return
        wide = table.select([*self.keys]).append_column(name, table.column(name).cast(_WIDE))
        sums = wide.group_by(list(self.keys), use_threads=False).aggregate([(name, "sum")]).column(f"{name}_sum")
        found = pc.min_max(sums).as_py()
        if found["max"] > _MAX or found["min"] < -_MAX - 1:
            worst = found["max"] if found["max"] > _MAX else found["min"]
            raise TypeDeclarationError(
                f"a sum in a window becomes {worst}, which is beyond the 64 bits of an int. Make the column a float, or take "
                "smaller windows."
            )
