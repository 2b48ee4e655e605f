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
from faults.kit import Driver, assert_exact, await_that, driver, is_running, let_go

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


def test_frozen_workers_and_executors_and_killed_executors_and_drivers_change_nothing(
    cluster: StandaloneCluster, settings: Settings, seed: int
) -> None:
    """One life of a job: a driver of a cluster takes its time to start, and to have its executors."""
    moments = random.Random(seed)

    with driver(settings) as old:
        a_worker_freezes(old, moments)
        an_executor_is_killed(old, cluster, moments)
        old.await_checkpoints(moments.randrange(1, 5))
        old.send_signal(signal.SIGKILL)
        assert old.await_death() == -signal.SIGKILL
    with driver(replace(settings, resume="latest")) as new, an_executor_freezes_and_wakes_up(new, cluster):
        let_go(settings)
        assert new.await_end() == "FINISHED"

    assert any("replacing it" in line for line in new.noise)
    assert_exact(settings)
    frozen, killed, *_ = [line["error"] for line in old.lines if "failed" in line]
    assert "silent for 4 s" in frozen
    assert "silent" not in killed


def a_worker_freezes(running: Driver, moments: random.Random) -> None:
    stopped = psutil.Process(running.await_running()[moments.choice(["0.1", "1.1", "2.1"])])
    running.await_checkpoints(moments.randrange(1, 3))
    stopped.suspend()
    running.await_attempt(2)
    running.await_checkpoints(1)
    if is_running(stopped.pid):
        stopped.resume()
    await_that("the woken worker ended", lambda: not is_running(stopped.pid), patience_s=10)


def an_executor_is_killed(running: Driver, cluster: StandaloneCluster, moments: random.Random) -> None:
    moments.choice(cluster.executors()).kill()
    running.await_attempt(3)


@contextlib.contextmanager
def an_executor_freezes_and_wakes_up(running: Driver, cluster: StandaloneCluster) -> Iterator[None]:
    """It is replaced, and what woke up ends without effect. Inside, the job runs without it and goes to its end."""
    running.await_running()
    running.await_checkpoints(2)
    frozen = cluster.executors()[0]
    its_workers = frozen.children(recursive=True)
    for process in [frozen, *its_workers]:  # as if the machine stood still
        process.suspend()

    running.await_line("the next attempt runs", lambda line: line.get("status") == "RUNNING" and line["attempt"] > 1)
    running.await_checkpoints(2)
    for process in [*its_workers, frozen]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    yield
    for process in [*its_workers, frozen]:
        await_that("what woke up has ended", lambda pid=process.pid: not is_running(pid), patience_s=20)
