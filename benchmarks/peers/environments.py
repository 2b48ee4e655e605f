"""A virtual environment for each peer, made when it is first asked for, in the cache that the tests' downloads are in.

Peers need Pythons and packages that do not go together, and none of them is a dependency of the product. A folder without its
stamp is a half-made one, and is made again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import fetch

RELEASES = {"apache-flink": "2.3.0", "bytewax": "0.21.1", "pathway": "0.33.0"}
PROTOBUF = "6.33.5"  #: what Python's transformWithState needs beside PySpark
PYTHONS = ((3, 11), (3, 12))  #: what Flink and Bytewax have wheels for; one for all of them


class CannotBeHad(Exception):
    """Says why."""


def python_of(package: str) -> str:
    """The interpreter of the peer's environment. :raises CannotBeHad:"""
    place = fetch.cache() / "peers" / f"{package}-{RELEASES[package]}"
    place.parent.mkdir(parents=True, exist_ok=True)
    stamp, python = place / "ready", str(place / "bin" / "python")
    with fetch.alone(place.parent / f"{package}.lock"):
        if not stamp.exists():
            print(f"peers: making an environment for {package} {RELEASES[package]}", file=sys.stderr)
            shutil.rmtree(place, ignore_errors=True)
            try:
                fetch.run([_python(), "-m", "venv", str(place)])
                fetch.run([python, "-m", "pip", "install", "--quiet", f"{package}=={RELEASES[package]}"])
            except fetch.NotFetched as error:
                raise CannotBeHad(f"{package} {RELEASES[package]} could not be installed: {error}") from error
            stamp.touch()
    return python


def with_protobuf() -> str:
    """A folder for the PYTHONPATH of PySpark. :raises CannotBeHad:"""
    place = fetch.cache() / "peers" / f"protobuf-{PROTOBUF}-{sys.version_info.major}.{sys.version_info.minor}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with fetch.alone(place.parent / "protobuf.lock"):
        if not (place / "ready").exists():
            shutil.rmtree(place, ignore_errors=True)
            try:
                fetch.run(
                    [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), f"protobuf=={PROTOBUF}"]
                )
            except fetch.NotFetched as error:
                raise CannotBeHad(f"protobuf {PROTOBUF} could not be installed: {error}") from error
            (place / "ready").touch()
    return str(place)


def _python() -> str:
    """One that has the versions. A name on the PATH may be a version manager's shim for nothing, so it is tried."""
    if sys.version_info[:2] in PYTHONS:
        return sys.executable
    for major, minor in PYTHONS:
        name = f"python{major}.{minor}"
        if shutil.which(name) and subprocess.run([name, "-c", ""], check=False, capture_output=True).returncode == 0:
            return name
    raise CannotBeHad("it needs Python 3.11 or 3.12, and none of them is on the PATH")
