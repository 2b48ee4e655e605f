"""What the random graphs are made of: sources, functions and sinks as a user would write them.

A record is (source, number, path, route); see random_graphs.py. Some untyped streams carry lists in place of tuples, and their
functions spoil what they were given: nobody else may see that.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from protocol_kit import Numbered

import tidegate as tg
from tidegate.batch import Batch
from tidegate.connectors.contract import (
    CommitOutcome,
    Committer,
    Polled,
    ReaderContext,
    SinkWriter,
    SourceReader,
    WriterContext,
)
from tidegate.ids import CheckpointId
from tidegate.testing.clock import ManualClock
from tidegate.testing.ledger_sink import LedgerSink

if TYPE_CHECKING:
    from random_graphs import Node

RECORD = tuple[int, int, str, str]
COUNT = tuple[str, int]
SIDE, COUNTS = "side", "counts"
LATE = " LATE"  #: in a path: the watermark had passed the record's time
UNKNOWN = "?"  #: in a route: an operator that cannot know its subtask, or that changes the order
WINDOW_MS = 30
JITTER_MS = 30  #: records of some sources are out of order in event time by so much, and by no more

# -- what user code may be told to do ---------------------------------------------------------------------------------


class UserTrouble(RuntimeError):
    """Raised by user code, as the test asked for."""


@dataclass(slots=True)
class Fuse:
    """Raise at the `nth` call of a user method, `times` times over all attempts."""

    nth: int
    times: int
    calls: int = 0


#: By name of the user's method. Of one process, like the job.
fuses: dict[str, Fuse] = {}
#: Where there is one, some records take long, so that frames are processed in several slices.
slow: list[ManualClock] = []
#: True: untyped records are lists, and functions spoil those that they were given.
spoiling: list[bool] = [False]

USER_METHODS = ("open", "process", "end_input", "poll", "write", "flush", "prepare", "commit")


def burn(method: str) -> None:
    fuse = fuses.get(method)
    if fuse is None or not fuse.times:
        return
    fuse.calls += 1
    if fuse.calls >= fuse.nth:
        fuse.calls = 0
        fuse.times -= 1
        raise UserTrouble(f"in {method}")


# -- user code --------------------------------------------------------------------------------------------------------


def made(typed: bool, *values: Any) -> Any:
    """A new record."""
    return list(values) if spoiling[0] and not typed else values


def spoil(row: Any) -> None:
    """As functions do that work on their record in place: it is theirs."""
    if isinstance(row, list):
        row[1:3] = [-1, "SPOILT"]


def extended_row(row: Any, typed: bool, path: str, route: str) -> Any:
    new = made(typed, row[0], row[1], row[2] + path, row[3] + route)
    spoil(row)
    return new


async def asked_row(row: Any, typed: bool, path: str, route: str) -> Any:
    """As extended_row; some answers come late."""
    number = row[1]
    if number % 3:
        await asyncio.sleep(number * 37 % 5 * 0.004)
    return extended_row(row, typed, path, route)


def passes(row: Any) -> bool:
    return row[1] % 3 != 0


def doubled_row(row: Any, typed: bool, path: str, route: str) -> Any:
    new = [made(typed, row[0], row[1], row[2] + path + end, row[3] + route) for end in (".a", ".b")]
    spoil(row)
    return new


def stamp_of(number: int, jitter_ms: int) -> int:
    """The event time of a source's record; in each split it continues, out of order by `jitter_ms` at the most."""
    return number % 1000 * 10 - number * 37 % (jitter_ms // 10 + 1) * 10


class RecordSource(Numbered):
    typed = True
    drained_at: dict[str, int] | None = None  #: a drain ended the stream of each split before this position
    told_apart = False  #: the reader says which split a record is of

    def row(self, number: int) -> Any:
        return made(self.typed, self.source, number, f"s{self.source}", "")

    def numbers(self) -> list[int]:
        numbers = super().numbers()
        if self.drained_at is None:
            return numbers
        return [number for number in numbers if number % 1000 < self.drained_at.get(str(number // 1000), 0)]

    def reader(self, context: ReaderContext) -> SourceReader:
        reader = super().reader(context)
        poll = reader.poll

        def fused(deadline: float) -> Any:
            burn("poll")
            rows = poll(deadline)
            if rows is None or not self.told_apart:
                return rows
            return Polled(rows, origins=[str(row[1] // 1000) for row in rows])

        reader.poll = fused  # type: ignore[method-assign]
        return reader


class _Traced:
    """What all process functions of the graphs share."""

    uid: str
    ends: bool
    broadcast: tuple[bool, ...]  #: for each input

    def __init__(self, node: Node) -> None:
        self.uid = node.uid
        self.typed = node.typed
        self.ends = node.ends
        self.has_side = node.has_side
        self.broadcast = tuple(given.partitioning == "broadcast" for given in node.inputs)

    def open(self, ctx: tg.Context) -> None:
        burn("open")

    def end_input(self, ctx: tg.Context) -> Any:
        burn("end_input")
        return [end_mark(self.uid, ctx.subtask)] if self.ends else None

    def made(self, *values: Any) -> Any:
        return made(self.typed, *values)

    def traced(self, row: Any, ctx: tg.Context, input_index: int = 0, mark: str = "") -> Any:
        burn("process")
        if slow and row[1] % 7 == 0:
            slow[0].advance(0.03)
        here = f"@{ctx.subtask}" if self.broadcast[input_index] else ""
        new = self.made(row[0], row[1], f"{row[2]}/{self.uid}{mark}{here}", f"{row[3]}{self.uid}.{ctx.subtask},")
        spoil(row)
        return new


def end_mark(uid: str, subtask: int) -> Any:
    return (-1, subtask, f"end of {uid}", f"{uid}.{subtask},")


class Process(_Traced, tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context):
        row = self.traced(value, ctx)
        if self.has_side and row[1] % 2:
            ctx.output(tg.OutputTag(SIDE), self.made(row[0], row[1], row[2] + "!", row[3]))
        return [row]


class Keyed(_Traced, tg.KeyedProcessFunction):
    """Keeps every identity of its key; says "again" where one comes that it knows."""

    seen = tg.MapState(str, int)
    order = tg.ListState(str)
    last = tg.MapState(str, int)  #: the newest number of each lane

    def __init__(self, node: Node, ordered: bool) -> None:
        super().__init__(node)
        self.ordered = ordered

    def process_element(self, value: Any, ctx: tg.Context):
        return self.apply(value, ctx, 0, "")

    def apply(self, value: Any, ctx: tg.Context, input_index: int, mark: str) -> Any:
        row = self.traced(value, ctx, input_index, mark)
        identity = f"{row[0]} {row[1]} {row[2]}"
        if again := self.seen.contains(identity):
            row = self.made(row[0], row[1], row[2] + " AGAIN", row[3])
        elif self.ordered and row[0] >= 0:
            # Lanes that take one way at any parallelism: by split, path, and what the keys on the way are made of.
            lane = f"{row[0]} {row[1] // 1000} {row[2]} {row[1] % 5}"
            if row[1] < self.last.get(lane, -1):
                row = self.made(row[0], row[1], row[2] + " OUT OF ORDER", row[3])
            self.last[lane] = row[1]
        if not again:  # at-least-once may bring it twice
            self.seen.put(identity, len(self.seen))
            self.order.add(identity)
        assert len(self.order.get()) == len(self.seen)
        ctx.output(tg.OutputTag(COUNTS), (repr(ctx.key), len(self.seen)))
        return [row]


class Timed(_Traced, tg.KeyedProcessFunction):
    """Keeps each record until the watermark has passed the end of its window; then it continues, with a timer's timestamp.

    Sources say which split a record is of. Where they are out of order within their bounds nothing may ever come late, over
    any restore, and each window is counted once and whole.
    """

    waiting = tg.MapState(str, int)  #: the record, as text, and the end of its window

    def process_element(self, value: Any, ctx: tg.Context) -> Any:
        source, number, path, route = self.traced(value, ctx)
        route += UNKNOWN
        if source < 0:  # the mark of an end comes when time has ended: no timer fires any more
            return [self.made(source, number, path, route)]
        if ctx.timestamp() <= ctx.current_watermark:
            path += LATE
        end = ctx.timestamp() // WINDOW_MS * WINDOW_MS + WINDOW_MS - 1
        self.waiting[f"{source}|{number}|{path}|{route}"] = end
        ctx.timer_service().register_event_time_timer(end)
        return None

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Any:
        due = [text for text, end in self.waiting.items() if end == timestamp]
        for text in due:
            del self.waiting[text]
            source, number, path, route = text.split("|")
            path = path if ctx.current_watermark >= timestamp else f"{path} EARLY"
            yield self.made(int(source), int(number), path, route)
        ctx.output(tg.OutputTag(COUNTS), (f"{ctx.key!r} until {timestamp}", len(due)))


class CountedWindow(tg.ProcessWindowFunction):
    """(key and window, how many records)."""

    def process(self, key: Any, context: tg.WindowContext, elements: list[Any], /) -> Any:
        burn("process")
        yield (f"{key!r} {context.window.start} {context.window.end}", len(elements))


def counted_window(row: Any) -> Any:
    """The same, of windows over columns."""
    key, start, end, count, _ = row.values()
    return (f"{key!r} {start} {end}", count)


class Connected(_Traced, tg.CoProcessFunction):
    def process_element1(self, value: Any, ctx: tg.Context):
        return [self.traced(value, ctx, 0, ".1")]

    def process_element2(self, value: Any, ctx: tg.Context):
        return [self.traced(value, ctx, 1, ".2")]


class KeyedConnected(Keyed, tg.KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: tg.Context):
        return self.apply(value, ctx, 0, ".1")

    def process_element2(self, value: Any, ctx: tg.Context):
        return self.apply(value, ctx, 1, ".2")


class KeyedBatches(tg.KeyedBatchFunction):
    total = tg.ValueState(int, default=0)

    def __init__(self, node: Node) -> None:
        self.uid = node.uid
        self.ends = node.ends
        self.unordered = UNKNOWN if node.key == "mixed" else ""  #: it is called once for each type of key in a batch

    def open(self, ctx: tg.Context) -> None:
        burn("open")

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> pa.RecordBatch:
        burn("process")
        running = self.total.add_many(keys, pa.array([1] * len(keys), pa.int64()), running=True)
        for key, count in zip(keys.to_pylist(), running.to_pylist(), strict=True):
            ctx.output(tg.OutputTag(COUNTS), (repr(key), count))
        return extended(batch, f"/{self.uid}", f"{self.uid}.{ctx.subtask},{self.unordered}")

    def end_input(self, ctx: tg.Context) -> Any:
        burn("end_input")
        return [end_mark(self.uid, ctx.subtask)] if self.ends else None


def extended(batch: pa.RecordBatch, path: str, route: str) -> pa.RecordBatch:
    columns = [
        batch.column(0),
        batch.column(1),
        pc.binary_join_element_wise(batch.column(2), path, ""),
        pc.binary_join_element_wise(batch.column(3), route, ""),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


class FusedSink(LedgerSink):
    """A LedgerSink whose methods may fail."""

    def writer(self, context: WriterContext) -> SinkWriter:
        return _FusedWriter(super().writer(context))

    def committer(self, context: WriterContext) -> Committer:
        return _FusedCommitter(super().committer(context))


class _FusedWriter(SinkWriter):
    def __init__(self, inner: SinkWriter) -> None:
        self._inner = inner

    def write(self, batch: Batch) -> None:
        burn("write")
        self._inner.write(batch)

    def flush(self) -> None:
        burn("flush")
        self._inner.flush()

    def prepare(self, checkpoint: CheckpointId) -> list[bytes]:
        burn("prepare")
        return self._inner.prepare(checkpoint)


class _FusedCommitter(Committer):
    def __init__(self, inner: Committer) -> None:
        self._inner = inner

    def commit(self, committables: list[bytes]) -> list[CommitOutcome]:
        burn("commit")
        return self._inner.commit(committables)
