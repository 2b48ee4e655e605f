"""Streams: what the user chains transformations on. Driver only; builds the logical graph, runs nothing."""

from __future__ import annotations

import operator as op
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Union

import pyarrow as pa

from tidegate.api import aggregates, vectorised
from tidegate.api.building import StreamInput, add_operator, need_instance
from tidegate.api.connected import ConnectedStreams
from tidegate.api.functions import (
    KeyedBatchFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
)
from tidegate.api.keys import joined_selectors, make_key_selector
from tidegate.api.watermarks import WatermarkStrategy
from tidegate.connectors.collect_sink import CollectSink
from tidegate.connectors.contract import Sink
from tidegate.connectors.file_sink import FileSink
from tidegate.connectors.print_sink import PrintSink
from tidegate.errors import ConfigurationError, GraphError, TypeDeclarationError
from tidegate.graph import specs
from tidegate.graph.logical import MAIN_OUTPUT, Partitioning
from tidegate.ids import OperatorUid
from tidegate.state.canonical_rows import column_type
from tidegate.state.key_selector import KeySelector
from tidegate.types import Pickled, RecordType, record_type, return_annotation_of

if TYPE_CHECKING:
    from tidegate.api.environment import StreamEnvironment

FieldName = Union[str, int]


class DataStream:
    """Records of one output, or of several (union), each with the way its records reach the next operator."""

    def __init__(self, env: StreamEnvironment, inputs: list[StreamInput], type: RecordType) -> None:
        self._env = env
        self._inputs = inputs
        self._type = type

    @property
    def type(self) -> RecordType:
        """The type of the stream's records."""
        return self._type

    # -- transformations --------------------------------------------------------------------------------------------

    def map(
        self, function: Callable[[Any], Any], *, returns: Any = None, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """One record out for each record in."""
        out = self._returned(returns, function, False)
        return self._apply(specs.MapSpec(function), name or _named("map", function), out, uid, parallelism)

    def flat_map(
        self, function: Callable[[Any], Any], *, returns: Any = None, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """Any number of records out: the function returns an iterable, or None."""
        out = self._returned(returns, function, True)
        return self._apply(specs.FlatMapSpec(function), name or _named("flat_map", function), out, uid, parallelism)

    def filter(
        self, function: Callable[[Any], Any], *, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """Keep the records for which the function is true."""
        return self._apply(specs.FilterSpec(function), name or _named("filter", function), self._type, uid, parallelism)

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], *, returns: Any = None, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """A vectorised function over Arrow batches of the stream; `returns` defaults to the stream's own type."""
        self._need_typed("map_batches")
        out = self._type if returns is None else record_type(returns)
        return self._apply(
            specs.MapBatchesSpec(function), name or _named("map_batches", function), out, uid, parallelism
        )

    def process(
        self, function: ProcessFunction, *, returns: Any = None, uid: str | None = None, name: str | None = None,
        parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """A ProcessFunction: hooks and side outputs, no keyed state."""
        if isinstance(function, (KeyedProcessFunction, KeyedBatchFunction)):
            raise GraphError(f"{type(function).__name__} works on keyed streams: call key_by(...) before it")
        need_instance(function, ProcessFunction, "process")
        out = self._returned(returns, function.process_element, True)
        return self._apply(specs.ProcessSpec(function), name or type(function).__name__, out, uid, parallelism)

    def assign_timestamps_and_watermarks(
        self,
        strategy: WatermarkStrategy,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> DataStream:
        """Event time from here on: each record gets a timestamp, and watermarks follow. Best right behind the source."""
        need_instance(strategy, WatermarkStrategy, "assign_timestamps_and_watermarks")
        spec = specs.AssignTimestampsSpec(strategy)
        return self._apply(spec, name or "timestamps", self._type, uid, parallelism)

    def key_by(self, *key: FieldName | Callable[[Any], Any], key_type: Any = None) -> KeyedStream:
        """Partition by key: one or more column names, tuple positions, or one function. All records of a key meet in one
        subtask, in order for each sender, and share that key's state."""
        return KeyedStream(self, make_key_selector(self._type, key, key_type))

    def union(self, *others: DataStream) -> DataStream:
        """The records of all, in no order between them. Each stream keeps its partitioning: of
        `a.union(b.broadcast())`, every subtask gets every record of b, and its share of a."""
        for other in others:
            if not self._type.equals(other._type):
                raise TypeDeclarationError(
                    f"union needs streams of one type; these are {self._type.name} and {other._type.name}. "
                    "Map them to a common type first."
                )
        inputs = [i for stream in (self, *others) for i in stream._inputs]
        return DataStream(self._env, inputs, self._type)

    def connect(self, other: DataStream) -> ConnectedStreams:
        """Two streams of any types, for a function with two inputs. For the broadcast pattern: `connect(rules.broadcast())`."""
        if not isinstance(other, DataStream):
            raise GraphError(
                "a stream without keys cannot connect to a keyed one: call key_by on both, or connect the other way"
            )
        return ConnectedStreams(self, other)

    def rebalance(self) -> DataStream:
        """Spread evenly over the next operator's subtasks."""
        return self._partitioned(Partitioning.REBALANCE)

    def broadcast(self) -> DataStream:
        """Every subtask of the next operator gets every record."""
        return self._partitioned(Partitioning.BROADCAST)

    def global_(self) -> DataStream:
        """All records to the first subtask of the next operator: for what needs to see all of them in one place, without
        keys. Its other subtasks get nothing, so give it `parallelism=1`."""
        return self._partitioned(Partitioning.GLOBAL)

    def _partitioned(self, partitioning: Partitioning) -> DataStream:
        inputs = [replace(each, partitioning=partitioning) for each in self._inputs]
        return DataStream(self._env, inputs, self._type)

    @property
    def _is_broadcast(self) -> bool:
        return all(each.partitioning is Partitioning.BROADCAST for each in self._inputs)

    def side_output(self, tag: OutputTag) -> DataStream:
        """What the operator before emits with `ctx.output(tag, value)`."""
        if len(self._inputs) != 1:
            raise GraphError("side_output belongs to one operator; call it before union")
        uid = self._inputs[0].operator
        declared = self._env._graph.operators[uid].outputs
        side_type = record_type(tag.type)
        if tag.name in declared and not declared[tag.name].equals(side_type):
            raise GraphError(f"the side output {tag.name!r} is read with two different types")
        declared[tag.name] = side_type
        return DataStream(self._env, [StreamInput(uid, tag.name)], side_type)

    # -- sinks ------------------------------------------------------------------------------------------------------

    def sink_to(self, sink: Sink, *, uid: str, name: str | None = None, parallelism: int | None = None) -> StreamSink:
        """Any sink. `uid` is needed: what it has prepared but not committed is found again by it."""
        if not isinstance(sink, Sink):
            raise ConfigurationError(f"sink_to needs a tidegate.Sink, not {type(sink).__name__}")
        new = self._add(specs.SinkSpec(sink), name or type(sink).__name__, {}, uid, parallelism)
        return StreamSink(new)

    def print(self, prefix: str = "", *, uid: str | None = None) -> StreamSink:
        """Print every record on the driver's console. At-least-once: after a failure some lines come again."""
        return self.sink_to(PrintSink(prefix), uid=uid or self._derived("print"), name="print")

    def collect(self, *, uid: str | None = None) -> StreamSink:
        """Keep the records on the driver: `client.results(uid)` after, or while, the job runs. For tests and notebooks."""
        return self.sink_to(CollectSink(), uid=uid or self._derived("collect"), name="collect")

    def write_files(
        self, path: str, *, format: str, uid: str, parallelism: int | None = None, **options: Any
    ) -> StreamSink:
        """Exactly-once part files ("jsonl", "csv", "parquet", "text") that appear when their checkpoint completes."""
        return self.sink_to(
            FileSink(path, format=format, **options), uid=uid, name=f"files {format}", parallelism=parallelism
        )

    # -- building ---------------------------------------------------------------------------------------------------

    def _derived(self, name: str) -> str:
        return self._env._graph.derive_uid([each.operator for each in self._inputs], name)

    def _need_typed(self, what: str) -> None:
        if not self._type.typed:
            raise TypeDeclarationError(
                f"{what} works on columns, but this stream is untyped: declare its type with returns="
            )

    def _returned(self, returns: Any, function: Any, element_of_iterable: bool) -> RecordType:
        if returns is None:
            returns = return_annotation_of(function, element_of_iterable)
        return record_type(returns)

    def _apply(
        self, spec: specs.Spec, name: str, out: RecordType, uid: str | None, parallelism: int | None
    ) -> DataStream:
        return self._output_of(self._add(spec, name, {MAIN_OUTPUT: out}, uid, parallelism), out)

    def _output_of(self, operator: OperatorUid, out: RecordType) -> DataStream:
        return DataStream(self._env, [StreamInput(operator)], out)

    def _add(
        self,
        spec: specs.Spec,
        name: str,
        outputs: dict[str, RecordType],
        uid: str | None,
        parallelism: int | None,
    ) -> OperatorUid:
        edges = [each.edge() for each in self._inputs]
        return add_operator(self._env, spec, name, outputs, uid, parallelism, None, edges)


class StreamSink:
    """The end of a stream; `uid` names it, for `client.results(uid)`."""

    def __init__(self, uid: OperatorUid) -> None:
        self.uid = uid


class KeyedStream:
    """A stream partitioned by key."""

    def __init__(self, stream: DataStream, key: KeySelector) -> None:
        self._stream = stream
        self._key = key

    def process(
        self, function: KeyedProcessFunction, *, uid: str, returns: Any = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """A function with state for each key."""
        need_instance(function, KeyedProcessFunction, "process on a keyed stream")
        out = self._stream._returned(returns, function.process_element, True)
        spec = specs.KeyedProcessSpec(function, self._key)
        return self._apply(spec, name or type(function).__name__, out, uid, parallelism, max_parallelism)

    def process_batches(
        self, function: KeyedBatchFunction, *, uid: str, returns: Any = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """A vectorised function: whole Arrow batches, state by `get_many`, `update_many`, `add_many`."""
        need_instance(function, KeyedBatchFunction, "process_batches")
        self._stream._need_typed("process_batches")
        out = record_type(returns)
        spec = specs.KeyedBatchSpec(function, self._key)
        return self._apply(spec, name or type(function).__name__, out, uid, parallelism, max_parallelism)

    def reduce(
        self, function: Callable[[Any, Any], Any], *, uid: str, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """Combine each record with the result so far; emits every new result."""
        value_type = self._stream._type.annotation if self._stream._type.typed else Pickled
        if isinstance(value_type, pa.Schema):
            value_type = pa.struct(list(value_type))
        built_in = aggregates.reduce_function(function, value_type)
        return self._built_in(built_in, self._stream._type, name or "reduce", uid, parallelism, max_parallelism)

    def aggregate(
        self, aggregate: aggregates.AggregateFunction, *, uid: str, returns: Any = None, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """An AggregateFunction of your own; emits its result for every record."""
        out = self._stream._returned(returns, aggregate.get_result, False)
        built_in = aggregates.aggregate_function(aggregate)
        return self._built_in(built_in, out, name or "aggregate", uid, parallelism, max_parallelism)

    def count(
        self, *, uid: str, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """(key, number of records so far), for every record."""
        out = self._pairs(int)
        by_batch = vectorised.in_batches(self._stream._type, self._key, int)
        function = vectorised.count_function(out) if by_batch else aggregates.count_function()
        return self._built_in(function, out, name or "count", uid, parallelism, max_parallelism)

    def sum(
        self, field: FieldName, *, uid: str, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """(key, sum of the field so far), for every record."""
        return self._fold(field, "sum", uid, name, parallelism, max_parallelism)

    def min(
        self, field: FieldName, *, uid: str, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """(key, smallest value of the field so far), for every record."""
        return self._fold(field, "min", uid, name, parallelism, max_parallelism)

    def max(
        self, field: FieldName, *, uid: str, name: str | None = None,
        parallelism: int | None = None, max_parallelism: int | None = None,
    ) -> DataStream:  # fmt: skip
        """(key, largest value of the field so far), for every record."""
        return self._fold(field, "max", uid, name, parallelism, max_parallelism)

    def connect(self, other: KeyedStream | DataStream) -> ConnectedStreams:
        """With another keyed stream of the same key type, to share its keys' state; or with one that is broadcast:
        `keyed.connect(rules.broadcast())`, for a KeyedBroadcastProcessFunction.

        Where one key has a declared type and the other (of a key function) has none, the declared one holds for both."""
        if isinstance(other, KeyedStream):
            return ConnectedStreams(self._stream, other._stream, joined_selectors(self._key, other._key))
        if not isinstance(other, DataStream) or not other._is_broadcast:
            raise GraphError(
                "a keyed stream connects to another keyed stream, or to a broadcast one: call key_by on both, or "
                "broadcast() on the other"
            )
        return ConnectedStreams(self._stream, other, (self._key, None))

    def _fold(
        self,
        field: FieldName,
        how: str,
        uid: str,
        name: str | None,
        parallelism: int | None,
        max_parallelism: int | None,
    ) -> DataStream:
        """Whole batches where the key and the number are columns, else record by record; the stored state is the same."""
        selector = make_key_selector(self._stream._type, (field,), None, how)
        value_type = selector.key_annotation
        out = self._pairs(value_type)
        function: KeyedProcessFunction | KeyedBatchFunction
        if selector.fields is not None and vectorised.in_batches(self._stream._type, self._key, value_type):
            (column,) = selector.fields
            if how == "sum":
                function = vectorised.sum_function(column, value_type, out)
            else:
                function = vectorised.extreme_function(column, value_type, how, out)
        else:
            fold = {"sum": op.add, "min": min, "max": max}[how]
            function = aggregates.fold_function(selector.row_key(), fold, Pickled if value_type is None else value_type)
        return self._built_in(function, out, name or f"{how} {field}", uid, parallelism, max_parallelism)

    def _pairs(self, value_type: Any) -> RecordType:
        key = self._key.key_annotation
        mixed = key is None or column_type(self._key.key_type()) is None
        return record_type(None if mixed or value_type is None else tuple[key, value_type])

    def _built_in(
        self,
        function: KeyedProcessFunction | KeyedBatchFunction,
        out: RecordType,
        name: str,
        uid: str,
        parallelism: int | None,
        max_parallelism: int | None,
    ) -> DataStream:
        spec: specs.Spec
        if isinstance(function, KeyedBatchFunction):
            spec = specs.KeyedBatchSpec(function, self._key)
        else:
            spec = specs.KeyedProcessSpec(function, self._key)
        return self._apply(spec, name, out, uid, parallelism, max_parallelism)

    def _apply(
        self,
        spec: specs.Spec,
        name: str,
        out: RecordType,
        uid: str,
        parallelism: int | None,
        max_parallelism: int | None,
    ) -> DataStream:
        stream = self._stream
        edges = [each.keyed_edge(self._key) for each in stream._inputs]
        new = add_operator(stream._env, spec, name, {MAIN_OUTPUT: out}, uid, parallelism, max_parallelism, edges)
        return stream._output_of(new, out)


def _named(operation: str, function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)
    return operation if name == "<lambda>" else f"{operation} {name}"
