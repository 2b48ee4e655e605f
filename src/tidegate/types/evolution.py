"""Whether stored state can be read as the type that is declared now. Pure; driver, before anything runs.

    same          the same type
    converted     nothing is lost: a field was added with a default, removed or renamed (declared); a type was widened
    incompatible  refused, with both types

A renamed field says its old name: `total: int = dataclasses.field(metadata={"renamed_from": "sum"})`. Widened are: int to
float, a type to its Optional, a small Arrow integer or float to a larger one or to int and float. Types of keys never
change: state could not be found by them.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import TypeDeclarationError
from tidegate.types import DataType
from tidegate.types.arrow_types import ArrowType
from tidegate.types.containers import DataclassType, DictType, ListType, OptionalType, TupleType, old_name
from tidegate.types.type_names import TypeText, parse_type

_WIDENED = {("int", "float")}


class Fit(enum.Enum):
    SAME = "same"
    CONVERTED = "converted"
    INCOMPATIBLE = "incompatible"


@dataclass(frozen=True, slots=True)
class Evolution:
    """How stored values become values of the declared type; `notes` say what changes, or why it cannot."""

    fit: Fit
    notes: tuple[str, ...] = ()


_SAME = Evolution(Fit.SAME)


def evolve(stored: str, declared: DataType) -> Evolution:
    """From the text that metadata has to the type that the program declares."""
    if stored == declared.name:
        return _SAME
    try:
        return _evolve(parse_type(stored), declared, "")
    except TypeDeclarationError:
        return _incompatible("", f"{stored!r} cannot be told")


def _evolve(stored: TypeText, declared: DataType, where: str) -> Evolution:
    if stored.text == declared.name:
        return _SAME
    if isinstance(declared, OptionalType):
        if stored.kind == "optional":
            return _evolve(stored.parts[0], declared.inner, where)
        return _both(_converted(where, "may be None from now on"), _evolve(stored, declared.inner, where))
    if stored.kind == "optional":
        return _incompatible(where, f"{stored} may hold None, {declared.name} may not")
    if isinstance(declared, DataclassType) and stored.kind == "dataclass":
        return _fields(stored, declared, where)
    parts = _parts(declared)
    if parts is not None and stored.kind == parts[0] and len(stored.parts) == len(parts[1]):
        found = _SAME
        for old, new in zip(stored.parts, parts[1], strict=True):
            found = _both(found, _evolve(old, new, where))
        return found
    if (stored.text, declared.name) in _WIDENED or _is_wider(stored, declared):
        return _converted(where, f"{stored} widened to {declared.name}")
    return _incompatible(where, f"{stored} cannot become {declared.name}")


def _fields(stored: TypeText, declared: DataclassType, where: str) -> Evolution:
    found = _SAME
    taken = set()
    for name, field_type in declared.fields.items():
        place = f"{where}.{name}" if where else name
        before = name if name in stored.fields else old_name(declared.cls, name)
        if before in stored.fields:
            taken.add(before)
            if before != name:
                found = _both(found, _converted(place, f"renamed from {before!r}"))
            found = _both(found, _evolve(stored.fields[before], field_type, place))
        elif _has_default(declared.cls, name):
            found = _both(found, _converted(place, "added, with its default"))
        else:
            found = _both(found, _incompatible(place, "added without a default"))
    for name in stored.fields:
        if name not in taken:
            found = _both(found, _converted(f"{where}.{name}" if where else name, "dropped"))
    if found is _SAME:  # another name of the class, or another order
        return _converted(where, "another class with the same fields")
    return found


def _has_default(cls: type, name: str) -> bool:
    field = cls.__dataclass_fields__[name]  # type: ignore[attr-defined]
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _parts(declared: DataType) -> tuple[str, list[DataType]] | None:
    match declared:
        case ListType():
            return "list", [declared.element]
        case DictType():
            return "dict", [declared.key, declared.value]
        case TupleType():
            return "tuple", declared.parts
        case _:
            return None


def _is_wider(stored: TypeText, declared: DataType) -> bool:
    if stored.kind != "arrow":
        return False
    try:
        old = pa.type_for_alias(stored.text.removeprefix("arrow:"))
    except ValueError:
        return False
    new = declared.arrow
    if not isinstance(declared, ArrowType) and declared.name not in ("int", "float"):
        return False
    if pa.types.is_integer(old) and pa.types.is_integer(new):
        signed = pa.types.is_signed_integer(new)
        if pa.types.is_signed_integer(old):
            return signed and bool(old.bit_width <= new.bit_width)
        return bool(old.bit_width < new.bit_width) if signed else bool(old.bit_width <= new.bit_width)
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return bool(old.bit_width <= new.bit_width)
    return pa.types.is_integer(old) and bool(old.bit_width <= 32) and bool(pa.types.is_float64(new))


def _both(first: Evolution, second: Evolution) -> Evolution:
    order = [Fit.SAME, Fit.CONVERTED, Fit.INCOMPATIBLE]
    worse = max(first.fit, second.fit, key=order.index)
    if worse is Fit.SAME:
        return _SAME
    return Evolution(worse, (*first.notes, *second.notes))


def _converted(where: str, note: str) -> Evolution:
    return Evolution(Fit.CONVERTED, (f"{where}: {note}" if where else note,))


def _incompatible(where: str, note: str) -> Evolution:
    return Evolution(Fit.INCOMPATIBLE, (f"{where}: {note}" if where else note,))
