"""Checkpoint storage in the memory of one process, for tests and for jobs that run in one process. Any thread.

`memory://name` names the same objects everywhere in the process. Another process sees none of them, which `read_probe`
finds out.
"""

from __future__ import annotations

import builtins
import threading

from tidegate.storage.store import Data, ObjectStore, StorageNotFound, check_path, folder_prefix

_stores: dict[str, dict[str, bytes]] = {}
_lock = threading.Lock()


class MemoryStore(ObjectStore):
    def __init__(self, name: str) -> None:
        super().__init__(f"memory://{name}")
        with _lock:
            self._objects = _stores.setdefault(name, {})

    def get(self, path: str) -> bytes:
        found = self._objects.get(check_path(path))
        if found is None:
            raise StorageNotFound(f"{self.uri(path)} does not exist", uri=self.uri(path))
        return found

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.get(path)[start : start + length]

    def put(self, path: str, data: Data) -> None:
        with _lock:
            self._objects[check_path(path)] = bytes(memoryview(data))

    def create(self, path: str, data: Data) -> bool:
        with _lock:
            if check_path(path) in self._objects:
                return False
            self._objects[path] = bytes(memoryview(data))
            return True

    def exists(self, path: str) -> bool:
        return check_path(path) in self._objects

    def delete(self, path: str) -> None:
        with _lock:
            self._objects.pop(check_path(path), None)

    def list(self, prefix: str) -> builtins.list[str]:
        with _lock:
            return sorted(path for path in self._objects if path.startswith(folder_prefix(prefix)))
