"""Second phase of the database sink: the evidence decides. Executor, the commits' thread; needs only the committables.

    what is found                                   answer
    the server has it prepared                      commit it: DONE
    the server does not know it, the ledger does    ALREADY_DONE
    prepared, but another session holds it          RETRY
    neither, for some seconds                       LOST: somebody has rolled it back; the job stops and says so
    records in the committable, no ledger row       one transaction writes both: DONE
    records in the committable, ledger row          ALREADY_DONE
    the table or the server refuses for good        ConfigurationError: the job stops; it is resumed when that is corrected

"For some seconds": while another session commits it, a server may show neither. The first answer is then RETRY.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.connectors.contract import CommitOutcome, Committer
from tidegate.connectors.database import bookkeeping, committables
from tidegate.connectors.database.committables import KeptEpoch, PreparedEpoch
from tidegate.connectors.database.names import TransactionName
from tidegate.connectors.database.rows import newest_of_each_key, rows_of
from tidegate.connectors.database.session import Session, Settled
from tidegate.connectors.database.urls import DatabaseUrl
from tidegate.errors import ConfigurationError

MISSING_FOR_S = 5.0  #: before a transaction counts as lost


class DatabaseCommitter(Committer):
    version = committables.FORMAT_VERSION

    def __init__(self, url: DatabaseUrl, open_session: Callable[[], Session], clock: Callable[[], float]) -> None:
        self._url = url
        self._open_session = open_session
        self._clock = clock
        self._session: Session | None = None
        self._missing_since: dict[str, float] = {}

    def commit(self, asked: list[bytes]) -> list[CommitOutcome]:
        """In order; what comes after one that must wait waits too, or an older upsert could come last."""
        outcomes: list[CommitOutcome] = []
        try:
            for data in asked:
                waits = CommitOutcome.RETRY in outcomes
                outcomes.append(CommitOutcome.RETRY if waits else self._commit(data))
        except ConfigurationError as error:
            self.close()
            raise ConfigurationError(
                f"{error} Nothing is lost: the checkpoint has it. Correct this and resume the job."
            ) from None
        except BaseException:
            self.close()  # what the session was in the middle of is undone
            raise
        return outcomes

    def _commit(self, data: bytes) -> CommitOutcome:
        try:
            epoch = committables.decode(data)
        except ValueError as error:
            self.lost_reason = f"{error}. Nothing was changed."
            return CommitOutcome.LOST
        if self._session is None:
            self._session = self._open_session()
        with self._session.explained(f"committing to {epoch.table}", epoch.table):
            if isinstance(epoch, KeptEpoch):
                return _write_kept(self._session, epoch, data)
            return self._commit_prepared(self._session, epoch)

    def _commit_prepared(self, session: Session, epoch: PreparedEpoch) -> CommitOutcome:
        name = TransactionName.parse(epoch.id)
        if name is None:
            self.lost_reason = f"{epoch.id!r} is not a transaction of a database sink."
            return CommitOutcome.LOST
        match session.commit_prepared(name):
            case Settled.DONE:
                self._missing_since.pop(epoch.id, None)
                return CommitOutcome.DONE
            case Settled.BUSY:
                return CommitOutcome.RETRY
            case Settled.UNKNOWN:
                return self._by_the_ledger(session, epoch)

    def _by_the_ledger(self, session: Session, epoch: PreparedEpoch) -> CommitOutcome:
        if bookkeeping.has_entry(session, epoch.id):
            self._missing_since.pop(epoch.id, None)
            return CommitOutcome.ALREADY_DONE
        since = self._missing_since.setdefault(epoch.id, self._clock())
        if self._clock() - since < MISSING_FOR_S:
            return CommitOutcome.RETRY
        self.lost_reason = (
            f"{self._url} has no prepared transaction {epoch.id}, and {bookkeeping.LEDGER} has no row of it: {epoch.rows} "
            f"records for table {epoch.table!r} were rolled back, from outside or by a start from an older checkpoint, or this "
            "is not the server that prepared them. Restore the server as it was, or start from the newest checkpoint, or an "
            "older savepoint."
        )
        return CommitOutcome.LOST

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def _write_kept(session: Session, epoch: KeptEpoch, data: bytes) -> CommitOutcome:
    """The ledger's row first: whoever else tries the same waits there, and then finds it."""
    rows = [row for batch in committables.batches_of(data) for row in rows_of(batch)]
    if epoch.key:
        rows = newest_of_each_key(rows, epoch.columns, epoch.key)
    session.begin()
    name = TransactionName.parse(epoch.id)
    sink = "" if name is None else name.sink
    if not bookkeeping.write_entry(session, epoch.id, sink, epoch.checkpoint, epoch.rows):
        session.rollback()
        return CommitOutcome.ALREADY_DONE
    session.insert(epoch.table, epoch.columns, rows, epoch.key)
    session.commit()
    return CommitOutcome.DONE
