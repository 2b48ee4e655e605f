"""How each operator of a job works: over whole columns, or record by record and why, and what to change. Driver; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.functions.failed_records import OnError
from tidegate.functions.joins import KeyedJoin
from tidegate.graph import specs
from tidegate.graph.logical import MAIN_OUTPUT, Edge, Operator
from tidegate.graph.record_loop import unfit
from tidegate.ids import OperatorUid
from tidegate.types import UNTYPED, RecordType

_CALLED = "calls your function for each record"
_BY_COLUMN = "filter, select and with_columns take Arrow expressions, map_batches a function over columns"


@dataclass(frozen=True, slots=True)
class Form:
    """`columns`, or why not."""

    columns: bool
    why: str = ""  #: record by record: the reason
    instead: str = ""  #: and what would be faster, where something would
    written_out: bool = False  #: a function of the user's that is written into a loop: no call for each record

    def __str__(self) -> str:
        if self.columns:
            return "by columns"
        return "record by record, in a loop of its own" if self.written_out else "record by record"


def form_of(operator: Operator, records: RecordType) -> Form | None:
    """:param records: the type of its input. None: of sources and sinks, where the connector says it."""
    match operator.spec:
        case specs.SourceSpec() | specs.SinkSpec():
            return None
        case specs.MapBatchesSpec() | specs.KeyedBatchSpec() | specs.ColumnFilterSpec() | specs.ProjectSpec():
            return Form(True)
        case specs.ColumnWindowSpec() | specs.LocalSlicesSpec() | specs.ColumnJoinSpec():
            return Form(True)
        case specs.MapSpec() | specs.FlatMapSpec() | specs.FilterSpec():
            return Form(False, _CALLED, _BY_COLUMN)
        case specs.KeyedProcessSpec(function, _, text, row_by_row):
            why_called = unfit(function, text, records, operator.outputs.get(MAIN_OUTPUT, UNTYPED))
            if row_by_row is not None:
                return Form(False, row_by_row.why, row_by_row.instead, not why_called)
            if not why_called and operator.on_error is not OnError.FAIL:
                return Form(False, _CALLED, "it would be written into a loop, but on_error= looks at each call")
            if not why_called:
                return Form(False, "its process_element is Python", written_out=True)
            return Form(False, _CALLED, f"it would be written into a loop, but {why_called}")
        case specs.AssignTimestampsSpec(strategy):
            if callable(strategy.timestamp):
                return Form(False, "its timestamp is a function", "name the column: timestamp='at'")
            return Form(True)
        case specs.KeyedJoinSpec(function, _, pair):
            return _of_join(function, pair is None)
        case specs.WindowSpec():
            return Form(False, "its windows keep records, or call your function for each of them")
        case _:
            return Form(False, _CALLED)


def _of_join(join: KeyedJoin, as_columns: bool) -> Form:
    if not join.has_column_form:
        return Form(False, "it looks at the versions of each key one by one")
    if as_columns:
        return Form(
            False, "its keys have no type that columns have", "say it in key_by(..., key_type=str), or name a column"
        )
    return Form(False, _CALLED, "columns() instead of process() works by columns")


def forms(operators: Iterable[Operator], edges: Iterable[Edge]) -> dict[OperatorUid, Form]:
    """Of those that have one."""
    by_uid = {operator.uid: operator for operator in operators}
    inputs = {
        edge.downstream: by_uid[edge.upstream].outputs[edge.tag]
        for edge in edges
        if edge.input_index == 0 and edge.tag in by_uid[edge.upstream].outputs
    }
    found = {uid: form_of(operator, inputs.get(uid, UNTYPED)) for uid, operator in by_uid.items()}
    return {uid: form for uid, form in found.items() if form is not None}


def told(operators: Iterable[Operator], edges: Iterable[Edge]) -> list[str]:
    """A line for each reason why operators go record by record, with those that do."""
    operators = list(operators)
    of = forms(operators, edges)
    grouped: dict[str, list[str]] = {}
    for operator in operators:
        form = of.get(operator.uid)
        if form is not None and not form.columns:
            reason = f"{form.why}. {form.instead[:1].upper()}{form.instead[1:]}".rstrip(" .")
            grouped.setdefault(reason, []).append(str(operator).strip())
    return [f"{', '.join(names)}: {reason}." for reason, names in grouped.items()]
