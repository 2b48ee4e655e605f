"""MySQL and MariaDB by PyMySQL. Driver and executors; imported when a sink or source of this kind is used.

A prepared XA transaction stays with its session as long as that lives: MariaDB lets nobody else commit it before. So the
session of a writer is closed after each prepare. From then on any session can commit it, also after a restart of the
server.

Servers show no name of a session, so it is a lock that the session holds (GET_LOCK) and a row that tells of the lock
(bookkeeping.py): whoever holds the lock is the session, whatever number the server gave it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from tidegate import extras
from tidegate.connectors.database.bookkeeping import noted_sessions
from tidegate.connectors.database.names import TransactionName, session_is_before
from tidegate.connectors.database.session import (
    Column,
    Prepared,
    Session,
    Settled,
    Trouble,
    explain,
    explaining,
)
from tidegate.connectors.database.urls import DatabaseUrl
from tidegate.ids import AttemptId

FORMAT_ID = 0x7467  #: of our XA ids: "tg". Others' are never looked at
_XA_UNKNOWN = 1397  #: XAER_NOTA
_NO_SUCH_THREAD = 1094
_UNKNOWN_VARIABLE = 1193
_ENDING_S = 10.0
_READ_TIMEOUT_S = 300


def driver() -> Any:
    return extras.MYSQL.load()


def trouble_of(error: Any) -> Trouble:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if code in _BY_CODE:
        return _BY_CODE[code]
    kinds = driver()
    if isinstance(error, kinds.err.InterfaceError):
        return Trouble.UNREACHABLE  # the connection is closed
    if code == 0 and isinstance(error, kinds.ProgrammingError):
        return Trouble.BAD_RECORD  # PyMySQL's own: it cannot write NaN and infinity
    return Trouble.BAD_RECORD if isinstance(error, (kinds.DataError, kinds.IntegrityError)) else Trouble.OTHER


_BY_CODE = {
    **dict.fromkeys([1927, 2002, 2003, 2005, 2006, 2013, 1053, 1159, 1160, 1161, 1317], Trouble.UNREACHABLE),
    **dict.fromkeys([1045, 1698, 2059, 2061], Trouble.LOGIN_REFUSED),
    **dict.fromkeys([1049], Trouble.NO_DATABASE),
    **dict.fromkeys([1146, 1054], Trouble.NO_TABLE),
    **dict.fromkeys([1044, 1142, 1143, 1227, 1370, 1401], Trouble.NOT_ALLOWED),
    **dict.fromkeys([1205, 1213, 1614], Trouble.LOCKED),
    **dict.fromkeys([1040, 1114, 1203, 1021], Trouble.NO_ROOM),
    **dict.fromkeys(
        [1048, 1062, 1118, 1153, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1452, 3819, 4025], Trouble.BAD_RECORD
    ),
}


class MySqlSession(Session):
    usable_after_prepare = False
    _quote = "`"

    def __init__(self, url: DatabaseUrl, name: str, lock_timeout_s: float) -> None:
        super().__init__(url, name)
        with explaining(url, "connecting"):
            self._connection = driver().connect(
                host=url.host,
                port=url.port,
                database=url.database,
                user=url.user,
                password=url.password or "",
                charset="utf8mb4",
                connect_timeout=10,
                read_timeout=_READ_TIMEOUT_S + int(lock_timeout_s),
                autocommit=True,
                program_name="tidegate",
                ssl={"ca": dict(url.options)["ssl_ca"]} if url.options else None,
                # Strict: a value that does not fit is refused, not cut. Read committed: no locks on gaps between rows.
                init_command="SET SESSION time_zone = '+00:00', wait_timeout = 2147483, "
                f"innodb_lock_wait_timeout = {max(1, int(lock_timeout_s))}, "
                "sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES')",
            )
            self.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            ((self._largest_packet,),) = self.run("SELECT @@max_allowed_packet")
            self._may_wait_in_a_transaction()
            if name:
                self._take_name()

    def _may_wait_in_a_transaction(self) -> None:
        """An epoch may be quiet for long. MariaDB can be told to end sessions that are; MySQL has no such setting."""
        try:
            self.run("SET SESSION idle_transaction_timeout = 0, idle_write_transaction_timeout = 0")
        except driver().MySQLError as error:
            if error.args[0] != _UNKNOWN_VARIABLE:
                raise

    def _take_name(self) -> None:
        # A writer's next session has the name of its last one, which may be about to end: its lock is waited for.
        ((taken,),) = self.run("SELECT GET_LOCK(%s, 10)", self.name)
        if taken != 1:
            raise explain(
                self.url, "connecting", "", Trouble.LOCKED, f"the lock {self.name}, a session's name, is taken"
            )

    # -- statements -----------------------------------------------------------------------------------------------

    def run(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, values or None)
            return list(cursor.fetchall()) if cursor.description is not None else []

    def count(self, sql: str, *values: Any) -> int:
        with self._connection.cursor() as cursor:
            return int(cursor.execute(sql, values or None))

    def insert(self, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], key: Sequence[str]) -> None:
        names, places = ", ".join(map(self.quoted, columns)), ", ".join(["%s"] * len(columns))
        sql = f"INSERT INTO {self.quoted(table)} ({names}) VALUES ({places})"
        if key:
            others = [column for column in columns if column not in key] or list(key[:1])
            sql += " ON DUPLICATE KEY UPDATE " + ", ".join(f"{c} = VALUES({c})" for c in map(self.quoted, others))
        with self.explained(f"writing to {table}", table), self._connection.cursor() as cursor:
            try:
                cursor.executemany(sql, rows)
            except driver().OperationalError as error:
                # A server that is sent too much closes the connection, often before its reason has arrived.
                if trouble_of(error) is Trouble.UNREACHABLE and any(map(self._is_too_large, rows)):
                    reason = f"a record is larger than max_allowed_packet, {self._largest_packet} bytes"
                    raise explain(self.url, f"writing to {table}", table, Trouble.BAD_RECORD, reason) from None
                raise

    def _is_too_large(self, row: Sequence[Any]) -> bool:
        size = sum(len(value) for value in row if isinstance(value, str | bytes))
        return bool(size > self._largest_packet - 1000)

    def insert_if_absent(self, table: str, values: dict[str, Any]) -> bool:
        names, places = ", ".join(map(self.quoted, values)), ", ".join(["%s"] * len(values))
        return self.count(f"INSERT IGNORE INTO {self.quoted(table)} ({names}) VALUES ({places})", *values.values()) == 1

    # -- transactions ---------------------------------------------------------------------------------------------

    def begin(self, name: TransactionName | None = None) -> None:
        self.run("START TRANSACTION" if name is None else f"XA START {_xid(name)}")

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        self.run("ROLLBACK")

    def prepare(self, name: TransactionName) -> None:
        self.run(f"XA END {_xid(name)}")
        self.run(f"XA PREPARE {_xid(name)}")

    def commit_prepared(self, name: TransactionName) -> Settled:
        return self._settle("XA COMMIT", name)

    def rollback_prepared(self, name: TransactionName) -> Settled:
        return self._settle("XA ROLLBACK", name)

    def _settle(self, verb: str, name: TransactionName) -> Settled:
        try:
            self.run(f"{verb} {_xid(name)}")
        except driver().MySQLError as error:
            if error.args and error.args[0] == _XA_UNKNOWN:
                # Also the answer for one that is there, but still with the session that prepared it.
                there = any(prepared.name == name for prepared in self.list_prepared())
                return Settled.BUSY if there else Settled.UNKNOWN
            raise
        return Settled.DONE

    def list_prepared(self) -> list[Prepared]:
        found = []
        for format_id, gtrid_length, _, data in self.run("XA RECOVER"):
            text = data if isinstance(data, str) else bytes(data).decode("ascii", "replace")
            if format_id == FORMAT_ID and (name := _name_of(text[:gtrid_length], text[gtrid_length:])) is not None:
                found.append(Prepared(name))
        return found

    def why_no_prepare(self, table: str) -> str | None:
        engine = self._engine(table)
        if engine and engine != "InnoDB":
            return f"the table's engine is {engine}, not InnoDB"
        ((version,),) = self.run("SELECT VERSION()")
        oldest = (10, 5) if "mariadb" in version.lower() else (5, 7)
        numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
        if numbers < oldest:
            return f"version {version} forgets prepared transactions when their session ends"
        if any(value.upper() == "ON" for _, value in self.run("SHOW VARIABLES LIKE 'wsrep_on'")):
            return "the server is part of a Galera cluster, which has no XA"
        try:
            self.run("XA RECOVER")
        except driver().MySQLError as error:
            return f"XA RECOVER is refused ({error.args[-1]})"
        return None

    # -- the catalogue --------------------------------------------------------------------------------------------

    def _engine(self, table: str) -> str:
        rows = self.run(
            "SELECT engine FROM information_schema.tables WHERE table_schema = COALESCE(%s, DATABASE()) "
            "AND table_name = %s",
            *_schema_and_name(table),
        )
        return (rows[0][0] or "") if rows else ""

    def columns_of(self, table: str) -> list[Column]:
        rows = self.run(
            "SELECT column_name, column_type, is_nullable, column_default IS NOT NULL OR extra <> '' "
            "FROM information_schema.columns WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s "
            "ORDER BY ordinal_position",
            *_schema_and_name(table),
        )
        return [
            Column(name, _text(type).lower(), nullable == "YES", bool(default))
            for name, type, nullable, default in rows
        ]

    def unique_keys(self, table: str) -> list[list[str]]:
        rows = self.run(
            "SELECT index_name, column_name, nullable = '' AND sub_part IS NULL AND column_name IS NOT NULL "
            "FROM information_schema.statistics WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s "
            "AND non_unique = 0 ORDER BY index_name <> 'PRIMARY', index_name, seq_in_index",
            *_schema_and_name(table),
        )
        keys: dict[str, list[str]] = {}
        for index, column, _ in rows:
            keys.setdefault(index, []).append(column)
        # Of columns that may be null, of beginnings of texts and of expressions: unique in none of its columns.
        for index in {index for index, _, is_plain in rows if not is_plain}:
            del keys[index]
        return list(keys.values())

    def why_no_upsert(self, table: str, key: Sequence[str], columns: Sequence[str]) -> str | None:
        """ON DUPLICATE KEY takes whichever unique index finds a row first."""
        rows = self.run(
            "SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = COALESCE(%s, DATABASE()) "
            "AND table_name = %s AND non_unique = 0 ORDER BY index_name, seq_in_index",
            *_schema_and_name(table),
        )
        indexes: dict[str, list[str]] = {}
        for index, column in rows:
            indexes.setdefault(index, []).extend([column] if column else [])
        for index, of in indexes.items():
            if set(of) <= set(columns) and not set(key) <= set(of):
                return f"its unique index {index!r} ({', '.join(of)}) may find the row of another key"
        return None

    def create_bookkeeping(self, statements: dict[str, str]) -> None:
        for table, sql in statements.items():
            if not self.columns_of(table):
                self.run(sql)

    # -- other sessions -------------------------------------------------------------------------------------------

    def end_sessions(self, sink: str, before: AttemptId) -> list[str]:
        ended = []
        for name in noted_sessions(self, sink):
            if not session_is_before(name, sink, before):
                continue
            if self._end_holder(name):
                ended.append(name)
        return ended

    def sessions_of(self, sink: str) -> list[str]:
        names = [name for name in noted_sessions(self, sink) if name != self.name]
        return [name for name in names if self.run("SELECT IS_USED_LOCK(%s)", name) != [(None,)]]

    def _end_holder(self, lock: str) -> bool:
        found = False
        deadline = time.monotonic() + _ENDING_S
        while time.monotonic() < deadline:
            ((connection,),) = self.run("SELECT IS_USED_LOCK(%s)", lock)
            if connection is None:
                break
            found = True
            try:
                self.run(f"KILL CONNECTION {int(connection)}")
            except driver().MySQLError as error:
                if error.args[0] != _NO_SUCH_THREAD:
                    raise
            time.sleep(0.02)
        return found


def _xid(name: TransactionName) -> str:
    """Both parts have room for 64 bytes; all letters are harmless."""
    return f"'tidegate:{name.sink}:{name.nonce}','{name.attempt}:{name.subtask}:{name.sequence}',{FORMAT_ID}"


def _name_of(gtrid: str, bqual: str) -> TransactionName | None:
    try:
        prefix, sink, nonce = gtrid.split(":")
        attempt, subtask, sequence = bqual.split(":")
    except ValueError:
        return None
    return TransactionName.parse(f"{prefix}:{sink}:{attempt}:{subtask}:{sequence}:{nonce}")


def _schema_and_name(table: str) -> tuple[str | None, str]:
    schema, dot, name = table.rpartition(".")
    return (schema if dot else None), name


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
