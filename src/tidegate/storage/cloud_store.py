"""Checkpoint storage in S3, GCS or Azure, by obstore. Driver and executors, any thread.

obstore runs its requests on threads of its own, which do not survive a fork: this module is imported only by a process
that uses it. Credentials come from the environment or the machine's role, never from the URI.

A `create` that obstore repeats after a lost answer may find its own object and answer False: the log compares contents.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import from_url

from tidegate.errors import StorageError
from tidegate.storage.store import Data, ObjectStore, StorageNotFound, check_path, folder_prefix, without_credentials

T = TypeVar("T")

#: obstore's default is three minutes: longer than a checkpoint may wait.
_RETRY: dict[str, Any] = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
_SOON: dict[str, Any] = {"max_retries": 3, "retry_timeout": timedelta(seconds=2)}  #: half a second where nobody answers

CREDENTIALS_ASKED = "credentials"  #: an object that need not be there: to ask for it takes credentials
#: Where a machine, a container or a pod is asked for the credentials of its role: only if the environment has none.
_ROLE = re.compile(r"://169\.254\.|/latest/api/token|://metadata(\.google\.internal|/)|/metadata/identity/")
#: By scheme: how the environment gives credentials.
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS, the path of a key file",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class CloudStore(ObjectStore):
    max_name_bytes = max_path_bytes = 1024  #: of a key, in all three clouds

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(without_credentials(uri))
        self._store = self._ask("open", "", lambda: from_url(uri, **{"retry_config": _RETRY, **options}))
        self._asking = self._ask("open", "", lambda: from_url(uri, **{"retry_config": _SOON, **options}))

    def check_credentials(self) -> None:
        try:
            obstore.head(self._asking, CREDENTIALS_ASKED)
        except (BaseError, OSError, ValueError) as error:
            if _ROLE.search(str(error).partition("\n\nDebug source")[0]):
                raise self._error(
                    "look at", CREDENTIALS_ASKED, error
                ) from None  # all else is for those who wait longer

    def get(self, path: str) -> bytes:
        check_path(path)
        return self._ask("read", path, lambda: bytes(obstore.get(self._store, path).bytes()))

    def get_range(self, path: str, start: int, length: int) -> bytes:
        check_path(path)
        if length == 0:
            return b""
        try:
            return self._ask(
                "read", path, lambda: bytes(obstore.get_range(self._store, path, start=start, length=length))
            )
        except StorageNotFound:
            raise
        except StorageError:
            # Servers refuse a range that begins after the end. A file cut short is not a trouble of the network.
            size = self._ask("look at", path, lambda: int(obstore.head(self._store, path)["size"]))
            if start >= size:
                return b""
            raise

    def put(self, path: str, data: Data) -> None:
        check_path(path)
        self._ask("write", path, lambda: obstore.put(self._store, path, memoryview(data).cast("B")))

    def create(self, path: str, data: Data) -> bool:
        check_path(path)
        try:
            self._ask("create", path, lambda: obstore.put(self._store, path, memoryview(data).cast("B"), mode="create"))
        except _Taken:
            return False
        return True

    def exists(self, path: str) -> bool:
        check_path(path)
        try:
            self._ask("look at", path, lambda: obstore.head(self._store, path))
        except StorageNotFound:
            return False
        return True

    def delete(self, path: str) -> None:
        check_path(path)
        try:
            self._ask("delete", path, lambda: obstore.delete(self._store, path))
        except StorageNotFound:
            pass

    def delete_many(self, paths: Iterable[str]) -> None:
        checked = [check_path(path) for path in paths]
        if not checked:
            return
        try:
            self._ask("delete", checked[0], lambda: obstore.delete(self._store, checked))
        except StorageNotFound:  # GCS and Azure stop at a missing one
            super().delete_many(checked)

    def list(self, prefix: str) -> builtins.list[str]:
        folder = folder_prefix(prefix)
        found = self._ask(
            "list", prefix, lambda: [str(item["path"]) for chunk in obstore.list(self._store, folder) for item in chunk]
        )
        return sorted(found)

    def folders(self, prefix: str) -> builtins.list[str]:
        folder = folder_prefix(prefix)
        found = self._ask("list", prefix, lambda: obstore.list_with_delimiter(self._store, folder)["common_prefixes"])
        return sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)

    def _ask(self, doing: str, path: str, request: Callable[[], T]) -> T:
        try:
            return request()
        except FileNotFoundError:
            raise StorageNotFound(f"{self.uri(path)} does not exist", uri=self.uri(path)) from None
        except (AlreadyExistsError, PreconditionError):
            raise _Taken(f"{self.uri(path)} exists", uri=self.uri(path)) from None
        except (BaseError, OSError, NotImplementedError, ValueError) as error:
            # `from None`: the original's text may hold a signed URL, and a traceback would print it.
            raise self._error(doing, path, error) from None

    def _error(self, doing: str, path: str, error: Exception) -> StorageError:
        uri = self.uri(path) if path else self.location
        detail = without_credentials(str(error).partition("\n\nDebug source")[0].strip())
        if isinstance(error, (NotSupportedError, NotImplementedError)):
            reason = "unsupported"
            advice = (
                "The job's log needs a storage that can create an object only if absent. Switch conditional writes on "
                "(AWS_CONDITIONAL_PUT=etag), or use another storage."
            )
        elif _ROLE.search(detail):
            reason = "permission"
            scheme = {"s3a": "s3", "azure": "az", "abfs": "az", "abfss": "az"}.get(
                uri.partition(":")[0], uri.partition(":")[0]
            )
            detail = "there are no credentials: the environment has none, and this machine has no role that gives any"
            advice = f"Set {_CREDENTIALS[scheme]}, here and on the executors."
        elif isinstance(error, (PermissionDeniedError, UnauthenticatedError)):
            reason = "permission"
            advice = "Check the credentials in the environment, and their right to read, write, list and delete there."
        else:
            reason = "unreachable"
            advice = (
                "Check the address, the network and the credentials in the environment; the job may be started again."
            )
        return StorageError(f"cannot {doing} {uri}: {detail}. {advice}", uri=uri, reason=reason)


class _Taken(StorageError):
    """Never leaves this module."""
