"""What is put around the user's program: settings that go over the program's own and an onlooker that is told of every job, by
the command line; something else than Spark to run jobs on, by the test kit. Driver.

One for the process, not for a thread: a program may start its jobs from threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.config import JobConfig

if TYPE_CHECKING:
    from tidegate.client import JobClient
    from tidegate.graph.plan import JobPlan

Overrides = Callable[[JobConfig], JobConfig]


#: Starts the job of an environment (api/, which is above this module) with these settings, instead of launch.py.
Launcher = Callable[[Any, JobConfig], "JobClient"]


class Onlooker(Protocol):
    """Told of every job that the program starts. Called in the thread that starts it."""

    def launching(self, draft: JobPlan, config: JobConfig) -> None:
        """The job is sound; Spark is started next, which takes seconds."""

    def launched(self, client: JobClient, plan: JobPlan) -> None:
        """Before the first attempt, so that an observer of `client.view` misses nothing."""


def _nothing(config: JobConfig) -> JobConfig:
    return config


_overrides: list[Overrides] = [_nothing]
_onlookers: list[Onlooker] = []
_launchers: list[Launcher] = []


def current_overrides() -> Overrides:
    return _overrides[-1]


def current_onlooker() -> Onlooker | None:
    """None: the job tells of itself (telling/programs.py)."""
    return _onlookers[-1] if _onlookers else None


@contextmanager
def overriding(overrides: Overrides) -> Iterator[None]:
    """Every job that is executed inside gets these settings last."""
    _overrides.append(overrides)
    try:
        yield
    finally:
        _overrides.remove(overrides)


@contextmanager
def watched_by(onlooker: Onlooker) -> Iterator[None]:
    """Every job that is executed inside is shown to the onlooker."""
    _onlookers.append(onlooker)
    try:
        yield
    finally:
        _onlookers.remove(onlooker)


def current_launcher() -> Launcher | None:
    """None: jobs run on Spark (launch.py)."""
    return _launchers[-1] if _launchers else None


@contextmanager
def launched_by(launcher: Launcher) -> Iterator[None]:
    """Every job that is executed inside is started by it."""
    _launchers.append(launcher)
    try:
        yield
    finally:
        _launchers.remove(launcher)
