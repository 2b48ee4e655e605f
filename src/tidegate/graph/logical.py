"""The logical graph: operators and the edges between them, as the user wrote them. Driver; pure.

An edge's identity over restarts is (upstream uid, output tag, downstream uid, input index): it names in-flight data in
unaligned checkpoints. Edge *indexes* are only positions in one plan and never stored.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tidegate.errors import GraphError, UserLine
from tidegate.functions.checkpointed import CheckpointedFunction
from tidegate.functions.failed_records import DEAD_LETTERS, OnError
from tidegate.graph.specs import (
    AsyncSpec,
    BroadcastProcessSpec,
    ColumnJoinSpec,
    ColumnWindowSpec,
    KeyedBatchSpec,
    KeyedJoinSpec,
    KeyedProcessSpec,
    LocalSlicesSpec,
    SinkSpec,
    SourceSpec,
    Spec,
    WindowSpec,
    user_function_of,
)
from tidegate.ids import OperatorUid
from tidegate.shown import is_writable
from tidegate.state.declarations import declared_states

if TYPE_CHECKING:
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.partitioner import Partitioner
    from tidegate.types import RecordType

MAIN_OUTPUT = ""  #: the tag of an operator's main output


class Partitioning(enum.Enum):
    """How an edge chooses the receiving subtask."""

    FORWARD = "forward"  #: subtask i to subtask i
    HASH = "hash"  #: by key group
    REBALANCE = "rebalance"  #: round robin
    BROADCAST = "broadcast"  #: to every subtask
    GLOBAL = "global"  #: to the first subtask
    SHUFFLE = "shuffle"  #: by chance
    RESCALE = (
        "rescale"  #: round robin over a few: each sender has its own part of the receivers, or shares one with others
    )
    CUSTOM = "custom"  #: as the user's own function says


class Chaining(enum.Enum):
    """Whether an operator may share a subtask with its neighbours, where a forward edge allows it."""

    ALWAYS = "always"
    HEAD = "head"  #: not with the one before it
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Operator:
    """One node. `parallelism` None means the job's default."""

    uid: OperatorUid
    name: str
    spec: Spec
    line: UserLine
    outputs: dict[str, RecordType]  #: by tag; sinks have none
    uid_given: bool
    parallelism: int | None = None
    max_parallelism: int | None = None
    chaining: Chaining = Chaining.ALWAYS
    on_error: OnError = OnError.FAIL

    def __str__(self) -> str:
        return f"{self.name} (uid {self.uid})" if self.uid_given else self.name


@dataclass(frozen=True, slots=True)
class Edge:
    """Records of one output of one operator, on their way to one input of another."""

    upstream: OperatorUid
    tag: str
    downstream: OperatorUid
    input_index: int
    partitioning: Partitioning
    key: KeySelector | None = None
    partitioner: Partitioner | None = None  #: of CUSTOM, and only of that
    is_forced: bool = False  #: the user asked for FORWARD, so another width is a mistake

    @property
    def identity(self) -> tuple[str, str, str, int]:
        return (self.upstream, self.tag, self.downstream, self.input_index)


def needs_uid(spec: Spec) -> bool:
    """Whoever has something in a checkpoint must be found again by name."""
    if isinstance(
        spec,
        (
            *(SourceSpec, SinkSpec, KeyedProcessSpec, KeyedBatchSpec, BroadcastProcessSpec, AsyncSpec, KeyedJoinSpec),
            *(WindowSpec, ColumnWindowSpec, ColumnJoinSpec),
        ),
    ):
        return True
    if isinstance(spec, LocalSlicesSpec):
        return False
    function = user_function_of(spec)
    return isinstance(function, CheckpointedFunction) or bool(declared_states(function))


@dataclass(slots=True)
class LogicalGraph:
    """Grows while the user's program runs; `validate` before it is planned."""

    operators: dict[OperatorUid, Operator] = field(default_factory=dict)  #: in order of definition
    edges: list[Edge] = field(default_factory=list)
    renamed: dict[OperatorUid, OperatorUid] = field(default_factory=dict)  #: streams made before still use the old uid

    def add(self, operator: Operator) -> None:
        """:raises GraphError: when the uid is taken, or not text."""
        self._check_text(operator)
        self._check_free(operator)
        self.operators[operator.uid] = operator

    def change(self, uid: OperatorUid, **changes: Any) -> None:
        """Other fields of an operator than its uid. :raises GraphError: for a name that is not text."""
        uid = self.current(uid)
        changed = replace(self.operators[uid], **changes)
        self._check_text(changed)
        self.operators[uid] = changed

    def rename(self, uid: OperatorUid, given: OperatorUid) -> None:
        """The user gives an operator its uid after it was made. :raises GraphError: when it is taken, or not text."""
        uid = self.current(uid)
        operator = replace(self.operators[uid], uid=given, uid_given=True)
        self._check_text(operator)
        if uid != given:
            self._check_free(operator)
            self.renamed[uid] = given
        self.operators = {operator.uid if key == uid else key: self.operators[key] for key in self.operators}
        self.operators[given] = operator
        self.edges = [
            replace(
                edge,
                upstream=given if edge.upstream == uid else edge.upstream,
                downstream=given if edge.downstream == uid else edge.downstream,
            )
            for edge in self.edges
        ]

    def current(self, uid: OperatorUid) -> OperatorUid:
        """The uid of an operator that had this one when a stream was made."""
        while uid in self.renamed:
            uid = self.renamed[uid]
        return uid

    def _check_text(self, operator: Operator) -> None:
        for what, text in (("name", operator.name), ("uid", operator.uid)):
            if not is_writable(text):
                raise GraphError(
                    f"the {what} of an operator at {operator.line} is {text!a}, which UTF-8 cannot write: it could be in no "
                    "checkpoint"
                )

    def _check_free(self, operator: Operator) -> None:
        if operator.uid in self.operators or operator.uid in self.renamed:
            other = self.operators[self.current(operator.uid)]
            raise GraphError(
                f"the uid {operator.uid!r} is given twice: to {other.name} at {other.line} and to {operator.name} at "
                f"{operator.line}. State is matched by uid, so each operator needs its own.",
                uid=operator.uid,
            )

    def derive_uid(self, upstream: list[OperatorUid], name: str) -> OperatorUid:
        """A uid for an operator without state: stable as long as what stands before it is."""
        base = "~".join([*upstream, name])
        uid, n = base, 1
        while uid in self.operators or uid in self.renamed:
            n += 1
            uid = f"{base}.{n}"
        return OperatorUid(uid)

    def connect(self, edge: Edge) -> None:
        if any(other.identity == edge.identity for other in self.edges):
            raise GraphError(
                f"{edge.upstream!r} is connected twice to the same input of {edge.downstream!r}. To count every record "
                "twice, put a map between them.",
            )
        self.edges.append(edge)

    def inputs_of(self, uid: OperatorUid) -> list[Edge]:
        return [edge for edge in self.edges if edge.downstream == uid]

    def outputs_of(self, uid: OperatorUid) -> list[Edge]:
        return [edge for edge in self.edges if edge.upstream == uid]

    def check_uids(self) -> None:
        """:raises GraphError: for operators whose state would be stored, and found again by nobody after a change."""
        nameless = [op for op in self.operators.values() if not op.uid_given and needs_uid(op.spec)]
        if nameless:
            all_of_them = ", ".join(f"{op.name} at {op.line}" for op in nameless)
            keeps, needs = ("keeps", "needs a uid") if len(nameless) == 1 else ("keep", "need a uid each")
            proposed = self._proposed_uids([op.name for op in nameless])
            written = ", ".join(f'uid="{uid}"' for uid in proposed)
            raise GraphError(
                f"{all_of_them} {keeps} something in checkpoints and {needs}, so that it is found again after a restart: "
                f'write {written} in the call, or .uid("{proposed[0]}") after it; any name '
                "will do that stays the same.",
                operator=nameless[0].name,
            )

    def _proposed_uids(self, names: list[str]) -> list[str]:
        """CountWords: count-words; each other than all there are."""
        proposed: list[str] = []
        for name in names:
            base = uid = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "-", name).strip("-").lower() or "operator"
            number = 1
            while uid in proposed or uid in self.operators:
                number += 1
                uid = f"{base}-{number}"
            proposed.append(uid)
        return proposed

    def validate(self) -> None:
        """:raises GraphError: for a job that cannot run."""
        if not self.operators:
            raise GraphError("the job has no operators: start with env.from_source(...) or env.from_collection(...)")
        if not any(isinstance(op.spec, SinkSpec) for op in self.operators.values()):
            raise GraphError("the job has no sink: end at least one stream with .print(), .collect() or .sink_to(...)")
        for operator in self.operators.values():
            if operator.on_error is OnError.DEAD_LETTER and DEAD_LETTERS not in operator.outputs:
                raise GraphError(
                    f'{operator.name} at {operator.line} has on_error="dead-letter", and nothing reads its dead letters: end '
                    'its .dead_letters() in a sink, or say on_error="skip"',
                    operator=operator.name,
                )
