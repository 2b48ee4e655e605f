"""Deleting a savepoint that nobody needs any more. Driver, or any machine. A checkpoint is never deleted by this.

The metadata goes first: from then on the folder is no savepoint, whatever is left of it.
"""

from __future__ import annotations

from tidegate.errors import ConfigurationError
from tidegate.storage.paths import METADATA_NAME
from tidegate.storage.savepoint_format import is_savepoint
from tidegate.storage.store import StorageNotFound, open_store, without_credentials


def dispose_of(path: str) -> None:
    """`path` is the savepoint's folder, or its metadata file.

    :raises ConfigurationError: when there is no savepoint. :raises StorageError:
    """
    folder = path.rstrip("/").removesuffix(f"/{METADATA_NAME}")
    store = open_store(folder)
    try:
        data = store.get(METADATA_NAME)
    except StorageNotFound:
        raise ConfigurationError(f"there is no savepoint at {without_credentials(path)}") from None
    if not is_savepoint(data):
        raise ConfigurationError(f"{without_credentials(path)} is no savepoint: it is a checkpoint, or something else")
    store.delete(METADATA_NAME)
    store.delete_many(store.list(""))
