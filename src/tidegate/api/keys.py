"""From what a user gives to key_by, to a KeySelector. Driver."""

from __future__ import annotations

import dis
from dataclasses import replace
from typing import Any, Protocol, get_origin

import pyarrow as pa
import pyarrow.types as pat

from tidegate.api.user_line import calling_line
from tidegate.errors import ConfigurationError, GraphError, KeyTypeError
from tidegate.graph.key_selector import KeySelector
from tidegate.state.key_columns import column_type
from tidegate.state.keys import TupleKey, common_key_type, key_type
from tidegate.types import DataType, RecordType, field_type, return_annotation_of
from tidegate.types.records import DataclassRecords, ScalarRecords, SchemaRecords, TupleRecords


class HasKey(Protocol):
    """PyFlink's KeySelector is one."""

    def get_key(self, value: Any, /) -> Any: ...


def with_type_after_it(key: tuple[Any, ...], declared: Any) -> tuple[tuple[Any, ...], Any]:
    """What key_by was given, also in PyFlink's way: an object with `get_key`, and the key's type as a second argument."""
    if not key or not (callable(key[0]) or hasattr(key[0], "get_key")):
        return key, declared
    first, *rest = key
    if len(rest) == 1 and declared is None and (isinstance(rest[0], type) or get_origin(rest[0]) is not None):
        rest, declared = [], rest[0]
    return (getattr(first, "get_key", first), *rest), declared


def make_key_selector(
    records: RecordType, key: tuple[Any, ...], declared: Any, operation: str = "key_by"
) -> KeySelector:
    """`operation` is what the user has called. :raises ConfigurationError: for a key that the stream does not have."""
    if not key:
        raise ConfigurationError(
            "key_by needs a column name, a tuple position or a function. For all records in one subtask, without keys: "
            "stream.global_()"
        )
    if isinstance(declared, tuple):
        declared = tuple_of(list(declared))
    if len(key) == 1 and callable(key[0]):
        annotation = declared if declared is not None else return_annotation_of(key[0], False)
        if annotation is None and _is_identity(key[0]) and records.typed:
            annotation = records.annotation
        read = _field_read_by(key[0], records)
        if read is None or not _same_keys(annotation, records.field_types[records.field_names.index(read)]):
            return _checked(KeySelector(key_annotation=annotation, function=key[0]))
        return _checked(KeySelector(annotation, (read,), key[0], _rows_are(records)))
    if any(callable(part) for part in key):
        raise ConfigurationError(f"{operation} takes one function, or column names and positions, not both")
    if not records.typed:
        return _checked(_on_untyped_rows(key, declared))
    fields = tuple(_field_name(records, part, operation) for part in key)
    annotation = declared
    if annotation is None:
        types = [field.annotation for field in (field_type(records, name) for name in fields) if field is not None]
        annotation = types[0] if len(types) == 1 else tuple_of(types)
    return _checked(KeySelector(key_annotation=annotation, fields=fields, rows_are=_rows_are(records)))


def joined_selectors(first: KeySelector, second: KeySelector) -> tuple[KeySelector, KeySelector]:
    """Selectors of two streams that share the state of their keys: both by one type, so that a key is the same on both sides.

    :raises GraphError: when their keys never meet.
    """
    one, other = first.key_type(), second.key_type()
    if one == other:
        return first, second
    common = common_key_type(one, other)
    if common is None:
        raise GraphError(
            f"the keys of connected streams must be of one type: the first has {one.name} ({_selected(first)}), the second "
            f"{other.name} ({_selected(second)}), and keys of different types are never equal: 1 is not 1.0. Bring one of "
            "them to the type of the other: key_by(lambda record: float(record.price), key_type=float)"
        )
    return replace(first, key_annotation=common), replace(second, key_annotation=common)


def key_column_types(key: KeySelector) -> tuple[pa.DataType, ...] | None:
    """Of the columns that the key is: one, or one for each part of a tuple. None: keys may be of several types, or are of one
    whose columns Arrow does not compare as keys are compared."""
    column = column_type(key.key_type())
    if column is None:
        return None
    types = [field.type for field in column.arrow] if isinstance(key.key_type(), TupleKey) else [column.arrow]
    return None if any(map(pat.is_nested, types)) or any(map(pat.is_floating, types)) else tuple(types)


def _selected(key: KeySelector) -> str:
    if key.fields is not None:
        return f"key_by {', '.join(key.fields)}"
    return f"key_by {getattr(key.function, '__name__', 'a function').replace('<lambda>', 'a lambda')}"


def _on_untyped_rows(key: tuple[Any, ...], declared: Any) -> KeySelector:
    """Positions and names on rows whose type nobody declared: read them by index, item or attribute."""
    parts = list(key)

    def get(row: Any) -> Any:
        values = tuple(
            row[part] if isinstance(part, int) or isinstance(row, dict) else getattr(row, part) for part in parts
        )
        return values[0] if len(values) == 1 else values

    return KeySelector(key_annotation=declared, function=get)


def _field_name(records: RecordType, part: Any, operation: str) -> str:
    names = list(records.field_names)
    if isinstance(part, int) and 0 <= part < len(names):
        return names[part]
    if isinstance(part, str) and part in names:
        return part
    raise ConfigurationError(
        f"{operation}: the stream has no field {part!r}; it has {', '.join(names)} ({records.name})"
    )


def tuple_of(types: list[Any]) -> Any:
    return tuple.__class_getitem__(tuple(types))


def _rows_are(records: RecordType) -> str:
    match records:
        case TupleRecords():
            return "tuple"
        case DataclassRecords():
            return "object"
        case SchemaRecords():
            return "mapping"
        case _:
            return "scalar"


def _checked(selector: KeySelector) -> KeySelector:
    """A key type that cannot be a key is refused here, at the user's line."""
    key_type(selector.key_annotation)
    return replace(selector, line=str(calling_line()))


def _field_read_by(function: Any, records: RecordType) -> str | None:
    """The field that a function reads of a record and gives as it is: `lambda sale: sale.item`, `lambda row: row[0]`."""
    code = getattr(function, "__code__", None)
    if not records.typed or code is None or code.co_argcount != 1:
        return None
    if _is_identity(function):
        return records.field_names[0] if isinstance(records, ScalarRecords) else None
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "CACHE", "PRECALL")]
    argument = [step.argval for step in steps[:1] if step.opname.startswith("LOAD_FAST")]
    if argument != [code.co_varnames[0]] or steps[-1].opname != "RETURN_VALUE":
        return None
    names = records.field_names
    match [(step.opname, step.argval) for step in steps[1:-1]]:
        case [("LOAD_ATTR", str(name))] if isinstance(records, DataclassRecords) and name in names:
            return name if not hasattr(type(getattr(records.annotation, name, None)), "__set__") else None
        case [("LOAD_CONST", int(at)), ("BINARY_SUBSCR", _)] if isinstance(records, TupleRecords) and 0 <= at < len(
            names
        ):
            return names[at]
        case [("LOAD_CONST", str(name)), ("BINARY_SUBSCR", _)] if isinstance(records, SchemaRecords) and name in names:
            return name
    return None


def _same_keys(annotation: Any, field: DataType) -> bool:
    """Whether the values of a field are the very keys of that type, also as a column: of other types columns are wider."""
    if annotation is None:
        return field.name in ("int", "str", "bytes", "arrow:int64", "arrow:int32", "arrow:string")
    try:
        return key_type(annotation) == key_type(field.annotation)
    except KeyTypeError:  # of a function that would be refused by its name
        return False


def _is_identity(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_code == (lambda value: value).__code__.co_code and code.co_argcount == 1
