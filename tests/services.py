"""The services that connectors are tested with: one of each for the session, started by the first test that needs it.

    broker      a Kafka broker of our own, which may be killed            servers    the address of one: ours, or a given one
    postgres, mariadb   database servers of our own, or given ones        server     both kinds, one after the other

A running service can be given by an environment variable: TIDEGATE_KAFKA=host:port, TIDEGATE_POSTGRES=postgresql://...,
TIDEGATE_MYSQL=mysql://... Tests that kill their service are then skipped, and say so. In CI a service that cannot be had is
a failure, elsewhere a skip with its reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

import fetch  # tools/ is on the path of the tests
import kafka_broker

if TYPE_CHECKING:
    from databases.servers import DatabaseServer

KAFKA, POSTGRES, MYSQL = "TIDEGATE_KAFKA", "TIDEGATE_POSTGRES", "TIDEGATE_MYSQL"

Made = TypeVar("Made")


def had(service: str, missing: type[Exception], make: Callable[[], Made]) -> Made:
    """What `make` makes. `missing` is what it raises where the machine cannot have the service."""
    try:
        return make()
    except missing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no {service} can be had here: {error}")


def had_by_one_process(service: str, folders: pytest.TempPathFactory) -> None:
    """Each service is started once for all processes of `make test`: those that need it are in one of them."""
    process = os.environ.get("PYTEST_XDIST_WORKER")
    if process is None:
        return
    note = folders.getbasetemp().parent / f"{service} was started by"
    try:
        with note.open("x") as written:
            written.write(process)
    except FileExistsError:
        pytest.fail(
            f"{service} was started by {note.read_text()}, and {process} needs it too: the tests of a service must be in one "
            "group (GROUP_OF_FOLDER in tests/conftest.py)"
        )


# -- Kafka ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def broker(no_process_is_left_behind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[kafka_broker.Broker]:
    if KAFKA in os.environ:
        pytest.skip(f"{KAFKA} names a running broker, and this test needs one of its own")
    had_by_one_process("kafka", tmp_path_factory)
    had("Kafka broker", fetch.NotFetched, kafka_broker.jars)
    started = kafka_broker.Broker(tmp_path_factory.mktemp("kafka")).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> str:
    given = os.environ.get(KAFKA)
    return given if given else request.getfixturevalue("broker").address


# -- databases --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres(no_process_is_left_behind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseServer]:
    from databases.servers import Postgres

    had_by_one_process("postgres", tmp_path_factory)
    yield from _database(Postgres, POSTGRES)


@pytest.fixture(scope="session")
def mariadb(no_process_is_left_behind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DatabaseServer]:
    from databases.servers import MariaDb

    had_by_one_process("mariadb", tmp_path_factory)
    yield from _database(MariaDb, MYSQL)


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> DatabaseServer:
    """Both kinds, one after the other."""
    found: DatabaseServer = request.getfixturevalue(request.param)
    return found


def _database(kind: type[DatabaseServer], variable: str) -> Iterator[DatabaseServer]:
    from databases.servers import ServerMissing, given, new_folder, removed_afterwards

    if variable in os.environ:
        yield given(kind, os.environ[variable], variable)
        return
    with removed_afterwards(kind(new_folder(kind.kind))) as server:
        had(kind.package, ServerMissing, server.start)
        yield server
