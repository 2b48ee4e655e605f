from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from connector_kit import HandClock, reader_context
from pyspark import cloudpickle

from tidegate.connectors.contract import Split
from tidegate.connectors.generator import DataGenerator
from tidegate.errors import ConfigurationError, TypeDeclarationError


def opened(source, clock, splits=None):
    reader = source.reader(reader_context(clock))
    reader.add_splits(source.discover_splits(1) if splits is None else splits)
    return reader


def run_for(reader, clock, seconds, work_s=0.0):
    """Polls as a task does, with a deadline every 100 ms; returns (time, rows) of each batch."""
    end = clock.now + seconds
    batches = []
    while clock.now < end:
        rows = reader.poll(min(clock.now + 0.1, end))
        if rows is not None:
            batches.append((clock.now, rows))
        clock.now += work_s
    return batches


def test_every_record_comes_when_it_is_due_at_a_low_rate():
    clock = HandClock(now=0.0)
    reader = opened(DataGenerator(lambda index: index, rate=100, splits=4), clock)

    batches = run_for(reader, clock, 0.995)

    assert [row for _, rows in batches for row in rows] == list(range(100))
    for at, rows in batches:
        for index in rows:
            assert at == pytest.approx(index / 100, abs=1e-6)


@pytest.mark.parametrize("rate", [3, 997, 1000, 123_457])
def test_the_rate_is_exact_over_time_however_long_the_work_between_polls_takes(rate):
    clock = HandClock()
    reader = opened(DataGenerator(lambda indices: [indices], rate=rate, splits=8, type=int, vectorised=True), clock)

    batches = run_for(reader, clock, 100.0, work_s=0.0137)

    made = sum(rows.num_rows for _, rows in batches)
    # What is due at the very end may come with the next poll.
    assert rate * 100 - rate * 0.02 - 1 <= made <= rate * 100 + 8


def test_readers_of_the_splits_share_the_rate():
    source = DataGenerator(lambda index: index, rate=1000, splits=8)
    clocks = [HandClock(), HandClock()]
    made = []
    for part, clock in enumerate(clocks):
        reader = opened(source, clock, source.discover_splits(2)[part::2])
        made.append(sum(len(rows) for _, rows in run_for(reader, clock, 10.0)))

    assert made == [pytest.approx(5000, abs=4)] * 2


def test_a_pause_is_not_made_up_for_in_a_burst():
    clock = HandClock()
    reader = opened(DataGenerator(lambda index: index, rate=1000, splits=4), clock)
    run_for(reader, clock, 1.0)

    clock.now += 60.0
    made = sum(len(rows) for _, rows in run_for(reader, clock, 1.0))

    assert 1000 <= made <= 1000 + 100 + 4


def test_poll_returns_none_at_the_deadline_when_nothing_is_due():
    clock = HandClock(now=0.0)
    reader = opened(DataGenerator(lambda index: index, rate=0.5, splits=1), clock)

    assert reader.poll(0.1) == [0]
    assert reader.poll(0.2) is None
    assert clock.now == pytest.approx(0.2)
    assert clock.slept == pytest.approx([0.2])


def test_a_high_rate_comes_in_batches_of_a_millisecond_not_record_by_record():
    clock = HandClock()
    reader = opened(DataGenerator(lambda index: index, rate=100_000, splits=4), clock)

    batches = run_for(reader, clock, 0.1)

    assert 90 <= len(batches) <= 110


def test_a_restored_reader_keeps_the_rate_from_its_own_start():
    source = DataGenerator(lambda index: index, rate=100, splits=2)
    clock = HandClock(now=5.0)
    reader = opened(source, clock, [Split("0-of-2", 1_000_000), Split("1-of-2", 1_000_001)])

    batches = run_for(reader, clock, 0.995)

    assert [row for _, rows in batches for row in rows] == list(range(1_000_000, 1_000_100))


def test_without_a_rate_it_never_sleeps():
    clock = HandClock()
    reader = opened(DataGenerator(lambda index: index, splits=2), clock)

    assert [row for _ in range(3) for row in reader.poll(clock.now + 1)] == list(range(3 * 1024))
    assert clock.slept == []


def test_a_slow_function_stops_at_the_deadline_and_loses_nothing():
    clock = HandClock()

    def slow(index):
        clock.now += 0.01
        return index

    reader = opened(DataGenerator(slow, count=1000, splits=4), clock)
    start = clock.now
    rows = reader.poll(start + 0.1)

    assert clock.now - start < 0.3
    assert rows == list(range(len(rows)))
    again = opened(DataGenerator(slow, count=1000, splits=4), clock, reader.splits())
    assert again.poll(clock.now + 0.1)[0] == len(rows)


def test_it_ends_after_count_records():
    clock = HandClock()
    source = DataGenerator(lambda index: index, count=3, splits=8)
    reader = opened(source, clock)

    assert source.bounded
    assert len(source.discover_splits(1)) == 3
    assert reader.poll(clock.now + 1) == [0, 1, 2]
    assert all(split.finished for split in reader.splits())
    assert reader.poll(clock.now + 1) is None
    assert not DataGenerator(lambda index: index).bounded
    assert DataGenerator(lambda index: index, count=0).discover_splits(1) == []


SCHEMA = pa.schema([("id", pa.int64()), ("half", pa.float32())])


@pytest.mark.parametrize(
    "function",
    [
        lambda indices: (indices, indices / 2),
        lambda indices: [pa.array(indices), (indices / 2).tolist()],
        lambda indices: pa.RecordBatch.from_arrays([pa.array(indices / 2), pa.array(indices)], ["half", "id"]),
    ],
)
def test_a_vectorised_function_may_return_columns_or_a_batch(function):
    clock = HandClock()
    source = cloudpickle.loads(cloudpickle.dumps(DataGenerator(function, count=10, type=SCHEMA, vectorised=True)))

    batch = opened(source, clock).poll(clock.now + 1)

    assert batch.schema == SCHEMA
    assert batch.to_pydict() == {"id": list(range(10)), "half": [index / 2 for index in range(10)]}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda indices: (indices[:-1], indices[:-1]), "returned 9 rows for 10 indices"),
        (lambda indices: (indices,), "one array for each of the columns id, half"),
        (lambda indices: (indices, np.array(["x"] * len(indices))), "does not fit its type"),
        (lambda indices: ([index + 0.5 for index in indices.tolist()], indices / 2), "does not fit its type"),
        (lambda indices: ((indices + 0.5).astype(object), indices / 2), "does not fit its type"),
    ],
)
def test_a_vectorised_function_that_returns_something_else_is_told_so(function, message):
    clock = HandClock()
    with pytest.raises(TypeDeclarationError, match=message):
        opened(DataGenerator(function, count=10, type=SCHEMA, vectorised=True), clock).poll(clock.now + 1)


@pytest.mark.parametrize(
    "options", [{"count": -1}, {"rate": 0}, {"rate": float("inf")}, {"splits": 0}, {"vectorised": True}]
)
def test_impossible_settings_are_refused(options):
    with pytest.raises(ConfigurationError):
        DataGenerator(lambda index: index, **options)


def test_a_checkpoint_with_another_number_of_splits_is_refused():
    with pytest.raises(ConfigurationError, match="splits=4"):
        opened(DataGenerator(lambda index: index, splits=4), HandClock(), [Split("0-of-8")])


def test_a_position_of_another_split_is_refused():
    with pytest.raises(ConfigurationError, match="not an index of that split"):
        opened(DataGenerator(lambda index: index, splits=4), HandClock(), [Split("0-of-4", 5)])
