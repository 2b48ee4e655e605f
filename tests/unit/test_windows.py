"""Windows record by record, in the harness: each kind against plain Python over the whole input, each trigger as a script."""

from __future__ import annotations

import operator
import random
from typing import Any

import pytest
from window_answers import TYPE, Result, answer, on_time, random_steps

import tidegate as tg
from tidegate.testing import FunctionHarness, harness


class Quarters(tg.WindowAssigner):
    def assign_windows(self, value: Any, timestamp: int, /) -> list[tg.TimeWindow]:
        start = timestamp // 4000 * 4000
        return [tg.TimeWindow(start, start + 4000)]


ALIGNED = {
    "tumbling": tg.TumblingEventTimeWindows("5s"),
    "tumbling with an offset": tg.TumblingEventTimeWindows("7s", offset="2s"),
    "sliding": tg.SlidingEventTimeWindows("10s", "3s"),
    "sliding with an offset": tg.SlidingEventTimeWindows("10s", "5s", "1s"),
    "sliding with gaps": tg.SlidingEventTimeWindows("2s", "5s"),
    "cumulative": tg.CumulativeEventTimeWindows("12s", "3s"),
    "cumulative with an offset": tg.CumulativeEventTimeWindows("12s", "4s", "5s"),
}
ALL = ALIGNED | {
    "session": tg.EventTimeSessionWindows("900ms"),
    "long session": tg.EventTimeSessionWindows("3s"),
    "the user's own": Quarters(),
}


class CountAndSum(tg.AggregateFunction):
    accumulator_type = tuple[int, int]

    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any, /) -> Any:
        return (accumulator[0] + 1, accumulator[1] + value[2])

    def get_result(self, accumulator: Any, /) -> Any:
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        return (a[0] + b[0], a[1] + b[1])


class Listed(tg.ProcessWindowFunction):
    def process(self, key: Any, context: tg.WindowContext, elements: list[Any], /) -> Any:
        yield (key, *context.window, len(elements), sum(element[2] for element in elements))


class Batches(tg.WindowBatchFunction):
    def process_batch(self, batch: Any, ctx: Any, /) -> Any:
        import pyarrow as pa

        groups = pa.table(batch).group_by(["f0", "window_start", "window_end"], use_threads=False)
        found = groups.aggregate([("f2", "count"), ("f2", "sum")])
        return found.rename_columns([f"f{at}" for at in range(5)])


def flat(row: Any) -> Result:
    """Of tg.WithWindow()."""
    start, end, key, result = row
    return (key, start, end, *result)


def reduced(windows: Any) -> Any:
    return windows.reduce(lambda a, b: (a[0], a[1] + b[1], a[2] + b[2]), tg.WithWindow())


WAYS = {
    "aggregate": lambda windows: windows.aggregate(CountAndSum(), tg.WithWindow()),
    "process": lambda windows: windows.process(Listed(), returns=tuple[str, int, int, int, int]),
    "process_batches": lambda windows: windows.process_batches(Batches(), returns=tuple[str, int, int, int, int]),
    "aggregate after an evictor": lambda windows: windows.evictor(tg.CountEvictor(10_000)).aggregate(
        CountAndSum(), tg.WithWindow()
    ),
}


def windowed(assigner: tg.WindowAssigner, way: Any, backend: str = "hashmap", **options: Any) -> FunctionHarness:
    return harness(
        lambda keyed: way(keyed.window(assigner)), via="window", key_by=0, input_type=TYPE, backend=backend, **options
    )


def results(running: FunctionHarness) -> list[Result]:
    return sorted(flat(row) if len(row) == 4 else row for row in running.output)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ALL)
def test_every_kind_gives_what_plain_python_gives_over_the_whole_input_also_after_failures(kind: str, way: str) -> None:
    seed = sum(map(ord, kind + way))
    rng = random.Random(seed)
    steps = random_steps(seed)
    backend = rng.choice(["hashmap", "rocksdb"])
    running = windowed(ALL[kind], WAYS[way], backend)
    for step in steps:
        running.process_many(step.records, [time for _, time, _ in step.records])
        running.advance_watermark(step.watermark)
        if rng.random() < 0.1:
            running.restore(running.snapshot(), backend=rng.choice(["hashmap", "rocksdb"]))
    running.end_input()

    assert results(running) == answer(ALL[kind], [record for step in steps for record in step.records])
    assert nothing_left(running)


def nothing_left(running: FunctionHarness) -> bool:
    """Of windows that have closed, in the next checkpoint."""
    return not [section for section in running.snapshot().file.sections if section.state != "fired"]


@pytest.mark.parametrize("kind", ALIGNED)
def test_late_records_go_into_the_windows_that_are_open_and_aside_when_none_is(kind: str) -> None:
    steps = random_steps(7, late=40)
    late = tg.OutputTag("late")
    running = windowed(ALIGNED[kind], WAYS["aggregate"], side_outputs=[late])
    for step in steps:
        running.process_many(step.records, [time for _, time, _ in step.records])
        running.advance_watermark(step.watermark)
    running.end_input()

    expected, too_late = on_time(ALIGNED[kind], steps)
    assert too_late, "the test must see late records"
    assert results(running) == expected
    assert running.side_output(late) == too_late


@pytest.mark.parametrize("kind", ALIGNED)
def test_with_an_allowed_lateness_windows_fire_again_and_the_last_result_is_whole(kind: str) -> None:
    steps = random_steps(8, late=40)
    running = windowed(ALIGNED[kind], lambda windows: WAYS["aggregate"](windows.allowed_lateness("6s")))
    for step in steps:
        running.process_many(step.records, [time for _, time, _ in step.records])
        running.advance_watermark(step.watermark)
    running.end_input()

    last = {result[:3]: result for result in map(flat, running.output)}
    assert sorted(last.values()) == on_time(ALIGNED[kind], steps, lateness_ms=6000)[0]
    assert len(running.output) > len(last), "none fired again"
    assert nothing_left(running)


def test_a_session_takes_a_record_that_joins_it_to_another_and_fires_once() -> None:
    running = windowed(tg.EventTimeSessionWindows("10s"), WAYS["aggregate"])
    for time in (0, 15_000, 7000):
        running.process(("a", time, 1), time)

    assert running.advance_watermark(24_998) == []
    assert running.advance_watermark(24_999) == [(0, 25_000, "a", (3, 3))]
    assert nothing_left(running)


def test_a_record_is_late_when_the_session_that_it_would_be_in_has_closed() -> None:
    late = tg.OutputTag("late")
    running = windowed(tg.EventTimeSessionWindows("10s"), WAYS["aggregate"], side_outputs=[late])
    running.process(("a", 20_000, 1), 20_000)
    running.advance_watermark(25_000)

    running.process(("a", 12_000, 1), 12_000)  # its own window has passed, but it belongs to one that is open
    running.process(("a", 1000, 1), 1000)

    assert running.side_output(late) == [("a", 1000, 1)]
    assert running.end_input() == [(12_000, 30_000, "a", (2, 2))]


def test_the_gap_of_a_session_may_be_the_records_own() -> None:
    running = windowed(tg.EventTimeSessionWindows(lambda record: record[2]), WAYS["process"])
    for time, gap in ((0, 100), (90, 500), (580, 10)):
        running.process(("a", time, gap), time)

    assert running.end_input() == [("a", 0, 590, 3, 610)]


# -- triggers -------------------------------------------------------------------------------------------------------------


def sums(assigner: tg.WindowAssigner, trigger: tg.Trigger, **options: Any) -> FunctionHarness:
    """Of plain numbers: the sum of a window each time it fires."""
    return harness(
        lambda keyed: keyed.window(assigner).trigger(trigger).reduce(operator.add),
        via="window", key_by=lambda number: "all", key_type=str, input_type=int, **options,
    )  # fmt: skip


@pytest.mark.parametrize(("time", "seconds"), [(1000, [4, 8, 10]), (9000, [10])])
def test_a_continuous_trigger_fires_at_multiples_within_the_window_and_at_its_end_and_no_more(
    time: int, seconds: list[int]
) -> None:
    running = harness(
        lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s"))
        .trigger(tg.ContinuousEventTimeTrigger("4s"))
        .allowed_lateness("100s")
        .reduce(operator.add),
        via="window", key_by=lambda number: "all", key_type=str, input_type=int,
    )  # fmt: skip
    running.process(1, time)
    fired = [(second, out) for second in range(30) if (out := running.advance_watermark(second * 1000))]
    assert fired == [(second, [1]) for second in seconds]  # of 9,999 ms the tenth second tells
    assert running.process(2, 9000) == [3], "late, so at once"
    assert running.end_input() == []


def test_a_continuous_trigger_does_not_go_on_when_input_has_ended() -> None:
    for assigner in (tg.GlobalWindows(), tg.TumblingEventTimeWindows("1h")):
        running = sums(assigner, tg.ContinuousEventTimeTrigger("10s"))
        running.process(1, 5000)
        assert running.advance_watermark(12_000) == [1]
        assert running.end_input() == [1, 1], "at the next multiple, and at the window's end"


def test_by_the_clock_windows_of_event_time_fire_at_multiples_alone_whenever_their_records_were() -> None:
    running = sums(
        tg.TumblingEventTimeWindows("1h"), tg.ContinuousProcessingTimeTrigger("10s"), processing_time=1_700_000_000_000
    )
    for number in range(1, 5):
        assert running.process(number, 8000) == []
        assert running.advance_processing_time("1s") == []
    assert running.advance_processing_time("20s") == [10, 10]
    by_the_clock = sums(tg.TumblingProcessingTimeWindows("15s"), tg.ContinuousProcessingTimeTrigger("10s"))
    by_the_clock.process(1)
    assert by_the_clock.advance_processing_time("14s") == [1]
    assert by_the_clock.advance_processing_time("1s") == [1], "and when the clock closes the window"


def test_a_global_window_keeps_its_timers_when_a_job_is_drained_and_goes_on() -> None:
    running = sums(tg.GlobalWindows(), tg.ContinuousProcessingTimeTrigger("10s"), processing_time=3000)
    running.process(1)
    assert running.end_input() == []
    running.restore(running.snapshot())
    running.process(2)

    assert running.advance_processing_time("28s") == [3, 3, 3]


def test_a_count_trigger_fires_with_all_that_has_come_and_when_purging_begins_anew() -> None:
    keeping, purging = (
        sums(tg.GlobalWindows(), trigger) for trigger in (tg.CountTrigger(2), tg.CountTrigger(2).purging())
    )

    assert keeping.process_many([1, 2, 3, 4, 5]) == [3, 10]
    assert purging.process_many([1, 2, 3, 4, 5]) == [3, 7]


def test_a_count_trigger_of_sessions_counts_over_those_that_merge() -> None:
    running = sums(tg.EventTimeSessionWindows("10s"), tg.CountTrigger(3))
    assert running.process_many([1, 2], [0, 15_000]) == []
    assert running.process_many([4], [8000]) == [7]


def test_a_continuous_trigger_fires_at_each_interval_and_at_the_end() -> None:
    running = sums(tg.TumblingEventTimeWindows("10s"), tg.ContinuousEventTimeTrigger("4s"))
    running.process_many([1, 2], [1000, 5000])

    assert running.advance_watermark(3999) == []
    assert running.advance_watermark(4000) == [3]
    running.process(4, 9000)
    assert running.advance_watermark(8500) == [7]
    assert running.advance_watermark(9999) == [7]
    assert nothing_left(running)


def test_a_continuous_trigger_of_sessions_keeps_the_earlier_of_two_moments() -> None:
    running = sums(tg.EventTimeSessionWindows("10s"), tg.ContinuousEventTimeTrigger("20s"))
    running.process_many([1, 2, 4], [0, 15_000, 8000])

    assert running.advance_watermark(20_000) == [7]
    assert running.end_input() == [7]
    assert nothing_left(running)


def test_a_continuous_trigger_by_the_clock() -> None:
    running = sums(tg.GlobalWindows(), tg.ContinuousProcessingTimeTrigger("10s"))
    running.process(1)

    assert running.advance_processing_time("11s") == [1]
    running.process(2)
    assert running.advance_processing_time("10s") == [3]


def test_windows_by_the_clock_fire_when_it_has_passed_and_at_the_end_of_input() -> None:
    running = sums(tg.TumblingProcessingTimeWindows("10s"), tg.ProcessingTimeTrigger())
    running.process_many([1, 2])

    assert running.advance_processing_time("9990ms") == []
    assert running.advance_processing_time("10ms") == [3]
    running.process(4)
    assert running.end_input() == [4]
    assert nothing_left(running)


def test_sessions_by_the_clock() -> None:
    running = sums(tg.ProcessingTimeSessionWindows("10s"), tg.ProcessingTimeTrigger())
    running.process(1)
    running.advance_processing_time("6s")
    running.process(2)

    assert running.advance_processing_time("6s") == []
    assert running.advance_processing_time("4s") == [3]
    assert nothing_left(running)


class AtSum(tg.Trigger):
    sum = tg.ReducingState(int, operator.add)

    def on_element(self, value: Any, timestamp: Any, window: Any, ctx: Any, /) -> tg.TriggerResult:
        self.sum.add(value)
        if (self.sum.get() or 0) < 10:
            return tg.TriggerResult.CONTINUE
        self.sum.clear()
        return tg.TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window: Any, ctx: Any, /) -> None:
        ctx.merge(self.sum)


def test_a_trigger_of_ones_own_has_state_for_each_window_which_survives_and_merges() -> None:
    running = sums(tg.EventTimeSessionWindows("10s"), AtSum())
    running.process_many([4, 3], [0, 15_000])
    running.restore(running.snapshot(), backend="rocksdb")

    assert running.process_many([3], [8000]) == [10]
    running.process(1, 8000)
    running.end_input()
    assert nothing_left(running), "a trigger that never fired leaves nothing"


def test_evictors_take_records_out_before_the_function_or_after_it() -> None:
    def run(evictor: tg.Evictor) -> list[int]:
        running = harness(
            lambda keyed: keyed.window(tg.GlobalWindows()).trigger(tg.CountTrigger(2)).evictor(evictor).reduce(operator.add),
            via="window", key_by=lambda number: "all", key_type=str, input_type=int,
        )  # fmt: skip
        return running.process_many([1, 2, 4, 8], [0, 100, 5000, 5100])

    assert run(tg.CountEvictor(3)) == [3, 14]
    assert run(tg.CountEvictor(1, after=True)) == [3, 14]
    assert run(tg.TimeEvictor("1s")) == [3, 12]
    assert run(tg.DeltaEvictor(5, lambda number, newest: newest - number)) == [3, 12]


def test_count_windows_tumble_and_slide() -> None:
    def run(size: int, slide: int | None) -> list[int]:
        running = harness(
            lambda keyed: keyed.count_window(size, slide).reduce(operator.add),
            via="window", key_by=lambda number: number % 2, key_type=int, input_type=int,
        )  # fmt: skip
        return running.process_many(range(1, 11))

    assert run(2, None) == [4, 6, 12, 14]
    assert run(3, 2) == [4, 6, 15, 18]


# -- state of a window's function ----------------------------------------------------------------------------------------


class Numbered(tg.ProcessWindowFunction):
    """How often the window has fired, and how many windows the key has had."""

    fired = tg.ReducingState(int, operator.add)
    windows = tg.ValueState(int, default=0)

    def process(self, key: Any, context: tg.WindowContext, elements: list[Any], /) -> Any:
        self.fired.add(1)
        with context.global_state():
            self.windows.set(self.windows.get() + 1)
            so_far = self.windows.get()
        yield (context.window.start, self.fired.get(), so_far)


def test_a_functions_state_is_the_windows_and_in_global_state_the_keys() -> None:
    running = harness(
        lambda keyed: keyed.window(tg.TumblingEventTimeWindows("10s")).trigger(tg.CountTrigger(1)).process(Numbered()),
        via="window", key_by=lambda number: "all", key_type=str,
    )  # fmt: skip

    assert running.process_many([1, 2, 3], [0, 12_000, 1000]) == [(0, 1, 1), (10_000, 1, 2), (0, 2, 3)]
    running.advance_watermark(30_000)
    assert running.state("all") == {"windows": 3}, "the windows' own is gone with them"


def test_results_have_the_last_moment_of_their_window_as_time_and_late_ones_too() -> None:
    running = sums(tg.TumblingEventTimeWindows("10s"), tg.EventTimeTrigger())
    running.process(1, 5)
    running.advance_watermark(10_000)

    assert [(each.value, each.timestamp) for each in running.emitted] == [(1, 9999)]


# -- mistakes -------------------------------------------------------------------------------------------------------------


def test_records_without_a_time_are_refused_by_windows_of_event_time() -> None:
    running = sums(tg.TumblingEventTimeWindows("10s"), tg.EventTimeTrigger())
    with pytest.raises(tg.ConfigurationError, match="the records of this stream have none"):
        running.process(1)


def test_a_trigger_must_say_how_it_merges_before_it_is_used_with_sessions() -> None:
    with pytest.raises(tg.ConfigurationError, match="must define on_merge"):
        sums(tg.EventTimeSessionWindows("10s"), type("Mine", (tg.Trigger,), {})())


def test_an_exception_of_a_trigger_is_the_users_own() -> None:
    class Broken(tg.Trigger):
        def on_element(self, value: Any, timestamp: Any, window: Any, ctx: Any, /) -> tg.TriggerResult:
            raise ZeroDivisionError("the trigger's")

    with pytest.raises(ZeroDivisionError, match="the trigger's"):
        sums(tg.GlobalWindows(), Broken()).process(1)


class CountsOfKeys(tg.ProcessWindowFunction):
    """Values and maps that are the key's alone."""

    windows = tg.ValueState(int, default=0)
    sizes = tg.MapState(int, int)
    own = tg.ValueState(int)

    def __init__(self, uses_own: bool = False) -> None:
        self.uses_own = uses_own

    def process(self, key: Any, context: tg.WindowContext, elements: list[int], /) -> Any:
        with context.global_state():
            self.windows.set(self.windows.get() + 1)
            self.sizes.put(len(elements), 1 + (self.sizes.get(len(elements)) or 0))
            yield (len(elements), self.windows.get(), len(self.sizes))
        if self.uses_own:
            self.own.set(1)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("uses_own", [False, True])
def test_in_sessions_values_and_maps_may_be_the_keys_and_not_the_windows(backend: str, uses_own: bool) -> None:
    running = harness(
        lambda keyed: keyed.window(tg.EventTimeSessionWindows("10s"))
        .trigger(tg.CountTrigger(1))
        .process(CountsOfKeys(uses_own), returns=tuple[int, int, int]),
        via="window", key_by=lambda number: "all", key_type=str, input_type=int, backend=backend,
    )  # fmt: skip
    assert running.process_many([1, 2], [0, 15_000]) == [(1, 1, 1), (1, 2, 1)]
    if uses_own:
        with pytest.raises(tg.ConfigurationError, match="only list, reducing and aggregating state can be merged"):
            running.process(3, 8000)
    else:
        assert running.process(3, 8000) == [(3, 3, 2)]


@pytest.mark.parametrize("name", ["contents", "sessions", "timestamps", "trigger_seen"])
def test_a_state_that_is_called_as_one_of_the_windows_own_is_refused(name: str) -> None:
    function = type("Own", (tg.ProcessWindowFunction,), {name: tg.ListState(int)})()
    with pytest.raises(tg.ConfigurationError, match=f"state '{name}' .*windows have one of that name themselves"):
        windowed(tg.TumblingEventTimeWindows("5s"), lambda windows: windows.process(function, returns=int))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: tg.TumblingEventTimeWindows("0s"), "at least 1 ms"),
        (lambda: tg.TumblingEventTimeWindows(5), "has no unit"),  # type: ignore[arg-type]
        (lambda: tg.TumblingEventTimeWindows("5s", offset="5s"), "the offset must be less"),
        (lambda: tg.CumulativeEventTimeWindows("10s", "3s"), "a whole number of steps"),
        (lambda: tg.CountWindows(0), "a positive integer"),
        (lambda: tg.CountTrigger(0), "a positive integer"),
    ],
)
def test_a_window_that_cannot_be_is_refused_where_it_is_written(make: Any, words: str) -> None:
    with pytest.raises(tg.ConfigurationError, match=words):
        make()
