"""The plan of a job as text: what runs where, what travels between, what it needs. Driver; pure.

job word-count: 2 layers, 3 slots needed at once

layer 0: 1 slot
  chain, parallelism 1, slot 0.0
    SocketText (uid lines): unbounded source, NOT REPLAYABLE, emits str
      flat_map words: emits str
        => count (uid counts): hash by a lambda, str
"""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.graph.forms import Form, forms, told
from tidegate.graph.logical import MAIN_OUTPUT, Operator, Partitioning
from tidegate.graph.plan import Chain, JobPlan, PlannedEdge, PlannedOperator
from tidegate.graph.specs import LocalSlicesSpec, SinkSpec, SourceSpec, keys_of
from tidegate.ids import OperatorUid
from tidegate.types import RecordType


def explain_plan(plan: JobPlan) -> str:
    """For people; its form may change."""
    slots = len(plan.slots)
    operators, edges = [planned.operator for planned in plan.operators], [edge.edge for edge in plan.edges]
    of = forms(operators, edges)
    lines = [f"job {plan.job}: {_counted(len(plan.layers), 'layer')}, {_counted(slots, 'slot')} needed at once"]
    for number, layer in enumerate(plan.layers):
        lines += ["", f"layer {number}: {_counted(layer.width, 'slot')}"]
        for chain in layer.chains:
            lines.append(f"  chain, parallelism {chain.parallelism}, {_slots_of(plan, chain)}")
            lines += [f"    {line}" for line in _operator_lines(plan, chain, chain.head, of)]
        for edge in (edge for edge in plan.edges if not edge.is_chained):
            if edge.from_layer < number < edge.to_layer:
                lines.append(f"  relays {edge.edge.upstream} to {edge.edge.downstream}")
    untyped = [_name(planned.operator) for planned in plan.operators if _is_untyped(planned)]
    if untyped:
        lines += [
            "",
            f"UNTYPED streams travel as pickled rows, several times slower than columns: {', '.join(untyped)}.",
        ]
        lines.append("Declare their type with returns= or an annotation.")
    by_record = told(operators, edges)
    if by_record:
        lines += ["", "Record by record, slower than by columns:", *(f"  {line}" for line in by_record)]
    return "\n".join(lines) + "\n"


def _operator_lines(
    plan: JobPlan, chain: Chain, planned: PlannedOperator, of: dict[OperatorUid, Form]
) -> Iterator[str]:
    """The operator, what leaves it for other slots, then what is chained to it, further in."""
    form = of.get(planned.uid)
    yield f"{_name(planned.operator)}: {_description(planned)}" + ("" if form is None else f", {form}")
    for index in planned.network:
        yield f"  => {_edge(plan, plan.edges[index])}"
    by_uid = {operator.uid: operator for operator in chain.operators}
    for link in planned.chained:
        for line in _operator_lines(plan, chain, by_uid[link.downstream], of):
            yield f"  {line}"


def _description(planned: PlannedOperator) -> str:
    parts: list[str] = []
    match planned.operator.spec:
        case SinkSpec(sink):
            parts.append(f"sink, {sink.guarantee}")
        case SourceSpec(source):
            parts.append("bounded source" if source.bounded else "unbounded source")
            if not source.replayable:
                parts.append("NOT REPLAYABLE")
        case LocalSlicesSpec(windows):
            slice_ms = getattr(windows.assigner, "slice_ms", None)
            parts.append(f"combines the records of a key and a slice of {slice_ms} ms where that pays")
    if keys_of(planned.operator.spec):
        parts.append(f"keyed, max parallelism {planned.max_parallelism}")
    for tag, type in planned.operator.outputs.items():
        parts.append(f"emits {_type(type)}" if tag == MAIN_OUTPUT else f"side output {tag} of {_type(type)}")
    return ", ".join(parts)


def _edge(plan: JobPlan, edge: PlannedEdge) -> str:
    receiver = next(planned.operator for planned in plan.operators if planned.uid == edge.edge.downstream)
    text = f"{_name(receiver)}: {_partitioning(edge)}"
    if _inputs_of(plan, receiver.uid) > 1:
        text += f", input {edge.edge.input_index + 1}"
    if edge.edge.tag != MAIN_OUTPUT:
        text += f", side output {edge.edge.tag}"
    return f"{text}, {_type(edge.record_type)}"


def _name(operator: Operator) -> str:
    return str(operator).strip()


def _inputs_of(plan: JobPlan, uid: OperatorUid) -> int:
    return len({edge.edge.input_index for edge in plan.edges if edge.edge.downstream == uid})


def _partitioning(edge: PlannedEdge) -> str:
    key = edge.edge.key
    if edge.partitioning is not Partitioning.HASH or key is None:
        return edge.partitioning.value
    if key.fields is not None and key.function is None:
        return f"hash by {', '.join(key.fields)}"
    return f"hash by {getattr(key.function, '__name__', 'a key function').replace('<lambda>', 'a lambda')}"


def _type(type: RecordType) -> str:
    return type.name if type.typed else "UNTYPED"


def _is_untyped(planned: PlannedOperator) -> bool:
    return any(not type.typed for type in planned.operator.outputs.values())


def _slots_of(plan: JobPlan, chain: Chain) -> str:
    slots = [str(plan.slot_of(chain, subtask)) for subtask in range(chain.parallelism)]
    if len(slots) == 1:
        return f"slot {slots[0]}"
    if len(slots) == plan.layers[chain.layer].width:
        return f"all slots of layer {chain.layer}"
    return f"slots {', '.join(slots)}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
