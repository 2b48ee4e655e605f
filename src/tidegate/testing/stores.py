"""Checkpoint storage that misbehaves on demand, or counts. Part of the public test kit; wraps any store.

FlakyStore(store, [FailCall("create", call=2, after_effect=True)])   # the second create works, and its answer is lost
FlakyStore(store, [NoSpace(after_bytes=10_000)])
FlakyStore(store, [Corrupt("_metadata.json", at=100)])           # readers see one byte changed; storage keeps it whole
FlakyStore(store, [CutShort(".snapshot", to=4096)])
"""

from __future__ import annotations

import builtins
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.errors import StorageError
from tidegate.storage.store import Data, ObjectStore


@dataclass(frozen=True, slots=True)
class FailCall:
    """The `call`-th call (from 1) of `method` on a path that contains `path` fails, `times` times in a row.

    With `after_effect` the store does what it was asked and only the answer is lost.
    """

    method: str
    call: int = 1
    after_effect: bool = False
    path: str = ""
    times: int = 1


@dataclass(frozen=True, slots=True)
class RepeatedCreate:
    """The `call`-th `create` is carried out twice, as by a client that repeats a request after a lost answer.

    It answers False, though the object is the caller's own.
    """

    call: int = 1


@dataclass(frozen=True, slots=True)
class NoSpace:
    """Writes fail as soon as more than `after_bytes` bytes have been written in all."""

    after_bytes: int


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Readers of a path that contains `path` see the byte at `at` with its bits `mask` flipped."""

    path: str
    at: int
    mask: int = 0xFF


@dataclass(frozen=True, slots=True)
class CutShort:
    """Readers of a path that contains `path` see only its first `to` bytes."""

    path: str
    to: int


Fault = FailCall | RepeatedCreate | NoSpace | Corrupt | CutShort


class FlakyStore(ObjectStore):
    """Does what `inner` does, but for `faults`. May be shared by threads; cannot be pickled (faults are of one
    process)."""

    def __init__(self, inner: ObjectStore, faults: Sequence[Fault]) -> None:
        super().__init__(inner.location)
        self._inner = inner
        self._faults = list(faults)
        self._calls: Counter[int] = Counter()  # matching calls, by position of the fault
        self._written_bytes = 0
        self._lock = threading.Lock()

    def get(self, path: str) -> bytes:
        lost = self._before("get", path)
        data = self._seen(path, self._inner.get(path))
        self._after("get", path, lost)
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        lost = self._before("get_range", path)
        if any(isinstance(fault, (Corrupt, CutShort)) and fault.path in path for fault in self._faults):
            data = self._seen(path, self._inner.get(path))[start : start + length]
        else:
            data = self._inner.get_range(path, start, length)
        self._after("get_range", path, lost)
        return data

    def put(self, path: str, data: Data) -> None:
        lost = self._before("put", path)
        self._charge(path, data)
        self._inner.put(path, data)
        self._after("put", path, lost)

    def create(self, path: str, data: Data) -> bool:
        lost = self._before("create", path)
        self._charge(path, data)
        created = self._inner.create(path, data)
        if self._is_repeated():
            created = self._inner.create(path, data)
        self._after("create", path, lost)
        return created

    def exists(self, path: str) -> bool:
        lost = self._before("exists", path)
        found = self._inner.exists(path)
        self._after("exists", path, lost)
        return found

    def delete(self, path: str) -> None:
        lost = self._before("delete", path)
        self._inner.delete(path)
        self._after("delete", path, lost)

    def delete_many(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.delete(path)

    def list(self, prefix: str) -> builtins.list[str]:
        lost = self._before("list", prefix)
        found = self._inner.list(prefix)
        self._after("list", prefix, lost)
        return found

    def folders(self, prefix: str) -> builtins.list[str]:
        lost = self._before("list", prefix)
        found = self._inner.folders(prefix)
        self._after("list", prefix, lost)
        return found

    def temporary_files(self, folder: str) -> builtins.list[str]:
        return self._inner.temporary_files(folder)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a FlakyStore cannot be pickled: its faults are counted in one process")

    def _before(self, method: str, path: str) -> bool:
        """Fails now, or says whether the answer is to be lost."""
        lost = False
        with self._lock:
            for position, fault in enumerate(self._faults):
                if not isinstance(fault, FailCall) or fault.method != method or fault.path not in path:
                    continue
                self._calls[position] += 1
                if not fault.call <= self._calls[position] < fault.call + fault.times:
                    continue
                if not fault.after_effect:
                    raise self._error(f"{method} fails as the test asked for", path, "unreachable")
                lost = True
        return lost

    def _is_repeated(self) -> bool:
        repeated = False
        with self._lock:
            for position, fault in enumerate(self._faults):
                if isinstance(fault, RepeatedCreate):
                    self._calls[position] += 1
                    repeated = repeated or self._calls[position] == fault.call
        return repeated

    def _after(self, method: str, path: str, lost: bool) -> None:
        if lost:
            raise self._error(f"the answer to {method} is lost, as the test asked for", path, "unreachable")

    def _charge(self, path: str, data: Data) -> None:
        with self._lock:
            after = self._written_bytes + memoryview(data).nbytes
            for fault in self._faults:
                if isinstance(fault, NoSpace) and after > fault.after_bytes:
                    raise self._error("there is no space left, as the test asked for", path, "no space")
            self._written_bytes = after

    def _seen(self, path: str, data: bytes) -> bytes:
        for fault in self._faults:
            if isinstance(fault, CutShort) and fault.path in path:
                data = data[: fault.to]
            elif isinstance(fault, Corrupt) and fault.path in path and fault.at < len(data):
                changed = bytearray(data)
                changed[fault.at] ^= fault.mask
                data = bytes(changed)
        return data

    def _error(self, what: str, path: str, reason: str) -> StorageError:
        return StorageError(f"{self.uri(path)}: {what}", uri=self.uri(path), reason=reason)


class CountingStore(ObjectStore):
    """Does what `inner` does and counts the requests in `calls`, by method."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner.location)
        self._inner = inner
        self.calls: Counter[str] = Counter()

    @property
    def requests(self) -> int:
        return sum(self.calls.values())

    def reset(self) -> None:
        self.calls.clear()

    def get(self, path: str) -> bytes:
        self.calls["get"] += 1
        return self._inner.get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.calls["get_range"] += 1
        return self._inner.get_range(path, start, length)

    def put(self, path: str, data: Data) -> None:
        self.calls["put"] += 1
        self._inner.put(path, data)

    def create(self, path: str, data: Data) -> bool:
        self.calls["create"] += 1
        return self._inner.create(path, data)

    def exists(self, path: str) -> bool:
        self.calls["exists"] += 1
        return self._inner.exists(path)

    def delete(self, path: str) -> None:
        self.calls["delete"] += 1
        self._inner.delete(path)

    def delete_many(self, paths: Iterable[str]) -> None:
        self.calls["delete_many"] += 1
        self._inner.delete_many(paths)

    def list(self, prefix: str) -> builtins.list[str]:
        self.calls["list"] += 1
        return self._inner.list(prefix)

    def folders(self, prefix: str) -> builtins.list[str]:
        self.calls["list"] += 1
        return self._inner.folders(prefix)

    def temporary_files(self, folder: str) -> builtins.list[str]:
        self.calls["list"] += 1
        return self._inner.temporary_files(folder)
