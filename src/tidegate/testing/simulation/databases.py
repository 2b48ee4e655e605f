"""A model of the database servers that the sinks write to, at the door where their code ends: a Session.

What it has of the real ones, because a sink can be wrong about it (tests/databases/test_model.py runs the same statements
against the servers and against the model, and compares):

    what a session has not committed or prepared is undone when it ends, and it ends when it is lost, or ended by another
    what is prepared survives its session, by its name; by XA others can settle it when the session that prepared it is gone
    a settled transaction is unknown from then on
    of two that add the same key the second finds it when the first is committed; until then it waits, here: it is refused
    a call may be carried out, and its answer be lost with the connection

It has no types, no constraints but unique keys, and no isolation levels: whoever looks sees what is committed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from tidegate.connectors.database import sink
from tidegate.connectors.database.bookkeeping import LEDGER, SESSIONS
from tidegate.connectors.database.names import TransactionName, session_is_before
from tidegate.connectors.database.session import Column, Prepared, Session, Settled, Trouble, explain
from tidegate.connectors.database.urls import POSTGRES, DatabaseUrl
from tidegate.ids import AttemptId
from tidegate.testing.simulation.outside import Outside, replaced

#: What may fail in it. Each also ends the session.
DATABASE_CALLS = ("begin", "insert", "prepare", "commit_prepared", "commit")
_KEYS = {LEDGER: ("id",), SESSIONS: ("session",)}

Row = dict[str, Any]


class State(enum.Enum):
    OPEN = "open"
    PREPARED = "prepared"


@dataclass(eq=False, slots=True)
class Transaction:
    """Rows that nobody sees yet, in order; each with the columns of its key."""

    writes: list[tuple[str, tuple[str, ...], Row]] = field(default_factory=list)
    state: State = State.OPEN
    holder: ModelSession | None = None  #: the session that it belongs to; None: anybody's

    def key_is_taken(self, table: str, key: tuple[str, ...], row: Row) -> bool:
        return any(
            (there, columns) == (table, key) and all(other[name] == row[name] for name in key)
            for there, columns, other in self.writes
            if key
        )


@dataclass(slots=True)
class ModelServer:
    """One database."""

    kind: str
    tables: dict[str, list[Row]] = field(default_factory=dict)
    columns: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, list[list[str]]] = field(default_factory=dict)
    prepared: dict[str, Transaction] = field(default_factory=dict)
    sessions: list[ModelSession] = field(default_factory=list)

    def make_table(self, table: str, columns: Sequence[str], key: Sequence[str] = ()) -> None:
        if table not in self.columns:
            self.tables[table], self.columns[table] = [], list(columns)
            self.keys[table] = [list(key)] if key else []

    def rows_of(self, table: str) -> list[Row]:
        """What a reader sees."""
        return [dict(row) for row in self.tables.get(table, [])]

    def apply(self, transaction: Transaction) -> None:
        for table, key, row in transaction.writes:
            rows = self.tables[table]
            same = [each for each in rows if key and all(each[name] == row[name] for name in key)]
            if same:
                same[0].update(row)
            else:
                rows.append(dict(row))

    def others(self, than: Transaction | None) -> Iterator[Transaction]:
        """That are not settled."""
        for session in self.sessions:
            if session.transaction is not None and session.transaction is not than:
                yield session.transaction
        yield from (each for each in self.prepared.values() if each is not than)


def server_of(outside: Outside, url: DatabaseUrl) -> ModelServer:
    """The one that a URL names; each run has servers of its own, empty at the beginning."""
    server = outside.models.setdefault(f"{url.kind}://{url.host}:{url.port}/{url.database}", ModelServer(url.kind))
    assert isinstance(server, ModelServer)
    return server


class ModelSession(Session):
    """A connection to a model. `uid`: of the sink whose misfortunes it has."""

    def __init__(
        self, server: ModelServer, url: DatabaseUrl, name: str, outside: Outside | None = None, uid: str = ""
    ) -> None:
        super().__init__(url, name)
        self.server = server
        self.transaction: Transaction | None = None
        self.is_open = True
        self._outside = outside
        self._uid = uid
        self._named: TransactionName | None = None
        server.sessions.append(self)

    @property
    def usable_after_prepare(self) -> bool:
        return self.server.kind == POSTGRES

    def _call(self, call: str, act: Callable[[], Any]) -> Any:
        self._check()
        if self._outside is None:
            return act()
        return self._outside.failing(self._uid, call, act, self.close)

    def _check(self) -> None:
        if not self.is_open:
            raise explain(self.url, "asking", "", Trouble.UNREACHABLE, "the connection has been ended")

    # -- statements -----------------------------------------------------------------------------------------------

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Those of bookkeeping.py."""
        self._check()
        match re.sub(r"\s+", " ", sql).split(" WHERE "):
            case [select, where] if select.startswith("SELECT "):
                names, _, table = select.removeprefix("SELECT ").partition(" FROM ")
                rows = [row for row in self._seen(table) if _fits(row, where, values)]
                return [tuple(1 if name == "1" else row[name] for name in names.split(", ")) for row in rows]
            case [select] if select.startswith("SELECT "):
                names, _, table = select.removeprefix("SELECT ").partition(" FROM ")
                return [tuple(row[name] for name in names.split(", ")) for row in self._seen(table)]
            case [delete, where] if delete.startswith("DELETE FROM "):
                rows = self.server.tables[delete.removeprefix("DELETE FROM ")]
                rows[:] = [row for row in rows if not _fits(row, where, values)]
                return []
        raise AssertionError(f"the model of the database does not know: {sql}")

    def _seen(self, table: str) -> list[Row]:
        own = [] if self.transaction is None else [row for name, _, row in self.transaction.writes if name == table]
        return [*self.server.tables.get(table, []), *own]

    def count(self, sql: str, *values: Any) -> int:
        raise AssertionError(f"the model of the database does not know: {sql}")

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]) -> None:
        writes = [(table, tuple(key), dict(zip(columns, row, strict=True))) for row in rows]
        self._call("insert", lambda: self._write(writes))

    def insert_if_absent(self, table: str, values: dict[str, Any]) -> bool:
        key = _KEYS[table]
        self._check()
        if any(all(row[name] == values[name] for name in key) for row in self._seen(table)):
            return False
        self._write([(table, key, dict(values))])
        return True

    def _write(self, writes: list[tuple[str, tuple[str, ...], Row]]) -> None:
        for table, key, row in writes:
            if any(other.key_is_taken(table, key, row) for other in self.server.others(self.transaction)):
                raise explain(
                    self.url, f"writing to {table}", table, Trouble.LOCKED, "another transaction holds the row"
                )
        if self.transaction is None:
            self.server.apply(Transaction(list(writes)))
        else:
            self.transaction.writes += writes

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin(self, name: TransactionName | None = None) -> None:
        def act() -> None:
            self.transaction, self._named = Transaction(holder=self), name

        self._call("begin", act)

    def commit(self) -> None:
        def act() -> None:
            assert self.transaction is not None
            self.server.apply(self.transaction)
            self.transaction = None

        self._call("commit", act)

    def rollback(self) -> None:
        self._check()
        self.transaction = None

    def prepare(self, name: TransactionName) -> None:
        def act() -> None:
            assert self.transaction is not None
            self.transaction.state = State.PREPARED
            if self.usable_after_prepare:
                self.transaction.holder = None
            self.server.prepared[str(name)], self.transaction = self.transaction, None

        self._call("prepare", act)

    def commit_prepared(self, name: TransactionName) -> Settled:
        settled: Settled = self._call("commit_prepared", lambda: self._settle(name, commit=True))
        return settled

    def rollback_prepared(self, name: TransactionName) -> Settled:
        self._check()
        return self._settle(name, commit=False)

    def _settle(self, name: TransactionName, commit: bool) -> Settled:
        found = self.server.prepared.get(str(name))
        if found is None:
            return Settled.UNKNOWN
        if found.holder not in (None, self):
            return Settled.BUSY
        del self.server.prepared[str(name)]
        if commit:
            self.server.apply(found)
        return Settled.DONE

    def list_prepared(self) -> list[Prepared]:
        self._check()
        names = (TransactionName.parse(name) for name in self.server.prepared)
        return [Prepared(name) for name in names if name is not None]

    def why_no_prepare(self, table: str) -> str | None:
        self._check()
        return None

    # -- the catalogue --------------------------------------------------------------------------------------------

    def columns_of(self, table: str) -> list[Column]:
        self._check()
        return [Column(name, "", nullable=True, has_default=True) for name in self.server.columns.get(table, [])]

    def unique_keys(self, table: str) -> list[list[str]]:
        self._check()
        return self.server.keys.get(table, [])

    def create_bookkeeping(self, statements: dict[str, str]) -> None:
        self._check()
        for table in statements:
            self.server.make_table(table, ["id"], _KEYS[table])

    # -- other sessions -------------------------------------------------------------------------------------------

    def sessions_of(self, sink: str) -> list[str]:
        self._check()
        of_sink = (each.name for each in self.server.sessions if each is not self)
        return [name for name in of_sink if name.startswith(f"tidegate:{sink}:")]

    def end_sessions(self, sink: str, before: AttemptId) -> list[str]:
        self._check()
        old = [each for each in self.server.sessions if session_is_before(each.name, sink, before)]
        for session in old:
            session.close()
        return sorted({session.name for session in old})

    def close(self) -> None:
        """As when it is lost: what is prepared is anybody's, what is open is undone."""
        if not self.is_open:
            return
        self.is_open, self.transaction = False, None
        self.server.sessions.remove(self)
        for prepared in self.server.prepared.values():
            if prepared.holder is self:
                prepared.holder = None


def _fits(row: Row, where: str, values: tuple[Any, ...]) -> bool:
    """`name = %s`, with AND between them. Nothing in a simulated run is old."""
    given = iter(values)
    for condition in where.split(" AND "):
        if " < " in condition:
            return False
        if row[condition.split(" = ")[0]] != next(given):
            return False
    return True


def modelled_databases(outside: Outside, uids: Mapping[str, str]) -> AbstractContextManager[None]:
    """Inside, whoever connects to a database gets the model of it. `uids`: by the id that each sink has in its database."""

    def connect(url: DatabaseUrl, name: str, lock_timeout_s: float = 30.0) -> Session:
        uid = uids.get(name.split(":")[1]) if name else None  # who cleans up has no name, and nothing happens to it
        return ModelSession(server_of(outside, url), url, name, None if uid is None else outside, uid or "")

    return replaced(sink, "connect", connect)
