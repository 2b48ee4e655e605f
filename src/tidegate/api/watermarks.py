"""Event time: where a record's timestamp is, and how late records may come. What the user writes; runs on the executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Union

from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError

Timestamp = Union[str, Callable[[Any], Any]]


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """How watermarks follow from timestamps.

        tg.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="created_at")
        tg.WatermarkStrategy.monotonous(timestamp=lambda event: event.millis).with_idleness("30s")

    A timestamp is a column name or a function; it gives milliseconds since the epoch, or a datetime (naive ones are UTC).
    """

    timestamp: Timestamp
    out_of_orderness_ms: int = 0
    idle_after_s: float | None = None

    @classmethod
    def monotonous(cls, *, timestamp: Timestamp) -> WatermarkStrategy:
        """Timestamps only grow within a source subtask's records."""
        return cls(timestamp)

    @classmethod
    def bounded_out_of_orderness(cls, bound: Duration, *, timestamp: Timestamp) -> WatermarkStrategy:
        """A record may come after others that are up to `bound` younger."""
        return cls(timestamp, int(seconds(bound, "bounded_out_of_orderness") * 1000))

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy:
        """A subtask without records for this long holds nobody back."""
        idle_after_s = seconds(timeout, "with_idleness")
        if idle_after_s <= 0:
            raise ConfigurationError("with_idleness needs a time above 0")
        return replace(self, idle_after_s=idle_after_s)


def milliseconds(value: Any) -> int:
    """A timestamp as the user gave it. :raises TypeError: for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        return _of_datetime(value)
    if isinstance(value, float):
        return int(value)
    raise TypeError(f"a timestamp must be milliseconds since the epoch or a datetime, not {type(value).__name__}")


def _of_datetime(value: datetime) -> int:
    offset = value.utcoffset()
    plain = value.replace(tzinfo=None)
    if offset is not None:
        plain -= offset
    return int((plain - datetime(1970, 1, 1)).total_seconds() * 1000)
