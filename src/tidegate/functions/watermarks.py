"""Event time: where a record's timestamp is, and how late records may come. What the user writes; runs on the executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Union

from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError, ContractError

Timestamp = Union[str, Callable[[Any], Any]]
NO_TIMESTAMP = -(2**63)  #: what an assigner is told the record had before: nothing


@dataclass(frozen=True, slots=True)
class WatermarkStrategy:
    """How watermarks follow from timestamps.

        tg.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp="created_at")
        tg.WatermarkStrategy.monotonous(timestamp=lambda event: event.millis).with_idleness("30s")

    A timestamp is a column name or a function; it gives milliseconds since the epoch, or a datetime (naive ones are UTC).
    PyFlink's way to say the same: `for_bounded_out_of_orderness(...).with_timestamp_assigner(...)`.
    """

    timestamp: Timestamp | None = None  #: None: not said yet
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

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Timestamps only grow; `with_timestamp_assigner` says where they are."""
        return cls()

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: Duration) -> WatermarkStrategy:
        """A record may come after others that are up to `bound` younger; `with_timestamp_assigner` says where they are."""
        return cls(None, int(seconds(bound, "for_bounded_out_of_orderness") * 1000))

    def with_timestamp_assigner(self, assigner: TimestampAssigner | Callable[[Any, int], Any]) -> WatermarkStrategy:
        """`assigner(record, NO_TIMESTAMP)`, or that of an object's `extract_timestamp`, gives the record's timestamp."""
        extract = assigner.extract_timestamp if isinstance(assigner, TimestampAssigner) else assigner
        return replace(self, timestamp=lambda record: extract(record, NO_TIMESTAMP))

    def check(self) -> None:
        """:raises ConfigurationError: for a strategy that does not say where timestamps are."""
        if self.timestamp is None:
            raise ConfigurationError(
                "the WatermarkStrategy does not say where a record's timestamp is: add "
                ".with_timestamp_assigner(lambda record, before: record.millis), or give timestamp= a column name or a function"
            )

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy:
        """A subtask without records for this long holds nobody back."""
        idle_after_s = seconds(timeout, "with_idleness")
        if idle_after_s <= 0:
            raise ConfigurationError("with_idleness needs a time above 0")
        return replace(self, idle_after_s=idle_after_s)


class TimestampAssigner:
    """Where a record's timestamp is, as an object: PyFlink's way to write a function."""

    def extract_timestamp(self, value: Any, record_timestamp: int, /) -> Any:
        """Milliseconds since the epoch, or a datetime."""
        raise NotImplementedError(f"{type(self).__name__} must define extract_timestamp(self, value, record_timestamp)")


def milliseconds(value: Any) -> int:
    """A timestamp as the user gave it. :raises TypeError: for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, datetime):
        return _of_datetime(value)
    if isinstance(value, float):
        return int(value)
    raise ContractError(f"a timestamp must be milliseconds since the epoch or a datetime, not {type(value).__name__}")


def _of_datetime(value: datetime) -> int:
    offset = value.utcoffset()
    plain = value.replace(tzinfo=None)
    if offset is not None:
        plain -= offset
    return int((plain - datetime(1970, 1, 1)).total_seconds() * 1000)
