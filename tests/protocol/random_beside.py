"""What stands beside an operator of a random graph: its input in windows, or joined with another stream of the graph.

Built as operators on one side, worked out in plain Python over the whole input on the other. Where records may come late the
job says which did (late records have a ledger of their own), and what must come out is worked out over all others; windows that
allow lateness take all, and fire again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from random_functions import COUNT, LATE, CountedWindow, FusedSink, counted_window

import tidegate as tg
from tidegate.testing.ledger_sink import ledger

if TYPE_CHECKING:
    from random_graphs import Node

Ref = tuple[str, str]  #: (uid, output tag)
Stamped = tuple[int, int, str, int | None]  #: source, number, path, and the record's event time
MOST_PAIRS = 1500  #: of a join
MIXED = (1, 1.0, True, "1", None)  #: five keys, whatever Python thinks of them
WINDOWS: dict[str, Callable[[], tg.WindowAssigner]] = {
    "tumbling": lambda: tg.TumblingEventTimeWindows("40ms", offset="10ms"),
    "sliding": lambda: tg.SlidingEventTimeWindows("60ms", "20ms"),
    "cumulative": lambda: tg.CumulativeEventTimeWindows("60ms", "20ms"),
    "session": lambda: tg.EventTimeSessionWindows("15ms"),
}
KEYS = {
    "mod": lambda row: row[1] % 5,
    "mixed": lambda row: MIXED[row[1] % 5],
    "source": lambda row: row[0],
    "path": lambda row: row[2],
}
NAMES = {0: "zero", 2: "two"}  #: what the outside has


def keyed(stream: tg.DataStream, key: str) -> tg.KeyedStream:
    args, options = key_of(stream, key)
    return stream.key_by(*args, **options)


def key_of(stream: tg.DataStream, key: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """By function, by position in rows, or by column: each has its own way to the hash."""
    if key == "mod":
        return (lambda row: row[1] % 5,), {"key_type": int}
    if key == "mixed":
        return (lambda row: MIXED[row[1] % 5],), {}
    position, key_type = (0, int) if key == "source" else (2, str)
    return (position,), {} if stream.type.typed else {"key_type": key_type}


# -- windows ----------------------------------------------------------------------------------------------------------


def add_windows(stream: tg.DataStream, node: Node, has_late: bool, prefix: str, parallelism: int | None) -> None:
    """Over columns, where there are some; else record by record."""
    windows = keyed(stream, node.key).window(WINDOWS[node.windows]())
    if has_late and node.windows != "tumbling":
        windows = windows.allowed_lateness("1h")
    uid = f"{node.uid}-windows"
    options: dict[str, Any] = {"uid": uid, "parallelism": parallelism}
    if not stream.type.typed or node.key == "mixed":
        results: Any = windows.process(CountedWindow(), returns=COUNT, **options)
        out = results
    else:
        results = windows.aggregate(n=tg.count(), highest=tg.max("f1"), **options)
        out = results.map(counted_window, returns=COUNT)
    _into_ledger(out, f"{prefix}{uid}-counts", f"{uid}-counts")
    if has_late and node.windows == "tumbling":
        _into_ledger(results.late(), f"{prefix}{uid}-late", f"{uid}-late")


def windows_of(
    assigner: tg.WindowAssigner, items: Iterable[tuple[str, int, Any]]
) -> dict[tuple[str, int, int], list[Any]]:
    """What each window of each key has, of (key, time, what)."""
    by_key: dict[str, list[tuple[int, Any]]] = defaultdict(list)
    for key, stamp, item in items:
        by_key[key].append((stamp, item))
    found: dict[tuple[str, int, int], list[Any]] = defaultdict(list)
    for key, mine in by_key.items():
        if not assigner.merges:
            for stamp, item in mine:
                for window in assigner.assign_windows(None, stamp):
                    found[key, window.start, window.end].append(item)
            continue
        session: list[int] = []
        members: list[Any] = []
        for stamp, item in sorted(mine, key=lambda each: each[0]):
            (window,) = assigner.assign_windows(None, stamp)
            if session and window.start > session[1]:
                found[key, session[0], session[1]] = members
                session, members = [], []
            session = [session[0] if session else window.start, window.end]
            members.append(item)
        found[key, session[0], session[1]] = members
    return found


def wrong_windows(node: Node, rows: list[Stamped], has_late: bool, prefix: str) -> Iterator[str]:
    where = f"{node.uid}-windows-counts"
    actual: Counter[tuple[str, int]] = Counter(map(tuple, ledger(prefix + where).rows()))
    if has_late and node.windows == "tumbling":
        rows = without_late(rows, f"{prefix}{node.uid}-windows-late")
    windows = windows_of(WINDOWS[node.windows](), ((repr(KEYS[node.key](row)), row[3], 1) for row in rows))  # type: ignore[misc]
    expected = Counter({(f"{key} {start} {end}", len(them)): 1 for (key, start, end), them in windows.items()})
    if not has_late or node.windows == "tumbling":
        yield from compared(where, actual, expected)
        return
    # A window fires again for what comes late. It never says the same twice, and at last it has all; sessions grow together.
    most: dict[str, int] = defaultdict(int)
    for (window, count), times in actual.items():
        most[window] = max(most[window], count)
        if times > 1:
            yield f"{where}: 1 too many, as {window} with {count} records"
    lost = [each for each in expected if most[each[0]] != each[1]]
    if lost:
        yield f"{where}: {len(lost)} lost, as {lost[:5]}"


# -- joins ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """Of an operator's input, the left side, with another stream."""

    kind: str  #: interval, temporal, lookup, or one of WINDOWS
    how: str  #: as in `how=`; "co_group"
    other: Ref
    bounds_ms: tuple[int, int]
    columns: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.how} {self.bounds_ms} with {':'.join(self.other)}{' as columns' * self.columns}"


def draw_join(rng: random.Random, others: list[Ref], has_late: bool, is_stamped: bool) -> Join:
    kinds = ["interval", "interval", "temporal", "lookup", "tumbling", *([] if has_late else list(WINDOWS))]
    kind = rng.choice(kinds) if is_stamped else "lookup"
    hows = {"temporal": ("inner", "left"), "lookup": ("inner", "left"), "interval": ("inner", "left", "right", "full")}
    how = rng.choice(hows.get(kind, (*hows["interval"], "co_group")))
    if kind == "temporal" and has_late:
        how = "left"
    bounds_ms = rng.choice([(-30, 20), (0, 30), (-20, -10), (10, 40)])
    return Join(kind, how, rng.choice(others), bounds_ms, rng.random() < 0.5)


async def named(number: int) -> str | None:
    if number % 2:
        await asyncio.sleep(0.004 * number)
    return NAMES.get(number)


def written(row: Any) -> str:
    return "-" if row is None or row[0] is None else f"{row[0]} {row[1]} {row[2]}"


def written_pair(left: Any, right: Any) -> tuple[str, int]:
    return (f"{written(left)} & {written(right)}", 0)


def written_columns(pair: dict[str, Any]) -> tuple[str, int]:
    left, right = ([pair[f"{side}f{at}"] for at in range(3)] for side in ("", "right_"))
    return written_pair(left, right)


def written_groups(first: list[Any], second: list[Any]) -> list[tuple[str, int]]:
    return [(f"{sorted(map(written, first))} & {sorted(map(written, second))}", 0)]


def add_join(
    left: tg.DataStream, right: tg.DataStream, node: Node, has_late: bool, prefix: str, parallelism: int | None
) -> None:
    join, uid = node.join, f"{node.uid}-join"
    assert join is not None
    options: dict[str, Any] = {"uid": uid, "parallelism": parallelism}
    if join.kind == "lookup":
        stream: Any = keyed(left, node.key) if join.columns else left
        options |= {"how": join.how, "returns": COUNT, "cache": tg.LookupCache(rows=2) if join.columns else None}
        out = stream.lookup_join(
            named, lambda row, name: (f"{written(row)} {name}", 0), on=lambda row: row[1] % 4, **options
        )
        _into_ledger(out, f"{prefix}{uid}-counts", f"{uid}-counts")
        return
    columns = join.columns and left.type.typed and right.type.typed and join.how != "co_group"
    if join.kind in WINDOWS:
        of: Any = left.co_group(right) if join.how == "co_group" else left.join(right)
        (args, named_args), (other_args, other_named) = key_of(left, node.key), key_of(right, node.key)
        both = of.where(*args, **named_args).equal_to(*other_args, **other_named).window(WINDOWS[join.kind]())
        both = both if join.how == "co_group" else both.how(join.how)
        put = both.apply
    elif join.kind == "interval":
        both = keyed(left, node.key).interval_join(keyed(right, node.key))
        both = both.between(*(f"{bound}ms" for bound in join.bounds_ms)).how(join.how)
        put = both.process
    else:
        both = keyed(left, node.key).temporal_join(keyed(right, node.key), how=join.how)
        put = both.process
    if columns:
        pairs = both.columns(**options)
        out = pairs.map(written_columns, returns=COUNT)
    else:
        out = pairs = put(written_groups if join.how == "co_group" else written_pair, returns=COUNT, **options)
    _into_ledger(out, f"{prefix}{uid}-counts", f"{uid}-counts")
    for side in ("left", "right") if has_late else ():
        late = pairs.side_output(getattr(both, f"late_{side}"))
        _into_ledger(late, f"{prefix}{uid}-late-{side}", f"{uid}-late-{side}")


def joined(node: Node, lefts: list[Stamped], rights: list[Stamped]) -> Counter[tuple[str, int]]:
    """What must come out. Of a temporal join the version stands there by its time: two may have one."""
    join = node.join
    assert join is not None
    if join.kind == "lookup":
        kept = [row for row in lefts if join.how == "left" or row[1] % 4 in NAMES]
        is_everywhere = (
            node.inputs[0].partitioning == "broadcast" and not join.columns
        )  # by key each goes to one subtask
        times = node.parallelism if is_everywhere else 1
        return Counter((f"{written(row)} {NAMES.get(row[1] % 4)}", 0) for row in kept for _ in range(times))
    key = KEYS[node.key]
    sides = [(repr(key(row)), row[3], (side, row)) for side, rows in enumerate((lefts, rights)) for row in rows]
    if join.kind in WINDOWS:
        found: Counter[tuple[str, int]] = Counter()
        for members in windows_of(WINDOWS[join.kind](), sides).values():  # type: ignore[arg-type]
            first, second = ([row for side, row in members if side == each] for each in (0, 1))
            found.update(written_groups(first, second) if join.how == "co_group" else _met(first, second, join.how))
        return found
    by_key: dict[str, tuple[list[Stamped], list[Stamped]]] = defaultdict(lambda: ([], []))
    for text, _, (side, row) in sides:
        by_key[text][side].append(row)
    if join.kind == "temporal":
        return Counter(
            (f"{written(row)} & {'-' if version is None else version}", 0)
            for left, right in by_key.values()
            for row, version in _versions(left, right)
            if version is not None or join.how == "left"
        )
    lower, upper = join.bounds_ms
    found = Counter()
    for left, right in by_key.values():
        pairs = [(one, other) for one, other in product(left, right) if lower <= other[3] - one[3] <= upper]  # type: ignore[operator]
        found.update(written_pair(one, other) for one, other in pairs)
        if join.how in ("left", "full"):
            met = {id(one) for one, _ in pairs}
            found.update(written_pair(one, None) for one in left if id(one) not in met)
        if join.how in ("right", "full"):
            met = {id(other) for _, other in pairs}
            found.update(written_pair(None, other) for other in right if id(other) not in met)
    return found


def _met(first: list[Any], second: list[Any], how: str) -> Iterator[tuple[str, int]]:
    if not second and how in ("left", "full"):
        yield from (written_pair(row, None) for row in first)
    elif not first and how in ("right", "full"):
        yield from (written_pair(None, row) for row in second)
    else:
        yield from (written_pair(one, other) for one, other in product(first, second))


def _versions(left: list[Stamped], right: list[Stamped]) -> Iterator[tuple[Stamped, int | None]]:
    for row in left:
        yield row, max((other[3] for other in right if other[3] <= row[3]), default=None)  # type: ignore[operator,type-var,misc]


def wrong_joins(node: Node, lefts: list[Stamped], rights: list[Stamped], has_late: bool, prefix: str) -> list[str]:
    join, where = node.join, f"{node.uid}-join-counts"
    assert join is not None
    rows = [(_plain(text) if has_late else text, zero) for text, zero in map(tuple, ledger(prefix + where).rows())]
    if has_late and join.kind != "lookup":
        lefts = without_late(lefts, f"{prefix}{node.uid}-join-late-left")
        rights = rights if join.kind == "temporal" else without_late(rights, f"{prefix}{node.uid}-join-late-right")
    expected = joined(node, lefts, rights)
    if join.kind != "temporal":
        return compared(where, Counter(rows), expected)
    stamps = {written(row): row[3] for row in rights}
    parted = [text.split(" & ") for text, _ in rows]
    actual = Counter((f"{left} & {stamps.get(right, right)}", 0) for left, right in parted)
    if not has_late:
        return compared(where, actual, expected)
    # A late version counts for those who still wait, so which one a record has met is not certain; that it left once is.
    ways = (Counter(text.split(" & ")[0] for text, _ in each.elements()) for each in (actual, expected))
    return compared(where, *ways)


# -- what both need ---------------------------------------------------------------------------------------------------


def _into_ledger(stream: tg.DataStream, name: str, uid: str) -> None:
    stream.sink_to(FusedSink(name), uid=uid, parallelism=1)


def without_late(rows: list[Stamped], name: str) -> list[Stamped]:
    late = Counter((row[0], row[1], _plain(row[2])) for row in ledger(name).rows())
    kept = []
    for row in rows:
        if late[row[:3]]:
            late[row[:3]] -= 1
        else:
            kept.append(row)
    return kept


def _plain(path: str) -> str:
    return path.replace(LATE, "")


def compared(where: str, actual: Counter[Any], expected: Counter[Any]) -> list[str]:
    too_many, lost = actual - expected, expected - actual
    found = []
    if too_many:
        found.append(f"{where}: {sum(too_many.values())} too many, as {list(too_many)[:5]}")
    if lost:
        found.append(f"{where}: {sum(lost.values())} lost, as {list(lost)[:5]}")
    return found
