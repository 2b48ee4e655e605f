"""Values that a checkpoint stores as JSON: do they come back as they were? Pure; asked where they are handed in.

They travel as MessagePack, which holds more than JSON does, and rest as JSON: an int that is a key becomes text, bytes and
dates become text, a tuple a list, NaN nothing at all. Nobody would see it before a restore. So what would change is refused.

Guarantee: of a value that is not refused, msgspec's JSON, Python's own and MessagePack all give back the same value of the
same types.
"""

from __future__ import annotations

import datetime
import marshal
import math
from collections.abc import Iterator
from typing import Any

import msgspec

MAX_NESTING = 100  #: far below what decoders follow, and what anybody needs

_SMALLEST_INT, _LARGEST_INT = -(2**63), 2**64 - 1
_TOO_DEEP = f"it is nested deeper than {MAX_NESTING} levels; flatten it"


class NotJson(ValueError):
    """Says where the value would change, how, and what to write instead."""


def json_copy(value: Any) -> Any:
    """The value as it would come back: equal, of the same types, and nobody else's to change.

    :raises NotJson: when it would come back as something else.
    """
    try:
        text = msgspec.json.encode(value)
        msgspec.msgpack.encode(value)  # refuses integers that JSON would take
        copy = msgspec.json.decode(text)
        # Compared as bytes that hold the exact types: 1, 1.0 and True are equal, and so are a text and a member of an Enum.
        same = marshal.dumps(value, 2) == marshal.dumps(copy, 2)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        same = False
    if not same:
        raise NotJson(next(_faults(value, "", 0), "it would come back as something else"))
    if text.count(b"[") + text.count(b"{") > MAX_NESTING and _is_too_deep(value):
        raise NotJson(_TOO_DEEP)
    return copy


def _is_too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_NESTING):
        inner = (each.values() if type(each) is dict else each for each in level)
        level = [item for items in inner for item in items if type(item) is dict or type(item) is list]
        if not level:
            return False
    return True


def _faults(value: Any, place: str, depth: int) -> Iterator[str]:
    """From the outside in. `place`: how to get there from the value, as Python writes it."""
    if depth > MAX_NESTING:
        yield _TOO_DEEP
    elif type(value) is dict:
        for key, item in value.items():
            if fault := _fault_of_key(key):
                yield f"{_at(place)}{fault}"
            yield from _faults(item, f"{place}[{_shown(key)}]", depth + 1)
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from _faults(item, f"{place}[{index}]", depth + 1)
    elif fault := _fault_of_scalar(value):
        yield f"{_at(place)}{fault}"


def _fault_of_key(key: Any) -> str | None:
    if type(key) is str:
        return _fault_of_text(key, "the key")
    shown = f"the key {_shown(key)} is {_kind(key)}"
    if isinstance(key, int | float) and not isinstance(key, bool):
        return f"{shown}, and would come back as text; write str(key), and turn it back when the split is added"
    return f"{shown}, and keys must be text; write a text, or a list of [key, value] pairs"


def _fault_of_scalar(value: Any) -> str | None:
    kind = type(value)
    shown = f"{_shown(value)} is {_kind(value)}"
    if value is None or kind is bool:
        return None
    if kind is str:
        return _fault_of_text(value, "the text")
    if kind is int:
        fits = _SMALLEST_INT <= value <= _LARGEST_INT
        return None if fits else f"{shown} beyond 64 bits; write str(value)"
    if kind is float:
        return None if math.isfinite(value) else f"{shown}, and would come back as None; write None or a text"
    if kind is tuple:
        return f"{shown}, and would come back as a list; write list(value)"
    if isinstance(value, bytes | bytearray | memoryview):
        return (
            f"{shown}, and would come back as text; write value.hex(), and bytes.fromhex(text) when the split is added"
        )
    if isinstance(value, datetime.date | datetime.time):
        return (
            f"{shown}, and would come back as text; write value.isoformat(), and turn it back when the split is added"
        )
    if isinstance(value, set | frozenset):
        return f"{shown}, and would come back as a list; write sorted(value)"
    for plain in (int, float, str, dict, list):
        if isinstance(value, plain):
            return f"{shown}, and would come back as a plain {plain.__name__}; write {plain.__name__}(value)"
    return f"{shown}, which JSON does not have; write the numbers and texts that it is made of"


def _fault_of_text(text: str, what: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return (
            f"{what} {_shown(text)} is not Unicode (it holds half of a surrogate pair); write os.fsencode(text).hex()"
        )
    return None


def _at(place: str) -> str:
    return f"at {place}, " if place else ""


def _kind(value: Any) -> str:
    name = type(value).__qualname__
    return f"an {name}" if name[:1] in "aeiouAEIOU" else f"a {name}"


def _shown(value: Any) -> str:
    """Short, and text that can be sent and printed, whatever it is."""
    try:
        text = ascii(value)
    except Exception:  # somebody's __repr__, or too deep for any
        text = "a value that cannot be shown"
    return text if len(text) <= 60 else f"{text[:57]}..."


__all__ = ["MAX_NESTING", "NotJson", "json_copy"]
