"""A new file that is written once and knows its size and checksum. Executor, the task's thread."""

from __future__ import annotations

import errno
import io
import os
import shutil
from typing import Any

import xxhash

_BUFFER_BYTES = 256 * 1024
#: What kernels and filesystems without O_TMPFILE answer; older ones see a folder that is to be opened for writing.
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.ENOTSUP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)


class StagedFile(io.RawIOBase):
    """A new file that knows the size and checksum of what was written to it. Written once, from front to back.

    It has no name before `sync`, where the filesystem can do that: of a process that dies nothing stays, also of one that was
    stopped, and wakes up when everybody has tidied up after it.
    """

    def __init__(self, path: str) -> None:
        unnamed = _open_unnamed(os.path.dirname(path))
        # "x": never the file of another writer, whatever its name.
        file = open(path, "xb", buffering=_BUFFER_BYTES) if unnamed is None else unnamed  # noqa: SIM115 - held until close
        self._begin(path, file)
        self._has_name = unnamed is None

    def _begin(self, path: str, file: Any) -> None:
        super().__init__()
        self.path = path
        self._file = file
        self._checksum = xxhash.xxh3_128()
        self.size_bytes = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._file.write(view)
        self._checksum.update(view)
        self.size_bytes += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self.size_bytes

    def flush(self) -> None:
        if not self._file.closed:
            self._file.flush()

    def checksum(self) -> str:
        return self._checksum.hexdigest()

    def sync(self) -> None:
        """All bytes are on the disk, under the file's name, when it returns. Its folder is the caller's to sync."""
        self._file.flush()
        number = self._file.fileno()
        os.fsync(number)
        if not self._has_name:
            _give_name(number, self.path)
            self._has_name = True

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            super().close()


def _open_unnamed(folder: str) -> Any | None:
    """None where there are no files without a name: not on Linux, or on a network mount."""
    if not hasattr(os, "O_TMPFILE") or not os.path.exists("/proc/self/fd"):
        return None
    try:
        number = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in _NO_UNNAMED:
            return None
        raise
    return os.fdopen(number, "wb", buffering=_BUFFER_BYTES)


def _give_name(number: int, path: str) -> None:
    try:
        # A descriptor is passed so that the call follows the link of /proc: linkat(2) with AT_SYMLINK_FOLLOW.
        os.link(f"/proc/self/fd/{number}", path, src_dir_fd=number)
    except FileExistsError:
        raise
    except OSError:  # no hard links here
        os.lseek(number, 0, os.SEEK_SET)
        with open(number, "rb", closefd=False) as source, open(path, "xb") as target:
            shutil.copyfileobj(source, target)
            target.flush()
            os.fsync(target.fileno())


def file_checksum(path: str) -> str:
    """As `StagedFile.checksum`, of a file that is there."""
    checksum = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while chunk := file.read(1024 * 1024):
            checksum.update(chunk)
    return checksum.hexdigest()
