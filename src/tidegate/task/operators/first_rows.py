"""The first rows of every output are held against what the stream declares. Executor; the task's thread.

A chain hands rows on as they are. That a function emits something else than it says would show only where rows become columns
(a shuffle, collect(), Parquet), and never in a chain that ends in print(), text, CSV or JSON. So the first rows are looked at
where they leave the function.

The check stands before an output only for so long: after its rows it puts back what was there, and the path of a record is
what it would be without it. `type_checks="all"` leaves it there.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.errors import ContractError, TypeDeclarationError
from tidegate.functions.process import OutputTag
from tidegate.graph import specs
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.graph.user_code import line_of
from tidegate.settings.choices import TypeChecks
from tidegate.types.base import inside

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.task.operators.base import RunningOperator
    from tidegate.types import RecordType

    Emit = Callable[[Batch], None]

FIRST_ROWS = 1000  #: of each output of each subtask; a millisecond or two
CHECKED_ROWS: dict[TypeChecks, float] = {
    TypeChecks.FIRST: FIRST_ROWS,
    TypeChecks.ALL: float("inf"),
    TypeChecks.NONE: 0,
}

#: They emit what they were given, which was looked at where it was made.
_PASSES_ON = (specs.FilterSpec, specs.AssignTimestampsSpec, specs.SinkSpec)


def check_first_rows(
    operator: RunningOperator, tag: str, limit: float, emit: Emit, put: Callable[[Emit], object]
) -> None:
    """Put the check before `emit`, by `put`, which is also how it takes itself away."""
    spec = operator.planned.operator.spec
    record_type = operator.planned.operator.outputs.get(tag)
    if record_type is None or isinstance(spec, _PASSES_ON):
        return
    check = _typed_check(operator, tag, record_type) if record_type.typed else _untyped_check(operator)
    left = limit

    def checked(batch: Batch) -> None:
        nonlocal left
        if not batch.has_columns:  # else it is of the type already
            rows = batch.rows()
            check(rows if len(rows) <= left else rows[: int(left)])
        left -= len(batch)
        if left <= 0:
            put(emit)
        emit(batch)

    put(checked)


def _typed_check(operator: RunningOperator, tag: str, record_type: RecordType) -> Callable[[list[Any]], None]:
    def check(rows: list[Any]) -> None:
        try:
            record_type.check_rows(rows)
        except TypeDeclarationError as error:
            raise misfitting_row(operator, tag, error) from None

    return check


def _untyped_check(operator: RunningOperator) -> Callable[[list[Any]], None]:
    """Whatever it emits is right, but for one thing that nobody means."""

    def check(rows: list[Any]) -> None:
        for row in rows:
            if is_tagged(row):
                raise ContractError(
                    f"{operator.name} emits {reprlib.repr(row)}: only process functions have side outputs. Write a "
                    "ProcessFunction, and stream.process(...)",
                    user_line=function_line(operator),
                )

    return check


def is_tagged(row: Any) -> bool:
    """`yield tag, value`."""
    return type(row) is tuple and len(row) == 2 and type(row[0]) is OutputTag


def holds_tag(values: list[Any]) -> bool:
    return OutputTag in set(map(type, values))


def misfitting_row(operator: RunningOperator, tag: str, error: TypeDeclarationError) -> TypeDeclarationError:
    """The same error, with who emitted the row and, as far as it is known, the line of the function."""
    made = "returned" if isinstance(operator.planned.operator.spec, specs.MapSpec) else "emitted"
    where = f"what {operator.name} {made}" + ("" if tag == MAIN_OUTPUT else f" to the side output {tag!r}")
    found = inside(where, error)
    message = found.message
    if found.context.get("value") == "None":
        message += " A function that ends without `return` gives None; where None is meant, declare Optional[...]."
    return TypeDeclarationError(message, **{**found.context, "user_line": function_line(operator)})


def function_line(operator: RunningOperator) -> str:
    """Where the operator's function is defined, or, where it has no such line, where it was put into the job."""
    planned = operator.planned.operator
    return str(line_of(specs.user_function_of(planned.spec)) or planned.line)
