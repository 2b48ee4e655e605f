"""Counters of the user's own: `ctx.counter("rejected").inc()`. Executor; one for each name and subtask.

The task's thread counts, the heartbeat's thread reads. They are for watching: each attempt begins at zero, and nothing of
them is stored. What is shown are 64 bits: a larger count stands still at the largest.
"""

from __future__ import annotations

from tidegate.shown import shown_count

MAX_COUNTERS = 1000  #: of one subtask; they travel with every heartbeat
MAX_NAME = 200


class Counter:
    """`inc()` is one addition; keep the counter in an attribute and call it for each record."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, by: int = 1) -> None:
        """One more, or `by`.

        >>> seen = tg.Counter()  # in open(): ctx.counter("seen")
        >>> seen.inc(), seen.inc(3), seen.value
        (None, None, 4)
        """
        self.value += by

    def dec(self, by: int = 1) -> None:
        """One less, or `by`.

        >>> waiting = tg.Counter()
        >>> waiting.inc(3), waiting.dec(), waiting.value
        (None, None, 2)
        """
        self.value -= by

    def __repr__(self) -> str:
        return f"Counter({self.value})"


class Counters:
    """All counters of one subtask of one operator, by name."""

    __slots__ = ("_by_name",)

    def __init__(self) -> None:
        self._by_name: dict[str, Counter] = {}

    def get(self, name: str) -> Counter:
        """The same counter for the same name. :raises ValueError: for a name that cannot be shown, or one too many."""
        counter = self._by_name.get(name)
        if counter is not None:
            return counter
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
            raise ValueError(f"a counter needs a name of 1 to {MAX_NAME} characters, not {str(name)[:50]!r}")
        if len(self._by_name) >= MAX_COUNTERS:
            raise ValueError(
                f"an operator may have {MAX_COUNTERS} counters, and {name!r} would be one more: are keys or values part of "
                "their names? State is the place to count for each key."
            )
        counter = self._by_name[name] = Counter()
        return counter

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def values(self) -> dict[str, int]:
        """From any thread: counters are only ever added. One that was given what is not a number is left out."""
        shown = {name: shown_count(counter.value) for name, counter in self._by_name.copy().items()}
        return {name: count for name, count in shown.items() if count is not None}
