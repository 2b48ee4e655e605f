"""What the command line says goes over what the program says. Driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tidegate.config import JobConfig

Overrides = Callable[[JobConfig], JobConfig]

_current: ContextVar[Overrides] = ContextVar("tidegate_overrides", default=lambda config: config)


def current_overrides() -> Overrides:
    return _current.get()


@contextmanager
def overriding(overrides: Overrides) -> Iterator[None]:
    """Every job that is executed inside gets these settings last."""
    token = _current.set(overrides)
    try:
        yield
    finally:
        _current.reset(token)
