"""PostgreSQL by psycopg 3. Driver and executors; imported when a sink or source of this kind is used.

PREPARE TRANSACTION takes a transaction away from its session: anyone of the same user, in the same database, can commit
it, also after a restart of the server. A session is named by its application_name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tidegate import extras
from tidegate.connectors.database.names import TransactionName, session_is_before
from tidegate.connectors.database.session import (
    Column,
    Prepared,
    Session,
    Settled,
    Trouble,
    explaining,
)
from tidegate.connectors.database.urls import DatabaseUrl
from tidegate.ids import AttemptId

_UNKNOWN_TRANSACTION = "42704"  #: undefined_object
_BUSY_TRANSACTION = "55000"  #: object_not_in_prerequisite_state: another session is settling it
_BOOKKEEPING_LOCK = 0x7469646567617465  #: "tidegate": CREATE TABLE IF NOT EXISTS does not guard against two at once
_ENDING_S = 10.0


def driver() -> Any:
    return extras.POSTGRES.load()


def trouble_of(error: Any) -> Trouble:
    state = error.sqlstate or ""
    if not state:
        text = str(error)
        if "password" in text or "authentication" in text or "no pg_hba.conf entry" in text:
            return Trouble.LOGIN_REFUSED
        if "does not exist" in text:
            return Trouble.LOGIN_REFUSED if "role" in text else Trouble.NO_DATABASE
        if "too many clients" in text or "remaining connection slots" in text:
            return Trouble.NO_ROOM
        return Trouble.UNREACHABLE if isinstance(error, driver().OperationalError) else Trouble.BAD_RECORD
    if state in ("42P01", "42703", "3F000"):
        return Trouble.NO_TABLE
    if state in ("55P03", "40P01", "40001"):
        return Trouble.LOCKED
    return _BY_CLASS.get(state[:2], Trouble.OTHER)


_BY_CLASS = {
    "08": Trouble.UNREACHABLE,
    "57": Trouble.UNREACHABLE,  # shut down, or ended by another session
    "28": Trouble.LOGIN_REFUSED,
    "3D": Trouble.NO_DATABASE,
    "42": Trouble.NOT_ALLOWED,
    "53": Trouble.NO_ROOM,
    "54": Trouble.BAD_RECORD,  # a program limit: a row that is too large
    "22": Trouble.BAD_RECORD,
    "23": Trouble.BAD_RECORD,
    "21": Trouble.BAD_RECORD,
}


class PostgresSession(Session):
    usable_after_prepare = True

    def __init__(self, url: DatabaseUrl, name: str, lock_timeout_s: float) -> None:
        super().__init__(url, name)
        with explaining(url, "connecting"):
            self._connection = driver().connect(
                host=url.host,
                port=url.port,
                dbname=url.database,
                user=url.user,
                password=url.password,
                application_name=name[:63],
                connect_timeout=10,
                keepalives_idle=30,
                tcp_user_timeout=60_000,
                autocommit=True,
                # An epoch may be quiet for long; a wait for a lock must end, or the slot would never hear of a commit.
                options=f"-c lock_timeout={int(lock_timeout_s * 1000)} -c idle_in_transaction_session_timeout=0 "
                "-c timezone=UTC -c statement_timeout=0",
                **dict(url.options),
            )

    # -- statements -----------------------------------------------------------------------------------------------

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self._connection.execute(sql, values or None)
        return cursor.fetchall() if cursor.description is not None else []

    def count(self, sql: str, *values: Any) -> int:
        return int(self._connection.execute(sql, values or None).rowcount)

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]) -> None:
        names = ", ".join(map(self.quoted, columns))
        with self.explained(f"writing to {table}", table), self._connection.cursor() as cursor:
            if not key:
                with cursor.copy(f"COPY {self.quoted(table)} ({names}) FROM STDIN") as copy:
                    for row in rows:
                        copy.write_row(row)
                return
            others = [column for column in columns if column not in key]
            update = ", ".join(f"{self.quoted(column)} = EXCLUDED.{self.quoted(column)}" for column in others)
            cursor.executemany(
                f"INSERT INTO {self.quoted(table)} ({names}) VALUES ({', '.join(['%s'] * len(columns))}) "
                f"ON CONFLICT ({', '.join(map(self.quoted, key))}) "
                + (f"DO UPDATE SET {update}" if update else "DO NOTHING"),
                rows,
            )

    def insert_if_absent(self, table: str, values: dict[str, Any]) -> bool:
        names, places = ", ".join(map(self.quoted, values)), ", ".join(["%s"] * len(values))
        sql = f"INSERT INTO {self.quoted(table)} ({names}) VALUES ({places}) ON CONFLICT DO NOTHING"
        return self.count(sql, *values.values()) == 1

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin(self, name: TransactionName | None = None) -> None:
        self.run("BEGIN")

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        self.run("ROLLBACK")

    def prepare(self, name: TransactionName) -> None:
        self.run(f"PREPARE TRANSACTION '{name}'")

    def commit_prepared(self, name: TransactionName) -> Settled:
        return self._settle(f"COMMIT PREPARED '{name}'")

    def rollback_prepared(self, name: TransactionName) -> Settled:
        return self._settle(f"ROLLBACK PREPARED '{name}'")

    def _settle(self, sql: str) -> Settled:
        try:
            self.run(sql)
        except driver().Error as error:
            if error.sqlstate == _UNKNOWN_TRANSACTION:
                return Settled.UNKNOWN
            if error.sqlstate == _BUSY_TRANSACTION:
                return Settled.BUSY
            raise
        return Settled.DONE

    def list_prepared(self) -> list[Prepared]:
        found = self.run(
            "SELECT gid, to_char(prepared, 'YYYY-MM-DD HH24:MI:SS') FROM pg_prepared_xacts "
            "WHERE database = current_database() AND gid LIKE 'tidegate:%' ORDER BY prepared"
        )
        return [
            Prepared(name, f"{since} UTC") for gid, since in found if (name := TransactionName.parse(gid)) is not None
        ]

    def why_no_prepare(self, table: str) -> str | None:
        ((allowed,),) = self.run("SHOW max_prepared_transactions")
        return None if int(allowed) > 0 else "max_prepared_transactions is 0"

    # -- the catalogue --------------------------------------------------------------------------------------------

    def columns_of(self, table: str) -> list[Column]:
        rows = self.run(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull, "
            "atthasdef OR attidentity <> '' OR attgenerated <> '' FROM pg_attribute "
            "WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            self.quoted(table),
        )
        return [Column(name, type.lower(), not not_null, bool(default)) for name, type, not_null, default in rows]

    def unique_keys(self, table: str) -> list[list[str]]:
        rows = self.run(
            "SELECT array_agg(a.attname::text ORDER BY array_position(i.indkey::int2[], a.attnum)) "
            "FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey::int2[]) "
            "WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL "
            "AND i.indexprs IS NULL GROUP BY i.indexrelid, i.indisprimary HAVING bool_and(a.attnotnull) "
            "ORDER BY i.indisprimary DESC",
            self.quoted(table),
        )
        return [list(columns) for (columns,) in rows]

    def create_bookkeeping(self, statements: dict[str, str]) -> None:
        if all(self.columns_of(table) for table in statements):
            return
        self.run("SELECT pg_advisory_lock(%s)", _BOOKKEEPING_LOCK)
        try:
            for table, sql in statements.items():
                if not self.columns_of(table):
                    self.run(sql)
        finally:
            self.run("SELECT pg_advisory_unlock(%s)", _BOOKKEEPING_LOCK)

    # -- other sessions -------------------------------------------------------------------------------------------

    def end_sessions(self, sink: str, before: AttemptId) -> list[str]:
        ended = []
        deadline = time.monotonic() + _ENDING_S
        while old := [(pid, name) for pid, name in self._sessions(sink) if session_is_before(name, sink, before)]:
            for pid, name in old:
                self.run("SELECT pg_terminate_backend(%s)", pid)
                ended.append(name)
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        return sorted(set(ended))

    def sessions_of(self, sink: str) -> list[str]:
        return [name for _, name in self._sessions(sink)]

    def _sessions(self, sink: str) -> list[tuple[int, str]]:
        return self.run(
            "SELECT pid, application_name FROM pg_stat_activity WHERE application_name LIKE %s "
            "AND pid <> pg_backend_pid()",
            f"tidegate:{sink}:%",
        )
