"""Streams: what the user chains transformations on. Driver only; builds the logical graph, runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Generic, Union, overload

import pyarrow as pa
from typing_extensions import TypeVar

from tidegate.api.all_windows import AllWindows
from tidegate.api.asynchronous import AsyncTransformable
from tidegate.api.building import Asked, EdgePlan, StreamInput, add_operator, declared_type, named, need_instance
from tidegate.api.collected import CollectedRows
from tidegate.api.columns import ColumnOperations
from tidegate.api.connected import ConnectedStreams
from tidegate.api.keyed import KeyedStream
from tidegate.api.keys import HasKey, make_key_selector, with_type_after_it
from tidegate.api.operator_options import OperatorOptions
from tidegate.api.transformable import returned_type
from tidegate.api.window_joins import JoinableInWindows
from tidegate.connectors.collect_sink import CollectSink
from tidegate.connectors.contract import Sink
from tidegate.connectors.file_sink import FileSink
from tidegate.connectors.print_sink import PrintSink
from tidegate.errors import ConfigurationError, GraphError, TypeDeclarationError
from tidegate.functions.class_form import FilterFunction, FlatMapFunction, MapFunction
from tidegate.functions.failed_records import DEAD_LETTERS, FailedRecord, OnError
from tidegate.functions.process import KeyedBatchFunction, KeyedProcessFunction, OutputTag, ProcessFunction
from tidegate.functions.watermarks import WatermarkStrategy
from tidegate.graph import specs
from tidegate.graph.logical import Partitioning
from tidegate.graph.partitioner import Partitioner
from tidegate.ids import OperatorUid
from tidegate.types import RecordType, record_type

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from tidegate.api.environment import StreamEnvironment

FieldName = Union[str, int]
T = TypeVar("T", default=Any)  #: of the stream's records
K = TypeVar("K")
U = TypeVar("U")


class DataStream(OperatorOptions, ColumnOperations, AsyncTransformable, AllWindows, JoinableInWindows, Generic[T]):
    """Records of one output, or of several (union), each with the way its records reach the next operator.

    `uid`, `name` and `parallelism` of each method say of the new operator what `.uid()`, `.name()` and `.set_parallelism()`
    say afterwards. `returns` is the type of its records; `output_type` is PyFlink's name for it.
    """

    def __init__(self, env: StreamEnvironment, inputs: list[StreamInput], type: RecordType) -> None:
        self._env = env
        self._inputs = inputs
        self._type = type

    @property
    def type(self) -> RecordType:
        """The type of the stream's records.

        >>> env.from_collection([1, 2], type=int).type.name
        'int'
        """
        return self._type

    # -- transformations --------------------------------------------------------------------------------------------

    def map(
        self, function: Callable[[T], U] | MapFunction[T, U], output_type: Any = None, *, returns: Any = None,
        uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """One record out for each record in.

        >>> list(env.from_collection([1, 2]).map(lambda n: n * 10, returns=int).execute_and_collect())
        [10, 20]
        """
        declared = declared_type(returns, output_type)
        return self._one_by_one("map", function, declared, Asked(uid, name, parallelism, on_error=on_error))

    def flat_map(
        self, function: Callable[[T], Iterable[U] | None] | FlatMapFunction[T, U], output_type: Any = None, *,
        returns: Any = None, uid: str | None = None, name: str | None = None, parallelism: int | None = None,
        on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """Any number of records out: the function returns an iterable, or None.

        >>> list(env.from_collection(["to be", "or not"]).flat_map(str.split, returns=str).execute_and_collect())
        ['to', 'be', 'or', 'not']
        """
        declared = declared_type(returns, output_type)
        return self._one_by_one("flat_map", function, declared, Asked(uid, name, parallelism, on_error=on_error))

    def filter(
        self, function: Callable[[T], Any] | FilterFunction[T] | pc.Expression, *, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None, on_error: str = "fail",
    ) -> DataStream[T]:  # fmt: skip
        """Keep the records for which the function is true; of an Arrow expression, whole columns at a time.

        >>> list(env.from_sequence(1, 5).filter(lambda n: n % 2 == 1).execute_and_collect())
        [1, 3, 5]
        >>> import pyarrow.compute as pc
        >>> list(env.from_sequence(1, 5).filter(pc.field("value") > 3).execute_and_collect())
        [4, 5]
        """
        return self._one_by_one("filter", function, None, Asked(uid, name, parallelism, on_error=on_error))

    def map_batches(
        self, function: Callable[[pa.RecordBatch], pa.RecordBatch], output_type: Any = None, *, returns: Any = None,
        uid: str | None = None, name: str | None = None, parallelism: int | None = None,
    ) -> DataStream[Any]:  # fmt: skip
        """A vectorised function over Arrow batches of the stream; `returns` defaults to the stream's own type.

        >>> import pyarrow.compute as pc
        >>> sales = env.from_collection([("tea", 3), ("rope", 9)], type=tuple[str, int])
        >>> large = sales.map_batches(lambda batch: batch.filter(pc.greater(batch.column("f1"), 5)))
        >>> list(large.execute_and_collect())
        [('rope', 9)]
        """
        self._need_typed("map_batches")
        declared = declared_type(returns, output_type)
        out = self._type if declared is None else record_type(declared)
        asked = Asked(uid, name, parallelism)
        return self._apply(specs.MapBatchesSpec(function), named("map_batches", function), out, asked)

    def process(
        self, function: ProcessFunction[T, U], output_type: Any = None, *, returns: Any = None, uid: str | None = None,
        name: str | None = None, parallelism: int | None = None,
        on_error: str = "fail",
    ) -> DataStream[U]:  # fmt: skip
        """A ProcessFunction: hooks and side outputs, no keyed state.

        >>> class Twice(tg.ProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         yield value
        ...         yield value
        >>> list(env.from_collection(["a"]).process(Twice(), returns=str).execute_and_collect())
        ['a', 'a']
        """
        if isinstance(function, (KeyedProcessFunction, KeyedBatchFunction)):
            raise GraphError(f"{type(function).__name__} works on keyed streams: call key_by(...) before it")
        need_instance(function, ProcessFunction, "process")
        out = returned_type(declared_type(returns, output_type), function.process_element, True)
        asked = Asked(uid, name, parallelism, on_error=on_error)
        return self._apply(specs.ProcessSpec(function), type(function).__name__, out, asked)

    def assign_timestamps_and_watermarks(
        self,
        strategy: WatermarkStrategy,
        *,
        uid: str | None = None,
        name: str | None = None,
        parallelism: int | None = None,
    ) -> DataStream[T]:
        """Event time from here on: each record gets a timestamp, and watermarks follow. Best right after the source.

        >>> times = tg.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp=lambda click: click[1])
        >>> clicks = env.from_collection([("ann", 1_000)]).assign_timestamps_and_watermarks(times)
        """
        need_instance(strategy, WatermarkStrategy, "assign_timestamps_and_watermarks")
        strategy.check()
        asked = Asked(uid, name, parallelism)
        return self._apply(specs.AssignTimestampsSpec(strategy), "timestamps", self._type, asked)

    @overload
    def key_by(self, key: Callable[[T], K], /, *, key_type: Any = None) -> KeyedStream[K, T]: ...
    @overload
    def key_by(self, key: Callable[[T], K], key_type: Any, /) -> KeyedStream[K, T]: ...
    @overload
    def key_by(self, key: HasKey, key_type: Any = None, /) -> KeyedStream[Any, T]: ...
    @overload
    def key_by(self, *key: FieldName, key_type: Any = None) -> KeyedStream[Any, T]: ...
    def key_by(self, *key: Any, key_type: Any = None) -> KeyedStream[Any, T]:
        """Partition by key: one or more column names, tuple positions, or one function. All records of a key meet in one
        subtask, in order for each sender, and share that key's state.

            >>> sales = env.from_collection([("tea", 3), ("rope", 9), ("tea", 4)], type=tuple[str, int])
            >>> list(sales.key_by(0).sum(1).execute_and_collect())
            [('tea', 3), ('rope', 9), ('tea', 7)]
        """
        parts, declared = with_type_after_it(key, key_type)
        return KeyedStream(self, make_key_selector(self._type, parts, declared))

    def union(self, *others: DataStream[T]) -> DataStream[T]:
        """The records of all, in no order between them. Each stream keeps its partitioning: of
        `a.union(b.broadcast())`, every subtask gets every record of b, and its share of a.

            >>> sorted(env.from_collection([1, 2]).union(env.from_collection([3])).execute_and_collect())
            [1, 2, 3]
        """
        for other in others:
            if not self._type.equals(other._type):
                raise TypeDeclarationError(
                    f"union needs streams of one type; these are {self._type.name} and {other._type.name}. "
                    "Map them to a common type first."
                )
        inputs = [i for stream in (self, *others) for i in stream._inputs]
        return DataStream(self._env, inputs, self._type)

    def connect(self, other: DataStream[U]) -> ConnectedStreams[T, U]:
        """Two streams of any types, for a function with two inputs. For the broadcast pattern: `connect(rules.broadcast())`.

        >>> class Merge(tg.CoProcessFunction):
        ...     def process_element1(self, n, ctx):
        ...         yield str(n)
        ...     def process_element2(self, text, ctx):
        ...         yield text
        >>> merged = env.from_collection([1]).connect(env.from_collection(["a"])).process(Merge(), returns=str)
        >>> sorted(merged.execute_and_collect())
        ['1', 'a']
        """
        if not isinstance(other, DataStream):
            raise GraphError(
                "a stream without keys cannot connect to a keyed one: call key_by on both, or connect the other way"
            )
        return ConnectedStreams(self, other)

    # -- partitioning -----------------------------------------------------------------------------------------------

    def rebalance(self) -> DataStream[T]:
        """Spread evenly over the next operator's subtasks.

        >>> spread = env.from_sequence(1, 4, parallelism=1).rebalance().map(str, returns=str, parallelism=2)
        >>> sorted(spread.execute_and_collect())
        ['1', '2', '3', '4']
        """
        return self._partitioned(Partitioning.REBALANCE)

    def shuffle(self) -> DataStream[T]:
        """Each record to a subtask of the next operator that chance picks: even also where every nth record is a heavy one.

        >>> sorted(env.from_sequence(1, 3).shuffle().map(str, returns=str, parallelism=2).execute_and_collect())
        ['1', '2', '3']
        """
        return self._partitioned(Partitioning.SHUFFLE)

    def rescale(self) -> DataStream[T]:
        """Spread evenly over a few: from 2 subtasks to 4, each sends to two of its own; from 4 to 2, two share a receiver.

        >>> spread = env.from_sequence(1, 3, parallelism=2).rescale().map(str, returns=str, parallelism=4)
        >>> sorted(spread.execute_and_collect())
        ['1', '2', '3']
        """
        return self._partitioned(Partitioning.RESCALE)

    def forward(self) -> DataStream[T]:
        """Each record to the subtask of the same number, as it is anyway where the next operator has the same parallelism.
        Asked for like this, another parallelism is refused, when the job starts and when it is rescaled.

            >>> same = env.from_sequence(1, 3, parallelism=2).forward().map(str, returns=str, parallelism=2)
            >>> sorted(same.execute_and_collect())
            ['1', '2', '3']
        """
        return self._partitioned(Partitioning.FORWARD, is_forced=True)

    def broadcast(self) -> DataStream[T]:
        """Every subtask of the next operator gets every record.

        >>> list(env.from_collection(["a"]).broadcast().map(str.upper, parallelism=2).execute_and_collect())
        ['A', 'A']
        """
        return self._partitioned(Partitioning.BROADCAST)

    def global_(self) -> DataStream[T]:
        """All records to the first subtask of the next operator: for what needs to see all of them in one place, without
        keys. Its other subtasks get nothing, so give it `parallelism=1`.

            >>> sorted(env.from_sequence(1, 3).global_().map(str, returns=str, parallelism=1).execute_and_collect())
            ['1', '2', '3']
        """
        return self._partitioned(Partitioning.GLOBAL)

    def partition_custom(
        self, partitioner: Callable[[Any, int], int], key: FieldName | Callable[[T], Any] | HasKey
    ) -> DataStream[T]:
        """`partitioner(key, receivers)` gives the number of the subtask, 0 to receivers-1, for the key of each record. It must
        always give the same for the same; records that are in flight at a rescale are asked again.

            >>> halves = env.from_sequence(1, 4).partition_custom(lambda key, receivers: key % receivers, lambda n: n)
            >>> sorted(halves.map(str, returns=str, parallelism=2).execute_and_collect())
            ['1', '2', '3', '4']
        """
        parts, _ = with_type_after_it((key,), None)
        selector = make_key_selector(self._type, parts, None, "partition_custom")
        return self._partitioned(Partitioning.CUSTOM, Partitioner(partitioner, selector))

    def _partitioned(
        self, partitioning: Partitioning, partitioner: Partitioner | None = None, is_forced: bool = False
    ) -> DataStream[T]:
        inputs = [
            replace(each, partitioning=partitioning, partitioner=partitioner, is_forced=is_forced)
            for each in self._inputs
        ]
        return DataStream(self._env, inputs, self._type)

    @property
    def _is_broadcast(self) -> bool:
        return all(each.partitioning is Partitioning.BROADCAST for each in self._inputs)

    def side_output(self, tag: OutputTag) -> DataStream[Any]:
        """What the operator before emits with `ctx.output(tag, value)`.

        >>> late = tg.OutputTag("late", int)
        >>> class Sort(tg.ProcessFunction):
        ...     def process_element(self, n, ctx):
        ...         if n > 9:
        ...             ctx.output(late, n)
        ...         else:
        ...             yield n
        >>> sorted_out = env.from_collection([1, 10]).process(Sort(), returns=int)
        >>> list(sorted_out.side_output(late).execute_and_collect())
        [10]
        """
        if len(self._inputs) != 1:
            raise GraphError("side_output belongs to one operator; call it before union")
        uid = self._env._graph.current(self._inputs[0].operator)
        declared = self._env._graph.operators[uid].outputs
        side_type = record_type(tag.type)
        if tag.name in declared and not declared[tag.name].equals(side_type):
            raise GraphError(f"the side output {tag.name!r} is read with two different types")
        declared[tag.name] = side_type
        return DataStream(self._env, [StreamInput(uid, tag.name)], side_type)

    def dead_letters(self) -> DataStream[FailedRecord]:
        """Records on which the function before has raised, where it was put in with `on_error="dead-letter"`.

        >>> parsed = env.from_collection(["7", "x"]).map(int, returns=int, on_error="dead-letter")
        >>> list(parsed.dead_letters().map(lambda bad: (bad.record, bad.error)).execute_and_collect())
        [('x', 'ValueError')]
        """
        maker = self._env._graph.operators[self._made_by("dead_letters")]
        if maker.on_error is not OnError.DEAD_LETTER:
            raise GraphError(f'{maker.name} was not put in with on_error="dead-letter": it has no dead letters')
        return self.side_output(OutputTag(DEAD_LETTERS, FailedRecord))

    get_side_output = side_output  #: as PyFlink calls it

    # -- sinks ------------------------------------------------------------------------------------------------------

    def sink_to(
        self, sink: Sink, *, uid: str | None = None, name: str | None = None, parallelism: int | None = None
    ) -> StreamSink:
        """Any sink. Where checkpoints are stored it needs a `uid`: what it has prepared but not committed is found by it.

        >>> end = env.from_collection([1]).sink_to(tg.PrintSink())
        >>> client = env.execute()
        1
        """
        if not isinstance(sink, Sink):
            raise ConfigurationError(f"sink_to needs a tidegate.Sink, not {type(sink).__name__}")
        asked = Asked(uid, name, parallelism)
        new = add_operator(self._env, specs.SinkSpec(sink), type(sink).__name__, {}, asked, self._edges())
        return StreamSink(self._env, new)

    def print(self, prefix: str = "", *, uid: str | None = None) -> StreamSink:
        """Print every record on the driver's console. At-least-once: after a failure some lines come again.

        >>> end = env.from_collection(["tide"]).print("word")
        >>> client = env.execute()
        word> tide
        """
        return self.sink_to(PrintSink(prefix), uid=uid or self._derived("print"), name="print")

    def collect(self, *, uid: str | None = None) -> StreamSink:
        """Keep the records on the driver: `client.results(uid)` after, or while, the job runs. For tests and notebooks.

        >>> end = env.from_collection([1, 2]).collect(uid="all")
        >>> env.execute().results("all")
        [1, 2]
        """
        return self.sink_to(CollectSink(), uid=uid or self._derived("collect"), name="collect")

    def write_files(
        self, path: str | PathLike[str], *, format: str, uid: str | None = None, parallelism: int | None = None,
        **options: Any,
    ) -> StreamSink:  # fmt: skip
        """Exactly-once part files ("jsonl", "csv", "parquet", "text") that appear when their checkpoint completes.

        >>> from pathlib import Path
        >>> end = env.from_collection(["a", "b"], type=str).write_files("/tmp/letters", format="text", uid="letters")
        >>> client = env.execute()
        >>> [file.read_text().split() for file in Path("/tmp/letters").glob("*.txt")]
        [['a', 'b']]
        """
        return self.sink_to(
            FileSink(path, format=format, **options), uid=uid, name=f"files {format}", parallelism=parallelism
        )

    @overload
    def execute_and_collect(self, job_name: str | None = None) -> CollectedRows[T]: ...
    @overload
    def execute_and_collect(self, job_name: str | None = None, *, limit: int) -> list[T]: ...
    def execute_and_collect(self, job_name: str | None = None, limit: int | None = None) -> CollectedRows[T] | list[T]:
        """Run the whole job and hand this stream's records to the program, as they are committed:

            with numbers.map(square).execute_and_collect() as rows:
                for row in rows: ...

        With `limit` a list of the first so many, after which the job is canceled if it still runs. A job without end needs
        checkpoints for it: records come when theirs completes.

            >>> env.from_sequence(1, 100).execute_and_collect(limit=3)
            [1, 2, 3]
        """
        sink = self.collect()
        rows: CollectedRows[T] = CollectedRows(self._env.execute_async(job_name), sink.operator_uid)
        return rows if limit is None else rows.first(limit)

    # -- building ---------------------------------------------------------------------------------------------------

    def _made_by(self, option: str) -> OperatorUid:
        if len(self._inputs) != 1 or self._inputs[0] != StreamInput(self._inputs[0].operator):
            raise GraphError(f"{option}() belongs to one operator: call it right after map, process and their kin")
        return self._env._graph.current(self._inputs[0].operator)

    def _derived(self, name: str) -> str:
        graph = self._env._graph
        return graph.derive_uid([graph.current(each.operator) for each in self._inputs], name)

    def _need_typed(self, what: str) -> None:
        if not self._type.typed:
            raise TypeDeclarationError(
                f"{what} works on columns, but this stream is untyped: declare its type with returns="
            )

    @property
    def _upstream(self) -> DataStream[T]:
        return self

    def _edges(self) -> list[EdgePlan]:
        return [each.edge() for each in self._inputs]

    def _output_of(self, operator: OperatorUid, out: RecordType) -> DataStream[Any]:
        return DataStream(self._env, [StreamInput(operator)], out)


class StreamSink(OperatorOptions):
    """The end of a stream."""

    def __init__(self, env: StreamEnvironment, operator: OperatorUid) -> None:
        self._env = env
        self._operator = operator

    @property
    def operator_uid(self) -> OperatorUid:
        """For `client.results(uid)`.

        >>> env.from_collection([1]).collect(uid="all").operator_uid
        'all'
        """
        return self._env._graph.current(self._operator)

    def _made_by(self, option: str) -> OperatorUid:
        return self.operator_uid
