"""The text form of types, taken apart: metadata stores `dataclass Order{id:int,lines:list[str]}`. Pure.

Every `DataType.name` and `KeyType.name` can be parsed, and of key types the text leads back to the type itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Optional
from uuid import UUID

from tidegate.errors import TypeDeclarationError
from tidegate.types.base import NaiveDatetime

_SCALARS: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "float": float,
    "Decimal": Decimal,
    "str": str,
    "bytes": bytes,
    "date": date,
    "datetime": datetime,
    "naive datetime": NaiveDatetime,
    "UUID": UUID,
}
_CONTAINERS = ("optional", "list", "dict", "tuple", "map")


@dataclass(frozen=True, slots=True)
class TypeText:
    """A type as its text says it. `parts` of a container in order; `fields` of a dataclass."""

    kind: str  #: a scalar's name, "optional", "list", "dict", "tuple", "map", "dataclass", "arrow", "pickled", "any"
    text: str
    parts: tuple[TypeText, ...] = ()
    fields: dict[str, TypeText] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.text


def parse_type(text: str) -> TypeText:
    """:raises TypeDeclarationError: when the text is not a type's."""
    if text in _SCALARS or text in ("pickled", "any"):
        return TypeText(text, text)
    if text.startswith("arrow:"):
        return TypeText("arrow", text)
    for container in _CONTAINERS:
        if text.startswith(f"{container}[") and text.endswith("]"):
            inner = _split(text[len(container) + 1 : -1])
            return TypeText(container, text, tuple(map(parse_type, inner)))
    if text.startswith("dataclass ") and text.endswith("}") and "{" in text:
        fields = {}
        for part in _split(text[text.index("{") + 1 : -1]):
            name, _, of = part.partition(":")
            fields[name] = parse_type(of)
        return TypeText("dataclass", text, fields=fields)
    raise TypeDeclarationError(f"{text!r} is not a type's text form")


def key_annotation(text: str) -> Any:
    """The annotation whose key type has this name."""
    return _annotation(parse_type(text))


def _annotation(parsed: TypeText) -> Any:
    if parsed.kind in _SCALARS:
        return _SCALARS[parsed.kind]
    if parsed.kind == "any":
        return Any
    if parsed.kind == "optional":
        return Optional[_annotation(parsed.parts[0])]  # noqa: UP045 - | is not defined for an Annotated type
    if parsed.kind == "tuple":
        return tuple[tuple(map(_annotation, parsed.parts))]  # type: ignore[misc]
    raise TypeDeclarationError(f"{parsed.text!r} is not a type of keys")


def _split(text: str) -> list[str]:
    """At the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        if letter in "[{(<":
            depth += 1
        elif letter in "]})>":
            depth -= 1
        elif letter == "," and not depth:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]
