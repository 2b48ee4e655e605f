"""Folders of partitions: `day=2026-01-01/country=de`, as in Hive and Spark, and whether there can be such a folder. Executor.

Asked when a part is opened. Later it would be too late: what is part of a checkpoint must be committable.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from urllib.parse import quote

import pyarrow as pa

from tidegate.errors import ConfigurationError
from tidegate.storage.store import ObjectStore

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"  #: Hive's and Spark's name for a missing value
FILE_NAME_BYTES = 80  #: of a part, at the most
_MAX_PATH_BYTES = 4095  #: of a path on Linux; longer ones cannot be opened

Partition = tuple[tuple[str, str | None], ...]  #: names and values, as text


def partition_folder(partition: Partition) -> str:
    """`day=2026-01-01/country=de`, or nothing."""
    return "/".join(f"{_folder_name(name)}={_folder_value(value)}" for name, value in partition)


def _folder_name(name: str) -> str:
    """Readers skip what begins with "_" or "."; they undo the escape, as any other."""
    quoted = quote(name, safe=" ")
    return f"%{ord(quoted[0]):02X}{quoted[1:]}" if quoted.startswith(("_", ".")) else quoted


def _folder_value(value: str | None) -> str:
    return NULL_PARTITION if value is None else quote(value, safe=" ")


def check_partition_type(name: str, type: pa.DataType) -> None:
    """:raises ConfigurationError: for a type whose values have no text that readers turn back into them."""
    plain = type.value_type if pa.types.is_dictionary(type) else type
    if pa.types.is_nested(plain) or pa.types.is_duration(plain) or _is_binary(plain):
        raise ConfigurationError(
            f"partition_by names {name!r}, which is {type}: its values cannot name a folder. Partition by text, numbers, "
            "dates or times; map the records to such a field before the sink."
        )


def _is_binary(type: pa.DataType) -> bool:
    is_a = pa.types
    return bool(is_a.is_binary(type) or is_a.is_large_binary(type) or is_a.is_fixed_size_binary(type))


class FolderCheck:
    """What names may be where a sink writes to. `path_of` gives the path of a file in a partition's folder."""

    def __init__(self, where: str, path_of: Callable[[str], str], max_name_bytes: int, max_path_bytes: int) -> None:
        self._where = where
        self._path_of = path_of
        self._max_name_bytes = max_name_bytes
        self._max_path_bytes = max_path_bytes

    def __call__(self, partition: Partition) -> None:
        """:raises ConfigurationError: when no reader could find the records of it, or nobody could put them there."""
        for name, value in partition:
            if value == NULL_PARTITION:
                raise ConfigurationError(
                    f"{self._where}: a record has {name}={value!r}, which is how a missing value is written: readers would "
                    "find None. Map it to another value before the sink."
                )
            folder = f"{_folder_name(name)}={_folder_value(value)}"
            if len(folder) > self._max_name_bytes:
                raise ConfigurationError(
                    f"{self._where}: a record has {name}={_shortened(value)}, which would be a folder with a name of "
                    f"{len(folder)} bytes; it may have {self._max_name_bytes}. Map it to a shorter value before the sink, or "
                    "partition by another field."
                )
        length = len(os.fsencode(self._path_of(partition_folder(partition)))) + FILE_NAME_BYTES
        if length > self._max_path_bytes:
            raise ConfigurationError(
                f"{self._where}: the files of the partition {_shortened(partition_folder(partition))} would have paths of "
                f"{length} bytes; they may have {self._max_path_bytes}. Partition by fewer fields, or by shorter values."
            )


def local_check(folder: str) -> FolderCheck:
    """In a folder of a filesystem, which says what it allows; some allow less than others."""
    try:
        existing = folder
        while not os.path.exists(existing) and os.path.dirname(existing) != existing:
            existing = os.path.dirname(existing)
        max_name_bytes = os.pathconf(existing, "PC_NAME_MAX")
    except (OSError, ValueError):
        max_name_bytes = 255
    return FolderCheck(folder, lambda inside: f"{folder}/{inside}/", max_name_bytes, _MAX_PATH_BYTES)


def store_check(store: ObjectStore, path_of: Callable[[str], str]) -> FolderCheck:
    return FolderCheck(
        store.location,
        lambda inside: f"{store.location}/{path_of(inside)}/",
        store.max_name_bytes,
        store.max_path_bytes,
    )


def _shortened(value: str | None) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"
