"""How streams put operators into the graph. Driver only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.api.user_line import calling_line
from tidegate.errors import ConfigurationError, GraphError
from tidegate.functions.failed_records import on_error_of
from tidegate.graph import specs
from tidegate.graph.key_selector import KeySelector
from tidegate.graph.logical import MAIN_OUTPUT, Edge, Operator, Partitioning
from tidegate.graph.partitioner import Partitioner
from tidegate.graph.user_code import check_states
from tidegate.ids import OperatorUid
from tidegate.types import RecordType

if TYPE_CHECKING:
    from tidegate.api.environment import StreamEnvironment


@dataclass(frozen=True, slots=True)
class EdgePlan:
    """An edge to an operator that is not there yet."""

    upstream: OperatorUid
    tag: str
    input_index: int
    partitioning: Partitioning
    key: KeySelector | None = None
    partitioner: Partitioner | None = None
    is_forced: bool = False


@dataclass(frozen=True, slots=True)
class StreamInput:
    """One output of one operator, and how its records reach the next. A union has several, each with its own way."""

    operator: OperatorUid
    tag: str = MAIN_OUTPUT
    partitioning: Partitioning = Partitioning.FORWARD
    partitioner: Partitioner | None = None  #: of CUSTOM
    is_forced: bool = False  #: FORWARD because the user said so

    def edge(self, input_index: int = 0) -> EdgePlan:
        return EdgePlan(
            self.operator,
            self.tag,
            input_index,
            self.partitioning,
            partitioner=self.partitioner,
            is_forced=self.is_forced,
        )

    def keyed_edge(self, key: KeySelector, input_index: int = 0) -> EdgePlan:
        return EdgePlan(self.operator, self.tag, input_index, Partitioning.HASH, key)


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user says of a new operator in the call that makes it."""

    uid: str | None = None
    name: str | None = None
    parallelism: int | None = None
    max_parallelism: int | None = None
    on_error: str = "fail"


def add_operator(
    env: StreamEnvironment,
    spec: specs.Spec,
    name: str,
    outputs: dict[str, RecordType],
    asked: Asked,
    edges: list[EdgePlan],
) -> OperatorUid:
    """Put an operator and its input edges into the graph. `name` is what it is called if the user has given no name."""
    graph = env._graph
    name = asked.name or name
    for what in ("parallelism", "max_parallelism"):
        if (number := getattr(asked, what)) is not None:
            check_positive(number, what, name)
    check_states(specs.user_function_of(spec))
    upstream = [graph.current(edge.upstream) for edge in edges]
    own = OperatorUid(asked.uid) if asked.uid is not None else graph.derive_uid(upstream, name)
    operator = Operator(
        uid=own,
        name=name,
        spec=spec,
        line=calling_line(),
        outputs=outputs,
        uid_given=asked.uid is not None,
        parallelism=asked.parallelism,
        max_parallelism=asked.max_parallelism,
        on_error=on_error_of(asked.on_error),
    )
    graph.add(operator)
    if isinstance(spec, specs.SinkSpec):
        env._built.has_sink(operator.line)
    for before, edge in zip(upstream, edges, strict=True):
        graph.connect(
            Edge(
                before,
                edge.tag,
                own,
                edge.input_index,
                edge.partitioning,
                edge.key,
                edge.partitioner,
                edge.is_forced,
            )
        )
    return own


def check_positive(number: Any, what: str, name: str) -> None:
    """:raises ConfigurationError: naming what the number is of."""
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise ConfigurationError(f"{what} of {name} must be a positive integer, not {number!r}")


def declared_type(ours: Any, pyflinks: Any, words: str = "returns= and output_type=") -> Any:
    """What the user says the records are, by our word for it or by PyFlink's."""
    if ours is not None and pyflinks is not None:
        raise ConfigurationError(f"{words} say the same: give one of them")
    return pyflinks if ours is None else ours


def named(operation: str, function: Any) -> str:
    """The name of an operator that was given none."""
    name = getattr(function, "__name__", type(function).__name__)
    return operation if name == "<lambda>" else f"{operation} {name}"


def need_instance(function: Any, kind: type, what: str) -> None:
    if isinstance(function, type):
        raise GraphError(f"{what} needs an instance: write {function.__name__}(), not {function.__name__}")
    if not isinstance(function, kind):
        raise GraphError(f"{what} needs a {kind.__name__}, not {type(function).__name__}")
