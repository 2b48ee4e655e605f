"""Two streams in windows: what is given to `apply`, what leaves as columns, what makes no sense. Whole runs: test_joins.py."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.testing.runner import run_in_process

ROW = tuple[str, int]
LEFT = [("ann", 1_000), ("ann", 2_000), ("bob", 2_500), ("cid", 6_000), (None, 7_000)]
RIGHT = [("ann", 3_000), ("dan", 4_000), ("cid", 9_000), ("cid", 9_500), ("ann", 9_900)]
TIMES = tg.WatermarkStrategy.bounded_out_of_orderness("20s", timestamp=lambda row: row[1])
NUMBERS = itertools.count()
SECONDS = tg.TumblingEventTimeWindows("5s")


def streams(env: tg.StreamEnvironment, *of: Any, times: Any = TIMES) -> list[tg.DataStream]:
    given = of or (tuple[str | None, int],) * 2
    made = [
        env.from_collection(rows if type else [tuple(row) for row in rows], type=type, uid=f"s{at}")
        for at, (rows, type) in enumerate(zip((LEFT, RIGHT), given, strict=True))
    ]
    return [stream if times is None else stream.assign_timestamps_and_watermarks(times) for stream in made]


def joined(assigner: tg.WindowAssigner = SECONDS, *of: Any, times: Any = TIMES, what: str = "join") -> Any:
    left, right = streams(tg.StreamEnvironment("windows", parallelism=1), *of, times=times)
    return getattr(left, what)(right).where(lambda row: row[0]).equal_to(lambda row: row[0]).window(assigner)


def results(stream: tg.DataStream) -> list[Any]:
    stream.collect(uid="out")
    stream._env.checkpointing(every="20ms", storage=f"memory://window-joins-{next(NUMBERS)}")
    stream._env.restart_strategy("none")
    result = run_in_process(stream._env, seed=1)
    assert result.status is JobStatus.FINISHED, result.error
    return list(result.collected.rows("out"))


def plain(how: str) -> Counter[Any]:
    """Of windows side by side, in plain Python over the whole input; keys that are None meet each other."""

    def meet(left: Any, right: Any) -> bool:
        return left[0] == right[0] and left[1] // 5000 == right[1] // 5000

    found = [(left, right) for left in LEFT for right in RIGHT if meet(left, right)]
    if how in ("left", "full"):
        found += [(left, None) for left in LEFT if not any(meet(left, right) for right in RIGHT)]
    if how in ("right", "full"):
        found += [(None, right) for right in RIGHT if not any(meet(left, right) for left in LEFT)]
    return Counter(found)


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_each_way_of_joining_typed_or_not(how: str, typed: bool) -> None:
    join = joined(SECONDS, *(() if typed else (None, None))).how(how)

    assert Counter(results(join.apply(lambda left, right: (left, right), uid="join"))) == plain(how)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
def test_pairs_as_columns_are_those_of_the_function_with_their_window(how: str) -> None:
    pairs = joined().how(how).columns(uid="join")
    assert pairs.type.field_names == ["window_start", "window_end", "f0", "f1", "right_f0", "right_f1"]

    found = [tuple(row.values()) for row in results(pairs)]

    expected = Counter(
        (start, start + 5000, *(left or (None, None)), *(right or (None, None)))
        for left, right in plain(how).elements()
        for start in [(left or right)[1] // 5000 * 5000]
    )
    assert Counter(found) == expected


def test_what_leaves_is_in_time_for_whoever_comes_next() -> None:
    pairs = joined().columns(uid="join")
    again = pairs.key_by("f0").window(SECONDS).aggregate(n=tg.count(), uid="again")

    assert sorted((row["f0"], row["window_end"], row["n"]) for row in results(again)) == [
        ("ann", 5000, 2),
        ("cid", 10000, 2),
    ]


class Sizes(tg.CoGroupFunction):
    seen = tg.ValueState(int, default=0)  # of the window

    def co_group(self, key: Any, context: tg.WindowContext, first: list[Any], second: list[Any], /) -> Any:
        self.seen.set(self.seen.get() + 1)
        yield (key, context.window.start, len(first), len(second), self.seen.get())


def test_a_co_group_has_all_records_of_a_window_of_either_side() -> None:
    found = results(joined(what="co_group").apply(Sizes(), uid="sizes"))

    assert sorted(found, key=str) == sorted(
        [
            ("ann", 0, 2, 1, 1),
            ("bob", 0, 1, 0, 1),
            ("dan", 0, 0, 1, 1),
            ("cid", 5000, 1, 2, 1),
            (None, 5000, 1, 0, 1),
            ("ann", 5000, 0, 1, 1),
        ],
        key=str,
    )


def lists(first: list[Any], second: list[Any]) -> Any:
    return [(sorted(row[1] for row in first), sorted(row[1] for row in second))]


@pytest.mark.parametrize(
    "assigner",
    [
        tg.TumblingProcessingTimeWindows("1h"),
        tg.SlidingProcessingTimeWindows("1h", "1h"),
        tg.ProcessingTimeSessionWindows("1h"),
    ],
)
def test_by_the_clock_no_record_needs_a_time(assigner: tg.WindowAssigner) -> None:
    found = results(joined(assigner, times=None, what="co_group").apply(lists, uid="lists"))

    assert sorted(found) == sorted(
        [([1000, 2000], [3000, 9900]), ([2500], []), ([6000], [9000, 9500]), ([7000], []), ([], [4000])]
    )


def test_a_trigger_counts_the_records_of_both_sides() -> None:
    windows = joined(tg.GlobalWindows(), what="co_group").trigger(tg.CountTrigger(3).purging())

    found = results(windows.apply(lists, uid="lists"))

    assert sorted(len(first) + len(second) for first, second in found) == [3, 3]
    assert len(results(joined(tg.CountWindows(3), what="co_group").apply(lists, uid="lists"))) == 2


def test_an_evictor_looks_at_the_records_of_both_sides() -> None:
    windows = joined(tg.TumblingEventTimeWindows("1h"), what="co_group").evictor(tg.CountEvictor(2))

    assert {len(first) + len(second) for first, second in results(windows.apply(lists, uid="lists"))} == {1, 2}


def test_allowed_lateness_fires_again_and_later_records_go_aside() -> None:
    env = tg.StreamEnvironment("late", parallelism=1)
    strictly = tg.WatermarkStrategy.monotonous(timestamp=lambda row: row[1])
    rows = [("a", 1_000), ("b", 6_000), ("a", 2_000), ("b", 20_000), ("a", 3_000)]
    generated = env.from_collection(rows, type=ROW, uid="l").rebalance()
    left = generated.map(lambda row: row, returns=ROW).assign_timestamps_and_watermarks(strictly)
    right = env.from_collection([("a", 100_000)], type=ROW, uid="r").assign_timestamps_and_watermarks(strictly)
    join = left.co_group(right).where(0).equal_to(0).window(SECONDS).allowed_lateness("5s")
    groups = join.apply(lists, uid="lists")
    groups.side_output(join.late_left).collect(uid="late")
    groups.collect(uid="out")
    env.checkpointing(every="20ms", storage="memory://window-joins-late")
    result = run_in_process(env, seed=3)
    assert result.status is JobStatus.FINISHED, result.error
    found, late = list(result.collected.rows("out")), list(result.collected.rows("late"))

    firings = [first for first, _ in found if first and first[0] < 5_000]
    assert firings == sorted(firings, key=len)
    assert sorted([*firings[-1], *(row[1] for row in late)]) == [1_000, 2_000, 3_000]


def test_what_makes_no_sense_is_one_clear_sentence() -> None:
    env = tg.StreamEnvironment("mistakes")
    left, right = streams(env)
    numbers = env.from_collection([1], type=int, uid="numbers")
    both = left.join(right)
    with pytest.raises(tg.TidegateError, match=r'say the key of both sides before window: .where\("id"\) is missing'):
        both.window(SECONDS)
    with pytest.raises(tg.TidegateError, match=r'.equal_to\("id"\) is missing'):
        both.where(0).window(SECONDS)
    with pytest.raises(tg.TidegateError, match="the keys of connected streams must be of one type"):
        left.join(numbers).where(0).equal_to("value").window(SECONDS)
    with pytest.raises(tg.TidegateError, match="equal_to: the stream has no field 'id'; it has f0, f1"):
        left.join(right).where(0).equal_to("id")
    with pytest.raises(tg.TidegateError, match="join takes a stream, not KeyedStream: say the keys by where"):
        left.join(right.key_by(0))  # type: ignore[arg-type]
    with pytest.raises(tg.TidegateError, match="how='outer' is not one of inner, left, right, full"):
        joined().how("outer")
    with pytest.raises(tg.TidegateError, match="window needs a WindowAssigner, not str"):
        left.join(right).where(0).equal_to(0).window("5s")  # type: ignore[arg-type]
    with pytest.raises(tg.TidegateError, match="is negative: a window cannot close before its end"):
        joined().allowed_lateness("-5s")
    with pytest.raises(tg.TidegateError, match=r"join.columns\(\) needs typed streams on both sides"):
        joined(SECONDS, None, None).columns(uid="x")


@pytest.mark.parametrize(
    ("left", "right", "name"),
    [
        ({"id": pa.string(), "window_end": pa.int64()}, {"id": pa.string()}, "window_end"),
        ({"id": pa.string(), "right_id": pa.int64()}, {"id": pa.string()}, "right_id"),
    ],
)
def test_columns_of_one_name_are_refused(left: dict[str, Any], right: dict[str, Any], name: str) -> None:
    env = tg.StreamEnvironment("names")
    one, other = (env.from_collection([], type=pa.schema(list(each.items()))) for each in (left, right))

    with pytest.raises(tg.TidegateError, match=f"two columns of the results would be called '{name}'"):
        one.join(other).where("id").equal_to("id").window(SECONDS).columns(uid="x")


def test_records_without_event_time_are_refused_by_their_side() -> None:
    left, right = streams(tg.StreamEnvironment("timeless"), times=None)
    left = left.assign_timestamps_and_watermarks(TIMES)
    env = left._env
    left.join(right).where(0).equal_to(0).window(SECONDS).columns(uid="x").collect(uid="out")
    env.checkpointing(every="20ms", storage="memory://window-joins-timeless")
    env.restart_strategy("none")

    result = run_in_process(env, seed=1)

    assert "the records of its right input have none: call assign_timestamps_and_watermarks" in str(result.error)
