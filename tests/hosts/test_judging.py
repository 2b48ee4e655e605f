"""What is lost, doubled or counted wrongly does not escape whoever judges a cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from faults.jobs.tally import BUCKETS, SOURCES
from faults.kit import assert_each_once
from hosts.outsides import Rows

READINGS = 25


def right() -> Rows:
    """What the job makes of so many readings of each source."""
    of_bucket: Counter[int] = Counter()
    rows = []
    for number in range(READINGS):
        for source in range(SOURCES):
            bucket = number % BUCKETS
            of_bucket[bucket] += 1
            rows.append([source, number, number + 1, bucket, of_bucket[bucket], 1])
    return rows


def lose(rows: Rows) -> None:
    del rows[100]


def double(rows: Rows) -> None:
    rows.append(rows[100])


def forget_the_state_of_a_source(rows: Rows) -> None:
    rows[100][2] = 1


def forget_the_state_of_a_bucket(rows: Rows) -> None:
    rows[100][4] -= 1


def count_a_reading_twice(rows: Rows) -> None:
    rows[100][5] = 2


def test_what_is_right_is_right() -> None:
    assert_each_once(right(), READINGS)


@pytest.mark.parametrize(
    "mistake",
    [lose, double, forget_the_state_of_a_source, forget_the_state_of_a_bucket, count_a_reading_twice],
    ids=lambda mistake: mistake.__name__,
)
def test_what_is_wrong_is_found(mistake: Callable[[Rows], None]) -> None:
    rows = right()
    mistake(rows)

    with pytest.raises(AssertionError):
        assert_each_once(rows, READINGS)
