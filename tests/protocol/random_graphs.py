"""Random job graphs, as data: built as a job on one side, worked out in plain Python on the other.

A record is (source, number, path, route). (source, number, path) is its identity: every operator adds itself to the
path, and an operator that gets its input by broadcast adds its subtask, so that no two records of one stream are the
same. The answer is a multiset of identities for each sink. The route names the subtasks that a record went through; of
records with the same split, path and route the order must hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from protocol_kit import Numbered, environment

import tidegate as tg
from tidegate.batch import Batch
from tidegate.connectors.contract import (
    CommitOutcome,
    Committer,
    ReaderContext,
    SinkWriter,
    SourceReader,
    WriterContext,
)
from tidegate.ids import CheckpointId
from tidegate.testing.clock import ManualClock
from tidegate.testing.ledger_sink import LedgerSink, ledger

RECORD = tuple[int, int, str, str]
COUNT = tuple[str, int]
SIDE, COUNTS = "side", "counts"
UNKNOWN = "?"  #: in a route: an operator that cannot know its subtask, or that changes the order
WINDOW_MS = 30
MAX_SLOTS = 26
MAX_RECORDS = 600

Identity = tuple[int, int, str]
Ref = tuple[str, str]  #: (uid, output tag)

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


class RecordSource(Numbered):
    def row(self, number: int) -> Any:
        return (self.source, number, f"s{self.source}", "")

    def reader(self, context: ReaderContext) -> SourceReader:
        reader = super().reader(context)
        poll = reader.poll

        def fused(deadline: float) -> Any:
            burn("poll")
            return poll(deadline)

        reader.poll = fused  # type: ignore[method-assign]
        return reader


class _Traced:
    """What all process functions of the graphs share."""

    uid: str
    ends: bool
    broadcast: tuple[bool, ...]  #: for each input

    def __init__(self, node: Node) -> None:
        self.uid = node.uid
        self.ends = node.ends
        self.has_side = node.has_side
        self.broadcast = tuple(given.partitioning == "broadcast" for given in node.inputs)

    def open(self, ctx: tg.Context) -> None:
        burn("open")

    def end_input(self, ctx: tg.Context) -> Any:
        burn("end_input")
        return [end_mark(self.uid, ctx.subtask)] if self.ends else None

    def traced(self, row: Any, ctx: tg.Context, input_index: int = 0, mark: str = "") -> Any:
        burn("process")
        if slow and row[1] % 7 == 0:
            slow[0].advance(0.03)
        here = f"@{ctx.subtask}" if self.broadcast[input_index] else ""
        return (row[0], row[1], f"{row[2]}/{self.uid}{mark}{here}", f"{row[3]}{self.uid}.{ctx.subtask},")


def end_mark(uid: str, subtask: int) -> Any:
    return (-1, subtask, f"end of {uid}", f"{uid}.{subtask},")


class Process(_Traced, tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context):
        row = self.traced(value, ctx)
        if self.has_side and value[1] % 2:
            ctx.output(tg.OutputTag(SIDE), (row[0], row[1], row[2] + "!", row[3]))
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
            row = (row[0], row[1], row[2] + " AGAIN", row[3])
        elif self.ordered and row[0] >= 0:
            # Lanes that take one way at any parallelism: by split, path, and what the keys on the way are made of.
            lane = f"{row[0]} {row[1] // 1000} {row[2]} {row[1] % 5}"
            if row[1] < self.last.get(lane, -1):
                row = (row[0], row[1], row[2] + " OUT OF ORDER", row[3])
            self.last[lane] = value[1]
        if not again:  # at-least-once may bring it twice
            self.seen.put(identity, len(self.seen))
            self.order.add(identity)
        assert len(self.order.get()) == len(self.seen)
        ctx.output(tg.OutputTag(COUNTS), (repr(ctx.key), len(self.seen)))
        return [row]


class Timed(_Traced, tg.KeyedProcessFunction):
    """Keeps each record until the watermark has passed the end of its window; then it goes on, with a timer's timestamp.

    Sources give each subtask one split at the most, in order: so nothing may ever come late, over any restore.
    """

    waiting = tg.MapState(str, int)  #: the record, as text, and the end of its window

    def process_element(self, value: Any, ctx: tg.Context) -> Any:
        source, number, path, route = self.traced(value, ctx)
        route += UNKNOWN
        if source < 0:  # the mark of an end comes when time has ended: no timer fires any more
            return [(source, number, path, route)]
        if ctx.timestamp <= ctx.current_watermark:
            path += f" LATE at {ctx.current_watermark}"
        end = ctx.timestamp // WINDOW_MS * WINDOW_MS + WINDOW_MS - 1
        self.waiting[f"{source}|{number}|{path}|{route}"] = end
        ctx.timer_service().register_event_time_timer(end)
        return None

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Any:
        due = [text for text, end in self.waiting.items() if end == timestamp]
        for text in due:
            del self.waiting[text]
            source, number, path, route = text.split("|")
            yield (int(source), int(number), path if ctx.current_watermark >= timestamp else f"{path} EARLY", route)


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

    def open(self, ctx: tg.Context) -> None:
        burn("open")

    def process_batch(self, keys: pa.Array, batch: pa.RecordBatch, ctx: tg.Context) -> pa.RecordBatch:
        burn("process")
        running = self.total.add_many(keys, pa.array([1] * len(keys), pa.int64()), running=True)
        for key, count in zip(keys.to_pylist(), running.to_pylist(), strict=True):
            ctx.output(tg.OutputTag(COUNTS), (repr(key), count))
        return extended(batch, f"/{self.uid}", f"{self.uid}.{ctx.subtask},")

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


# -- the graph as data ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Input:
    refs: list[Ref]
    partitioning: str  #: forward, rebalance, broadcast or hash


@dataclass(slots=True)
class Node:
    uid: str
    kind: str
    parallelism: int
    typed: bool
    inputs: list[Input] = field(default_factory=list)
    key: str = "mod"
    ends: bool = False
    has_side: bool = False
    source: RecordSource | None = None
    flaky_commits: int = 0
    stamped: bool = False  #: a source whose records have timestamps

    def fits(self, parallelism: int) -> bool:
        """With timestamps a subtask reads one split, so that time goes on in order."""
        return not self.stamped or self.source is None or parallelism >= self.source.split_count


@dataclass(slots=True)
class Graph:
    nodes: list[Node]  #: parents before children

    def node(self, uid: str) -> Node:
        return next(node for node in self.nodes if node.uid == uid)

    @property
    def sinks(self) -> list[Node]:
        return [node for node in self.nodes if node.kind == "sink"]

    def __str__(self) -> str:
        lines = []
        for node in self.nodes:
            given = " & ".join(
                f"{each.partitioning} {'+'.join(':'.join(ref) for ref in each.refs)}" for each in node.inputs
            )
            lines.append(f"{node.uid}: {node.kind} x{node.parallelism}{' typed' if node.typed else ''} <- {given}")
        return "\n".join(lines)


KINDS = ("map", "filter", "flat_map", "process", "keyed", "co", "keyed_co", "map_batches", "keyed_batches")
KEYS = {"mod": lambda row: row[1] % 5, "source": lambda row: row[0], "path": lambda row: row[2]}


def random_graph(rng: random.Random, rescalable: bool = False) -> Graph:
    """`rescalable`: nothing in the answer depends on the parallelism."""
    while True:
        graph = _draw(rng, rescalable)
        answer = answer_of(graph)
        if slots_of(graph) <= MAX_SLOTS and sum(sum(rows.values()) for rows in answer.rows.values()) <= MAX_RECORDS:
            return graph


def _draw(rng: random.Random, rescalable: bool) -> Graph:
    nodes: list[Node] = []
    streams: list[tuple[Ref, bool]] = []  #: with: is it typed?
    stamped = rng.random() < 0.4
    for number in range(rng.choice([1, 1, 2, 3])):
        source = RecordSource(
            number, rng.randint(0, 4), rng.randint(1, 12), [1, *(rng.randint(0, 3) for _ in range(rng.randint(0, 3)))]
        )
        lowest = max(1, source.split_count) if stamped else 1
        node = Node(f"s{number}", "source", rng.randint(lowest, 4), rng.random() < 0.6, source=source, stamped=stamped)
        nodes.append(node)
        streams.append(((node.uid, ""), node.typed))
    for number in range(rng.randint(1, 6)):
        node = _draw_operator(rng, f"o{number}", streams, rescalable, stamped)
        nodes.append(node)
        streams.append(((node.uid, ""), node.typed))
        if node.has_side:
            streams.append(((node.uid, SIDE), node.typed))
    read = {ref for node in nodes for given in node.inputs for ref in given.refs}
    for number, (ref, _) in enumerate(streams):
        if ref not in read or rng.random() < 0.15:
            parts = (
                ["forward", "forward", "rebalance"] if rescalable else ["forward", "forward", "rebalance", "broadcast"]
            )
            sink = Node(f"out{number}", "sink", rng.randint(1, 3), False, [Input([ref], rng.choice(parts))])
            sink.flaky_commits = rng.choice([0, 0, 1, 2])
            nodes.append(sink)
    return Graph(nodes)


def _draw_operator(
    rng: random.Random, uid: str, streams: list[tuple[Ref, bool]], rescalable: bool, stamped: bool
) -> Node:
    kinds = (*KINDS, "timed", "timed", "timed") if stamped else KINDS
    node = Node(uid, rng.choice(kinds), rng.randint(1, 4), rng.random() < 0.6)
    keyed = node.kind.startswith("keyed") or node.kind == "timed"
    columns = node.kind in ("map_batches", "keyed_batches")
    typed_streams = [stream for stream in streams if stream[1]]
    if columns and not typed_streams:
        node.kind, keyed, columns = "map", False, False
    node.typed = node.typed or columns
    for _ in range(2 if node.kind in ("co", "keyed_co") else 1):
        candidates = typed_streams if columns else streams
        # The newest streams first, so that graphs become deep; but old ones too, so that edges skip layers.
        first = candidates[-1] if rng.random() < 0.6 else rng.choice(candidates)
        alike = [stream[0] for stream in streams if stream[1] == first[1] and stream != first]
        others = rng.sample(alike, min(len(alike), rng.choice([0, 0, 0, 1, 2])))
        if keyed:
            partitioning = "hash"
        elif node.kind in ("process", "co") and not rescalable:
            partitioning = rng.choice(["forward", "forward", "rebalance", "broadcast"])
        else:
            partitioning = rng.choice(["forward", "forward", "rebalance"])
        node.inputs.append(Input([first[0], *others], partitioning))
    node.key = rng.choice(["mod", "source"] if node.kind == "keyed_co" else ["mod", "source", "path"])
    if node.kind == "keyed_batches":
        node.key = rng.choice(["source", "path"])
    node.has_side = node.kind == "process" and rng.random() < 0.4
    node.ends = (
        not rescalable and node.kind in ("process", "keyed", "co", "keyed_co", "keyed_batches") and rng.random() < 0.5
    )
    return node


def slots_of(graph: Graph) -> int:
    from tidegate.graph.plan import plan_job

    return len(plan_job("job", build(graph)._graph, 1).slots)


def rescaled(rng: random.Random, graph: Graph) -> Graph:
    """The same graph with other parallelism."""
    for _ in range(100):
        nodes = [
            replace(node, parallelism=rng.choice([number for number in range(1, 5) if node.fits(number)]))
            for node in graph.nodes
        ]
        other = Graph(nodes)
        if slots_of(other) <= MAX_SLOTS:
            return other
    return graph


# -- as a job ---------------------------------------------------------------------------------------------------------


def build(graph: Graph, prefix: str = "", **settings: Any) -> tg.StreamEnvironment:
    """The graph as a job; `prefix` is of its ledgers."""
    env = environment(parallelism=1, **settings)
    streams: dict[Ref, tg.DataStream] = {}
    for node in graph.nodes:
        _add(graph, env, streams, node, prefix)
    return env


def _add(graph: Graph, env: tg.StreamEnvironment, streams: dict[Ref, tg.DataStream], node: Node, prefix: str) -> None:
    if node.kind == "source":
        assert node.source is not None
        returns = RECORD if node.typed else None
        stream = env.from_source(node.source, uid=node.uid, returns=returns, parallelism=node.parallelism)
        if node.stamped:
            times = tg.WatermarkStrategy.monotonous(timestamp=lambda row: row[1] % 1000 * 10)
            stream = stream.assign_timestamps_and_watermarks(times, parallelism=node.parallelism)
        streams[node.uid, ""] = stream
        return
    inputs = [_input(streams, given) for given in node.inputs]
    options: dict[str, Any] = {"uid": node.uid, "parallelism": node.parallelism}
    if node.kind == "sink":
        inputs[0].sink_to(FusedSink(prefix + node.uid, node.flaky_commits), **options)
        return
    options["returns"] = RECORD if node.typed else None
    path, route = f"/{node.uid}", "" if _stays_in_its_subtask(graph, node) else UNKNOWN
    match node.kind:
        case "map":
            out = inputs[0].map(lambda row: (row[0], row[1], row[2] + path, row[3] + route), **options)
        case "filter":
            passed = inputs[0].filter(passes, parallelism=node.parallelism)
            out = passed.map(lambda row: (row[0], row[1], row[2] + path, row[3] + route), **options)
        case "flat_map":
            out = inputs[0].flat_map(
                lambda row: [(row[0], row[1], row[2] + path + end, row[3] + route) for end in (".a", ".b")], **options
            )
        case "map_batches":
            out = inputs[0].map_batches(lambda batch: extended(batch, path, route), **options)
        case "process":
            out = inputs[0].process(Process(node), **options)
        case "co":
            out = inputs[0].connect(inputs[1]).process(Connected(node), **options)
        case "keyed":
            out = _keyed(inputs[0], node).process(Keyed(node, keeps_order(graph, node)), **options)
        case "timed":
            out = _keyed(inputs[0], node).process(Timed(node), **options)
        case "keyed_co":
            out = (
                _keyed(inputs[0], node)
                .connect(_keyed(inputs[1], node))
                .process(KeyedConnected(node, keeps_order(graph, node)), **options)
            )
        case "keyed_batches":
            out = _keyed(inputs[0], node).process_batches(KeyedBatches(node), **options)
    streams[node.uid, ""] = out
    if node.has_side:
        streams[node.uid, SIDE] = out.side_output(tg.OutputTag(SIDE, RECORD if node.typed else None))
    if node.kind.startswith("keyed"):
        counts = out.side_output(tg.OutputTag(COUNTS, COUNT if node.typed else None))
        counts.sink_to(FusedSink(f"{prefix}{node.uid}-counts"), uid=f"{node.uid}-counts", parallelism=1)


def _input(streams: dict[Ref, tg.DataStream], given: Input) -> tg.DataStream:
    first, *others = (streams[ref] for ref in given.refs)
    stream = first.union(*others) if others else first
    match given.partitioning:
        case "rebalance":
            return stream.rebalance()
        case "broadcast":
            return stream.broadcast()
        case _:
            return stream


def _keyed(stream: tg.DataStream, node: Node) -> tg.KeyedStream:
    """By function, by position in rows, or by column: each has its own way to the hash."""
    if node.key == "mod":
        return stream.key_by(lambda row: row[1] % 5, key_type=int)
    position, key_type = (0, int) if node.key == "source" else (2, str)
    return stream.key_by(position) if stream.type.typed else stream.key_by(position, key_type=key_type)


def _stays_in_its_subtask(graph: Graph, node: Node) -> bool:
    return all(
        given.partitioning == "forward" and graph.node(uid).parallelism == node.parallelism
        for given in node.inputs
        for uid, _ in given.refs
    )


def keeps_order(graph: Graph, node: Node) -> bool:
    """Whether a lane's records come in order at any parallelism: on the whole way they are routed by keys alone."""
    return node.kind == "source" or (
        node.kind.startswith("keyed")
        and all(keeps_order(graph, graph.node(uid)) for given in node.inputs for uid, _ in given.refs)
    )


def passes(row: Any) -> bool:
    return row[1] % 3 != 0


# -- worked out -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    rows: dict[str, Counter[Identity]]  #: by uid of the sink
    counts: dict[str, Counter[tuple[str, int]]]  #: by uid of the keyed operator


def answer_of(graph: Graph) -> Answer:
    """What must come out, from the graph's meaning alone."""
    streams: dict[Ref, list[Identity]] = {}
    answer = Answer({}, {})
    for node in graph.nodes:
        if node.source is not None:
            path = f"s{node.source.source}"
            streams[node.uid, ""] = [(node.source.source, number, path) for number in node.source.numbers()]
            continue
        main: list[Identity] = []
        side: list[Identity] = []
        applied: list[Identity] = []
        for index, given in enumerate(node.inputs):
            copies = [f"@{s}" for s in range(node.parallelism)] if given.partitioning == "broadcast" else [""]
            mark = f".{index + 1}" if len(node.inputs) == 2 else ""
            for source, number, path in (row for ref in given.refs for row in streams[ref]):
                applied.append((source, number, path))
                for here in copies:
                    after = f"{path}/{node.uid}{mark}{here}"
                    match node.kind:
                        case "sink":
                            main.append((source, number, path))
                        case "filter":
                            main += [(source, number, after)] if number % 3 else []
                        case "flat_map":
                            main += [(source, number, after + ".a"), (source, number, after + ".b")]
                        case _:
                            main.append((source, number, after))
                    if node.has_side and number % 2:
                        side.append((source, number, after + "!"))
        if node.ends:
            main += [(-1, subtask, f"end of {node.uid}") for subtask in range(node.parallelism)]
        streams[node.uid, ""] = main
        streams[node.uid, SIDE] = side
        if node.kind == "sink":
            answer.rows[node.uid] = Counter(main)
        if node.kind.startswith("keyed"):
            sizes = Counter(repr(KEYS[node.key](row)) for row in applied)
            answer.counts[node.uid] = Counter((key, n) for key, size in sizes.items() for n in range(1, size + 1))
    return answer


def differences(graph: Graph, prefix: str = "") -> list[str]:
    """What the ledgers hold too much, too little or in the wrong order."""
    answer = answer_of(graph)
    found = []
    for uid, expected in answer.rows.items():
        rows = ledger(prefix + uid).rows()
        found += _compared(uid, Counter((row[0], row[1], row[2]) for row in rows), expected)
        found += _out_of_order(prefix, uid)
    for uid, counts in answer.counts.items():
        found += _compared(f"{uid}-counts", Counter(map(tuple, ledger(f"{prefix}{uid}-counts").rows())), counts)
    return found


def _compared(where: str, actual: Counter[Any], expected: Counter[Any]) -> list[str]:
    too_many, lost = actual - expected, expected - actual
    found = []
    if too_many:
        found.append(f"{where}: {sum(too_many.values())} too many, as {list(too_many)[:5]}")
    if lost:
        found.append(f"{where}: {sum(lost.values())} lost, as {list(lost)[:5]}")
    return found


def _out_of_order(prefix: str, uid: str) -> list[str]:
    """Per sink subtask, in the order of the epochs: numbers of one split on one path and route only grow."""
    last: dict[Any, int] = {}
    found = []
    for name, rows in sorted(ledger(prefix + uid).committed.items(), key=lambda item: item[0][:8]):
        writer = name.split("-")[-3]
        for source, number, path, route in rows:
            if UNKNOWN in route:
                continue
            lane = (writer, source, number // 1000, path, route)
            if last.get(lane, -1) >= number:
                found.append(f"{uid}: {number} after {last[lane]} on {lane}")
            last[lane] = number
    return found[:5]


def every_identity_once(rows: Iterable[Any]) -> bool:
    return max(Counter((row[0], row[1], row[2]) for row in rows).values(), default=0) <= 1
