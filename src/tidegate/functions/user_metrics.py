"""Gauges and histograms of the user's own, beside their counters (counters.py). Executor; one of a name for each subtask.

The task's thread makes and updates them, the heartbeat's thread reads: about once a second a gauge's function is called, and a
histogram's newest numbers are copied and sorted. Nothing of them is stored.
"""

from __future__ import annotations

import logging
import math
from array import array
from collections.abc import Callable, Container

from tidegate.functions.counters import MAX_COUNTERS, MAX_NAME, Counter, Counters

log = logging.getLogger("tidegate.task")

MAX_HISTOGRAMS = 100  #: of one subtask; each is sorted for every heartbeat
NEWEST = 1024  #: numbers of which a histogram tells how they are spread
#: By Flink's names.
QUANTILES = {"median": 0.5, "p75": 0.75, "p90": 0.90, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}


class Histogram:
    """`update(value)` is two assignments; keep the histogram in an attribute and call it for each record."""

    __slots__ = ("_newest", "count")

    def __init__(self) -> None:
        self.count = 0  #: numbers so far
        self._newest = array("d", bytes(8 * NEWEST))  #: a ring; the oldest is overwritten

    def update(self, value: float) -> None:
        """:raises TypeError: for what is not a number.

        >>> sizes = tg.Histogram()  # in open(): ctx.histogram("sizes")
        >>> sizes.update(17)
        """
        self._newest[self.count % NEWEST] = value
        self.count += 1

    def spread(self) -> dict[str, float]:
        """From any thread: by Flink's names, the count of all numbers, and how the newest are spread. {}: there are none.

        >>> sizes = tg.Histogram()
        >>> for size in (1, 2, 9):
        ...     sizes.update(size)
        >>> sizes.spread()["count"], sizes.spread()["median"], sizes.spread()["max"]
        (3, 2.0, 9.0)
        """
        count = self.count
        numbers = sorted(number for number in self._newest[: min(count, NEWEST)] if math.isfinite(number))
        if not numbers:
            return {}
        last = len(numbers) - 1
        mean = sum(numbers) / len(numbers)
        shown = {
            "count": count,
            "min": numbers[0],
            "max": numbers[-1],
            "mean": mean,
            "stddev": math.dist(numbers, [mean] * len(numbers)) / math.sqrt(len(numbers)),
            **{name: numbers[min(last, int(at * len(numbers)))] for name, at in QUANTILES.items()},
        }
        return {name: number for name, number in shown.items() if math.isfinite(number)}  # a sum may be too large

    def __repr__(self) -> str:
        return f"Histogram({self.count} numbers)"


class UserMetrics:
    """All counters, gauges and histograms of one subtask of one operator, by name."""

    __slots__ = ("_failed", "_gauges", "_histograms", "counters")

    def __init__(self) -> None:
        self.counters = Counters()
        self._gauges: dict[str, Callable[[], float]] = {}
        self._histograms: dict[str, Histogram] = {}
        self._failed: set[str] = set()  #: gauges whose failure was logged

    def counter(self, name: str) -> Counter:
        self._check_kind(name, "counter", self._gauges, self._histograms)
        return self.counters.get(name)

    def gauge(self, name: str, value: Callable[[], float]) -> None:
        """The newest function counts. :raises ValueError: for a name that cannot be shown, or one too many."""
        if not callable(value):
            raise TypeError(
                f"the gauge {name!r} needs a function that gives the number, not {type(value).__name__}: write "
                f"ctx.gauge({name!r}, lambda: self.size)"
            )
        if name not in self._gauges:
            self._check_kind(name, "gauge", self.counters, self._histograms)
            self._check_new(name, "gauge", len(self._gauges), MAX_COUNTERS)
        self._gauges[name] = value

    def histogram(self, name: str) -> Histogram:
        """The same one for the same name. :raises ValueError: for a name that cannot be shown, or one too many."""
        if name not in self._histograms:
            self._check_kind(name, "histogram", self.counters, self._gauges)
            self._check_new(name, "histogram", len(self._histograms), MAX_HISTOGRAMS)
            self._histograms[name] = Histogram()
        return self._histograms[name]

    def gauge_values(self) -> dict[str, float]:
        """From any thread. A gauge that fails, or gives no number, is left out; the log says it once."""
        values: dict[str, float] = {}
        for name, function in self._gauges.copy().items():
            try:
                value = float(function())
                if math.isfinite(value):
                    values[name] = value
            except Exception as error:
                if name not in self._failed:
                    self._failed.add(name)
                    log.warning("the gauge %r is not shown: %s: %s", name, type(error).__name__, error)
        return values

    def histogram_values(self) -> dict[str, dict[str, float]]:
        """From any thread."""
        return {name: spread for name, histogram in self._histograms.copy().items() if (spread := histogram.spread())}

    def _check_kind(self, name: str, kind: str, *others: Container[object]) -> None:
        if any(name in other for other in others):
            raise ValueError(f"the {kind} {name!r} cannot be: the operator has another metric of this name already")

    def _check_new(self, name: str, kind: str, number: int, most: int) -> None:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise ValueError(f"a {kind} needs a name of 1 to {MAX_NAME} characters, not {str(name)[:50]!r}")
        if number >= most:
            raise ValueError(
                f"an operator may have {most} {kind}s, and {name!r} would be one more: are keys or values part of their names?"
            )
