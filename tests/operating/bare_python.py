"""A Python like that of a cluster's executors: this one's packages, without Tidegate and without others by choice."""

from __future__ import annotations

import io
import sysconfig
import tarfile
import venv
from pathlib import Path


def bare_python(folder: Path, without: frozenset[str] = frozenset()) -> Path:
    """Its executable. Packages are links into the environment of the tests; nothing that begins with tidegate is among them."""
    venv.create(folder, symlinks=True, with_pip=False)
    (site,) = folder.glob("lib/python*/site-packages")
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        is_wanted = package.suffix != ".pth" and package.name not in without
        if is_wanted and "tidegate" not in package.name.lower():
            (site / package.name).symlink_to(package)
    return folder / "bin" / "python"


def packed_environment(archive: Path, python: Path) -> None:
    """An archive with a bin/python, as venv-pack and conda-pack make them; this one leads to `python` and leaves a mark."""
    script = f'#!/bin/sh\nCAME_FROM=archive exec "{python}" "$@"\n'.encode()
    entry = tarfile.TarInfo("bin/python")
    entry.size, entry.mode = len(script), 0o755
    with tarfile.open(archive, "w:gz") as packed:
        packed.addfile(entry, io.BytesIO(script))
