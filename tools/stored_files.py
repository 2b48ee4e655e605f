"""What lies in a job's folder, and what its log refers to: worked out from the files alone, without the classes under test.

A file is used if it is a record of the log, or if the metadata of a checkpoint that the newest record retains names it by a
"path".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.storage.store import ObjectStore

PROBE = "job/probe/create"  #: by which a start sees whether the storage can be written


def _log_of(store: ObjectStore) -> list[str]:
    return sorted(path for path in store.list("job/log") if path.endswith(".json"))


def newest_record(store: ObjectStore) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(store.get(_log_of(store)[-1]))["record"]
    return record


def paths_in(value: Any) -> Iterator[str]:
    """Everything that metadata names by a "path"."""
    if isinstance(value, dict):
        yield from (inner for key, inner in value.items() if key == "path" and isinstance(inner, str))
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from paths_in(inner)


def left_behind(store: ObjectStore) -> list[str]:
    """Files of the job that its log does not refer to."""
    files = set(store.list("job"))
    used = set(_log_of(store))
    for pointer in newest_record(store)["retained"]:
        used |= {pointer["metadata_path"], *paths_in(json.loads(store.get(pointer["metadata_path"])))}
    assert used <= files, "the log refers to files that are not there"
    return sorted(files - used - {PROBE})
