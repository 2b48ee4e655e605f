"""Joins against DuckDB over the whole input: out of order, late, killed, restored, rescaled, through savepoints."""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from protocol_kit import Numbered, environment, fresh_storage

import tidegate as tg
from tidegate.api.joins import INTERVAL_HOW, TEMPORAL_HOW
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.savepoints import SavepointRequest, StopMode
from tidegate.testing import LedgerSink, forget_ledgers, ledger
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.runner import Ask, run_in_process

ROW = tuple[int, int]
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
    if kind == "interval":
        join: Any = left.interval_join(right).between(f"{LOWER_MS}ms", f"{UPPER_MS}ms").how(how)
    else:
        join = left.temporal_join(right, how=how)
    pairs = join.process(ids, uid="join")
    pairs.process(NotLate(), uid="stamped").sink_to(LedgerSink("pairs"), uid="pairs")
    for side in ("left", "right"):
        pairs.side_output(getattr(join, f"late_{side}")).sink_to(LedgerSink(f"late {side}"), uid=f"late-{side}")
    return env


def sql_of(kind: str, how: str) -> str:
    """The line of the docstring, with the values of this job."""
    method = tg.KeyedStream.interval_join if kind == "interval" else tg.KeyedStream.temporal_join
    (line,) = re.findall(r"`(SELECT .*?)`", re.sub(r"\s+", " ", method.__doc__ or ""))
    line = line.replace("lower", f"({LOWER_MS})").replace("upper", f"({UPPER_MS})")
    return line.replace("JOIN", "FULL JOIN" if how == "full" else f"{how.upper()} JOIN")


def answer(kind: str, how: str) -> Counter[Any]:
    """What DuckDB makes of all records that were not late."""
    database = duckdb.connect()
    for source, name in enumerate(["l", "r"]):
        late = {row[1] for row in ledger(f"late {'right' if source else 'left'}").rows()}
        rows = [row for row in Numbered(source, 2, PER_SPLIT).rows() if row[1] not in late]
        database.execute(f'CREATE TABLE {name} (key INT, "time" BIGINT, id INT)')
        database.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", [(key_of(r), stamp_of(r), r[1]) for r in rows])
    found = database.execute(sql_of(kind, how)).fetchall()
    times = (
        (lambda row: row[1]) if kind == "temporal" else (lambda row: max(t for t in (row[1], row[4]) if t is not None))
    )
    return Counter((row[2], row[5], times(row)) for row in found)


def run_and_check(kind: str, how: str, seed: int, **settings: Any) -> None:
    rng = random.Random(f"{kind} {how} {seed}")
    forget_ledgers()
    storage = fresh_storage()
    # A side whose bound is below its disorder has late records; late versions are taken, so these are all in time.
    bound_ms = (rng.choice([0, 40]), 40 if kind == "temporal" else rng.choice([0, 40]))
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
        future = asks[0].request.future if stop is StopMode.SUSPEND and resume is None else None
        if future is None or not future.done() or future.exception() is not None:
            break
        resume, crashes, asks = future.result().path, [], []
    expected = answer(kind, how)
    assert Counter(map(tuple, ledger("pairs").rows())) == expected, f"{kind} {how} seed {seed}"
    assert expected


CASES = [*(("interval", how) for how in INTERVAL_HOW), *(("temporal", how) for how in TEMPORAL_HOW)]


@pytest.mark.parametrize(("kind", "how"), CASES)
def test_a_join_gives_what_its_line_of_sql_gives(kind: str, how: str) -> None:
    for seed in range(2):
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


@pytest.mark.parametrize("kind", ["interval", "temporal"])
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
    join: Any = left.interval_join(right).between("-3ms", "2ms") if kind == "interval" else left.temporal_join(right)
    join.process(changed, returns=schema, uid="join").sink_to(LedgerSink("out"), uid="out")
    assert run_in_process(env, seed=seed).status is JobStatus.FINISHED

    pairs = [(a, b) for a in range(4) for b in range(4) if (-3 <= b - a <= 2 if kind == "interval" else b == 0)]
    assert Counter(row["n"] for row in ledger("out").rows()) == Counter(10 * (a + b) + 1 for a, b in pairs)


@pytest.mark.parametrize("kind", ["interval", "temporal"])
def test_state_is_pruned_by_the_watermark(kind: str, seed: int) -> None:
    """At the end nothing is left but the newest version of each key."""
    storage = fresh_storage()
    env = environment(parallelism=1, storage=storage)
    left, right = keyed(env, 0), keyed(env, 1)
    join: Any = left.interval_join(right).between("-30ms", "20ms").how("full") if kind == "interval" else None
    join = join or left.temporal_join(right)
    join.process(ids, uid="join").sink_to(LedgerSink("out"), uid="out")
    result = run_in_process(env, seed=seed, storage=storage)

    assert result.status is JobStatus.FINISHED, result.error
    last = tg.Savepoint.load([each.path for each in result.view.checkpoints.values() if each.path][-1])
    kept = {state.name: state.rows for state in last.states() if state.uid == "join" and state.rows}
    assert kept == ({} if kind == "interval" else {"versions": 3})


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
