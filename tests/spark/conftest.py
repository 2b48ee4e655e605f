"""What the tests on Spark share. The session itself is made by tests/conftest.py."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import job_kit
import pytest
from pyspark import cloudpickle as spark_cloudpickle

from tidegate import launch
from tidegate.client import JobClient


@pytest.fixture(autouse=True, scope="module")
def functions_are_shipped_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """As those of a user's program are: it is `__main__`, which no worker can import, and neither can it a test module."""
    borrowed = {getattr(value, "__module__", "") for value in vars(request.module).values()}
    modules = [sys.modules[name] for name in borrowed if str(name).startswith("test_")]
    with contextlib.ExitStack() as stack:
        for module in {request.module, job_kit, *modules}:
            for pickler in (cloudpickle, spark_cloudpickle):
                pickler.register_pickle_by_value(module)
                stack.callback(pickler.unregister_pickle_by_value, module)
        yield


@pytest.fixture(autouse=True)
def no_job_is_left_running(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A test that fails half-way must not leave its job in the slots that the next one needs."""
    clients: list[JobClient] = []

    class NotedClient(JobClient):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            clients.append(self)

    monkeypatch.setattr(launch, "JobClient", NotedClient)
    yield
    for client in clients:
        if not client.status.is_terminal:
            client.cancel()
            client.wait("60s")


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"file://{tmp_path}/storage"
