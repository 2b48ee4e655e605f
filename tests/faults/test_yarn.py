"""Jobs on a real YARN: nodes are lost, with executors and with the application master, or are told to go."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import fetch
from faults.jobs.tally import Settings
from faults.kit import Driver, assert_exact, await_that, driver, is_running, let_go
from faults.yarn import APPLICATION_MASTER, EXECUTOR, Node, YarnCluster, yarn_cluster
from operating.shipping import assert_shipped, program_in, run_shipped
from services import had

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(300)]

#: Two executors on each node, and no room for a third: the job, which needs two, fits on either node.
TWO_ON_EACH_NODE = {"spark.executor.instances": "4", "spark.executor.memoryOverhead": "2500m"}
QUICKLY_S = 4.0  #: after which a resource manager takes a node for lost, for tests that wait for it


@pytest.fixture(scope="module")
def jars() -> list[Path]:
    return had("YARN", fetch.NotFetched, lambda: [fetch.folder_of(name) for name in ("hadoop", "bouncycastle")])


@pytest.fixture(scope="module")
def cluster(jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """As patient as YARN is: a node that says nothing is taken for lost after ten minutes."""
    with yarn_cluster(jars, tmp_path_factory.mktemp("yarn")) as started:
        yield started


def settings(cluster: YarnCluster, folder: Path, name: str, spark: dict[str, str] | None = None) -> Settings:
    cluster.make_ready()
    return Settings(
        name=name,
        folder=str(folder),
        master="yarn",
        spark_conf={**cluster.settings, **(spark or {})},
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
    assert any("replacing it" in line for line in running.noise), "by whom were they, then?"
    told(running)


def test_the_node_of_the_application_master_is_lost(jars: list[Path], tmp_path: Path) -> None:
    """YARN then ends all containers of the application, and starts another master."""
    with yarn_cluster(jars, tmp_path / "yarn", QUICKLY_S) as cluster:
        job = settings(cluster, tmp_path / "job", "loses-its-master")
        with driver(job) as running:
            running.await_running()
            running.await_checkpoints(2)
            (lost,) = [node for node in cluster.nodes if node.runs(APPLICATION_MASTER)]
            lost.kill()
            await_that("YARN has noticed", lambda: cluster.states()[lost.address] == "LOST")
            await_that("a new master", lambda: any(node.runs(APPLICATION_MASTER) for node in cluster.nodes))
            running.await_attempt(2)
            running.await_checkpoints(2)
            let_go(job)
            assert running.await_end() == "FINISHED"

        assert_exact(job)
        told(running)


def test_the_job_moves_away_from_a_node_that_is_decommissioned_when_others_have_come_in_its_place(
    cluster: YarnCluster, tmp_path: Path
) -> None:
    """It has exactly the executors that it needs."""
    job = settings(cluster, tmp_path, "is-told-to-go")
    with driver(job) as running:
        running.await_running()
        running.await_checkpoints(2)
        leaves = node_with_executors_alone(cluster)
        while_it_runs_there(running, leaves)
        cluster.decommission(leaves, within_s=600)
        running.await_attempt(2)
        await_that("nothing runs there any more", lambda: not leaves.processes())
        running.await_checkpoints(1)
        assert sum(len(node.runs(EXECUTOR)) for node in cluster.nodes) == 2
        let_go(job)
        assert running.await_end() == "FINISHED"
    await_that("the node is free to go", lambda: cluster.states()[leaves.address] == "DECOMMISSIONED")

    assert_exact(job)
    moved_without_a_failure(running, 1)


def test_the_job_moves_away_from_executors_that_get_sigterm(cluster: YarnCluster, tmp_path: Path) -> None:
    job = settings(cluster, tmp_path, "gets-sigterm", TWO_ON_EACH_NODE)
    with driver(job) as running:
        running.await_running()
        gone = executor_of(running, cluster)
        gone.send_signal(signal.SIGTERM)
        running.await_attempt(2)
        await_that("it has gone by itself", lambda: not is_running(gone.pid))
        running.await_checkpoints(1)
        let_go(job)
        assert running.await_end() == "FINISHED"

    assert_exact(job)
    moved_without_a_failure(running, 1)


def test_a_job_whose_application_is_killed_fails_for_good(cluster: YarnCluster, tmp_path: Path) -> None:
    job = settings(cluster, tmp_path, "is-killed")
    with driver(job) as running:
        running.await_running()
        running.await_checkpoints(1)
        cluster.kill_applications()
        assert running.await_end() == "JobFailed"
        (error,) = [line["error"] for line in running.lines if "ended" in line]
        assert "Spark has ended under the job" in error


def test_tidegate_and_the_programs_modules_are_shipped(cluster: YarnCluster, tmp_path: Path) -> None:
    cluster.make_ready()
    ran = run_shipped(program_in(tmp_path), "yarn", cluster.settings, cluster.environment)
    assert_shipped(ran, "container_")


def node_with_executors_alone(cluster: YarnCluster) -> Node:
    return next(node for node in cluster.nodes if node.runs(EXECUTOR) and not node.runs(APPLICATION_MASTER))


def executor_of(running: Driver, cluster: YarnCluster) -> psutil.Process:
    """One that runs slots of the job."""
    slots = set(running.workers())
    executors = [executor for node in cluster.nodes for executor in node.runs(EXECUTOR)]
    return next(e for e in executors if slots & {child.pid for child in e.children(recursive=True)})


def while_it_runs_there(running: Driver, node: Node) -> None:
    there = {process.pid for process in node.processes()}
    assert there & set(running.workers()), "no slot of the job runs there"


def told(running: Driver) -> None:
    """How long it took: for whoever reads the output, never for an assertion."""
    gaps = [gap for line in running.lines for gap in line.get("gaps", [])]
    print(f"from failure to RUNNING: {running.recoveries()} s; moves: {gaps}", file=sys.stderr)


def moved_without_a_failure(running: Driver, times: int) -> None:
    told(running)
    assert [line for line in running.lines if "failed" in line] == []
    moves = [line["detail"] for line in running.lines if line.get("status") == "RESTARTING"]
    assert len(moves) == times
    assert all(re.fullmatch(r"moved: executors? (is|are) leaving: [\d, ]+", move) for move in moves), moves
