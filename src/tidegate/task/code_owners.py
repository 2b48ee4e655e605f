"""Whose code a file is: the user's, ours, Spark's, or a library's. Executor; pure."""

from __future__ import annotations

import enum
import os

_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SPARKS = f"{os.sep}pyspark{os.sep}"
_PYTHONS = f"{os.sep}lib{os.sep}python"  #: the standard library, and what is installed with it


class Owner(enum.Enum):
    USER = "user"
    TIDEGATE = "tidegate"
    SPARK = "spark"
    LIBRARY = "library"  #: Python's own, or somebody else's


def owner_of(filename: str) -> Owner:
    """By where the file is. What was made up in memory ("<string>") is taken for a library's."""
    if filename.startswith(_OUR_FOLDER):
        return Owner.TIDEGATE
    if _SPARKS in filename:
        return Owner.SPARK
    if filename.startswith("<") or "site-packages" in filename or _PYTHONS in filename:
        return Owner.LIBRARY
    return Owner.USER
