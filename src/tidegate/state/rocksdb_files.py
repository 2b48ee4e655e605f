"""Local folders of RocksDB state: made for one attempt, gone when it closes, swept when its process was killed. Executor.

    <base>/<name>.lock      held (flock) by the process that owns the folder, as long as it lives
    <base>/<name>/          its files

Invariant 1. A folder is deleted only by its owner, or by someone who holds its lock.
Invariant 2. A folder exists only while its lock file does, so what nobody can find is never left behind.

The lock is the kernel's: it is gone with the process, however that ends. Process ids would lie: they are used again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from pathlib import Path

from tidegate.errors import StorageError
from tidegate.state.backend import LocalFile
from tidegate.state.run_files import RUNS_FILE
from tidegate.state.runs import RUN_SUFFIX

_LOCK_SUFFIX = ".lock"
TABLE_SUFFIX = ".sst"
#: What a checkpoint needs beside its tables. OPTIONS, LOG and the (empty) write-ahead log are not needed to open it.
_NEEDED = ("CURRENT", "MANIFEST-", RUNS_FILE)


def checkpoint_files(folder: Path) -> list[LocalFile]:
    """What must be kept of a checkpoint that RocksDB has made in `folder`: tables first, by name."""
    found = []
    for path in sorted(folder.iterdir()):
        shareable = path.name.endswith((TABLE_SUFFIX, RUN_SUFFIX))
        if shareable or path.name.startswith(_NEEDED):
            found.append(LocalFile(path.name, path, path.stat().st_size, shareable))
    return sorted(found, key=lambda file: (not file.shareable, file.name))


class StateFolder:
    """A folder of this process's own. `close` deletes it."""

    def __init__(self, base: Path, label: str = "state") -> None:
        """:raises StorageError: when the folder cannot be made."""
        try:
            if base == default_base():
                make_private(base)
            else:
                base.mkdir(parents=True, exist_ok=True)
            self._lock_path, self._lock = _new_lock(base, label)
            self.path = self._lock_path.with_suffix("")
            self.path.mkdir(mode=0o700)
        except OSError as error:
            raise StorageError(
                f"no folder for RocksDB's files can be made in {base}: {error}. Give a folder on a local disk that the "
                "executors can write.",
                path=str(base),
            ) from error

    def new(self, label: str) -> Path:
        """A path inside that does not exist yet."""
        return self.path / f"{label}-{secrets.token_hex(4)}"

    def close(self) -> None:
        """Once or more."""
        if self._lock is None:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            self._lock_path.unlink()
        os.close(self._lock)
        self._lock = None


def default_base() -> Path:
    """Of this user: another user's folders could be neither locked nor deleted."""
    return Path(tempfile.gettempdir()) / f"tidegate-state-{os.getuid()}"


def make_private(base: Path) -> None:
    """:raises OSError: when the folder cannot be made, is another user's, or is open to others."""
    base.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        base.mkdir(mode=0o700)
    found = base.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{base} is not a folder that this user alone can read")


def sweep(base: Path) -> list[Path]:
    """Delete the folders of processes that are gone; returns them. Folders that are in use are left alone."""
    swept = []
    for lock_path in sorted(base.glob(f"*{_LOCK_SUFFIX}")) if base.is_dir() else []:
        lock = try_lock(lock_path)
        if lock is None:
            continue
        folder = lock_path.with_suffix("")
        try:
            if folder.is_dir():
                shutil.rmtree(folder, ignore_errors=True)
                swept.append(folder)
            if not folder.exists():  # invariant 2
                with contextlib.suppress(FileNotFoundError):
                    lock_path.unlink()
        finally:
            os.close(lock)
    return swept


def _new_lock(base: Path, label: str) -> tuple[Path, int | None]:
    while True:
        path = base / f"{label}-{os.getpid()}-{secrets.token_hex(4)}{_LOCK_SUFFIX}"
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if _is_still(path, lock):
            return path, lock
        os.close(lock)  # a sweep came between making and locking it


def try_lock(path: Path) -> int | None:
    """The lock, to be closed by the caller; None when somebody has it, or the file is gone."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, or another user's
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return None
        raise
    if not _is_still(path, lock):
        os.close(lock)
        return None
    return lock


def _is_still(path: Path, lock: int) -> bool:
    try:
        return os.path.samestat(os.fstat(lock), path.stat())
    except FileNotFoundError:
        return False
