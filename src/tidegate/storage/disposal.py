"""Deleting a savepoint that nobody needs any more. Driver, or any machine. A checkpoint is never deleted by this.

The metadata goes first: from then on the folder is not a savepoint, whatever is left of it.
"""

from __future__ import annotations

from urllib.parse import unquote

from tidegate.errors import ConfigurationError
from tidegate.storage.anywhere import as_uri
from tidegate.storage.paths import METADATA_NAME
from tidegate.storage.savepoint_format import is_savepoint
from tidegate.storage.store import StorageNotFound, open_store, without_credentials


def dispose_of(path: str) -> None:
    """`path` is the savepoint's folder, or its metadata file.

    :raises ConfigurationError: when there is no savepoint. :raises StorageError:
    """
    whole = as_uri(path.rstrip("/").removesuffix(f"/{METADATA_NAME}"))
    parent, _, name = whole.rpartition("/")
    if name and not parent.endswith(("/", ":")):
        # From the folder above, so that the folder itself goes too, where folders are more than a part of names.
        store, inside = open_store(parent), f"{unquote(name) if whole.lower().startswith('file:') else name}/"
    else:  # a bucket, or a folder right below the root
        store, inside = open_store(whole), ""
    try:
        data = store.get(inside + METADATA_NAME)
    except StorageNotFound:
        raise ConfigurationError(f"there is no savepoint at {without_credentials(path)}") from None
    if not is_savepoint(data):
        raise ConfigurationError(
            f"{without_credentials(path)} is not a savepoint: it is a checkpoint, or something else"
        )
    store.delete(inside + METADATA_NAME)
    store.delete_many(store.list(inside))
