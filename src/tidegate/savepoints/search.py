"""Savepoints and checkpoints as people name them on a command line: relative paths, and folders that only hold some."""

from __future__ import annotations

import os

from tidegate.errors import ConfigurationError
from tidegate.savepoints.reading import Savepoint
from tidegate.storage.anywhere import is_uri
from tidegate.storage.paths import METADATA_NAME

MAX_OFFERED = 5
MAX_FOLDERS = 10_000  #: looked at; a folder may hold anything


def load_local(path: str) -> Savepoint:
    """As `Savepoint.load`; a path without a scheme may be relative to the working directory.

    :raises ConfigurationError: when there is none; with those that lie below it, the newest first.
    """
    path = path if is_uri(path) else os.path.abspath(path)
    try:
        return Savepoint.load(path)
    except ConfigurationError as error:
        below = found_below(path.removeprefix("file://"))
        if not below:
            raise
        some = "\n".join(f"    {each}" for each in below[:MAX_OFFERED])
        raise ConfigurationError(f"{error}. Below it there are\n{some}") from None


def found_below(folder: str) -> list[str]:
    """Local folders with a savepoint or checkpoint, the newest first."""
    found = []
    for count, (place, _, files) in enumerate(os.walk(folder)):
        if METADATA_NAME in files:
            found.append((os.path.getmtime(os.path.join(place, METADATA_NAME)), place))
        if count >= MAX_FOLDERS:
            break
    return [place for _, place in sorted(found, reverse=True)]
