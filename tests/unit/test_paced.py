"""The source of the fault tests keeps to its pace however late it is asked: on a busy machine a job must not reach its end
before the test has done with it what it wants to do."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from connector_kit import HandClock, reader_context

import tidegate as tg
from faults.jobs.paced import SURPLUS, Hold, Paced
from tidegate.connectors.contract import SourceReader
from tidegate.ids import CheckpointId

SPLITS, READINGS, AHEAD = 16, 140, 30


def opened(clock: HandClock, hold: Hold | None = None, subtasks: int = 2) -> SourceReader:
    source = Paced(
        tg.DataGenerator(lambda i: i, count=SPLITS * READINGS, rate=20_000.0, type=int, splits=SPLITS), AHEAD, hold
    )
    reader = source.reader(reader_context(clock, parallelism=subtasks))
    reader.add_splits(source.discover_splits(subtasks)[::subtasks])
    return reader


def read_all_there_is(reader: SourceReader, clock: HandClock, late: random.Random) -> int:
    count = 0
    for _ in range(200):
        clock.sleep(late.choice([0.0, 0.001, 0.1, 5.0]))
        count += len(reader.poll(clock() + 0.01) or ())
    return count


@pytest.mark.parametrize("number", range(20))
def test_a_reader_that_was_away_for_long_does_not_make_up_for_it(number: int) -> None:
    clock, late = HandClock(), random.Random(number)
    reader = opened(clock)
    mine = len(reader.splits())

    read = 0
    for checkpoint in range(3):
        read += read_all_there_is(reader, clock, late)
        assert AHEAD * (checkpoint + 1) * mine <= read <= (AHEAD * (checkpoint + 1) + SURPLUS) * mine
        reader.notify_complete(CheckpointId(checkpoint))
    assert not any(split.finished for split in reader.splits())


def test_what_is_held_does_not_end_before_it_is_let_go_whatever_completes(tmp_path: Path) -> None:
    clock, late = HandClock(), random.Random(1)
    reader = opened(clock, Hold(60, str(tmp_path / "go")))
    mine = len(reader.splits())

    read = 0
    for checkpoint in range(10):
        read += read_all_there_is(reader, clock, late)
        reader.notify_complete(CheckpointId(checkpoint))
    assert 60 * mine <= read <= (60 + SURPLUS) * mine

    (tmp_path / "go").touch()
    read += read_all_there_is(reader, clock, late)
    assert read == READINGS * mine
    assert all(split.finished for split in reader.splits())
