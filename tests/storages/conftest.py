"""The storage servers: one of each kind for all tests, started when first asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle

import fetch
from services import had, had_by_one_process
from storages.servers import hdfs_server, s3_server


@pytest.fixture(scope="session")
def s3(no_process_is_left_behind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a process that uses it."""
    had_by_one_process("s3", tmp_path_factory)
    with s3_server(tmp_path_factory.mktemp("s3") / "log.txt") as environment:
        yield environment


@pytest.fixture(scope="session")
def hdfs(no_process_is_left_behind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    had_by_one_process("hdfs", tmp_path_factory)
    jars = had("HDFS", fetch.NotFetched, lambda: fetch.folder_of("hadoop"))
    with hdfs_server(jars, tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.fixture
def in_s3(s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """This process finds the server."""
    for name, value in s3.items():
        monkeypatch.setenv(name, value)
    return s3


@pytest.fixture(autouse=True, scope="module")
def functions_are_shipped_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """As those of a user's program are."""
    with contextlib.ExitStack() as stack:
        for pickler in (cloudpickle, spark_cloudpickle):
            pickler.register_pickle_by_value(request.module)
            stack.callback(pickler.unregister_pickle_by_value, request.module)
        yield
