"""Windows over columns, in the harness: each kind and each aggregate against plain Python over the whole input."""

from __future__ import annotations

import math
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from test_windows import ALIGNED, CountAndSum
from window_answers import TYPE, Result, answer, on_time, random_steps

import tidegate as tg
from tidegate.testing import FunctionHarness, harness

KINDS = ALIGNED | {
    "session": tg.EventTimeSessionWindows("900ms"),
    "long session": tg.EventTimeSessionWindows("3s"),
    "slices that are seldom shared": tg.SlidingEventTimeWindows("7s", "4s"),
}


def windowed(assigner: tg.WindowAssigner, lateness: str = "0s", **options: Any) -> FunctionHarness:
    def build(keyed: Any) -> Any:
        return keyed.window(assigner).allowed_lateness(lateness).aggregate(n=tg.count(), total=tg.sum("f2"))

    return harness(build, via="window", key_by=0, input_type=TYPE, **options)


def flat(row: dict[str, Any]) -> Result:
    return (row["f0"], row["window_start"], row["window_end"], row["n"], row["total"])


def nothing_left(running: FunctionHarness) -> bool:
    """Of windows that have closed, in the next checkpoint."""
    return not [section for section in running.snapshot().file.sections if section.state == "rows"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_what_plain_python_gives_over_the_whole_input_also_after_failures(kind: str) -> None:
    for seed in range(4):
        rng = random.Random(f"{kind} {seed}")
        steps = random_steps(seed, count=rng.choice([30, 200]))
        running = windowed(KINDS[kind])
        for step in steps:
            running.process_many(step.records, [time for _, time, _ in step.records])
            running.advance_watermark(step.watermark)
            if rng.random() < 0.1:
                running.restore(running.snapshot(), backend=rng.choice(["hashmap", "rocksdb"]))
        running.end_input()

        assert sorted(map(flat, running.output)) == answer(
            KINDS[kind], [each for step in steps for each in step.records]
        )
        assert nothing_left(running)


@pytest.mark.parametrize("kind", ALIGNED)
def test_late_records_go_into_the_windows_that_are_open_and_aside_when_none_is(kind: str) -> None:
    for seed in range(4):
        steps = random_steps(seed, late=40)
        late = tg.OutputTag("late")
        running = windowed(ALIGNED[kind], side_outputs=[late])
        for step in steps:
            running.process_many(step.records, [time for _, time, _ in step.records])
            running.advance_watermark(step.watermark)
        running.end_input()

        expected, too_late = on_time(ALIGNED[kind], steps)
        assert too_late, "the test must see late records"
        assert sorted(map(flat, running.output)) == expected
        assert running.side_output(late) == too_late


@pytest.mark.parametrize("kind", ALIGNED)
def test_with_an_allowed_lateness_windows_fire_again_and_the_last_result_is_whole(kind: str) -> None:
    steps = random_steps(8, late=40)
    running = windowed(ALIGNED[kind], "6s")
    for step in steps:
        running.process_many(step.records, [time for _, time, _ in step.records])
        running.advance_watermark(step.watermark)
    running.end_input()

    last = {result[:3]: result for result in map(flat, running.output)}
    assert sorted(last.values()) == on_time(ALIGNED[kind], steps, lateness_ms=6000)[0]
    assert len(running.output) > len(last), "none fired again"
    assert nothing_left(running)


def test_a_record_is_late_when_the_session_that_it_would_be_in_has_closed() -> None:
    late = tg.OutputTag("late")
    running = windowed(tg.EventTimeSessionWindows("10s"), side_outputs=[late])
    running.process(("a", 20_000, 1), 20_000)
    running.advance_watermark(25_000)

    running.process_many(
        [("a", 12_000, 1), ("a", 1000, 1), ("b", 1000, 1), ("b", 40_000, 1)], [12_000, 1000, 1000, 40_000]
    )

    assert running.side_output(late) == [("a", 1000, 1), ("b", 1000, 1)]
    assert sorted(map(flat, running.end_input())) == [("a", 12_000, 30_000, 2, 2), ("b", 40_000, 50_000, 1, 1)]


def test_a_session_that_has_fired_fires_again_for_what_comes_within_the_lateness() -> None:
    running = windowed(tg.EventTimeSessionWindows("10s"), "20s")
    running.process_many([("a", 0, 1), ("b", 0, 1)], [0, 0])
    assert len(running.advance_watermark(15_000)) == 2

    assert list(map(flat, running.process(("a", 3000, 5), 3000))) == [("a", 0, 13_000, 2, 6)]
    assert running.advance_watermark(40_000) == []
    assert nothing_left(running)


def test_windows_by_the_clock_close_when_it_has_passed_and_at_the_end_of_input() -> None:
    for assigner in (tg.TumblingProcessingTimeWindows("10s"), tg.ProcessingTimeSessionWindows("10s")):
        running = harness(
            lambda keyed, assigner=assigner: keyed.window(assigner).aggregate(n=tg.count()),
            via="window", key_by=0, input_type=TYPE,
        )  # fmt: skip
        running.process_many([("a", 0, 0)] * 3)
        assert running.advance_processing_time("9s") == []
        assert [row["n"] for row in running.advance_processing_time("1s")] == [3]
        running.process(("a", 0, 0))
        assert [row["n"] for row in running.end_input()] == [1]


# -- aggregates -----------------------------------------------------------------------------------------------------------

READING = pa.schema([("room", pa.string()), ("time", pa.int64()), ("level", pa.float64()), ("word", pa.string())])


@pytest.mark.parametrize(
    "assigner",
    [tg.TumblingEventTimeWindows("2s"), tg.SlidingEventTimeWindows("10s", "2s"), tg.EventTimeSessionWindows("120ms")],
)
def test_each_aggregate_gives_what_python_gives_also_over_nulls(assigner: tg.WindowAssigner) -> None:
    rng = random.Random(3)
    rows = [
        {
            "room": rng.choice("ab"),
            "time": time * 37,
            "level": rng.choice([None, float(rng.randrange(9))]),
            "word": rng.choice([None, "x", "y", "z"]),
        }
        for time in rng.sample(range(1000), 400)
    ]
    running = harness(
        lambda keyed: keyed.window(assigner).aggregate(
            n=tg.count(), levels=tg.count("level"), total=tg.sum("level"), low=tg.min("level"), high=tg.max("word"),
            mean=tg.mean("level"), first=tg.first("word"), last=tg.last("level"), words=tg.count_distinct("word"),
        ),
        via="window", key_by="room", input_type=READING,
    )  # fmt: skip
    for at in range(0, len(rows), 7):
        part = rows[at : at + 7]
        running.process_many(part, [row["time"] for row in part])
        if at % 5 == 0:
            running.restore(running.snapshot())
    running.end_input()

    groups: dict[Any, list[Any]] = {}
    for room, start, end, _, _ in answer(assigner, [(row["room"], row["time"], 0) for row in rows]):
        inside = [row for row in rows if row["room"] == room and start <= row["time"] < end]
        groups[room, start, end] = sorted(inside, key=lambda row: row["time"])
    assert len(groups) == len(running.output) > 10
    for found in running.output:
        inside = groups[found["room"], found["window_start"], found["window_end"]]
        levels = [row["level"] for row in inside if row["level"] is not None]
        words = [row["word"] for row in inside if row["word"] is not None]
        assert found == {
            "room": found["room"], "window_start": found["window_start"], "window_end": found["window_end"],
            "n": len(inside), "levels": len(levels), "total": sum(levels) if levels else None,
            "low": min(levels, default=None), "high": max(words, default=None),
            "mean": sum(levels) / len(levels) if levels else None, "first": words[0] if words else None,
            "last": levels[-1] if levels else None, "words": len(set(words)),
        }  # fmt: skip


def test_a_sum_of_ints_never_wraps() -> None:
    running = windowed(tg.TumblingEventTimeWindows("10s"))
    running.process_many([("a", 0, 2**62), ("b", 0, 2**62), ("a", 1, -5)], [0, 0, 1])
    assert sorted(row["total"] for row in running.advance_watermark(10_000)) == [2**62 - 5, 2**62]

    running.process_many([("a", 10_000, 2**62), ("a", 10_001, 2**62)], [10_000, 10_001])
    with pytest.raises(tg.ConfigurationError, match="beyond the 64 bits"):
        running.advance_watermark(20_000)


@pytest.mark.parametrize("key", [["f0", "f2"], 2, lambda row: (row[2], row[0])])
def test_keys_of_every_form_come_back_in_the_results_and_after_a_restore(key: Any) -> None:
    key_type = tuple[int, str] if callable(key) else None
    running = harness(
        lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s")).aggregate(n=tg.count()),
        via="window", key_by=key, key_type=key_type, input_type=TYPE,
    )  # fmt: skip
    running.process_many([("a", 0, -7), ("b", 0, 2**40), ("a", 1, -7)], [0, 0, 1])
    running.restore(running.snapshot())
    running.process(("b", 5, 2**40), 5)

    found = sorted(tuple(row.values()) for row in running.end_input())
    names = {2: [(-7,), (2**40,)]}.get(key) if isinstance(key, int) else None
    expected = names or ([(-7, "a"), (2**40, "b")] if callable(key) else [("a", -7), ("b", 2**40)])
    assert found == sorted((*each, 0, 10_000, 2) for each in expected)


SAME_KEYS = {
    float: ([0.0, -0.0, 0.0], [math.nan, -math.nan, math.inf - math.inf], [1.5, 1.5, 1.5]),
    Decimal: ([Decimal("1"), Decimal("1.0"), Decimal("1.00")], [Decimal("0"), Decimal("-0"), Decimal("0E+3")]),
}


@pytest.mark.parametrize("of", SAME_KEYS)
@pytest.mark.parametrize("key", [0, ["f0", "f2"]])
@pytest.mark.parametrize("assigner", [tg.SlidingEventTimeWindows("10s", "5s"), tg.EventTimeSessionWindows("10s")])
def test_keys_that_are_equal_are_one_key_however_they_are_written(assigner: Any, of: Any, key: Any) -> None:
    """As they are everywhere else (docs/decisions/0003), and for the records before a restore as for those after it."""
    groups = SAME_KEYS[of]
    for build in (
        lambda windows: windows.aggregate(n=tg.count()),
        lambda windows: windows.aggregate(CountAndSum(), tg.WithWindow()),
    ):
        running = harness(
            lambda keyed, build=build: build(keyed.window(assigner)),
            via="window",
            key_by=key,
            input_type=tuple[of, int, int],
        )
        for number, turn in enumerate(zip(*groups, strict=True)):
            running.process_many([(each, 0, 1) for each in turn], [0] * len(turn))
            if not number:  # of what is stored equal keys are one in any case
                running.restore(running.snapshot())
        windows = 2 if isinstance(assigner, tg.SlidingEventTimeWindows) else 1
        counts = [row["n"] if isinstance(row, dict) else row[3][0] for row in running.end_input()]
        assert counts == [3] * windows * len(groups)


def test_of_floats_one_zero_and_one_nan_are_counted() -> None:
    for arrow in (pa.float64(), pa.float32(), pa.float16()):
        running = harness(
            lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s")).aggregate(n=tg.count_distinct("level")),
            via="window", key_by="room", input_type=pa.schema([("room", pa.string()), ("level", arrow)]),
        )  # fmt: skip
        levels = [0.0, -0.0, math.nan, -math.nan, None, 1.0]
        running.process_many(
            [{"room": "a", "level": np.float16(level) if level else level} for level in levels], [0] * 6
        )
        assert [row["n"] for row in running.end_input()] == [3]


def test_the_first_and_the_last_value_may_be_of_any_type() -> None:
    values = {
        pa.decimal128(10, 2): [Decimal("10.00"), Decimal("9.50"), Decimal("-1.00")],
        pa.list_(pa.int64()): [[1], [], [2, 3]],
        pa.struct([("a", pa.int64())]): [{"a": 1}, {"a": None}, {"a": 2}],
        pa.binary(): [b"", b"\0", b"a"],
        pa.bool_(): [True, False, True],
    }
    for arrow, (early, middle, late) in values.items():
        running = harness(
            lambda keyed: keyed.window(tg.SlidingEventTimeWindows("10s", "5s")).aggregate(a=tg.first("x"), b=tg.last("x")),
            via="window", key_by="room", input_type=pa.schema([("room", pa.string()), ("x", arrow)]),
        )  # fmt: skip
        rows = [(middle, 2000), (None, 500), (late, 3000), (None, 4000), (early, 1000)]
        for x, time in rows:
            running.process({"room": "a", "x": x}, time)
            running.restore(running.snapshot())
        running.process({"room": "b", "x": None}, 0)
        found = [(row["room"], row["a"], row["b"]) for row in running.end_input()]
        assert sorted(found, key=str) == sorted([("a", early, late), ("b", None, None)] * 2, key=str)


class LongestList(tg.ColumnAggregate):
    columns = ("x",)

    def accumulators(self, types: Any, /) -> Any:
        return [tg.Accumulator(types[0], "max")]

    def partial(self, columns: Any, times: Any, /) -> Any:
        return columns


def test_what_arrow_cannot_fold_is_refused_where_it_is_written() -> None:
    with pytest.raises(tg.ConfigurationError, match=r"aggregate\(top=LongestList\('x'\)\): Arrow cannot"):
        harness(
            lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s")).aggregate(top=LongestList()),
            via="window", key_by="room", input_type=pa.schema([("room", pa.string()), ("x", pa.list_(pa.int64()))]),
        )  # fmt: skip


def test_what_is_stored_of_other_windows_is_refused_and_of_the_same_slices_taken() -> None:
    def counted(assigner: Any, **options: Any) -> FunctionHarness:
        return harness(
            lambda keyed: keyed.window(assigner).aggregate(n=tg.count()),
            via="window", key_by=0, input_type=TYPE, **options,
        )  # fmt: skip

    running = counted(tg.TumblingEventTimeWindows("10s"))
    running.process(("a", 0, 0), 5000)
    stored = running.snapshot()
    hourly = counted(tg.SlidingEventTimeWindows("30s", "10s"), restored=stored)
    assert [row["n"] for row in hourly.end_input()] == [1, 1, 1]
    for other in (
        tg.TumblingEventTimeWindows("20s"),
        tg.TumblingEventTimeWindows("5s"),
        tg.TumblingEventTimeWindows("10s", "3s"),
        tg.TumblingProcessingTimeWindows("10s"),
        tg.EventTimeSessionWindows("10s"),
    ):
        with pytest.raises(tg.ConfigurationError, match="the checkpoint holds windows over columns"):
            counted(other, restored=stored)


def test_windows_that_close_together_are_looked_at_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of many days that is read in one go closes thousands of windows with one watermark."""
    looks: list[int] = []
    next_end = tg.SlidingEventTimeWindows.next_end
    monkeypatch.setattr(tg.SlidingEventTimeWindows, "next_end", lambda *given: (looks.append(1), next_end(*given))[1])
    running = windowed(tg.SlidingEventTimeWindows("20s", "5s"))
    running.process_many([("a", second, 1) for second in range(0, 2000, 5)], [s * 1000 for s in range(0, 2000, 5)])
    running.end_input()

    assert len(running.output) == 403
    assert len(looks) < 5 * 403


# -- slices ---------------------------------------------------------------------------------------------------------------


def test_slices_and_their_windows_are_those_of_the_assigner() -> None:
    rng = random.Random(5)
    for _ in range(300):
        step = rng.randrange(1, 5)
        size = step * rng.randrange(1, 5)
        offset = f"{rng.randrange(step)}ms"
        assigner = rng.choice(
            [
                lambda: tg.SlidingEventTimeWindows(f"{size}ms", f"{step}ms", offset),  # noqa: B023 - called at once
                lambda: tg.SlidingEventTimeWindows(f"{step}ms", f"{size}ms", offset),  # noqa: B023
                lambda: tg.CumulativeEventTimeWindows(f"{size}ms", f"{step}ms", offset),  # noqa: B023
            ]
        )()
        time = rng.randrange(-50, 50)
        windows = sorted(assigner.assign_windows(None, time), key=lambda window: window.end)
        end = assigner.slice_end(time)
        assert all(window.start <= end - assigner.slice_ms and end <= window.end for window in windows)
        assert assigner.slice_ends(np.array([time])).tolist() == [end]
        found, after = [], -(2**62)
        while (next_end := assigner.next_end(end, after)) is not None:
            found.append(tg.TimeWindow(assigner.start_of(next_end), next_end))
            after = next_end
        assert found == windows
        assert assigner.last_end(end) == (windows[-1].end if windows else -(2**63))


def test_what_is_kept_stays_flat_over_an_hour_of_event_time() -> None:
    running = windowed(tg.SlidingEventTimeWindows("10s", "1s"))
    sizes = []
    for second in range(3600):
        key = f"key {second % 7}" if second % 2 else f"once {second}"
        running.process((key, second * 1000, 1), second * 1000)
        running.advance_watermark(second * 1000)
        if second % 600 == 599:
            sizes.append(sum(section.rows for section in running.snapshot().file.sections if section.state == "rows"))
    assert sizes == [sizes[0]] * 6
    assert sizes[0] <= 11


# -- mistakes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda windows: windows.aggregate(), "aggregate needs an AggregateFunction, or columns"),
        (lambda windows: windows.aggregate(n=3), "takes an aggregate of columns"),
        (lambda windows: windows.aggregate(n=tg.sum("price")), "has no column 'price'; it has f0, f1, f2, f3"),
        (lambda windows: windows.aggregate(n=tg.sum("f0")), "needs a column of numbers"),
        (
            lambda windows: windows.aggregate(name=tg.max("f2")),
            "name= is an option of the operator, and cannot be a column",
        ),
        (lambda windows: windows.aggregate(f0=tg.count()), "have a column 'f0' already"),
        (lambda windows: windows.trigger(tg.CountTrigger(2)).aggregate(n=tg.count()), "with a trigger or an evictor"),
        (lambda windows: windows.allowed_lateness("-1s"), "is negative: a window cannot close before its end"),
        (lambda windows: windows.aggregate(top=tg.max("f3")), "a Decimal is text in its column"),
        (lambda windows: windows.aggregate(n=tg.count_distinct("f3")), "a Decimal is text in its column"),
    ],
)
def test_what_columns_cannot_do_is_said_where_it_is_written(make: Any, words: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=words):
        harness(
            lambda keyed: make(keyed.window(tg.TumblingEventTimeWindows("5s"))),
            via="window", key_by=0, input_type=tuple[str, int, int, Decimal | None],
        )  # fmt: skip


@pytest.mark.parametrize("key_type", [tuple[int], tuple[int, tuple[int, int]], tuple[int, int] | None])
def test_a_key_with_parts_of_parts_is_refused_where_it_is_written(key_type: Any) -> None:
    with pytest.raises(tg.ConfigurationError, match="Take it apart"):
        harness(
            lambda keyed: keyed.window(tg.TumblingEventTimeWindows("5s")).aggregate(n=tg.count()),
            via="window", key_by=lambda row: row[0], key_type=key_type, input_type=TYPE,
        )  # fmt: skip


def test_records_without_a_time_are_refused_by_windows_of_event_time() -> None:
    with pytest.raises(tg.ConfigurationError, match="the records of this stream have none"):
        windowed(tg.TumblingEventTimeWindows("10s")).process(("a", 0, 1))
