"""Executors and drivers of a real standalone cluster with exactly the slots needed: killed, and frozen. Real Spark."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from faults.cluster import StandaloneCluster, standalone_cluster
from faults.jobs.tally import SLOTS, Settings
from faults.kit import assert_exact, await_that, driver, is_running, let_go

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), SLOTS) as started:
        yield started


@pytest.fixture
def settings(cluster: StandaloneCluster, tmp_path: Path) -> Settings:
    cluster.await_idle()
    return Settings(
        name="on-a-cluster",
        folder=str(tmp_path),
        master=cluster.master,
        spark_conf=cluster.settings,
        heartbeat_s=4.0,
        held=60,
    )


def test_a_frozen_worker_and_then_a_killed_executor_are_replaced_and_nothing_changes(
    cluster: StandaloneCluster, settings: Settings, seed: int
) -> None:
    moments = random.Random(seed)

    with driver(settings) as running:
        stopped = psutil.Process(running.await_running()[moments.choice(["0.1", "1.1", "2.1"])])
        running.await_checkpoints(moments.randrange(1, 3))
        stopped.suspend()
        running.await_attempt(2)
        running.await_checkpoints(1)
        if is_running(stopped.pid):
            stopped.resume()
        await_that("the woken worker ended", lambda: not is_running(stopped.pid), patience_s=10)

        moments.choice(cluster.executors()).kill()
        running.await_attempt(3)
        let_go(settings)
        assert running.await_end() == "FINISHED"
        print("recovered in", running.recoveries())

    assert_exact(settings)
    frozen, killed, *_ = [line["error"] for line in running.lines if "failed" in line]
    assert "silent for 4 s" in frozen
    assert "silent" not in killed


def test_a_frozen_executor_is_replaced_and_ends_without_effect_when_it_wakes_up(
    cluster: StandaloneCluster, settings: Settings
) -> None:
    with driver(settings) as running:
        running.await_running()
        running.await_checkpoints(2)
        frozen = cluster.executors()[0]
        its_workers = frozen.children(recursive=True)
        for process in [frozen, *its_workers]:  # as if the machine stood still
            process.suspend()

        running.await_line(
            "the next attempt runs", lambda line: line.get("status") == "RUNNING" and line["attempt"] > 1
        )
        running.await_checkpoints(2)
        for process in [*its_workers, frozen]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        let_go(settings)
        assert running.await_end() == "FINISHED"
        print("recovered in", running.recoveries())
        for process in [*its_workers, frozen]:
            await_that("what woke up has ended", lambda pid=process.pid: not is_running(pid), patience_s=20)

    assert any("replacing it" in line for line in running.noise)
    assert_exact(settings)


def test_a_driver_killed_at_a_random_moment_is_followed_by_another_and_nothing_changes(
    cluster: StandaloneCluster, settings: Settings, seed: int
) -> None:
    moments = random.Random(seed)

    with driver(settings) as old:
        old.await_running()
        old.await_checkpoints(moments.randrange(1, 5))
        old.send_signal(signal.SIGKILL)
        assert old.await_death() == -signal.SIGKILL
        let_go(settings)
        with driver(replace(settings, resume="latest")) as new:
            assert new.await_end() == "FINISHED"

    assert_exact(settings)
