"""What the tests on Spark share. The session itself is made by tests/conftest.py."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import job_kit
import pytest
from pyspark import cloudpickle as spark_cloudpickle


@pytest.fixture(autouse=True, scope="module")
def functions_are_shipped_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """As those of a user's program are: it is `__main__`, which no worker can import, and neither can it a test module."""
    with contextlib.ExitStack() as stack:
        for module in (request.module, job_kit):
            for pickler in (cloudpickle, spark_cloudpickle):
                pickler.register_pickle_by_value(module)
                stack.callback(pickler.unregister_pickle_by_value, module)
        yield


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"file://{tmp_path}/storage"
