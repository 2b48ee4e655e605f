"""How streams put operators into the graph. Driver only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.api.user_line import calling_line
from tidegate.errors import ConfigurationError, GraphError
from tidegate.graph import specs
from tidegate.graph.logical import MAIN_OUTPUT, Edge, Operator, Partitioning
from tidegate.ids import OperatorUid
from tidegate.state.key_selector import KeySelector
from tidegate.types import RecordType

if TYPE_CHECKING:
    from tidegate.api.environment import StreamEnvironment

EdgePlan = tuple[OperatorUid, str, int, Partitioning, KeySelector | None]


@dataclass(frozen=True, slots=True)
class StreamInput:
    """One output of one operator, and how its records reach the next. A union has several, each with its own way."""

    operator: OperatorUid
    tag: str = MAIN_OUTPUT
    partitioning: Partitioning = Partitioning.FORWARD

    def edge(self, input_index: int = 0) -> EdgePlan:
        return self.operator, self.tag, input_index, self.partitioning, None

    def keyed_edge(self, key: KeySelector, input_index: int = 0) -> EdgePlan:
        return self.operator, self.tag, input_index, Partitioning.HASH, key


def add_operator(
    env: StreamEnvironment,
    spec: specs.Spec,
    name: str,
    outputs: dict[str, RecordType],
    uid: str | None,
    parallelism: int | None,
    max_parallelism: int | None,
    edges: list[EdgePlan],
) -> OperatorUid:
    """Put an operator and its input edges into the graph."""
    graph = env._graph
    if parallelism is not None and (not isinstance(parallelism, int) or parallelism < 1):
        raise ConfigurationError(f"parallelism of {name} must be a positive integer, not {parallelism!r}")
    own = OperatorUid(uid) if uid is not None else graph.derive_uid([edge[0] for edge in edges], name)
    operator = Operator(
        uid=own,
        name=name,
        spec=spec,
        line=calling_line(),
        outputs=outputs,
        uid_given=uid is not None,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
    )
    graph.add(operator)
    for upstream, tag, input_index, partitioning, key in edges:
        graph.connect(Edge(upstream, tag, own, input_index, partitioning, key))
    return own


def need_instance(function: Any, kind: type, what: str) -> None:
    if isinstance(function, type):
        raise GraphError(f"{what} needs an instance: write {function.__name__}(), not {function.__name__}")
    if not isinstance(function, kind):
        raise GraphError(f"{what} needs a {kind.__name__}, not {type(function).__name__}")
