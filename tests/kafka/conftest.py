"""A real broker for the tests of this folder: started by the first that needs it, ended with the session.

`TIDEGATE_KAFKA=host:port` names a running one instead. In CI a broker that cannot be had is a failure, elsewhere the tests are
skipped and say why.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "kafka_broker.py"


def load_tool() -> Any:
    spec = importlib.util.spec_from_file_location("kafka_broker", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kafka_broker"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def broker(no_process_is_left_behind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One for all tests that leave it alone."""
    started = load_tool().Broker(tmp_path_factory.mktemp("kafka")).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> str:
    given = os.environ.get("TIDEGATE_KAFKA")
    return given if given else request.getfixturevalue("broker").address


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
