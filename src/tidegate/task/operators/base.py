"""What a running operator is: one subtask of one operator, inside a chain. Executor; the task's thread.

Order of calls: open (state restored), process*, snapshot_sync for each checkpoint, end_input at most once over all
restores, close. `run` is the only door for records: it names the operator in any exception that passes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tidegate.batch import Batch
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.ids import CheckpointId
from tidegate.protocol.watermarks import IDLE, MIN_WATERMARK
from tidegate.storage.metadata import Committable, SplitState
from tidegate.task.operators.first_rows import check_first_rows
from tidegate.types import UNTYPED
from tidegate.wire.control import OperatorMetrics

if TYPE_CHECKING:
    from tidegate.functions.user_metrics import UserMetrics
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.logical import Operator
    from tidegate.graph.plan import PlannedOperator
    from tidegate.state.backend import KeyedSnapshot, KeyedStateBackend
    from tidegate.state.operator_state import OperatorStateSnapshot, OperatorStateStore
    from tidegate.task.hot_keys import KeySampler
    from tidegate.task.operators.checkpointed import OperatorStateKeeper
    from tidegate.types import RecordType
    from tidegate.types.copying import Copier
    from tidegate.wire.control import SubtaskRestore


log = logging.getLogger("tidegate.task")


@dataclass(frozen=True, slots=True)
class Place:
    """What the user has written where something failed."""

    name: str
    uid: str
    line: str  #: where it was put into the job


def key_place(keyed: Operator, key: KeySelector) -> Place:
    """Of what fails about a key: the call of key_by."""
    return Place(f"key_by of {keyed.name}", keyed.uid, key.line or str(keyed.line))


class OperatorFailed(Exception):
    """An exception in an operator, with the operator it came from. The original is the cause.

    `place` is where the user has to look, where that is not the operator in which it happened: a key is computed by whoever
    sends the record, and belongs to whoever is keyed by it.
    """

    def __init__(
        self,
        operator: RunningOperator,
        cause: BaseException,
        checkpoint: int | None = None,
        place: Place | None = None,
    ) -> None:
        super().__init__(str(cause))
        self.operator = operator
        self.cause = cause
        self.checkpoint = checkpoint
        self.place = place or Place(operator.name, operator.uid, str(operator.planned.operator.line))


@dataclass(slots=True)
class OperatorSnapshot:
    """The synchronous part of one operator's snapshot. `keyed` is read by another thread, then released."""

    uid: str
    subtask: int
    ended: bool
    watermark: int = MIN_WATERMARK
    splits: list[SplitState] = field(default_factory=list)
    committables: list[Committable] = field(default_factory=list)
    keyed: KeyedSnapshot | None = None
    operator: OperatorStateSnapshot | None = None


Emit = Callable[[Batch], None]


def _drop(batch: Batch) -> None:
    """Output that nobody reads."""


@dataclass(slots=True)
class Readers:
    """Who reads one output. Operators of the chain may change what they are given; edges only keep it for a while."""

    operators: list[Emit] = field(default_factory=list)
    edges: list[Emit] = field(default_factory=list)

    def emit(self, copy: Copier | None) -> Emit:
        """To all of them. Each operator gets records that no other reader holds."""
        if copy is None:
            return _to_all([*self.operators, *self.edges])
        own = self.operators if self.edges else self.operators[:-1]
        last = _to_all(self.edges or self.operators[-1:])  # the records themselves, once all copies are made
        return _copies_first(copy, own, last) if own else last


def _to_all(targets: list[Emit]) -> Emit:
    if len(targets) == 1:
        return targets[0]

    def emit(batch: Batch) -> None:
        for target in targets:
            target(batch)

    return emit


def _copies_first(copy: Copier, own: list[Emit], last: Emit) -> Emit:
    def emit(batch: Batch) -> None:
        for target in own:
            target(batch.copied(copy))
        last(batch)

    return emit


class RunningOperator:
    """Base of all. Subclasses override `process` and what else they need.

    Who owns a record: whoever was given it. An operator is given records that nobody else holds, so its function may change
    them; and what its function emits is copied at once, because the function may still hold it, change it and emit it again.
    """

    backend: KeyedStateBackend | None = None
    keeper: OperatorStateKeeper | None = None  #: of the operator state, where the user's object has some
    user_metrics: UserMetrics | None = None  #: the user's own, where the function has a context
    hot_keys: KeySampler | None = None  #: where there are keys

    def __init__(self, planned: PlannedOperator, subtask: int) -> None:
        self.planned = planned
        self.uid = planned.uid
        self.name = planned.operator.name
        self.subtask = subtask
        self.parallelism = planned.parallelism
        self.output_type: RecordType = planned.operator.outputs.get(
            MAIN_OUTPUT, UNTYPED
        )  #: UNTYPED where there is none
        self.ended = False  #: end_input has run, in this attempt or before
        self.records_in = 0
        self.records_out = 0
        self.bytes_in = 0  #: of frames; nothing inside a chain
        self.bytes_out = 0
        self.watermark = MIN_WATERMARK  #: event time has come this far; restored as the minimum over the old subtasks
        #: Of what leaves by each output. None: nobody can change such records, or the user has taken them for unchanged.
        self.copiers: dict[str, Copier | None] = {tag: type.copier() for tag, type in planned.operator.outputs.items()}
        self._said_unreadable = False  #: that its own metrics cannot be read
        self._emits: dict[str, Emit] = {}
        self._watermark_targets: list[Callable[[int], None]] = []
        self.emit: Emit = _drop

    @property
    def copy(self) -> Copier | None:
        """Of what leaves by the main output."""
        return self.copiers.get(MAIN_OUTPUT)

    def connect(
        self,
        readers: dict[str, Readers],
        watermark_targets: list[Callable[[int], None]],
        checked_rows: float = 0,
    ) -> None:
        """Who reads each output, by tag; set once the whole chain is built. So many of its rows are held against its type."""
        self._watermark_targets = watermark_targets
        for tag, read_by in readers.items():
            self._emits[tag] = read_by.emit(self.copiers.get(tag))
            if tag != MAIN_OUTPUT and checked_rows:
                check_first_rows(self, tag, checked_rows, self._emits[tag], partial(self._emits.__setitem__, tag))
        main = self._emits.get(MAIN_OUTPUT, _drop)

        def counted(batch: Batch) -> None:
            self.records_out += len(batch)
            main(batch)

        self.emit = counted
        if checked_rows:
            check_first_rows(self, MAIN_OUTPUT, checked_rows, counted, partial(setattr, self, "emit"))

    def emit_to(self, tag: str, batch: Batch) -> None:
        self._emits.get(tag, _drop)(batch)

    def run(self, batch: Batch, input_index: int) -> None:
        self.records_in += len(batch)
        try:
            self.process(batch, input_index)
        except OperatorFailed:
            raise
        except Exception as error:
            raise OperatorFailed(self, error) from error

    def run_watermark(self, watermark: int) -> None:
        """A watermark (or IDLE) has come; it is passed on after the operator has acted."""
        try:
            if watermark != IDLE:
                self.watermark = max(self.watermark, watermark)
                self.on_watermark(self.watermark)
        except OperatorFailed:
            raise
        except Exception as error:
            raise OperatorFailed(self, error) from error
        self.pass_watermark(watermark)

    def pass_watermark(self, watermark: int) -> None:
        for target in self._watermark_targets:
            target(watermark)

    def metrics(self) -> OperatorMetrics:
        """Also called by the heartbeat's thread, while the task's thread works on."""
        own = self.user_metrics
        return OperatorMetrics(
            uid=self.uid,
            subtask=self.subtask,
            records_in=self.records_in,
            records_out=self.records_out,
            watermark=None if self.watermark == MIN_WATERMARK else self.watermark,
            counters={} if own is None else own.counters.values(),
            gauges={} if own is None else own.gauge_values(),
            histograms={} if own is None else own.histogram_values(),
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            hot_keys=None if self.hot_keys is None else self.hot_keys.hottest(),
            own=self._shown_metrics(),
        )

    def _shown_metrics(self) -> dict[str, float]:
        """Those of its source, sink or state. What cannot be read is left out: numbers end no slot."""
        try:
            numbers = {**self.own_metrics(), **({} if self.backend is None else self.backend.metrics())}
            return {name: float(number) for name, number in numbers.items() if math.isfinite(number)}
        except Exception as error:
            if not self._said_unreadable:
                self._said_unreadable = True  # once: it may come with each heartbeat
                log.warning("metrics of %s are not shown: %s: %s", self.name, type(error).__name__, error)
            return {}

    @property
    def is_pending(self) -> bool:
        """Records are in flight inside it: what comes after the last record has to wait for them."""
        return False

    # -- for subclasses -----------------------------------------------------------------------------------------

    @property
    def operator_state(self) -> OperatorStateStore | None:
        return None if self.keeper is None else self.keeper.store

    def begin(self, incarnation: str) -> None:
        """The first call, before anything is restored. `incarnation`: of the job's log."""

    def open(self, restore: SubtaskRestore | None) -> None:
        """State is in the backend already. `restore` is None on a fresh start; a source has its splits in it even then."""
        if self.keeper is not None:
            is_restored = restore is not None and restore.old_parallelism > 0
            self.keeper.initialize(is_restored, self.subtask, self.parallelism)

    def process(self, batch: Batch, input_index: int) -> None:
        raise NotImplementedError

    def own_metrics(self) -> Mapping[str, float]:
        """By the names in docs/metrics.md. Called by the heartbeat's thread, while the task's thread works on."""
        return {}

    def on_watermark(self, watermark: int) -> None:
        """Event time has come to `watermark`: fire what is due. May emit; the watermark is passed on afterwards."""

    def next_time(self) -> float | None:
        """When `on_time` is due, on the slot's clock."""
        return None

    def on_time(self) -> None:
        """Processing time has passed. May emit."""

    def on_kept_back(self) -> None:
        """Up to now no record could come, though there may be some. Emits nothing."""

    def end_input(self) -> None:
        """May emit."""

    def prepare(self, checkpoint: CheckpointId) -> None:
        """Before the barrier is forwarded: what must go out in this epoch."""

    def snapshot_sync(self, checkpoint: CheckpointId) -> OperatorSnapshot:
        operator = None if self.keeper is None else self.keeper.snapshot(checkpoint)  # the user's hook may fail: first
        keyed = None if self.backend is None else self.backend.snapshot()
        return OperatorSnapshot(self.uid, self.subtask, self.ended, self.watermark, keyed=keyed, operator=operator)

    def notify_complete(self, checkpoint: CheckpointId) -> None: ...

    def close(self) -> None: ...
