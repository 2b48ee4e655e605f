"""The watermark of an operator over its channels: minimum, idle, ended, restored. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.protocol.watermarks import IDLE, MAX_WATERMARK, MIN_WATERMARK, Channel, WatermarkValve

A, B = (0, 0), (0, 1)


def valve(*channels: Channel) -> WatermarkValve:
    return WatermarkValve.over(channels or (A, B))


def test_the_watermark_is_the_lowest_and_waits_for_every_channel() -> None:
    both = valve()

    assert both.on_watermark(A, 10) == []
    assert both.on_watermark(B, 5) == [5]
    assert both.on_watermark(B, 7) == [7]
    assert both.on_watermark(B, 20) == [10]
    assert both.on_watermark(A, 8) == [], "it never goes back"


def test_an_idle_channel_holds_nobody_back() -> None:
    both = valve()
    both.on_watermark(A, 10)

    assert both.on_watermark(B, IDLE) == [10]
    assert both.on_watermark(A, 12) == [12]


def test_a_channel_that_is_live_again_counts_again() -> None:
    both = valve()
    both.on_watermark(A, 10)
    both.on_watermark(B, IDLE)

    assert both.on_watermark(B, 3) == []
    assert both.on_watermark(A, 20) == []
    assert both.on_watermark(B, 15) == [15]


def test_when_all_are_idle_time_goes_on_to_the_highest_and_the_operator_is_idle() -> None:
    both = valve()
    both.on_watermark(A, 10)
    both.on_watermark(B, 4)
    both.on_watermark(A, IDLE)

    assert both.on_watermark(B, IDLE) == [10, IDLE]
    assert both.on_watermark(B, IDLE) == [], "said once"


def test_those_who_follow_are_told_when_it_is_live_again() -> None:
    both = valve()
    both.on_watermark(A, 10)
    both.on_watermark(A, IDLE)
    both.on_watermark(B, IDLE)

    assert both.on_watermark(B, 2) == [10], "the same watermark, so that they wait for it again"
    assert both.on_watermark(B, 3) == []


def test_an_ended_channel_holds_nobody_back_and_all_ended_is_the_end_of_time() -> None:
    both = valve()
    both.on_watermark(B, 5)

    assert both.on_end(A) == [5]
    assert both.on_end(B) == [MAX_WATERMARK]


def test_time_does_not_end_while_a_channel_is_only_idle() -> None:
    both = valve()
    both.on_watermark(A, 5)
    both.on_watermark(B, 9)
    both.on_watermark(A, IDLE)

    assert both.on_end(B) == [IDLE]
    assert both.current == 9
    assert both.on_watermark(A, 7) == [9]
    assert both.on_watermark(A, 12) == [12]


def test_a_restored_watermark_is_passed_on_once_more_and_does_not_go_back() -> None:
    """What was sent of it may have been overtaken by an unaligned barrier, and is in no checkpoint."""
    both = valve()
    both.restore(10)

    assert both.on_watermark(A, 10) == []
    assert both.on_watermark(B, 7) == []
    assert both.on_watermark(B, 10) == [10]
    assert both.on_watermark(B, 10) == []


@given(
    st.lists(st.tuples(st.sampled_from([A, B, (1, 0)]), st.integers(0, 20) | st.sampled_from([IDLE, MAX_WATERMARK]))),
)
def test_whatever_the_channels_say_it_never_goes_back_nor_beyond_a_live_channel(
    said: list[tuple[Channel, int]],
) -> None:
    three = valve(A, B, (1, 0))
    marks = dict.fromkeys([A, B, (1, 0)], MIN_WATERMARK)
    idle: set[Channel] = set()
    last, told_idle = MIN_WATERMARK, False
    for channel, watermark in said:
        if marks[channel] == MAX_WATERMARK:
            continue  # nothing comes after the end
        if watermark == IDLE:
            idle.add(channel)
        else:
            idle.discard(channel)
            marks[channel] = max(marks[channel], watermark)
        live = [mark for c, mark in marks.items() if c not in idle and mark != MAX_WATERMARK]
        for news in three.on_watermark(channel, watermark):
            told_idle = news == IDLE
            if news != IDLE:
                assert news >= last
                last = news
        if live:
            assert last <= max(min(live), last)
            assert last == three.current
            assert last >= min(live) or min(live) == MIN_WATERMARK
            assert not told_idle
        elif all(mark == MAX_WATERMARK for mark in marks.values()):
            assert last == MAX_WATERMARK
        else:
            assert told_idle
            assert last != MAX_WATERMARK
