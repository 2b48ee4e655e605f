"""Memory sizes as users write them: "20 kb", "2mb". As in Flink, a kb is 1024 bytes."""

from __future__ import annotations

import re

from tidegate.errors import ConfigurationError

Size = str

_PATTERN = re.compile(r"(\d+)\s*([a-z]*)", re.IGNORECASE)
_UNITS = {
    "": 1, "b": 1, "bytes": 1,
    "k": 1 << 10, "kb": 1 << 10, "kibibytes": 1 << 10,
    "m": 1 << 20, "mb": 1 << 20, "mebibytes": 1 << 20,
    "g": 1 << 30, "gb": 1 << 30, "gibibytes": 1 << 30,
    "t": 1 << 40, "tb": 1 << 40, "tebibytes": 1 << 40,
}  # fmt: skip


def size_bytes(text: Size, what: str) -> int:
    """:raises ConfigurationError: naming `what`, for anything that is not a size."""
    match = _PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ConfigurationError(
            f'{what}: {text!r} is not a memory size. Write a number and a unit, like "20 kb" or "2mb".'
        )
    return int(match[1]) * unit
