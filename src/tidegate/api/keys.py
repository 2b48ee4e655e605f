"""From what a user gives to key_by, to a KeySelector. Driver."""

from __future__ import annotations

from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.state.key_selector import KeySelector
from tidegate.state.keys import key_type
from tidegate.types import RecordType, field_type, return_annotation_of
from tidegate.types.records import DataclassRecords, SchemaRecords, TupleRecords


def make_key_selector(records: RecordType, key: tuple[Any, ...], declared: Any) -> KeySelector:
    """:raises ConfigurationError: for a key that the stream does not have."""
    if not key:
        raise ConfigurationError("key_by needs a column name, a tuple position or a function")
    if len(key) == 1 and callable(key[0]):
        annotation = declared if declared is not None else return_annotation_of(key[0], False)
        if annotation is None and _is_identity(key[0]) and records.typed:
            annotation = records.annotation
        return _checked(KeySelector(key_annotation=annotation, function=key[0]))
    if any(callable(part) for part in key):
        raise ConfigurationError("key_by takes one function, or column names and positions, not both")
    if not records.typed:
        return _checked(_on_untyped_rows(key, declared))
    fields = tuple(_field_name(records, part) for part in key)
    annotation = declared
    if annotation is None:
        types = [field.annotation for field in (field_type(records, name) for name in fields) if field is not None]
        annotation = types[0] if len(types) == 1 else _tuple_of(types)
    return _checked(KeySelector(key_annotation=annotation, fields=fields, rows_are=_rows_are(records)))


def _on_untyped_rows(key: tuple[Any, ...], declared: Any) -> KeySelector:
    """Positions and names on rows whose type nobody declared: read them by index, item or attribute."""
    parts = list(key)

    def get(row: Any) -> Any:
        values = tuple(
            row[part] if isinstance(part, int) or isinstance(row, dict) else getattr(row, part) for part in parts
        )
        return values[0] if len(values) == 1 else values

    return KeySelector(key_annotation=declared, function=get)


def _field_name(records: RecordType, part: Any) -> str:
    names = list(records.field_names)
    if isinstance(part, int) and 0 <= part < len(names):
        return names[part]
    if isinstance(part, str) and part in names:
        return part
    raise ConfigurationError(f"key_by: the stream has no field {part!r}; it has {', '.join(names)} ({records.name})")


def _tuple_of(types: list[Any]) -> Any:
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
    return selector


def _is_identity(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_code == (lambda value: value).__code__.co_code and code.co_argcount == 1
