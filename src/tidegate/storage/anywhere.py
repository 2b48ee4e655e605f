"""A job's storage that also reaches what lies elsewhere: paths are relative to it, or whole URIs. Driver and executors.

A job restores from any path, and puts savepoints where the user says. So a path in metadata may name another storage.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from typing import Any

from tidegate.storage.store import Data, ObjectStore, open_store


def is_uri(path: str) -> bool:
    return "://" in path or path.startswith("/")


def as_uri(path: str) -> str:
    """The one way to write it: a local path as a URI too, without a slash at the end."""
    return open_store(path).location if path.startswith(("/", "file:")) else path.rstrip("/")


def folder_of(path: str) -> str:
    return path.rpartition("/")[0]


class AnywhereStore(ObjectStore):
    """`home` for relative paths; for a URI the store of its folder."""

    def __init__(self, home: ObjectStore) -> None:
        super().__init__(home.location)
        self._home = home
        self._others: dict[str, ObjectStore] = {}

    def _at(self, path: str) -> tuple[ObjectStore, str]:
        if not is_uri(path):
            return self._home, path
        folder, _, name = path.rpartition("/")
        store = self._others.get(folder)
        if store is None:
            store = self._others[folder] = open_store(folder)
        return store, name

    def get(self, path: str) -> bytes:
        store, name = self._at(path)
        return store.get(name)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        store, name = self._at(path)
        return store.get_range(name, start, length)

    def put(self, path: str, data: Data) -> None:
        store, name = self._at(path)
        store.put(name, data)

    def create(self, path: str, data: Data) -> bool:
        store, name = self._at(path)
        return store.create(name, data)

    def exists(self, path: str) -> bool:
        store, name = self._at(path)
        return store.exists(name)

    def delete(self, path: str) -> None:
        store, name = self._at(path)
        store.delete(name)

    def uri(self, path: str) -> str:
        return path if is_uri(path) else self._home.uri(path)

    def list(self, prefix: str) -> builtins.list[str]:
        if not is_uri(prefix):
            return self._home.list(prefix)
        folder = prefix.rstrip("/")
        return [f"{folder}/{name}" for name in open_store(folder).list("")]

    def delete_many(self, paths: Iterable[str]) -> None:
        paths = builtins.list(paths)
        self._home.delete_many(path for path in paths if not is_uri(path))
        super().delete_many(path for path in paths if is_uri(path))

    def folders(self, prefix: str) -> builtins.list[str]:
        return super().folders(prefix) if is_uri(prefix) else self._home.folders(prefix)

    def temporary_files(self, folder: str) -> builtins.list[str]:
        return super().temporary_files(folder) if is_uri(folder) else self._home.temporary_files(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return AnywhereStore, (self._home,)


def reaching_anywhere(store: ObjectStore) -> AnywhereStore:
    return store if isinstance(store, AnywhereStore) else AnywhereStore(store)
