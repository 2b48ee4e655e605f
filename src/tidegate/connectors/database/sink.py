"""A table of PostgreSQL, MySQL or MariaDB, each record in it exactly once. See docs/decisions for the reasons.

Where it runs: writers and committers on the executors; `clean_up` on the driver, before each attempt.

Two ways, and a committable says which it went, so that a job may change its mind:

    two-phase   records go into an open transaction as they come; at the barrier the ledger's row is added and the
                transaction is prepared; when the checkpoint is complete it is committed by its name
    ledger      records stay in the checkpoint; when it is complete one transaction writes them together with the ledger's
                row. For servers that do not prepare, and for upserts: a prepared transaction holds the locks of its rows,
                and the next epoch's upsert of the same row would wait for a commit that waits for the upsert

The steps of two-phase, and what a crash after each leaves to be found:

  1. records are written                nothing: the server undoes them when the session ends, or `clean_up` ends it
  2. ledger row                         the same
  3. PREPARE                            a prepared transaction that no checkpoint names: `clean_up` rolls it back
  4. the checkpoint is complete         it is named now: commit it
  5. COMMIT                             unknown to the server; the ledger's row says that it is done

Neither prepared nor in the ledger: somebody has rolled it back. The job stops and says so.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.connectors.contract import Committer, Sink, SinkWriter, WriterContext
from tidegate.connectors.database import bookkeeping, committables
from tidegate.connectors.database.committer import DatabaseCommitter
from tidegate.connectors.database.names import (
    SessionName,
    TransactionName,
    TransactionNames,
    new_nonce,
    parse_attempt,
    sink_id,
)
from tidegate.connectors.database.rows import check_columns, newest_of_each_key, plain_columns, rows_of
from tidegate.connectors.database.session import Session, Settled, connect
from tidegate.connectors.database.urls import POSTGRES, DatabaseUrl, parse_url
from tidegate.connectors.epoch_room import EPOCH_BYTES, EpochRoom, checked_epoch_bytes
from tidegate.errors import ConfigurationError
from tidegate.ids import AttemptId, CheckpointId

ROWS_A_STATEMENT = 1000  #: records wait for each other up to here, or until the barrier
_SETTLING_S = 5.0


class DatabaseSink(Sink):
    """Adds the records of a typed stream to a table. Exactly-once: they appear when their checkpoint is complete.

    Fields go to the columns of the same name. The table must exist; `tidegate_ledger` and `tidegate_sessions` are made
    beside it.

    :param url: postgresql://user:password@host/database or mysql://user:password@host/database
    :param table: its name, or schema.table
    :param key: columns of a unique index: a record replaces the row with the same key. Without it rows are added.
    :param commit: "two-phase", "ledger", or "auto": two-phase where the server allows it and no key is given.
    :param password_env: an environment variable of the driver that holds the password, in place of the URL
    :param max_epoch_bytes: "ledger" keeps the records of a checkpoint in it; more than this of one subtask is an error
    :param lock_timeout_s: how long a statement waits for a lock before the job restarts
    :param ledger_days: how long the ledger remembers what was committed: as long as a job may be down, or an old savepoint
        be used
    """

    guarantee = "exactly-once"

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: str | Sequence[str] = (),
        commit: str = "auto",
        password_env: str | None = None,
        max_epoch_bytes: int = EPOCH_BYTES,
        lock_timeout_s: float = 30.0,
        ledger_days: int = 30,
    ) -> None:
        if commit not in ("auto", "two-phase", "ledger"):
            raise ConfigurationError(f"commit={commit!r}: there are 'auto', 'two-phase' and 'ledger'.")
        self.url: DatabaseUrl = parse_url(url, password_env)
        self.table = table
        self.key = [key] if isinstance(key, str) else list(key)
        if self.key and commit == "two-phase":
            raise ConfigurationError(
                "An upsert in a prepared transaction would hold the row against the next epoch. With a key use "
                "commit='ledger' (or 'auto')."
            )
        self.commit = "ledger" if self.key else commit
        self.max_epoch_bytes = checked_epoch_bytes(max_epoch_bytes)
        self.lock_timeout_s = lock_timeout_s
        self.ledger_days = ledger_days

    def writer(self, context: WriterContext) -> SinkWriter:
        sessions = NamedSessions(self, context, "w")
        session = sessions.open()
        try:
            columns = check_target(session, self.table, self.key, context)
            with session.explained("asking for prepared transactions"):
                refusal = None if self.commit == "ledger" else session.why_no_prepare(self.table)
        finally:
            session.close()
        if refusal is not None and self.commit == "two-phase":
            raise ConfigurationError(
                f"{self.url}: transactions cannot be prepared: {refusal}. Change that, or use commit='ledger'."
            )
        two_phase = self.commit != "ledger" and refusal is None
        if two_phase:
            return _PreparingWriter(self, context, columns, sessions)
        return _KeepingWriter(self, context, columns)

    def committer(self, context: WriterContext) -> Committer:
        return DatabaseCommitter(self.url, NamedSessions(self, context, "c").open, context.clock)

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        sink = sink_id(job, uid, self.url.database, self.table)
        kept = {committables.decode(data).id for data in uncommitted}
        session = connect(self.url, "", self.lock_timeout_s)
        try:
            with session.explained("ending what older attempts have left"):
                if not session.columns_of(bookkeeping.SESSIONS):
                    return
                end_older_sessions(session, sink, attempt)
                for prepared in session.list_prepared():
                    name = prepared.name
                    if name.sink == sink and name.attempt < attempt and str(name) not in kept:
                        roll_back(session, name)
                bookkeeping.forget_old_entries(session, sink, self.ledger_days, kept)
        finally:
            session.close()


def end_older_sessions(session: Session, sink: str, before: AttemptId) -> None:
    session.end_sessions(sink, before)
    bookkeeping.forget_sessions(session, sink, before)


def roll_back(session: Session, name: TransactionName) -> Settled:
    """Waits a little for a session that was ended a moment ago and still holds the transaction."""
    deadline = time.monotonic() + _SETTLING_S
    while (settled := session.rollback_prepared(name)) is Settled.BUSY and time.monotonic() < deadline:
        time.sleep(0.05)
    return settled


# -- what sinks of this kind share --------------------------------------------------------------------------------


class NamedSessions:
    """Opens the sessions of one writer or committer, one at a time; all have one name, which holds the attempt."""

    def __init__(self, sink: Any, context: WriterContext, role: str) -> None:
        self._sink = sink
        self._context = context
        self._name = SessionName(
            sink=sink_id(context.job, context.uid, sink.url.database, sink.table),
            attempt=parse_attempt(context.attempt),
            subtask=context.subtask,
            role=role,
            nonce=new_nonce(),
        )
        self._noted = False

    def open(self) -> Session:
        session = connect(self._sink.url, str(self._name), self._sink.lock_timeout_s)
        if self._noted:
            return session
        try:
            bookkeeping.ensure_tables(session)
            with session.explained("noting the session"):
                bookkeeping.register_session(
                    session, self._name, self._context.job, self._context.uid, self._sink.table
                )
        except BaseException:
            session.close()
            raise
        self._noted = True
        return session


def check_target(session: Session, table: str, key: Sequence[str], context: WriterContext) -> list[str]:
    """The columns to fill. :raises ConfigurationError: when table and stream do not fit."""
    with session.explained(f"looking at table {table}", table):
        columns = session.columns_of(table)
        keys = session.unique_keys(table) if key else []
    if not columns:
        folded = table != table.lower() and session.url.kind == POSTGRES
        hint = f" PostgreSQL keeps names that were not quoted in lower case: {table.lower()!r}?" if folded else ""
        raise ConfigurationError(f"{session.url}: there is no table {table!r}. Create it; Tidegate does not.{hint}")
    if key and sorted(key) not in [sorted(there) for there in keys]:
        raise ConfigurationError(
            f"{session.url}: the table {table!r} has no unique index on exactly ({', '.join(key)}), all NOT NULL, so "
            "nothing says which row a record replaces. Add one, or correct key=."
        )
    names = check_columns(context.record_type, table, columns, key)
    if key:
        with session.explained(f"looking at table {table}", table):
            why = session.why_no_upsert(table, key, names)
        if why is not None:
            raise ConfigurationError(
                f"{session.url}: a record cannot replace the row with its key in table {table!r}: {why}, and the server would "
                "write over that. Drop that index, or leave one of its columns out of the records."
            )
    return names


def _names_of(sink: DatabaseSink, context: WriterContext) -> TransactionNames:
    id = sink_id(context.job, context.uid, sink.url.database, sink.table)
    return TransactionNames(id, parse_attempt(context.attempt), context.subtask)


class _GatheringWriter(SinkWriter):
    """Rows wait for each other, so that one statement takes many of them."""

    def __init__(self) -> None:
        self._waiting: list[tuple[object, ...]] = []

    def write(self, batch: Batch) -> None:
        self._waiting += rows_of(plain_columns(batch))
        if len(self._waiting) >= ROWS_A_STATEMENT:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._insert(self._waiting)
            self._waiting = []

    def _insert(self, rows: list[tuple[object, ...]]) -> None:
        raise NotImplementedError


# -- two-phase: the server holds the records ----------------------------------------------------------------------


class _PreparingWriter(_GatheringWriter):
    def __init__(self, sink: DatabaseSink, context: WriterContext, columns: list[str], sessions: NamedSessions) -> None:
        super().__init__()
        self._sink = sink
        self._columns = columns
        self._sessions = sessions
        self._names = _names_of(sink, context)
        self._session: Session | None = None
        self._open: TransactionName | None = None  #: the transaction of this epoch, from its first record on
        self._rows = 0

    def _insert(self, rows: list[tuple[object, ...]]) -> None:
        session = self._session_in_transaction()  # step 1
        session.insert(self._sink.table, self._columns, rows, ())
        self._rows += len(rows)

    def _session_in_transaction(self) -> Session:
        if self._session is None:
            self._session = self._sessions.open()
        if self._open is None:
            self._open = self._names.next()
            with self._session.explained("beginning a transaction"):
                self._session.begin(self._open)
        return self._session

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        self.flush()
        if self._open is None or self._session is None:
            return []
        name, rows = self._open, self._rows
        with self._session.explained(f"preparing the transaction of checkpoint {checkpoint}", self._sink.table):
            bookkeeping.write_entry(self._session, str(name), self._names.sink, checkpoint, rows)  # step 2
            self._session.prepare(name)  # step 3
        self._open, self._rows = None, 0
        if not self._session.usable_after_prepare:
            self.close()
        return [committables.encode(committables.PreparedEpoch(str(name), rows, self._sink.table))]

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


# -- ledger: the checkpoint holds the records ---------------------------------------------------------------------


class _KeepingWriter(SinkWriter):
    def __init__(self, sink: DatabaseSink, context: WriterContext, columns: list[str]) -> None:
        self._sink = sink
        self._columns = columns
        self._names = _names_of(sink, context)
        self._kept: list[pa.RecordBatch] = []
        what = f"{sink.url}: the sink to table {sink.table!r}"
        self._room = EpochRoom(what, context.subtask, sink.max_epoch_bytes, "use commit='two-phase', ")

    def write(self, batch: Batch) -> None:
        if len(batch) == 0:
            return
        self._kept.append(plain_columns(batch))
        self._room.take(self._kept[-1].nbytes)

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        if not self._kept:
            return []
        name = self._names.next()
        batches, self._kept = self._kept, []
        self._room.clear()
        epoch = committables.KeptEpoch(
            str(name), sum(map(len, batches)), self._sink.table, self._columns, self._sink.key, int(checkpoint)
        )
        return [committables.encode(epoch, batches)]


# -- upserts, at once ---------------------------------------------------------------------------------------------


class DatabaseUpsertSink(Sink):
    """Writes records at once, each over the row with the same key. At-least-once, which a key makes harmless.

    Rows are seen before their checkpoint is complete. After a failure records come again, and older values of a key can be
    seen for a moment until the newer ones have come again too. Parameters as for `DatabaseSink`.
    """

    guarantee = "at-least-once"

    def __init__(
        self,
        url: str,
        table: str,
        *,
        key: str | Sequence[str],
        password_env: str | None = None,
        lock_timeout_s: float = 30.0,
    ) -> None:
        self.url = parse_url(url, password_env)
        self.table = table
        self.key = [key] if isinstance(key, str) else list(key)
        if not self.key:
            raise ConfigurationError("An upsert needs key=: the columns that say which row a record replaces.")
        self.lock_timeout_s = lock_timeout_s

    def writer(self, context: WriterContext) -> SinkWriter:
        session = NamedSessions(self, context, "w").open()
        try:
            return _UpsertingWriter(self, session, check_target(session, self.table, self.key, context))
        except BaseException:
            session.close()
            raise

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        """An older worker that wakes up must not write older values over newer ones."""
        session = connect(self.url, "", self.lock_timeout_s)
        try:
            with session.explained("ending the sessions of older attempts"):
                if session.columns_of(bookkeeping.SESSIONS):
                    end_older_sessions(session, sink_id(job, uid, self.url.database, self.table), attempt)
        finally:
            session.close()


class _UpsertingWriter(_GatheringWriter):
    """Keeps one session and never opens another: one that was ended by a newer attempt stays ended."""

    def __init__(self, sink: DatabaseUpsertSink, session: Session, columns: list[str]) -> None:
        super().__init__()
        self._sink = sink
        self._session = session
        self._columns = columns

    def _insert(self, rows: list[tuple[object, ...]]) -> None:
        newest = newest_of_each_key(rows, self._columns, self._sink.key)
        with self._session.explained(f"writing to {self._sink.table}", self._sink.table):
            self._session.begin()
            self._session.insert(self._sink.table, self._columns, newest, self._sink.key)
            self._session.commit()

    def close(self) -> None:
        self._session.close()
