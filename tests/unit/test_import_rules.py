"""Who may import whom, and how long a module may be: rules of the layout, kept by reading the source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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


def all_imports(source: Path = SOURCE) -> list[Import]:
    return [found for path in modules(source) for found in imports_of(path, source)]


def broken_rules(imports: list[Import]) -> list[str]:
    broken = []
    for found in imports:
        importer, target = found.importer, found.target
        if within(importer, "tidegate.protocol"):
            ours = within(target, "tidegate.protocol", "tidegate.ids", "tidegate.errors")
            if not ours and target.split(".")[0] not in STANDARD:
                broken.append(f"{found}: protocol imports only ids and errors")
        if within(importer, "tidegate.task") and within(target, "tidegate.coordinator"):
            broken.append(f"{found}: a task never imports the coordinator")
        if within(importer, "tidegate.coordinator") and within(target, "tidegate.task"):
            broken.append(f"{found}: the coordinator never imports a task")
        if within(importer, "tidegate.rest", "tidegate.cli") and within(target, "tidegate.task", "tidegate.spark"):
            broken.append(f"{found}: rest and cli talk to the coordinator alone")
        if (
            found.at_runtime
            and within(importer, "tidegate.api")
            and within(target, "tidegate.task", "tidegate.coordinator")
        ):
            broken.append(f"{found}: api imports neither task nor coordinator; launch puts a job together")
        if found.at_runtime and within(target, *SPARK) and not may_use_spark(found):
            broken.append(f"{found}: only spark/, and task/main.py in its functions, import Spark")
    return broken


def may_use_spark(found: Import) -> bool:
    if within(found.importer, "tidegate.spark"):
        return True
    return found.importer == "tidegate.task.main" and not found.at_module_level


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


@pytest.mark.parametrize("package", ["tidegate.api", "tidegate.graph", "tidegate.connectors", "tidegate.state"])
def test_what_users_import_loads_neither_spark_nor_the_runtime(package: str) -> None:
    ways = loaded_by(package, all_imports(), {module_name(path, SOURCE) for path in modules()})
    forbidden = ("tidegate.task", "tidegate.coordinator", "tidegate.spark", *SPARK)

    assert [" -> ".join(way) for module, way in ways.items() if within(module, *forbidden)] == []


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
        ("task/slot", "from tidegate.coordinator import attempt"),
        ("task/slot", "if TYPE_CHECKING:\n    from tidegate.coordinator.attempt import Attempt"),
        ("coordinator/job", "from ..task.ports import CrashPoints"),
        ("coordinator/job", "def f():\n    import tidegate.task.slot"),
        ("api/streams", "def f():\n    from tidegate.task.slot import Slot"),
        ("api/streams", "from tidegate import coordinator"),
        ("api/streams", "def f():\n    from pyspark.sql import SparkSession"),
        ("launch", "import pyspark"),
        ("launch", "if TYPE_CHECKING:\n    pass\nelse:\n    import pyspark"),
        ("task/main", "from pyspark import TaskContext"),
        ("task/slot", "def f():\n    import py4j.protocol"),
        ("cli/main", "def f():\n    from tidegate.spark import session"),
        ("rest/server", "from tidegate.task import slot"),
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
        ("task/main", "def f():\n    from pyspark import TaskContext"),
        ("spark/session", "from pyspark.sql import SparkSession"),
        ("api/streams", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
        ("api/streams", "def f():\n    from tidegate.launch import launch"),
        ("cli/main", "from tidegate.coordinator.observing import JobView"),
        ("launch", "from tidegate.coordinator.job import JobRun\nfrom tidegate.task.slot import SlotSettings"),
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
