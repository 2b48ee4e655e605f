"""Prepared transactions that nobody has committed or rolled back yet: what they are, and settling them. Driver side.

A running job needs none of this: it commits what its checkpoint names and rolls back the rest before each attempt. It is for
a job that will not come back, and for a look at what holds locks. With the job's checkpoint storage it is known which
transactions the newest checkpoint still names: those are to be committed, all others of the job to be rolled back.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.connectors.database import bookkeeping, committables
from tidegate.connectors.database.session import Session, Settled
from tidegate.connectors.database.sink import roll_back
from tidegate.errors import ConnectorError


class Advice(enum.Enum):
    """What should become of a transaction."""

    COMMIT = "commit"  #: the newest checkpoint names it: its records are missing from the table
    ROLL_BACK = "roll back"  #: its job's newest checkpoint does not name it
    UNKNOWN = "unknown"  #: of another job, or the checkpoint was not looked at


@dataclass(frozen=True, slots=True)
class InDoubt:
    """One prepared transaction."""

    id: str
    job: str  #: "?" when the database has no note of it
    uid: str
    table: str
    attempt: str
    subtask: int
    since: str
    checkpoint: int | None  #: that names it
    advice: Advice


@dataclass(frozen=True, slots=True)
class Named:
    """What the newest checkpoint of a job names: transactions and the checkpoint that prepared each."""

    job: str
    checkpoints: dict[str, int]

    @staticmethod
    def of(job: str, payloads: Sequence[tuple[int, bytes]]) -> Named:
        """From the committables of the checkpoint; those of other kinds of sinks are passed over."""
        found = {}
        for checkpoint, payload in payloads:
            try:
                found[committables.decode(payload).id] = checkpoint
            except ValueError:
                continue
        return Named(job, found)


def list_in_doubt(session: Session, named: Named | None = None, job: str | None = None) -> list[InDoubt]:
    """All of ours on the server, or those of one job."""
    with session.explained("listing prepared transactions"):
        sinks = bookkeeping.sinks_by_id(session)
        prepared = session.list_prepared()
    found = []
    for entry in prepared:
        owner, uid, table = sinks.get(entry.name.sink, ("?", "?", "?"))
        if job is not None and owner != job:
            continue
        id = str(entry.name)
        checkpoint = None if named is None else named.checkpoints.get(id)
        if checkpoint is not None:
            advice = Advice.COMMIT
        else:
            advice = Advice.ROLL_BACK if named is not None and named.job == owner else Advice.UNKNOWN
        found.append(
            InDoubt(id, owner, uid, table, str(entry.name.attempt), entry.name.subtask, entry.since, checkpoint, advice)
        )
    return found


def settle(session: Session, id: str, commit: bool) -> None:
    """Commit or roll back one. :raises ConnectorError: when the server has no such transaction, or a session holds it."""
    for entry in session.list_prepared():
        if str(entry.name) == id:
            with session.explained(f"settling {id}"):
                settled = session.commit_prepared(entry.name) if commit else roll_back(session, entry.name)
            if settled is not Settled.DONE:
                raise ConnectorError(f"{session.url}: {id} could not be settled: {settled.value}. Is its job running?")
            return
    raise ConnectorError(f"{session.url} has no prepared transaction {id}. `tidegate sinks in-doubt` lists them.")


def live_sessions(session: Session, found: Sequence[InDoubt]) -> list[str]:
    """The sessions of the sinks that own these transactions, as far as they are connected now."""
    with session.explained("looking for the sessions of the job"):
        return [name for sink in sorted({_sink_of(entry) for entry in found}) for name in session.sessions_of(sink)]


def _sink_of(entry: InDoubt) -> str:
    return entry.id.split(":")[1]
