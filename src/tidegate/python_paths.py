"""Modules, packages, folders and zips that a user has named, as entries of a Python path. Driver."""

from __future__ import annotations

import os
from collections.abc import Iterable

VARIABLE = "PYTHONPATH"


def path_entry(file: str) -> str:
    """What stands in sys.path so that it is found: the folder around a module or a package, else the folder or zip itself."""
    path = os.path.abspath(file)
    is_module = os.path.isfile(path) and path.endswith(".py")
    return os.path.dirname(path) if is_module or os.path.isfile(os.path.join(path, "__init__.py")) else path


def prepend_for_children(entries: Iterable[str]) -> None:
    """Processes that start from now on find what is there first: Spark's workers on this machine are such."""
    known = [entry for entry in os.environ.get(VARIABLE, "").split(os.pathsep) if entry]
    new = [entry for entry in entries if entry not in known]
    if new:
        os.environ[VARIABLE] = os.pathsep.join([*new, *known])
