"""Sources of one group stay together: the board, what a slot does with it, and whole jobs with a fast and a slow source."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from protocol_kit import Numbered, environment

import tidegate as tg
from tidegate.coordinator.observing import JobStatus
from tidegate.protocol.alignment import AlignmentBoard, may_read
from tidegate.protocol.watermarks import IDLE, MAX_WATERMARK
from tidegate.task.source_turns import SourceTurns
from tidegate.testing import LedgerSink, forget_ledgers, ledger
from tidegate.testing.crash_points import Crash
from tidegate.testing.runner import run_in_process
from tidegate.wire.control import GroupAt

ROW = tuple[int, int]
DRIFT_MS, POLLED = 100, 5
A, B = ("a", 0), ("b", 1)


def test_the_board_tells_the_lowest_when_it_has_moved():
    board = AlignmentBoard()

    assert board.on_reached("g", A, 10) == 10
    assert board.on_reached("g", B, 50) is None
    assert board.on_reached("g", A, 30) == 30
    assert board.on_reached("other", A, 5) == 5
    assert board.on_reached("g", A, 80) == 50


def test_who_is_idle_or_has_ended_holds_nobody_back():
    board = AlignmentBoard()
    board.on_reached("g", A, 10)
    board.on_reached("g", B, 50)

    assert board.on_reached("g", A, IDLE) == 50
    assert board.on_reached("g", A, 20) == 20
    assert board.on_reached("g", A, MAX_WATERMARK) == 50
    assert board.on_reached("g", B, IDLE) == MAX_WATERMARK
    assert board.on_reached("g", B, IDLE) is None


def test_who_is_above_the_limit_reads_nothing():
    assert may_read(150, 50, 100)
    assert not may_read(151, 50, 100)
    assert may_read(10_000, None, 100)
    assert may_read(10_000, MAX_WATERMARK, 100)


SEEN: list[tuple[int, int]] = []
TOLD = (-1, 0)  #: among what was seen: from here on each slot knows where all sources of the group are


class See(tg.MapFunction):
    def map(self, row: Any) -> Any:
        SEEN.append((row[0], row[1] % 1000 * 10))
        return row


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notes TOLD: who has said nothing yet holds nobody back, and letters may take their time."""
    reached, on_group = AlignmentBoard.on_reached, SourceTurns.on_group
    boards: list[AlignmentBoard] = []
    know: set[int] = set()

    def noted_reached(board: AlignmentBoard, group: str, member: Any, watermark: int) -> int | None:
        boards[:] = [board]
        return reached(board, group, member, watermark)

    def noted_group(slot: SourceTurns, news: GroupAt) -> None:
        on_group(slot, news)
        if len(boards[0].groups[news.group]) == 4 and boards[0].lowest[news.group] == news.watermark:
            know.add(id(slot))
            if len(know) == 2:
                SEEN.append(TOLD)

    monkeypatch.setattr(AlignmentBoard, "on_reached", noted_reached)
    monkeypatch.setattr(SourceTurns, "on_group", noted_group)


def lead(seed: int, drift: str | None, crashes: list[Crash]) -> int:
    """By how much the fast source was ahead of the slow one, from when they know of each other to the slow one's end."""
    forget_ledgers()
    SEEN.clear()
    env = environment(parallelism=2)
    env.restart_strategy("fixed-delay", attempts=10, delay="0s")
    sources = [Numbered(0, 2, 300, (POLLED,)), Numbered(1, 2, 30, (1, *[0] * 3))]
    streams = []
    for source in sources:
        times = tg.WatermarkStrategy.monotonous(timestamp=lambda row: row[1] % 1000 * 10)
        if drift is not None:
            times = times.with_watermark_alignment("both", drift)
        read = env.from_source(source, uid=f"s{source.source}", returns=ROW)
        streams.append(read.assign_timestamps_and_watermarks(times).map(See(), returns=ROW))
    streams[0].union(streams[1]).sink_to(LedgerSink("out"), uid="out")
    result = run_in_process(env, seed=seed, crashes=crashes)

    assert result.status is JobStatus.FINISHED, result.error
    assert Counter(map(tuple, ledger("out").rows())) == Counter(row for source in sources for row in source.rows())
    most, slow = 0, 0
    first = 0 if drift is None else SEEN.index(TOLD)
    last = max(at for at, (source, _) in enumerate(SEEN) if source == 1)
    for at, (source, stamp) in enumerate(SEEN[:last]):
        if source == 1:
            slow = max(slow, stamp)
        elif source == 0 and at > first:
            most = max(most, stamp - slow)
    return most


def test_a_fast_source_waits_for_a_slow_one(seed: int) -> None:
    assert lead(seed, "100ms", []) <= DRIFT_MS + POLLED * 10
    assert lead(seed, None, []) > DRIFT_MS + POLLED * 10, "without it the fast one is far ahead: the test shows nothing"


@pytest.mark.parametrize("point", ["slot.before-ack", "driver.after-log"])
def test_sources_stay_together_over_a_failure(point: str, seed: int) -> None:
    lead(seed, "100ms", [Crash(point, nth=3)])


def test_it_stands_right_after_the_source(seed: int) -> None:
    with pytest.raises(tg.TidegateError, match="the group is a name"):
        tg.WatermarkStrategy.monotonous(timestamp=0).with_watermark_alignment("", "1s")  # type: ignore[arg-type]
    env = environment(parallelism=2)
    env.restart_strategy("none")
    times = tg.WatermarkStrategy.monotonous(timestamp=lambda row: row[1]).with_watermark_alignment("g", "1s")
    rows = env.from_source(Numbered(0, 1, 3), uid="s", returns=ROW, parallelism=1).rebalance()
    rows.assign_timestamps_and_watermarks(times).sink_to(LedgerSink("x"), uid="x")
    result = run_in_process(env, seed=seed)
    assert "call assign_timestamps_and_watermarks right after the source" in str(result.error)
