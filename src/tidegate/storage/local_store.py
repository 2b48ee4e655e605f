"""Checkpoint storage in local files, or on a mounted network file system. Driver and executors, any thread.

obstore's own local store neither calls fsync for a file nor for its folder (seen with strace, version 0.12), so a log
record could outlive the files that it refers to when the power fails, or vanish itself. Here an object is written to a
temporary file beside its place, fsynced, and then renamed (`put`) or hard-linked (`create`) to its name; then the
folder is fsynced. link(2) is atomic and fails when the name is taken, on NFS too.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import os
import stat
from pathlib import Path

from tidegate.errors import StorageError
from tidegate.storage.store import (
    Data,
    ObjectStore,
    StorageNotFound,
    check_path,
    folder_prefix,
    is_temporary,
    temporary_name,
)

#: Another process may prune an empty folder between our making it and our using it; only that costs a round.
_FOLDER_TRIES = 32


class LocalStore(ObjectStore):
    """Objects are files below `root`, which is made when it is first needed."""

    def __init__(self, root: str) -> None:
        self._root = os.path.normpath(root)
        super().__init__(Path(self._root).as_uri().rstrip("/"))

    def get(self, path: str) -> bytes:
        file = self._file(path)
        try:
            with open(file, "rb") as stream:
                return stream.read()
        except OSError as error:
            raise self._error("read", path, error) from error

    def get_range(self, path: str, start: int, length: int) -> bytes:
        file = self._file(path)
        try:
            with open(file, "rb") as stream:
                stream.seek(start)
                return stream.read(length)
        except OSError as error:
            raise self._error("read", path, error) from error

    def put(self, path: str, data: Data) -> None:
        target = self._file(path)
        try:
            temporary = self._write_beside(target, data)
            try:
                os.replace(temporary, target)
            except OSError:
                _unlink(temporary)
                raise
            _sync_folder(os.path.dirname(target))
        except OSError as error:
            raise self._error("write", path, error) from error

    def create(self, path: str, data: Data) -> bool:
        target = self._file(path)
        try:
            temporary = self._write_beside(target, data)
            try:
                created = _link(temporary, target)
            finally:
                _unlink(temporary)
            # Also when it was there already: the caller will act on it, so it must not vanish.
            _sync_folder(os.path.dirname(target))
            return created
        except OSError as error:
            raise self._error("create", path, error) from error

    def exists(self, path: str) -> bool:
        file = self._file(path)
        try:
            return stat.S_ISREG(os.stat(file).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._error("look at", path, error) from error

    def delete(self, path: str) -> None:
        file = self._file(path)
        try:
            os.unlink(file)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise self._error("delete", path, error) from error
        self._prune(os.path.dirname(file))

    def list(self, prefix: str) -> builtins.list[str]:
        start = self._file(prefix.rstrip("/")) if folder_prefix(prefix) else self._root
        found = []
        try:
            for folder, _, names in os.walk(start, onerror=_raise_unless_gone):
                inside = os.path.relpath(folder, self._root)
                found += [name if inside == "." else f"{inside}/{name}" for name in names]
        except OSError as error:
            raise self._error("list", prefix, error) from error
        return sorted(found)

    def folders(self, prefix: str) -> builtins.list[str]:
        return sorted(entry.name for entry in self._entries(prefix) if entry.is_dir())

    def temporary_files(self, folder: str) -> builtins.list[str]:
        inside = folder_prefix(folder)
        return sorted(inside + entry.name for entry in self._entries(folder) if is_temporary(entry.name))

    def _entries(self, folder: str) -> builtins.list[os.DirEntry[str]]:
        try:
            with os.scandir(self._file(folder.rstrip("/")) if folder_prefix(folder) else self._root) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._error("list", folder, error) from error

    # -- files -----------------------------------------------------------------------------------------------------

    def _file(self, path: str) -> str:
        return os.path.join(self._root, check_path(path))

    def _write_beside(self, target: str, data: Data) -> str:
        """A fsynced temporary file in the target's folder; its path."""
        folder, name = os.path.split(target)
        temporary = os.path.join(folder, temporary_name(name))
        for _ in range(_FOLDER_TRIES):
            try:
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                _make_folder(folder)
                continue
            try:
                with open(descriptor, "wb", buffering=0) as stream:
                    _write_all(stream.fileno(), memoryview(data).cast("B"))
                    os.fsync(stream.fileno())
            except BaseException:
                _unlink(temporary)
                raise
            return temporary
        place = _refusing_folder(folder)
        if place is None:
            raise OSError(errno.ENOENT, "the folder is removed again and again", folder)
        raise _NoFolders(errno.ENOTSUP, f"no folder can be made in {place}, whoever asks for it", folder)

    def _prune(self, folder: str) -> None:
        """Folders have no meaning in the contract; empty ones would pile up, one for each checkpoint."""
        while folder != self._root:
            try:
                os.rmdir(folder)
            except OSError:
                return
            folder = os.path.dirname(folder)

    def _error(self, doing: str, path: str, error: OSError) -> StorageError:
        uri = self.uri(path)
        if error.errno in {errno.ENOENT, errno.EISDIR, errno.ENOTDIR} and doing == "read":
            return StorageNotFound(f"{uri} does not exist", uri=uri)
        if isinstance(error, _NoHardLinks):
            reason, advice = (
                "unsupported",
                "The job's log needs that. Use another file system, or s3://, gs:// or az://.",
            )
        elif isinstance(error, _NoFolders):
            reason, advice = (
                "unsupported",
                "It is not a place for files. Use a folder on a disk, or s3://, gs:// or az://.",
            )
        elif error.errno in {errno.ENOSPC, errno.EDQUOT}:
            reason, advice = "no space", "Free some, or use another storage, and start the job again."
        elif error.errno == errno.EROFS:
            reason, advice = (
                "permission",
                "Use another folder, or have the file system mounted so that it can be written.",
            )
        elif error.errno in {errno.EACCES, errno.EPERM}:
            reason, advice = "permission", "Give the user that runs the job the right to read and write there."
        elif error.errno in {errno.ENOTDIR, errno.EISDIR}:
            reason, advice = "in the way", f"{_in_the_way(self._file(path))}. Use another folder, or move that away."
        elif error.errno == errno.ENAMETOOLONG:
            reason, advice = "unsupported", "Use a folder with a shorter path."
        else:
            reason, advice = "unreachable", "Check that the file system is mounted and healthy."
        return StorageError(f"cannot {doing} {uri}: {error.strerror or error}. {advice}", uri=uri, reason=reason)


class _NoHardLinks(OSError):
    """The file system has no hard links, so it cannot create only if absent with whole content."""


class _NoFolders(OSError):
    """Folders cannot be made there, by nobody: /proc and its like say that the folder above is missing."""


def _refusing_folder(folder: str) -> str | None:
    """The folder above it that is there and takes no other; None where a folder can be made now."""
    missing = folder
    while not os.path.isdir(os.path.dirname(missing)):
        missing = os.path.dirname(missing)
    try:
        os.mkdir(missing)
    except FileNotFoundError:
        return os.path.dirname(missing)
    except OSError:
        return None
    return None


def _in_the_way(file: str) -> str:
    """What is there already, and is something else than is needed."""
    if os.path.isdir(file):
        return f"{file} is a folder, where a file is to be"
    while not os.path.lexists(file) and file != os.path.dirname(file):
        file = os.path.dirname(file)
    return f"{file} is not a folder"


def _link(temporary: str, target: str) -> bool:
    try:
        os.link(temporary, target)
    except FileExistsError:
        # NFS may carry out a request, lose the answer, repeat it, and then find the name taken by itself.
        return os.stat(temporary).st_nlink == 2
    except OSError as error:
        if error.errno in {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}:
            raise _NoHardLinks(
                error.errno, "this file system has no hard links, so it cannot create a file only if absent", target
            ) from error
        raise
    return True


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _make_folder(folder: str) -> None:
    """Like makedirs, but each new name is fsynced in the folder that holds it."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    if parent != folder:
        _make_folder(parent)
    with contextlib.suppress(FileExistsError, FileNotFoundError):
        os.mkdir(folder)
        _sync_folder(parent)


def _sync_folder(folder: str) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # pruned by another process, so nothing of ours is in it
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # some network file systems have no fsync for folders
            raise
    finally:
        os.close(descriptor)


def _unlink(file: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(file)


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
        raise error
