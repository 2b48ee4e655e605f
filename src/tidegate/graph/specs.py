"""What an operator does, as data: made by the API on the driver, shipped, turned into a running operator by task/.

The user's functions inside are shipped by cloudpickle with the Spark job, never through storage or the control plane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from tidegate.connectors.contract import Sink, Source
    from tidegate.functions.asynchronous import AsyncCalls
    from tidegate.functions.column_joins import ColumnIntervalJoin
    from tidegate.functions.column_windows import ColumnWindows
    from tidegate.functions.joins import KeyedJoin
    from tidegate.functions.process import (
        BroadcastProcessFunction,
        CoProcessFunction,
        KeyedBatchFunction,
        KeyedCoProcessFunction,
        KeyedProcessFunction,
        ProcessFunction,
    )
    from tidegate.functions.watermarks import WatermarkStrategy
    from tidegate.functions.windowed import Windowed
    from tidegate.graph.function_text import FunctionText
    from tidegate.graph.key_selector import KeySelector
    from tidegate.types import RecordType


@dataclass(frozen=True, slots=True)
class RowByRow:
    """Why a built-in operation does not work on whole columns, and what to change; "" where nothing would help."""

    why: str
    instead: str = ""


@dataclass(frozen=True, slots=True)
class SourceSpec:
    source: Source


@dataclass(frozen=True, slots=True)
class MapSpec:
    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FlatMapSpec:
    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class FilterSpec:
    function: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class MapBatchesSpec:
    """`function(RecordBatch) -> RecordBatch`, stateless."""

    function: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class ColumnFilterSpec:
    """`filter` with an Arrow expression."""

    expression: Any


@dataclass(frozen=True, slots=True)
class ProjectSpec:
    """`select` and `with_columns`: an Arrow expression for each column that comes out."""

    names: tuple[str, ...]
    expressions: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    function: ProcessFunction


@dataclass(frozen=True, slots=True)
class KeyedProcessSpec:
    function: (
        KeyedProcessFunction | ProcessFunction
    )  #: the latter in class form (functions/class_form.py), with declared state
    key: KeySelector
    text: FunctionText | None = None  #: of its process_element, where it can be had
    row_by_row: RowByRow | None = None  #: of a built-in operation that is not one over columns


@dataclass(frozen=True, slots=True)
class KeyedBatchSpec:
    """Vectorised keyed function: whole Arrow batches with their key column."""

    function: KeyedBatchFunction
    key: KeySelector


@dataclass(frozen=True, slots=True)
class CoProcessSpec:
    """Two inputs; `keys` are both given (keyed) or both None."""

    function: CoProcessFunction | KeyedCoProcessFunction
    keys: tuple[KeySelector, KeySelector] | None


@dataclass(frozen=True, slots=True)
class BroadcastProcessSpec:
    """Input 0 are records, by `key` where it is given; input 1 is broadcast."""

    function: BroadcastProcessFunction
    key: KeySelector | None


@dataclass(frozen=True, slots=True)
class KeyedJoinSpec:
    """A join by event time. `pair` makes a record of both; None: they leave as columns."""

    function: KeyedJoin
    keys: tuple[KeySelector, KeySelector]
    pair: Callable[[Any, Any], Any] | None
    types: tuple[RecordType, RecordType]


@dataclass(frozen=True, slots=True)
class ColumnJoinSpec:
    """An interval join over columns."""

    function: ColumnIntervalJoin
    keys: tuple[KeySelector, KeySelector]


@dataclass(frozen=True, slots=True)
class AsyncSpec:
    """Calls to the outside, many at a time; by `key` where what is in flight has to follow it."""

    function: AsyncCalls
    key: KeySelector | None


@dataclass(frozen=True, slots=True)
class WindowSpec:
    """Windows of a keyed stream, or of two, record by record."""

    function: Windowed
    keys: tuple[KeySelector, ...]  #: of each input


@dataclass(frozen=True, slots=True)
class ColumnWindowSpec:
    """Windows of a keyed stream over its columns."""

    function: ColumnWindows
    key: KeySelector


@dataclass(frozen=True, slots=True)
class LocalSlicesSpec:
    """What windows over columns work out before the shuffle. Nobody writes it: see graph/pre_aggregation.py."""

    function: ColumnWindows
    key: KeySelector


@dataclass(frozen=True, slots=True)
class AssignTimestampsSpec:
    """Event time from here on."""

    strategy: WatermarkStrategy


@dataclass(frozen=True, slots=True)
class SinkSpec:
    sink: Sink


Spec = Union[
    SourceSpec,
    MapSpec,
    FlatMapSpec,
    FilterSpec,
    MapBatchesSpec,
    ColumnFilterSpec,
    ProjectSpec,
    ProcessSpec,
    KeyedProcessSpec,
    KeyedBatchSpec,
    CoProcessSpec,
    BroadcastProcessSpec,
    AsyncSpec,
    KeyedJoinSpec,
    ColumnJoinSpec,
    WindowSpec,
    ColumnWindowSpec,
    LocalSlicesSpec,
    AssignTimestampsSpec,
    SinkSpec,
]


def user_function_of(spec: Spec) -> Any:
    """The object with the user's declarations and hooks; for messages and for finding declared state."""
    match spec:
        case SourceSpec(source):
            return source
        case SinkSpec(sink):
            return sink
        case AssignTimestampsSpec(strategy):
            return strategy
        case ColumnFilterSpec(expression):
            return expression
        case ProjectSpec(_, expressions):
            return expressions
        case _:
            return spec.function


def keys_of(spec: Spec) -> tuple[KeySelector, ...]:
    """The key of each input, () where the operator is not keyed."""
    match spec:
        case KeyedProcessSpec(_, key) | KeyedBatchSpec(_, key) | ColumnWindowSpec(_, key):
            return (key,)
        case CoProcessSpec(_, keys) if keys is not None:
            return keys
        case KeyedJoinSpec(_, keys) | ColumnJoinSpec(_, keys) | WindowSpec(_, keys):
            return keys
        case BroadcastProcessSpec(_, key) | AsyncSpec(_, key) if key is not None:
            return (key,)
        case _:
            return ()


_METHODS: dict[type, str] = {
    SourceSpec: "from_source",
    MapSpec: "map",
    FlatMapSpec: "flat_map",
    FilterSpec: "filter",
    MapBatchesSpec: "map_batches",
    ColumnFilterSpec: "filter",
    ProjectSpec: "select",
    KeyedBatchSpec: "process_batches",
    AsyncSpec: "async_map",
    KeyedJoinSpec: "join",
    ColumnJoinSpec: "join",
    WindowSpec: "window",
    ColumnWindowSpec: "window",
}


def method_of(spec: Spec) -> str:
    """The method of the API that made it."""
    return _METHODS.get(type(spec), "process")
