"""Windowed streams: what is made of a key's records in each run of time. Driver only; builds the logical graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, overload

import pyarrow.types as pat
from typing_extensions import TypeVar

from tidegate.api.aggregates import AggregateFunction
from tidegate.api.building import Asked, add_operator, declared_type, need_instance
from tidegate.api.results import WindowResults
from tidegate.api.transformable import returned_type
from tidegate.api.window_options import WindowOptions, WindowSettings
from tidegate.errors import ConfigurationError, GraphError
from tidegate.functions.checkpointed import CheckpointedFunction
from tidegate.functions.class_form import ReduceFunction
from tidegate.functions.column_aggregates import ColumnAggregate
from tidegate.functions.column_windows import declare_columns
from tidegate.functions.process import OutputTag
from tidegate.functions.window_functions import ProcessWindowFunction, WindowBatchFunction
from tidegate.functions.windowed import WindowFunction
from tidegate.functions.windows import AlignedWindows, EventTimeSessionWindows
from tidegate.graph import specs
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.state.declarations import AggregatingState, Declaration, ListState, ReducingState
from tidegate.state.key_columns import column_type
from tidegate.state.keys import TupleKey
from tidegate.types import RecordType, field_type, record_type, stored_annotation

if TYPE_CHECKING:
    from tidegate.api.keyed import KeyedStream
    from tidegate.graph.key_selector import KeySelector

K = TypeVar("K", default=Any)  #: of the keys
T = TypeVar("T", default=Any)  #: of the records


class WindowedStream(WindowSettings, Generic[K, T]):
    """The windows of a keyed stream. `reduce`, `aggregate`, `process` or `process_batches` says what becomes of them."""

    def __init__(self, keyed: KeyedStream[K, T], options: WindowOptions) -> None:
        super().__init__(options)
        self._keyed = keyed

    def side_output_late_data(self, tag: OutputTag) -> WindowedStream[K, T]:
        """PyFlink's way to name the stream of late records: it is read by `side_output(tag)` of the result.
        `late()` needs no tag."""
        return self._with(late=tag)

    # -- what becomes of them ----------------------------------------------------------------------------------------

    def reduce(
        self, function: Callable[[Any, Any], Any] | ReduceFunction[Any],
        window_function: ProcessWindowFunction[Any, Any] | None = None, output_type: Any = None, *,
        uid: str | None = None, returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> WindowResults[Any]:  # fmt: skip
        """Two records become one, until one is left of each key's window. Only that one is kept.

        With a `window_function`, that one is handed to it: `tg.WithWindow()` puts the window and the key beside it.

        `SELECT key, window_start, window_end, list_reduce(list(price), lambda a, b: a + b) FROM windowed GROUP BY ALL`
        """
        combine = function.reduce if isinstance(function, ReduceFunction) else function
        folded = ReducingState(stored_annotation(self._keyed._stream._type), combine)
        out = self._keyed._stream._type if window_function is None else None

        def fold(rows: list[Any]) -> Any:
            return functools.reduce(combine, rows)

        asked = Asked(uid, name, parallelism, max_parallelism)
        return self._folded(folded, fold, window_function, declared_type(returns, output_type), out, "reduce", asked)

    def process(
        self, function: ProcessWindowFunction[Any, Any], output_type: Any = None, *, uid: str | None = None,
        returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> WindowResults[Any]:  # fmt: skip
        """All records of a key's window at once. They are kept until the window closes.

        `SELECT key, window_start, window_end, list(price ORDER BY price) FROM windowed GROUP BY ALL`
        """
        self._check(function, ProcessWindowFunction, "process on windows")
        out = returned_type(declared_type(returns, output_type), function.process, True)
        asked = Asked(uid, name, parallelism, max_parallelism)
        return self._windowed(
            ListState(stored_annotation(self._keyed._stream._type)), function, None, out, type(function).__name__, asked
        )

    def process_batches(
        self, function: WindowBatchFunction[Any], output_type: Any = None, *, uid: str | None = None,
        returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> WindowResults[Any]:  # fmt: skip
        """All windows that fire together, of all keys, as one Arrow batch.

        `SELECT window_start, window_end, key, price, time FROM windowed`
        """
        self._check(function, WindowBatchFunction, "process_batches on windows")
        self._keyed._stream._need_typed("process_batches")
        out = record_type(declared_type(returns, output_type))
        asked = Asked(uid, name, parallelism, max_parallelism)
        return self._windowed(
            ListState(stored_annotation(self._keyed._stream._type)), function, None, out, type(function).__name__, asked
        )

    @overload
    def aggregate(
        self, aggregate: AggregateFunction, window_function: ProcessWindowFunction[Any, Any] | None = ...,
        output_type: Any = ..., *, uid: str | None = ..., returns: Any = ..., name: str | None = ...,
        parallelism: int | None = ..., max_parallelism: int | None = ...,
    ) -> WindowResults[Any]: ...  # fmt: skip
    @overload
    def aggregate(
        self, *, uid: str | None = ..., name: str | None = ..., parallelism: int | None = ...,
        max_parallelism: int | None = ..., **columns: ColumnAggregate,
    ) -> WindowResults[dict[str, Any]]: ...  # fmt: skip

    def aggregate(  # type: ignore[misc]  # a column may not be called `returns`
        self, aggregate: AggregateFunction | None = None,
        window_function: ProcessWindowFunction[Any, Any] | None = None, output_type: Any = None, *,
        uid: str | None = None, returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None, **columns: Any,
    ) -> WindowResults[Any]:  # fmt: skip
        """Columns, of a typed stream: `aggregate(n=tg.count(), total=tg.sum("price"))`. The results are dicts with the key,
        `window_start`, `window_end` (ms), and a column for each aggregate.

        `SELECT key, window_start, window_end, count(*) AS n, sum(price) AS total FROM windowed GROUP BY ALL`

        >>> sales = env.from_collection([("tea", 3, 500), ("tea", 4, 700)], type=tuple[str, int, int])
        >>> in_time = sales.assign_timestamps_and_watermarks(tg.WatermarkStrategy.monotonous(timestamp="f2"))
        >>> seconds = in_time.key_by(0).window(tg.TumblingEventTimeWindows("1s"))
        >>> list(seconds.aggregate(n=tg.count(), total=tg.sum("f1")).execute_and_collect())
        [{'f0': 'tea', 'window_start': 0, 'window_end': 1000, 'n': 2, 'total': 7}]

        Or an AggregateFunction of your own: only its accumulator is kept. For sessions it needs `merge(a, b)`.

        `SELECT key, window_start, window_end, avg(price) FROM windowed GROUP BY ALL`
        """
        said = {
            "uid": uid,
            "name": name,
            "parallelism": parallelism,
            "max_parallelism": max_parallelism,
            "returns": returns,
        }
        refuse_columns(option for option, value in said.items() if isinstance(value, ColumnAggregate))
        asked = Asked(uid, name, parallelism, max_parallelism)
        declared = declared_type(returns, output_type)
        if aggregate is None:
            return self._over_columns(columns, asked)
        if columns:
            raise GraphError("aggregate takes an AggregateFunction, or aggregates of columns, not both")
        need_instance(aggregate, AggregateFunction, "aggregate on windows")
        own = aggregate
        if self._options.assigner.merges and not hasattr(own, "merge"):
            raise ConfigurationError(
                f"windows that merge need to merge their results, but {type(own).__name__} has no merge. Define "
                "merge(self, a, b), which returns one accumulator for both."
            )
        out = None if window_function is not None else returned_type(None, own.get_result, False)

        def fold(rows: list[Any]) -> Any:
            accumulator = own.create_accumulator()
            for row in rows:
                accumulator = own.add(row, accumulator)
            return own.get_result(accumulator)

        return self._folded(AggregatingState(own), fold, window_function, declared, out, "aggregate", asked)

    def _over_columns(self, aggregates: dict[str, ColumnAggregate], asked: Asked) -> WindowResults[Any]:
        options, stream, key = self._options, self._keyed._stream, self._keyed._key
        stream._need_typed("aggregate with columns")
        self._check_for_columns(aggregates)
        key_names = [] if options.is_of_all else key_names_of(key)
        column = column_type(key.key_type())
        if column is None:
            raise ConfigurationError(
                "aggregate with columns needs a key of one type: say it in key_by(..., key_type=str)"
            )
        key_types = list(column.arrow) if len(key_names) > 1 else [column.arrow]
        if any(pat.is_nested(getattr(each, "type", each)) for each in key_types):
            raise ConfigurationError(
                f"aggregate with columns needs a key of one value, or a tuple of several values, and this one is "
                f"{key.key_type().name}. Take it apart: key_by(...) a tuple of its parts."
            )
        assert stream._type.schema is not None
        windows = declare_columns(
            assigner=options.assigner,
            lateness_ms=options.lateness_ms,
            late_tag=options.late.name,
            keys={name: getattr(each, "type", each) for name, each in zip(key_names, key_types, strict=False)},
            aggregates=aggregates,
            types={field.name: field.type for field in stream._type.schema},
        )
        out = record_type(windows.out)
        spec = specs.ColumnWindowSpec(windows, key)
        uid = add_operator(
            stream._env, spec, "window aggregate", {MAIN_OUTPUT: out}, options.place(asked), self._keyed._edges()
        )
        return WindowResults.of(stream._env, uid, out, options.late, stream._type)

    def _check_for_columns(self, aggregates: dict[str, ColumnAggregate]) -> None:
        options, records = self._options, self._keyed._stream._type
        if not aggregates:
            raise GraphError(
                'aggregate needs an AggregateFunction, or columns: aggregate(n=tg.count(), top=tg.max("price"))'
            )
        if not isinstance(options.assigner, (AlignedWindows, EventTimeSessionWindows)):
            raise ConfigurationError(
                f"aggregate with columns takes tumbling, sliding, cumulative and session windows, not {options.assigner!r}: "
                "give an AggregateFunction, or use process_batches"
            )
        for name, aggregate in aggregates.items():
            for column in aggregate.columns if getattr(aggregate, "compares", False) else ():
                if column in records.field_names and _is_decimal(records, column):
                    raise ConfigurationError(
                        f"aggregate({name}={aggregate!r}): a Decimal is text in its column, which compares 9 above 10 and "
                        "1.0 beside 1.00. Give an AggregateFunction, or a column of pa.decimal128(...)."
                    )
        if options.trigger is not None or options.evictor is not None:
            raise ConfigurationError(
                "aggregate with columns puts windows out when they close: with a trigger or an evictor give an "
                "AggregateFunction, or use process_batches"
            )

    # -- building ----------------------------------------------------------------------------------------------------

    def _folded(
        self,
        state: Declaration,
        fold: Callable[[list[Any]], Any],
        window_function: ProcessWindowFunction[Any, Any] | None,
        declared: Any,
        out: RecordType | None,
        name: str,
        asked: Asked,
    ) -> WindowResults[Any]:
        """An evictor looks at single records, so with one the window keeps them, and they are folded when it fires."""
        if window_function is not None:
            self._check(window_function, ProcessWindowFunction, f"the window_function of {name}")
            out = returned_type(declared, window_function.process, True)
        elif declared is not None or out is None:
            out = record_type(declared)
        if self._options.evicting is None:
            return self._windowed(state, window_function, None, out, name, asked)
        return self._windowed(
            ListState(stored_annotation(self._keyed._stream._type)), window_function, fold, out, name, asked
        )

    def _windowed(
        self,
        contents: Declaration,
        function: WindowFunction | None,
        fold: Callable[[list[Any]], Any] | None,
        out: RecordType,
        name: str,
        asked: Asked,
    ) -> WindowResults[Any]:
        options, keyed = self._options, self._keyed
        windowed = options.declared(contents, function, (options.late.name,), fold)
        stream = keyed._stream
        spec = specs.WindowSpec(windowed, (keyed._key,))
        uid = add_operator(
            stream._env, spec, f"window {name}", {MAIN_OUTPUT: out}, options.place(asked), keyed._edges()
        )
        return WindowResults.of(stream._env, uid, out, options.late, stream._type)

    def _check(self, function: Any, kind: type, what: str) -> None:
        need_instance(function, kind, what)
        if isinstance(function, CheckpointedFunction):
            raise GraphError(
                f"{type(function).__name__}: the function of a window keeps state of its windows and keys alone. What belongs "
                "to the whole subtask goes into a KeyedProcessFunction."
            )


def _is_decimal(records: RecordType, column: str) -> bool:
    declared = field_type(records, column)
    return declared is not None and declared.name in ("Decimal", "optional[Decimal]")


def key_names_of(key: KeySelector) -> list[str]:
    """The columns of the key in results."""
    if key.fields is not None:
        return list(key.fields)
    type_of_key = key.key_type()
    return [f"key{at}" for at in range(len(type_of_key.parts))] if isinstance(type_of_key, TupleKey) else ["key"]


def refuse_columns(options: Iterable[str]) -> None:
    """:raises GraphError: for a column that is called as an option of the operator is."""
    for option in options:
        raise GraphError(
            f"aggregate: {option}= is an option of the operator, and cannot be a column of the results. Give the column "
            "another name"
        )
