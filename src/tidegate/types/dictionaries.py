"""Arrow's dictionaries (a pandas categorical): a way to write a column, not a type of values. Pure; both sides.

Streams hold none of them. A batch on the wire has no place for the dictionary, and each of many small frames would have to
carry all of it; so they are decoded where a batch comes in.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pat


def plain_type(arrow: pa.DataType) -> pa.DataType:
    """The type without dictionaries, however deep they are; the very type where there are none."""
    if pat.is_dictionary(arrow):
        return plain_type(arrow.value_type)
    if pat.is_run_end_encoded(arrow):
        value = plain_type(arrow.value_type)
        return arrow if value is arrow.value_type else pa.run_end_encoded(arrow.run_end_type, value)
    if not pat.is_nested(arrow):
        return arrow
    fields = [arrow.field(at) for at in range(arrow.num_fields)]
    plain = [plain_field(field) for field in fields]
    if all(new.type.equals(old.type) for new, old in zip(plain, fields, strict=True)):
        return arrow
    return _with_fields(arrow, plain)


def plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([plain_field(field) for field in schema], metadata=schema.metadata)


def with_type(column: pa.Array, arrow: pa.DataType) -> pa.Array:
    """The same values as a column of `arrow`, which has dictionaries where the column has none, or the other way round."""
    if column.type.equals(arrow):
        return column
    try:
        return column.cast(arrow)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # a nesting that no kernel of Arrow knows
        return pa.array(column.to_pylist(), arrow, from_pandas=False)


def _with_fields(arrow: pa.DataType, fields: list[pa.Field]) -> pa.DataType:
    if pat.is_struct(arrow):
        return pa.struct(fields)
    if pat.is_map(arrow):
        return pa.map_(fields[0].type.field(0), fields[0].type.field(1), arrow.keys_sorted)
    if pat.is_fixed_size_list(arrow):
        return pa.list_(fields[0], arrow.list_size)
    if pat.is_union(arrow):
        made: Any = pa.union(fields, arrow.mode, arrow.type_codes)
        return made
    makers = (
        (pat.is_list, pa.list_),
        (pat.is_large_list, pa.large_list),
        (pat.is_list_view, pa.list_view),
        (pat.is_large_list_view, pa.large_list_view),
    )
    return next(make for applies, make in makers if applies(arrow))(fields[0])
