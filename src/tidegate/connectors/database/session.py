"""What the sinks and the table reader ask of a database, whatever its kind. Driver and executors.

A session is one connection with a name that other connections can see. It is used by one thread. Between `begin` and
`commit` or `prepare` it is in a transaction; else every statement stands alone.

Every error of a driver becomes one of ours, which says what was being done, in which database, and the way out. Passwords
are taken out of all texts.
"""

from __future__ import annotations

import contextlib
import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.database.names import TransactionName
from tidegate.connectors.database.urls import MYSQL, POSTGRES, DatabaseUrl
from tidegate.errors import ConfigurationError, ConnectorError, TidegateError, TypeDeclarationError
from tidegate.ids import AttemptId


class Trouble(enum.Enum):
    """What an error of a driver means to us."""

    UNREACHABLE = "unreachable"  #: or lost in between
    LOGIN_REFUSED = "login refused"
    NO_DATABASE = "no such database"
    NO_TABLE = "no such table or column"
    NOT_ALLOWED = "not allowed"
    LOCKED = "locked"  #: waited too long for a lock, or a deadlock was broken
    BAD_RECORD = "bad record"  #: the table refuses a value
    NO_ROOM = "no room"  #: no place for another prepared transaction, connection, or on the disk
    OTHER = "other"


class Settled(enum.Enum):
    """What became of the wish to commit, or roll back, a prepared transaction."""

    DONE = "done"
    UNKNOWN = "unknown"  #: the server knows no such transaction: committed before, rolled back, or never prepared
    BUSY = "busy"  #: it is there, and another session holds it


@dataclass(frozen=True, slots=True)
class Prepared:
    """A prepared transaction of ours, as the server lists it."""

    name: TransactionName
    since: str = ""  #: when it was prepared, where the server says so


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    type: str  #: in lower case, as the server says
    nullable: bool
    has_default: bool  #: may be left out of an insert


class Session(ABC):
    """An open connection."""

    def __init__(self, url: DatabaseUrl, name: str) -> None:
        self.url = url
        self.name = name

    # -- statements -----------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement, with %s for values; the rows that it gives."""

    @abstractmethod
    def count(self, sql: str, *values: Any) -> int:
        """One statement; how many rows it has changed."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]) -> None:
        """Add rows. With a key, a row that is there already is given the new values instead."""

    @abstractmethod
    def insert_if_absent(self, table: str, values: dict[str, Any]) -> bool:
        """Add a row unless its primary key is taken; whether it was added. Waits for whoever is adding the same."""

    def quoted(self, name: str) -> str:
        """A table or a column; "schema.table" is two names."""
        mark = self._quote
        return ".".join(f"{mark}{part.replace(mark, mark * 2)}{mark}" for part in name.split("."))

    _quote = '"'

    # -- transactions ---------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, name: TransactionName | None = None) -> None:
        """With a name: one that can be prepared."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def rollback(self) -> None: ...

    @abstractmethod
    def prepare(self, name: TransactionName) -> None:
        """First phase. When it returns, the transaction survives this session and the server's restart."""

    @property
    @abstractmethod
    def usable_after_prepare(self) -> bool:
        """False: others can commit what was prepared only when this session is closed."""

    @abstractmethod
    def commit_prepared(self, name: TransactionName) -> Settled: ...

    @abstractmethod
    def rollback_prepared(self, name: TransactionName) -> Settled: ...

    @abstractmethod
    def list_prepared(self) -> list[Prepared]:
        """All of ours on this server that this user can settle."""

    @abstractmethod
    def why_no_prepare(self, table: str) -> str | None:
        """Why transactions cannot be prepared here; None when they can."""

    # -- the catalogue --------------------------------------------------------------------------------------------

    @abstractmethod
    def columns_of(self, table: str) -> list[Column]:
        """Empty when there is no such table."""

    @abstractmethod
    def unique_keys(self, table: str) -> list[list[str]]:
        """The columns of each index by which no two rows are the same, in any way: of whole columns, none of which may be null.
        The primary key first."""

    def why_no_upsert(self, table: str, key: Sequence[str], columns: Sequence[str]) -> str | None:
        """Why a record with these columns could be written over a row of another key; None where it cannot."""
        return None

    @abstractmethod
    def create_bookkeeping(self, statements: dict[str, str]) -> None:
        """Make the tables that are missing; several sessions may do so at once."""

    # -- other sessions -------------------------------------------------------------------------------------------

    @abstractmethod
    def sessions_of(self, sink: str) -> list[str]:
        """The names of all sessions of a sink that are connected now, without this one."""

    @abstractmethod
    def end_sessions(self, sink: str, before: AttemptId) -> list[str]:
        """End the sessions of earlier attempts of one sink, and with them their locks; returns their names."""

    _connection: Any  #: the driver's

    def close(self) -> None:
        """What is not committed or prepared is undone. Never raises."""
        with contextlib.suppress(Exception):
            self._connection.close()

    # -- errors ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def explained(self, doing: str, table: str = "") -> Iterator[None]:
        with explaining(self.url, doing, table):
            yield


@contextlib.contextmanager
def explaining(url: DatabaseUrl, doing: str, table: str = "") -> Iterator[None]:
    """Turns the driver's errors into ours."""
    drivers_error, trouble_of = _drivers_errors(url)
    try:
        yield
    except drivers_error as error:
        raise explain(url, doing, table, trouble_of(error), str(error)) from None
    except OSError as error:
        raise explain(url, doing, table, Trouble.UNREACHABLE, str(error)) from None


#: The end of its message where nobody listens.
_LIBPQ_ASKS = "Is the server running on that host and accepting TCP/IP connections?"


def explain(url: DatabaseUrl, doing: str, table: str, trouble: Trouble, text: str) -> TidegateError:
    """The error that a user reads: what, where, why, and the way out."""
    said = " ".join(url.scrub(text).split()).removesuffix(_LIBPQ_ASKS).rstrip(" .")
    what = f"{url}: {doing}: {said}."
    match trouble:
        case Trouble.UNREACHABLE:
            return ConnectorError(
                f"{what} The database cannot be reached, or has ended the connection. Is it up, and is "
                "the address right from every executor?"
            )
        case Trouble.LOGIN_REFUSED:
            return ConfigurationError(
                f"{what} The database does not let the user in: look at user and password of the URL (or at what "
                "password_env names), and at the server's rules for this host."
            )
        case Trouble.NO_DATABASE:
            return ConfigurationError(f"{what} Create the database, or correct the end of the URL.")
        case Trouble.NO_TABLE:
            return ConfigurationError(f"{what} Create or correct the table {table!r}; Tidegate does not change it.")
        case Trouble.NOT_ALLOWED:
            return ConfigurationError(f"{what} Grant the user what is missing.")
        case Trouble.LOCKED:
            return ConnectorError(
                f"{what} Another transaction holds the rows. If no session does, it is a prepared one that was left "
                "behind: `tidegate sinks in-doubt` lists them."
            )
        case Trouble.BAD_RECORD:
            return TypeDeclarationError(
                f"{what} The table {table!r} refuses a record. Change the record before the sink, or the column."
            )
        case Trouble.NO_ROOM:
            return ConnectorError(
                f"{what} The server has no room: each subtask of a sink needs a connection or two, and a prepared "
                "transaction for each checkpoint that is not committed yet (PostgreSQL: max_prepared_transactions)."
            )
        case Trouble.OTHER:
            return ConnectorError(what)


def _drivers_errors(url: DatabaseUrl) -> tuple[type[Exception], Any]:
    if url.kind == POSTGRES:
        from tidegate.connectors.database import postgres

        return postgres.driver().Error, postgres.trouble_of
    from tidegate.connectors.database import mysql

    return mysql.driver().MySQLError, mysql.trouble_of


def connect(url: DatabaseUrl, name: str, lock_timeout_s: float = 30.0) -> Session:
    """:raises ConfigurationError: :raises ConnectorError: saying what to do."""
    if url.kind == POSTGRES:
        from tidegate.connectors.database.postgres import PostgresSession

        return PostgresSession(url, name, lock_timeout_s)
    assert url.kind == MYSQL
    from tidegate.connectors.database.mysql import MySqlSession

    return MySqlSession(url, name, lock_timeout_s)
