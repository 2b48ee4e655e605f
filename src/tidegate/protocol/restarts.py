"""Restart strategies: may the job start again, and after how long? Pure; asked by coordinator/job.py on the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class RestartStrategy(Protocol):
    """One object for the life of a job in one driver."""

    def delay_after_failure(self, now: float, jitter: float) -> float | None:
        """Seconds to wait before the next attempt, None when the job is to fail. `jitter` is random in [-1, 1]."""

    def describe(self) -> str: ...


@dataclass(slots=True)
class ExponentialDelay:
    """The first restart waits 0 (most failures are a killed worker); then the delay grows, until the job was stable."""

    initial_s: float = 1.0
    max_s: float = 60.0
    multiplier: float = 1.5
    jitter_factor: float = 0.1
    reset_after_s: float = 3600.0
    attempts: int | None = None  #: restarts allowed without a stable time between them
    _restarts: int = field(default=0, init=False)
    _last_failure: float = field(default=float("-inf"), init=False)

    def delay_after_failure(self, now: float, jitter: float) -> float | None:
        if now - self._last_failure >= self.reset_after_s:
            self._restarts = 0
        self._last_failure = now
        if self.attempts is not None and self._restarts >= self.attempts:
            return None
        self._restarts += 1
        if self._restarts == 1:
            return 0.0
        # The exponent is bounded: a job that restarts for days must not end by an overflow.
        delay = min(self.initial_s * self.multiplier ** min(self._restarts - 2, 100), self.max_s)
        return max(0.0, delay * (1.0 + jitter * self.jitter_factor))

    def describe(self) -> str:
        limit = "no limit" if self.attempts is None else f"at most {self.attempts} in a row"
        return f"exponential delay: 0 s, then {self.initial_s:g} s to {self.max_s:g} s, {limit}"


@dataclass(slots=True)
class FixedDelay:
    attempts: int = 1
    delay_s: float = 1.0
    _restarts: int = field(default=0, init=False)

    def delay_after_failure(self, now: float, jitter: float) -> float | None:
        if self._restarts >= self.attempts:
            return None
        self._restarts += 1
        return self.delay_s

    def describe(self) -> str:
        return f"fixed delay: {self.attempts} restarts, {self.delay_s:g} s apart"


@dataclass(slots=True)
class FailureRate:
    max_failures: int = 1
    interval_s: float = 60.0
    delay_s: float = 1.0
    _failures: list[float] = field(default_factory=list, init=False)

    def delay_after_failure(self, now: float, jitter: float) -> float | None:
        self._failures = [at for at in self._failures if now - at < self.interval_s]
        self._failures.append(now)
        return None if len(self._failures) > self.max_failures else self.delay_s

    def describe(self) -> str:
        return f"failure rate: at most {self.max_failures} failures in {self.interval_s:g} s, {self.delay_s:g} s apart"


@dataclass(slots=True)
class NoRestart:
    def delay_after_failure(self, now: float, jitter: float) -> float | None:
        return None

    def describe(self) -> str:
        return "no restart"
