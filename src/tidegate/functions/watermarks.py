"""Event time: where a record's timestamp is, and how late records may come. What the user writes; runs on the executors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Union

from tidegate.durations import Duration, duration_ms, seconds
from tidegate.errors import ConfigurationError, ContractError
from tidegate.types.base import is_numpy_integer

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
    alignment: Alignment | None = None
    generator: Callable[[], WatermarkGenerator] | None = None  #: makes watermarks in place of `out_of_orderness_ms`

    @classmethod
    def monotonous(cls, *, timestamp: Timestamp) -> WatermarkStrategy:
        """Timestamps only grow within a source subtask's records.

        >>> clicks = env.from_collection([("ann", 1000), ("bob", 3000)], uid="clicks", type=tuple[str, int])
        >>> strategy = tg.WatermarkStrategy.monotonous(timestamp=lambda click: click[1])
        >>> timed = clicks.assign_timestamps_and_watermarks(strategy)
        """
        return cls(timestamp)

    @classmethod
    def bounded_out_of_orderness(cls, bound: Duration, *, timestamp: Timestamp) -> WatermarkStrategy:
        """A record may come after others that are up to `bound` younger.

        >>> clicks = env.from_collection([("ann", 1000), ("bob", 3000)], uid="clicks", type=tuple[str, int])
        >>> strategy = tg.WatermarkStrategy.bounded_out_of_orderness("5s", timestamp=lambda click: click[1])
        >>> timed = clicks.assign_timestamps_and_watermarks(strategy)
        """
        return cls(timestamp, duration_ms(bound, "bounded_out_of_orderness"))

    @classmethod
    def for_monotonous_timestamps(cls) -> WatermarkStrategy:
        """Timestamps only grow; `with_timestamp_assigner` says where they are.

        >>> strategy = tg.WatermarkStrategy.for_monotonous_timestamps()
        >>> strategy = strategy.with_timestamp_assigner(lambda click, before: click[1])
        """
        return cls()

    @classmethod
    def for_bounded_out_of_orderness(cls, bound: Duration) -> WatermarkStrategy:
        """A record may come after others that are up to `bound` younger; `with_timestamp_assigner` says where they are.

        >>> strategy = tg.WatermarkStrategy.for_bounded_out_of_orderness("5s")
        >>> strategy = strategy.with_timestamp_assigner(lambda click, before: click[1])
        """
        return cls(None, duration_ms(bound, "for_bounded_out_of_orderness"))

    @classmethod
    def for_generator(
        cls, generator: Callable[[], WatermarkGenerator], *, timestamp: Timestamp | None = None
    ) -> WatermarkStrategy:
        """Watermarks of your own: `generator` makes a WatermarkGenerator for each split that a subtask reads (for the subtask,
        where its source does not tell splits apart).

        >>> class Marked(tg.WatermarkGenerator):
        ...     def on_event(self, event, timestamp, output):
        ...         if event[0] == "end of second":
        ...             output.emit_watermark(timestamp)
        >>> strategy = tg.WatermarkStrategy.for_generator(Marked, timestamp=lambda event: event[1])
        >>> strategy.timestamp(("end of second", 1000))
        1000
        """
        if not callable(generator):
            raise ConfigurationError(
                "for_generator needs a class or a function that makes a WatermarkGenerator, as MyGenerator"
            )
        return cls(timestamp, generator=generator)

    def with_timestamp_assigner(self, assigner: TimestampAssigner | Callable[[Any, int], Any]) -> WatermarkStrategy:
        """`assigner(record, NO_TIMESTAMP)`, or that of an object's `extract_timestamp`, gives the record's timestamp.

        >>> class ClickTime(tg.TimestampAssigner):
        ...     def extract_timestamp(self, click, before):
        ...         return click[1]
        >>> strategy = tg.WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ClickTime())
        >>> strategy.timestamp(("ann", 1000))
        1000
        """
        extract = assigner.extract_timestamp if isinstance(assigner, TimestampAssigner) else assigner
        return replace(self, timestamp=lambda record: extract(record, NO_TIMESTAMP))

    def check(self) -> None:
        """:raises ConfigurationError: for a strategy that does not say where timestamps are.

        >>> tg.WatermarkStrategy.monotonous(timestamp="created_at").check()
        """
        if self.timestamp is None:
            raise ConfigurationError(
                "the WatermarkStrategy does not say where a record's timestamp is: add "
                ".with_timestamp_assigner(lambda record, before: record.millis), or give timestamp= a column name or a function"
            )

    def with_idleness(self, timeout: Duration) -> WatermarkStrategy:
        """A subtask without records for this long holds nobody back.

        >>> tg.WatermarkStrategy.monotonous(timestamp="created_at").with_idleness("30s").idle_after_s
        30.0
        """
        idle_after_s = seconds(timeout, "with_idleness")
        if idle_after_s <= 0:
            raise ConfigurationError("with_idleness needs a time above 0")
        return replace(self, idle_after_s=idle_after_s)

    def with_watermark_alignment(self, group: str, max_drift: Duration) -> WatermarkStrategy:
        """Sources of one group stay together: one whose watermark is more than `max_drift` above the lowest of the group reads
        nothing until that has come closer. For joins of a fast stream with a slow one, whose state grows by what is between
        them. Only right after the source, with its parallelism.

        >>> strategy = tg.WatermarkStrategy.monotonous(timestamp="created_at").with_watermark_alignment("orders", "20s")
        >>> strategy.alignment.max_drift_ms
        20000
        """
        if not isinstance(group, str) or not group:
            raise ConfigurationError(f"with_watermark_alignment: the group is a name, not {group!r}")
        drift_ms = duration_ms(max_drift, "with_watermark_alignment")
        return replace(self, alignment=Alignment(group, drift_ms))


@dataclass(frozen=True, slots=True)
class Alignment:
    """With which other sources one stays together, and how closely."""

    group: str
    max_drift_ms: int


class WatermarkOutput:
    """Where a generator says what it knows of its split."""

    __slots__ = ("idle", "watermark")

    def __init__(self) -> None:
        self.watermark: int | None = None  #: the highest of this call
        self.idle = False

    def emit_watermark(self, watermark: float | datetime) -> None:
        """No record up to this time (ms, or a datetime) will come any more. Ends idleness. One below an earlier one changes
        nothing."""
        given = milliseconds(watermark)
        self.watermark = given if self.watermark is None else max(self.watermark, given)
        self.idle = False

    def mark_idle(self) -> None:
        """This split holds nobody back, until its next watermark."""
        self.idle = True


class WatermarkGenerator:
    """Watermarks of your own, for one split: after each record (punctuated), every 0.2 s (periodic), or both.

        class Marked(tg.WatermarkGenerator):
            def on_event(self, event, timestamp, output):
                if event.is_last_of_its_second:
                    output.emit_watermark(timestamp)

    It begins anew in each attempt; what was said before is restored, and never goes back. What it says after a record leaves
    after the batch that the record came in.
    """

    def on_event(self, value: Any, timestamp: int, output: WatermarkOutput, /) -> None:
        """After each record; `timestamp` in ms."""

    def on_periodic_emit(self, output: WatermarkOutput, /) -> None:
        """Every 0.2 s, also while no record comes."""


PERIOD_S = 0.2  #: between two calls of on_periodic_emit


class TimestampAssigner:
    """Where a record's timestamp is, as an object: PyFlink's way to write a function."""

    def extract_timestamp(self, value: Any, record_timestamp: int, /) -> Any:
        """Milliseconds since the epoch, or a datetime."""
        raise NotImplementedError(f"{type(self).__name__} must define extract_timestamp(self, value, record_timestamp)")


def milliseconds(value: Any) -> int:
    """A timestamp as the user gave it. :raises TypeError: for anything else."""
    if type(value) is int:
        return value
    if isinstance(value, datetime):
        return _of_datetime(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return math.floor(value)
    if is_numpy_integer(value):
        return int(value)
    raise ContractError(f"a timestamp must be milliseconds since the epoch or a datetime, not {type(value).__name__}")


def _of_datetime(value: datetime) -> int:
    offset = value.utcoffset()
    plain = value.replace(tzinfo=None)
    if offset is not None:
        plain -= offset
    return (plain - datetime(1970, 1, 1)) // timedelta(milliseconds=1)
