"""Lookups in tables of real servers: what they are asked, what comes back, and what happens when the connection is lost."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg
from databases.kit import new_table
from databases.servers import DatabaseServer
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import ConfigurationError, ConnectorError
from tidegate.testing.crash_points import Crash
from tidegate.testing.runner import run_in_process

pytestmark = pytest.mark.usefixtures("the_dead_leave_connections_behind")
NUMBERS = itertools.count()
CUSTOMERS = {1: "Ann", 2: "Bob", 5: "Zoe %s 'x' \""}


@pytest.fixture
def customers(server: DatabaseServer) -> str:
    table = new_table(server, "id bigint PRIMARY KEY, name varchar(40), city varchar(40)")
    rows = ", ".join("({}, '{}', NULL)".format(id, name.replace("'", "''")) for id, name in CUSTOMERS.items())
    server.ask(f"INSERT INTO {table} VALUES {rows}")
    return table


@pytest.fixture
def loop() -> Iterator[Any]:
    with asyncio.Runner() as runner:
        yield runner


def test_a_row_for_each_key_and_none_where_there_is_none(server: DatabaseServer, customers: str, loop: Any) -> None:
    lookup = tg.TableLookup(server.url, customers, key="id", columns=["name"])
    keys = [5, 1, 99, None, *range(1000, 1096)]

    assert loop.run(lookup.look_up(keys)) == [
        {"id": 5, "name": CUSTOMERS[5]},
        {"id": 1, "name": "Ann"},
        *[None] * 98,
    ]
    whole = tg.TableLookup(server.url, customers, key="id")
    assert loop.run(whole.look_up([2])) == [{"id": 2, "name": "Bob", "city": None}]
    loop.run(lookup.close())
    loop.run(whole.close())


def test_each_question_sees_what_is_committed_by_then(server: DatabaseServer, customers: str, loop: Any) -> None:
    """The connection stays open: no transaction of it must hold an old picture of the table, nor a lock."""
    lookup = tg.TableLookup(server.url, customers, key="id", columns=["name"])

    assert loop.run(lookup.look_up([1, 7])) == [{"id": 1, "name": "Ann"}, None]
    server.ask(f"UPDATE {customers} SET name = 'Anna' WHERE id = 1")
    server.ask(f"INSERT INTO {customers} VALUES (7, 'Eve', NULL)")
    assert loop.run(lookup.look_up([1, 7])) == [{"id": 1, "name": "Anna"}, {"id": 7, "name": "Eve"}]
    server.ask(f"DROP TABLE {customers}")  # waits for nobody
    with pytest.raises(ConfigurationError, match="Create or correct the table"):
        loop.run(lookup.look_up([1]))
    loop.run(lookup.close())


def test_a_lost_connection_fails_one_question_and_the_next_has_a_new_one(
    server: DatabaseServer, customers: str, loop: Any
) -> None:
    lookup = tg.TableLookup(server.url, customers, key="id", columns=["name"])
    loop.run(lookup.look_up([1]))
    end_connection_of(lookup, server)

    with pytest.raises(ConnectorError, match=r"looking up 1 keys .* has ended the connection"):
        loop.run(lookup.look_up([1]))
    assert loop.run(lookup.look_up([1])) == [{"id": 1, "name": "Ann"}]
    loop.run(lookup.close())


def end_connection_of(lookup: tg.TableLookup, server: DatabaseServer) -> None:
    """As the server's administrator does."""
    assert lookup._session is not None
    if server.kind == "postgresql":
        ((id,),) = lookup._session.run("SELECT pg_backend_pid()")
        server.ask(f"SELECT pg_terminate_backend({id}, 10000)", as_admin=True)
    else:
        ((id,),) = lookup._session.run("SELECT connection_id()")
        server.ask(f"KILL {id}", as_admin=True)


@pytest.mark.parametrize(("column", "value", "key"), [("bigint", "1", "1"), ("varchar(40)", "'1'", 1)])
def test_a_key_of_another_type_is_one_clear_sentence(
    server: DatabaseServer, loop: Any, column: str, value: str, key: Any
) -> None:
    table = new_table(server, f"id {column} PRIMARY KEY")
    server.ask(f"INSERT INTO {table} VALUES ({value})")
    lookup = tg.TableLookup(server.url, table, key="id")

    with pytest.raises((ConfigurationError, ConnectorError)) as caught:
        loop.run(lookup.look_up([key]))
    assert f"looking up 1 keys in {table}" in str(caught.value)
    assert "of the type of the column" in str(caught.value) or "operator does not exist" in str(caught.value)
    loop.run(lookup.close())


def test_keys_that_are_text_or_a_uuid(server: DatabaseServer, loop: Any) -> None:
    table = new_table(server, "id varchar(40) PRIMARY KEY, n int")
    server.ask(f"INSERT INTO {table} VALUES ('Ann', 1), ('O''Neil %', 2)")
    lookup = tg.TableLookup(server.url, table, key="id")

    found = loop.run(lookup.look_up(["O'Neil %", "Ann", "ann", ""]))
    assert found == [{"id": "O'Neil %", "n": 2}, {"id": "Ann", "n": 1}, None, None]
    loop.run(lookup.close())
    if server.kind != "postgresql":
        return
    key = uuid.uuid4()
    table = new_table(server, "id uuid PRIMARY KEY")
    server.ask(f"INSERT INTO {table} VALUES ('{key}')")
    lookup = tg.TableLookup(server.url, table, key="id")
    assert loop.run(lookup.look_up([key])) == [{"id": key}]
    loop.run(lookup.close())


def test_keys_of_a_column_of_a_fixed_width_are_found_without_the_blanks_that_fill_it(
    server: DatabaseServer, loop: Any
) -> None:
    table = new_table(server, "id char(10) PRIMARY KEY, n int")
    server.ask(f"INSERT INTO {table} VALUES ('ann', 1), ('bob  ', 2), (' eve', 3)")
    lookup = tg.TableLookup(server.url, table, key="id", columns=["n"])

    found = loop.run(lookup.look_up(["ann", "bob", "bob ", "eve", " eve", "zoe"]))

    assert [row and row["n"] for row in found] == [1, 2, 2, None, 3, None]
    loop.run(lookup.close())


def test_what_is_not_there_is_said_when_the_job_is_built(server: DatabaseServer, customers: str) -> None:
    with pytest.raises(ConfigurationError, match="there is no table 'nowhere'"):
        tg.TableLookup(server.url, "nowhere", key="id")
    with pytest.raises(ConfigurationError, match="has no column email; it has id, name, city"):
        tg.TableLookup(server.url, customers, key="id", columns=["email"])


@pytest.mark.parametrize("how", ["left", "inner"])
def test_a_whole_job_gives_what_the_table_has_also_after_deaths(
    server: DatabaseServer, customers: str, how: str, seed: int
) -> None:
    rows = [(n % 7, n) for n in range(140)]
    env = tg.StreamEnvironment("lookup", parallelism=2)
    env.checkpointing(every="20ms", storage=f"memory://table-lookup-{next(NUMBERS)}")
    env.restart_strategy("fixed-delay", attempts=20, delay="0s")
    stream = env.from_collection(rows, type=tuple[int, int], uid="rows", parallelism=1).rebalance()
    source = tg.TableLookup(server.url, customers, key="id", columns=["name"])
    joined = stream.lookup_join(
        source,
        lambda row, found: (row[1], None if found is None else found["name"]),
        on=0,
        how=how,
        cache=tg.LookupCache(rows=3),
        uid="customers",
        ordered=False,
    )
    joined.collect(uid="out")
    crashes = [Crash("driver.after-log", nth=2), Crash("slot.after-ack", nth=3)]

    result = run_in_process(env, seed=seed, crashes=crashes)

    assert result.status is JobStatus.FINISHED, result.error
    expected = Counter((n, CUSTOMERS.get(id)) for id, n in rows if how == "left" or id in CUSTOMERS)
    assert Counter(result.collected.rows("out")) == expected
