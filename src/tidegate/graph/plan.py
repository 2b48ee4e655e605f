"""From the logical graph to one straight line of Spark stages. Driver; pure. The plan is shipped to every slot.

1. Operators joined by forward edges of equal parallelism form a *chain* (a tree of function calls, no serialisation).
2. A chain's *layer* is one more than the highest layer it reads from. Spark allows a pipelined producer one consumer, so
   between two layers there is ONE exchange, and every logical edge between them travels on it, tagged.
3. An edge that skips layers is relayed. The relaying slot is a fixed function of (edge, target), so order holds from
   origin to target.
4. A Spark task of a layer is a *slot*; it hosts subtask i of each chain at slot (offset + i) mod width. Offsets differ, so
   that narrow chains do not all sit in slot 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.errors import ConfigurationError, GraphError
from tidegate.graph.logical import Chaining, Edge, LogicalGraph, Operator, Partitioning
from tidegate.graph.pre_aggregation import with_local_slices
from tidegate.graph.specs import keys_of
from tidegate.ids import EdgeIndex, OperatorUid, SlotId
from tidegate.state.key_groups import default_max_parallelism
from tidegate.types import RecordType

MAX_EDGES = 65_000
#: Spark opens one thread and about 5.5 file descriptors for each pair of slots in neighbouring layers
#: (docs/decisions/0009): 128 x 128 is the most that a process with tuned limits carries.
MAX_LAYER_WIDTH = 128


#: What a rescale asks for: a number for every operator that has none of its own, or numbers by uid.
Parallelism = int | Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ChainedEdge:
    """An edge inside a chain: a function call."""

    tag: str
    downstream: OperatorUid
    input_index: int


@dataclass(frozen=True, slots=True)
class PlannedOperator:
    """An operator with its place in a chain."""

    operator: Operator
    parallelism: int
    max_parallelism: int
    chained: tuple[ChainedEdge, ...]
    network: tuple[EdgeIndex, ...]

    @property
    def uid(self) -> OperatorUid:
        return self.operator.uid


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that share a subtask; the first is the head, parents stand before children."""

    operators: tuple[PlannedOperator, ...]
    layer: int
    parallelism: int
    offset: int  #: subtask i lives in slot (offset + i) mod width

    @property
    def head(self) -> PlannedOperator:
        return self.operators[0]


@dataclass(frozen=True, slots=True)
class PlannedEdge:
    """A logical edge with its place. One inside a chain is a function call; it has an index only for a restore: records
    may have been in flight on it when it crossed slots, at another parallelism."""

    index: EdgeIndex
    edge: Edge
    record_type: RecordType
    up_parallelism: int
    down_parallelism: int
    down_max_parallelism: int
    from_layer: int
    to_layer: int
    up_offset: int
    down_offset: int

    @property
    def partitioning(self) -> Partitioning:
        return self.edge.partitioning

    @property
    def is_chained(self) -> bool:
        return self.from_layer == self.to_layer

    def receivers_of(self, origin: int) -> Sequence[int]:
        """The subtasks that one sending subtask can reach; it tells them of watermarks and of its end.

        RESCALE: with more receivers than senders each sender has a run of them for itself, with fewer each has one.
        """
        up, down = self.up_parallelism, self.down_parallelism
        match self.partitioning:
            case Partitioning.FORWARD:
                return [origin]
            case Partitioning.RESCALE if up > down:
                return [origin * down // up]
            case Partitioning.RESCALE:
                return range(origin * down // up, (origin + 1) * down // up)
            case _:
                return range(down)

    def senders_to(self, target: int) -> Sequence[int]:
        """The sending subtasks that can reach this one. Never none."""
        return [origin for origin in range(self.up_parallelism) if target in self.receivers_of(origin)]


@dataclass(frozen=True, slots=True)
class Layer:
    width: int
    chains: tuple[Chain, ...]


@dataclass(frozen=True, slots=True)
class JobPlan:
    """All that every slot needs to know of the job's shape."""

    job: str
    layers: tuple[Layer, ...]
    edges: tuple[PlannedEdge, ...]

    @property
    def slots(self) -> list[SlotId]:
        return [SlotId(k, i) for k, layer in enumerate(self.layers) for i in range(layer.width)]

    @property
    def operators(self) -> list[PlannedOperator]:
        return [operator for layer in self.layers for chain in layer.chains for operator in chain.operators]

    def next_slot(self, edge: PlannedEdge, target: int, from_layer: int) -> int:
        """The slot of layer `from_layer + 1` that takes what is for subtask `target` of the edge's receiver."""
        layer = from_layer + 1
        width = self.layers[layer].width
        if layer == edge.to_layer:
            return (edge.down_offset + target) % width
        return (edge.index + target) % width

    def subtask_in(self, chain: Chain, slot: SlotId) -> int | None:
        """Which subtask of the chain the slot hosts."""
        subtask = (slot.index - chain.offset) % self.layers[slot.layer].width
        return subtask if subtask < chain.parallelism else None

    def hosted_in(self, slot: SlotId) -> list[tuple[Chain, int]]:
        """The chains that have a subtask in the slot, and which."""
        found = [(chain, self.subtask_in(chain, slot)) for chain in self.layers[slot.layer].chains]
        return [(chain, subtask) for chain, subtask in found if subtask is not None]

    def slot_of(self, chain: Chain, subtask: int) -> SlotId:
        return SlotId(chain.layer, (chain.offset + subtask) % self.layers[chain.layer].width)


def plan_job(
    job: str,
    graph: LogicalGraph,
    default_parallelism: int,
    stored_max_parallelism: Mapping[str, int] | None = None,
    rescaled: Mapping[str, int] | None = None,
) -> JobPlan:
    """`stored_max_parallelism` is what a checkpoint was filed by; it holds where the user gives no other number. `rescaled` are
    numbers by uid that go over the program's own.

    :raises GraphError: :raises ConfigurationError: for a graph that cannot be laid out, naming what to change."""
    graph.validate()
    given = rescaled or {}
    parallelism = {uid: given.get(uid) or op.parallelism or default_parallelism for uid, op in graph.operators.items()}
    graph = with_local_slices(graph, parallelism)
    parallelism |= {
        uid: op.parallelism for uid, op in graph.operators.items() if op.parallelism and uid not in parallelism
    }
    edges = [_effective(edge, graph, parallelism) for edge in graph.edges]
    chain_of = _chains(graph, edges, parallelism)
    layer_of = _layers(graph, edges, chain_of)
    max_parallelism = {
        uid: op.max_parallelism or (stored_max_parallelism or {}).get(uid) or default_max_parallelism(parallelism[uid])
        for uid, op in graph.operators.items()
    }
    return _lay_out(job, graph, edges, chain_of, layer_of, parallelism, max_parallelism)


def _effective(edge: Edge, graph: LogicalGraph, parallelism: dict[OperatorUid, int]) -> Edge:
    """Forward between operators of different width is a rebalance, unless the user has asked for it."""
    before, after = parallelism[edge.upstream], parallelism[edge.downstream]
    if edge.partitioning is not Partitioning.FORWARD or before == after:
        return edge
    if edge.is_forced:
        sender, receiver = graph.operators[edge.upstream], graph.operators[edge.downstream]
        raise ConfigurationError(
            f"forward() hands each record to the subtask of the same number, so both sides need the same parallelism, but "
            f"{sender} at {sender.line} has {before} and {receiver} at {receiver.line} has {after}. Give both the same one, or "
            "leave forward() out: then records are spread evenly wherever the numbers differ."
        )
    return replace(edge, partitioning=Partitioning.REBALANCE)


def _chains(
    graph: LogicalGraph, edges: list[Edge], parallelism: dict[OperatorUid, int]
) -> dict[OperatorUid, OperatorUid]:
    """The head of each operator's chain. An operator joins its only input when that is a forward edge, and both may."""
    inputs: dict[OperatorUid, list[Edge]] = {uid: [] for uid in graph.operators}
    for edge in edges:
        inputs[edge.downstream].append(edge)
    head: dict[OperatorUid, OperatorUid] = {}
    for uid in graph.operators:  # in order of definition, so upstream comes first
        match inputs[uid]:
            case [Edge(partitioning=Partitioning.FORWARD) as only] if _may_chain(graph, only):
                head[uid] = head[only.upstream]
            case _:
                head[uid] = uid
    return head


def _may_chain(graph: LogicalGraph, edge: Edge) -> bool:
    before, after = graph.operators[edge.upstream].chaining, graph.operators[edge.downstream].chaining
    return before is not Chaining.NEVER and after is Chaining.ALWAYS


def _layers(graph: LogicalGraph, edges: list[Edge], chain_of: dict[OperatorUid, OperatorUid]) -> dict[OperatorUid, int]:
    """The layer of each chain head."""
    layer = dict.fromkeys(set(chain_of.values()), 0)
    for uid in graph.operators:
        for edge in edges:
            if edge.downstream == uid and chain_of[edge.upstream] != chain_of[uid]:
                layer[chain_of[uid]] = max(layer[chain_of[uid]], layer[chain_of[edge.upstream]] + 1)
    return layer


def _lay_out(
    job: str,
    graph: LogicalGraph,
    edges: list[Edge],
    chain_of: dict[OperatorUid, OperatorUid],
    layer_of: dict[OperatorUid, int],
    parallelism: dict[OperatorUid, int],
    max_parallelism: dict[OperatorUid, int],
) -> JobPlan:
    depth = max(layer_of.values()) + 1
    network = [edge for edge in edges if chain_of[edge.upstream] != chain_of[edge.downstream]]
    if len(network) > MAX_EDGES:
        raise GraphError(f"the job has {len(network)} edges between slots; the frame header counts {MAX_EDGES}")

    widths = [0] * depth
    for head, layer in layer_of.items():
        widths[layer] = max(widths[layer], parallelism[head])
    for edge in network:  # a layer is at least as wide as the widest edge it relays
        for layer in range(layer_of[chain_of[edge.upstream]] + 1, layer_of[chain_of[edge.downstream]]):
            widths[layer] = max(widths[layer], parallelism[edge.downstream])
    for layer, width in enumerate(widths):
        if width > MAX_LAYER_WIDTH:
            raise ConfigurationError(
                f"layer {layer} of the job is {width} slots wide; Spark's pipelined shuffle opens a thread and 5 to 6 file "
                f"descriptors for each pair of neighbouring slots, and the limit is {MAX_LAYER_WIDTH}. Lower the parallelism."
            )

    offsets: dict[OperatorUid, int] = {}
    used = [0] * depth
    for uid in graph.operators:
        if chain_of[uid] == uid:
            layer = layer_of[uid]
            offsets[uid] = used[layer] % widths[layer]
            used[layer] += parallelism[uid]

    for uid, op in graph.operators.items():
        if keys_of(op.spec) and parallelism[uid] > max_parallelism[uid]:
            raise ConfigurationError(
                f"{op} has parallelism {parallelism[uid]} but max_parallelism {max_parallelism[uid]}; raise the latter"
            )

    planned_edges = tuple(
        PlannedEdge(
            index=EdgeIndex(index),
            edge=edge,
            record_type=graph.operators[edge.upstream].outputs[edge.tag],
            up_parallelism=parallelism[edge.upstream],
            down_parallelism=parallelism[edge.downstream],
            down_max_parallelism=max_parallelism[edge.downstream],
            from_layer=layer_of[chain_of[edge.upstream]],
            to_layer=layer_of[chain_of[edge.downstream]],
            up_offset=offsets[chain_of[edge.upstream]],
            down_offset=offsets[chain_of[edge.downstream]],
        )
        for index, edge in enumerate([*network, *(edge for edge in edges if edge not in network)])
    )

    def planned(uid: OperatorUid) -> PlannedOperator:
        return PlannedOperator(
            operator=graph.operators[uid],
            parallelism=parallelism[uid],
            max_parallelism=max_parallelism[uid],
            chained=tuple(
                ChainedEdge(e.tag, e.downstream, e.input_index)
                for e in edges
                if e.upstream == uid and chain_of[e.downstream] == chain_of[uid]
            ),
            network=tuple(e.index for e in planned_edges if e.edge.upstream == uid and not e.is_chained),
        )

    layers = tuple(
        Layer(
            width=widths[layer],
            chains=tuple(
                Chain(
                    operators=tuple(planned(uid) for uid in graph.operators if chain_of[uid] == head),
                    layer=layer,
                    parallelism=parallelism[head],
                    offset=offsets[head],
                )
                for head in graph.operators
                if chain_of[head] == head and layer_of[head] == layer
            ),
        )
        for layer in range(depth)
    )
    return JobPlan(job, layers, planned_edges)
