"""Aggregates over Arrow columns, for windows of typed streams: `aggregate(n=tg.count(), total=tg.sum("price"))`.

An aggregate is three steps, each over whole columns:

    partial   a row for each record: what it adds
    merge     rows of one key become one, column by column, in any order and as often as wanted: `Accumulator.merge`
    result    a value for each key, at the end

so it is worked out before the shuffle as well as after it, for each slice of time, and put together from slices. One of your
own says the same three things.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from tidegate.errors import ConfigurationError
from tidegate.functions.merging import Accumulator
from tidegate.state.key_columns import one_zero_one_nan


class ColumnAggregate:
    """An aggregate over columns. Of your own: `columns`, `accumulators`, `partial` and `result`.

    >>> import pyarrow as pa, pyarrow.compute as pc
    >>> class SumOfSquares(tg.ColumnAggregate):
    ...     columns = ("f1",)
    ...     def accumulators(self, types):
    ...         return [tg.Accumulator(pa.float64(), "sum")]
    ...     def partial(self, columns, times):
    ...         return [pc.power(columns[0].cast(pa.float64()), 2)]
    >>> running = harness(
    ...     lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s")).aggregate(squares=SumOfSquares()),
    ...     via="window", key_by=0, input_type=tuple[str, int],
    ... )
    >>> running.process_many([("a", 3), ("a", 4)], timestamps=[1, 2]), running.advance_watermark(10_000)
    ([], [{'f0': 'a', 'window_start': 0, 'window_end': 10000, 'squares': 25.0}])
    """

    _word = ""  #: by which a built-in one is called
    columns: tuple[str, ...] = ()  #: of the records, which `partial` is given
    compares: bool = False  #: values with each other, as Arrow does it

    def accumulators(self, types: list[pa.DataType], /) -> list[Accumulator]:
        """What is kept for a key, from the types of the columns. :raises ConfigurationError: for types that it cannot take."""
        raise NotImplementedError(f"{type(self).__name__} must define accumulators(self, types)")

    def partial(self, columns: list[pa.Array], times: np.ndarray[Any, Any], /) -> list[pa.Array]:
        """What each record adds: an array for each accumulator, a row for each record. `times` is their event time."""
        raise NotImplementedError(f"{type(self).__name__} must define partial(self, columns, times)")

    def result(self, accumulators: list[pa.Array], /) -> pa.Array:
        """A value for each key; unless you say otherwise, the first accumulator."""
        return accumulators[0]

    def result_type(self, types: list[pa.DataType], /) -> pa.DataType:
        """Of `result`, from the types of the columns."""
        return self.result([pa.array([], each.type) for each in self.accumulators(types)]).type

    def __repr__(self) -> str:
        return f"{self._word or type(self).__name__}({', '.join(map(repr, self.columns))})"


class _Count(ColumnAggregate):
    _word = "count"

    def __init__(self, column: str | None) -> None:
        self.columns = () if column is None else (column,)

    def accumulators(self, types: list[pa.DataType], /) -> list[Accumulator]:
        return [Accumulator(pa.int64(), "sum")]

    def partial(self, columns: list[pa.Array], times: np.ndarray[Any, Any], /) -> list[pa.Array]:
        if not columns:
            return [pa.array(np.ones(len(times), np.int64))]
        return [columns[0].is_valid().cast(pa.int64())]


class _OfOne(ColumnAggregate):
    """Of one column."""

    def __init__(self, column: str) -> None:
        if not isinstance(column, str):
            raise ConfigurationError(f"an aggregate takes the name of a column, not {column!r}")
        self.columns = (column,)


class _Sum(_OfOne):
    _word = "sum"

    def accumulators(self, types: list[pa.DataType], /) -> list[Accumulator]:
        return [Accumulator(_number(types[0], f'tg.sum("{self.columns[0]}")'), "sum")]

    def partial(self, columns: list[pa.Array], times: np.ndarray[Any, Any], /) -> list[pa.Array]:
        return [columns[0].cast(_number(columns[0].type, "sum"))]


class _Extreme(_OfOne):
    compares = True

    def __init__(self, column: str, how: Literal["min", "max"]) -> None:
        super().__init__(column)
        self._how = self._word = how

    def accumulators(self, types: list[pa.DataType], /) -> list[Accumulator]:
        if pat.is_nested(types[0]) or pat.is_dictionary(types[0]):
            raise ConfigurationError(f'tg.{self._how}("{self.columns[0]}"): {types[0]} has no order')
        return [Accumulator(types[0], self._how)]

    def partial(self, columns: list[pa.Array], times: np.ndarray[Any, Any], /) -> list[pa.Array]:
        return columns


class _Mean(_OfOne):
    _word = "mean"

    def accumulators(self, types: list[pa.DataType], /) -> list[Accumulator]:
        return [Accumulator(_number(types[0], f'tg.mean("{self.columns[0]}")'), "sum"), Accumulator(pa.int64(), "sum")]

    def partial(self, columns: list[pa.Array], times: np.ndarray[Any, Any], /) -> list[pa.Array]:
        return [columns[0].cast(_number(columns[0].type, "mean")), columns[0].is_valid().cast(pa.int64())]

    def result(self, accumulators: list[pa.Array], /) -> pa.Array:
        total, count = accumulators
        return pc.divide(pc.cast(total, pa.float64(), safe=False), pc.cast(count, pa.float64()))


class _Nearest(_OfOne):
    """The value of the earliest or the latest record. Its time is kept beside it, and is null where the value is."""

    def __init__(self, column: str, how: Literal["first", "last"]) -> None:
        super().__init__(column)
        self._how = self._word = how

    def accumulators(self, types: list[pa.DataType], /) -> list[Accumulator]:
        time = Accumulator(pa.int64(), "min" if self._how == "first" else "max")
        return [Accumulator(types[0], self._how), time]

    def partial(self, columns: list[pa.Array], times: np.ndarray[Any, Any], /) -> list[pa.Array]:
        value = columns[0]
        missing = value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None
        return [value, pa.array(times, pa.int64(), mask=missing)]


class _CountDistinct(_OfOne):
    _word = "count_distinct"
    compares = True

    def accumulators(self, types: list[pa.DataType], /) -> list[Accumulator]:
        if pat.is_nested(types[0]) or pat.is_dictionary(types[0]):
            raise ConfigurationError(
                f'tg.count_distinct("{self.columns[0]}"): values of type {types[0]} cannot be compared'
            )
        return [Accumulator(pa.list_(types[0]), "distinct")]

    def partial(self, columns: list[pa.Array], times: np.ndarray[Any, Any], /) -> list[pa.Array]:
        values = one_zero_one_nan(columns[0]) if pat.is_floating(columns[0].type) else columns[0]
        return [pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), values)]

    def result(self, accumulators: list[pa.Array], /) -> pa.Array:
        return pc.fill_null(pc.list_value_length(accumulators[0]), 0).cast(pa.int64())


def _number(type: pa.DataType, what: str) -> pa.DataType:
    """In which numbers of a type are added up."""
    if pat.is_integer(type):
        return pa.int64()
    if pat.is_floating(type):
        return pa.float64()
    raise ConfigurationError(f"{what} needs a column of numbers, ints or floats, and this one is {type}")


def count(column: str | None = None) -> ColumnAggregate:
    """`count(*)`; of a column: how many of its values are not None.

    >>> tg.count()
    count()
    """
    return _Count(column)


def sum(column: str) -> ColumnAggregate:
    """The sum of a column of numbers; None where there was none. A sum of ints never wraps.

    >>> tg.sum("price")
    sum('price')
    """
    return _Sum(column)


def min(column: str) -> ColumnAggregate:
    """The smallest value; None where there was none. Not-a-number is it only where there is nothing else.

    >>> tg.min("price")
    min('price')
    """
    return _Extreme(column, "min")


def max(column: str) -> ColumnAggregate:
    """The largest value; None where there was none. Not-a-number is it only where there is nothing else.

    >>> tg.max("price")
    max('price')
    """
    return _Extreme(column, "max")


def mean(column: str) -> ColumnAggregate:
    """The mean of a column of numbers, a float; None where there was none.

    >>> tg.mean("price")
    mean('price')
    """
    return _Mean(column)


def first(column: str) -> ColumnAggregate:
    """The value that is not None of the earliest record; of records of one moment, any of theirs.

    >>> tg.first("page")
    first('page')
    """
    return _Nearest(column, "first")


def last(column: str) -> ColumnAggregate:
    """The value that is not None of the latest record; of records of one moment, any of theirs.

    >>> tg.last("page")
    last('page')
    """
    return _Nearest(column, "last")


def count_distinct(column: str) -> ColumnAggregate:
    """How many different values there were, None aside. All of them are kept until the window closes.

    >>> tg.count_distinct("user")
    count_distinct('user')
    """
    return _CountDistinct(column)
