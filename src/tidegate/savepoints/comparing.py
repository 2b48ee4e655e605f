"""What differs between the keyed state of two savepoints. No Spark, no job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.savepoints.reading import Savepoint, StateTable

_SCHEMA_NAMES = ("change", "key", "namespace", "map_key", "before", "after")


@dataclass(frozen=True, slots=True)
class StateDiff:
    """One state: how many entries are only in one of the two, differ, or are the same; and those that differ as rows."""

    uid: str
    name: str
    added: int
    removed: int
    changed: int
    same: int
    rows: pa.Table  #: change, key, namespace, map_key, before, after; texts, whatever the types are

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)


def diff(before: Savepoint, after: Savepoint) -> list[StateDiff]:
    """All keyed states and timers of both, those of `before` first."""
    names: dict[tuple[str, str], None] = {}
    for savepoint in (before, after):
        for state in savepoint.states():
            if state.key_type and not state.kind.startswith(("operator-", "raw-", "in-flight")):
                names[state.uid, state.name] = None
    return [_diff(uid, name, _entries(before, uid, name), _entries(after, uid, name)) for uid, name in names]


def _entries(savepoint: Savepoint, uid: str, name: str) -> dict[tuple[bytes, bytes, str], tuple[Any, Any]]:
    entries = {}
    for state in savepoint.states():
        if (state.uid, state.name) == (uid, name):
            for rows in StateTable(savepoint, uid, name, state.kind).batches():
                for row in rows.to_pylist():
                    entry = row["key_bytes"], row["namespace"], repr(row.get("map_key"))
                    entries[entry] = row["key"], row["value"]
    return entries


def _diff(uid: str, name: str, before: dict[Any, tuple[Any, Any]], after: dict[Any, tuple[Any, Any]]) -> StateDiff:
    rows: list[tuple[str, str, str, str, str | None, str | None]] = []
    same = 0
    for entry in sorted(before.keys() | after.keys()):
        old, new = before.get(entry), after.get(entry)
        if (
            old is not None and new is not None and (old[1] == new[1] or repr(old[1]) == repr(new[1]))
        ):  # NaN is not equal to NaN
            same += 1
            continue
        change = "added" if old is None else "removed" if new is None else "changed"
        key = (old or new or ("", None))[0]
        texts = [None if found is None else repr(found[1]) for found in (old, new)]
        rows.append((change, repr(key), entry[1].hex(), entry[2], texts[0], texts[1]))
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_SCHEMA_NAMES)
    table = pa.table(
        {label: pa.array(column, pa.string()) for label, column in zip(_SCHEMA_NAMES, columns, strict=True)}
    )
    count = {change: sum(row[0] == change for row in rows) for change in ("added", "removed", "changed")}
    return StateDiff(uid, name, count["added"], count["removed"], count["changed"], same, table)
