"""The comparison with peers: its work, its checks and its sums; Tidegate's own jobs of it in one process. Slow: the peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.testing import in_process

KEYS = 50


@pytest.fixture
def peers(benchmarks: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    compare = benchmarks("peers/compare")
    monkeypatch.setattr(compare.work, "KEYS", KEYS)
    return compare


@pytest.mark.parametrize("way", ["columns", "record", "string"])
def test_tidegates_jobs_emit_every_sum(benchmarks: Any, peers: Any, tmp_path: Path, way: str) -> None:
    jobs = benchmarks("peers/tidegate_job")
    answers = tmp_path / "answers"
    answers.mkdir()
    with in_process():
        jobs.job(peers.work.Task(1000, answers, tmp_path / "state", []), way, None).execute(quiet=True)

    peers.work.check(answers, 1000)


@pytest.mark.parametrize(
    ("spoilt", "fault"),
    [
        (lambda sums: sums[:-1], "key 49: the last sum is 5 instead of 6"),
        (lambda sums: [*sums, (0, 99)], "key 0: the last sum is 99 instead of 7"),
        (lambda sums: [*sums, (50, 1)], "51 keys instead of 50"),
        (lambda sums: [*sums, sums[0]], "key 0: 3 sums instead of 2 distinct ones"),
    ],
)
def test_a_wrong_answer_is_found(peers: Any, tmp_path: Path, spoilt: Any, fault: str) -> None:
    totals: dict[int, int] = {}
    sums = []
    for index in range(2 * KEYS):
        key = peers.work.key_of(index)
        totals[key] = totals.get(key, 0) + peers.work.value_of(index)
        sums.append((key, totals[key]))
    peers.work.write(tmp_path, spoilt(sums), "a")

    with pytest.raises(peers.work.WrongAnswer, match=fault):
        peers.work.check(tmp_path, 2 * KEYS)


def test_where_a_peer_emits_for_each_batch_only_the_newest_sum_counts(peers: Any, tmp_path: Path) -> None:
    newest = {}
    for index in range(2 * KEYS):
        newest[peers.work.key_of(index)] = newest.get(peers.work.key_of(index), 0) + peers.work.value_of(index)
    peers.work.write(tmp_path, newest.items(), "a")

    peers.work.check(tmp_path, 2 * KEYS, each_record=False)
    with pytest.raises(peers.work.WrongAnswer):
        peers.work.check(tmp_path, 2 * KEYS)


def test_start_up_is_taken_out_by_two_sizes(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        peers, "run", lambda candidate, records, options: {"records": records, "seconds": 7 + records / 100}
    )

    assert peers.speed(peers.CANDIDATES["bytewax"], 1.0) == pytest.approx(100)
    assert peers.round_to_batch(peers.CANDIDATES["tws"], 70_000) == 60_000, "whole batches"


def test_a_peer_that_fails_is_left_out_and_said(peers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def speed(candidate: Any, scale: float) -> float:
        if candidate.package == "bytewax":
            raise peers.environments.CannotBeHad("there is no wheel")
        return 300.0 if candidate.package == "tidegate" else 100.0

    monkeypatch.setattr(peers, "speed", speed)
    result = peers.summary(*peers.measure(["record", "flink_sql", "bytewax"], 2, 1.0))

    assert result["record_vs_flink_sql"] == 3
    assert result["missing"] == {"bytewax": "there is no wheel", **peers.NOT_COMPARED}
    assert "record_vs_bytewax" not in result
    assert "not measured   there is no wheel" in peers.table(result)


def test_what_flink_prints_is_read(benchmarks: Any) -> None:
    printed = benchmarks("peers/printed")

    assert printed.rows_of("1> +I[1, 20]\n2> -U[1, 20]\n+U[1, 30]\n(4,50)\nSLF4J: no rows\n") == [
        ("+I", ["1", "20"]),
        ("-U", ["1", "20"]),
        ("+U", ["1", "30"]),
        ("", ["4", "50"]),
    ]


def environment_of(compare: Any, package: str) -> None:
    try:
        compare.environments.python_of(package)
    except compare.environments.CannotBeHad as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", ["flink_sql", "pyflink_process", "pyflink_thread", "bytewax", "pathway", "spark", "tws"]
)
def test_every_sum_of_a_peer_is_right(benchmarks: Any, name: str) -> None:
    compare = benchmarks("peers/compare")
    candidate = compare.CANDIDATES[name]
    if candidate.package in compare.environments.RELEASES:
        environment_of(compare, candidate.package)
    compare.check(candidate)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("spread", ["uniform", "zipf"])
def test_flink_keeps_the_large_state_that_we_keep(benchmarks: Any, tmp_path: Path, spread: str) -> None:
    large_state = benchmarks("large_state")
    environment_of(large_state.compare, "apache-flink")
    large_state.flinks(2_000, 8_000, spread, 64, tmp_path)
    large_state.check(tmp_path, 2_000, 8_000, spread)
