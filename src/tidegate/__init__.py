"""Tidegate: stateful stream jobs in Python on Spark, with Flink's checkpoint barriers.

    import tidegate as tg

Names are loaded when they are first used: the worker daemon (spark/daemon.py) must set its environment before numpy and
pyarrow are imported, and `python -m tidegate.spark.daemon` imports this module first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.version import __version__ as __version__

if TYPE_CHECKING:
    from tidegate.api.aggregates import AggregateFunction
    from tidegate.api.collected import CollectedRows
    from tidegate.api.connected import ConnectedStreams
    from tidegate.api.environment import StreamEnvironment, StreamExecutionEnvironment
    from tidegate.api.keyed import KeyedStream
    from tidegate.api.results import WindowResults
    from tidegate.api.streams import DataStream, StreamSink
    from tidegate.api.windowed import WindowedStream
    from tidegate.client import JobClient
    from tidegate.connectors.collect_sink import CollectSink
    from tidegate.connectors.collection import Collection
    from tidegate.connectors.contract import (
        CommitOutcome,
        Committer,
        Polled,
        ReaderContext,
        Sink,
        SinkWriter,
        Source,
        SourceReader,
        Split,
        WriterContext,
    )
    from tidegate.connectors.database.sink import DatabaseSink, DatabaseUpsertSink
    from tidegate.connectors.database.table_lookup import TableLookup
    from tidegate.connectors.database.table_source import DatabaseTable
    from tidegate.connectors.file_sink import FileSink
    from tidegate.connectors.files_source import Files
    from tidegate.connectors.generator import DataGenerator
    from tidegate.connectors.http_sink import HttpSink
    from tidegate.connectors.kafka_records import BadRecord, KafkaRecord
    from tidegate.connectors.kafka_sink import KafkaSink
    from tidegate.connectors.kafka_source import KafkaSource
    from tidegate.connectors.print_sink import PrintSink
    from tidegate.connectors.sequence import NumberSequence
    from tidegate.connectors.socket import SocketText
    from tidegate.connectors.tables.delta import DeltaSink
    from tidegate.connectors.tables.manifest import ParquetTableSink, read_manifest
    from tidegate.coordinator.moving import ExecutorsLeaving, ScalingDecided
    from tidegate.coordinator.observing import (
        AttemptFailed,
        AttemptStarted,
        CheckpointChanged,
        CheckpointsDiscarded,
        CheckpointStatus,
        JobEvent,
        JobStatus,
        SlotAcknowledged,
        SlotReported,
        SlotRestored,
        SlotSampled,
        StatusChanged,
    )
    from tidegate.errors import (
        CheckpointDamaged,
        ConfigurationError,
        JobFailed,
        SavepointFailed,
        StorageError,
        TidegateError,
        TimedOut,
        UserCodeFailed,
    )
    from tidegate.functions.asynchronous import AsyncContext, AsyncFunction, Retry
    from tidegate.functions.checkpointed import CheckpointedFunction
    from tidegate.functions.class_form import (
        CoFlatMapFunction,
        CoMapFunction,
        FilterFunction,
        FlatMapFunction,
        MapFunction,
        ReduceFunction,
    )
    from tidegate.functions.column_aggregates import (
        ColumnAggregate,
        count,
        count_distinct,
        first,
        last,
        max,
        mean,
        min,
        sum,
    )
    from tidegate.functions.counters import Counter
    from tidegate.functions.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor, Timestamped
    from tidegate.functions.failed_records import FailedRecord
    from tidegate.functions.lookups import LookupCache, LookupSource
    from tidegate.functions.merging import Accumulator
    from tidegate.functions.process import (
        BroadcastContext,
        BroadcastProcessFunction,
        Context,
        CoProcessFunction,
        KeyedBatchFunction,
        KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        OutputTag,
        ProcessFunction,
    )
    from tidegate.functions.triggers import (
        ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger,
        CountTrigger,
        EventTimeTrigger,
        NeverTrigger,
        ProcessingTimeTrigger,
        PurgingTrigger,
        Trigger,
        TriggerContext,
        TriggerResult,
    )
    from tidegate.functions.user_metrics import Histogram
    from tidegate.functions.watermarks import TimestampAssigner, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
    from tidegate.functions.window_functions import (
        ProcessWindowFunction,
        WindowBatchFunction,
        WindowContext,
        WithWindow,
    )
    from tidegate.functions.window_joins import CoGroupFunction
    from tidegate.functions.windows import (
        GLOBAL_WINDOW,
        CountWindows,
        CumulativeEventTimeWindows,
        CumulativeProcessingTimeWindows,
        EventTimeSessionWindows,
        GlobalWindows,
        ProcessingTimeSessionWindows,
        SlidingEventTimeWindows,
        SlidingProcessingTimeWindows,
        TimeWindow,
        TumblingEventTimeWindows,
        TumblingProcessingTimeWindows,
        WindowAssigner,
    )
    from tidegate.ids import SlotId
    from tidegate.protocol.watermarks import MAX_WATERMARK
    from tidegate.savepoints.reading import Savepoint
    from tidegate.state.broadcast import BroadcastState
    from tidegate.state.declarations import AggregatingState, ListState, MapState, ReducingState, ValueState
    from tidegate.state.ttl import Ttl
    from tidegate.types import Pickled


_HOMES = {
    "AggregateFunction": "tidegate.api.aggregates",
    "AsyncContext": "tidegate.functions.asynchronous",
    "AsyncFunction": "tidegate.functions.asynchronous",
    "LookupCache": "tidegate.functions.lookups",
    "LookupSource": "tidegate.functions.lookups",
    "TableLookup": "tidegate.connectors.database.table_lookup",
    "FailedRecord": "tidegate.functions.failed_records",
    "Retry": "tidegate.functions.asynchronous",
    "CheckpointedFunction": "tidegate.functions.checkpointed",
    "CoFlatMapFunction": "tidegate.functions.class_form",
    "CoMapFunction": "tidegate.functions.class_form",
    "FilterFunction": "tidegate.functions.class_form",
    "FlatMapFunction": "tidegate.functions.class_form",
    "MapFunction": "tidegate.functions.class_form",
    "ReduceFunction": "tidegate.functions.class_form",
    "CollectedRows": "tidegate.api.collected",
    "StreamEnvironment": "tidegate.api.environment",
    "StreamExecutionEnvironment": "tidegate.api.environment",
    "BroadcastContext": "tidegate.functions.process",
    "BroadcastProcessFunction": "tidegate.functions.process",
    "Context": "tidegate.functions.process",
    "Counter": "tidegate.functions.counters",
    "CoProcessFunction": "tidegate.functions.process",
    "KeyedBatchFunction": "tidegate.functions.process",
    "KeyedBroadcastProcessFunction": "tidegate.functions.process",
    "KeyedCoProcessFunction": "tidegate.functions.process",
    "KeyedProcessFunction": "tidegate.functions.process",
    "OutputTag": "tidegate.functions.process",
    "ProcessFunction": "tidegate.functions.process",
    "ConnectedStreams": "tidegate.api.connected",
    "DataStream": "tidegate.api.streams",
    "KeyedStream": "tidegate.api.keyed",
    "StreamSink": "tidegate.api.streams",
    "Histogram": "tidegate.functions.user_metrics",
    "TimestampAssigner": "tidegate.functions.watermarks",
    "WatermarkGenerator": "tidegate.functions.watermarks",
    "WatermarkOutput": "tidegate.functions.watermarks",
    "WatermarkStrategy": "tidegate.functions.watermarks",
    "MAX_WATERMARK": "tidegate.protocol.watermarks",
    "JobClient": "tidegate.client",
    "CollectSink": "tidegate.connectors.collect_sink",
    "Collection": "tidegate.connectors.collection",
    "CommitOutcome": "tidegate.connectors.contract",
    "Committer": "tidegate.connectors.contract",
    "ReaderContext": "tidegate.connectors.contract",
    "Sink": "tidegate.connectors.contract",
    "SinkWriter": "tidegate.connectors.contract",
    "Source": "tidegate.connectors.contract",
    "SourceReader": "tidegate.connectors.contract",
    "Split": "tidegate.connectors.contract",
    "Polled": "tidegate.connectors.contract",
    "WriterContext": "tidegate.connectors.contract",
    "DatabaseSink": "tidegate.connectors.database.sink",
    "DatabaseUpsertSink": "tidegate.connectors.database.sink",
    "DatabaseTable": "tidegate.connectors.database.table_source",
    "FileSink": "tidegate.connectors.file_sink",
    "Files": "tidegate.connectors.files_source",
    "DataGenerator": "tidegate.connectors.generator",
    "BadRecord": "tidegate.connectors.kafka_records",
    "KafkaRecord": "tidegate.connectors.kafka_records",
    "KafkaSink": "tidegate.connectors.kafka_sink",
    "KafkaSource": "tidegate.connectors.kafka_source",
    "HttpSink": "tidegate.connectors.http_sink",
    "PrintSink": "tidegate.connectors.print_sink",
    "NumberSequence": "tidegate.connectors.sequence",
    "SocketText": "tidegate.connectors.socket",
    "DeltaSink": "tidegate.connectors.tables.delta",
    "ParquetTableSink": "tidegate.connectors.tables.manifest",
    "read_manifest": "tidegate.connectors.tables.manifest",
    "ExecutorsLeaving": "tidegate.coordinator.moving",
    "ScalingDecided": "tidegate.coordinator.moving",
    "JobStatus": "tidegate.coordinator.observing",
    "AttemptFailed": "tidegate.coordinator.observing",
    "AttemptStarted": "tidegate.coordinator.observing",
    "CheckpointChanged": "tidegate.coordinator.observing",
    "CheckpointStatus": "tidegate.coordinator.observing",
    "CheckpointsDiscarded": "tidegate.coordinator.observing",
    "JobEvent": "tidegate.coordinator.observing",
    "SlotAcknowledged": "tidegate.coordinator.observing",
    "SlotReported": "tidegate.coordinator.observing",
    "SlotRestored": "tidegate.coordinator.observing",
    "SlotSampled": "tidegate.coordinator.observing",
    "StatusChanged": "tidegate.coordinator.observing",
    "SlotId": "tidegate.ids",
    "ProcessWindowFunction": "tidegate.functions.window_functions",
    "WindowBatchFunction": "tidegate.functions.window_functions",
    "WindowContext": "tidegate.functions.window_functions",
    "WithWindow": "tidegate.functions.window_functions",
    "CoGroupFunction": "tidegate.functions.window_joins",
    "WindowedStream": "tidegate.api.windowed",
    "WindowResults": "tidegate.api.results",
    "Accumulator": "tidegate.functions.merging",
    "CheckpointDamaged": "tidegate.errors",
    "ConfigurationError": "tidegate.errors",
    "JobFailed": "tidegate.errors",
    "StorageError": "tidegate.errors",
    "TidegateError": "tidegate.errors",
    "TimedOut": "tidegate.errors",
    "UserCodeFailed": "tidegate.errors",
    "BroadcastState": "tidegate.state.broadcast",
    "SavepointFailed": "tidegate.errors",
    "Savepoint": "tidegate.savepoints.reading",
    "AggregatingState": "tidegate.state.declarations",
    "ListState": "tidegate.state.declarations",
    "MapState": "tidegate.state.declarations",
    "ReducingState": "tidegate.state.declarations",
    "ValueState": "tidegate.state.declarations",
    "Ttl": "tidegate.state.ttl",
    "Pickled": "tidegate.types",
}
_HOMES |= dict.fromkeys([
    "GLOBAL_WINDOW", "CountWindows", "CumulativeEventTimeWindows", "CumulativeProcessingTimeWindows",
    "EventTimeSessionWindows", "GlobalWindows", "ProcessingTimeSessionWindows", "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows", "TimeWindow", "TumblingEventTimeWindows", "TumblingProcessingTimeWindows",
    "WindowAssigner",
], "tidegate.functions.windows")  # fmt: skip
_HOMES |= dict.fromkeys([
    "ContinuousEventTimeTrigger", "ContinuousProcessingTimeTrigger", "CountTrigger", "EventTimeTrigger",
    "NeverTrigger", "ProcessingTimeTrigger", "PurgingTrigger", "Trigger", "TriggerContext", "TriggerResult",
], "tidegate.functions.triggers")  # fmt: skip
_HOMES |= dict.fromkeys([
    "CountEvictor", "DeltaEvictor", "Evictor", "TimeEvictor", "Timestamped",
], "tidegate.functions.evictors")  # fmt: skip
_HOMES |= dict.fromkeys([
    "ColumnAggregate", "count", "count_distinct", "first", "last", "max", "mean", "min", "sum",
], "tidegate.functions.column_aggregates")  # fmt: skip

__all__ = [
    "GLOBAL_WINDOW",
    "MAX_WATERMARK",
    "Accumulator",
    "AggregateFunction",
    "AggregatingState",
    "AsyncContext",
    "AsyncFunction",
    "AttemptFailed",
    "AttemptStarted",
    "BadRecord",
    "BroadcastContext",
    "BroadcastProcessFunction",
    "BroadcastState",
    "CheckpointChanged",
    "CheckpointDamaged",
    "CheckpointStatus",
    "CheckpointedFunction",
    "CheckpointsDiscarded",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "CollectSink",
    "CollectedRows",
    "Collection",
    "ColumnAggregate",
    "CommitOutcome",
    "Committer",
    "ConfigurationError",
    "ConnectedStreams",
    "Context",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "CountWindows",
    "Counter",
    "CumulativeEventTimeWindows",
    "CumulativeProcessingTimeWindows",
    "DataGenerator",
    "DataStream",
    "DatabaseSink",
    "DatabaseTable",
    "DatabaseUpsertSink",
    "DeltaEvictor",
    "DeltaSink",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "ExecutorsLeaving",
    "FailedRecord",
    "FileSink",
    "Files",
    "FilterFunction",
    "FlatMapFunction",
    "GlobalWindows",
    "Histogram",
    "HttpSink",
    "JobClient",
    "JobEvent",
    "JobFailed",
    "JobStatus",
    "KafkaRecord",
    "KafkaSink",
    "KafkaSource",
    "KeyedBatchFunction",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "LookupCache",
    "LookupSource",
    "MapFunction",
    "MapState",
    "NeverTrigger",
    "NumberSequence",
    "OutputTag",
    "ParquetTableSink",
    "Pickled",
    "Polled",
    "PrintSink",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "ReaderContext",
    "ReduceFunction",
    "ReducingState",
    "Retry",
    "Savepoint",
    "SavepointFailed",
    "ScalingDecided",
    "Sink",
    "SinkWriter",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SlotAcknowledged",
    "SlotId",
    "SlotReported",
    "SlotRestored",
    "SlotSampled",
    "SocketText",
    "Source",
    "SourceReader",
    "Split",
    "StatusChanged",
    "StorageError",
    "StreamEnvironment",
    "StreamExecutionEnvironment",
    "StreamSink",
    "TableLookup",
    "TidegateError",
    "TimeEvictor",
    "TimeWindow",
    "TimedOut",
    "TimestampAssigner",
    "Timestamped",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "Ttl",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "UserCodeFailed",
    "ValueState",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowBatchFunction",
    "WindowContext",
    "WindowResults",
    "WindowedStream",
    "WithWindow",
    "WriterContext",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "read_manifest",
    "sum",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'tidegate' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
