"""A two-phase-commit sink whose committed contents a test can read: what became visible, and in which epoch.

In-process only: the ledger is shared memory of the test. It is strict on purpose: a commit of something that was never
prepared is LOST, and a second commit of the same is ALREADY_DONE, as a good database would say. What dead attempts have
staged and no checkpoint holds is thrown away before the next one, as databases and files must.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.connectors.database.names import parse_attempt
from tidegate.ids import AttemptId, CheckpointId


@dataclass(slots=True)
class Ledger:
    """What the outside world sees."""

    staged: dict[str, list[Any]] = field(default_factory=dict)
    committed: dict[str, list[Any]] = field(default_factory=dict)
    commits_asked: int = 0

    def rows(self) -> list[Any]:
        """Everything visible, epoch by epoch."""
        return [row for name in self.committed for row in self.committed[name]]


_ledgers: dict[str, Ledger] = {}


def ledger(name: str) -> Ledger:
    """The ledger of that name; made when first asked for."""
    return _ledgers.setdefault(name, Ledger())


def forget_ledgers(beginning: str = "") -> None:
    """All, or those whose names begin so."""
    for name in [name for name in _ledgers if name.startswith(beginning)]:
        del _ledgers[name]


class LedgerSink(Sink):
    """`stream.sink_to(LedgerSink("out"), uid="out")`, then `ledger("out").rows()`."""

    guarantee: ClassVar[str] = "exactly-once"

    def __init__(self, name: str, flaky_commits: int = 0) -> None:
        self.name = name
        self.flaky_commits = flaky_commits  #: answer RETRY that many times first

    def writer(self, context: WriterContext) -> SinkWriter:
        return _LedgerWriter(self.name, context)

    def committer(self, context: WriterContext) -> Committer:
        return _LedgerCommitter(self.name, self.flaky_commits)

    def at_place(self, place: str) -> LedgerSink:
        """A ledger of that name, for simulations."""
        return LedgerSink(place, self.flaky_commits)

    def read_back(self) -> list[Any]:
        return ledger(self.name).rows()

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        kept, staged = {_name_of(data) for data in uncommitted}, ledger(self.name).staged
        for name in list(staged):
            of_the_sink, *wrote = name.rsplit("-", 2)
            if name not in kept and of_the_sink[9:].startswith(f"{uid}-") and parse_attempt("-".join(wrote)) < attempt:
                del staged[name]


class _LedgerWriter(SinkWriter):
    def __init__(self, name: str, context: WriterContext) -> None:
        self._ledger = ledger(name)
        self._context = context
        self._rows: list[Any] = []

    def write(self, batch: Batch) -> None:
        self._rows += batch.rows()

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        if not self._rows:
            return []
        name = f"{checkpoint:08}-{self._context.uid}-{self._context.subtask}-{self._context.attempt}"
        self._ledger.staged[name], self._rows = self._rows, []
        return [json.dumps({"v": 1, "name": name}).encode()]


class _LedgerCommitter(Committer):
    def __init__(self, name: str, flaky: int) -> None:
        self._ledger = ledger(name)
        self._flaky = flaky

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        outcomes = []
        for committable in committables:
            name = _name_of(committable)
            self._ledger.commits_asked += 1
            if name in self._ledger.committed:
                outcomes.append(CommitOutcome.ALREADY_DONE)
            elif self._flaky > 0:
                self._flaky -= 1
                outcomes.append(CommitOutcome.RETRY)
            elif name in self._ledger.staged:
                self._ledger.committed[name] = self._ledger.staged.pop(name)
                outcomes.append(CommitOutcome.DONE)
            else:
                outcomes.append(CommitOutcome.LOST)
        return outcomes


def _name_of(committable: bytes) -> str:
    name: str = json.loads(committable)["name"]
    return name
