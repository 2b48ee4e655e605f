"""`tidegate run --master` on a cluster whose Python has no Tidegate: the command ships what is needed, or says what lacks."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from faults.cluster import StandaloneCluster, standalone_cluster
from operating.bare_python import bare_python
from operating.shipping import assert_shipped, program_in, run, run_shipped

pytestmark = pytest.mark.faults

CORES = 2  #: fewer than there are slots
EIGHT_LAYERS = """
import json
import sys

import tidegate as tg

env = tg.StreamEnvironment("deep", parallelism=2)
env.checkpointing(every="1s", storage=sys.argv[1])
numbers = env.from_sequence(1, 1000, uid="numbers")
for _ in range(7):
    numbers = numbers.rebalance().map(lambda n: n + 1, returns=int)
numbers.collect(uid="rows")
print("rows:", json.dumps(env.execute().results("rows")))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), CORES) as started:
        yield started


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return program_in(tmp_path)


def test_tidegate_and_the_programs_modules_are_shipped(cluster: StandaloneCluster, program: Path) -> None:
    assert_shipped(run_shipped(program, cluster.master, cluster.settings), "worker-")


def test_what_the_executors_python_lacks_is_said_and_ends_the_job(program: Path) -> None:
    """On this machine, to be quick: there the workers find Tidegate by PYTHONPATH."""
    folder = program.parents[1]
    python = bare_python(folder / "poor", without=frozenset({"msgspec", "xxhash"}))
    paths = [str(Path(tidegate.__file__).parents[1]), str(folder / "elsewhere")]

    ran = run(program, "--python", str(python), environment={"PYTHONPATH": os.pathsep.join(paths)})

    assert ran.returncode == 1
    assert "RESTARTING" not in ran.stderr, ran.stderr
    assert (
        "the executors' Python has no modules 'msgspec', 'xxhash', which Tidegate needs there. Ship an environment"
        in ran.stderr
    )


@pytest.mark.parametrize("master", ["local[2]", pytest.param("standalone", marks=pytest.mark.slow)])
def test_sixteen_slots_share_two_cores(tmp_path: Path, request: pytest.FixtureRequest, master: str) -> None:
    options = ["--master", master]
    if master == "standalone":
        started: StandaloneCluster = request.getfixturevalue("cluster")
        options = ["--master", started.master, *(f"-D{key}={value}" for key, value in started.settings.items())]
    program = tmp_path / "deep.py"
    program.write_text(EIGHT_LAYERS)

    ran = run(program, *options)

    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("rows:")]
    assert sorted(json.loads(line.removeprefix("rows:"))) == list(range(8, 1008))
