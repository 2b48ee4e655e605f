"""The services that connectors are tested with: one of each for the session, started by the first test that needs it.

    broker      a Kafka broker of our own, which may be killed            servers    the address of one: ours, or a given one
    postgres, mariadb   database servers of our own, or given ones        server     both kinds, one after the other

A running service can be given by an environment variable: TIDEGATE_KAFKA=host:port, TIDEGATE_POSTGRES=postgresql://...,
TIDEGATE_MYSQL=mysql://... Tests that kill their service are then skipped, and say so. In CI a service that cannot be had is
a failure, elsewhere a skip with its reason.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from databases.servers import DatabaseServer

KAFKA, POSTGRES, MYSQL = "TIDEGATE_KAFKA", "TIDEGATE_POSTGRES", "TIDEGATE_MYSQL"
BROKER_TOOL = Path(__file__).parents[1] / "tools" / "kafka_broker.py"

Made = TypeVar("Made")


def had(service: str, missing: type[Exception], make: Callable[[], Made]) -> Made:
    """What `make` makes. `missing` is what it raises where the machine cannot have the service."""
    try:
        return make()
    except missing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"no {service} can be had here: {error}")


# -- Kafka ------------------------------------------------------------------------------------------------------------


def broker_tool() -> Any:
    spec = importlib.util.spec_from_file_location("kafka_broker", BROKER_TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kafka_broker"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def broker(no_process_is_left_behind: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if KAFKA in os.environ:
        pytest.skip(f"{KAFKA} names a running broker, and this test needs one of its own")
    tool = broker_tool()
    had("Kafka broker", tool.BrokerMissing, tool.jars)
    started = tool.Broker(tmp_path_factory.mktemp("kafka")).start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> str:
    given = os.environ.get(KAFKA)
    return given if given else request.getfixturevalue("broker").address


# -- databases --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres(no_process_is_left_behind: None) -> Iterator[DatabaseServer]:
    from databases.servers import Postgres

    yield from _database(Postgres, POSTGRES)


@pytest.fixture(scope="session")
def mariadb(no_process_is_left_behind: None) -> Iterator[DatabaseServer]:
    from databases.servers import MariaDb

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
