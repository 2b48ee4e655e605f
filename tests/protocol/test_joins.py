"""Joins against DuckDB over the whole input: out of order, late, killed, restored, rescaled, through savepoints."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from protocol_kit import Numbered, environment, fresh_storage, log_records
from random_runs import ends_with_a_stop

import tidegate as tg
from tidegate.api.joins import HOW, TEMPORAL_HOW
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.savepoints import SavepointRequest, StopMode
from tidegate.testing import LedgerSink, forget_ledgers, ledger
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.runner import Ask, run_in_process

ROW = tuple[int, int]
#: With what the SQL of the assigner's docstring calls its settings.
ASSIGNERS: dict[str, tuple[tg.WindowAssigner, dict[str, int]]] = {
    "tumbling": (tg.TumblingEventTimeWindows("40ms"), {"size": 40, "offset": 0}),
    "sliding": (tg.SlidingEventTimeWindows("60ms", "20ms"), {"size": 60, "slide": 20, "offset": 0}),
    "cumulative": (tg.CumulativeEventTimeWindows("60ms", "20ms"), {"size": 60, "step": 20, "offset": 0}),
    "session": (tg.EventTimeSessionWindows("8ms"), {"gap": 8}),
}
LOWER_MS, UPPER_MS = -30, 20
PER_SPLIT = 15


def key_of(row: Any) -> int:
    return row[1] % 3


def stamp_of(row: Any) -> int:
    """Out of order by 40 ms at the most; each source has a pace of its own."""
    source, number = row
    return number % 1000 * (10 + source) + number * 37 % 5 * 10


class NotLate(tg.ProcessFunction):
    """With its time; and nothing that leaves a join is late."""

    def process_element(self, row: Any, ctx: tg.Context):
        assert ctx.timestamp() > ctx.current_watermark
        yield (*row, ctx.timestamp())


LISTS = tuple[list[int], list[int]]


def lists(first: list[Any], second: list[Any]) -> Any:
    return [(sorted(row[1] for row in first), sorted(row[1] for row in second))]


def ids(left: Any, right: Any) -> tuple[Any, Any]:
    return (None if left is None else left[1], None if right is None else right[1])


def build(kind: str, how: str, bound_ms: tuple[int, int], storage: str, **settings: Any) -> tg.StreamEnvironment:
    env = environment(storage=storage, parallelism=2, **settings)
    env.restart_strategy("fixed-delay", attempts=100, delay="0s")
    sides = []
    for source in (0, 1):
        times = tg.WatermarkStrategy.bounded_out_of_orderness(f"{bound_ms[source]}ms", timestamp=stamp_of)
        rows = env.from_source(Numbered(source, 2, PER_SPLIT, (3, 1)), uid=f"s{source}", returns=ROW)
        sides.append(rows.assign_timestamps_and_watermarks(times).key_by(key_of, key_type=int))
    left, right = sides
    if kind in ASSIGNERS:
        of = left._stream.join if how in HOW else left._stream.co_group
        join: Any = of(right._stream).where(key_of, key_type=int).equal_to(key_of, key_type=int)
        join = join.window(ASSIGNERS[kind][0])
        pairs = join.how(how).apply(ids, uid="join") if how in HOW else join.apply(lists, returns=LISTS, uid="join")
    elif kind != "temporal":
        join = left.interval_join(right).between(f"{LOWER_MS}ms", f"{UPPER_MS}ms").how(how)
    else:
        join = left.temporal_join(right, how=how)
    if kind == "columns":
        pairs = join.columns(uid="join")
    elif kind not in ASSIGNERS:
        pairs = join.process(ids, uid="join")
    made = pairs.map(lambda pair: (pair["f1"], pair["right_f1"]), uid="ids") if kind == "columns" else pairs
    made.process(NotLate(), uid="stamped").sink_to(LedgerSink("pairs"), uid="pairs")
    for side in ("left", "right"):
        pairs.side_output(getattr(join, f"late_{side}")).sink_to(LedgerSink(f"late {side}"), uid=f"late-{side}")
    return env


METHODS = {
    "columns": tg.KeyedStream.interval_join,
    "interval": tg.KeyedStream.interval_join,
    "temporal": tg.KeyedStream.temporal_join,
}


def sql_of(kind: str, how: str) -> str:
    """The line of the docstring, with the values of this job, and with what is compared of its columns."""
    method = METHODS.get(kind) or (tg.DataStream.join if how in HOW else tg.DataStream.co_group)
    (line,) = re.findall(r"`(SELECT .*?)`", re.sub(r"\s+", " ", method.__doc__ or ""))
    line = line.replace("lower", f"({LOWER_MS})").replace("upper", f"({UPPER_MS})").replace("price", "id")
    line = line.replace("JOIN", "FULL JOIN" if how == "full" else f"{how.upper()} JOIN")
    if kind in ASSIGNERS:
        columns = "l.id, r.id, window_end" if how in HOW else "* EXCLUDE (key, window_start)"
        return f"SELECT {columns} {line.removeprefix('SELECT *')}" if how in HOW else f"SELECT {columns} FROM ({line})"
    time = "l.time" if kind == "temporal" else "greatest(l.time, r.time)"
    return line.replace("SELECT *", f"SELECT l.id, r.id, {time}")


def answer(kind: str, how: str) -> Counter[Any]:
    """What DuckDB makes of all records that were not late."""
    database = duckdb.connect()
    database.execute('CREATE TABLE input (side INT, key INT, "time" BIGINT, id INT)')
    for source, side in enumerate(["left", "right"]):
        late = {row[1] for row in ledger(f"late {side}").rows()}
        rows = [row for row in Numbered(source, 2, PER_SPLIT).rows() if row[1] not in late]
        database.executemany(
            "INSERT INTO input VALUES (?, ?, ?, ?)", [(source, key_of(r), stamp_of(r), r[1]) for r in rows]
        )
    records = "input"
    if kind in ASSIGNERS:
        assigner, settings = ASSIGNERS[kind]
        (windows,) = re.findall(r"`(SELECT .*?)`", re.sub(r"\s+", " ", type(assigner).__doc__ or ""))
        for name, value in settings.items():
            windows = windows.replace(f"${name}", str(value))
        database.execute(f"CREATE TABLE windowed AS {windows}")
        records = "windowed"
    for side, name in enumerate("lr"):
        database.execute(f"CREATE TABLE {name} AS SELECT * EXCLUDE (side) FROM {records} WHERE side = {side}")
    found = database.execute(sql_of(kind, how)).fetchall()
    if kind not in ASSIGNERS:
        return Counter(found)
    if how in HOW:
        return Counter((left, right, end - 1) for left, right, end in found)
    return Counter((tuple(left or ()), tuple(right or ()), end - 1) for end, left, right in found)


def flat(row: Any) -> Any:
    return tuple(tuple(each) if isinstance(each, list) else each for each in row)


def run_and_check(kind: str, how: str, seed: int, **settings: Any) -> None:
    rng = random.Random(f"{kind} {how} {seed}")
    forget_ledgers()
    storage = fresh_storage()
    # A side whose bound is below its disorder has late records; late versions are taken, so these are all in time.
    # And what is late for one window of a record may be in time for another: only of tumbling ones does the answer follow.
    bound_ms = (rng.choice([0, 40]), 40 if kind == "temporal" else rng.choice([0, 40]))
    if kind in ASSIGNERS and kind != "tumbling":
        bound_ms = (40, 40)
    settings |= {"unaligned": rng.random() < 0.5}
    crashes = [Crash(rng.choice(ALL_POINTS[:-2]), nth=rng.randint(1, 4)) for _ in range(rng.randint(0, 2))]
    stop = rng.choice([None, StopMode.RESCALE, StopMode.SUSPEND])
    asks, resume = [], None
    if stop is StopMode.RESCALE:
        asks = [Ask(SavepointRequest(None, stop=stop, parallelism=rng.choice([1, 3])), after_checkpoints=1)]
    elif stop is StopMode.SUSPEND:
        asks = [Ask(SavepointRequest(f"{storage}-sp", stop=stop), after_checkpoints=1)]
    while True:
        env = build(kind, how, bound_ms, storage, resume=resume, **settings)
        env.state_backend("rocksdb" if rng.random() < 0.3 else "hashmap")
        result = run_in_process(env, seed=seed, crashes=crashes, asks=asks)
        assert result.status is JobStatus.FINISHED, result.error
        records = log_records(storage)
        if not ends_with_a_stop(records):
            break
        # Also where the driver died before it could tell its user.
        resume, crashes, asks = records[-1].latest.metadata_path.rsplit("/", 1)[0], [], []
    expected = answer(kind, how)
    assert Counter(map(flat, ledger("pairs").rows())) == expected, f"{kind} {how} seed {seed}"
    assert expected


CASES = [
    *((kind, how) for kind in ("interval", "columns") for how in HOW),
    *(("temporal", how) for how in TEMPORAL_HOW),
    *(("tumbling", how) for how in HOW),
    ("sliding", "inner"),
    ("cumulative", "left"),
    ("session", "full"),
    ("tumbling", "co_group"),
    ("session", "co_group"),
]


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_a_join_gives_what_its_line_of_sql_gives(kind: str, how: str) -> None:
    for seed in range(1 if kind in ASSIGNERS else 2):
        run_and_check(kind, how, seed)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "how"), CASES)
def test_a_join_gives_what_its_line_of_sql_gives_in_many_runs(kind: str, how: str) -> None:
    for seed in range(100, 200):
        run_and_check(kind, how, seed)


# -- columns, state, and what makes no sense ----------------------------------------------------------------------


def keyed(env: tg.StreamEnvironment, source: int, returns: Any = ROW, timed: bool = True) -> tg.KeyedStream:
    rows = env.from_source(Numbered(source, 1, PER_SPLIT, (3,)), uid=f"s{source}", returns=returns)
    if timed:
        times = tg.WatermarkStrategy.bounded_out_of_orderness("40ms", timestamp=stamp_of)
        rows = rows.assign_timestamps_and_watermarks(times)
    return rows.key_by(key_of, key_type=int)


def test_pairs_as_columns_are_those_of_the_function(seed: int) -> None:
    env = environment(parallelism=2)
    join = keyed(env, 0).interval_join(keyed(env, 1)).between("-30ms", "20ms").how("full")
    pairs = join.columns(uid="columns")
    assert pairs.type.field_names == ["f0", "f1", "right_f0", "right_f1"]
    pairs.sink_to(LedgerSink("columns"), uid="out")
    result = run_in_process(env, seed=seed)

    assert result.status is JobStatus.FINISHED, result.error
    left, right = Numbered(0, 1, PER_SPLIT).rows(), Numbered(1, 1, PER_SPLIT).rows()
    near = [
        (one, other)
        for one in left
        for other in right
        if key_of(one) == key_of(other) and LOWER_MS <= stamp_of(other) - stamp_of(one) <= UPPER_MS
    ]
    expected = Counter((one[1], other[1]) for one, other in near)
    expected.update((one[1], None) for one in left if all(one != pair[0] for pair in near))
    expected.update((None, other[1]) for other in right if all(other != pair[1] for pair in near))
    assert Counter((row["f1"], row["right_f1"]) for row in ledger("columns").rows()) == expected


@pytest.mark.parametrize("kind", ["interval", "temporal", "windows"])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("seed", range(3))
def test_a_function_may_change_the_records_of_its_pair(kind: str, side: int, seed: int) -> None:
    """They are in other pairs, too, and in state."""
    schema = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("n", pa.int64())])
    forget_ledgers()
    env = environment(parallelism=1, every="10ms")
    sides = []
    for of in range(2):
        rows = [{"key": 1, "time": 100 + n, "n": 10 * n} for n in range(4)]
        if kind == "temporal":  # four of one moment, and one version
            rows = [{**row, "time": 100} for row in rows[: 1 if of else 4]]
        times = tg.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="time")
        stream = env.from_collection(rows, type=schema, uid=f"s{of}").assign_timestamps_and_watermarks(times)
        sides.append(stream.key_by("key"))

    def changed(*pair: Any) -> Any:
        pair[side]["n"] += pair[1 - side]["n"] + 1
        return pair[side]

    left, right = sides
    if kind == "windows":
        met = (
            left._stream.join(right._stream)
            .where("key")
            .equal_to("key")
            .window(tg.SlidingEventTimeWindows("8ms", "4ms"))
        )
        pairs_of = met.apply(changed, returns=schema, uid="join")
    else:
        join: Any = (
            left.interval_join(right).between("-3ms", "2ms") if kind == "interval" else left.temporal_join(right)
        )
        pairs_of = join.process(changed, returns=schema, uid="join")
    pairs_of.sink_to(LedgerSink("out"), uid="out")
    assert run_in_process(env, seed=seed).status is JobStatus.FINISHED

    # Of windows, all are in each of two.
    meet = {"interval": lambda a, b: -3 <= b - a <= 2, "temporal": lambda a, b: b == 0, "windows": lambda a, b: True}
    pairs = [(a, b) for a in range(4) for b in range(4) if meet[kind](a, b)] * (2 if kind == "windows" else 1)
    assert Counter(row["n"] for row in ledger("out").rows()) == Counter(10 * (a + b) + 1 for a, b in pairs)


@pytest.mark.parametrize("kind", ["interval", "columns", "temporal"])
def test_state_is_pruned_by_the_watermark(kind: str, seed: int) -> None:
    """At the end nothing is left but the newest version of each key."""
    storage = fresh_storage()
    env = environment(parallelism=1, storage=storage)
    left, right = keyed(env, 0), keyed(env, 1)
    join: Any = left.interval_join(right).between("-30ms", "20ms").how("full") if kind != "temporal" else None
    join = join or left.temporal_join(right)
    pairs = join.columns(uid="join") if kind == "columns" else join.process(ids, uid="join")
    pairs.sink_to(LedgerSink("out"), uid="out")
    result = run_in_process(env, seed=seed, storage=storage)

    assert result.status is JobStatus.FINISHED, result.error
    last = tg.Savepoint.load([each.path for each in result.view.checkpoints.values() if each.path][-1])
    kept = {state.name: state.rows for state in last.states() if state.uid == "join" and state.rows}
    assert kept == ({"versions": 3} if kind == "temporal" else {})


def test_what_makes_no_sense_is_one_clear_sentence(seed: int) -> None:
    env = environment()
    left, right = keyed(env, 0), keyed(env, 1, timed=False)
    with pytest.raises(tg.TidegateError, match="the keys of connected streams must be of one type"):
        left.interval_join(env.from_collection([("a", 1)], type=tuple[str, int], uid="c").key_by(0))
    with pytest.raises(tg.TidegateError, match="the lower bound is above the upper one"):
        left.interval_join(right).between("5s", "-5s")
    with pytest.raises(tg.TidegateError, match="say how far apart both may be"):
        left.interval_join(right).process(ids, uid="j")
    with pytest.raises(tg.TidegateError, match="how='outer' is not one of inner, left, right, full"):
        left.interval_join(right).how("outer")
    with pytest.raises(tg.TidegateError, match="how='full' is not one of inner, left"):
        left.temporal_join(right, how="full")
    with pytest.raises(tg.TidegateError, match="call key_by on the other"):
        left.interval_join(env.from_collection([1], uid="d"))  # type: ignore[arg-type]
    left.interval_join(right).between("0s", "1s").process(ids, uid="join").sink_to(LedgerSink("x"), uid="x")
    env.restart_strategy("none")
    result = run_in_process(env, seed=seed)
    assert "the records of its right input have none: call assign_timestamps_and_watermarks" in str(result.error)
