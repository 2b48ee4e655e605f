"""What the protocol tests share: slots over scripted channels, numbered sources, jobs in this process and their answers.

Nothing here starts Spark. The doubles are of contracts (a control port, a background, a source), never of the classes
under test.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import tidegate as tg
from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.coordinator.observing import JobStatus
from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation, SlotId
from tidegate.protocol.logged import LoggedCheckpoint
from tidegate.storage.log import LogKind, LogRecord, decode_record
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.crash_points import Crash
from tidegate.testing.ledger_sink import LedgerSink, ledger
from tidegate.testing.runner import InProcessRun

_names = itertools.count()


def fresh_storage() -> str:
    """A memory of its own for each job."""
    return f"memory://protocol-tests-{next(_names)}"


def checkpoint_id(number: int) -> CheckpointId:
    return CheckpointId(number)


def logged(number: int) -> LoggedCheckpoint:
    """As if its record had been read from the log."""
    return LoggedCheckpoint.in_log(number)


def attempt_id(number: int = 1, generation: int = 1) -> AttemptId:
    return AttemptId(Generation(generation), AttemptNumber(number))


def slot_ids(*widths: int) -> frozenset[SlotId]:
    """The slots of layers of these widths."""
    return frozenset(SlotId(layer, index) for layer, width in enumerate(widths) for index in range(width))


# -- doubles of the slot's surroundings -------------------------------------------------------------------------------


@dataclass(slots=True)
class Said:
    """A control port that keeps what a slot says."""

    messages: list[Any] = field(default_factory=list)

    def send(self, message: Any) -> None:
        self.messages.append(message)

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.messages if isinstance(message, kind)]


@dataclass(slots=True)
class Later:
    """A background whose jobs run when the test says so."""

    jobs: deque[Callable[[], None]] = field(default_factory=deque)

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)

    def run_all(self) -> int:
        count = 0
        while self.jobs:
            self.jobs.popleft()()
            count += 1
        return count


@dataclass(slots=True)
class Reached:
    """Crash points that only note what is reached."""

    points: list[str] = field(default_factory=list)

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        self.points.append(point)


# -- sources ----------------------------------------------------------------------------------------------------------


class Numbered(Source):
    """`splits` x `per_split` records (source, number), a few at a time; number = split * 1000 + position in it.

    :param rows_per_poll: how many records each poll gives, in turn; 0 is a poll that gives nothing yet.
    """

    def __init__(self, source: int, splits: int, per_split: int, rows_per_poll: Sequence[int] = (1,)) -> None:
        assert any(rows_per_poll)
        self.source = source
        self.split_count = splits
        self.per_split = per_split
        self.rows_per_poll = tuple(rows_per_poll)

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(str(index)) for index in range(self.split_count)]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _NumberedReader(self)

    def row(self, number: int) -> Any:
        return (self.source, number)

    def numbers(self) -> list[int]:
        return [split * 1000 + at for split in range(self.split_count) for at in range(self.per_split)]

    def rows(self) -> list[Any]:
        return [self.row(number) for number in self.numbers()]


class _NumberedReader(SourceReader):
    """Reads its splits in turn, so that several are half read at a checkpoint."""

    def __init__(self, source: Numbered) -> None:
        self._source = source
        self._next: dict[str, int] = {}
        self._turn = 0
        self._sizes = itertools.cycle(source.rows_per_poll)

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._next |= {split.id: 0 if split.position is None else int(split.position) for split in splits}  # type: ignore[arg-type]

    def poll(self, deadline: float) -> list[Any] | None:
        unread = [id for id, at in self._next.items() if at < self._source.per_split]
        rows = next(self._sizes)
        if not unread or not rows:
            return None
        self._turn += 1
        id = unread[self._turn % len(unread)]
        start = self._next[id]
        self._next[id] = min(start + rows, self._source.per_split)
        return [self._source.row(int(id) * 1000 + at) for at in range(start, self._next[id])]

    def splits(self) -> list[Split]:
        return [Split(id, at, at == self._source.per_split) for id, at in self._next.items()]


# -- jobs -------------------------------------------------------------------------------------------------------------


class CountEach(tg.KeyedProcessFunction):
    """(key, record, how many of the key so far, already seen?); its state keeps every record."""

    seen = tg.MapState(int, bool)

    def process_element(self, value: tuple[int, int], ctx: tg.Context) -> Iterable[tuple[int, int, int, int, bool]]:
        source, number = value
        again = self.seen.contains(source * 1_000_000 + number)
        self.seen.put(source * 1_000_000 + number, True)
        yield (ctx.key, source, number, len(self.seen), again)


COUNTED = tuple[int, int, int, int, bool]


def environment(
    name: str = "job",
    *,
    parallelism: int = 2,
    every: str | None = "20ms",
    storage: str | None = None,
    limits: dict[str, Any] | None = None,
    **checkpointing: Any,
) -> tg.StreamEnvironment:
    """`limits` are fields of JobConfig that have no other way in."""
    env = tg.StreamEnvironment(name, parallelism=parallelism)
    env.checkpointing(every=every, storage=storage or fresh_storage(), **checkpointing)
    env._config = replace(env._config, **(limits or {}))
    return env


def counting_job(env: tg.StreamEnvironment, source: Source, sink: Any, keys: int = 5) -> tg.StreamEnvironment:
    """source -> by key -> CountEach -> sink."""
    counted = (
        env.from_source(source, uid="source", returns=tuple[int, int])
        .key_by(lambda row: row[1] % keys, key_type=int)
        .process(CountEach(), uid="count", returns=COUNTED)
    )
    counted.sink_to(sink, uid="out")
    return env


def assert_counted_once(rows: Iterable[tuple[int, int, int, int, bool]], source: Numbered, keys: int = 5) -> None:
    """What `counting_job` must have committed, worked out without it."""
    rows = list(rows)
    assert sorted((row[1], row[2]) for row in rows) == sorted(source.rows())
    assert not [row for row in rows if row[4]], "state has seen a record that it should not know yet"
    for key in range(keys):
        counts = sorted(row[3] for row in rows if row[0] == key)
        assert counts == list(range(1, len(counts) + 1)), f"key {key} was counted {counts}"


RELAYED_SOURCE = Numbered(1, splits=5, per_split=16, rows_per_poll=(2, 1, 0))


def relayed_job(storage: str | None = None, source: Numbered = RELAYED_SOURCE, **settings: Any) -> tg.StreamEnvironment:
    """Two layers and a relay: source -> by key -> count -> out, and source -> copy, which skips a layer by a union."""
    env = environment(storage=storage, **settings)
    numbers = env.from_source(source, uid="source", returns=tuple[int, int])
    counted = numbers.key_by(lambda row: row[1] % 5, key_type=int).process(CountEach(), uid="count", returns=COUNTED)
    counted.sink_to(LedgerSink("out", flaky_commits=1), uid="out")
    keyed = counted.map(lambda row: (row[1], row[2]), returns=tuple[int, int])
    both = keyed.rebalance().union(numbers.rebalance())
    both.sink_to(LedgerSink("both"), uid="both", parallelism=3)
    return env


def assert_relayed_exactly(source: Numbered = RELAYED_SOURCE) -> None:
    assert_counted_once(ledger("out").rows(), source)
    assert Counter(ledger("both").rows()) == Counter(source.rows() * 2)


def run_to_the_end(env: tg.StreamEnvironment, seed: int = 0, *crashes: Crash, **options: Any) -> InProcessRun:
    """Run to FINISHED; every crash must have happened as often as asked."""
    started = InProcessRun(env, seed, list(crashes), **options)
    result = started.run()
    assert result.status is JobStatus.FINISHED, result.error
    for crash in crashes:
        assert started.world.crash_points.done.get(crash) == crash.times, f"{crash} did not happen"
    return started


# -- storage ----------------------------------------------------------------------------------------------------------


def log_records(storage: str | ObjectStore, job: str = "job") -> list[LogRecord]:
    """The whole log, read without JobLog."""
    store = open_store(storage) if isinstance(storage, str) else storage
    paths = JobPaths(job)
    return [decode_record(store.get(path), path) for path in sorted(store.list(paths.log_folder))]


def logged_checkpoints(storage: str | ObjectStore, job: str = "job") -> list[int]:
    return [
        record.latest.id
        for record in log_records(storage, job)
        if record.kind is LogKind.CHECKPOINT and record.latest is not None
    ]


def change_byte(store: ObjectStore, path: str, at: int = -10) -> None:
    """As a bad disk does."""
    data = bytearray(store.get(path))
    data[at] ^= 0xFF
    store.put(path, bytes(data))
