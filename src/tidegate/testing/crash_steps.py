"""A sink that dies: before or after a call of the contract, as often as asked. For the crash matrix.

The calls are those of `connectors/contract.py`, in their order: what a sink does outside happens inside one of them. How
often a crash has happened is noted in a folder, so that it counts over copies of the sink, attempts and processes.
"""

from __future__ import annotations

import enum
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, WriterContext
from tidegate.ids import AttemptId, CheckpointId
from tidegate.testing.crash_points import SimulatedCrash

#: Every call that a sink gets, in order. `clean_up` is made on the driver, the others in a worker.
SINK_STEPS = ("clean_up", "writer", "committer", "write", "flush", "end_input", "prepare", "commit", "close")
#: The first of these would find nothing written yet.
_SECOND_CALL = frozenset({"write", "flush", "prepare", "commit"})


class Moment(enum.Enum):
    BEFORE = "before"
    WITHIN = "within"  #: of commit alone: half of the committables are committed
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class StepCrash:
    """Die at one call of the contract: the first `times` processes, or attempts, that come there."""

    step: str
    moment: Moment
    times: int = 2

    def __str__(self) -> str:
        return f"{self.moment.value} {self.step}"

    @property
    def nth(self) -> int:
        return 2 if self.step in _SECOND_CALL and self.moment is not Moment.WITHIN else 1


@dataclass(frozen=True, slots=True)
class Deaths:
    """Who dies, and how. Shipped with the sink; what has happened stands in `folder`."""

    folder: str
    crash: StepCrash | None
    kill: bool  #: a real SIGKILL of this process; else the runner is told that a process died

    def reach(self, step: str, moment: Moment) -> None:
        if self.crash is None:
            open(f"{self.folder}/reached-{step}", "a").close()
        if self.crash is None or (self.crash.step, self.crash.moment) != (step, moment):
            return
        happened = self.happened()
        if happened == self.crash.times:
            return
        key = f"{self.folder}/{happened}"
        _calls[key] += 1
        # The second death is at the first call that comes: twice in a row.
        if _calls[key] >= (self.crash.nth if happened == 0 else 1):
            self.die(happened)

    def die(self, number: int) -> None:
        os.close(os.open(f"{self.folder}/crash-{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        if self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        raise SimulatedCrash(str(self.crash))

    def around(self, step: str, call: Callable[[], Any]) -> Any:
        self.reach(step, Moment.BEFORE)
        result = call()
        self.reach(step, Moment.AFTER)
        return result

    def happened(self) -> int:
        return sum(name.startswith("crash-") for name in os.listdir(self.folder))

    def reached(self) -> set[str]:
        """The calls that were made, where nobody was to die."""
        return {name.removeprefix("reached-") for name in os.listdir(self.folder) if name.startswith("reached-")}


_calls: Counter[str] = Counter()  #: of this process, by folder and crash


class MortalSink(Sink):
    """Does what `inner` does, and dies where `deaths` says.

    `notice` hears each batch with the id of the writer, and each prepare: for whoever wants to know which record belongs to
    which checkpoint. In-process only.
    """

    def __init__(self, inner: Sink, deaths: Deaths, notice: str = "") -> None:
        self.inner = inner
        self.deaths = deaths
        self.notice = notice
        self.guarantee = inner.guarantee  # type: ignore[misc]
        self.commits_on_driver = inner.commits_on_driver  # type: ignore[misc]

    def writer(self, context: WriterContext) -> SinkWriter:
        made: SinkWriter = self.deaths.around("writer", lambda: self.inner.writer(context))
        return _MortalWriter(made, self.deaths, EPOCHS.get(self.notice))

    def committer(self, context: WriterContext) -> Committer | None:
        made: Committer | None = self.deaths.around("committer", lambda: self.inner.committer(context))
        return None if made is None else _MortalCommitter(made, self.deaths)

    def commit_on_driver(self, prepared: list[tuple[CheckpointId, bytes]], restored: bool) -> None:
        self.inner.commit_on_driver(prepared, restored)

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        self.deaths.around("clean_up", lambda: self.inner.clean_up(job, uid, attempt, uncommitted))


class _MortalWriter(SinkWriter):
    def __init__(self, inner: SinkWriter, deaths: Deaths, epochs: Epochs | None) -> None:
        self._inner = inner
        self._deaths = deaths
        self._epochs = epochs
        self._rows: list[Any] = []

    def write(self, batch: Batch) -> None:
        if self._epochs is not None:
            self._rows += batch.rows()
        self._deaths.around("write", lambda: self._inner.write(batch))

    def flush(self) -> None:
        self._deaths.around("flush", self._inner.flush)

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        if self._epochs is not None:
            self._epochs.note(checkpoint, self._rows)
            self._rows = []
        prepared: list[bytes] = self._deaths.around("prepare", lambda: self._inner.prepare(checkpoint))
        return prepared

    def end_input(self) -> None:
        self._deaths.around("end_input", self._inner.end_input)

    def close(self) -> None:
        self._deaths.around("close", self._inner.close)


class _MortalCommitter(Committer):
    def __init__(self, inner: Committer, deaths: Deaths) -> None:
        self._inner = inner
        self._deaths = deaths
        self.version = inner.version  # type: ignore[misc]

    @property
    def lost_reason(self) -> str:  # type: ignore[override]
        return self._inner.lost_reason

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        if self._deaths.crash is not None and self._deaths.crash.moment is Moment.WITHIN:
            return self._commit_by_halves(committables)
        answers: list[CommitOutcome] = self._deaths.around("commit", lambda: self._inner.commit(committables))
        return answers

    def _commit_by_halves(self, committables: list[bytes]) -> list[CommitOutcome]:
        half = len(committables) // 2
        answers = self._inner.commit(committables[:half]) if half else []
        self._deaths.reach("commit", Moment.WITHIN)
        return answers + self._inner.commit(committables[half:])

    def close(self) -> None:
        self._inner.close()


@dataclass(slots=True)
class Epochs:
    """Which records were prepared for which checkpoint; one process."""

    of: dict[int, list[Any]]

    def note(self, checkpoint: int, rows: list[Any]) -> None:
        self.of.setdefault(checkpoint, []).extend(rows)


EPOCHS: dict[str, Epochs] = {}  #: by `notice`: copies of a sink share nothing else


def sink_crashes(times: int = 2) -> list[StepCrash]:
    """Before and after every call, and in the middle of a commit."""
    crashes = [
        # A job that is closed has ended: nobody comes there twice.
        StepCrash(step, moment, 1 if step == "close" else times)
        for step in SINK_STEPS
        for moment in (Moment.BEFORE, Moment.AFTER)
    ]
    return [*crashes, StepCrash("commit", Moment.WITHIN, times)]
