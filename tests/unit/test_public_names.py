"""What `import tidegate as tg` gives: names for what the client shows, and settings by the words that the docs use."""

from __future__ import annotations

import typing
from dataclasses import replace

import tidegate as tg
from tidegate.config import JobConfig
from tidegate.coordinator import observing
from tidegate.state.backends import BackendSettings


def test_every_name_is_there() -> None:
    assert all(getattr(tg, name) is not None for name in tg.__all__)


def test_what_observers_and_displays_meet_has_a_name() -> None:
    events = typing.get_args(observing.JobEvent)

    assert all(getattr(tg, event.__name__) is event for event in events)
    assert tg.CheckpointStatus.COMPLETED is observing.CheckpointStatus.COMPLETED
    assert str(tg.SlotId(1, 2)) == "1.2"


def test_the_heap_is_understood_by_its_name() -> None:
    env = tg.StreamEnvironment("heap").state_backend("heap")

    assert env.config().state_backend == "hashmap"
    assert replace(JobConfig(), state_backend="heap") == JobConfig()
    assert BackendSettings("heap") == BackendSettings("hashmap")
