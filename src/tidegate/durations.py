"""Durations as users write them: "500ms", "10 s", "2min", or a timedelta. A bare number has no unit and is refused."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Union

from tidegate.errors import ConfigurationError

Duration = Union[str, timedelta]

_UNITS = {
    "ms": 0.001, "milli": 0.001, "millis": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip
_PATTERN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def seconds(duration: Duration, what: str) -> float:
    """:raises ConfigurationError: naming `what`, for anything that is not a duration."""
    if isinstance(duration, timedelta):
        value = duration.total_seconds()
    elif isinstance(duration, str):
        match = _PATTERN.fullmatch(duration)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise ConfigurationError(
                f'{what}: {duration!r} is not a duration. Write a number and a unit, like "500ms" or "10s".'
            )
        value = float(match[1]) * unit
    else:
        raise ConfigurationError(
            f'{what}: {duration!r} has no unit. Write a string like "10s" or "500ms", or a datetime.timedelta.'
        )
    if value < 0:
        raise ConfigurationError(f"{what}: {duration!r} is negative")
    return value


def duration_ms(duration: Duration, what: str) -> int:
    """The same in whole ms. To be used wherever ms are wanted: "1.001s" times 1000 is 1000.9999999999999 in floats."""
    return round(seconds(duration, what) * 1000)
