"""From the records of a stream to the values of a table's row. Executor.

A stream's columns go to the table's columns of the same names. What no database knows as such becomes text: Decimal and
UUID (the database reads it as the number or id that it is), and lists, dicts and dataclasses as JSON.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.types as pat

from tidegate.errors import ConfigurationError
from tidegate.types import RecordType
from tidegate.types.scalars import UuidType

if TYPE_CHECKING:
    from tidegate.batch import Batch
    from tidegate.connectors.database.session import Column


def check_columns(record_type: RecordType, table: str, columns: Sequence[Column], key: Sequence[str] = ()) -> list[str]:
    """The columns that the stream fills. :raises ConfigurationError: when stream and table do not fit."""
    if not record_type.typed:
        raise ConfigurationError(
            f"The stream that goes into the table {table!r} has no type, so its columns are unknown. Give returns= to the "
            "operator before the sink (a dataclass, a tuple or a pyarrow schema)."
        )
    there = {column.name for column in columns}
    names = list(record_type.field_names)
    if unknown := [name for name in names if name not in there]:
        raise ConfigurationError(
            f"The stream has {_listed(unknown)}, but the table {table!r} has no such column. It has "
            f"{', '.join(column.name for column in columns)}. Map the records to what the table has, or add the column."
        )
    needed = [c.name for c in columns if not c.nullable and not c.has_default and c.name not in names]
    if needed:
        raise ConfigurationError(
            f"The table {table!r} needs a value for {_listed(needed)}, which the stream does not have. Add it to the "
            "records, or give the column a default."
        )
    if missing := [name for name in key if name not in names]:
        raise ConfigurationError(
            f"The key {_listed(missing)} of the sink of table {table!r} is not a field of the stream."
        )
    return names


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def plain_columns(batch: Batch) -> pa.RecordBatch:
    """The batch with columns that any database takes, and that can be read again without the stream's type."""
    columns = batch.columns()
    arrays = [_plain(type, column) for type, column in zip(batch.type.field_types, columns.columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=batch.type.field_names)


def _plain(type: Any, column: pa.Array) -> pa.Array:
    if isinstance(type, UuidType) or (pat.is_nested(column.type)) or type.pickles:
        return pa.array([None if value is None else _text(value) for value in type.from_arrow(column)], pa.string())
    if pat.is_timestamp(column.type) and column.type.tz not in (None, "UTC"):
        return column.cast(pa.timestamp(column.type.unit, "UTC"))  # PyMySQL writes what the clock showed there
    return column


def _text(value: Any) -> str:
    return (
        msgspec.json.encode(value).decode()
        if isinstance(value, (list, tuple, dict)) or hasattr(value, "__dataclass_fields__")
        else str(value)
    )


def rows_of(columns: pa.RecordBatch) -> list[tuple[Any, ...]]:
    """Values that every driver takes."""
    return list(zip(*[column.to_pylist() for column in columns.columns], strict=True))


def newest_of_each_key(
    rows: list[tuple[Any, ...]], columns: Sequence[str], key: Sequence[str]
) -> list[tuple[Any, ...]]:
    """The last row of each key, in the order in which these rows came. A database may take two keys for one that are two here
    ("a" and "A", without regard to case): of these, too, the last that came is the last that is written."""
    places = [columns.index(name) for name in key]
    newest: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        values = tuple(row[place] for place in places)
        newest.pop(values, None)
        newest[values] = row
    return list(newest.values())
