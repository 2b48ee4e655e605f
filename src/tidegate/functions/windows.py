"""Windows, and which of them a record belongs to. Pure; what users name in `window(...)`.

A window is a run of time: from `start`, which belongs to it, to `end`, which does not. The global window is all of time.

    tumbling     size             windows side by side
    sliding      size, slide      a window of `size` begins every `slide`
    cumulative   size, step       all windows of one `size` begin together; one ends at each `step`
    session      gap              as long as a key's records are no more than `gap` apart; windows merge
    global                        one; a trigger says when it fires
    count        size, slide      the last `size` records of a key, every `slide` records

Aligned windows (the first three) are the same for all keys, and so are their slices: the runs of time in which no window
begins or ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from tidegate.durations import Duration, duration_ms
from tidegate.errors import ConfigurationError
from tidegate.functions.evictors import CountEvictor, Evictor
from tidegate.functions.triggers import (
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
)
from tidegate.protocol.watermarks import MAX_WATERMARK, MIN_WATERMARK


class TimeWindow(NamedTuple):
    """A run of time, in ms since 1970: `start` belongs to it, `end` does not.

    >>> tg.TimeWindow(0, 1000).max_timestamp()
    999
    """

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last moment that belongs to it."""
        return self.end - 1

    def touches(self, other: TimeWindow) -> bool:
        """Whether two sessions are one: they overlap, or one begins where the other ends."""
        return self.start <= other.end and other.start <= self.end

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window that has both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))


GLOBAL_WINDOW = TimeWindow(MIN_WATERMARK, MAX_WATERMARK)


class WindowAssigner:
    """Which windows a record belongs to. Of your own: `assign_windows`, and what the class says of itself.

    >>> class Nights(tg.WindowAssigner):
    ...     is_event_time = True
    ...     def assign_windows(self, value, timestamp):
    ...         noon = timestamp - timestamp % 86_400_000 + 43_200_000
    ...         return [tg.TimeWindow(noon - 86_400_000, noon) if timestamp < noon else tg.TimeWindow(noon, noon + 86_400_000)]
    >>> Nights().assign_windows("a", 0)
    [TimeWindow(start=-43200000, end=43200000)]
    """

    is_event_time: bool = True  #: False: `timestamp` is the time of day, and windows close by the clock
    merges: ClassVar[bool] = False  #: windows of a key that touch become one
    _words = ""  #: what it was made with, as the user has written it

    def assign_windows(self, value: Any, timestamp: int, /) -> Iterable[TimeWindow]:
        """The windows of a record. They must depend on the record alone: it may come again after a failure."""
        raise NotImplementedError(f"{type(self).__name__} must define assign_windows(self, value, timestamp)")

    def default_trigger(self) -> Trigger:
        """What fires the windows where the user names no trigger."""
        return EventTimeTrigger() if self.is_event_time else ProcessingTimeTrigger()

    def default_evictor(self) -> Evictor | None:
        """What takes records out of the windows where the user names no evictor."""
        return None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._words})"


class AlignedWindows(WindowAssigner):
    """Windows that are the same for all keys. A subclass says where they begin and end."""

    slice_ms: int  #: the length of a slice
    offset_ms: int

    @property
    def windows_are_slices(self) -> bool:
        """Whether each window is one slice, and no other has it."""
        return False

    def slice_end(self, timestamp: int) -> int:
        """Of the slice that has this moment."""
        return timestamp - (timestamp - self.offset_ms) % self.slice_ms + self.slice_ms

    def slice_ends(self, timestamps: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The same of many moments."""
        ends: np.ndarray[Any, Any] = timestamps - (timestamps - self.offset_ms) % self.slice_ms + self.slice_ms
        return ends

    def next_end(self, slice_end: int, after: int) -> int | None:
        """The first end after that moment of a window that has the slice; None when there is none."""
        raise NotImplementedError

    def last_end(self, slice_end: int) -> int:
        """When the last window ends that has the slice. MIN_WATERMARK for a slice between two windows."""
        raise NotImplementedError

    def start_of(self, end: int) -> int:
        """Of the window that ends then."""
        raise NotImplementedError


class _Sliding(AlignedWindows):
    """Also tumbling, where `slide` is `size`."""

    def __init__(self, size: Duration, slide: Duration, offset: Duration = "0s") -> None:
        self.size_ms = _positive(size, "size", self)
        self.slide_ms = _positive(slide, "slide", self)
        self.offset_ms = _offset(offset, self.slide_ms, self)
        self.slice_ms = math.gcd(self.size_ms, self.slide_ms)
        self._words = _listed(size, slide, *_said(offset))

    def assign_windows(self, value: Any, timestamp: int, /) -> list[TimeWindow]:
        last = timestamp - (timestamp - self.offset_ms) % self.slide_ms
        size = self.size_ms
        return [TimeWindow(start, start + size) for start in range(last, timestamp - size, -self.slide_ms)]

    @property
    def windows_are_slices(self) -> bool:
        return self.size_ms == self.slide_ms

    def next_end(self, slice_end: int, after: int) -> int | None:
        earliest = max(slice_end, after + 1)
        end = earliest + (self.offset_ms + self.size_ms - earliest) % self.slide_ms
        return end if end - self.size_ms <= slice_end - self.slice_ms else None

    def last_end(self, slice_end: int) -> int:
        start = slice_end - self.slice_ms
        end = start - (start - self.offset_ms) % self.slide_ms + self.size_ms
        return end if end >= slice_end else MIN_WATERMARK

    def start_of(self, end: int) -> int:
        return end - self.size_ms


class _Tumbling(_Sliding):
    def __init__(self, size: Duration, offset: Duration = "0s") -> None:
        super().__init__(size, size, offset)
        self._words = _listed(size, *_said(offset))

    def assign_windows(self, value: Any, timestamp: int, /) -> list[TimeWindow]:
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        return [TimeWindow(start, start + self.size_ms)]

    @classmethod
    def of(cls, size: Duration, offset: Duration = "0s") -> _Tumbling:
        """As PyFlink writes it."""
        return cls(size, offset)


class TumblingEventTimeWindows(_Tumbling):
    """Windows of event time, side by side: `TumblingEventTimeWindows("1h", offset="15min")` begin at 0:15, 1:15, ...

    `SELECT *, time - (time - $offset) % $size AS window_start, window_start + $size AS window_end FROM input`

    >>> tg.TumblingEventTimeWindows("10s").assign_windows("a", 12_000)
    [TimeWindow(start=10000, end=20000)]
    """


class TumblingProcessingTimeWindows(_Tumbling):
    """Windows of the time of day, side by side.

    >>> tg.TumblingProcessingTimeWindows("10s").is_event_time
    False
    """

    is_event_time = False


class SlidingEventTimeWindows(_Sliding):
    """A window of `size` begins every `slide`: `SlidingEventTimeWindows("1min", "1s")`.

    `SELECT *, window_start + $size AS window_end FROM (
    SELECT *, unnest(range(time - (time - $offset) % $slide, time - $size, -$slide)) AS window_start FROM input)`

    >>> tg.SlidingEventTimeWindows("10s", "5s").assign_windows("a", 12_000)
    [TimeWindow(start=10000, end=20000), TimeWindow(start=5000, end=15000)]
    """

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = "0s") -> SlidingEventTimeWindows:
        """As PyFlink writes it."""
        return cls(size, slide, offset)


class SlidingProcessingTimeWindows(_Sliding):
    """The same by the time of day.

    >>> tg.SlidingProcessingTimeWindows("10s", "5s").slice_ms
    5000
    """

    is_event_time = False

    @classmethod
    def of(cls, size: Duration, slide: Duration, offset: Duration = "0s") -> SlidingProcessingTimeWindows:
        """As PyFlink writes it."""
        return cls(size, slide, offset)


class CumulativeEventTimeWindows(AlignedWindows):
    """What has come so far: windows that begin together every `size`, of which one ends at each `step`.

    `SELECT *, window_end - 1 - (window_end - 1 - $offset) % $size AS window_start FROM (SELECT *, unnest(range(
    time - (time - $offset) % $step + $step, time - (time - $offset) % $size + $size + 1, $step)) AS window_end FROM input)`

    >>> tg.CumulativeEventTimeWindows("1d", "8h").assign_windows("a", 3_600_000 * 9)
    [TimeWindow(start=0, end=57600000), TimeWindow(start=0, end=86400000)]
    """

    def __init__(self, size: Duration, step: Duration, offset: Duration = "0s") -> None:
        self.size_ms = _positive(size, "size", self)
        self.slice_ms = _positive(step, "step", self)
        self.offset_ms = _offset(offset, self.size_ms, self)
        self._words = _listed(size, step, *_said(offset))
        if self.size_ms % self.slice_ms:
            raise ConfigurationError(
                f"{type(self).__name__}: the size must be a whole number of steps, and {size!r} is not one of {step!r}"
            )

    def assign_windows(self, value: Any, timestamp: int, /) -> list[TimeWindow]:
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        return [
            TimeWindow(start, end) for end in range(self.slice_end(timestamp), start + self.size_ms + 1, self.slice_ms)
        ]

    def next_end(self, slice_end: int, after: int) -> int | None:
        earliest = max(slice_end, after + 1)
        end = earliest + (self.offset_ms - earliest) % self.slice_ms
        return end if end <= self.last_end(slice_end) else None

    def last_end(self, slice_end: int) -> int:
        return self.start_of(slice_end) + self.size_ms

    def start_of(self, end: int) -> int:
        return end - 1 - (end - 1 - self.offset_ms) % self.size_ms


class CumulativeProcessingTimeWindows(CumulativeEventTimeWindows):
    """The same by the time of day.

    >>> tg.CumulativeProcessingTimeWindows("1d", "1h").is_event_time
    False
    """

    is_event_time = False


class EventTimeSessionWindows(WindowAssigner):
    """A session of a key: it continues while the next record is no more than `gap` later.

    `SELECT *, min(time) OVER w AS window_start, max(time) OVER w + $gap AS window_end FROM (
    SELECT *, sum(begins::int) OVER (PARTITION BY key ORDER BY time ROWS UNBOUNDED PRECEDING) AS session FROM (
    SELECT *, coalesce(time - lag(time) OVER (PARTITION BY key ORDER BY time) > $gap, true) AS begins FROM input))
    WINDOW w AS (PARTITION BY key, session)`

    The gap may depend on the record: a function of it that gives a duration, or milliseconds.

    >>> tg.EventTimeSessionWindows("30s").assign_windows("a", 12_000)
    [TimeWindow(start=12000, end=42000)]
    """

    merges = True

    def __init__(self, gap: Duration | Callable[[Any], Duration | int]) -> None:
        #: None where each record has its own
        self.gap_ms: int | None = None if callable(gap) else _positive(gap, "gap", self)
        self._gap_of: Callable[[Any], Duration | int] | None = gap if callable(gap) else None
        self._words = getattr(gap, "__name__", repr(gap))

    @classmethod
    def with_gap(cls, gap: Duration) -> EventTimeSessionWindows:
        """As PyFlink writes it."""
        return cls(gap)

    def assign_windows(self, value: Any, timestamp: int, /) -> list[TimeWindow]:
        if self._gap_of is None:
            assert self.gap_ms is not None
            return [TimeWindow(timestamp, timestamp + self.gap_ms)]
        gap = self._gap_of(value)
        gap_ms = gap if isinstance(gap, int) else duration_ms(gap, "the gap of a session")
        if gap_ms <= 0:
            raise ConfigurationError(f"the gap of a session must be more than 0, and that of {value!r} is {gap!r}")
        return [TimeWindow(timestamp, timestamp + gap_ms)]


class ProcessingTimeSessionWindows(EventTimeSessionWindows):
    """The same by the time of day.

    >>> tg.ProcessingTimeSessionWindows("30s").is_event_time
    False
    """

    is_event_time = False


class GlobalWindows(WindowAssigner):
    """One window for all time. It fires when its trigger says so, and without one never.

    >>> tg.GlobalWindows().assign_windows("a", 0) == [tg.GLOBAL_WINDOW]
    True
    """

    is_event_time = False

    def assign_windows(self, value: Any, timestamp: int, /) -> list[TimeWindow]:
        return [GLOBAL_WINDOW]

    def default_trigger(self) -> Trigger:
        return NeverTrigger()


class CountWindows(GlobalWindows):
    """`size` records of a key; with `slide`, the last `size` of them every `slide` records.

    >>> tg.CountWindows(100, slide=10)
    CountWindows(100, slide=10)
    """

    def __init__(self, size: int, slide: int | None = None) -> None:
        for what, number in (("size", size), ("slide", size if slide is None else slide)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise ConfigurationError(f"CountWindows: {what} must be a positive integer, not {number!r}")
        self.size = size
        self.slide = slide
        self._words = f"{size}" if slide is None else f"{size}, slide={slide}"

    def default_trigger(self) -> Trigger:
        return CountTrigger(self.size).purging() if self.slide is None else CountTrigger(self.slide)

    def default_evictor(self) -> Evictor | None:
        return None if self.slide is None else CountEvictor(self.size)


def _listed(*given: Any) -> str:
    return ", ".join(map(repr, given))


def _said(offset: Duration) -> tuple[Duration, ...]:
    return () if offset == "0s" else (offset,)


def _positive(duration: Duration, what: str, owner: object) -> int:
    name = type(owner).__name__
    ms = duration_ms(duration, f"{name}: {what}")
    if ms < 1:
        raise ConfigurationError(f"{name}: {what} must be at least 1 ms, not {duration!r}")
    return ms


def _offset(duration: Duration, period_ms: int, owner: object) -> int:
    name = type(owner).__name__
    ms = duration_ms(duration, f"{name}: offset")
    if ms >= period_ms:
        raise ConfigurationError(f"{name}: the offset must be less than the {period_ms} ms after which windows repeat")
    return ms
