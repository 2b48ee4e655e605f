"""Arrow expressions that users write, tried over no rows when the job is built. Driver only."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.api.user_line import calling_line
from tidegate.errors import TypeDeclarationError
from tidegate.graph import specs
from tidegate.types import RecordType
from tidegate.types.expressions import projected

if TYPE_CHECKING:
    import pyarrow.compute as pc


def is_expression(given: Any) -> bool:
    """Whoever has made one has loaded what makes them; a program without any need not."""
    compute = sys.modules.get("pyarrow.compute")
    return compute is not None and isinstance(given, compute.Expression)


def filter_spec(expression: pc.Expression, records: RecordType) -> specs.ColumnFilterSpec:
    """:raises TypeDeclarationError: where the expression is not one of truth values over the stream's columns."""
    if not records.typed:
        raise refused("filter", "an expression works on columns, but this stream is untyped: declare its type before")
    (field,) = tried("filter", records, ["kept"], [expression]).schema
    if field.type != pa.bool_():
        raise refused("filter", f"the expression {expression} is of type {field.type}, and must be true or false")
    return specs.ColumnFilterSpec(expression)


def tried(operation: str, records: RecordType, names: list[str], expressions: list[Any]) -> pa.RecordBatch:
    """What comes out of no rows."""
    assert records.schema is not None
    try:
        return projected(pa.RecordBatch.from_pylist([], records.schema), names, expressions)
    except (pa.ArrowException, KeyError, TypeError) as error:
        has = ", ".join(f"{field.name}: {field.type}" for field in records.schema)
        says = str(error).partition("\n")[0]
        raise refused(operation, f"{says}. The stream has the columns {has}") from None


def refused(operation: str, why: str) -> TypeDeclarationError:
    line = calling_line()
    return TypeDeclarationError(f"{operation} at {line}: {why}.", user_line=str(line))
