"""Every query of Nexmark against DuckDB, in one process. Slow: Flink's answers."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.testing import in_process

EVENTS = 1_000


@pytest.fixture
def nexmark(benchmarks: Any) -> Any:
    return benchmarks("nexmark")


def test_every_query_is_equal_to_duckdbs(nexmark: Any) -> None:
    wrong = []
    with in_process():
        for name in nexmark.jobs.JOBS:
            if not nexmark.equal(name, nexmark.QUERIES[name], None, EVENTS):
                wrong.append(name)

    assert wrong == []


def test_the_queries_have_something_to_answer(nexmark: Any) -> None:
    for name, query in nexmark.QUERIES.items():
        assert nexmark.answers.by_duckdb(query, 5 * EVENTS), name


def test_the_benchmark_says_all_and_times_nothing_without_rounds(nexmark: Any, said: Any) -> None:
    with in_process():
        nexmark.main(["--queries", "q1,q18", "--checked-events", "500", "--rounds", "0", "--no-flink"], spark="none")

    result = said()
    assert result["all_equal"] is True
    assert result["equal"] == {"q1": True, "q18": True}


def test_events_are_out_of_order_but_not_by_more_than_is_said(nexmark: Any) -> None:
    events = nexmark.events
    times = events.bids(nexmark.events.np.arange(2000)).column("ts").to_numpy()
    behind = events.np.maximum.accumulate(times) - times

    assert 0 < behind.max() <= events.DISORDER_MS
    assert (behind > 0).mean() > 0.5


def test_a_stream_of_changes_leaves_its_newest_rows(nexmark: Any) -> None:
    changes = [("+I", ["1", "2.50"]), ("-U", ["1", "2.5"]), ("+U", ["1", "3"]), ("+I", ["2", "x"]), ("-D", ["2", "x"])]

    assert dict(nexmark.what_is_left(changes)) == {(1, 3): 1}


def test_a_row_takes_the_place_of_that_with_its_key(nexmark: Any) -> None:
    changes = [("+I", ["1", "2"]), ("+U", ["1", "3"]), ("+I", ["2", "4"]), ("-D", ["2", "4"]), ("-U", ["1", "2"])]

    assert dict(nexmark.what_is_left(changes, key=(0,))) == {(1, 3): 1}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_flink_answers_as_duckdb_does(nexmark: Any) -> None:
    try:
        nexmark.compare.environments.python_of("apache-flink")
    except nexmark.compare.environments.CannotBeHad as error:
        pytest.skip(str(error))
    equal = nexmark.flink_is_equal(list(nexmark.QUERIES), 5_000)

    assert [name for name, is_equal in equal.items() if not is_equal] == []
