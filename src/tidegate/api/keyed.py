"""Keyed streams: all records of a key meet in one subtask and share its state. Driver only; builds the logical graph."""

from __future__ import annotations

import operator as op
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, Union, overload

import pyarrow as pa
from typing_extensions import TypeVar

from tidegate.api import aggregates, vectorised
from tidegate.api.asynchronous import AsyncTransformable
from tidegate.api.building import Asked, EdgePlan, declared_type, need_instance
from tidegate.api.connected import ConnectedStreams
from tidegate.api.joins import IntervalJoin, TemporalJoin
from tidegate.api.keys import joined_selectors, make_key_selector, tuple_of
from tidegate.api.transformable import returned_type
from tidegate.errors import GraphError
from tidegate.functions.class_form import FilterFunction, FlatMapFunction, MapFunction, ReduceFunction
from tidegate.functions.process import KeyedBatchFunction, KeyedProcessFunction
from tidegate.functions.windows import CountWindows
from tidegate.graph import specs
from tidegate.graph.function_text import text_of
from tidegate.graph.key_selector import KeySelector
from tidegate.state.declarations import declared_states
from tidegate.state.key_columns import column_type
from tidegate.types import Pickled, RecordType, record_type

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from tidegate.api.streams import DataStream
    from tidegate.api.windowed import WindowedStream
    from tidegate.functions.windows import WindowAssigner

FieldName = Union[str, int]
K = TypeVar("K", default=Any)  #: of the keys
T = TypeVar("T", default=Any)  #: of the records
U = TypeVar("U")
Row = TypeVar("Row", bound=tuple[Any, ...])  #: records that are tuples
Reduced = TypeVar("Reduced", bound=tuple[Any, ...])


class KeyedStream(AsyncTransformable, Generic[K, T]):
    """A stream partitioned by key."""

    def __init__(self, stream: DataStream[T], key: KeySelector) -> None:
        self._stream = stream
        self._key = key

    # -- functions --------------------------------------------------------------------------------------------------

    def process(
        self, function: KeyedProcessFunction[T, U], output_type: Any = None, *, uid: str | None = None,
        returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
        on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """A function with state for each key.

        >>> class Numbered(tg.KeyedProcessFunction):
        ...     count = tg.ValueState(int, default=0)
        ...     def process_element(self, word, ctx):
        ...         self.count.set(self.count.get() + 1)
        ...         yield f"{word} {self.count.get()}"
        >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word, key_type=str)
        >>> list(words.process(Numbered(), returns=str).execute_and_collect())
        ['a 1', 'b 1', 'a 2']
        """
        need_instance(function, KeyedProcessFunction, "process on a keyed stream")
        out = returned_type(declared_type(returns, output_type), function.process_element, True)
        spec = specs.KeyedProcessSpec(function, self._key, text_of(function, "process_element"))
        return self._apply(
            spec, type(function).__name__, out, Asked(uid, name, parallelism, max_parallelism, on_error=on_error)
        )

    def process_batches(
        self, function: KeyedBatchFunction[Any], output_type: Any = None, *, uid: str | None = None,
        returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """A vectorised function: whole Arrow batches, state by `get_many`, `update_many`, `add_many`.

        >>> import pyarrow as pa
        >>> class Totals(tg.KeyedBatchFunction):
        ...     total = tg.ValueState(int, default=0)
        ...     def process_batch(self, keys, batch, ctx):
        ...         so_far = self.total.add_many(keys, batch.column("f1"), running=True)
        ...         return pa.RecordBatch.from_arrays([keys, so_far], ["f0", "f1"])
        >>> sales = env.from_collection([("tea", 3), ("tea", 4)], type=tuple[str, int])
        >>> list(sales.key_by(0).process_batches(Totals(), returns=tuple[str, int]).execute_and_collect())
        [('tea', 3), ('tea', 7)]
        """
        need_instance(function, KeyedBatchFunction, "process_batches")
        self._stream._need_typed("process_batches")
        out = record_type(declared_type(returns, output_type))
        spec = specs.KeyedBatchSpec(function, self._key)
        return self._apply(spec, type(function).__name__, out, Asked(uid, name, parallelism, max_parallelism))

    def map(
        self, function: Callable[[T], U] | MapFunction[T, U], output_type: Any = None, *, returns: Any = None,
        uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """One record out for each record in, in the subtask of its key. A MapFunction may declare state of the key.

        >>> class Change(tg.MapFunction):
        ...     last = tg.ValueState(int, default=0)
        ...     def map(self, n):
        ...         change = n - self.last.get()
        ...         self.last.set(n)
        ...         return change
        >>> levels = env.from_collection([5, 7, 4]).key_by(lambda n: "all", key_type=str)
        >>> list(levels.map(Change(), returns=int).execute_and_collect())
        [5, 2, -3]
        """
        declared = declared_type(returns, output_type)
        return self._one_by_one("map", function, declared, Asked(uid, name, parallelism, on_error=on_error))

    def flat_map(
        self, function: Callable[[T], Iterable[U] | None] | FlatMapFunction[T, U], output_type: Any = None, *,
        returns: Any = None, uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """Any number of records out, in the subtask of the key. A FlatMapFunction may declare state of the key.

        >>> lines = env.from_collection(["to be"]).key_by(len, key_type=int)
        >>> list(lines.flat_map(str.split, returns=str).execute_and_collect())
        ['to', 'be']
        """
        declared = declared_type(returns, output_type)
        return self._one_by_one("flat_map", function, declared, Asked(uid, name, parallelism, on_error=on_error))

    def filter(
        self, function: Callable[[T], Any] | FilterFunction[T] | pc.Expression, *, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None, on_error: str = "fail",
    ) -> DataStream[T]:  # fmt: skip
        """Keep the records for which the function is true. A FilterFunction may declare state of the key.

        >>> class First(tg.FilterFunction):
        ...     seen = tg.ValueState(bool, default=False)
        ...     def filter(self, word):
        ...         is_first = not self.seen.get()
        ...         self.seen.set(True)
        ...         return is_first
        >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word, key_type=str)
        >>> list(words.filter(First()).execute_and_collect())
        ['a', 'b']
        """
        return self._one_by_one("filter", function, None, Asked(uid, name, parallelism, on_error=on_error))

    def _class_form(self, function: Any) -> specs.Spec:
        return (
            specs.KeyedProcessSpec(function, self._key, text_of(function, "process_element"))
            if declared_states(function)
            else super()._class_form(function)
        )

    # -- aggregations -----------------------------------------------------------------------------------------------

    # Of `map(lambda word: (word, 1))` a type checker may say that the number is always 1, and a sum then is not of that type.
    @overload
    def reduce(
        self: KeyedStream[K, Row], function: Callable[[Row, Row], Reduced], *, uid: str | None = ...,
        name: str | None = ..., parallelism: int | None = ..., max_parallelism: int | None = ...,
    ) -> DataStream[Reduced]: ...  # fmt: skip
    @overload
    def reduce(
        self, function: Callable[[T, T], T] | ReduceFunction[T], *, uid: str | None = ..., name: str | None = ...,
        parallelism: int | None = ..., max_parallelism: int | None = ...,
    ) -> DataStream[T]: ...  # fmt: skip

    def reduce(
        self, function: Callable[[Any, Any], Any] | ReduceFunction[Any], *, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """Combine each record with the result so far; emits every new result.

        >>> numbers = env.from_sequence(1, 4).key_by(lambda n: n % 2, key_type=int)
        >>> list(numbers.reduce(lambda so_far, n: so_far + n).execute_and_collect())
        [1, 2, 4, 6]
        """
        combine = function.reduce if isinstance(function, ReduceFunction) else function
        why = specs.RowByRow("it calls your function for each record")
        return self._reduced(combine, "reduce", Asked(uid, name, parallelism, max_parallelism), why)

    def aggregate(
        self, aggregate: aggregates.AggregateFunction, output_type: Any = None, *, uid: str | None = None,
        returns: Any = None, name: str | None = None, parallelism: int | None = None,
        max_parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """An AggregateFunction of your own; emits its result for every record.

        >>> class Average(tg.AggregateFunction):
        ...     accumulator_type = tuple[int, int]
        ...     def create_accumulator(self):
        ...         return (0, 0)
        ...     def add(self, n, accumulator):
        ...         return (accumulator[0] + 1, accumulator[1] + n)
        ...     def get_result(self, accumulator):
        ...         return accumulator[1] / accumulator[0]
        >>> numbers = env.from_collection([2, 4]).key_by(lambda n: "all", key_type=str)
        >>> list(numbers.aggregate(Average(), returns=float).execute_and_collect())
        [2.0, 3.0]
        """
        out = returned_type(declared_type(returns, output_type), aggregate.get_result, False)
        built_in = aggregates.aggregate_function(aggregate)
        why = specs.RowByRow(f"it calls {type(aggregate).__name__}.add for each record")
        return self._built_in(built_in, out, "aggregate", Asked(uid, name, parallelism, max_parallelism), why)

    def count(
        self, *, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[tuple[K, int]]:  # fmt: skip
        """(key, number of records so far), for every record.

        >>> words = env.from_collection(["a", "b", "a"]).key_by(lambda word: word, key_type=str)
        >>> list(words.count().execute_and_collect())
        [('a', 1), ('b', 1), ('a', 2)]
        """
        out = self._pairs(int)
        why = vectorised.why_row_by_row(self._stream._type, self._key, int, "count")
        function = aggregates.count_function() if why is not None else vectorised.count_function(out)
        return self._built_in(function, out, "count", Asked(uid, name, parallelism, max_parallelism), why)

    def sum(
        self, field: FieldName, *, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[tuple[K, Any]]:  # fmt: skip
        """(key, sum of the field so far), for every record.

        >>> sales = env.from_collection([("tea", 3), ("tea", 4)], type=tuple[str, int])
        >>> list(sales.key_by(0).sum(1).execute_and_collect())
        [('tea', 3), ('tea', 7)]
        """
        return self._fold(field, "sum", Asked(uid, name, parallelism, max_parallelism))

    def min(
        self, field: FieldName, *, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[tuple[K, Any]]:  # fmt: skip
        """(key, smallest value of the field so far), for every record.

        >>> sales = env.from_collection([("tea", 3), ("tea", 4)], type=tuple[str, int])
        >>> list(sales.key_by(0).min(1).execute_and_collect())
        [('tea', 3), ('tea', 3)]
        """
        return self._fold(field, "min", Asked(uid, name, parallelism, max_parallelism))

    def max(
        self, field: FieldName, *, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[tuple[K, Any]]:  # fmt: skip
        """(key, largest value of the field so far), for every record.

        >>> sales = env.from_collection([("tea", 3), ("tea", 4)], type=tuple[str, int])
        >>> list(sales.key_by(0).max(1).execute_and_collect())
        [('tea', 3), ('tea', 4)]
        """
        return self._fold(field, "max", Asked(uid, name, parallelism, max_parallelism))

    def min_by(
        self, field: FieldName, *, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[T]:  # fmt: skip
        """The record with the smallest value of the field so far, for every record; of equals the first.

        >>> sales = env.from_collection([("tea", 3, "ann"), ("tea", 2, "bob")], type=tuple[str, int, str])
        >>> list(sales.key_by(0).min_by(1).execute_and_collect())
        [('tea', 3, 'ann'), ('tea', 2, 'bob')]
        """
        return self._extreme(field, "min_by", op.lt, Asked(uid, name, parallelism, max_parallelism))

    def max_by(
        self, field: FieldName, *, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream[T]:  # fmt: skip
        """The record with the largest value of the field so far, for every record; of equals the first.

        >>> sales = env.from_collection([("tea", 3, "ann"), ("tea", 2, "bob")], type=tuple[str, int, str])
        >>> list(sales.key_by(0).max_by(1).execute_and_collect())
        [('tea', 3, 'ann'), ('tea', 3, 'ann')]
        """
        return self._extreme(field, "max_by", op.gt, Asked(uid, name, parallelism, max_parallelism))

    # -- windows ----------------------------------------------------------------------------------------------------

    def window(self, assigner: WindowAssigner) -> WindowedStream[K, T]:
        """The records of each key in windows: of time, of sessions, of so many records.

        >>> sales = env.from_collection([("tea", 3), ("tea", 4), ("tea", 5)], type=tuple[str, int])
        >>> pairs = sales.key_by(0).window(tg.CountWindows(2))
        >>> list(pairs.reduce(lambda a, b: (a[0], a[1] + b[1])).execute_and_collect())
        [('tea', 7)]
        """
        from tidegate.api.window_options import WindowOptions
        from tidegate.api.windowed import WindowedStream

        return WindowedStream(self, WindowOptions(assigner))

    def count_window(self, size: int, slide: int | None = None) -> WindowedStream[K, T]:
        """`window(tg.CountWindows(size, slide))`.

        >>> numbers = env.from_sequence(1, 5).key_by(lambda n: "all", key_type=str)
        >>> list(numbers.count_window(3, 2).reduce(lambda a, b: a + b).execute_and_collect())
        [3, 9]
        """
        return self.window(CountWindows(size, slide))

    # -- two streams ------------------------------------------------------------------------------------------------

    def connect(self, other: KeyedStream[Any, U] | DataStream[U]) -> ConnectedStreams[T, U]:
        """With another keyed stream of the same key type, to share its keys' state; or with one that is broadcast:
        `keyed.connect(rules.broadcast())`, for a KeyedBroadcastProcessFunction.

        Where one key has a declared type and the other (of a key function) has none, the declared one holds for both.

            >>> orders = env.from_collection([("ann", "tea")], type=tuple[str, str])
            >>> rules = env.from_collection(["be kind"])
            >>> by_customer = orders.key_by(0).connect(rules.broadcast())
        """
        if isinstance(other, KeyedStream):
            return ConnectedStreams(self._stream, other._stream, joined_selectors(self._key, other._key))
        if not getattr(other, "_is_broadcast", False):
            raise GraphError(
                "a keyed stream connects to another keyed stream, or to a broadcast one: call key_by on both, or "
                "broadcast() on the other"
            )
        return ConnectedStreams(self._stream, other, (self._key, None))

    def interval_join(self, other: KeyedStream[K, Any]) -> IntervalJoin:
        """Records of both streams with one key whose times are close. As SQL over the whole input (but for late records):
        `SELECT * FROM l JOIN r ON l.key = r.key AND r.time BETWEEN l.time + lower AND l.time + upper`.

            >>> times = tg.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp=lambda row: row[1])
            >>> def keyed(rows):
            ...     stream = env.from_collection(rows, type=tuple[str, int])
            ...     return stream.assign_timestamps_and_watermarks(times).key_by(0)
            >>> views, clicks = keyed([("ann", 1_000), ("bob", 2_000)]), keyed([("ann", 1_500)])
            >>> near = views.interval_join(clicks).between("0s", "2s").how("left")
            >>> pairs = near.process(lambda view, click: (view[0], None if click is None else click[1] - view[1]), uid="near")
            >>> sorted(pairs.execute_and_collect())
            [('ann', 500), ('bob', None)]
        """
        return IntervalJoin(self, other)

    def temporal_join(
        self, versions: KeyedStream[K, Any], *, version: str | Callable[[Any], Any] | None = None, how: str = "inner"
    ) -> TemporalJoin:
        """Each record with the version of its key that was valid at its event time. As SQL over the whole input (but for
        late records): `SELECT * FROM l ASOF JOIN r ON l.key = r.key AND l.time >= r.time`; with `how="left"` also records
        without one.

            >>> times = tg.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp=lambda row: row[1])
            >>> def keyed(rows, of):
            ...     return env.from_collection(rows, type=of).assign_timestamps_and_watermarks(times).key_by(0)
            >>> orders = keyed([("eur", 5, 10), ("eur", 9, 10)], tuple[str, int, int])
            >>> rates = keyed([("eur", 1, 1.5), ("eur", 7, 2.0)], tuple[str, int, float])
            >>> dollars = orders.temporal_join(rates).process(lambda order, rate: order[2] * rate[2], uid="dollars")
            >>> sorted(dollars.execute_and_collect())
            [15.0, 20.0]

        :param version: when a version became valid, a column or a function; else its event time. Of one moment the last counts.
        """
        return TemporalJoin(self, versions, version, how)

    # -- building ---------------------------------------------------------------------------------------------------

    def _extreme(
        self, field: FieldName, how: str, is_better: Callable[[Any, Any], bool], asked: Asked
    ) -> DataStream[T]:
        get = make_key_selector(self._stream._type, (field,), None, how).row_key()

        def better(best: Any, row: Any) -> Any:
            return row if is_better(get(row), get(best)) else best

        why = specs.RowByRow(f"{how} keeps a whole record for each key, and compares them one by one")
        return self._reduced(better, f"{how} {field}", asked, why)

    def _reduced(
        self, combine: Callable[[Any, Any], Any], name: str, asked: Asked, why: specs.RowByRow
    ) -> DataStream[T]:
        value_type = self._stream._type.annotation if self._stream._type.typed else Pickled
        if isinstance(value_type, pa.Schema):
            value_type = pa.struct(list(value_type))
        built_in = aggregates.reduce_function(combine, value_type)
        return self._built_in(built_in, self._stream._type, name, asked, why)

    def _fold(self, field: FieldName, how: str, asked: Asked) -> DataStream[Any]:
        """Whole batches where the key and the number are columns, else record by record; the stored state is the same."""
        selector = make_key_selector(self._stream._type, (field,), None, how)
        value_type = selector.key_annotation
        out = self._pairs(value_type)
        function: KeyedProcessFunction | KeyedBatchFunction
        why = vectorised.why_row_by_row(self._stream._type, self._key, value_type, how)
        if why is None and selector.fields is not None:
            (column,) = selector.fields
            if how == "sum":
                function = vectorised.sum_function(column, value_type, out)
            else:
                function = vectorised.extreme_function(column, value_type, how, out)
        else:
            folds: dict[str, Callable[[Any, Any], Any]] = {"sum": op.add, "min": min, "max": max}
            stored = Pickled if value_type is None else value_type
            function = aggregates.fold_function(selector.row_key(), folds[how], stored)
        return self._built_in(function, out, f"{how} {field}", asked, why)

    def _pairs(self, value_type: Any) -> RecordType:
        key = self._key.key_annotation
        mixed = key is None or column_type(self._key.key_type()) is None
        return record_type(None if mixed or value_type is None else tuple_of([key, value_type]))

    def _built_in(
        self, function: KeyedProcessFunction | KeyedBatchFunction, out: RecordType, name: str, asked: Asked,
        why: specs.RowByRow | None,
    ) -> DataStream[Any]:  # fmt: skip
        """`why` it goes row by row, where it does."""
        spec: specs.Spec
        if isinstance(function, KeyedBatchFunction):
            spec = specs.KeyedBatchSpec(function, self._key)
        else:
            spec = specs.KeyedProcessSpec(function, self._key, text_of(function, "process_element"), why)
        return self._apply(spec, name, out, asked)

    @property
    def _upstream(self) -> DataStream[T]:
        return self._stream

    @property
    def _own_key(self) -> KeySelector:
        return self._key

    def _edges(self) -> list[EdgePlan]:
        return [each.keyed_edge(self._key) for each in self._stream._inputs]
