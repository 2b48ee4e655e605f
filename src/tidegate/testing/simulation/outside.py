"""The outside of one simulated run: what happens to it, and the doors through which the job's sinks get there.

Sinks are copied into every slot, by pickling, as they are on a cluster. So what they share, the outside, is found by its name.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeVar

from tidegate.batch import Batch
from tidegate.connectors.contract import CommitOutcome, Committer, Sink, SinkWriter, SourceReader, WriterContext
from tidegate.errors import ConnectorError
from tidegate.functions.checkpointed import CheckpointedFunction, InitializationContext, SnapshotContext
from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.storage.store import ObjectStore
from tidegate.testing.crash_points import DRIVER_POINTS, InProcessCrashPoints, SimulatedCrash
from tidegate.testing.crash_steps import Moment
from tidegate.testing.simulation.misfortunes import DiesInSink, Misfortune, OutsideFails, ProcessDies, StorageFails
from tidegate.testing.stores import FlakyStore

T = TypeVar("T")

_outsides: dict[str, Outside] = {}
_names = itertools.count(1)


@dataclass(slots=True)
class Countdown:
    """The `nth` time that it is asked, and then at once, until it has said yes `times` times: twice in a row."""

    nth: int
    times: int
    asked: int = 0
    done: int = 0

    def is_now(self) -> bool:
        if self.done == self.times:
            return False
        self.asked += 1
        if self.asked < self.nth and not self.done:
            return False
        self.done += 1
        return True


@dataclass(slots=True)
class Outside:
    """Of one run."""

    name: str
    folder: str  #: for files; the run's own
    misfortunes: Sequence[Misfortune]
    story: list[str] = field(default_factory=list)  #: what has happened, in order
    happened: Counter[str] = field(default_factory=Counter)  #: how often, by kind
    written: dict[str, list[str]] = field(default_factory=dict)  #: by uid, of sinks whose records are seen as they come
    models: dict[str, Any] = field(default_factory=dict)  #: servers, by their address
    held: list[SourceReader | SinkWriter | Committer] = field(
        default_factory=list
    )  #: that may hold files or connections
    _due: dict[int, Countdown] = field(default_factory=dict)

    def tell(self, misfortune: Misfortune, detail: str = "") -> None:
        self.happened[type(misfortune).__name__] += 1
        self.story.append(f"{misfortune}{detail}")

    def is_now(self, place: int, nth: int, times: int) -> bool:
        return self._due.setdefault(place, Countdown(nth, times)).is_now()

    def die(self, uid: str, call: str, moment: Moment) -> None:
        for place, each in enumerate(self.misfortunes):
            if not isinstance(each, DiesInSink) or (each.uid, each.call, each.moment) != (uid, call, moment):
                continue
            if self.is_now(place, each.nth, each.times):
                self.tell(each)
                raise SimulatedCrash(str(each))

    def is_to_die_within(self, uid: str) -> bool:
        return any(
            isinstance(each, DiesInSink) and each.uid == uid and each.moment is Moment.WITHIN
            for each in self.misfortunes
        )

    def failing(self, uid: str, call: str, act: Callable[[], T], broken: Callable[[], object] | None = None) -> T:
        """`act`, unless it is to fail. `broken` is called when it fails: a connection is lost by that."""
        failing: OutsideFails | None = None
        for place, each in enumerate(self.misfortunes):
            if not isinstance(each, OutsideFails) or (each.uid, each.call) != (uid, call):
                continue
            if self.is_now(place, each.nth, each.times):
                failing = each
        result = act() if failing is None or failing.after_effect else None
        if failing is not None:
            self.tell(failing)
            if broken is not None:
                broken()
            raise ConnectorError(f"{failing}, as the simulation has it")
        return result  # type: ignore[return-value]

    def around(self, uid: str, call: str, act: Callable[[], T]) -> T:
        """A call of the contract."""
        self.die(uid, call, Moment.BEFORE)
        result = self.failing(uid, call, act)
        self.die(uid, call, Moment.AFTER)
        return result


@contextmanager
def opened(folder: str, misfortunes: Sequence[Misfortune]) -> Iterator[Outside]:
    """An outside of its own for one run."""
    outside = Outside(f"simulated-{next(_names)}", folder, misfortunes)
    _outsides[outside.name] = outside
    try:
        yield outside
    finally:
        outside.misfortunes = ()
        for each in outside.held:  # what the system does for processes that are gone
            with suppress(Exception):
                each.close()
        del _outsides[outside.name]


@contextmanager
def replaced(module: ModuleType, name: str, by: Callable[..., Any]) -> Iterator[None]:
    """A function of a module, by another, for all who call it inside."""
    real = getattr(module, name)
    setattr(module, name, by)
    try:
        yield
    finally:
        setattr(module, name, real)


def outside_named(name: str) -> Outside:
    return _outsides[name]


# -- the protocol and the storage -------------------------------------------------------------------------------------


class ToldCrashPoints(InProcessCrashPoints):
    """Processes die where the misfortunes say; the story has each death."""

    def __init__(self, outside: Outside) -> None:
        super().__init__([])
        self._outside = outside

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        for place, each in enumerate(self._outside.misfortunes):
            if not isinstance(each, ProcessDies) or not each.crash.fits(point, slot):
                continue
            if self._outside.is_now(place, each.crash.nth, each.crash.times):
                who = "" if slot is None or point in DRIVER_POINTS else f" (slot {slot})"
                self._outside.tell(each, f"{who}, checkpoint {checkpoint}" if checkpoint else who)
                raise SimulatedCrash(str(each))


class ToldStore(FlakyStore):
    """The story has each fault of the storage."""

    def __init__(self, inner: ObjectStore, outside: Outside) -> None:
        self._outside = outside
        self._own = [each for each in outside.misfortunes if isinstance(each, StorageFails)]
        super().__init__(inner, [each.fault for each in self._own])

    def _error(self, what: str, path: str, reason: str) -> Any:
        method = what.split(" is lost")[0].removeprefix("the answer to ").split(" fails")[0]
        told = next((each for each in self._own if getattr(each.fault, "method", "") == method), self._own[0])
        self._outside.tell(told, f" ({path})")
        return super()._error(what.replace("the test asked for", "the simulation has it"), path, reason)

    def _is_repeated(self) -> bool:
        repeated = super()._is_repeated()
        if repeated:
            self._outside.tell(next(each for each in self._own if not hasattr(each.fault, "method")))
        return repeated


# -- the sinks --------------------------------------------------------------------------------------------------------


class WatchedSink(Sink):
    """Does what `inner` does, where nothing happens to it."""

    def __init__(self, inner: Sink, uid: str, outside: str, notes_records: bool = False) -> None:
        self.inner = inner
        self.uid = uid
        self.outside = outside
        self.notes_records = notes_records
        self.guarantee = inner.guarantee  # type: ignore[misc]
        self.commits_on_driver = inner.commits_on_driver  # type: ignore[misc]

    def __repr__(self) -> str:
        return repr(self.inner)

    def writer(self, context: WriterContext) -> SinkWriter:
        outside = outside_named(self.outside)
        made = outside.around(self.uid, "writer", lambda: self.inner.writer(context))
        outside.held.append(made)
        kind = _WatchedStatefulWriter if isinstance(made, CheckpointedFunction) else _WatchedWriter
        return kind(made, self.uid, outside, self.notes_records)

    def committer(self, context: WriterContext) -> Committer | None:
        outside, made = outside_named(self.outside), self.inner.committer(context)
        if made is None:
            return None
        outside.held.append(made)
        return _WatchedCommitter(made, self.uid, outside)

    def commit_on_driver(self, prepared: list[tuple[CheckpointId, bytes]], restored: bool) -> None:
        self.inner.commit_on_driver(prepared, restored)

    def clean_up(self, job: str, uid: str, attempt: AttemptId, uncommitted: list[bytes]) -> None:
        self.inner.clean_up(job, uid, attempt, uncommitted)


class _WatchedWriter(SinkWriter):
    def __init__(self, inner: Any, uid: str, outside: Outside, notes_records: bool) -> None:
        self._inner = inner
        self._uid = uid
        self._outside = outside
        self._notes_records = notes_records

    def write(self, batch: Batch) -> None:
        if self._notes_records:
            self._outside.written.setdefault(self._uid, []).extend(map(repr, batch.rows()))
        self._outside.around(self._uid, "write", lambda: self._inner.write(batch))

    def flush(self) -> None:
        self._outside.around(self._uid, "flush", self._inner.flush)

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        prepared: list[bytes] = self._outside.around(self._uid, "prepare", lambda: self._inner.prepare(checkpoint))
        return prepared

    def end_input(self) -> None:
        self._inner.end_input()

    def close(self) -> None:
        self._inner.close()


class _WatchedStatefulWriter(CheckpointedFunction, _WatchedWriter):
    def initialize_state(self, ctx: InitializationContext) -> None:
        self._inner.initialize_state(ctx)

    def snapshot_state(self, ctx: SnapshotContext) -> None:
        self._inner.snapshot_state(ctx)


class _WatchedCommitter(Committer):
    def __init__(self, inner: Committer, uid: str, outside: Outside) -> None:
        self._inner = inner
        self._uid = uid
        self._outside = outside
        self.version = inner.version  # type: ignore[misc]

    @property
    def lost_reason(self) -> str:  # type: ignore[override]
        return self._inner.lost_reason

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        act = self._by_halves if self._outside.is_to_die_within(self._uid) else self._inner.commit
        answers: list[CommitOutcome] = self._outside.around(self._uid, "commit", lambda: act(committables))
        return answers

    def _by_halves(self, committables: list[bytes]) -> list[CommitOutcome]:
        half = len(committables) // 2
        answers = self._inner.commit(committables[:half]) if half else []
        self._outside.die(self._uid, "commit", Moment.WITHIN)
        return answers + self._inner.commit(committables[half:])

    def close(self) -> None:
        self._inner.close()
