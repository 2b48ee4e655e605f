"""Windows that fail and are restored, record by record and over columns, against a model of every result that they put out.

The model knows how far windows have fired. A restore may take event time back to the slowest of the old subtasks, and the clock
to that of another machine: what has fired has fired, what was taken counts, and what comes late fires again.
"""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from test_windows import ALIGNED, CountAndSum
from window_answers import TYPE, Record, Result

import tidegate as tg
from tidegate.protocol.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tidegate.testing import FunctionHarness, harness

SESSIONS = {"session": tg.EventTimeSessionWindows("900ms"), "long session": tg.EventTimeSessionWindows("3s")}
LATE = tg.OutputTag("late")


class Model:
    """One record after the other; `results` is all that windows have put out."""

    def __init__(self, assigner: tg.WindowAssigner, lateness_ms: int) -> None:
        self.assigner, self.lateness_ms = assigner, lateness_ms
        self.open: dict[tuple[str, int, int], list[int]] = {}
        self.fired = MIN_WATERMARK
        self.results: list[Result] = []
        self.late: list[Record] = []

    def take(self, record: Record) -> None:
        key, time, number = record
        windows = list(self.assigner.assign_windows(record, time))
        taken = False
        for window in windows:
            numbers: list[int] = []
            if self.assigner.merges:
                joined = [each for each in self.open if each[0] == key and tg.TimeWindow(*each[1:]).touches(window)]
                for each in joined:
                    window = window.cover(tg.TimeWindow(*each[1:]))
            if window.end - 1 + self.lateness_ms <= self.fired:
                continue
            if self.assigner.merges:
                for each in joined:
                    numbers += self.open.pop(each)
            taken = True
            self.open.setdefault((key, *window), []).extend([*numbers, number])
            if window.end - 1 <= self.fired:
                self._fire((key, *window))
        if windows and not taken:
            self.late.append(record)

    def advance(self, watermark: int) -> None:
        before, self.fired = self.fired, max(self.fired, watermark)
        for window in list(self.open):
            if before < window[2] - 1 <= self.fired:
                self._fire(window)
            if window[2] - 1 + self.lateness_ms <= self.fired:
                del self.open[window]

    def _fire(self, window: tuple[str, int, int]) -> None:
        self.results.append((*window, len(self.open[window]), sum(self.open[window])))


def over_columns(windows: Any) -> Any:
    return windows.aggregate(n=tg.count(), total=tg.sum("f2"))


def record_by_record(windows: Any) -> Any:
    return windows.aggregate(CountAndSum(), tg.WithWindow())


def flat(row: Any) -> Result:
    if isinstance(row, dict):
        return (row["f0"], row["window_start"], row["window_end"], row["n"], row["total"])
    start, end, key, result = row
    return (key, start, end, *result)


def random_records(rng: random.Random, count: int) -> list[Record]:
    """Around 1970, mostly in order, some far behind."""
    times = sorted(rng.randrange(-20_000, 20_000) for _ in range(count))
    return [(rng.choice("abc"), time - rng.choice([0, 0, 0, 500, 9000, 25_000]), rng.randrange(100)) for time in times]


@pytest.mark.parametrize("lateness_ms", [0, 6000])
@pytest.mark.parametrize("kind", ALIGNED | SESSIONS)
@pytest.mark.parametrize("way", [over_columns, record_by_record])
def test_every_result_is_that_of_the_model_whatever_is_restored(way: Any, kind: str, lateness_ms: int) -> None:
    assigner = (ALIGNED | SESSIONS)[kind]
    for seed in range(2 if way is over_columns else 1):
        rng = random.Random(f"{kind} {lateness_ms} {seed}")
        model = Model(assigner, lateness_ms)
        running = harness(
            lambda keyed: way(keyed.window(assigner).allowed_lateness(f"{lateness_ms}ms")),
            via="window", key_by=0, input_type=TYPE, side_outputs=[LATE],
        )  # fmt: skip
        newest = MIN_WATERMARK
        for record in random_records(rng, 80):
            running.process(record, record[1])
            model.take(record)
            newest = max(newest, record[1])
            if rng.random() < 0.3:
                running.advance_watermark(newest - 1000)
                model.advance(newest - 1000)
            if rng.random() < 0.06:
                restore(running, rng, may_go_back=way is over_columns)
        running.end_input()
        model.advance(MAX_WATERMARK)

        assert sorted(map(flat, running.output)) == sorted(model.results), seed
        assert running.side_output(LATE) == model.late
        assert model.late
        assert not [section for section in running.snapshot().file.sections if section.state == "rows"]


def restore(running: FunctionHarness, rng: random.Random, may_go_back: bool) -> None:
    """Event time continues from the slowest of the old subtasks, and the others' may have been further."""
    snapshot = running.snapshot()
    if may_go_back and snapshot.watermark != MIN_WATERMARK and rng.random() < 0.5:
        snapshot = dataclasses.replace(snapshot, watermark=snapshot.watermark - rng.randrange(8000))
    running.restore(snapshot, backend=rng.choice(["hashmap", "rocksdb"]))


CLOCKED = {
    "tumbling": tg.TumblingProcessingTimeWindows("10s"),
    "sliding": tg.SlidingProcessingTimeWindows("10s", "5s"),
    "cumulative": tg.CumulativeProcessingTimeWindows("10s", "5s"),
    "session": tg.ProcessingTimeSessionWindows("1s"),
}


@pytest.mark.parametrize("kind", CLOCKED)
@pytest.mark.parametrize("behind_s", [0, 2, 25])
def test_by_the_clock_no_record_is_lost_where_the_clock_of_the_next_machine_is_behind(kind: str, behind_s: int) -> None:
    def counted(keyed: Any) -> Any:
        return keyed.window(CLOCKED[kind]).aggregate(n=tg.count())

    running = harness(counted, via="window", key_by=0, input_type=TYPE, processing_time=100_000)
    for step in range(6):
        running.process_many([("a", 0, 0)] * 5)
        running.advance_processing_time("7s")
        running._clock.now -= behind_s
        running.restore(running.snapshot())
        running.process(("b", step, 0))
    running.advance_processing_time("200s")

    whole = [row["n"] for row in running.output if kind != "cumulative" or row["window_end"] % 10_000 == 0]
    assert sum(whole) == 36 * (2 if kind == "sliding" else 1)
    closed = [tuple(row.values())[:3] for row in running.output]
    assert len(set(closed)) == len(closed), "a window has closed twice"


def test_by_the_clock_a_job_that_was_drained_goes_on() -> None:
    running = harness(
        lambda keyed: keyed.window(tg.TumblingProcessingTimeWindows("10s")).aggregate(n=tg.count()),
        via="window", key_by=0, input_type=TYPE, processing_time=100_000,
    )  # fmt: skip
    running.process(("a", 0, 0))
    assert [row["n"] for row in running.end_input()] == [1]
    running.restore(running.snapshot())
    running.process_many([("a", 0, 0), ("a", 0, 0)])
    assert [row["n"] for row in running.advance_processing_time("10s")] == [2]


def test_a_job_that_was_drained_knows_which_windows_the_clock_has_closed() -> None:
    running = harness(
        lambda keyed: keyed.window(tg.TumblingProcessingTimeWindows("10s")).aggregate(n=tg.count()),
        via="window", key_by=0, input_type=TYPE, processing_time=100_000,
    )  # fmt: skip
    running.process(("a", 0, 0))
    running.advance_processing_time("12s")
    running.end_input()
    running._clock.now -= 12
    running.restore(running.snapshot())
    running.process(("a", 0, 0))
    running.advance_processing_time("30s")
    assert [row["window_start"] for row in running.output] == [100_000, 110_000]


class Spoken(tg.ProcessWindowFunction):
    """With state of the window and of the key, both of which a failure must not touch."""

    seen = tg.ReducingState(int, max)
    firings = tg.ListState(int)

    def process(self, key: Any, context: tg.WindowContext, elements: list[Any], /) -> Any:
        self.seen.add(max(element[2] for element in elements))
        with context.global_state():
            self.firings.add(len(elements))
            firings = len(self.firings.get())
        yield (key, *context.window, [element[2] for element in elements], self.seen.get(), firings)


TRIGGERS = {
    "at the end": None,
    "count": tg.CountTrigger(3),
    "count, purging": tg.CountTrigger(2).purging(),
    "every so often": tg.ContinuousEventTimeTrigger("2s"),
    "every so often, purging": tg.ContinuousEventTimeTrigger("2s").purging(),
    "by the clock": tg.ContinuousProcessingTimeTrigger("3s"),
}
EVICTORS = [None, tg.CountEvictor(3), tg.TimeEvictor("2s", after=True)]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_triggers_and_evictors_notice_no_failure(trigger: str) -> None:
    """The same steps, once without failures on the heap, and once with many, on both backends."""

    def build(keyed: Any) -> Any:
        windows = keyed.window(assigner)
        if assigner.is_event_time:
            windows = windows.allowed_lateness("2s")
        if TRIGGERS[trigger] is not None:
            windows = windows.trigger(TRIGGERS[trigger])
        if evictor is not None:
            windows = windows.evictor(evictor)
        return windows.process(Spoken(), returns=tuple[str, int, int, list[int], int, int])

    emitted = 0
    for assigner in (SESSIONS["session"], tg.SlidingEventTimeWindows("4s", "2s"), tg.GlobalWindows()):
        if not assigner.is_event_time and trigger.startswith(("at the end", "every so often")):
            continue  # no watermark ends a global window
        rng = random.Random(f"{trigger} {assigner}")
        evictor = rng.choice(EVICTORS)
        calm, shaken = (
            harness(build, via="window", key_by=0, input_type=TYPE, processing_time=50_000) for _ in range(2)
        )
        newest = MIN_WATERMARK
        for record in random_records(rng, 40):
            newest = max(newest, record[1])
            rolled, pause = rng.random(), f"{rng.randrange(1, 4)}s"
            found = []
            for running in (calm, shaken):
                out = running.process(record, record[1])
                if rolled < 0.3:
                    out += running.advance_watermark(newest - 1000)
                elif rolled < 0.4:
                    out += running.advance_processing_time(pause)
                found.append(in_no_order(out))
            assert found[0] == found[1]
            if rng.random() < 0.1:
                shaken.restore(shaken.snapshot(), backend=rng.choice(["hashmap", "rocksdb"]))
        assert in_no_order(calm.end_input()) == in_no_order(shaken.end_input())
        emitted += len(calm.output)
    assert emitted


def in_no_order(rows: list[Any]) -> tuple[list[Any], list[Any]]:
    """Timers of one moment come in any order, and which window of a key fires first decides how often it has fired before."""
    return sorted(row[:-1] for row in rows), sorted((row[0], row[-1]) for row in rows)
