"""`tidegate run --master` on a cluster whose Python has no Tidegate: the command ships what is needed, or says what lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidegate
from faults.cluster import HOST, StandaloneCluster, standalone_cluster
from operating.bare_python import bare_python, packed_environment

pytestmark = pytest.mark.faults

CORES = 2  #: fewer than there are slots
JOB = """
import json
import os
import sys

import tidegate as tg
from beside import double
from prices import PRICES


class Where(tg.KeyedProcessFunction):
    count = tg.ValueState(int, default=0)

    def process_element(self, number, ctx):
        import beside, prices, tidegate

        self.count.set(self.count.get() + 1)
        places = [module.__file__ for module in (beside, prices, tidegate)]
        yield json.dumps([ctx.key, self.count.get(), PRICES[ctx.key], places, os.environ.get("CAME_FROM")])


env = tg.StreamEnvironment("shipped", parallelism=2)
env.checkpointing(every="1s", storage=sys.argv[1])
numbers = env.from_sequence(1, 9, uid="numbers").map(double, returns=int)
numbers.key_by(lambda n: n % 3, key_type=int).process(Where(), returns=str, uid="where").collect(uid="rows")
print("rows:", json.dumps(env.execute().results("rows")))
"""


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
    """A program with a module beside it; a package that it needs lies elsewhere."""
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "job.py").write_text(JOB)
    (tmp_path / "program" / "beside.py").write_text("def double(n):\n    return 2 * n\n")
    package = tmp_path / "elsewhere" / "prices"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from prices.table import PRICES\n")
    (package / "table.py").write_text("PRICES = {0: 'nought', 1: 'one', 2: 'two'}\n")
    return tmp_path / "program" / "job.py"


def run(program: Path, *options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--plain", "-D", "rest.port=0"]
    return subprocess.run(
        [*command, *options, str(program), f"file://{program.parent}/storage"],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=program.parent,
        env={**os.environ, "SPARK_LOCAL_IP": HOST, **(environment or {})},
    )


def test_tidegate_and_the_programs_modules_are_shipped(cluster: StandaloneCluster, program: Path) -> None:
    folder = program.parents[1]
    python = bare_python(folder / "bare")
    lacks = subprocess.run([python, "-c", "import tidegate"], capture_output=True, text=True, cwd=folder, timeout=60)
    assert "No module named 'tidegate'" in lacks.stderr
    packed_environment(folder / "env.tar.gz", python)

    ran = run(
        program, "--master", cluster.master, *(f"-D{key}={value}" for key, value in cluster.settings.items()),
        "--py-files", str(folder / "elsewhere" / "prices"),
        "--archives", f"{folder}/env.tar.gz#env", "--python", "./env/bin/python",
    )  # fmt: skip

    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("rows:")]
    rows = [json.loads(row) for row in json.loads(line.removeprefix("rows:"))]
    words = {0: "nought", 1: "one", 2: "two"}
    assert sorted(row[:3] for row in rows) == [[key, nth, words[key]] for key in range(3) for nth in (1, 2, 3)]
    for *_, places, came_from in rows:
        assert came_from == "archive"
        for name, place in zip(("beside.py", "prices/__init__.py", "tidegate/__init__.py"), places):
            archive, _, inside = place.partition(".zip/")
            assert inside == name
            assert f"{os.sep}worker-" in archive, f"{place} is not in an executor's working folder"


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
