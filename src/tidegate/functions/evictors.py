"""What is taken out of a window when it fires: before its function sees the records, or after. Pure.

A window with an evictor keeps its records until it closes, also where its function needs only a sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.durations import Duration, duration_ms
from tidegate.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.functions.windows import TimeWindow


class Timestamped(NamedTuple):
    """A record of a window with its time in ms: event time, or the time of day at which it came."""

    value: Any
    timestamp: int


class Evictor:
    """What stays in a window. Of your own: one of the two, or both; each gives the records to keep, in order.

    >>> class OnlyPaid(tg.Evictor):
    ...     def evict_before(self, elements, window):
    ...         return [each for each in elements if each.value > 0]
    """

    def evict_before(self, elements: list[Timestamped], window: TimeWindow, /) -> list[Timestamped]:
        """Before the window's function is called."""
        return elements

    def evict_after(self, elements: list[Timestamped], window: TimeWindow, /) -> list[Timestamped]:
        """After it was called. What was evicted before is gone already."""
        return elements

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, vars(self).values()))})"


class _BuiltIn(Evictor):
    """Before the function, or, if so said, after it."""

    def __init__(self, after: bool) -> None:
        self.after = after

    def _keep(self, elements: list[Timestamped]) -> list[Timestamped]:
        raise NotImplementedError

    def evict_before(self, elements: list[Timestamped], window: TimeWindow, /) -> list[Timestamped]:
        return elements if self.after or not elements else self._keep(elements)

    def evict_after(self, elements: list[Timestamped], window: TimeWindow, /) -> list[Timestamped]:
        return self._keep(elements) if self.after and elements else elements


class CountEvictor(_BuiltIn):
    """Keeps the last `count` records.

    >>> tg.CountEvictor(10).count
    10
    """

    def __init__(self, count: int, *, after: bool = False) -> None:
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigurationError(f"CountEvictor needs a positive integer, not {count!r}")
        super().__init__(after)
        self.count = count

    def _keep(self, elements: list[Timestamped]) -> list[Timestamped]:
        return elements[-self.count :]


class TimeEvictor(_BuiltIn):
    """Keeps the records that are less than `duration` older than the newest.

    >>> tg.TimeEvictor("1min").duration_ms
    60000
    """

    def __init__(self, duration: Duration, *, after: bool = False) -> None:
        super().__init__(after)
        self.duration_ms = duration_ms(duration, "TimeEvictor")

    def _keep(self, elements: list[Timestamped]) -> list[Timestamped]:
        oldest = max(each.timestamp for each in elements) - self.duration_ms
        return [each for each in elements if each.timestamp > oldest]


class DeltaEvictor(_BuiltIn):
    """Keeps the records whose distance to the newest, as your function measures it, is below a threshold.

    >>> tg.DeltaEvictor(5.0, lambda value, newest: abs(value - newest)).threshold
    5.0
    """

    def __init__(self, threshold: float, distance: Callable[[Any, Any], float], *, after: bool = False) -> None:
        super().__init__(after)
        self.threshold = threshold
        self.distance = distance

    def _keep(self, elements: list[Timestamped]) -> list[Timestamped]:
        newest = elements[-1].value
        return [each for each in elements if self.distance(each.value, newest) < self.threshold]
