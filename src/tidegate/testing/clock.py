"""A clock that moves only when told. For tests; one thread."""

from __future__ import annotations


class ManualClock:
    """Seconds since its own beginning; `sleep` advances it instead of waiting."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds

    def sleep(self, seconds: float) -> None:
        self.now += max(0.0, seconds)
