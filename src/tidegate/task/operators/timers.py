"""What a function sees of time: register and delete timers, the watermark, the clock. Executor; the task's thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tidegate.ids import EVENT_TIMERS, PROCESSING_TIMERS
from tidegate.protocol.watermarks import MIN_WATERMARK
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.heap_tables import NO_KEY, refuse_without_key
from tidegate.state.timers import TimerQueue


@dataclass(frozen=True, slots=True)
class Time:
    """The slot's clocks."""

    clock: Callable[[], float]  #: monotonic seconds
    processing_time: Callable[[], float]  #: seconds since the epoch that never go back (task/processing_time.py)

    def now_ms(self) -> int:
        return int(self.processing_time() * 1000)


class Timers:
    """Implements functions.process.TimerService for one operator's current key."""

    def __init__(self, backend: KeyedStateBackend, time: Time) -> None:
        self._time = time
        self.event = TimerQueue(backend, EVENT_TIMERS)
        self.processing = TimerQueue(backend, PROCESSING_TIMERS)
        self.key: Hashable = NO_KEY  #: normalised; the backend's current key
        self.watermark = MIN_WATERMARK

    def next_processing_time(self) -> float | None:
        """On the slot's monotonic clock."""
        timestamp = self.processing.next_timestamp()
        if timestamp is None:
            return None
        return self._time.clock() + (timestamp / 1000 - self._time.processing_time())

    def register_event_time_timer(self, timestamp: int) -> None:
        self.event.register(self._current_key(), timestamp)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self.processing.register(self._current_key(), timestamp)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self.event.delete(self._current_key(), timestamp)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self.processing.delete(self._current_key(), timestamp)

    def _current_key(self) -> Hashable:
        """:raises ConfigurationError: when no key is current."""
        if self.key is NO_KEY:
            refuse_without_key()
        return self.key

    def current_watermark(self) -> int:
        return self.watermark

    def current_processing_time(self) -> int:
        return self._time.now_ms()
