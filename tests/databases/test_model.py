"""The model of a database that simulations write to (testing/simulation/databases.py) beside the servers: the same calls of a
session, in the same order, and the same answers. What a sink may rely on is in here; what is not, the model need not have."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from databases.kit import new_table, prepared_of
from databases.servers import DatabaseServer
from tidegate.connectors.database import bookkeeping
from tidegate.connectors.database.names import SessionName, TransactionName, new_nonce, sink_id
from tidegate.connectors.database.session import Session, connect
from tidegate.connectors.database.urls import parse_url
from tidegate.errors import ConnectorError
from tidegate.ids import AttemptId, AttemptNumber, Generation
from tidegate.testing.simulation.databases import ModelServer, ModelSession

COLUMNS = ["id", "customer", "amount"]
_runs = itertools.count()


def attempt(number: int) -> AttemptId:
    return AttemptId(Generation(1), AttemptNumber(number))


@dataclass
class World:
    """A table, sessions, and what was answered."""

    table: str
    open_session: Callable[[str], Session]
    look: Callable[[], list[tuple[int, str]]]  #: what an independent reader sees
    sink: str
    nonce: str = field(default_factory=new_nonce)
    told: list[Any] = field(default_factory=list)
    opened: list[Session] = field(default_factory=list)

    def session(self, of_attempt: int = 1, role: str = "w") -> Session:
        name = SessionName(self.sink, attempt(of_attempt), 0, role, self.nonce)
        self.opened.append(self.open_session(str(name)))
        return self.opened[-1]

    def name(self, sequence: int, of_attempt: int = 1) -> TransactionName:
        return TransactionName(self.sink, attempt(of_attempt), 0, sequence, self.nonce)

    def tell(self, answer: Any) -> None:
        """With the names and nonces of this world taken out."""
        self.told.append(
            repr(answer).replace(self.nonce, "nonce").replace(self.sink, "sink").replace(self.table, "table")
        )

    def tell_rows(self) -> None:
        self.tell(sorted(self.look()))

    def tell_trouble(self, session: Session, act: Callable[[], Any]) -> None:
        """Of what stands in another's way."""
        try:
            with session.explained("asking"):
                self.tell(act())
        except ConnectorError as error:
            self.tell(type(error).__name__)

    def write(self, session: Session, *ids: int, customer: str = "ann", key: tuple[str, ...] = ()) -> None:
        session.insert(self.table, COLUMNS, [(id, customer, 1.5) for id in ids], key)

    def entry(self, session: Session, name: TransactionName, rows: int = 1) -> bool:
        return bookkeeping.write_entry(session, str(name), self.sink, 7, rows)

    def prepared(self, session: Session, sequence: int, *ids: int, of_attempt: int = 1) -> TransactionName:
        name = self.name(sequence, of_attempt)
        session.begin(name)
        self.write(session, *ids)
        self.entry(session, name, len(ids))
        session.prepare(name)
        return name


# -- what is done, and told -----------------------------------------------------------------------------------------------


def what_is_not_committed_is_undone(world: World) -> None:
    writer, other = world.session(), world.session(role="c")
    writer.begin()
    world.write(writer, 1, 2)
    world.tell_rows()
    writer.commit()
    world.tell_rows()
    writer.begin()
    world.write(writer, 3)
    writer.rollback()
    other.begin()
    world.write(other, 4)
    other.close()
    world.tell_rows()
    writer.begin(world.name(0))
    world.write(writer, 5)
    writer.close()
    world.tell_rows()


def what_is_prepared_is_settled_once(world: World) -> None:
    writer, committer = world.session(), world.session(role="c")
    first = world.prepared(writer, 0, 1, 2)
    world.tell_rows()
    world.tell(bookkeeping.has_entry(committer, str(first)))
    writer.close()
    world.tell([str(each.name) for each in committer.list_prepared() if each.name.sink == world.sink])
    world.tell(committer.commit_prepared(first))
    world.tell_rows()
    world.tell(bookkeeping.has_entry(committer, str(first)))
    world.tell((committer.commit_prepared(first), committer.rollback_prepared(first)))

    second = world.prepared(world.session(), 1, 3)
    world.opened[-1].close()
    world.tell(committer.rollback_prepared(second))
    world.tell((committer.rollback_prepared(second), committer.commit_prepared(second)))
    world.tell(bookkeeping.has_entry(committer, str(second)))
    world.tell_rows()
    world.tell(committer.commit_prepared(world.name(99)))


def whoever_prepared_may_still_be_there(world: World) -> None:
    writer, committer = world.session(), world.session(role="c")
    name = world.prepared(writer, 0, 1)
    world.tell(writer.usable_after_prepare)
    world.tell(committer.commit_prepared(name))
    world.tell_rows()
    writer.close()
    world.tell(committer.commit_prepared(name))
    world.tell_rows()


def an_entry_of_the_ledger_is_written_once(world: World) -> None:
    first, second = world.session(), world.session(role="c")
    world.tell((world.entry(first, world.name(0)), world.entry(second, world.name(0))))
    first.begin()
    world.tell(world.entry(first, world.name(1)))
    world.tell_trouble(second, lambda: world.entry(second, world.name(1)))
    first.rollback()
    world.tell(world.entry(second, world.name(1)))
    third = world.session(of_attempt=2)
    name = world.prepared(third, 2, 1, of_attempt=2)
    third.close()
    world.tell_trouble(second, lambda: world.entry(second, name))
    world.tell(second.commit_prepared(name))
    world.tell(world.entry(second, name))


def a_key_is_given_new_values(world: World) -> None:
    session = world.session()
    session.begin()
    world.write(session, 1, 2, key=("id",))
    session.commit()
    session.begin()
    world.write(session, 2, 3, customer="bob", key=("id",))
    session.commit()
    world.tell_rows()


def older_sessions_are_ended(world: World) -> None:
    old, older, newer = world.session(2), world.session(1), world.session(3)
    bookkeeping.register_session(
        old, SessionName(world.sink, attempt(2), 0, "w", world.nonce), "job", "out", world.table
    )
    bookkeeping.register_session(
        older, SessionName(world.sink, attempt(1), 0, "w", world.nonce), "job", "out", world.table
    )
    bookkeeping.register_session(
        newer, SessionName(world.sink, attempt(3), 0, "w", world.nonce), "job", "out", world.table
    )
    old.begin()
    world.write(old, 1)
    world.entry(old, world.name(0, 2))
    world.tell(sorted(newer.sessions_of(world.sink)))
    world.tell(sorted(newer.end_sessions(world.sink, attempt(3))))
    world.tell(newer.sessions_of(world.sink))
    world.tell(world.entry(newer, world.name(0, 2)))
    world.tell_rows()
    world.tell_trouble(old, lambda: world.write(old, 2))
    bookkeeping.forget_sessions(newer, world.sink, attempt(3))
    world.tell(sorted(bookkeeping.noted_sessions(newer, world.sink)))
    world.tell(bookkeeping.sinks_by_id(newer)[world.sink])
    world.tell(bookkeeping.forget_old_entries(newer, world.sink, 1, []))


SCRIPTS = (
    what_is_not_committed_is_undone,
    what_is_prepared_is_settled_once,
    whoever_prepared_may_still_be_there,
    an_entry_of_the_ledger_is_written_once,
    a_key_is_given_new_values,
    older_sessions_are_ended,
)


@pytest.fixture
def real(server: DatabaseServer) -> Iterator[World]:
    url = parse_url(server.url)
    table = new_table(server)
    sink = sink_id("job", f"out {next(_runs)}", url.database, table)

    def look() -> list[tuple[int, str]]:
        return [(int(id), customer) for id, customer in server.ask(f"SELECT id, customer FROM {table}")]

    def opened(name: str) -> Session:
        session = connect(url, name, lock_timeout_s=1.0)
        bookkeeping.ensure_tables(session)
        return session

    world = World(table, opened, look, sink)
    yield world
    for session in world.opened:
        session.close()
    for name in prepared_of(server):
        server.settle(name, commit=False)


def model(server: DatabaseServer) -> World:
    made, url = ModelServer(server.kind), parse_url(server.url)
    made.make_table("sales", COLUMNS, ["id"])

    def opened(name: str) -> Session:
        session = ModelSession(made, url, name)
        bookkeeping.ensure_tables(session)
        return session

    return World(
        "sales",
        opened,
        lambda: [(row["id"], row["customer"]) for row in made.rows_of("sales")],
        sink_id("job", "out", url.database, "sales"),
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_model_answers_as_the_server_does(
    real: World, server: DatabaseServer, script: Callable[[World], None]
) -> None:
    modelled = model(server)
    script(real)
    script(modelled)

    assert modelled.told == real.told
