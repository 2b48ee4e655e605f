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
from functools import partial
from typing import Any

from protocol_kit import environment
from random_beside import (
    KEYS,
    MOST_PAIRS,
    WINDOWS,
    Join,
    Ref,
    Stamped,
    add_join,
    add_windows,
    compared,
    draw_join,
    joined,
    keyed,
    wrong_joins,
    wrong_windows,
)
from random_functions import (
    COUNT,
    COUNTS,
    JITTER_MS,
    LATE,
    RECORD,
    SIDE,
    UNKNOWN,
    WINDOW_MS,
    Connected,
    FusedSink,
    Keyed,
    KeyedBatches,
    KeyedConnected,
    Process,
    RecordSource,
    Timed,
    asked_row,
    doubled_row,
    extended,
    extended_row,
    passes,
    stamp_of,
)

import tidegate as tg
from tidegate.testing.ledger_sink import ledger

MAX_SLOTS = 14
MAX_RECORDS = 300
MAX_RECORDS_WHEN_WIDE = 1000
MAX_PARALLELISM = 3

Identity = tuple[int, int, str]

# -- the graph as data ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Input:
    refs: list[Ref]
    partitioning: str  #: forward, rebalance, broadcast, global, hash, shuffle, rescale or custom
    forced: bool = False  #: forward, because the program says so


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
    jitter_ms: int = 0  #: by how much they are out of order
    bound_ms: int | None = None  #: by how much the job takes them to be, if not by that: some come late
    follows: bool = False  #: its parallelism is the job's
    asks: str = ""  #: "ordered" or "unordered": a map that is a call to the outside for each record
    chaining: str = ""  #: "disable_chaining" or "start_new_chain"
    windows: str = ""  #: of WINDOWS: its input is counted in such windows as well
    join: Join | None = None  #: its input is joined as well

    @property
    def counts(self) -> bool:
        """Whether it says how many records of a key it has, on a side output."""
        return self.kind.startswith("keyed") or self.kind == "timed"


@dataclass(slots=True)
class Graph:
    nodes: list[Node]  #: parents before children
    parallelism: int = 1  #: the job's

    @property
    def has_late_records(self) -> bool:
        return any(node.bound_ms is not None for node in self.nodes)

    def node(self, uid: str) -> Node:
        return next(node for node in self.nodes if node.uid == uid)

    def chained_to_a_source(self, uid: str) -> bool:
        """Whether an operator is, or would be if it were as wide; one that is not a node belongs to its neighbour."""
        if uid.endswith(f"-{COUNTS}"):
            return False
        sources = {node.uid for node in self.nodes if node.kind == "source"}
        return all(
            given.partitioning == "forward" and sources.issuperset(parent for parent, _ in given.refs)
            for node in self.nodes
            if node.uid == uid
            for given in node.inputs
        )

    def has_before(self, uid: str, kind: str) -> bool:
        """Whether an operator, or one before it, is of this kind."""
        node = self.node(uid)
        return node.kind == kind or any(
            self.has_before(parent, kind) for given in node.inputs for parent, _ in given.refs
        )

    def has_late_keys(self, uid: str) -> bool:
        """Whether what is late before it says so in the path that its records are keyed by."""
        node = self.node(uid)
        parents = [parent for given in node.inputs for parent, _ in given.refs]
        parents += [node.join.other[0]] if node.join is not None else []
        return self.has_late_records and node.key == "path" and any(self.has_before(each, "timed") for each in parents)

    def has_ends_before(self, uid: str) -> bool:
        """Whether an operator before it puts something out at the end of its input."""
        return any(
            self.node(parent).ends or self.has_ends_before(parent)
            for given in self.node(uid).inputs
            for parent, _ in given.refs
        )

    @property
    def sinks(self) -> list[Node]:
        return [node for node in self.nodes if node.kind == "sink"]

    def __str__(self) -> str:
        lines = []
        for node in self.nodes:
            given = " & ".join(
                f"{each.partitioning}{'()' if each.forced else ''} {'+'.join(':'.join(ref) for ref in each.refs)}"
                for each in node.inputs
            )
            width = f"{node.parallelism}{' as the job' if node.follows else ''}"
            lines.append(
                f"{node.uid}: {node.kind} x{width}{' typed' if node.typed else ''}{' ' * bool(node.chaining)}{node.chaining} "
                f"{node.asks} "
                f"by {node.key}{' ' * bool(node.windows)}{node.windows}{f' ({node.join})' * bool(node.join)} <- {given}"
            )
        return "\n".join(lines)


ON_KEYS = ("map", "filter", "flat_map")  #: with or without keys, and without state
PIPED = ("map", "filter", "flat_map", "process", "map_batches")
KINDS = ("map", "filter", "flat_map", "process", "keyed", "co", "keyed_co", "map_batches", "keyed_batches")


def random_graph(rng: random.Random, rescalable: bool = False, long: bool = False, wide: bool = False) -> Graph:
    """`rescalable`: nothing in the answer depends on the parallelism. `long`: few operators and many records; `wide`: more of
    them, from several subtasks."""
    while True:
        graph = _draw(rng, rescalable, long, wide)
        answer = answer_of(graph)
        records = sum(sum(rows.values()) for rows in answer.rows.values())
        if slots_of(graph) <= MAX_SLOTS and records <= (MAX_RECORDS_WHEN_WIDE if wide else MAX_RECORDS):
            return graph


def _draw(rng: random.Random, rescalable: bool, long: bool, wide: bool) -> Graph:
    nodes: list[Node] = []
    streams: list[tuple[Ref, bool]] = []  #: with: is it typed?
    pipe = long and (
        rng.random() < 0.3 if wide and not rescalable else wide or rng.random() < 0.6
    )  #: from operators that may be chained to their source to one with state
    stamped = rng.random() < (0.8 if wide else 0.6)
    base = rng.choice([2, 3, 3]) if wide else rng.randint(1, MAX_PARALLELISM)
    for number in range(1 if long else rng.choice([1, 1, 2, 3])):
        if wide:
            splits = rng.choice([1, 2, base]) if rescalable else rng.randint(base, 4)
            records, most = rng.randint(100, 250) if rescalable else rng.randint(80, 200), 7
        elif long:
            splits, records, most = rng.randint(1, 4), rng.randint(30, 70), rng.choice([3, 7])
        else:
            splits, records, most = rng.randint(0, 4), rng.randint(1, 12), 3
        sizes = [
            rng.randint(4, 9) if wide and rescalable else 1,
            *(rng.randint(1 if wide else 0, most) for _ in range(rng.randint(0, 3))),
        ]
        source = RecordSource(number, splits, records, sizes)
        node = Node(f"s{number}", "source", base, rng.random() < 0.6, source=source, stamped=stamped)
        node.jitter_ms = rng.choice([0, 0 if wide else JITTER_MS, JITTER_MS])
        source.typed, source.told_apart = node.typed, stamped
        nodes.append(node)
        streams.append(((node.uid, ""), node.typed))
    kinds = (*KINDS, "timed", "timed", "timed") if stamped else KINDS
    stateful = ("timed", "timed", "keyed") if stamped else ("keyed",)
    if pipe:
        each = [PIPED, stateful]
    elif wide:
        each = [stateful]
    else:
        each = [kinds] * rng.randint(1, 2 if long else 5)
    for number, kinds in enumerate(each):
        node = _draw_operator(rng, f"o{number}", streams[-1:] if pipe else streams, rescalable, kinds)
        if wide:
            node.parallelism = base
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
            sink = Node(f"out{number}", "sink", base, False, [Input([ref], rng.choice(parts))])
            sink.flaky_commits = rng.choice([0, 0, 1, 2])
            nodes.append(sink)
    if wide and rescalable:  # not chained yet
        nodes[1].inputs[0].partitioning = "forward"
        nodes[1].parallelism = rng.choice([1, *(width for width in range(1, MAX_PARALLELISM + 1) if width != base)])
        return Graph(nodes, base)
    for node in nodes:
        node.follows = rescalable and rng.random() < 0.4
        if (
            not node.follows
            and not (wide and node.kind == "source")
            and rng.random() < (0.8 if pipe else 0.2 if wide else 0.5)
        ):  # neighbours that are as wide are one chain
            node.parallelism = rng.randint(1, MAX_PARALLELISM)
    return Graph(nodes, base)


def _draw_operator(
    rng: random.Random, uid: str, streams: list[tuple[Ref, bool]], rescalable: bool, kinds: tuple[str, ...]
) -> Node:
    node = Node(uid, rng.choice(kinds), 1, rng.random() < 0.6)
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
    node.has_side = node.kind == "process" and rng.random() < 0.4
    node.ends = (
        not rescalable and node.kind in ("process", "keyed", "co", "keyed_co", "keyed_batches") and rng.random() < 0.5
    )
    return node


def vary(rng: random.Random, graph: Graph, rescalable: bool) -> None:
    """What changes nothing in a graph's form: other ways from subtask to subtask, chains that are cut, keys of several types,
    late records."""
    for node in graph.nodes:
        if node.kind == "map" and rng.random() < 0.5:
            node.asks = rng.choice(["ordered", "unordered"])
        if node.key == "mod" and rng.random() < 0.3:
            node.key = "mixed"
        for given in node.inputs:
            if given.partitioning == "rebalance" and rng.random() < 0.3:
                given.partitioning = "global"
            elif given.partitioning == "rebalance" and rng.random() < 0.7:
                ways = ["shuffle", "rescale", "custom"]
                given.partitioning = rng.choice([*ways, "hash"] if node.kind in ON_KEYS else ways)
            elif given.partitioning == "forward" and rng.random() < 0.3:
                given.forced = all(_has_one_width(node, graph.node(uid), rescalable) for uid, _ in given.refs)
        if node.kind not in ("source", "sink") and rng.random() < 0.15:
            node.chaining = rng.choice(["disable_chaining", "start_new_chain"])
    if rng.random() < 0.2:
        for node in graph.nodes:
            if node.jitter_ms and rng.random() < 0.7:
                node.bound_ms = 0
    if slots_of(graph) > MAX_SLOTS:
        for node in graph.nodes:
            node.chaining = ""
    if rng.random() < 0.2:
        for node in graph.nodes:
            if node.jitter_ms:
                node.bound_ms = 0
    for node in graph.nodes:
        # The mark of an end has no event time, so windows of event time refuse it.
        if node.kind == "timed" and rng.random() < 0.6 and not graph.has_ends_before(node.uid):
            node.windows = rng.choice(list(WINDOWS))
            if slots_of(graph) > MAX_SLOTS:
                node.windows = ""
    _draw_joins(rng, graph)


def _draw_joins(rng: random.Random, graph: Graph) -> None:
    """As many as there are slots for, and none of very many pairs."""
    is_stamped = graph.nodes[0].stamped
    timely: list[Ref] = []  #: streams of which each record has a time, before the operator
    for node in graph.nodes:
        if node.kind == "sink" or graph.has_ends_before(node.uid):
            continue
        if is_stamped and graph.has_late_records and len(node.inputs) == 1 and rng.random() < 0.6:
            # Windows of late records elsewhere than beside timers.
            node.windows = rng.choice(list(WINDOWS))
            if slots_of(graph) > MAX_SLOTS:
                node.windows = ""
        if node.kind != "source" and rng.random() < 0.5:
            node.join = draw_join(rng, timely, graph.has_late_records, is_stamped)
            if slots_of(graph) > MAX_SLOTS or joined(node, *answer_of(graph).joins[node.uid]).total() > MOST_PAIRS:
                node.join = None
        if not node.ends:
            timely += [(node.uid, ""), *([(node.uid, SIDE)] if node.has_side else [])]


def _has_one_width(node: Node, parent: Node, rescalable: bool) -> bool:
    """Whatever becomes of the job's."""
    return (node.follows and parent.follows) or (not rescalable and node.parallelism == parent.parallelism)


def slots_of(graph: Graph) -> int:
    from tidegate.graph.plan import plan_job

    env = build(graph)
    env._built.taken_up = True  # nobody wants to run it
    return len(plan_job("job", env._graph, 1).slots)


def rescaled(rng: random.Random, graph: Graph) -> Graph:
    """The same graph with other parallelism: what was a chain may be none any more, and the other way round."""
    for _ in range(100):
        base = rng.randint(1, MAX_PARALLELISM)
        alike = rng.choice([0.5, 1.0, 1.0])
        nodes = [
            replace(
                node,
                parallelism=base if node.follows or rng.random() < alike else rng.randint(1, MAX_PARALLELISM),
            )
            for node in graph.nodes
        ]
        other = Graph(nodes, base)
        if slots_of(other) <= MAX_SLOTS:
            return other
    return graph


# -- as a job ---------------------------------------------------------------------------------------------------------


def build(graph: Graph, prefix: str = "", **settings: Any) -> tg.StreamEnvironment:
    """The graph as a job; `prefix` is of its ledgers."""
    env = environment(parallelism=graph.parallelism, **settings)
    env.restart_strategy("exponential-delay")  # chosen: functions that fail twice at one line are part of the runs
    streams: dict[Ref, tg.DataStream] = {}
    for node in graph.nodes:
        _add(graph, env, streams, node, prefix)
    return env


def _add(graph: Graph, env: tg.StreamEnvironment, streams: dict[Ref, tg.DataStream], node: Node, prefix: str) -> None:
    width = None if node.follows else node.parallelism
    if node.kind == "source":
        assert node.source is not None
        returns = RECORD if node.typed else None
        stream = env.from_source(node.source, uid=node.uid, returns=returns, parallelism=width)
        if node.stamped:
            bound_ms = node.jitter_ms if node.bound_ms is None else node.bound_ms
            times = tg.WatermarkStrategy.bounded_out_of_orderness(
                f"{bound_ms}ms", timestamp=lambda row: stamp_of(row[1], node.jitter_ms)
            )
            stream = stream.assign_timestamps_and_watermarks(times, parallelism=width)
        streams[node.uid, ""] = stream
        return
    inputs = [_input(streams, given) for given in node.inputs]
    options: dict[str, Any] = {"uid": node.uid, "parallelism": width}
    if node.kind == "sink":
        inputs[0].sink_to(FusedSink(prefix + node.uid, node.flaky_commits), **options)
        return
    options["returns"] = RECORD if node.typed else None
    path, route = f"/{node.uid}", "" if _stays_in_its_subtask(graph, node) else UNKNOWN
    typed = node.typed
    match node.kind:
        case "map" if node.asks:
            ask = partial(asked_row, typed=typed, path=path, route=route if node.asks == "ordered" else UNKNOWN)
            out = _on_keys(inputs[0], node).async_map(ask, ordered=node.asks == "ordered", capacity=5, **options)
        case "map":
            out = _on_keys(inputs[0], node).map(lambda row: extended_row(row, typed, path, route), **options)
        case "filter":
            passed = _on_keys(inputs[0], node).filter(passes, parallelism=width)
            out = passed.map(lambda row: extended_row(row, typed, path, route), **options)
        case "flat_map":
            out = _on_keys(inputs[0], node).flat_map(lambda row: doubled_row(row, typed, path, route), **options)
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
    if node.chaining:
        getattr(out, node.chaining)()
    streams[node.uid, ""] = out
    if node.has_side:
        streams[node.uid, SIDE] = out.side_output(tg.OutputTag(SIDE, RECORD if node.typed else None))
    if node.windows:
        add_windows(inputs[0], node, graph.has_late_records, prefix, width)
    if node.join is not None:
        add_join(inputs[0], streams[node.join.other], node, graph.has_late_records, prefix, width)
    if node.counts:
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
        case "global":
            return stream.global_()
        case "shuffle":
            return stream.shuffle()
        case "rescale":
            return stream.rescale()
        case "custom":
            return stream.partition_custom(lambda number, receivers: number % receivers, lambda row: row[1])
        case "forward" if given.forced:
            return stream.forward()
        case _:
            return stream


def _on_keys(stream: tg.DataStream, node: Node) -> tg.DataStream | tg.KeyedStream:
    return _keyed(stream, node) if node.inputs[0].partitioning == "hash" else stream


def _keyed(stream: tg.DataStream, node: Node) -> tg.KeyedStream:
    return keyed(stream, node.key)


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


# -- worked out -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Answer:
    rows: dict[str, Counter[Identity]]  #: by uid of the sink
    counts: dict[str, Counter[tuple[str, int]]]  #: by uid of the keyed operator
    windows: dict[str, list[Stamped]] = field(default_factory=dict)  #: by uid of the operator beside them: what goes in
    joins: dict[str, tuple[list[Stamped], list[Stamped]]] = field(default_factory=dict)  #: the same, of both sides


def answer_of(graph: Graph) -> Answer:
    """What must come out, from the graph's meaning alone."""
    streams: dict[Ref, list[Stamped]] = {}
    answer = Answer({}, {})
    for node in graph.nodes:
        if node.source is not None:
            path = f"s{node.source.source}"
            streams[node.uid, ""] = [
                (node.source.source, each, path, stamp_of(each, node.jitter_ms)) for each in node.source.numbers()
            ]
            continue
        main: list[Stamped] = []
        side: list[Stamped] = []
        applied: list[Stamped] = []
        for index, given in enumerate(node.inputs):
            copies = [f"@{s}" for s in range(node.parallelism)] if given.partitioning == "broadcast" else [""]
            mark = f".{index + 1}" if len(node.inputs) == 2 else ""
            for source, number, path, stamp in (row for ref in given.refs for row in streams[ref]):
                applied.append((source, number, path, stamp))
                for here in copies:
                    after = f"{path}/{node.uid}{mark}{here}"
                    match node.kind:
                        case "sink":
                            main.append((source, number, path, stamp))
                        case "filter":
                            main += [(source, number, after, stamp)] if number % 3 else []
                        case "flat_map":
                            main += [(source, number, after + end, stamp) for end in (".a", ".b")]
                        case "timed":
                            main.append((source, number, after, None if stamp is None else window_end(stamp)))
                        case _:
                            main.append((source, number, after, stamp))
                    if node.has_side and number % 2:
                        side.append((source, number, after + "!", stamp))
        if node.ends:
            main += [(-1, subtask, f"end of {node.uid}", None) for subtask in range(node.parallelism)]
        streams[node.uid, ""] = main
        streams[node.uid, SIDE] = side
        if node.windows:
            answer.windows[node.uid] = applied
        if node.join is not None:
            ours = [row for ref in node.inputs[0].refs for row in streams[ref]]
            answer.joins[node.uid] = (ours, streams[node.join.other])
        if node.kind == "sink":
            answer.rows[node.uid] = Counter(row[:3] for row in main)
        elif node.kind == "timed":
            sizes = Counter((repr(KEYS[node.key](row)), window_end(row[3])) for row in applied if row[3] is not None)
            answer.counts[node.uid] = Counter((f"{key} until {end}", size) for (key, end), size in sizes.items())
        elif node.counts:
            sizes = Counter(repr(KEYS[node.key](row)) for row in applied)
            answer.counts[node.uid] = Counter((key, n) for key, size in sizes.items() for n in range(1, size + 1))
    return answer


def window_end(stamp: int) -> int:
    return stamp // WINDOW_MS * WINDOW_MS + WINDOW_MS - 1


def differences(graph: Graph, prefix: str = "") -> list[str]:
    """What the ledgers hold too much, too little or in the wrong order."""
    answer = answer_of(graph)
    found = []
    for uid, expected in answer.rows.items():
        rows = ledger(prefix + uid).rows()
        found += compared(uid, Counter((row[0], row[1], _path(graph, row[2])) for row in rows), expected)
        found += _out_of_order(prefix, uid)
    for uid, counts in answer.counts.items():
        if graph.has_late_records and graph.has_before(uid, "timed"):
            continue  # what is late is counted in a window of its own, and its key may be its path
        found += compared(f"{uid}-counts", Counter(map(tuple, ledger(f"{prefix}{uid}-counts").rows())), counts)
    for uid, taken in answer.windows.items():
        if not graph.has_late_keys(uid):
            found += wrong_windows(graph.node(uid), taken, graph.has_late_records, prefix)
    for uid, sides in answer.joins.items():
        if not graph.has_late_keys(uid):
            found += wrong_joins(graph.node(uid), *sides, graph.has_late_records, prefix)
    return found


def _path(graph: Graph, path: str) -> str:
    return path.replace(LATE, "") if graph.has_late_records else path


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
