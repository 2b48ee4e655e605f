"""The plan of a job that has one function of the user's: what a harness runs. Driver's side of it; pure.

The function is put into a stream by the very calls that a job makes, so what a job refuses a harness refuses: a function
without a key where it needs one, a state that is declared wrongly, a type that nobody knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.api.aggregates import AggregateFunction
from tidegate.api.connected import ConnectedStreams
from tidegate.api.environment import StreamEnvironment
from tidegate.api.keyed import KeyedStream
from tidegate.api.results import WindowResults
from tidegate.api.streams import DataStream
from tidegate.errors import ConfigurationError
from tidegate.functions.asynchronous import AsyncFunction
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
    CoProcessFunction,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
)
from tidegate.graph.plan import PlannedOperator, plan_job
from tidegate.graph.specs import ColumnWindowSpec
from tidegate.types import RecordType

UID = "function"  #: of the operator under test
JOB = "harness"

#: The calls that take a plain function: of a stream, and of a keyed one.
PLAIN_CALLS = ("map", "flat_map", "filter", "map_batches", "async_map")
KEYED_CALLS = ("map", "flat_map", "filter", "reduce", "async_map")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of the function under test; each word as the stream's methods have it."""

    function: Any
    via: str | None = None
    key_by: Any = None
    second_key_by: Any = None
    key_type: Any = None
    input_type: Any = None
    second_type: Any = None
    returns: Any = None
    side_outputs: Sequence[OutputTag] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OneOperator:
    """The operator, and the type of what comes in by each of its inputs."""

    planned: PlannedOperator
    input_types: tuple[RecordType, ...]
    second_is_broadcast: bool


def plan_operator(asked: Asked) -> OneOperator:
    """:raises ConfigurationError: for a function that no stream takes; and whatever a job would raise."""
    env = StreamEnvironment(JOB)
    first: DataStream[Any] = env.from_collection([], type=asked.input_type, uid="first")
    second: DataStream[Any] = env.from_collection([], type=asked.second_type, uid="second")
    has_two_inputs = isinstance(asked.function, (CoProcessFunction, BroadcastProcessFunction))
    out = _two_inputs(asked, first, second) if has_two_inputs else _one_input(asked, first)
    for tag in asked.side_outputs:
        if not (isinstance(out, WindowResults) and tag.name == out.late_tag.name):
            out.side_output(tag)
    out.collect(uid="out")
    if not has_two_inputs:
        second.collect(uid="unused")
    env._built.taken_up = True
    (planned,) = [each for each in plan_job(JOB, env._graph, 1).operators if each.uid == UID]
    types = (first.type, second.type) if has_two_inputs else (first.type,)
    return OneOperator(planned, types, isinstance(asked.function, BroadcastProcessFunction))


def _one_input(asked: Asked, stream: DataStream[Any]) -> DataStream[Any]:
    function = asked.function
    match function:
        case AsyncFunction():
            return _called(asked, stream, "async_map")
        case KeyedProcessFunction():
            return _keyed(asked, stream).process(function, returns=asked.returns, uid=UID, **asked.options)
        case KeyedBatchFunction():
            return _keyed(asked, stream).process_batches(function, returns=asked.returns, uid=UID)
        case AggregateFunction():
            return _keyed(asked, stream).aggregate(function, returns=asked.returns, uid=UID)
        case ReduceFunction():
            return _keyed(asked, stream).reduce(function, uid=UID)
        case MapFunction():
            return _called(asked, stream, "map")
        case FlatMapFunction():
            return _called(asked, stream, "flat_map")
        case FilterFunction():
            return _called(asked, stream, "filter")
        case ProcessFunction():
            return stream.process(function, returns=asked.returns, uid=UID, **asked.options)
    if asked.via == "window":
        return _windowed(asked, stream)
    if asked.via is None:
        raise ConfigurationError(
            f"harness({_named(function)}): say which call puts it into a stream, one of "
            f'{", ".join(dict.fromkeys((*PLAIN_CALLS, *KEYED_CALLS)))}: harness({_named(function)}, via="map"). '
            "Functions of a class of tidegate's, as tg.KeyedProcessFunction, need no via=; they are given as an instance."
        )
    return _called(asked, stream, asked.via)


def _windowed(asked: Asked, stream: DataStream[Any]) -> DataStream[Any]:
    """`asked.function` is given the keyed stream, and gives the results of its windows."""
    results = asked.function(stream if asked.key_by is None else _keyed(asked, stream))
    if not isinstance(results, WindowResults):
        raise ConfigurationError(
            'harness(via="window") takes a function of the keyed stream that gives the results of its windows: '
            'harness(lambda keyed: keyed.window(...).reduce(...), via="window", key_by=...)'
        )
    if results.late_tag.name in {tag.name for tag in asked.side_outputs}:
        results.late()
    for operator in stream._env._graph.operators.values():
        if isinstance(operator.spec, ColumnWindowSpec):
            operator.spec.function.combines_before = False  # the harness is the operator after the shuffle alone
    return results.uid(UID)


def _called(asked: Asked, stream: DataStream[Any], via: str) -> DataStream[Any]:
    """By the stream's method of that name; of the keyed stream, where there is a key."""
    calls = PLAIN_CALLS if asked.key_by is None else KEYED_CALLS
    if via not in calls:
        where = "without key_by" if asked.key_by is None else "with key_by"
        raise ConfigurationError(f"harness(via={via!r}) {where}: it is one of {', '.join(calls)}")
    target: Any = stream if asked.key_by is None else _keyed(asked, stream)
    options = dict(asked.options) if via in ("filter", "reduce") else {"returns": asked.returns, **asked.options}
    called: DataStream[Any] = getattr(target, via)(asked.function, uid=UID, **options)
    return called


def _two_inputs(asked: Asked, first: DataStream[Any], second: DataStream[Any]) -> DataStream[Any]:
    function = asked.function
    match function:
        case CoMapFunction() | CoFlatMapFunction():
            how = "map" if isinstance(function, CoMapFunction) else "flat_map"
            connected = first.connect(second) if asked.key_by is None else _both_keyed(asked, first, second)
            out: DataStream[Any] = getattr(connected, how)(function, returns=asked.returns, uid=UID)
            return out
        case KeyedBroadcastProcessFunction():
            connected = _keyed(asked, first).connect(second.broadcast())
        case BroadcastProcessFunction():
            connected = first.connect(second.broadcast())
        case KeyedCoProcessFunction():
            connected = _both_keyed(asked, first, second)
        case _:
            connected = first.connect(second)
    return connected.process(function, returns=asked.returns, uid=UID)


def _both_keyed(asked: Asked, first: DataStream[Any], second: DataStream[Any]) -> ConnectedStreams[Any, Any]:
    other = asked.key_by if asked.second_key_by is None else asked.second_key_by
    return _keyed(asked, first).connect(second.key_by(*_parts(other), key_type=asked.key_type))


def _keyed(asked: Asked, stream: DataStream[Any]) -> KeyedStream[Any, Any]:
    if asked.key_by is None:
        name = _named(asked.function)
        raise ConfigurationError(
            f"{name} works on keyed streams: say by what, as key_by does: harness({name}(), key_by=lambda record: ...)"
        )
    return stream.key_by(*_parts(asked.key_by), key_type=asked.key_type)


def _parts(key: Any) -> tuple[Any, ...]:
    """Several columns are given as a list or a tuple; all else is one key."""
    return tuple(key) if isinstance(key, (list, tuple)) else (key,)


def _named(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)
