"""Copies of records, so that whoever is given one may change it. Pure; executor, the task's thread.

A copy shares nothing with its original that can be changed. What cannot be changed is not copied: numbers, text, times,
enums, and tuples, named tuples and frozen dataclasses of such.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pyarrow as pa

from tidegate.errors import TypeDeclarationError

#: Exact types whose values nobody can change. Arrow's objects are among them: what changes them makes new ones.
UNCHANGEABLE: frozenset[type] = frozenset(
    {
        *(bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range, slice, type),
        *(Decimal, Fraction, date, datetime, time, timedelta, timezone, ZoneInfo, UUID),
        *(FunctionType, BuiltinFunctionType),
        *(pa.RecordBatch, pa.Table, pa.Schema, pa.ChunkedArray),
    }
)
_all_unchangeable = UNCHANGEABLE.issuperset

Copier = Callable[[Any], Any]

_copiers: dict[type, Copier] = {}  #: of classes that were met


def copy_record(value: Any) -> Any:
    """A value that changes to `value` do not reach; `value` itself where nobody can change it.

    :raises TypeDeclarationError: when it is of a class that cannot be copied.
    """
    try:
        return _copy(value)
    except RecursionError:  # a record that holds itself: deepcopy remembers where it has been
        return _deep_copy(value)


def own_to_each(rows: list[Any], copy: Copier | None) -> list[Any]:
    """The same records, some of them several times, each of them one holder's alone: who is given one may change it."""
    if copy is None:
        return rows
    own, seen = [], set()
    for row in rows:  # all copies are made before anybody sees the first
        own.append(copy(row) if id(row) in seen else row)
        seen.add(id(row))
    return own


def _copy(value: Any) -> Any:
    kind = type(value)
    if kind in UNCHANGEABLE:
        return value
    copier = _copiers.get(kind)
    if copier is None:
        copier = _copiers[kind] = _copier(kind)
    return copier(value)


@lru_cache(maxsize=256)
def dataclass_copier(cls: type, fields: tuple[tuple[str, bool], ...]) -> Copier:
    """For instances of `cls` itself, whose fields are as declared; others are copied as `copy_record` does.

    :param fields: the name of each, and whether its values are of a type that nobody can change.
    """
    if _is_frozen(cls):
        return copy_record
    # Written out, as dataclasses write out __init__: a loop over the fields takes three times as long.
    lines = [
        f"        twin.{name} = value.{name}" if plain else f"        twin.{name} = copy_record(value.{name})"
        for name, plain in fields
    ]
    text = "\n".join(
        [
            "def copier(value):",
            "    if type(value) is not cls:",
            "        return copy_record(value)",
            "    twin = new(cls)",
            "    try:",
            *lines,
            "    except AttributeError:",  # a field has never been set; that is said where the record is encoded
            "        return copy_record(value)",
            "    return twin",
        ]
    )
    names: dict[str, Any] = {"cls": cls, "new": object.__new__, "copy_record": copy_record}
    exec(text, names)
    copier: Copier = names["copier"]
    return copier


def dict_copier(value: Any) -> Any:
    """For a dict whose values are of types that nobody can change; others are copied as `copy_record` does."""
    return value.copy() if type(value) is dict else copy_record(value)


def _copier(kind: type) -> Copier:
    """How instances of a class are copied. Its own ways of copying come first."""
    if issubclass(kind, enum.Enum | type):
        return _itself
    if kind in _OF_BUILT_INS:
        return _OF_BUILT_INS[kind]
    if _copies_in_its_own_way(kind):
        return _deep_copy
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _copy_named_tuple
    if dataclasses.is_dataclass(kind):
        has_slots = any(owner.__dict__.get("__slots__") for owner in kind.__mro__)
        if kind.__dictoffset__ == 0:
            return _copy_slots
        if not has_slots:
            return _copy_attributes
    return _deep_copy


def _is_frozen(cls: type) -> bool:
    return bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _copies_in_its_own_way(kind: type) -> bool:
    """Whether it says itself how it is copied or pickled."""
    hooks = ("__copy__", "__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__")
    return any(
        found is not getattr(object, hook, None) and getattr(found, "__module__", "") != "dataclasses"
        for hook in hooks
        if (found := getattr(kind, hook, None)) is not None
    )


def _itself(value: Any) -> Any:
    return value


def _copy_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    if _all_unchangeable(map(type, value.values())):
        return value.copy()  # keys can be hashed: nobody changes them
    return {key: _copy(part) for key, part in value.items()}


def _copy_list(value: list[Any]) -> list[Any]:
    return value.copy() if _all_unchangeable(map(type, value)) else [_copy(part) for part in value]


def _copy_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    if _all_unchangeable(map(type, value)):
        return value
    parts = [_copy(part) for part in value]
    return value if _are_the_same(parts, value) else tuple(parts)


def _copy_named_tuple(value: Any) -> Any:
    if _all_unchangeable(map(type, value)):
        return value
    parts = [_copy(part) for part in value]
    return value if _are_the_same(parts, value) else tuple.__new__(type(value), parts)


def _copy_attributes(value: Any) -> Any:
    """A dataclass without slots: its attributes, also those that are not fields."""
    held = value.__dict__
    parts = list(map(_copy, held.values()))
    if _is_frozen(type(value)) and _are_the_same(parts, held.values()):
        return value
    twin = object.__new__(type(value))
    twin.__dict__.update(zip(held, parts, strict=True))
    return twin


def _copy_slots(value: Any) -> Any:
    """A dataclass with slots alone."""
    names = [field.name for field in dataclasses.fields(value) if hasattr(value, field.name)]
    held = [getattr(value, name) for name in names]
    parts = list(map(_copy, held))
    if _is_frozen(type(value)) and _are_the_same(parts, held):
        return value
    twin = object.__new__(type(value))
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(twin, name, part)
    return twin


def _are_the_same(parts: list[Any], held: Iterable[Any]) -> bool:
    return all(part is one for part, one in zip(parts, held, strict=True))


def _deep_copy(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # __deepcopy__ and __reduce__ are user code
        kind = type(value)
        raise TypeDeclarationError(
            f"a record of type {kind.__module__}.{kind.__qualname__} cannot be copied ({type(error).__name__}: {error}). "
            "Records are copied between functions, so that each may change what it is given. Emit plain data (a dataclass, "
            "a dict, a tuple), give the class __deepcopy__, or set object_reuse where no function of the job changes a "
            "record that another one holds.",
            value=kind.__qualname__,
        ) from error


_OF_BUILT_INS: dict[type, Copier] = {
    dict: _copy_dict,
    list: _copy_list,
    tuple: _copy_tuple,
    set: set.copy,  # elements can be hashed: nobody changes them
    frozenset: _itself,
    bytearray: bytearray.copy,
    MappingProxyType: lambda value: MappingProxyType(_copy_dict(dict(value))),
}
