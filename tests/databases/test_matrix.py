"""The crash matrix over the database sinks: processes die at every step, twice in a row; the server's own client counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tidegate as tg
from databases.kit import prepared_of
from databases.servers import DatabaseServer
from matrices import chosen
from tidegate.connectors.contract import Sink
from tidegate.testing import crash_matrix

pytestmark = pytest.mark.usefixtures("the_dead_leave_connections_behind")


class Tables:
    """A table for each case, made when its sink is."""

    def __init__(self, server: DatabaseServer, prefix: str) -> None:
        self.server = server
        self.prefix = prefix

    def name(self, place: str) -> str:
        return f"{self.prefix}_{place}".replace("-", "_").replace(".", "_").replace(" ", "_").lower()

    def make(self, place: str) -> str:
        name = self.name(place)
        self.server.ask(f"CREATE TABLE IF NOT EXISTS {name} (value bigint, PRIMARY KEY (value))")
        return name

    def read(self, place: str) -> list[int]:
        return [int(value) for (value,) in self.server.ask(f"SELECT value FROM {self.name(place)}")]


COMMITS = ("two-phase", "ledger")
BOTH_WAYS = pytest.mark.parametrize("commit", COMMITS)
#: Where a database can tell the difference; the slow test goes through all of them.
TELLING = frozenset(
    {
        "after clean_up",
        "after flush",
        "before prepare",
        "after prepare",
        "before commit",
        "within commit",
        "after commit",
    }
    | {"slot.after-ack", "driver.after-log", "driver.before-finished"}
)
#: What the end-to-end tests kill under Spark is not repeated here.
KILLED = frozenset({"within commit", "after commit"})


def maker(tables: Tables, sink: type = tg.DatabaseSink, **options: Any) -> Callable[[str], Sink]:
    return lambda place: sink(tables.server.url, tables.make(place), lock_timeout_s=5, **options)


#: By the ledger it is one transaction like any other: what the steps of prepared ones show is shown by them.
@pytest.mark.parametrize("commit", chosen({"two-phase"}, COMMITS))
def test_each_record_is_in_the_table_once_and_never_early_wherever_a_process_dies(
    server: DatabaseServer, commit: str
) -> None:
    tables = Tables(server, commit[:3])

    report = crash_matrix(maker(tables, commit=commit), tables.read, only=lambda case: case.name in TELLING)

    report.check()
    assert len(report.results) == 1 + len(TELLING)
    assert prepared_of(server) == []


@pytest.mark.parametrize("commit", chosen({"two-phase"}, COMMITS))
def test_the_same_with_processes_that_are_killed(server: DatabaseServer, commit: str) -> None:
    tables = Tables(server, f"k{commit[:3]}")

    report = crash_matrix(maker(tables, commit=commit), tables.read, kill=True, only=lambda case: case.name in KILLED)

    report.check()
    assert {result.crashes for result in report.results[1:]} == {2}
    assert prepared_of(server) == []


def test_upserts_lose_nothing_wherever_a_process_dies(server: DatabaseServer) -> None:
    for number, sink in enumerate([tg.DatabaseSink, tg.DatabaseUpsertSink]):
        tables = Tables(server, f"u{number}")
        names = {"after flush", "within commit", "slot.after-ack"}

        crash_matrix(
            maker(tables, sink, key="value"), tables.read, only=lambda case, names=names: case.name in names
        ).check()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kill", [False, True])
@BOTH_WAYS
def test_every_case_of_the_matrix(server: DatabaseServer, commit: str, kill: bool) -> None:
    tables = Tables(server, f"all{kill}{commit[:3]}")

    crash_matrix(maker(tables, commit=commit), tables.read, kill=kill).check()
    assert prepared_of(server) == []
