"""Where checkpoints live: one contract over local files, S3, GCS, Azure, HDFS and memory. Driver and executors, any thread.

What every store guarantees, and the job's log is built on:

1. `put` and `create` are atomic: a reader sees the whole object or none, also when the writer dies half-way.
2. `create` decides between any number of writers: for one path it answers True at most once.
3. What `put` or `create` has returned from survives a crash of the process and of the machine, as far as the medium
   does (the local store calls fsync for the file and its folders).
4. A read that begins after a write has returned sees it, on every machine that shares the storage.

`create` may fail and still have had its effect (a lost answer). Whoever needs to know reads the object back.

No credentials: a URI that holds some is refused, and messages are scrubbed of user info and queries.
"""

from __future__ import annotations

import builtins
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, TypeAlias
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from tidegate.errors import ConfigurationError, StorageError
from tidegate.ids import AttemptId
from tidegate.storage.paths import JobPaths

Data: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

CLOUD_SCHEMES = frozenset({"s3", "s3a", "gs", "az", "azure", "abfs", "abfss"})

#: The driver's memory: executors hand their state to the driver, and never see this storage (docs/storage.md).
DRIVER_MEMORY = "memory"

#: How the stores that write beside the place and then rename call what they write; a killed writer leaves it behind.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


class StorageNotShared(StorageError):
    """The executors do not see what the driver writes. No retry can help."""


class StorageNotFound(StorageError):
    """There is no object at this path. Field: uri."""


class ObjectStore(ABC):
    """Objects under paths such as `wordcount/log/00000042.json`, relative to `location`. Pickled as its location."""

    max_name_bytes: ClassVar[int] = 255  #: of one part of a path
    max_path_bytes: ClassVar[int] = 4095  #: with the location

    def __init__(self, location: str) -> None:
        self.location = location  #: the URI of the root, without credentials and without a slash at the end

    def check_credentials(self) -> None:
        """:raises StorageError: when nobody gives any to this machine. Soon: whoever starts a job waits for the answer."""
        return

    @abstractmethod
    def get(self, path: str) -> bytes:
        """:raises StorageNotFound: when there is no such object."""

    @abstractmethod
    def get_range(self, path: str, start: int, length: int) -> bytes:
        """The bytes from `start`; fewer than `length`, or none, where the object ends earlier.

        :raises StorageNotFound: when there is no such object.
        """

    @abstractmethod
    def put(self, path: str, data: Data) -> None:
        """Store the object, over an older one if there is one."""

    @abstractmethod
    def create(self, path: str, data: Data) -> bool:
        """Store the object only if there is none; False when there is one, which stays as it is.

        :raises StorageError: when it could not be stored, *or when nobody knows*: the object may be there all the same.
        """

    @abstractmethod
    def exists(self, path: str) -> bool: ...

    @abstractmethod
    def delete(self, path: str) -> None:
        """A missing object is fine."""

    def delete_many(self, paths: Iterable[str]) -> None:
        for path in paths:
            self.delete(path)

    def uri(self, path: str) -> str:
        """How to name an object to a person; `resume` takes it as well."""
        return f"{self.location}/{path}"

    @abstractmethod
    def list(self, prefix: str) -> builtins.list[str]:
        """Every path below the folder `prefix` ("" for all), sorted. Also shown is what a killed writer has left behind
        (`temporary_name`), so that a sweep can find it."""

    def folders(self, prefix: str) -> builtins.list[str]:
        """The names of the folders right below `prefix`, sorted, without a look at what lies deeper."""
        start = len(folder_prefix(prefix))
        return sorted({path[start:].partition("/")[0] for path in self.list(prefix) if "/" in path[start:]})

    def temporary_files(self, folder: str) -> builtins.list[str]:
        """What killed writers have left right in this folder, by their paths. None where a write leaves nothing."""
        return []

    def __reduce__(self) -> tuple[Any, ...]:
        return open_store, (self.location,)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location!r})"


def open_store(uri: str) -> ObjectStore:
    """The store at `file:///path`, `/path`, `s3://bucket/folder`, `gs://`, `az://`, `hdfs://namenode:port/folder`,
    `memory` (the driver's) or `memory://name` (of this process, for tests).

    Nothing is asked of the storage yet: `write_probe` does that.

    :raises ConfigurationError: when the URI cannot be one, or holds credentials.
    """
    # Imported here because the implementations import the contract, and because obstore starts threads when it is used:
    # a process that only forks workers must never come near it.
    if uri.startswith("/"):
        from tidegate.storage.local_store import LocalStore

        return LocalStore(uri)
    parts = urlsplit(uri)
    scheme = parts.scheme.lower()
    if scheme == "memory" or uri == DRIVER_MEMORY:
        from tidegate.storage.memory_store import MemoryStore

        return MemoryStore(without_credentials(uri).partition("://")[2])
    if scheme not in {"file", "hdfs"} and scheme not in CLOUD_SCHEMES:
        raise ConfigurationError(
            f"checkpoint storage {without_credentials(uri)!r} is neither an absolute path nor a URI of a known kind. "
            "Use /path, file:///path, s3://bucket/folder, gs://bucket/folder, az://container/folder, "
            'hdfs://namenode:port/folder, or "memory" for the driver\'s memory.',
            uri=without_credentials(uri),
        )
    # abfss://container@account.dfs.core.windows.net is how Azure names a container; a colon would make it a password.
    names_container = scheme in {"abfs", "abfss"} and parts.password is None
    if parts.query or (parts.username is not None and not names_container):
        raise ConfigurationError(
            f"the URI of the checkpoint storage {without_credentials(uri)} holds credentials or a query. They would "
            "be shown in logs and are not used; give them by environment variables (AWS_ACCESS_KEY_ID, "
            "GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY ...) or by the role of the machine.",
            uri=without_credentials(uri),
        )
    if "#" in uri:  # what follows would be left out, and folders that differ in it alone would be one
        raise ConfigurationError(
            f"the URI of the checkpoint storage {without_credentials(uri)}#... holds a '#', which ends the path of a URI. "
            "Write %23 in a file:// URI; name another folder elsewhere.",
            uri=without_credentials(uri),
        )
    if scheme == "file":
        from tidegate.storage.local_store import LocalStore

        if parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
            raise ConfigurationError(
                f"{without_credentials(uri)} does not name a local path. Write three slashes: file:///path.",
                uri=without_credentials(uri),
            )
        return LocalStore(unquote(parts.path))
    if scheme == "hdfs":
        from tidegate.storage.hdfs_store import HdfsStore

        return HdfsStore(uri.rstrip("/"))
    from tidegate.storage.cloud_store import CloudStore

    return CloudStore(uri.rstrip("/"))


def without_credentials(text: str) -> str:
    """The text with the user info and the query of every URI in it taken out."""
    text = re.sub(r"(?i)\b((?!abfss?:)[a-z][a-z0-9+.-]*://)[^/\s\"'?#]*@", r"\1", text)
    text = re.sub(r"(?i)\b(abfss?://)([^/\s\"'?#:@]*):[^/\s\"'?#]*@", r"\1\2@", text)
    return re.sub(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s\"'?#]*)[?#][^\s\"']*", r"\1", text)


def check_path(path: str) -> str:
    """:raises StorageError: for a path that could leave the store's folder. A bug or a tampered file."""
    if not path or any(part in {"", ".", ".."} for part in path.split("/")) or "\0" in path:
        raise StorageError(f"{path!r} is not a path inside checkpoint storage", path=path)
    return path


def folder_prefix(prefix: str) -> str:
    """`a/b` and `a/b/` both mean the folder; "" means everything."""
    return prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""


def temporary_name(name: str) -> str:
    """Of a file beside `name` that is going to become it."""
    return f".{name}.{secrets.token_hex(4)}.tmp"


def is_temporary(path: str) -> bool:
    return _TEMPORARY.fullmatch(path.rpartition("/")[2]) is not None


# -- is it usable, and is it shared? -------------------------------------------------------------------------------


def check_create(store: ObjectStore, job: str) -> None:
    """Driver, before anything runs: prove that the store keeps what the log needs.

    The object that is tried with stays for ever: whoever deleted it would break the check of another driver.

    :raises StorageError: when the store cannot be written, or does not refuse to create an object twice. Some servers
        that speak S3 ignore the condition and overwrite: two drivers would then both believe that they hold the job.
    """
    store.check_credentials()
    path = JobPaths(job).create_probe
    store.create(path, b"once")
    if store.create(path, b"twice"):
        raise StorageError(
            f"the storage {store.location} overwrites an object that it was asked to create only if absent. Without "
            "that, two drivers could both commit. Use a storage or a version of its server that supports conditional "
            "writes (If-None-Match).",
            uri=store.location,
        )


def write_probe(store: ObjectStore, job: str, attempt: AttemptId) -> None:
    """Driver, before each attempt: what its executors must see."""
    store.put(JobPaths(job).probe(attempt), _probe_text(attempt))


def read_probe(store: ObjectStore, job: str, attempt: AttemptId) -> None:
    """Executor, before anything else: prove that this machine sees what the driver wrote for this attempt.

    :raises StorageNotShared: when it does not.
    """
    path = JobPaths(job).probe(attempt)
    try:
        found = store.get(path)
    except StorageNotFound:
        found = b""
    if found != _probe_text(attempt):
        raise StorageNotShared(
            f"the checkpoint storage {store.location} is not shared: this executor cannot see {store.uri(path)}, "
            "which the driver has just written. Use a storage that the driver and all executors share (s3://, gs://, "
            'az://, hdfs://, or a path on a network file system mounted at the same place everywhere), or "memory" to '
            "keep small state in the driver's memory.",
            uri=store.location,
        )


def _probe_text(attempt: AttemptId) -> bytes:
    return str(attempt).encode()
