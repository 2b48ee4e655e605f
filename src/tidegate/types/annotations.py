"""From an annotation to a DataType. Pure; driver, when a job is declared.

Every refusal says what to write instead.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from datetime import datetime
from typing import Any, Union

import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.types.arrow_types import ArrowType
from tidegate.types.base import DataType, Naive, NaiveDatetime
from tidegate.types.containers import DataclassType, DictType, ListType, OptionalType, TupleType
from tidegate.types.pickled import Pickled, PickledType
from tidegate.types.scalars import SCALARS

_UNIONS = (Union, types.UnionType)
_WAY_OUT = (
    "Use int, float, str, bytes, bool, datetime, date, Decimal, UUID, list[T], dict[K, V], tuple[T, ...types], "
    "Optional[T], a dataclass of these, a pyarrow DataType, or tidegate.types.Pickled for any Python object."
)


def data_type(annotation: Any) -> DataType:
    """The DataType of an annotation.

    :raises TypeDeclarationError: when there is none; the message says what to write instead.
    """
    return _resolved(annotation, ())


def _resolved(annotation: Any, within: tuple[type, ...]) -> DataType:
    """`within`: the dataclasses around this annotation, outermost first; meeting one again would never end."""
    if isinstance(annotation, DataType):
        return annotation
    if isinstance(annotation, pa.DataType):
        return ArrowType(annotation)
    if isinstance(annotation, (str, typing.ForwardRef)):
        raise _refused(annotation, "A type in quotes is only resolved inside a dataclass; give the type itself.")
    try:
        if annotation in SCALARS:
            return SCALARS[annotation]
    except TypeError:
        raise _refused(annotation, _WAY_OUT) from None
    if annotation is Pickled or isinstance(annotation, Pickled):
        return PickledType()
    if isinstance(annotation, typing.NewType):
        return _resolved(annotation.__supertype__, within)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        if arguments[0] is datetime and any(isinstance(mark, Naive) or mark is Naive for mark in arguments[1:]):
            return SCALARS[NaiveDatetime]
        return _resolved(arguments[0], within)
    if origin in _UNIONS:
        return _union(annotation, arguments, within)
    if origin is list:
        return ListType(_resolved(arguments[0], within))
    if origin is dict:
        return _dict(annotation, arguments, within)
    if origin is tuple:
        return _tuple(annotation, arguments, within)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return _dataclass(annotation, within)
    if annotation in (list, typing.List):  # noqa: UP006 - users still write it
        raise _refused(annotation, "Say what is in it, e.g. list[int].")
    if annotation in (dict, typing.Dict):  # noqa: UP006
        raise _refused(annotation, "Say what is in it, e.g. dict[str, int].")
    if annotation in (tuple, typing.Tuple):  # noqa: UP006
        raise _refused(annotation, "Say what is in it, e.g. tuple[int, str].")
    raise _refused(annotation, _WAY_OUT)


def _union(annotation: Any, arguments: tuple[Any, ...], within: tuple[type, ...]) -> DataType:
    others = [argument for argument in arguments if argument is not type(None)]
    if len(others) != 1 or len(others) == len(arguments):
        raise _refused(
            annotation, "A column has one type: use a dataclass with Optional fields, or tidegate.types.Pickled."
        )
    inner = _resolved(others[0], within)
    return inner if inner.nullable else OptionalType(inner)


def _dict(annotation: Any, arguments: tuple[Any, ...], within: tuple[type, ...]) -> DataType:
    key, value = (_resolved(argument, within) for argument in arguments)
    if key.nullable or not key.immutable:
        raise _refused(annotation, f"The keys of a dict column can be neither None nor mutable; they are {key.name}.")
    return DictType(key, value)


def _tuple(annotation: Any, arguments: tuple[Any, ...], within: tuple[type, ...]) -> DataType:
    if not arguments or arguments == ((),):
        raise _refused(annotation, "An empty tuple has no column.")
    if Ellipsis in arguments:
        raise _refused(annotation, "A tuple has a fixed number of parts: use list[T] for a varying one.")
    return TupleType([_resolved(argument, within) for argument in arguments])


def _dataclass(cls: type, within: tuple[type, ...]) -> DataType:
    if cls in within:
        raise _refused(cls, "It contains itself, and a column cannot: use tidegate.types.Pickled for that field.")
    if getattr(cls, "__new__", None) is not object.__new__:
        raise _refused(cls, "It makes its instances in a way of its own (__new__): use tidegate.types.Pickled.")
    fields = dataclasses.fields(cls)
    if not fields:
        raise _refused(cls, "It has no fields, and a record needs at least one column.")
    try:
        # A local class sees itself by name; everything else must be in its module.
        hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    except Exception as error:  # resolving runs the text of the annotations: anything can come out of it
        module = getattr(sys.modules.get(cls.__module__), "__name__", cls.__module__)
        raise _refused(
            cls,
            f"Its annotations cannot be resolved in module {module} ({type(error).__name__}: {error}). "
            "Define the types it uses at the top level of that module.",
        ) from error
    parts: dict[str, DataType] = {}
    for field in fields:
        try:
            parts[field.name] = _resolved(hints[field.name], (*within, cls))
        except TypeDeclarationError as error:
            raise TypeDeclarationError(
                f"field {field.name!r} of {cls.__name__}: {error.message}", **error.context
            ) from None
    return DataclassType(cls, parts)


def _refused(annotation: Any, way_out: str) -> TypeDeclarationError:
    text = annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else annotation
    return TypeDeclarationError(f"{text} is not a type that Tidegate can store. {way_out}", annotation=str(text))
