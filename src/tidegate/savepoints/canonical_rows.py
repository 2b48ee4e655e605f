"""Rows of keyed state as a savepoint's tables have them: the rows of state/sections.py with columns for people. Pure.

    key_group   int32             of the key, at the operator's maximum parallelism
    key         typed             as the key type says; as text where keys have no one type; null for an int beyond 64 bits
    key_bytes   binary            canonical bytes (docs/decisions/0003); what a restore reads
    namespace   binary            empty but for windows
    map_key     typed             of map state
    value       typed             of list state: a list
    expiry      int64, or a list  ms since 1970 at which the entry expires; null: never

Whoever makes rows needs `key` and the values alone: `with_keys` works out the other two from it.
"""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pyarrow as pa

from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.state.declarations import ROWS
from tidegate.state.key_columns import column_type, normalised_keys, plain_array
from tidegate.state.key_groups import key_groups as key_groups_of
from tidegate.state.keys import KeyType, OptionalKey, key_type
from tidegate.types import DataType, data_type
from tidegate.types.type_names import key_annotation

KEY_COLUMNS = ("key_group", "key", "key_bytes", "namespace")


def key_type_named(name: str) -> KeyType:
    """The key type that metadata names."""
    return key_type(key_annotation(name))


def canonical_rows(rows: pa.RecordBatch, kind: str, key_group: int, keys: KeyType) -> pa.RecordBatch:
    """Stored rows of one key group, with the columns of the table."""
    count = rows.num_rows
    columns: dict[str, Any] = {
        "key_group": pa.array(np.full(count, key_group, np.int32)),
        "key": key_column(rows.column("key"), keys),
        "key_bytes": rows.column("key"),
        "namespace": _namespace(rows),
    }
    for name in ("map_key", "value"):
        if name in rows.schema.names:
            columns[name] = rows.column(name)
    columns["expiry"] = _expiry(rows, kind)
    return pa.RecordBatch.from_pydict(columns)


def key_column(encoded: pa.Array, keys: KeyType) -> pa.Array:
    """The keys as a typed column, or as text."""
    plain = [keys.denormalise(key) for key in keys.decode_many(encoded)]
    typed = column_type(keys)
    if typed is None:
        return pa.array([None if key is None else str(key) for key in plain], pa.string())
    try:
        return typed.to_arrow(plain)
    except TypeDeclarationError:
        nullable = data_type(Optional[typed.annotation])  # noqa: UP045 - | is not defined for an Annotated type
        return nullable.to_arrow([key if _fits(typed, key) else None for key in plain])


def _fits(typed: DataType, key: Any) -> bool:
    try:
        typed.check(key)
    except TypeDeclarationError:
        return False
    return True


def with_keys(table: pa.Table, kind: str, keys: KeyType, max_parallelism: int) -> pa.Table:
    """Rows that a user has made, ready for a savepoint: key groups and bytes are worked out from `key`, rows are sorted.

    :raises ConfigurationError: when there is no column `key`, or two rows for one entry.
    """
    if "key" not in table.column_names or "value" not in table.column_names:
        raise ConfigurationError(
            f"rows of keyed state need the columns 'key' and 'value'; these have {table.column_names}. key_group and "
            "key_bytes are worked out, namespace and expiry may be left out."
        )
    is_map = ROWS[kind] == "map"
    if is_map and "map_key" not in table.column_names:
        raise ConfigurationError("rows of map state need the columns 'key', 'map_key' and 'value'")
    normalised = _keys_of(table, keys)
    groups = key_groups_of(keys.hash_many(normalised), max_parallelism).astype(np.int32)
    columns: dict[str, Any] = {
        "key_group": pa.array(groups),
        "key": table.column("key"),
        "key_bytes": pa.array(keys.encode_many(normalised), pa.binary()),
        "namespace": _namespace(table),
    }
    if is_map:
        columns["map_key"] = table.column("map_key")
    columns["value"] = table.column("value")
    columns["expiry"] = _expiry(table, kind)
    made = pa.table(columns)
    order = np.lexsort([np.array(columns["key_bytes"].to_pylist(), dtype=object), groups])
    made = made.take(pa.array(order))
    _refuse_twice(made, is_map)
    return made


def _keys_of(table: pa.Table, keys: KeyType) -> list[Any]:
    column = plain_array(table.column("key"))
    unreadable = column_type(keys) is None or (column.null_count and not isinstance(keys, OptionalKey))
    if not unreadable:
        return normalised_keys(keys, column)
    if "key_bytes" not in table.column_names:
        raise ConfigurationError(
            f"keys of type {keys.name} cannot be read from the column 'key' alone (it holds text, or nulls): the rows "
            "need 'key_bytes', their canonical bytes, as well"
        )
    return keys.decode_many(plain_array(table.column("key_bytes")))


def _refuse_twice(table: pa.Table, is_map: bool) -> None:
    columns = ["key_bytes", "namespace"] + (["map_key"] if is_map else [])
    try:
        distinct = table.select(columns).group_by(columns).aggregate([]).num_rows
    except pa.ArrowNotImplementedError:  # map keys that are structs: compared as text
        distinct = len({tuple(map(repr, row.values())) for row in table.select(columns).to_pylist()})
    if distinct != table.num_rows:
        raise ConfigurationError(
            f"{table.num_rows - distinct} rows are for an entry that has one already: one row for each key"
            + (" and map_key" if is_map else "")
        )


def _namespace(rows: Any) -> Any:
    if "namespace" in rows.schema.names:
        column = rows.column("namespace")
        return column if not column.null_count else column.fill_null(b"")
    return pa.repeat(pa.scalar(b"", pa.binary()), rows.num_rows)


def _expiry(rows: Any, kind: str) -> Any:
    wanted = pa.list_(pa.int64()) if ROWS.get(kind) == "list" else pa.int64()
    if "expiry" not in rows.schema.names or pa.types.is_null(rows.schema.field("expiry").type):
        return pa.nulls(rows.num_rows, wanted)
    column = rows.column("expiry")
    return column if column.type == wanted else column.cast(wanted)
