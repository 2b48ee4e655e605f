"""A program in several files, for executors whose Python has no Tidegate: `tidegate run` ships what is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from operating.bare_python import bare_python, packed_environment

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


def program_in(folder: Path) -> Path:
    """With a module beside it; a package that it needs lies elsewhere."""
    (folder / "program").mkdir()
    (folder / "program" / "job.py").write_text(JOB)
    (folder / "program" / "beside.py").write_text("def double(n):\n    return 2 * n\n")
    package = folder / "elsewhere" / "prices"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from prices.table import PRICES\n")
    (package / "table.py").write_text("PRICES = {0: 'nought', 1: 'one', 2: 'two'}\n")
    return folder / "program" / "job.py"


def run(program: Path, *options: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--plain", "-D", "rest.port=0"]
    return subprocess.run(
        [*command, *options, str(program), f"file://{program.parent}/storage"],
        capture_output=True,
        text=True,
        timeout=170,
        cwd=program.parent,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", **(environment or {})},
    )


def run_shipped(
    program: Path, master: str, settings: Mapping[str, str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """On executors that have an archive and what is shipped."""
    folder = program.parents[1]
    python = bare_python(folder / "bare")
    lacks = subprocess.run([python, "-c", "import tidegate"], capture_output=True, text=True, cwd=folder, timeout=60)
    assert "No module named 'tidegate'" in lacks.stderr
    packed_environment(folder / "env.tar.gz", python)
    return run(
        program, "--master", master, *(f"-D{key}={value}" for key, value in settings.items()),
        "--py-files", str(folder / "elsewhere" / "prices"),
        "--archives", f"{folder}/env.tar.gz#env", "--python", "./env/bin/python",
        environment=environment,
    )  # fmt: skip


def assert_shipped(ran: subprocess.CompletedProcess[str], executors_folder: str) -> None:
    """Every module came from a zip in a working folder of an executor."""
    assert ran.returncode == 0, ran.stderr
    (line,) = [line for line in ran.stdout.splitlines() if line.startswith("rows:")]
    rows = [json.loads(row) for row in json.loads(line.removeprefix("rows:"))]
    words = {0: "nought", 1: "one", 2: "two"}
    assert sorted(row[:3] for row in rows) == [[key, nth, words[key]] for key in range(3) for nth in (1, 2, 3)]
    for *_, places, came_from in rows:
        assert came_from == "archive"
        for name, place in zip(("beside.py", "prices/__init__.py", "tidegate/__init__.py"), places, strict=True):
            archive, _, inside = place.partition(".zip/")
            assert inside == name
            assert f"{os.sep}{executors_folder}" in archive, f"{place} is not in an executor's working folder"
