"""What the executors of a cluster need and may not have: Tidegate, the program's modules, more files, an environment. Driver.

1. Before the session is made: modules are packed into zip files, and `settings` names them in the executors' PYTHONPATH.
2. Right after: `send` hands files and archives to Spark, whose executors fetch them into their working folder before their
   first task. The names in PYTHONPATH are relative to that folder, the same on standalone clusters, YARN and Kubernetes.

`addPyFile` alone would not do: it is for workers, and the worker daemon, which is a module of ours, starts before them.
Packages that are installed (in a folder named site-packages or dist-packages) stay at home: an archive brings those.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.errors import ConfigurationError
from tidegate.version import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PYTHON_PATH = "spark.executorEnv.PYTHONPATH"
MAX_BYTES = 100 << 20  #: of modules; more is a mistake, like a program in a home folder
INSTALLED = frozenset({"site-packages", "dist-packages"})
LEFT_OUT = frozenset({"__pycache__"})
PACKED = (".zip", ".whl", ".egg")
#: On every executor: Spark brings its own.
SPARKS_OWN = frozenset({"pyspark", "py4j"})


@dataclass(frozen=True, slots=True)
class Shipment:
    """Files for the PYTHONPATH of executors, and archives that are unpacked beside them."""

    modules: tuple[Path, ...]
    archives: tuple[str, ...] = ()  #: "path#name"

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Of the session that is made next; `given` are the user's."""
        names = [module.name for module in self.modules]
        if PYTHON_PATH in given:
            names.append(given[PYTHON_PATH])
        return {PYTHON_PATH: os.pathsep.join(names)}

    def send(self, session: SparkSession) -> None:
        for module in self.modules:
            session.sparkContext.addFile(str(module))
        for archive in self.archives:
            session.sparkContext.addArchive(archive)


def pack(folder: str, files: Iterable[str], archives: Iterable[str]) -> Shipment:
    """`folder` is the program's own; `files` and `archives` are what the user names beside.

    :raises ConfigurationError: for a file that is not there, or too much of them.
    """
    place = Path(tempfile.mkdtemp(prefix="tidegate-shipped-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)  # Spark reads them as long as the driver lives
    own = {"tidegate": Path(__file__).parents[1]}
    modules = [_zipped(place, f"tidegate-{__version__}", own)]
    programs = {name: path for name, path in program_modules(folder).items() if name not in own}
    if programs:
        modules.append(_zipped(place, "modules", programs))
    modules += [_named(place, Path(file)) for file in files]
    return Shipment(tuple(modules), tuple(_archive(archive) for archive in archives))


def program_modules(folder: str) -> dict[str, Path]:
    """Modules and packages that are the program's own, by name: those beside it, and what it has loaded from elsewhere."""
    found = {name: path for name, path in _loaded_modules() if _is_own(name, path)}
    return found | dict(_modules_in(Path(folder or os.getcwd())))


def _modules_in(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.suffix == ".py" and path.stem.isidentifier():
            yield path.stem, path
        elif path.name.isidentifier() and (path / "__init__.py").is_file():
            yield path.name, path


def _loaded_modules() -> Iterator[tuple[str, Path]]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name.isidentifier() and name != "__main__" and isinstance(file, str) and file.endswith(".py"):
            path = Path(file)
            yield name, path.parent if path.name == "__init__.py" else path


def _is_own(name: str, path: Path) -> bool:
    is_installed = not INSTALLED.isdisjoint(path.parts)
    return name not in sys.stdlib_module_names and name not in SPARKS_OWN and not is_installed and path.exists()


def _zipped(place: Path, name: str, modules: Mapping[str, Path]) -> Path:
    """One zip of modules and packages. Its name has a hash of what is in it: executors may keep an older one."""
    files = {inside: path for module, path in modules.items() for inside, path in _files_of(module, path)}
    size = sum(path.stat().st_size for path in files.values())
    if size > MAX_BYTES:
        largest = max(files, key=lambda inside: files[inside].stat().st_size)
        raise ConfigurationError(
            f"the modules that the program would ship to the executors have {size >> 20} MiB, more than {MAX_BYTES >> 20} "
            f"({files[largest]} is the largest file): keep the program in a folder of its own, and data out of its packages"
        )
    digest = hashlib.sha256()
    draft = place / f"{name}.draft"
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as packed:
        for inside, path in sorted(files.items()):
            data = path.read_bytes()
            digest.update(f"{inside}\0{len(data)}\0".encode() + data)
            packed.writestr(inside, data)
    return draft.rename(place / f"{name}-{digest.hexdigest()[:12]}.zip")


def _files_of(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    if path.is_file():
        yield f"{name}{path.suffix}", path
        return
    for file in sorted(path.rglob("*")):
        parts = file.relative_to(path).parts
        if file.is_file() and LEFT_OUT.isdisjoint(parts) and not any(part.startswith(".") for part in parts):
            yield "/".join((name, *parts)), file


def _named(place: Path, path: Path) -> Path:
    """What the user has named: a module, a package, a folder of modules, or what is packed already."""
    if not path.exists():
        raise ConfigurationError(f"python.files: there is no {path}")
    if path.suffix in PACKED and path.is_file():
        return path.resolve()
    if path.is_file() and path.suffix != ".py":
        raise ConfigurationError(
            f"python.files: {path} is neither a module (.py), a folder, nor packed ({', '.join(PACKED)}); "
            "python.archives takes .tar.gz"
        )
    is_one = path.is_file() or (path / "__init__.py").is_file()
    modules = {path.stem: path} if is_one else dict(_modules_in(path))
    if not modules:
        raise ConfigurationError(f"python.files: the folder {path} has no modules")
    return _zipped(place, path.stem, modules)


def _archive(text: str) -> str:
    path, _, name = text.partition("#")
    if not os.path.isfile(path):
        raise ConfigurationError(f"python.archives: there is no file {path}")
    return f"{os.path.abspath(path)}#{name or os.path.basename(path)}"
