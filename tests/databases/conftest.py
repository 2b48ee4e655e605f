"""The servers of the database tests: one of each kind for all of them, started when first asked for."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest

from databases.servers import DatabaseServer, MariaDb, Postgres, new_folder, removed_afterwards


@pytest.fixture(scope="session")
def postgres(no_process_is_left_behind: None) -> Iterator[DatabaseServer]:
    with removed_afterwards(Postgres(new_folder("pg"))) as server:
        server.start()
        yield server


@pytest.fixture(scope="session")
def mariadb(no_process_is_left_behind: None) -> Iterator[DatabaseServer]:
    with removed_afterwards(MariaDb(new_folder("maria"))) as server:
        server.start()
        yield server


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    """Both kinds, one after the other."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def the_dead_leave_connections_behind() -> Iterator[None]:
    """A process that dies in one process is an object that is dropped with its connection open; its driver complains."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
