"""Checkpoint storage in HDFS, by hdfs-native, which speaks the namenode's own protocol without a JVM. Driver and executors.

A file in HDFS can be seen while it is being written. So an object is written to a temporary file beside its place, closed,
and then renamed; the namenode carries a rename out as one step, and refuses one onto an existing name when asked to.

Before the rename the file is synced to the disks of its datanodes (hsync); how many those are is a matter of the
cluster's settings (dfs.replication). Only erasure-coded folders have no sync: there a file is as durable as a closed one.

The address may be a namenode's (hdfs://host:8020/folder) or a nameservice's, found by HADOOP_CONF_DIR as Hadoop's own
clients do. The client runs threads of its own, which do not survive a fork: this module is imported only by a process
that uses it.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from tidegate import extras
from tidegate.errors import ConfigurationError, StorageError
from tidegate.storage.store import (
    Data,
    ObjectStore,
    StorageNotFound,
    check_path,
    folder_prefix,
    is_temporary,
    temporary_name,
    without_credentials,
)

try:
    from hdfs_native import Client, WriteOptions
except ImportError as error:
    raise extras.HDFS.missing() from error

T = TypeVar("T")

#: Hadoop's default continues for minutes: longer than a checkpoint may wait. This is about half a minute.
CLIENT_SETTINGS = {"dfs.client.failover.max.attempts": "7", "dfs.client.failover.sleep.max.millis": "8000"}
_NO_SPACE = ("DSQuotaExceeded", "NSQuotaExceeded", "QuotaExceeded", "No space left", "could only be written to 0")
_BELOW_A_FILE = ("(is not a directory)", "ParentNotDirectory")
_PERMISSION = ("AccessControlException", "Permission denied", "SASL", "GSSAPI", "Kerberos")


class HdfsStore(ObjectStore):
    def __init__(self, uri: str) -> None:
        super().__init__(without_credentials(uri))
        parts = urlsplit(uri)
        if not parts.netloc:
            raise ConfigurationError(
                f"{without_credentials(uri)} names no namenode. Write hdfs://namenode:port/folder, or the name of a "
                "nameservice that HADOOP_CONF_DIR knows.",
                uri=without_credentials(uri),
            )
        self._root = unquote(parts.path).rstrip("/")
        self._client = self._ask("open", "", lambda: Client(f"hdfs://{parts.netloc}", config=CLIENT_SETTINGS))

    def get(self, path: str) -> bytes:
        return self._ask("read", path, lambda: bytes(self._client.read(self._file(path)).read()))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        def read() -> bytes:
            reader = self._client.read(self._file(path))
            left = max(0, min(length, len(reader) - start))
            return bytes(reader.read_range(start, left)) if left else b""

        return self._ask("read", path, read)

    def put(self, path: str, data: Data) -> None:
        temporary = self._write_beside("write", path, data)
        try:
            self._ask("write", path, lambda: self._client.rename(temporary, self._file(path), True))
        except StorageError:
            self._forget(temporary)
            raise

    def create(self, path: str, data: Data) -> bool:
        if self.exists(path):
            return False  # nothing needs to be written to lose
        temporary = self._write_beside("create", path, data)
        try:
            self._ask("create", path, lambda: self._client.rename(temporary, self._file(path), False))
        except _Taken:
            self._forget(temporary)
            return False
        except StorageError:
            self._forget(temporary)
            raise
        return True

    def exists(self, path: str) -> bool:
        try:
            return not self._ask("look at", path, lambda: self._client.get_file_info(self._file(path))).isdir
        except StorageNotFound:
            return False

    def delete(self, path: str) -> None:
        try:
            self._ask("delete", path, lambda: self._client.delete(self._file(path), False))
        except StorageNotFound:
            return
        self._prune(path)

    def list(self, prefix: str) -> builtins.list[str]:
        return sorted(path for path, is_folder in self._status(prefix, recursive=True) if not is_folder)

    def folders(self, prefix: str) -> builtins.list[str]:
        found = self._status(prefix, recursive=False)
        return sorted(path.rpartition("/")[2] for path, is_folder in found if is_folder)

    def temporary_files(self, folder: str) -> builtins.list[str]:
        return sorted(path for path, _ in self._status(folder, recursive=False) if is_temporary(path))

    # -- files -----------------------------------------------------------------------------------------------------

    def _file(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _status(self, prefix: str, recursive: bool) -> builtins.list[tuple[str, bool]]:
        """(path in the store, whether it is a folder) of everything in a folder."""
        folder = self._file(prefix.rstrip("/")) if folder_prefix(prefix) else self._root or "/"
        try:
            entries = self._ask("list", prefix, lambda: list(self._client.list_status(folder, recursive)))
        except StorageNotFound:
            return []
        return [
            (urlsplit(entry.path).path[len(self._root) + 1 :], entry.isdir)
            for entry in entries
            if urlsplit(entry.path).path != folder  # a file is listed as itself
        ]

    def _write_beside(self, doing: str, path: str, data: Data) -> str:
        """A synced and closed temporary file in the folder of `path`."""
        folder, _, name = self._file(path).rpartition("/")
        temporary = f"{folder}/{temporary_name(name)}"

        def write() -> None:
            writer = self._client.create(temporary, WriteOptions(create_parent=True))
            view = memoryview(data).cast("B")
            if view.nbytes:
                writer.write(view)
                try:
                    writer.hsync()
                except NotImplementedError:
                    pass  # erasure-coded
            writer.close()

        try:
            self._ask(doing, path, write)
        except StorageError:
            self._forget(temporary)
            raise
        return temporary

    def _forget(self, file: str) -> None:
        try:
            self._client.delete(file, False)
        except Exception:  # the trouble that brought us here is told; what stays behind is swept
            return

    def _prune(self, path: str) -> None:
        """Folders have no meaning in the contract; empty ones would pile up, one for each checkpoint."""
        folder = path.rpartition("/")[0]
        while folder:
            try:
                self._client.delete(self._file(folder), False)  # refused while anything is in it
            except Exception:
                return
            folder = folder.rpartition("/")[0]

    def _ask(self, doing: str, path: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise StorageNotFound(f"{self.uri(path)} does not exist", uri=self.uri(path)) from None
        except FileExistsError:
            raise _Taken(f"{self.uri(path)} exists", uri=self.uri(path)) from None
        except StorageError:
            raise
        except Exception as error:  # the client raises RuntimeError for whatever the namenode says
            # A path below a file; the namenode calls it a matter of access.
            if any(word in str(error) for word in _BELOW_A_FILE) and doing in {"read", "look at", "list", "delete"}:
                raise StorageNotFound(f"{self.uri(path)} does not exist", uri=self.uri(path)) from None
            raise self._error(doing, path, error) from None

    def _error(self, doing: str, path: str, error: Exception) -> StorageError:
        uri = self.uri(path) if path else self.location
        text = str(error)
        if any(word in text for word in _NO_SPACE):
            reason, advice = "no space", "Free some, raise the quota, or use another storage, and start the job again."
        elif any(word in text for word in _PERMISSION):
            reason, advice = (
                "permission",
                "Check who runs the job (HADOOP_USER_NAME, Kerberos) and its right to read and write there.",
            )
        else:
            reason, advice = "unreachable", "Check the address of the namenode, and that it and its datanodes are up."
        # The namenode answers with a Java stack trace; what stands before it says it all.
        first = without_credentials(re.split(r"\n|\\n", text.strip())[0] or type(error).__name__)
        return StorageError(f"cannot {doing} {uri}: {first}. {advice}", uri=uri, reason=reason)


class _Taken(StorageError):
    """Never leaves this module."""
