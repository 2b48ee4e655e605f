"""A standalone cluster with Spark's own authentication and encryption, and a job that encrypts: a capture of the network has
none of the records' text. Without either it has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.cluster import HOST, StandaloneCluster, standalone_cluster
from packets import captured

pytestmark = [pytest.mark.faults, pytest.mark.slow]

CORES = 2
RECORDS = 2000
SHUFFLED, COLLECTED = b"shuffled-record-in-the-clear", b"collected-record-in-the-clear"
SPARKS_OWN = {
    "spark.authenticate": "true",
    "spark.authenticate.secret": "a-secret-of-this-test",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.io.encryption.enabled": "true",
}
JOB = """
import sys

import tidegate as tg


class Seen(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.set(self.count.get() + 1)
        if self.count.get() % 100 == 0:
            yield "-".join(["collected", *value.split("-")[1:]])


env = tg.StreamEnvironment("captured", parallelism=2)
env.checkpointing(every="200ms", storage=sys.argv[1])
words = ["shuffled", "record", "in", "the", "clear"]
texts = env.from_sequence(1, 2000, uid="numbers").map(lambda n: "-".join([*words, str(n % 10)]), uid="text", returns=str)
seen = texts.key_by(lambda text: text[-1], key_type=str).process(Seen(), uid="seen", returns=str)
seen.collect(uid="results")
print("results:", len(env.execute().results("results")))
"""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("sealed"), CORES, SPARKS_OWN) as started:
        yield started


@pytest.fixture(scope="module")
def open_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("open"), CORES) as started:
        yield started


def run(cluster: StandaloneCluster, folder: Path, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = folder / "job.py"
    program.write_text(JOB)
    options = {**cluster.settings, **settings, "rest.port": "0"}
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--plain", "--master", cluster.master]
    return subprocess.run(
        [*command, *(f"-D{key}={value}" for key, value in options.items()), str(program), f"file://{folder}/storage"],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=folder,
        env={**os.environ, "SPARK_LOCAL_IP": HOST},
    )


def test_without_encryption_the_records_are_on_the_network(open_cluster: StandaloneCluster, tmp_path: Path) -> None:
    with captured(SHUFFLED, COLLECTED) as capture:
        ran = run(open_cluster, tmp_path, {})

    assert ran.returncode == 0, ran.stderr
    assert "results: 20" in ran.stdout
    assert capture.found[SHUFFLED] > 0
    assert capture.found[COLLECTED] > 0


def test_with_sparks_encryption_and_ours_nothing_of_the_records_is_on_the_network(
    sealed: StandaloneCluster, tmp_path: Path
) -> None:
    with captured(SHUFFLED, COLLECTED) as capture:
        ran = run(sealed, tmp_path, {**SPARKS_OWN, "security.ssl.internal.enabled": "true"})

    assert ran.returncode == 0, ran.stderr
    assert "results: 20" in ran.stdout
    assert capture.lost == 0
    assert capture.size_bytes > RECORDS * len(SHUFFLED)
    assert capture.found == {}


def test_with_sparks_encryption_alone_the_records_are_on_the_network(sealed: StandaloneCluster, tmp_path: Path) -> None:
    """What decision 0009 says of Spark's pipelined shuffle. Should a newer Spark encrypt it, this says so."""
    with captured(SHUFFLED) as capture:
        ran = run(sealed, tmp_path, SPARKS_OWN)

    assert ran.returncode == 0, ran.stderr
    assert capture.found[SHUFFLED] > 0
