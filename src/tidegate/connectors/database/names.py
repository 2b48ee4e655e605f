"""The names by which a sink finds again what is its own in a database: transactions and sessions. Pure.

    sink          16 hex digits: a hash of job, uid, database and table
    transaction   tidegate:<sink>:<attempt>:<subtask>:<sequence>:<nonce>
    session       tidegate:<sink>:<attempt>:<subtask>:<role>:<nonce>

Names hold the attempt, so that a restore can end what older attempts have left. The nonce is new for each writer: a job
that is started anew counts attempts from one again, and must not take the ledger's rows of an earlier run for its own.
The checkpoint is not part of a transaction's name: MySQL wants the name before the first row, when nobody knows which
checkpoint will end the epoch. It stands in the ledger.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field

import xxhash

from tidegate.ids import AttemptId, AttemptNumber, Generation

_TRANSACTION = re.compile(r"tidegate:([0-9a-f]{16}):g(\d+)-a(\d+):(\d+):(\d+):([0-9a-f]{8})")
_SESSION = re.compile(r"tidegate:([0-9a-f]{16}):g(\d+)-a(\d+):.*")
_ATTEMPT = re.compile(r"g(\d+)-a(\d+)")


def sink_id(job: str, uid: str, database: str, table: str) -> str:
    """One for each target of each sink of each job."""
    text = "\0".join([job, uid, database, table])
    return str(xxhash.xxh3_64_hexdigest(text.encode("utf-8", "surrogatepass")))


def parse_attempt(text: str) -> AttemptId:
    found = _ATTEMPT.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an attempt")
    return _attempt(found[1], found[2])


def new_nonce() -> str:
    return secrets.token_hex(4)


@dataclass(frozen=True, slots=True)
class TransactionName:
    """A prepared transaction of ours."""

    sink: str
    attempt: AttemptId
    subtask: int
    sequence: int  #: counts the epochs of one writer that had records
    nonce: str

    def __str__(self) -> str:
        return f"tidegate:{self.sink}:{self.attempt}:{self.subtask}:{self.sequence}:{self.nonce}"

    @staticmethod
    def parse(text: str) -> TransactionName | None:
        """None for a name that is not one of ours."""
        found = _TRANSACTION.fullmatch(text)
        if found is None:
            return None
        return TransactionName(found[1], _attempt(found[2], found[3]), int(found[4]), int(found[5]), found[6])


@dataclass(slots=True)
class TransactionNames:
    """Those of one writer."""

    sink: str
    attempt: AttemptId
    subtask: int
    _sequence: int = 0
    _nonce: str = field(default_factory=new_nonce)

    def next(self) -> TransactionName:
        name = TransactionName(self.sink, self.attempt, self.subtask, self._sequence, self._nonce)
        self._sequence += 1
        return name


@dataclass(frozen=True, slots=True)
class SessionName:
    """A connection of a writer or a committer, as other connections see it."""

    sink: str
    attempt: AttemptId
    subtask: int
    role: str  #: "w" or "c"
    nonce: str

    def __str__(self) -> str:
        return f"tidegate:{self.sink}:{self.attempt}:{self.subtask}:{self.role}:{self.nonce}"


def session_is_before(name: str, sink: str, attempt: AttemptId) -> bool:
    """Whether a session is one of this sink, of an earlier attempt."""
    found = _SESSION.fullmatch(name)
    return found is not None and found[1] == sink and _attempt(found[2], found[3]) < attempt


def _attempt(generation: str, number: str) -> AttemptId:
    return AttemptId(Generation(int(generation)), AttemptNumber(int(number)))
