"""Topics for the tests of this folder."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def topic(servers: str) -> Iterator[Callable[..., str]]:
    """Makes topics, each with a name that no other test has."""
    from kafka.kit import delete_topics, make_topic

    made: list[str] = []

    def make(name: str = "topic", partitions: int = 2, **settings: str) -> str:
        made.append(f"{name}-{uuid.uuid4().hex[:8]}")
        make_topic(servers, made[-1], partitions, settings)
        return made[-1]

    yield make
    delete_topics(servers, made)
