"""Keys are those of records as they arrive: what columns make of a record (a float of an int, UTC of a moment, a rounded
float32, a field that a dict lacks) is what its sender routes it by, too."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from protocol_kit import fresh_storage

import tidegate as tg
from tidegate.testing.runner import run_in_process

AUCKLAND = timezone(timedelta(hours=13))
HOURS = [datetime(2026, 1, 1, tzinfo=AUCKLAND) + timedelta(hours=3 * n) for n in range(40)]
READING = pa.schema([("room", pa.string()), ("level", pa.float32()), ("n", pa.int64())])


@dataclasses.dataclass
class Visit:
    at: datetime
    n: int


def readings() -> list[dict[str, Any]]:
    return [{"level": n % 10 / 10, "n": n} | ({"room": "a"} if n % 2 else {}) for n in range(40)]


INTS = [(n % 7, n) for n in range(40)]
CASES: dict[str, tuple[Any, list[Any], Any, Any]] = {
    "an int where a float is declared": (tuple[float, int], INTS, lambda row: str(row[0]), str),
    "and no type of the key": (tuple[float, int], INTS, lambda row: row[0], None),
    "a moment's day": (datetime, HOURS, lambda at: at.date().isoformat(), str),
    "deep in a record": (Visit, [Visit(at, n) for n, at in enumerate(HOURS)], lambda visit: visit.at.hour, int),
    "a narrow float": (READING, readings(), "level", None),
    "a narrow float in a function": (READING, readings(), lambda row: row["level"] * 3, float),
    "a field that is not there": (READING, readings(), lambda row: row.get("room", str(row["n"] % 9)), None),
    "which is the key": (READING, readings(), "room", None),
}


class Numbered(tg.KeyedProcessFunction):
    seen = tg.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: tg.Context) -> Iterator[tuple[str, int, int]]:
        self.seen.set(self.seen.get() + 1)
        yield str(ctx.key), self.seen.get(), ctx.subtask


def rows_of(case: str, work: Callable[[tg.DataStream], tg.DataStream], parallelism: int) -> list[Any]:
    of, items, _, _ = CASES[case]
    env = tg.StreamEnvironment("as-received", parallelism=parallelism)
    env.restart_strategy("none")
    env.checkpointing(every="20ms", storage=fresh_storage())
    records = env.from_source(tg.NumberSequence(0, len(items) - 1), uid="in").map(items.__getitem__, returns=of)
    work(records).collect(uid="out")
    result = run_in_process(env)
    assert result.error is None
    return list(result.collected.rows("out"))


@pytest.mark.parametrize("case", CASES)
def test_all_records_of_a_key_meet_in_one_subtask_whatever_columns_make_of_them(case: str) -> None:
    _, items, key, key_type = CASES[case]

    def numbered(records: tg.DataStream) -> tg.DataStream:
        return records.key_by(key, key_type=key_type).process(Numbered(), uid="numbered", returns=tuple[str, int, int])

    expected = Counter(key for key, _, _ in rows_of(case, numbered, 1))
    rows = rows_of(case, numbered, 3)

    assert sum(expected.values()) == len(items)
    assert Counter(key for key, _, _ in rows) == expected
    assert len({(key, subtask) for key, _, subtask in rows}) == len(expected)
    assert len({subtask for _, _, subtask in rows}) > 1 or len(expected) < 3
    assert {(key, expected[key]) for key in expected} <= {(key, seen) for key, seen, _ in rows}


@pytest.mark.parametrize("reads_late", [False, True])
def test_windows_have_the_same_keys_whether_or_not_they_are_combined_before_the_shuffle(reads_late: bool) -> None:
    strategy = tg.WatermarkStrategy.bounded_out_of_orderness("1h", timestamp=lambda visit: visit.at)

    def days(records: tg.DataStream) -> tg.DataStream:
        keyed = records.assign_timestamps_and_watermarks(strategy).key_by(
            lambda visit: visit.at.date().isoformat(), key_type=str
        )
        counts = keyed.window(tg.TumblingEventTimeWindows("30d")).aggregate(n=tg.count(), uid="days")
        if reads_late:
            counts.late().collect(uid="late")
        return counts

    rows = rows_of("deep in a record", days, 3)

    expected = Counter(at.astimezone(UTC).date().isoformat() for at in HOURS)
    assert {row["key"]: row["n"] for row in rows} == expected


def test_a_partitioning_of_the_users_own_sees_what_the_receiver_gets() -> None:
    def placed(records: tg.DataStream) -> tg.DataStream:
        shared = records.partition_custom(lambda hour, receivers: hour % receivers, lambda visit: visit.at.hour)
        return shared.process(Placed(), uid="placed", returns=tuple[int, int])

    rows = rows_of("deep in a record", placed, 3)

    assert len(rows) == len(HOURS)
    assert all(hour % 3 == subtask for hour, subtask in rows)


class Placed(tg.ProcessFunction):
    def process_element(self, value: Visit, ctx: tg.Context) -> Iterator[tuple[int, int]]:
        yield value.at.hour, ctx.subtask
