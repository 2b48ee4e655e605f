"""Stored JSON with a version of its format: one way to read it, for metadata, savepoints and log records. Pure.

The version is looked at before anything else, so that a file of a later release is called that, and never damaged.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

import msgspec

from tidegate.errors import CheckpointDamaged

T = TypeVar("T")


class _Versions(msgspec.Struct):
    format_version: int | None = None
    savepoint_version: int | None = None


def decode_versioned(data: bytes, type: type[T], field: str, readable: Collection[int], uri: str) -> T:
    """`field`: where the version stands.

    :raises CheckpointDamaged: of a version that is not readable. :raises msgspec.MsgspecError: when it is not such JSON.
    """
    found = version_of(data, field)
    if found is None:
        raise msgspec.ValidationError(f"it has no `{field}`")
    if found not in readable:
        versions = " and ".join(map(str, sorted(readable)))
        raise CheckpointDamaged(
            f"{uri} has format version {found}; this release reads version {versions}. Use the release that wrote it, "
            "or a newer one.",
            path=uri,
        )
    return msgspec.json.decode(data, type=type)


def version_of(data: bytes, field: str) -> int | None:
    """None where there is no such field. :raises msgspec.MsgspecError: when it is not a JSON object."""
    found: int | None = getattr(msgspec.json.decode(data, type=_Versions), field)
    return found
