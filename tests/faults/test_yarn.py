"""A job on a real YARN: a node is lost with its executors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fetch
from faults.jobs.tally import Settings
from faults.kit import Driver, assert_exact, driver, let_go
from faults.yarn import APPLICATION_MASTER, EXECUTOR, Node, YarnCluster, yarn_cluster
from services import had

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def jars() -> list[Path]:
    return had("YARN", fetch.NotFetched, lambda: [fetch.folder_of(name) for name in ("hadoop", "bouncycastle")])


@pytest.fixture(scope="module")
def cluster(jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """As patient as YARN is: a node that says nothing is taken for lost after ten minutes."""
    with yarn_cluster(jars, tmp_path_factory.mktemp("yarn")) as started:
        yield started


def settings(cluster: YarnCluster, folder: Path, name: str) -> Settings:
    cluster.make_ready()
    return Settings(
        name=name,
        folder=str(folder),
        master="yarn",
        spark_conf=cluster.settings,
        environment=cluster.environment,
        held=60,
    )


def test_a_node_is_lost_and_the_job_continues_on_the_other_before_yarn_has_noticed(
    cluster: YarnCluster, tmp_path: Path
) -> None:
    job = settings(cluster, tmp_path, "loses-a-node")
    with driver(job) as running:
        running.await_running()
        running.await_checkpoints(2)
        lost = node_with_executors_alone(cluster)
        lost.kill()
        running.await_attempt(2)
        running.await_checkpoints(1)
        assert cluster.states()[lost.address] == "RUNNING", "YARN has not noticed"
        let_go(job)
        assert running.await_end() == "FINISHED"

    assert_exact(job)
    told(running)


def node_with_executors_alone(cluster: YarnCluster) -> Node:
    return next(node for node in cluster.nodes if node.runs(EXECUTOR) and not node.runs(APPLICATION_MASTER))


def told(running: Driver) -> None:
    """How long it took: for whoever reads the output, never for an assertion."""
    gaps = [gap for line in running.lines for gap in line.get("gaps", [])]
    print(f"from failure to RUNNING: {running.recoveries()} s; moves: {gaps}", file=sys.stderr)
