"""When a window fires, and whether it is empty afterwards. They run on the executors, in the task's thread.

A trigger may declare state on its class, which is kept for each key and window, and is dropped with the window:

    class AtSum(tg.Trigger):
        sum = tg.ReducingState(int, operator.add)

        def on_element(self, value, timestamp, window, ctx):
            self.sum.add(value)
            return tg.TriggerResult.FIRE if self.sum.get() > 100 else tg.TriggerResult.CONTINUE
"""

from __future__ import annotations

import operator
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.durations import Duration, duration_ms
from tidegate.errors import ConfigurationError
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.state.declarations import ReducingState

if TYPE_CHECKING:
    from tidegate.functions.windows import TimeWindow


class TriggerResult(Enum):
    """What happens to the window now.

    >>> tg.TriggerResult.FIRE_AND_PURGE.fires
    True
    """

    CONTINUE = "continue"  #: nothing
    FIRE = "fire"  #: its result goes out, and its records stay
    PURGE = "purge"  #: its records are dropped
    FIRE_AND_PURGE = "fire and purge"

    @property
    def fires(self) -> bool:
        return self in (TriggerResult.FIRE, TriggerResult.FIRE_AND_PURGE)

    @property
    def purges(self) -> bool:
        return self in (TriggerResult.PURGE, TriggerResult.FIRE_AND_PURGE)


class TriggerContext(Protocol):
    """What a trigger may ask, and do, for the window in work."""

    @property
    def current_watermark(self) -> int:
        """No record up to this event time (ms) will come any more."""

    def current_processing_time(self) -> int:
        """The time of day, in ms."""

    def register_event_time_timer(self, time: int) -> None:
        """`on_event_time` is called when the watermark reaches it."""

    def register_processing_time_timer(self, time: int) -> None:
        """`on_processing_time` is called when the clock reaches it."""

    def delete_event_time_timer(self, time: int) -> None: ...

    def delete_processing_time_timer(self, time: int) -> None: ...

    def merge(self, state: Any) -> None:
        """In `on_merge`: what the merged windows have in a list, reducing or aggregating state becomes the new window's."""


class Trigger:
    """When windows fire. Of your own: what it does not define lets the window continue."""

    def on_element(
        self, value: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext, /
    ) -> TriggerResult:
        """A record was added to the window."""
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        """An event-time timer of the window is due. Also at the window's end, for which nobody has to set one."""
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        """A processing-time timer of the window is due."""
        return TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        """Windows have become this one. Their timers are gone: set them anew, and `ctx.merge` each state."""
        raise ConfigurationError(
            f"{type(self).__name__} cannot be used with sessions, whose windows merge: it must define "
            "on_merge(self, window, ctx)"
        )

    def clear(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        """The window is dropped, and the trigger's declared state with it: delete timers that need not fire any more."""

    def purging(self) -> Trigger:
        """The same, and each time it fires the window is empty afterwards.

        >>> tg.CountTrigger(3).purging()
        CountTrigger(3).purging()
        """
        return PurgingTrigger(self)

    @property
    def can_merge(self) -> bool:
        return type(self).on_merge is not Trigger.on_merge

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, vars(self).values()))})"


class EventTimeTrigger(Trigger):
    """Fires when the watermark passes the window's end, and at once for a record that comes after that.

    >>> tg.EventTimeTrigger()
    EventTimeTrigger()
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext, /
    ) -> TriggerResult:
        if window.max_timestamp() <= ctx.current_watermark:
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        if window.max_timestamp() > ctx.current_watermark:
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class ProcessingTimeTrigger(Trigger):
    """Fires when the clock passes the window's end.

    >>> tg.ProcessingTimeTrigger()
    ProcessingTimeTrigger()
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext, /
    ) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())


class NeverTrigger(Trigger):
    """Never fires: of the global window, until another one is named.

    >>> tg.NeverTrigger()
    NeverTrigger()
    """

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        pass


class CountTrigger(Trigger):
    """Fires each time `count` more records have come into the window.

    >>> tg.CountTrigger(100)
    CountTrigger(100)
    """

    seen = ReducingState(int, operator.add)

    def __init__(self, count: int) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigurationError(f"CountTrigger needs a positive integer, not {count!r}")
        self.count = count

    def on_element(
        self, value: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext, /
    ) -> TriggerResult:
        self.seen.add(1)
        if (self.seen.get() or 0) < self.count:
            return TriggerResult.CONTINUE
        self.seen.clear()
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        ctx.merge(self.seen)


class _Continuous(Trigger):
    """Fires every so often while the window has records; when it fires next is a state: the earliest of all that merge."""

    next_fire = ReducingState(int, min)

    def __init__(self, interval: Duration) -> None:
        self.interval_ms = duration_ms(interval, type(self).__name__)
        if self.interval_ms < 1:
            raise ConfigurationError(f"{type(self).__name__} needs at least 1 ms, not {interval!r}")

    def _after(self, time: int) -> int:
        return time - time % self.interval_ms + self.interval_ms

    def __repr__(self) -> str:
        return f"{type(self).__name__}('{self.interval_ms}ms')"


class ContinuousEventTimeTrigger(_Continuous):
    """Fires at each multiple of `interval` that the watermark passes, and at the window's end.

    >>> tg.ContinuousEventTimeTrigger("10s")
    ContinuousEventTimeTrigger('10000ms')
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext, /
    ) -> TriggerResult:
        if window.max_timestamp() <= ctx.current_watermark:
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        if self.next_fire.get() is None:
            assert timestamp is not None
            self._set(self._after(timestamp), window, ctx)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        if time == self.next_fire.get():
            self.next_fire.clear()
            self._set(time + self.interval_ms, window, ctx)
            return TriggerResult.FIRE
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        ctx.merge(self.next_fire)
        if (next_fire := self.next_fire.get()) is not None:
            ctx.register_event_time_timer(next_fire)
        if window.max_timestamp() > ctx.current_watermark:
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())
        if (next_fire := self.next_fire.get()) is not None:
            ctx.delete_event_time_timer(next_fire)

    def _set(self, time: int, window: TimeWindow, ctx: TriggerContext) -> None:
        """Not after the window's end: then it fires for late records alone. Nor when time has come to its end: nothing more
        comes that it could tell."""
        if time < window.max_timestamp() and ctx.current_watermark < MAX_WATERMARK:
            self.next_fire.add(time)
            ctx.register_event_time_timer(time)


class ContinuousProcessingTimeTrigger(_Continuous):
    """Fires at each multiple of `interval` that the clock passes while the window has records, and when the clock closes the
    window; not at the end of a window of event time.

    >>> tg.ContinuousProcessingTimeTrigger("10s")
    ContinuousProcessingTimeTrigger('10000ms')
    """

    def on_element(
        self, value: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext, /
    ) -> TriggerResult:
        if self.next_fire.get() is None:
            self._set(self._after(ctx.current_processing_time()), ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        if time == self.next_fire.get():
            self.next_fire.clear()
            self._set(time + self.interval_ms, ctx)
            return TriggerResult.FIRE
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        ctx.merge(self.next_fire)
        if (next_fire := self.next_fire.get()) is not None:
            ctx.register_processing_time_timer(next_fire)

    def clear(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        if (next_fire := self.next_fire.get()) is not None:
            ctx.delete_processing_time_timer(next_fire)

    def _set(self, time: int, ctx: TriggerContext) -> None:
        self.next_fire.add(time)
        ctx.register_processing_time_timer(time)


class PurgingTrigger(Trigger):
    """Another trigger, whose windows are empty after they have fired: `trigger.purging()`.

    >>> tg.PurgingTrigger(tg.CountTrigger(3))
    CountTrigger(3).purging()
    """

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger

    @property
    def can_merge(self) -> bool:
        return self.trigger.can_merge

    def on_element(
        self, value: Any, timestamp: int | None, window: TimeWindow, ctx: TriggerContext, /
    ) -> TriggerResult:
        return _purged(self.trigger.on_element(value, timestamp, window, ctx))

    def on_event_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        return _purged(self.trigger.on_event_time(time, window, ctx))

    def on_processing_time(self, time: int, window: TimeWindow, ctx: TriggerContext, /) -> TriggerResult:
        return _purged(self.trigger.on_processing_time(time, window, ctx))

    def on_merge(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        self.trigger.on_merge(window, ctx)

    def clear(self, window: TimeWindow, ctx: TriggerContext, /) -> None:
        self.trigger.clear(window, ctx)

    def __repr__(self) -> str:
        return f"{self.trigger!r}.purging()"


def _purged(result: TriggerResult) -> TriggerResult:
    return TriggerResult.FIRE_AND_PURGE if result is TriggerResult.FIRE else result


def innermost(trigger: Trigger) -> Trigger:
    """The one that declares state."""
    while isinstance(trigger, PurgingTrigger):
        trigger = trigger.trigger
    return trigger
