"""Checkpoint storage in the memory of one process: of the driver, and of tests that run a job in one process. Any thread.

`memory` and `memory://name` each name the same objects everywhere in the process, and end with it;
`memory://name/folder` those in a folder of it. Another process sees
none of them: executors hand the state of a job with `storage="memory"` to the driver instead of storing it
(docs/storage.md); `memory://name` is for one process, and `read_probe` finds out where it is not.
"""

from __future__ import annotations

import builtins
import threading

from tidegate.errors import StorageError
from tidegate.storage.store import Data, ObjectStore, StorageNotFound, check_path, folder_prefix

_stores: dict[str, dict[str, bytes]] = {}
_lock = threading.Lock()


class MemoryStore(ObjectStore):
    def __init__(self, name: str) -> None:
        super().__init__(f"memory://{name}".rstrip("/") if name else "memory")
        root, _, folder = name.strip("/").partition("/")
        self._folder = folder_prefix(folder)
        with _lock:
            self._objects = _stores.setdefault(root, {})

    def _path(self, path: str) -> str:
        return self._folder + check_path(path)

    def get(self, path: str) -> bytes:
        found = self._objects.get(self._path(path))
        if found is None:
            raise StorageNotFound(f"{self.uri(path)} does not exist", uri=self.uri(path))
        return found

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.get(path)[start : start + length]

    def put(self, path: str, data: Data) -> None:
        with _lock:
            self._objects[self._path(path)] = bytes(memoryview(data))

    def create(self, path: str, data: Data) -> bool:
        with _lock:
            if self._path(path) in self._objects:
                return False
            self._objects[self._path(path)] = bytes(memoryview(data))
            return True

    def exists(self, path: str) -> bool:
        return self._path(path) in self._objects

    def delete(self, path: str) -> None:
        with _lock:
            self._objects.pop(self._path(path), None)

    def list(self, prefix: str) -> builtins.list[str]:
        with _lock:
            inside = self._folder + folder_prefix(prefix)
            return sorted(path.removeprefix(self._folder) for path in self._objects if path.startswith(inside))


def forget(name: str) -> None:
    """The objects of `memory://name`; whoever has opened it before keeps them."""
    with _lock:
        _stores.pop(name, None)


class UnreachableStore(ObjectStore):
    """The driver's memory as executors see it: they hand their state to the driver, and store nothing themselves."""

    def __init__(self) -> None:
        super().__init__("memory")

    def get(self, path: str) -> bytes:
        raise self._refusal(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        raise self._refusal(path)

    def put(self, path: str, data: Data) -> None:
        raise self._refusal(path)

    def create(self, path: str, data: Data) -> bool:
        raise self._refusal(path)

    def exists(self, path: str) -> bool:
        raise self._refusal(path)

    def delete(self, path: str) -> None:
        raise self._refusal(path)

    def list(self, prefix: str) -> builtins.list[str]:
        raise self._refusal(prefix)

    def _refusal(self, path: str) -> StorageError:
        return StorageError(
            f"{path} lies in the driver's memory, which executors cannot reach. Name a place that they share (file:///..., "
            "s3://...), for a savepoint for example.",
            path=path,
        )
