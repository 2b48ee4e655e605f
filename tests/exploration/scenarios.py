"""The small worlds that are explored: one job, two subtasks of a source, two of a keyed function and its sink; and what may
happen to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from steps import ROOT, SteppedRun, log_records

import tidegate as tg
from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.coordinator.observing import JobStatus
from tidegate.protocol.checkpointing import CheckpointScheduler
from tidegate.protocol.slot_machine import SlotMachine
from tidegate.settings.choices import TypeChecks
from tidegate.state import heap, heap_tables
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.testing.ledger_sink import LedgerSink, ledger

KEYS = (1, 5)  #: of two subtasks and two key groups they go one to each


class Numbers(Source):
    """A split for each subtask, `per_split` records (split, number) in each, one a poll."""

    makes_new_records = True

    def __init__(self, per_split: int) -> None:
        self.per_split = per_split

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(str(index)) for index in range(2)]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _NumbersReader(self.per_split)

    def rows(self) -> list[tuple[int, int]]:
        return [(split, number) for split in range(2) for number in range(self.per_split)]


class _NumbersReader(SourceReader):
    def __init__(self, per_split: int) -> None:
        self.per_split = per_split
        self.at: dict[str, int] = {}

    def add_splits(self, splits: Sequence[Split]) -> None:
        self.at |= {split.id: 0 if split.position is None else int(split.position) for split in splits}  # type: ignore[arg-type]

    def poll(self, deadline: float) -> list[Any] | None:
        for id, at in self.at.items():
            if at < self.per_split:
                self.at[id] = at + 1
                return [(int(id), at)]
        return None

    def splits(self) -> list[Split]:
        return [Split(id, at, at == self.per_split) for id, at in self.at.items()]


class CountEach(tg.KeyedProcessFunction):
    """(split, number, how many of its key so far)."""

    count = tg.ValueState(int, default=0)

    def process_element(self, value: tuple[int, int], ctx: tg.Context) -> Iterable[tuple[int, int, int]]:
        self.count.set(self.count.get() + 1)
        yield (*value, self.count.get())


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    asks: tuple[str, ...] = ("checkpoint",)
    per_split: int = 2
    width: int = 2  #: of the second layer
    troubles: int = 1
    kills: bool = True
    storage_fails: bool = False
    time_may_pass: bool = False
    lazy: bool = False  #: the background does nothing before it must
    settings: dict[str, Any] = field(default_factory=dict)

    def source(self) -> Numbers:
        return Numbers(self.per_split)

    def key(self, split: int, number: int) -> int:
        return KEYS[(split + number) % 2]

    def begin(self) -> SteppedRun:
        ledger(ROOT).staged.clear()
        ledger(ROOT).committed.clear()
        env = tg.StreamEnvironment("job", parallelism=self.width)
        env.checkpointing(every=None, storage=f"memory://{ROOT}/storage", **self.settings)
        env.restart_strategy("fixed-delay", attempts=1000, delay="0s")
        limits = {"debloat": False, "buffer_timeout_s": 0.0, "inline_limit_bytes": 0, "type_checks": TypeChecks.NONE}
        env._config = _replaced(env._config, limits)
        (
            env.from_source(self.source(), uid="in", parallelism=2)
            .key_by(lambda row: KEYS[(row[0] + row[1]) % 2], key_type=int)
            .process(CountEach(), uid="count", max_parallelism=2)
            .sink_to(LedgerSink(ROOT), uid="out")
        )
        return SteppedRun(
            env,
            asks=list(self.asks),
            troubles=self.troubles,
            storage_fails=self.storage_fails,
            kills=self.kills,
            time_may_pass=self.time_may_pass,
            lazy=self.lazy,
        )

    # -- what must be true ------------------------------------------------------------------------------------------

    def wrong_now(self, run: SteppedRun) -> str:
        """In every world: nothing was committed before the log said so, that never went in, or twice, or with a state that knew
        it already; and the newest checkpoint of the log can be restored."""
        newest, files = run.newest_checkpoint()
        if missing := files - run.stored_paths():
            return f"checkpoint {newest} is in the log, and cannot be restored: {sorted(missing)} are not in storage"
        if early := [name for name in ledger(ROOT).committed if int(name[:8]) > newest]:
            return f"{early} are committed, and the newest checkpoint in the log is {newest}"
        committed = ledger(ROOT).rows()
        if not committed:
            return ""
        seen = Counter((split, number) for split, number, _ in committed)
        allowed = set(self.source().rows())
        counts = Counter((self.key(split, number), count) for split, number, count in committed)
        for row, times in seen.items():
            if row not in allowed:
                return f"{row} was committed and never went in"
            if times > 1:
                return f"{row} was committed {times} times"
        for (key, count), times in counts.items():
            if times > 1:
                return f"key {key} was counted {count} {times} times: a count was lost by a restore"
            if count > sum(self.key(*row) == key for row in allowed):
                return f"key {key} was counted {count}: a restored state knew a record that came again"
        return ""

    def wrong_at_the_end(self, run: SteppedRun) -> str:
        ended = run.held.ended
        assert ended is not None
        if ended.status is not JobStatus.FINISHED:
            return f"the job ended {ended.status.name}: {ended.error}"
        if wrong := self.wrong_now(run):
            return wrong
        due = {row for row in self.source().rows() if row[1] < self._read(run).get(str(row[0]), self.per_split)}
        there = {(split, number) for split, number, _ in ledger(ROOT).rows()}
        if lost := due - there:
            return f"{sorted(lost)} were lost"
        if early := there - due:
            return f"{sorted(early)} were committed, and come again when the job continues from its savepoint"
        return ""

    def _read(self, run: SteppedRun) -> dict[str, int]:
        """Up to where each split counts as read: by the checkpoint or savepoint with which the job has ended."""
        newest = log_records(run.world.store)[-1]
        if newest.latest is None:
            return {}
        slots = load_checkpoint(run.world.store, newest.latest).slots
        splits = [split for slot in slots for subtask in slot.subtasks for split in subtask.splits]
        return {split.id: split.position or 0 for split in splits}


def _replaced(config: Any, changes: dict[str, Any]) -> Any:
    from dataclasses import replace

    return replace(config, **changes)


def small_tables() -> None:
    """The heap's tables in four pieces instead of 1,024: worlds are compared piece by piece."""
    heap_tables.CHUNKS, heap_tables.CHUNK_MASK = 4, 3
    heap_tables._ALL, heap_tables._NONE = b"\x01" * 4, b"\x00" * 4
    heap.CHUNK_MASK = 3


def validated_machines() -> None:
    """The invariants of the machines are asserted after each event."""
    for machine in (CheckpointScheduler, SlotMachine):
        if not hasattr(machine.on, "validates"):
            machine.on = _validated(machine.on)  # type: ignore[method-assign,assignment]


def _validated(on: Any) -> Any:
    def on_and_validate(machine: Any, *event: Any) -> Any:
        actions = on(machine, *event)
        machine.validate()
        return actions

    on_and_validate.validates = True  # type: ignore[attr-defined]
    return on_and_validate


UNALIGNED = {"unaligned": True}
TIMED = {"unaligned": True, "aligned_timeout": "1ms"}
SCENARIOS = (
    Scenario("aligned"),
    Scenario("aligned-lazy", lazy=True),
    Scenario("unaligned", settings=UNALIGNED),
    Scenario("unaligned-lazy", settings=UNALIGNED, lazy=True),
    Scenario("timed", settings=TIMED, time_may_pass=True),
    Scenario("savepoint", asks=("savepoint",), lazy=True),
    Scenario("suspend", asks=("suspend",), lazy=True),
    Scenario("drain", asks=("drain",), lazy=True),
    Scenario("storage", kills=False, storage_fails=True),
)
