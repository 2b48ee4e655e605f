"""The type that values have in common. Pure; both sides."""

from __future__ import annotations

import dataclasses
from typing import Any

from tidegate.errors import TypeDeclarationError
from tidegate.types.records import record_type

SCALARS = (bool, int, float, str)  #: what is inferred; exact types, since True is an int too


def inferred_annotation(items: list[Any]) -> Any:
    """The annotation that all items fit: one scalar type, tuples of one shape of scalars, or one dataclass; else None."""
    if not items:
        return None
    annotation = _common_type(items)
    if annotation is None:
        return None
    try:
        # An int beyond 64 bits, a None in a dataclass field: still a fine untyped stream.
        record_type(annotation).to_batch(items)
    except TypeDeclarationError:
        return None
    return annotation


def written(annotation: Any) -> str:
    """As a program writes it."""
    return (
        annotation.__qualname__
        if isinstance(annotation, type) and not hasattr(annotation, "__args__")
        else str(annotation)
    )


def _common_type(items: list[Any]) -> Any:
    kinds = {type(item) for item in items}
    if len(kinds) != 1:
        return None
    (kind,) = kinds
    if kind in SCALARS or dataclasses.is_dataclass(kind):
        return kind
    if kind is tuple and len({len(item) for item in items}) == 1 and items[0]:
        columns = [_common_type(list(column)) for column in zip(*items, strict=True)]
        if all(column in SCALARS for column in columns):
            return tuple.__class_getitem__(tuple(columns))
    return None
