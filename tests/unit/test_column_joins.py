"""The interval join over columns: its rows against plain Python, every type of key, and that no record is ever made of them."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.batch import Batch
from tidegate.coordinator.observing import JobStatus
from tidegate.graph.forms import forms
from tidegate.graph.plan import plan_job
from tidegate.state.keys import key_type
from tidegate.task.operators.column_join import ColumnJoinOperator
from tidegate.task.rows.backend import KeyColumns
from tidegate.task.rows.joins import JoinRows
from tidegate.testing.runner import run_in_process

SCHEMA = pa.schema([("id", pa.int64())])
NUMBERS = itertools.count()
Row = tuple[str | None, int, int]  #: key, time, id


def collected(stream: tg.DataStream) -> list[Any]:
    stream.collect(uid="out")
    stream._env.checkpointing(every="20ms", storage=f"memory://column-joins-{next(NUMBERS)}")
    result = run_in_process(stream._env, seed=1)
    assert result.status is JobStatus.FINISHED, result.error
    return list(result.collected.rows("out"))


def rows_of(keys: KeyColumns, side: JoinRows, rows: list[Row]) -> Any:
    columns = [pa.array([row[0] for row in rows], pa.string())]
    records = pa.RecordBatch.from_arrays([pa.array([row[2] for row in rows], pa.int64())], schema=SCHEMA)
    return side.batch(columns, records, np.array([row[1] for row in rows], np.int64))


@pytest.mark.parametrize("colliding", [False, True])
@pytest.mark.parametrize("case", range(6))
def test_rows_meet_those_of_their_key_within_their_bounds(
    case: int, colliding: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(case)
    if colliding:  # whatever the hashes are, keys are compared
        monkeypatch.setattr(KeyColumns, "hashes", lambda self, rows: np.full(rows.num_rows, 7, np.uint64))
    keys = KeyColumns(key_type(str | None), ("k0",))
    side = JoinRows(keys, SCHEMA)
    kept: dict[int, Row] = {}
    met: set[int] = set()
    number = 0
    for _ in range(40):
        batch: list[Row] = [
            (rng.choice(["a", "b", "c", None]), rng.randrange(-50, 200), number + at)
            for at in range(rng.randrange(1, 9))
        ]
        number += len(batch)
        match rng.randrange(4):
            case 0 | 1:
                side.add(rows_of(keys, side, batch))
                kept |= {row[2]: row for row in batch}
            case 2:
                asking = rows_of(keys, side, batch)
                lower, upper = rng.randrange(-30, 10), rng.randrange(10, 40)
                found: Counter[Any] = Counter()
                for each in side.meet(asking, asking.times + lower, asking.times + upper):
                    ids = side.records(each.part.take(each.places))[0].to_pylist()
                    found.update(zip((batch[at][2] for at in each.asked.tolist()), ids, strict=True))
                expected = Counter(
                    (row[2], other[2])
                    for row in batch
                    for other in kept.values()
                    if row[0] == other[0] and lower <= other[1] - row[1] <= upper
                )
                assert found == expected
                met |= {id for _, id in found}
            case 3:
                last = rng.randrange(-60, 150)
                alone = [id for part in side.pass_time(last) for id in side.records(part)[0].to_pylist()]
                gone = {id for id, row in kept.items() if row[1] <= last}
                assert sorted(alone) == sorted(gone - met)
                for id in gone:
                    del kept[id]
        if rng.random() < 0.3:  # stored and read again, in pieces
            again = JoinRows(keys, SCHEMA)
            for table in side.frozen():
                again.load(table)
            side = again
        assert len(side) == len(kept)


KEYS: dict[str, tuple[Any, list[Any], bool]] = {
    "int": (pa.int64(), [1, 2], True),
    "narrow int": (pa.int16(), [1, 2], True),
    "text": (pa.string(), ["a", "b"], True),
    "nullable text": (pa.field("", pa.string()), ["a", None], True),
    "bytes": (pa.binary(), [b"a", b"b"], True),
    "bool": (pa.bool_(), [True, False], True),
    "date": (pa.date32(), [date(2026, 1, 1), date(2026, 1, 2)], True),
    "float": (pa.float64(), [1.0, 2.0], False),
}


@pytest.mark.parametrize("kind", KEYS)
def test_pairs_are_those_of_the_records_whatever_the_key(kind: str) -> None:
    of, values, by_columns = KEYS[kind]
    field = pa.field("key", of, False) if isinstance(of, pa.DataType) else of.with_name("key")
    schema = pa.schema([field, pa.field("time", pa.int64(), False), pa.field("more", pa.list_(pa.string()))])
    rows = [{"key": values[n % 2], "time": n * 10, "more": [str(n)] if n % 3 else None} for n in range(8)]
    found = {}
    for way in ("columns", "process"):
        env = tg.StreamEnvironment("keys", parallelism=1)
        times = tg.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="time")
        sides = [
            env.from_collection(rows, type=schema, uid=f"s{at}").assign_timestamps_and_watermarks(times).key_by("key")
            for at in range(2)
        ]
        join = sides[0].interval_join(sides[1]).between("-30ms", "10ms").how("full")
        if way == "columns":
            pairs = join.columns(uid="join")
            assert forms(env._graph.operators.values(), env._graph.edges)["join"].columns is by_columns  # type: ignore[index]
        else:
            pairs = join.process(
                lambda left, right: {**(left or {}), **{f"right_{name}": each for name, each in (right or {}).items()}},
                uid="join",
            )
        found[way] = sorted(
            [
                (row.get("time"), row.get("right_time"), row.get("more"), row.get("right_more"))
                for row in collected(pairs)
            ],
            key=str,
        )
    assert found["columns"] == found["process"]
    assert len(found["columns"]) > 8


def test_several_columns_make_a_key_and_a_function_of_one_type_does() -> None:
    rows = [("a", 1, 10), ("a", 2, 20), ("b", 1, 30)]
    for key in ((0, 1), (lambda row: row[0] + "!",)):
        env = tg.StreamEnvironment("parts", parallelism=1)
        times = tg.WatermarkStrategy.bounded_out_of_orderness("1s", timestamp="f2")
        sides = [
            env.from_collection(rows, type=tuple[str, int, int], uid=f"s{at}")
            .assign_timestamps_and_watermarks(times)
            .key_by(*key, key_type=None if len(key) == 2 else str)
            for at in range(2)
        ]
        pairs = sides[0].interval_join(sides[1]).between("-1s", "1s").columns(uid="join")
        assert forms(env._graph.operators.values(), env._graph.edges)["join"].columns  # type: ignore[index]
        assert len(list(collected(pairs))) == (3 if len(key) == 2 else 5)


def test_no_record_is_made_of_columns() -> None:
    env = tg.StreamEnvironment("columns", parallelism=1)
    times = tg.WatermarkStrategy.monotonous(timestamp="f1")
    sides = [
        env.from_collection([], type=tuple[str, int], uid=f"s{at}").assign_timestamps_and_watermarks(times).key_by(0)
        for at in range(2)
    ]
    sides[0].interval_join(sides[1]).between("-1s", "1s").how("full").columns(uid="join").print()
    env._built.taken_up = True
    plan = plan_job("columns", env._graph, 1)
    planned = next(each for each in plan.operators if each.uid == "join")
    running = ColumnJoinOperator(planned, 0, planned.operator.spec, range(128))  # type: ignore[arg-type]
    running.open(None)
    out: list[Batch] = []
    running.emit = out.append
    for side in range(2):
        columns = pa.RecordBatch.from_pydict({"f0": ["a", "b"], "f1": [10 + side, 5000 * side + 20]})
        batch = Batch(sides[side]._stream.type, columns=columns, timestamps=np.array(columns.column("f1")))
        running.run(batch, side)
        assert not batch.has_rows
    running.run_watermark(10_000)

    assert not any(batch.has_rows for batch in out)
    found = [tuple(row.values()) for batch in out for row in batch.columns().to_pylist()]
    assert sorted(found, key=str) == sorted(
        [("a", 10, "a", 11), ("b", 20, None, None), (None, None, "b", 5020)], key=str
    )
    assert len(running.backend.state_size()) == 2
    assert not any(running.backend.state_size().values())
