"""Flink's own command, as its package brings it: fetched once into the user's cache, outside the repository.

Only the scripts and jars are needed, so the wheels of one Python and platform do for all. Nothing of it is imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERSION = "2.3.0"
PACKAGES = (f"apache-flink=={VERSION}", f"apache-flink-libraries=={VERSION}")  #: 330 MB


def flink_home() -> Path:
    """The folder with bin/flink."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
    place = cache / f"flink-{VERSION}"
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / "flink.lock"):
        if not place.exists():
            draft = cache / f"flink-{VERSION}.draft"
            shutil.rmtree(draft, ignore_errors=True)
            subprocess.run(
                [
                    sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
                    "--no-compile",
                    "--target", str(draft), "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64",
                    *PACKAGES,
                ],
                check=True,
            )  # fmt: skip
            draft.rename(place)
    return place / "pyflink"


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Flink:
    """`flink ...` against one address."""

    def __init__(self, home: Path, logs: Path, token: str | None = None) -> None:
        self._home = home
        self._environment = os.environ | {
            "FLINK_LOG_DIR": str(logs),
            "FLINK_ENV_JAVA_OPTS_CLI": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        self._environment.pop("FLINK_HOME", None)
        self._environment.pop("FLINK_CONF_DIR", None)
        if token is not None:
            self._environment["FLINK_REST_CLIENT_HEADERS"] = f"Authorization:Bearer {token}"

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", str(self._home / "bin" / "flink"), *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=170,
        )

    def ok(self, *arguments: str) -> str:
        done = self(*arguments)
        assert done.returncode == 0, f"flink {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
        return done.stdout
