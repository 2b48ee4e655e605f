"""Executors of a real standalone cluster that are told to go, by SIGTERM and by Spark's own decommissioning. Real Spark."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from faults.cluster import StandaloneCluster, standalone_cluster
from faults.jobs.tally import SLOTS, Settings
from faults.kit import Driver, assert_exact, await_that, driver, is_running, let_go

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

STANDS_STILL_S = 2.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """The job fits on either of its two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), 2 * SLOTS) as started:
        yield started


@pytest.fixture
def settings(cluster: StandaloneCluster, tmp_path: Path) -> Settings:
    cluster.await_idle()
    return Settings(
        name="told-to-go", folder=str(tmp_path), master=cluster.master, spark_conf=cluster.settings, every="5s", held=60
    )


def test_the_job_moves_before_its_executors_go_and_stands_still_for_a_moment(
    cluster: StandaloneCluster, settings: Settings
) -> None:
    with driver(settings) as running:
        running.await_running()
        for attempt in (2, 3):
            gone = executor_of(running, cluster)
            gone.send_signal(signal.SIGTERM)
            running.await_attempt(attempt)
            await_that("it has gone by itself", lambda pid=gone.pid: not is_running(pid))
            await_that("both workers have an executor again", lambda: len(cluster.executors()) == 2)
        let_go(settings)
        assert running.await_end() == "FINISHED"

    assert_exact(settings)
    assert [line for line in running.lines if "failed" in line] == [], "no failure, no restart strategy"
    moves = [line["detail"] for line in running.lines if line.get("status") == "RESTARTING"]
    assert len(moves) == 2
    assert all(re.fullmatch(r"moved: executor is leaving: \d+", move) for move in moves), moves
    (gaps,) = [line["gaps"] for line in running.lines if "gaps" in line]
    stood_still = [float(re.search(r"([\d.]+) s$", gap)[1]) for gap in gaps]  # type: ignore[index]
    print(f"stood still for {stood_still} s", file=sys.stderr)
    assert len(stood_still) == 2


def executor_of(running: Driver, cluster: StandaloneCluster) -> psutil.Process:
    """One that runs slots of the job."""
    pids = set(running.workers())

    def found() -> psutil.Process | None:
        return next((e for e in cluster.executors() if pids & {c.pid for c in e.children(recursive=True)}), None)

    executor: psutil.Process = await_that("an executor runs slots", found)
    return executor
