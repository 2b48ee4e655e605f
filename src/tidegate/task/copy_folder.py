"""A job's copies of checkpoint files on the executor's own disk: making, finding and deleting them. Executor, any thread.

    <base>/<job>-<hash of the incarnation>.lock                         shared (flock) by all processes of the job
    <base>/<job>-<hash of the incarnation>/chk-17.g3-a5.slot-1-0/       of one checkpoint, attempt and slot
    <base>/.../<hash of the path in storage>                            a file; the same file in two checkpoints is a link

Every checkpoint has all its files in its own folder, old ones as hard links. So a folder can be deleted without a look at
the others, and the disk holds each file once. Executors of one machine share the base: a slot finds what another process
of the machine, or an earlier attempt, has left.

Invariant 1. The base belongs to this user and nobody else may look into it. Else nothing is read or written.
Invariant 2. A file appears under its name when it is whole. It is not forced to the disk: whoever reads it checks it.
Invariant 3. The folder of another job is deleted only under its lock, when no process of that job is on this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import xxhash

from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.protocol.local_copies import is_abandoned
from tidegate.state.rocksdb_files import make_private, try_lock
from tidegate.storage.state_files import place_file
from tidegate.storage.store import Data

_LOCK_SUFFIX = ".lock"
_OF_CHECKPOINT = re.compile(r"chk-([0-9]+)\.")
_PIECE_BYTES = 16 * 1024 * 1024


def base_in(folder: str | None) -> Path:
    """Of this user, in a folder on a local disk; None: the system's for temporary files."""
    return Path(folder or tempfile.gettempdir()) / f"tidegate-copies-{os.getuid()}"


class CopyFolder:
    """The copies of one job on this machine."""

    def __init__(self, base: Path, job: str, incarnation: str, now: float) -> None:
        """:raises OSError: when there can be no such folder, or others could look into it."""
        make_private(base)
        self._base = base
        self._path = base / f"{job}-{xxhash.xxh3_64_hexdigest(incarnation.encode())}"
        self._lock_path = self._path.with_name(self._path.name + _LOCK_SUFFIX)
        self._lock: int | None = self._share_lock()
        self._path.mkdir(mode=0o700, exist_ok=True)
        self.touch(now)

    def close(self) -> None:
        """Once or more."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def touch(self, now: float) -> None:
        """The job is alive."""
        os.utime(self._lock_path, (now, now))

    def of_slot(self, checkpoint: CheckpointId, attempt: AttemptId, slot: SlotId) -> Path:
        return self._path / f"chk-{checkpoint}.{attempt}.slot-{slot.layer}-{slot.index}"

    def find(self, checkpoint: CheckpointId, path: str) -> Iterator[Path]:
        """Copies of a file of storage that any slot has kept for this checkpoint."""
        for folder in self._path.glob(f"chk-{checkpoint}.*"):
            copy = folder / _name(path)
            if copy.exists():
                yield copy

    def write(self, folder: Path, path: str, data: Data) -> Path:
        """:raises OSError:"""

        def make(half: Path) -> None:
            with open(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
                out.write(data)

        return self._appear(folder, path, make)

    def link(self, folder: Path, path: str, existing: Path) -> Path:
        """Without using space where `existing` is on the same disk. :raises OSError:"""

        def make(half: Path) -> None:
            place_file(existing, half)
            half.chmod(0o600)

        return self._appear(folder, path, make)

    def _appear(self, folder: Path, path: str, make: Callable[[Path], None]) -> Path:
        folder.mkdir(mode=0o700, exist_ok=True)
        copy = folder / _name(path)
        half = folder / f".{copy.name}.{secrets.token_hex(4)}"
        try:
            make(half)
            half.rename(copy)
        finally:
            half.unlink(missing_ok=True)  # it failed; or both were links to one file, which rename leaves as they are
        return copy

    def delete(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def delete_below(self, checkpoint: CheckpointId) -> None:
        """Of all slots and attempts."""
        for folder in self._path.glob("chk-*"):
            found = _OF_CHECKPOINT.match(folder.name)
            if found is not None and int(found[1]) < checkpoint:
                self.delete(folder)

    def delete_all(self) -> None:
        """The job has ended; its other slots on this machine may still be at work, or say the same."""
        shutil.rmtree(self._path, ignore_errors=True)

    def sweep(self, now: float) -> list[str]:
        """Delete the copies of jobs that are gone; their names."""
        swept = []
        for lock_path in sorted(self._base.glob(f"*{_LOCK_SUFFIX}")):
            with contextlib.suppress(FileNotFoundError):
                if lock_path == self._lock_path or not is_abandoned(now - lock_path.stat().st_mtime):
                    continue
                lock = try_lock(lock_path)
                if lock is None:
                    continue
                try:
                    shutil.rmtree(lock_path.with_suffix(""), ignore_errors=True)
                    lock_path.unlink()
                    swept.append(lock_path.stem)
                finally:
                    os.close(lock)
        return swept

    def _share_lock(self) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock), self._lock_path.stat()):
                    return lock
            os.close(lock)  # a sweep came between opening and locking it


def checksums(file: int, parts: Iterable[tuple[int, int]]) -> Iterator[str]:
    """Of parts (offset, length) of an open file, one after another."""
    for offset, length in parts:
        digest = xxhash.xxh3_128()
        end = offset + length
        while offset < end:
            piece = os.pread(file, min(_PIECE_BYTES, end - offset), offset)
            if not piece:
                break  # shorter than it says: the checksum will tell
            digest.update(piece)
            offset += len(piece)
        yield digest.hexdigest()


def _name(path: str) -> str:
    return xxhash.xxh3_128_hexdigest(path.encode())
