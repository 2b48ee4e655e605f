"""PyFlink's names, for programs that were written for it: change the imports, declare state on the class, and run.

    from tidegate.pyflink import Duration, KeyedProcessFunction, StreamExecutionEnvironment, Types, WatermarkStrategy

Everything here is Tidegate's own under another name, or a few lines that make Tidegate's own out of it. What is not here is not
there: windows, tables, connectors and state descriptors (docs/coming-from-pyflink.md says what to write instead).
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Any, NoReturn

from tidegate.api.aggregates import AggregateFunction
from tidegate.api.connected import ConnectedStreams
from tidegate.api.environment import StreamExecutionEnvironment
from tidegate.api.keyed import KeyedStream
from tidegate.api.streams import DataStream
from tidegate.api.streams import StreamSink as DataStreamSink
from tidegate.errors import TypeDeclarationError
from tidegate.functions.class_form import (
    CoFlatMapFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    ReduceFunction,
)
from tidegate.functions.process import (
    BroadcastProcessFunction,
    Context,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
)
from tidegate.functions.watermarks import TimestampAssigner, WatermarkStrategy
from tidegate.state.broadcast import BroadcastState
from tidegate.state.declarations import AggregatingState, ListState, MapState, ReducingState, ValueState
from tidegate.state.ttl import Ttl
from tidegate.types import Pickled
from tidegate.types.base import NaiveDatetime

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "BroadcastProcessFunction",
    "BroadcastState",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "Duration",
    "FilterFunction",
    "FlatMapFunction",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "MapFunction",
    "MapState",
    "OutputTag",
    "ProcessFunction",
    "ReduceFunction",
    "ReducingState",
    "Row",
    "RuntimeContext",
    "StreamExecutionEnvironment",
    "Time",
    "TimestampAssigner",
    "Ttl",
    "Types",
    "ValueState",
    "WatermarkStrategy",
]

RuntimeContext = Context


class KeySelector:
    """The key of a record, as an object: for `key_by(MyKey())`."""

    def get_key(self, value: Any, /) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define get_key(self, value)")


class CheckpointingMode:
    """For `env.enable_checkpointing(1000, CheckpointingMode.AT_LEAST_ONCE)`."""

    EXACTLY_ONCE = "exactly-once"
    AT_LEAST_ONCE = "at-least-once"


class Duration:
    """Makes timedeltas. Wherever PyFlink takes a Duration or a Time, Tidegate takes one of those, or text: "20s"."""

    @staticmethod
    def of_days(days: int) -> timedelta:
        return timedelta(days=days)

    @staticmethod
    def of_hours(hours: int) -> timedelta:
        return timedelta(hours=hours)

    @staticmethod
    def of_minutes(minutes: int) -> timedelta:
        return timedelta(minutes=minutes)

    @staticmethod
    def of_seconds(seconds: int) -> timedelta:
        return timedelta(seconds=seconds)

    @staticmethod
    def of_millis(millis: int) -> timedelta:
        return timedelta(milliseconds=millis)


class Time:
    """The same by other names."""

    days = staticmethod(Duration.of_days)
    hours = staticmethod(Duration.of_hours)
    minutes = staticmethod(Duration.of_minutes)
    seconds = staticmethod(Duration.of_seconds)
    milliseconds = staticmethod(Duration.of_millis)


def Row(*values: Any, **named: Any) -> tuple[Any, ...]:
    """A row is a tuple here. :raises TypeDeclarationError: for one with names."""
    if named:
        _refuse_names()
    return values


def _always(annotation: Any) -> staticmethod[[], Any]:
    return staticmethod(lambda: annotation)


class Types:
    """PyFlink's types as Tidegate's annotations: `Types.TUPLE([Types.STRING(), Types.INT()])` is `tuple[str, int]`.

    Whole numbers are of 64 bits, whatever they are called here, and floating ones of 64 too.
    """

    BOOLEAN = _always(bool)
    BYTE = SHORT = INT = LONG = BIG_INT = _always(int)
    FLOAT = DOUBLE = _always(float)
    BIG_DEC = _always(Decimal)
    CHAR = STRING = _always(str)
    SQL_DATE = _always(date)
    SQL_TIMESTAMP = _always(NaiveDatetime)
    PICKLED_BYTE_ARRAY = _always(Pickled)

    @staticmethod
    def TUPLE(field_types: list[Any]) -> Any:
        return tuple.__class_getitem__(tuple(field_types))

    @staticmethod
    def LIST(element_type: Any) -> Any:
        return list.__class_getitem__(element_type)

    @staticmethod
    def MAP(key_type: Any, value_type: Any) -> Any:
        return dict.__class_getitem__((key_type, value_type))

    ROW = TUPLE
    PRIMITIVE_ARRAY = BASIC_ARRAY = OBJECT_ARRAY = LIST

    @staticmethod
    def ROW_NAMED(field_names: list[str], field_types: list[Any]) -> NoReturn:
        _refuse_names()


def _refuse_names() -> NoReturn:
    raise TypeDeclarationError(
        "rows with names are dataclasses in Tidegate: write @dataclass class Order: item: str; amount: int, emit Order(...), "
        "and give the class where PyFlink has Types.ROW_NAMED"
    )
