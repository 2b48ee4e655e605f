"""A storage of snapshots in memory, for tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.errors import StorageError
from tidegate.storage.store import StorageNotFound


@dataclass
class Storage:
    """In memory; the n-th put from now on can be made to fail."""

    objects: dict[str, bytes] = field(default_factory=dict)
    puts: list[str] = field(default_factory=list)
    failing_put: int | None = None

    def put(self, path: str, data: bytes) -> None:
        if self.failing_put is not None and len(self.puts) >= self.failing_put:
            raise StorageError("the storage is full")
        self.puts.append(path)
        self.objects[path] = bytes(data)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        if path not in self.objects:
            raise StorageNotFound(f"{path} does not exist", uri=path)
        return self.objects[path][start : start + length]

    def uri(self, path: str) -> str:
        return path

    def delete(self, path: str) -> None:
        self.objects.pop(path, None)
