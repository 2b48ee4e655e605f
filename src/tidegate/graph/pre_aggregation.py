"""Windows over columns are partly worked out before the shuffle: an operator in front of each keyed edge. Driver; pure.

    source -> map                    => window aggregate         as the user has written it
    source -> map -> slices          => window aggregate         as it is planned

`slices` joins its neighbour's chain, so it costs no exchange, keeps nothing in checkpoints, and decides by what it measures
whether it combines (task/operators/local_slices.py). Left out where somebody reads late records: those are whole records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from tidegate.functions.column_windows import SLICE_END, ColumnWindows
from tidegate.functions.windows import AlignedWindows
from tidegate.graph.key_selector import KeySelector
from tidegate.graph.logical import MAIN_OUTPUT, Chaining, Edge, LogicalGraph, Operator, Partitioning
from tidegate.graph.specs import ColumnWindowSpec, LocalSlicesSpec
from tidegate.ids import OperatorUid
from tidegate.types import record_type

BEFORE = "~slices"  #: after the uid of the edge's two ends


def with_local_slices(graph: LogicalGraph, parallelism: Mapping[OperatorUid, int]) -> LogicalGraph:
    """The graph with an operator of slices before each window aggregate that can have one."""
    operators: dict[OperatorUid, Operator] = {}
    edges: list[Edge] = []
    before: dict[Edge, Operator] = {}
    for edge in graph.edges:
        receiver = graph.operators[edge.downstream]
        spec = receiver.spec
        if isinstance(spec, ColumnWindowSpec) and _can_combine(graph, spec.function, receiver):
            local = _slices(edge, receiver, spec, parallelism[edge.upstream])
            before[edge] = local
            edges += [
                replace(edge, downstream=local.uid, input_index=0, partitioning=Partitioning.FORWARD, key=None),
                replace(edge, upstream=local.uid, tag=MAIN_OUTPUT, key=_key_of_slices(spec)),
            ]
        else:
            edges.append(edge)
    if not before:
        return graph
    for uid, operator in graph.operators.items():
        operators |= {local.uid: local for edge, local in before.items() if edge.downstream == uid}
        operators[uid] = operator
    return LogicalGraph(operators, edges, graph.renamed)


def _can_combine(graph: LogicalGraph, windows: ColumnWindows, operator: Operator) -> bool:
    """All of its inputs, or none: an operator takes one kind of rows."""
    is_aligned = isinstance(windows.assigner, AlignedWindows) and windows.assigner.is_event_time
    if not is_aligned or not windows.combines_before or windows.late_tag in operator.outputs:
        return False
    inputs = graph.inputs_of(operator.uid)
    return all(
        edge.partitioning is Partitioning.HASH and graph.operators[edge.upstream].chaining is not Chaining.NEVER
        for edge in inputs
    )


def _slices(edge: Edge, receiver: Operator, spec: ColumnWindowSpec, parallelism: int) -> Operator:
    windows = spec.function
    keys = [pa.field(name, type) for name, type in zip(windows.key_columns, windows.key_types, strict=True)]
    accumulators = list(windows.merging.value_type)
    rows = record_type(pa.schema([*keys, pa.field(SLICE_END, pa.int64()), *accumulators]))
    tag = f"~{edge.tag}" if edge.tag else ""
    return Operator(
        uid=OperatorUid(f"{edge.upstream}{tag}~{receiver.uid}{BEFORE}"),
        name=f"slices of {receiver.name}",
        spec=LocalSlicesSpec(windows, spec.key),
        line=receiver.line,
        outputs={MAIN_OUTPUT: rows},
        uid_given=False,
        parallelism=parallelism,
        max_parallelism=None,
    )


def _key_of_slices(spec: ColumnWindowSpec) -> KeySelector:
    """The same key, read from a row of a slice: so it is hashed to the same subtask."""
    return replace(spec.key, fields=spec.function.key_columns, function=None, rows_are="mapping")
