"""The two tables that the sinks keep in a user's database. Driver and executors.

    tidegate_ledger     a row for each epoch of each writer, written in the same transaction as the epoch's records: the row
                        is there exactly when they are. It is the evidence that a commit has happened
    tidegate_sessions   a row for each connection, which says (MySQL) the lock that is its name, and one for each sink: its job

Both are made when they are missing. Whoever may not create tables gets the statements in the error.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidegate.connectors.database.names import session_is_before
from tidegate.connectors.database.urls import POSTGRES
from tidegate.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.connectors.database.names import SessionName
    from tidegate.connectors.database.session import Session
    from tidegate.ids import AttemptId

LEDGER = "tidegate_ledger"
SESSIONS = "tidegate_sessions"


def statements(kind: str) -> dict[str, str]:
    """How each table is made."""
    name, now, end = (
        ("varchar(200)", "timestamptz NOT NULL DEFAULT now()", "")
        if kind == POSTGRES
        else (
            "varchar(200) CHARACTER SET ascii COLLATE ascii_bin",
            "timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP",
            " ENGINE=InnoDB",
        )
    )
    return {
        LEDGER: f"CREATE TABLE IF NOT EXISTS {LEDGER} (id {name} PRIMARY KEY, sink {name} NOT NULL, "
        f"checkpoint_id bigint NOT NULL, row_count bigint NOT NULL, written_at {now}){end}",
        SESSIONS: f"CREATE TABLE IF NOT EXISTS {SESSIONS} (session {name} PRIMARY KEY, sink {name} NOT NULL, "
        f"job varchar(200) NOT NULL, uid varchar(200) NOT NULL, target varchar(200) NOT NULL, opened_at {now}){end}",
    }


def ensure_tables(session: Session) -> None:
    """:raises ConfigurationError: with the statements, when they are missing and cannot be made."""
    try:
        with session.explained("creating Tidegate's own tables"):
            session.create_bookkeeping(statements(session.url.kind))
    except ConfigurationError as error:
        wanted = "\n".join(f"    {sql};" for sql in statements(session.url.kind).values())
        raise ConfigurationError(f"{error} Or let somebody who may create tables run\n{wanted}") from None


def register_session(session: Session, name: SessionName, job: str, uid: str, target: str) -> None:
    """A row for the session, and one for the sink, which stays when its sessions are forgotten."""
    about = {"sink": name.sink, "job": job[:200], "uid": uid[:200], "target": target[:200]}
    session.insert_if_absent(SESSIONS, {"session": str(name), **about})
    session.insert_if_absent(SESSIONS, {"session": f"sink:{name.sink}", **about})


def noted_sessions(session: Session, sink: str) -> list[str]:
    return [name for (name,) in session.run(f"SELECT session FROM {SESSIONS} WHERE sink = %s", sink)]


def forget_sessions(session: Session, sink: str, before: AttemptId) -> None:
    """Those of earlier attempts, which have been ended."""
    for name in noted_sessions(session, sink):
        if session_is_before(name, sink, before):
            session.run(f"DELETE FROM {SESSIONS} WHERE session = %s", name)


def write_entry(session: Session, id: str, sink: str, checkpoint: int, rows: int) -> bool:
    """Inside the transaction of the records. False: the entry is there, so these records are committed already."""
    return session.insert_if_absent(LEDGER, {"id": id, "sink": sink, "checkpoint_id": checkpoint, "row_count": rows})


def has_entry(session: Session, id: str) -> bool:
    """Whether the records of that epoch are committed."""
    return bool(session.run(f"SELECT 1 FROM {LEDGER} WHERE id = %s", id))


def forget_old_entries(session: Session, sink: str, days: int, keep: Iterable[str]) -> int:
    """Remove entries that no checkpoint can still ask for, by their age."""
    age = (
        f"now() - interval '{int(days)} days'"
        if session.url.kind == POSTGRES
        else f"CURRENT_TIMESTAMP - INTERVAL {int(days)} DAY"
    )
    kept = set(keep)
    old = session.run(f"SELECT id FROM {LEDGER} WHERE sink = %s AND written_at < {age}", sink)
    gone = [id for (id,) in old if id not in kept]
    for id in gone:
        session.run(f"DELETE FROM {LEDGER} WHERE id = %s", id)
    return len(gone)


def sinks_by_id(session: Session) -> dict[str, tuple[str, str, str]]:
    """Job, uid and target of each sink that has ever connected."""
    if not session.columns_of(SESSIONS):
        return {}
    return {
        sink: (job, uid, target)
        for sink, job, uid, target in session.run(f"SELECT sink, job, uid, target FROM {SESSIONS}")
    }
