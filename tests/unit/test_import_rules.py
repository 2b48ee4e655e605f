"""Who may import whom, and how long a module may be: rules of the layout, kept by reading the source.

The layers of the packages, and who of them asks whom, are contracts of import-linter (pyproject.toml, `make check`); here are a
test that it finds what is planted, and what it cannot say: which libraries, and what is loaded when.
"""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
LONGEST_MODULE = 460
SPARK = ("pyspark", "py4j")
STANDARD = frozenset(sys.stdlib_module_names) | {"typing_extensions"}


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module imports: `from tidegate.task import slot` is an import of tidegate.task.slot."""

    importer: str
    target: str
    line: int
    at_module_level: bool  #: False: in a function, so only when it is called
    at_runtime: bool  #: False: under TYPE_CHECKING

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def module_name(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path, source: Path = SOURCE) -> Iterator[Import]:
    importer = module_name(path, source)
    package = importer.split(".") if path.name == "__init__.py" else importer.split(".")[:-1]

    def visit(node: ast.AST, module_level: bool, runtime: bool) -> Iterator[Import]:
        match node:
            case ast.Import():
                for alias in node.names:
                    yield Import(importer, alias.name, node.lineno, module_level, runtime)
            case ast.ImportFrom():
                here = package[: len(package) - node.level + 1] if node.level else []
                start = ".".join([*here, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield Import(importer, f"{start}.{alias.name}", node.lineno, module_level, runtime)
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                for child in node.body:
                    yield from visit(child, module_level, False)
                for child in node.orelse:
                    yield from visit(child, module_level, runtime)
            case _:
                inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                for child in ast.iter_child_nodes(node):
                    yield from visit(child, module_level and not inside, runtime)

    yield from visit(ast.parse(path.read_text(encoding="utf-8"), str(path)), True, True)


def modules(source: Path = SOURCE) -> list[Path]:
    return sorted((source / "tidegate").rglob("*.py"))


@cache
def all_imports() -> list[Import]:
    return [found for path in modules() for found in imports_of(path)]


def broken_rules(imports: list[Import]) -> list[str]:
    broken = []
    for found in imports:
        importer, target = found.importer, found.target
        if within(importer, "tidegate.protocol"):
            ours = within(target, "tidegate.protocol", "tidegate.ids", "tidegate.errors")
            if not ours and target.split(".")[0] not in STANDARD:
                broken.append(f"{found}: protocol imports only ids, errors and the standard library")
        if found.at_runtime and within(target, *SPARK) and not within(found.importer, "tidegate.spark"):
            broken.append(f"{found}: only spark/ imports Spark")
    return broken


def loaded_by(package: str, imports: list[Import], names: set[str]) -> dict[str, list[str]]:
    """Every module that is loaded when the package's modules are, with the way to it. Functions are not called."""
    edges: dict[str, set[str]] = {}
    for found in imports:
        if found.at_module_level and found.at_runtime:
            module = found.target if found.target in names else found.target.rpartition(".")[0]
            edges.setdefault(found.importer, set()).add(module)
    ways = {name: [name] for name in names if within(name, package)}
    waiting = sorted(ways)
    while waiting:
        here = waiting.pop(0)
        for module in sorted(edges.get(here, ())):
            if module not in ways:
                ways[module] = [*ways[here], module]
                waiting.append(module)
    return ways


def test_every_import_keeps_the_rules() -> None:
    assert broken_rules(all_imports()) == []


@pytest.mark.parametrize("package", ["api", "functions", "graph", "connectors", "state"])
def test_what_users_import_loads_neither_spark_nor_the_runtime(package: str) -> None:
    ways = loaded_by(f"tidegate.{package}", all_imports(), {module_name(path, SOURCE) for path in modules()})
    forbidden = ("tidegate.task", "tidegate.coordinator", "tidegate.spark", *SPARK)

    assert [" -> ".join(way) for module, way in ways.items() if within(module, *forbidden)] == []


#: One in each contract and each way to write it: (the module that it is planted in, the import, what is said of it).
PLANTED = [
    ("graph/plan", "from tidegate.api.streams import DataStream", "tidegate.graph.plan -> tidegate.api.streams"),
    ("task/slot", "from tidegate.coordinator import attempt", "tidegate.task.slot -> tidegate.coordinator.attempt"),
    ("coordinator/job", "def f():\n    import tidegate.task.slot", "tidegate.coordinator.job -> tidegate.task.slot"),
    (
        "storage/log",
        "if TYPE_CHECKING:\n    from ..state.backend import Section",
        "tidegate.storage.log -> tidegate.state.backend",
    ),
    ("cli/main", "def f():\n    from tidegate.spark import session", "tidegate.cli.main -> tidegate.spark.session"),
    ("rest/server", "from tidegate.task import slot", "tidegate.rest.server -> tidegate.task.slot"),
    ("api/keys", "from tidegate.coordinator import job", "tidegate.api.keys -> tidegate.coordinator.job"),
]


def test_planted_cycles_and_forbidden_imports_are_found_by_import_linter(tmp_path: Path) -> None:
    shutil.copytree(SOURCE / "tidegate", tmp_path / "tidegate", ignore=shutil.ignore_patterns("__pycache__"))
    for module, text, _ in PLANTED:
        with (tmp_path / "tidegate" / f"{module}.py").open("a", encoding="utf-8") as file:
            file.write(f"\n\n{text}\n")
    (tmp_path / "tidegate" / "unplaced.py").touch()

    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as run; run()", "--no-cache"]
    done = subprocess.run(
        [*lint, "--config", str(SOURCE.parent / "pyproject.toml")], cwd=tmp_path, capture_output=True, text=True
    )

    said = " ".join(done.stdout.split())
    assert done.returncode != 0, done.stderr
    assert "0 kept, 3 broken" in said
    assert [way for _, _, way in PLANTED if way not in said] == [], done.stdout
    assert "unplaced" in said, "a new package must have its layer"


@pytest.mark.parametrize("path", modules(), ids=lambda path: module_name(path, SOURCE))
def test_a_module_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")

    assert len(text.splitlines()) <= LONGEST_MODULE, "split it: a new duty becomes a neighbour"
    if text.strip():  # the file that only makes a folder a package stays empty
        assert ast.get_docstring(ast.parse(text)), "a module opens with what it guarantees and where it runs"


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("protocol/alignment", "from tidegate.wire.frame import Frame"),
        ("protocol/alignment", "import numpy as np"),
        ("protocol/alignment", "from .. import batch"),
        ("api/streams", "def f():\n    from pyspark.sql import SparkSession"),
        ("launch", "import pyspark"),
        ("launch", "if TYPE_CHECKING:\n    pass\nelse:\n    import pyspark"),
        ("task/main", "from pyspark import TaskContext"),
        ("task/main", "def f():\n    from pyspark import TaskContext"),
        ("task/slot", "def f():\n    import py4j.protocol"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, module: str, text: str) -> None:
    assert len(broken_rules(planted(tmp_path, module, text))) >= 1


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "protocol/alignment",
            "import enum\nfrom typing_extensions import assert_never\nfrom tidegate.ids import SlotId",
        ),
        ("protocol/alignment", "from .restarts import NoRestart\nfrom tidegate import errors"),
        ("spark/session", "from pyspark.sql import SparkSession"),
        ("api/streams", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
    ],
)
def test_a_permitted_import_is_left_alone(tmp_path: Path, module: str, text: str) -> None:
    assert broken_rules(planted(tmp_path, module, text)) == []


def test_a_way_to_spark_over_a_neighbour_is_found(tmp_path: Path) -> None:
    found = [
        *planted(tmp_path, "api/streams", "from tidegate.helper import help"),
        *planted(tmp_path, "helper", "from tidegate.task.slot import Slot"),
        *planted(tmp_path, "task/slot", ""),
    ]
    ways = loaded_by("tidegate.api", found, {"tidegate.api.streams", "tidegate.helper", "tidegate.task.slot"})

    assert ways["tidegate.task.slot"] == ["tidegate.api.streams", "tidegate.helper", "tidegate.task.slot"]


def planted(source: Path, module: str, text: str) -> list[Import]:
    path = source / "tidegate" / f"{module}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return list(imports_of(path, source))
