"""Windows over columns as data: which windows, which aggregates, and how records become rows of accumulators. Pure.

Made on the driver, shipped, used on the executor: before the shuffle (`partial`), after it, and when windows fire (`results`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import ConfigurationError, GraphError
from tidegate.functions.column_aggregates import ColumnAggregate
from tidegate.functions.merging import Accumulator, Merging
from tidegate.functions.windows import WindowAssigner
from tidegate.state.declarations import ValueState

SLICE_END = "slice_end"  #: the column of rows that were worked out before the shuffle
WINDOW_COLUMNS = ("window_start", "window_end")


class ColumnWindows:
    """One operator. Its state `rows` holds the accumulators of a key and a slice, or a session; made by `declare_columns`."""

    assigner: WindowAssigner
    lateness_ms: int
    late_tag: str
    key_names: tuple[str, ...]  #: in the results; none where the windows are of all records
    key_types: tuple[pa.DataType, ...]
    aggregates: dict[str, ColumnAggregate]
    widths: dict[str, int]  #: of how many accumulators each aggregate consists
    merging: Merging
    out: pa.Schema
    combines_before: bool = True  #: the shuffle, where it pays

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Of rows of accumulators."""
        return self.merging.keys

    @property
    def partial_columns(self) -> list[str]:
        """Of rows that were worked out before the shuffle."""
        return [*self.key_columns, SLICE_END, *self.merging.columns]

    def partial(self, keys: list[pa.Array], records: pa.RecordBatch, times: np.ndarray[Any, Any]) -> pa.Table:
        """A row for each record: its key, and what it adds."""
        columns: list[pa.Array] = []
        for aggregate in self.aggregates.values():
            columns += aggregate.partial([records.column(name) for name in aggregate.columns], times)
        wanted = [each.type for each in self.merging.accumulators]
        fitted = [
            column if column.type == type else column.cast(type) for column, type in zip(columns, wanted, strict=True)
        ]
        return pa.table([*keys, *fitted], names=[*self.key_columns, *self.merging.columns])

    def results(self, rows: pa.Table, starts: pa.Array, ends: pa.Array) -> pa.RecordBatch:
        """What goes out for rows of windows that fire."""
        columns: list[Any] = [*(rows.column(name) for name in self.key_columns[: len(self.key_names)]), starts, ends]
        names = iter(self.merging.columns)
        for name, aggregate in self.aggregates.items():
            given = [_array(rows.column(next(names))) for _ in range(self.widths[name])]
            columns.append(aggregate.result(given))
        fitted = [
            array if array.type == field.type else array.cast(field.type)
            for array, field in zip(map(_array, columns), self.out, strict=True)
        ]
        return pa.RecordBatch.from_arrays(fitted, schema=self.out)


def _array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _try_out(name: str, aggregate: ColumnAggregate, accumulators: list[Accumulator]) -> None:
    """:raises ConfigurationError: for what Arrow cannot fold, which would else be found when the first windows close."""
    merging = Merging(("key",), tuple(accumulators))
    nothing = pa.table(
        [pa.array([], pa.int64()), *(pa.array([], each.type) for each in accumulators)], ["key", *merging.columns]
    )
    try:
        merging.merged([nothing])
    except pa.ArrowNotImplementedError as error:
        raise ConfigurationError(
            f"aggregate({name}={aggregate!r}): Arrow cannot work that out: {error}. Give an AggregateFunction."
        ) from error


def declare_columns(
    *,
    assigner: WindowAssigner,
    lateness_ms: int,
    late_tag: str,
    keys: dict[str, pa.DataType],
    aggregates: dict[str, Any],
    types: dict[str, pa.DataType],
) -> ColumnWindows:
    """`types`: of the records' columns. :raises ConfigurationError: for an aggregate that they cannot take."""
    accumulators, results, widths = [], [], {}
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, ColumnAggregate):
            raise GraphError(
                f'aggregate({name}=...) takes an aggregate of columns, as tg.count() or tg.sum("price"), not {aggregate!r}'
            )
        if name in keys or name in WINDOW_COLUMNS:
            raise ConfigurationError(
                f"aggregate({name}=...): the results have a column {name!r} already. Take another name."
            )
        unknown = [column for column in aggregate.columns if column not in types]
        if unknown:
            raise ConfigurationError(
                f"aggregate({name}={aggregate!r}): the stream has no column {unknown[0]!r}; it has {', '.join(types)}"
            )
        given = [types[column] for column in aggregate.columns]
        own = list(aggregate.accumulators(given))
        _try_out(name, aggregate, own)
        widths[name] = len(own)
        accumulators += own
        results.append(pa.field(name, aggregate.result_type(given)))
    key_types = tuple(keys.values()) or (pa.int64(),)
    merging = Merging(tuple(f"k{at}" for at in range(len(key_types))), tuple(accumulators))
    windows: ColumnWindows = type("DeclaredColumnWindows", (ColumnWindows,), {"rows": ValueState(merging.value_type)})()
    windows.assigner, windows.lateness_ms, windows.late_tag = assigner, lateness_ms, late_tag
    windows.key_names, windows.key_types = tuple(keys), key_types
    windows.aggregates, windows.widths, windows.merging = aggregates, widths, merging
    times = [pa.field(name, pa.int64()) for name in WINDOW_COLUMNS]
    windows.out = pa.schema([*(pa.field(name, type) for name, type in keys.items()), *times, *results])
    return windows
