"""Records as JSON and from it: which Python type msgspec reads a declared type as. Driver and executor."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, NotRequired, Optional

import msgspec
import numpy as np
import pyarrow as pa
from typing_extensions import TypedDict

from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.types import DataType, record_type
from tidegate.types.containers import DataclassType, DictType, ListType, OptionalType, TupleType
from tidegate.types.scalars import is_bytes, is_text


def _plain(value: Any) -> Any:
    """What msgspec does not know by itself."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeDeclarationError(
        f"A value of type {type(value).__qualname__} cannot be written as JSON. Map the records to dataclasses, dicts, "
        "tuples or scalars before the sink."
    )


json_encoder = msgspec.json.Encoder(enc_hook=_plain)


def json_decoder(declared: Any) -> msgspec.json.Decoder[Any]:
    """:raises TypeError: for a type that msgspec does not read."""
    try:
        return msgspec.json.Decoder(json_annotation(declared))
    finally:
        # msgspec notes on a dataclass what it has learnt of it. The decoder needs that no more, and the note cannot be
        # pickled: a class of the user's main program, which is shipped by value, could not go to the executors.
        records = record_type(declared)
        for cls in [records.annotation, *_dataclasses_in(records.field_types)]:
            if isinstance(cls, type) and "__msgspec_cache__" in vars(cls):
                del cls.__msgspec_cache__  # type: ignore[attr-defined]


def _dataclasses_in(types: Iterable[DataType]) -> Iterator[type]:
    for declared in types:
        match declared:
            case DataclassType():
                yield declared.cls
                yield from _dataclasses_in(declared.fields.values())
            case OptionalType():
                yield from _dataclasses_in([declared.inner])
            case ListType():
                yield from _dataclasses_in([declared.element])
            case DictType():
                yield from _dataclasses_in([declared.key, declared.value])
            case TupleType():
                yield from _dataclasses_in(declared.parts)


def json_annotation(declared: Any) -> Any:
    """What msgspec reads a line as: the annotation itself; for a schema a dict of its fields; anything when untyped."""
    annotation = record_type(declared).annotation
    if annotation is None:
        return Any
    if isinstance(annotation, pa.Schema):
        return _typed_dict("Record", annotation)
    return annotation


def _typed_dict(name: str, fields: Any) -> Any:
    make: Any = TypedDict  # as a function, of types that are not known before
    return make(
        name,
        {
            field.name: NotRequired[_nullable(_python_type(field))] if field.nullable else _python_type(field)
            for field in fields
        },
    )


def _nullable(python_type: Any) -> Any:
    return Optional[python_type]  # noqa: UP045 - | is not defined for all that may come


def _python_type(field: pa.Field) -> Any:
    kind, is_a = field.type, pa.types
    scalars: list[tuple[Callable[[Any], bool], Any]] = [
        (is_a.is_boolean, bool),
        (is_a.is_integer, int),
        (is_a.is_floating, float),
        (is_a.is_decimal, Decimal),
        (is_a.is_date, datetime.date),
        (is_a.is_time, datetime.time),
        (is_a.is_timestamp, datetime.datetime),
        (is_a.is_null, None),
    ]
    for matches, python_type in scalars:
        if matches(kind):
            return python_type
    if is_text(kind):
        return str
    if is_bytes(kind):
        return bytes
    if is_a.is_dictionary(kind):
        return _python_type(pa.field(field.name, kind.value_type))
    if is_a.is_list(kind) or is_a.is_large_list(kind) or is_a.is_fixed_size_list(kind):
        item = _python_type(kind.value_field)
        return list.__class_getitem__(_nullable(item) if kind.value_field.nullable else item)
    if is_a.is_struct(kind):
        return _typed_dict(field.name, [kind.field(index) for index in range(kind.num_fields)])
    if is_a.is_map(kind):
        return dict.__class_getitem__((_python_type(kind.key_field), _nullable(_python_type(kind.item_field))))
    raise ConfigurationError(f"The column {field.name!r} of type {kind} cannot be read from JSON lines; use parquet.")
