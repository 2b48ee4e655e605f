"""What is shipped to the executors of a cluster, and what Spark's messages about their Python mean."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from pathlib import Path

import pytest

import tidegate
from tidegate.errors import ConfigurationError
from tidegate.python_paths import path_entry, prepend_for_children
from tidegate.spark import shipping
from tidegate.spark.executor_python import explain, no_module
from tidegate.spark.session import is_local, submitted_settings
from tidegate.spark.shipping import PYTHON_PATH, Shipment, pack


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names_in(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as packed:
        return set(packed.namelist())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program with a module, a package, and things that are no modules beside it."""
    put(tmp_path / "job.py")
    put(tmp_path / "beside.py")
    put(tmp_path / "lib" / "__init__.py")
    put(tmp_path / "lib" / "deep" / "more.py")
    put(tmp_path / "lib" / "table.csv", "1,2")
    put(tmp_path / "lib" / "__pycache__" / "more.pyc")
    put(tmp_path / "lib" / ".hidden" / "secret")
    put(tmp_path / "data" / "rows.csv")
    put(tmp_path / "not-a-module.py")
    return tmp_path


def shipped(folder: Path, *files: Path) -> list[set[str]]:
    return [names_in(path) for path in pack(str(folder), [str(file) for file in files], []).modules]


def test_tidegate_and_the_modules_beside_the_program_are_packed(folder: Path) -> None:
    ours, programs, *others = shipped(folder)
    assert {"tidegate/__init__.py", "tidegate/spark/daemon.py", "tidegate/task/main.py"} <= ours
    assert not any("__pycache__" in name for name in ours)
    beside = {
        name for name in programs if name.split("/")[0] in ("job.py", "beside.py", "lib", "data", "not-a-module.py")
    }
    assert beside == {"job.py", "beside.py", "lib/__init__.py", "lib/deep/more.py", "lib/table.csv"}
    assert others == []


def test_modules_that_were_loaded_from_elsewhere_are_packed_and_installed_ones_are_not(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    put(elsewhere / "src" / "shipped_editable" / "__init__.py")
    put(elsewhere / "site-packages" / "shipped_installed.py")
    for place in ("src", "site-packages"):
        monkeypatch.syspath_prepend(elsewhere / place)
    for name in ("shipped_editable", "shipped_installed"):
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    programs = shipped(folder)[1]
    assert "shipped_editable/__init__.py" in programs
    tops = {name.split("/")[0].removesuffix(".py") for name in programs}
    assert tops.isdisjoint({"shipped_installed", "pytest", "numpy", "json", "tidegate", "pyspark", "py4j", "__main__"})


def test_named_files_may_be_modules_packages_folders_and_zips(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    more = tmp_path_factory.mktemp("more")
    package, module = put(more / "pkg" / "__init__.py").parent, put(more / "one.py")
    put(more / "modules" / "two.py")
    wheel = put(more / "parts-1.2-py3-none-any.whl")
    packed = pack(str(folder), [str(package), str(module), str(more / "modules"), str(wheel)], []).modules[2:]
    assert [names_in(path) for path in packed[:3]] == [{"pkg/__init__.py"}, {"one.py"}, {"two.py"}]
    assert packed[3] == wheel


def test_the_name_follows_the_content(folder: Path) -> None:
    first = pack(str(folder), [], []).modules
    assert [path.name for path in first] == [path.name for path in pack(str(folder), [], []).modules]
    put(folder / "beside.py", "changed = True")
    again = pack(str(folder), [], []).modules
    assert again[0].name == first[0].name
    assert again[1].name != first[1].name


@pytest.mark.parametrize("what", ["gone.py", "data.csv", "empty"])
def test_what_cannot_be_shipped_is_refused(folder: Path, tmp_path: Path, what: str) -> None:
    put(tmp_path / "data.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=f"python.files: .*{what}"):
        pack(str(folder), [str(tmp_path / what)], [])
    with pytest.raises(ConfigurationError, match=r"python.archives: there is no file"):
        pack(str(folder), [], [str(tmp_path / "gone.tar.gz#env")])


def test_too_much_is_refused_with_the_largest_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(path.stat().st_size for path in Path(tidegate.__file__).parent.rglob("*.py"))
    monkeypatch.setattr(shipping, "MAX_BYTES", 2 * size)
    put(folder / "lib" / "dump.bin", "x" * 3 * size)
    with pytest.raises(ConfigurationError, match=r"dump.bin is the largest file.*a folder of its own"):
        pack(str(folder), [], [])


def test_the_python_path_of_executors_has_the_names_and_then_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipment = Shipment((Path("/tmp/a/tidegate-1.zip"), Path("/tmp/a/modules-2.zip")))
    assert shipment.settings({}) == {PYTHON_PATH: "tidegate-1.zip:modules-2.zip"}
    assert shipment.settings({PYTHON_PATH: "/opt/x"}) == {PYTHON_PATH: "tidegate-1.zip:modules-2.zip:/opt/x"}
    archive = put(tmp_path / "env.tar.gz")
    monkeypatch.chdir(tmp_path)
    assert pack(str(tmp_path), [], ["env.tar.gz#env"]).archives == (f"{archive}#env",)
    assert pack(str(tmp_path), [], [str(archive)]).archives == (f"{archive}#env.tar.gz",)


def test_settings_that_were_submitted_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf 'spark.a=x y' --master yarn -c spark.b=k=v pyspark-shell")
    assert submitted_settings() == {"spark.a": "x y", "spark.b": "k=v"}


def test_a_local_cluster_is_a_cluster() -> None:
    assert [is_local(m) for m in ("local", "local[4]", "local[*]", "local-cluster[2,1,1024]", "yarn")] == [True] * 3 + [
        False
    ] * 2


def test_all_packages_that_the_executors_lack_are_named_with_the_ways_out() -> None:
    lacking = no_module("obstore", ["msgspec", "obstore", "xxhash"])
    assert explain(f"ModuleNotFoundError: {lacking}") == (
        "the executors' Python has no modules 'msgspec', 'obstore', 'xxhash', which Tidegate needs there. Ship an environment "
        "that has it (tidegate run --archives env.tar.gz#env --python ./env/bin/python), or install it where the executors "
        "run; docs/clusters.md tells both."
    )


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "org.apache.spark.api.python.PythonException: Traceback ...\nModuleNotFoundError: No module named 'msgspec'",
            "the executors' Python has no module 'msgspec', which Tidegate needs there. Ship an environment",
        ),
        (
            f"ModuleNotFoundError: {no_module('obstore', ['msgspec', 'obstore', 'xxhash'])}",
            "has no modules 'msgspec', 'obstore', 'xxhash', which Tidegate needs there. Ship an environment",
        ),
        ("ModuleNotFoundError: No module named 'mine.parts'", "has no module 'mine.parts'. Ship an environment"),
        (
            'java.io.IOException: Cannot run program "python9": error=2',
            "the executors have no Python 'python9'. Name one",
        ),
        (
            "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9",
            "another version of Python than the driver",
        ),
        (
            "Error from python worker:\n  python3: Error while finding module specification for 'tidegate.spark.daemon' "
            "(ModuleNotFoundError: No module named 'tidegate')\nPYTHONPATH was: x",
            "the executors' Python has no tidegate. `tidegate run` and sessions",
        ),
        (
            "ImportError: libarrow.so.1700: cannot open shared object file",
            "cannot load what the job needs: libarrow.so",
        ),
    ],
)
def test_what_the_executors_python_lacks_is_said_in_words(message: str, words: str) -> None:
    said = explain(message)
    assert said is not None
    assert words in said


def test_other_failures_are_none_of_its_business() -> None:
    assert explain("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)") is None
    killed = "EOFException occurred while reading the port number from tidegate.spark.daemon's stdout."
    assert explain(killed) is None, "a daemon that was killed as it started may live the next time"


def test_on_this_machine_named_files_are_found_by_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = put(tmp_path / "a" / "pkg" / "__init__.py").parent, put(tmp_path / "b" / "one.py")
    archive = put(tmp_path / "parts.whl")
    entries = [path_entry(str(path)) for path in (package, module, archive, tmp_path / "b")]
    assert entries == [str(tmp_path / "a"), str(tmp_path / "b"), str(archive), str(tmp_path / "b")]
    monkeypatch.setenv("PYTHONPATH", "/known:/old")
    prepend_for_children(["/new", "/old"])
    assert os.environ["PYTHONPATH"] == "/new:/known:/old"
