"""Durations and moments in whole milliseconds: every one that is written comes out, in whatever unit, before 1970 too."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest

import tidegate as tg
from tidegate.durations import duration_ms
from tidegate.functions.watermarks import milliseconds
from tidegate.state.ttl import Ttl
from tidegate.task.operators.timestamps import _column_milliseconds


def test_every_number_of_milliseconds_is_itself_in_each_unit() -> None:
    for ms in [*range(1, 10_000), 86_400_001, 31_536_000_007]:
        written = [f"{ms}ms", f"{ms // 1000}.{ms % 1000:03d}s", timedelta(milliseconds=ms)]
        assert [duration_ms(duration, "a test") for duration in written] == [ms] * 3


@pytest.mark.parametrize("ms", [1001, 1007, 4007])  # which floats make 1000.9999999999999 of
def test_what_is_given_in_milliseconds_is_not_a_millisecond_short(ms: int) -> None:
    written = f"{ms // 1000}.{ms % 1000:03d}s"
    windows = tg.TumblingEventTimeWindows("1h", offset=written)
    assert (tg.TumblingEventTimeWindows(written).size_ms, windows.offset_ms) == (ms, ms)
    assert tg.EventTimeSessionWindows(written).gap_ms == ms
    assert tg.EventTimeSessionWindows(lambda record: written).assign_windows(None, 0)[0].end == ms
    assert tg.ContinuousEventTimeTrigger(written).interval_ms == ms
    assert tg.TimeEvictor(written).duration_ms == ms
    assert Ttl(written).milliseconds == ms
    assert tg.WatermarkStrategy.bounded_out_of_orderness(written, timestamp="time").out_of_orderness_ms == ms


@pytest.mark.parametrize("year", [1900, 1969, 1970, 1971, 2024, 9000])
def test_a_moment_belongs_to_the_millisecond_that_has_begun_as_a_datetime_and_as_a_column(year: int) -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    moments = [
        datetime(year, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
        for micros in (-1, 0, 1, 999, 1000, 1001, 57_999)
    ]
    expected = [(moment - epoch) // timedelta(microseconds=1) // 1000 for moment in moments]
    east = timezone(timedelta(hours=5, minutes=30))

    assert list(map(milliseconds, moments)) == expected
    assert [milliseconds(moment.astimezone(east)) for moment in moments] == expected
    for arrow in (pa.timestamp("us", "UTC"), *([pa.timestamp("ns", "UTC")] if 1700 < year < 2200 else [])):
        assert _column_milliseconds(pa.array(moments, arrow), "time").tolist() == expected
    whole = [moment.replace(microsecond=0) for moment in moments]
    for unit in ("s", "ms"):
        column = pa.array(whole, pa.timestamp(unit, "UTC"))
        assert _column_milliseconds(column, "time").tolist() == list(map(milliseconds, whole))
    assert milliseconds(-0.5) == -1
