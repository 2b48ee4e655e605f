"""What file connectors know about local folders and shared mounts. Driver and executors.

Names that begin with "_" or "." are hidden: Spark, Hive and pyarrow skip them, and so do we. A sink hides what is not
committed under such a name.
"""

from __future__ import annotations

import errno
import glob
import os
from urllib.parse import unquote, urlsplit

from tidegate.errors import ConfigurationError


def local_path(path: str | os.PathLike[str]) -> str:
    """The absolute path of a bare path or a file:// URI. Made absolute on the driver: executors stand elsewhere.

    :raises ConfigurationError: for any other URI, and for a path that no checkpoint can name.
    """
    text = os.fspath(path)
    if not text:
        raise ConfigurationError("The path of a file connector must not be empty.")
    check_name(text)
    if "://" not in text and not text.startswith("file:/"):
        return os.path.abspath(text)
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path:
        raise ConfigurationError(
            f"{text}: file connectors read and write local folders and shared mounts, named by a bare path or by "
            "file:///path. Object stores are not supported yet; mount the bucket, or use a connector of the store.",
            path=text,
        )
    if "?" in text or "#" in text:  # they end the path of a URI: another folder would be meant
        raise ConfigurationError(
            f"{text} holds a '?' or '#', which ends the path of a URI. Write %3F or %23, or a path without file://.",
            path=text,
        )
    return check_name(os.path.abspath(unquote(parts.path, errors="surrogateescape")))


def check_name(path: str) -> str:
    """Checkpoints name files, in JSON, which is Unicode; a name on the disk is any bytes.

    :raises ConfigurationError: for a name that is not UTF-8, or that no file can have.
    """
    if "\0" in path:
        raise ConfigurationError(f"{path!a} holds a NUL, which no name of a file can.", path=ascii(path))
    try:
        path.encode()
    except UnicodeEncodeError:
        shown = os.fsencode(path) if _is_of_the_disk(path) else ascii(path)
        raise ConfigurationError(
            f"The name {shown!r} is not UTF-8, and a checkpoint could not name the file. Rename it, or move it out of the "
            "folder (a name that begins with '_' or '.' is skipped).",
            path=ascii(path),
        ) from None
    return path


def _is_of_the_disk(path: str) -> bool:
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        return False
    return True


def is_hidden(name: str) -> bool:
    return name.startswith(("_", "."))


def expand(path: str) -> list[str]:
    """The files of a file's name, a folder (with its subfolders) or a glob, sorted, without hidden ones.

    A file that is named outright is taken even when it is hidden.

    :raises ConfigurationError: when there is nothing of that name, and for a file whose name is not UTF-8. An empty folder
        is fine.
    """
    return [check_name(file) for file in _expanded(path)]


def _expanded(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    if os.path.isdir(path):
        return sorted(_files_below(path))
    if not glob.has_magic(path):
        raise ConfigurationError(f"There is no file or folder {path}. All executors must see it too.", path=path)
    found: set[str] = set()
    for match in glob.glob(path, recursive=True):
        if any(is_hidden(part) for part in _matched_parts(path, match)):
            continue
        found.update(_files_below(match) if os.path.isdir(match) else [match])
    if not found:
        raise ConfigurationError(f"No file matches {path}. All executors must see the files too.", path=path)
    return sorted(found)


def _files_below(folder: str) -> list[str]:
    files: list[str] = []
    for current, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        files.extend(os.path.join(current, name) for name in names if not is_hidden(name))
    return files


def _matched_parts(pattern: str, match: str) -> list[str]:
    """The parts of the path that the pattern left open; what the user wrote out is wanted, hidden or not."""
    fixed = 0
    for part in pattern.split(os.sep):
        if glob.has_magic(part):
            break
        fixed += 1
    return match.split(os.sep)[fixed:]


def sync_folder(folder: str) -> None:
    """Make the folder's entries durable: without it a crash of the machine can undo a link or a rename."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network and FUSE mounts have no such call; they make entries durable by themselves or not at all.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
    finally:
        os.close(handle)


def make_folder(folder: str) -> None:
    """Create the folder and its parents, durably."""
    if os.path.isdir(folder):
        return
    parent = os.path.dirname(folder)
    make_folder(parent)
    try:
        os.mkdir(folder)
    except FileExistsError:
        if not os.path.isdir(folder):
            raise ConfigurationError(f"{folder} is a file; a folder is needed there.", path=folder) from None
    sync_folder(parent)
