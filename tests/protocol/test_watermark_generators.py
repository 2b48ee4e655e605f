"""Watermarks of the user's own: punctuated, periodic, per split; what they say is what goes on, and never back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

import tidegate as tg
from tidegate.batch import Batch, Origins
from tidegate.graph.plan import plan_job
from tidegate.protocol.watermarks import IDLE, MIN_WATERMARK
from tidegate.task.operators.timers import Time
from tidegate.task.operators.timestamps import TimestampOperator
from tidegate.testing.clock import ManualClock
from tidegate.types import record_type

import numpy as np  # isort: skip


class Punctuated(tg.WatermarkGenerator):
    def on_event(self, value: Any, timestamp: int, output: tg.WatermarkOutput) -> None:
        if value < 0:
            output.emit_watermark(timestamp)


class Periodic(tg.WatermarkGenerator):
    """The highest so far, said every 0.2 s; idle where nothing has come since."""

    def __init__(self) -> None:
        self.highest, self.told = MIN_WATERMARK, MIN_WATERMARK

    def on_event(self, value: Any, timestamp: int, output: tg.WatermarkOutput) -> None:
        self.highest = max(self.highest, timestamp)

    def on_periodic_emit(self, output: tg.WatermarkOutput) -> None:
        if self.highest == self.told:
            output.mark_idle()
        else:
            output.emit_watermark(self.highest)
            self.told = self.highest


class Running:
    """The operator, with what it says of time."""

    def __init__(self, generator: Any) -> None:
        env = tg.StreamEnvironment("generators", parallelism=1)
        times = tg.WatermarkStrategy.for_generator(generator, timestamp=abs)
        env.from_collection([1], type=int, uid="s").assign_timestamps_and_watermarks(times, uid="t").print(uid="p")
        env._built.taken_up = True
        (planned,) = [each for each in plan_job("job", env._graph, 1).operators if each.uid == "t"]
        self.clock = ManualClock()
        self.operator = TimestampOperator(planned, 0, times, Time(self.clock, self.clock))
        self.said: list[int] = []
        self.operator.connect({}, [self.said.append])
        self.operator.open(None)

    def read(self, *rows: int, of: list[str] | None = None, splits: set[str] | None = None) -> list[int]:
        batch = Batch(record_type(int), list(rows), timestamps=np.zeros(len(rows), np.int64))
        if of is not None:
            batch.origins = Origins(frozenset(splits or of), of)
        return self.after(lambda: self.operator.run(batch, 0))

    def wait(self, seconds: float) -> list[int]:
        self.clock.advance(seconds)
        return self.after(self.operator.on_time)

    def after(self, call: Any) -> list[int]:
        before = len(self.said)
        call()
        return self.said[before:]


def test_a_punctuated_watermark_follows_the_record_that_says_it_and_never_goes_back() -> None:
    running = Running(Punctuated)

    assert running.read(5, 7) == []
    assert running.read(-9, 3) == [9]
    assert running.read(-4) == []


def test_each_split_has_a_generator_and_the_lowest_counts() -> None:
    running = Running(Punctuated)

    assert running.read(-50, 1, of=["a", "b"]) == []
    assert running.read(-20, of=["b"], splits={"a", "b"}) == [20]
    assert running.read(-90, of=["b"], splits={"a", "b"}) == [50]
    assert running.read(-60, of=["b"], splits={"b"}) == [90], "a is read no more"


def test_a_periodic_generator_is_asked_while_no_record_comes_and_may_be_idle() -> None:
    running = Running(Periodic)

    assert running.read(5, 9) == []
    assert running.wait(0.1) == []
    assert running.wait(0.1) == [9]
    assert running.wait(0.2) == [IDLE]
    assert running.read(12) == []
    assert running.wait(0.2) == [12]
    assert running.operator.next_time() == pytest.approx(running.clock() + 0.2)


def test_who_says_how_far_it_is_and_then_that_it_is_idle_has_said_both() -> None:
    class Last(tg.WatermarkGenerator):
        def on_event(self, value: Any, timestamp: int, output: tg.WatermarkOutput) -> None:
            output.emit_watermark(timestamp)
            if value < 0:
                output.mark_idle()

    running = Running(Last)

    assert running.read(5, -9) == [9, IDLE]
    assert running.read(7) == [9], "it is live again"


def test_a_watermark_may_be_any_number_or_a_datetime() -> None:
    output = tg.WatermarkOutput()
    for given in (5.0, np.int64(7), datetime(1970, 1, 1, 0, 0, 0, 9_999)):
        output.emit_watermark(given)
        assert type(output.watermark) is int
    assert output.watermark == 9
    with pytest.raises(tg.TidegateError, match="not str"):
        output.emit_watermark("soon")


def test_what_is_no_generator_is_refused() -> None:
    with pytest.raises(tg.TidegateError, match="needs a class or a function that makes a WatermarkGenerator"):
        tg.WatermarkStrategy.for_generator(Punctuated())  # type: ignore[arg-type]
    with pytest.raises(Exception, match="it must make a WatermarkGenerator, not a int"):
        Running(int).read(1)
