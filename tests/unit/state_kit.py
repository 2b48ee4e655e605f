"""A plain model of keyed state, and what a snapshot's sections say, in the same plain form."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from tidegate.state.backend import Section, bind_states
from tidegate.state.declarations import ListState, MapState, ValueState
from tidegate.state.heap import HeapStateBackend
from tidegate.state.key_groups import key_group
from tidegate.state.keys import KeyType

MAX_PARALLELISM = 16


class Everything:
    """A function with one state of each sort. `total` is bound columnar or not, as the test says."""

    total = ValueState(int, default=0)
    tags = ValueState(list[int])  # mutable
    log = ListState(str)
    counts = MapState(str, int)


def backend_for(key_type: KeyType, key_groups: range = range(MAX_PARALLELISM)) -> HeapStateBackend:
    return HeapStateBackend(key_type, key_groups, MAX_PARALLELISM)


def bound(key_type: KeyType, columnar: bool) -> tuple[HeapStateBackend, Everything]:
    backend, function = backend_for(key_type), Everything()
    bind_states(function, backend, columnar)
    return backend, function


def plain(sections: Iterable[Section], key_type: KeyType) -> dict[str, dict[Any, Any]]:
    """State name -> normalised key -> value. Checks on the way what must hold for every section."""
    found: dict[str, dict[Any, Any]] = {name: {} for name in ("total", "tags", "log", "counts")}
    seen: set[tuple[str, int]] = set()
    for state, kind, group, rows in sections:
        assert (state, group) not in seen, "one section for each state and key group"
        assert rows.num_rows > 0
        seen.add((state, group))
        for row in rows.to_pylist():
            raw = key_type.decode(row["key"])
            assert key_group(key_type.hash(raw), MAX_PARALLELISM) == group
            assert row["namespace"] == b""
            key = key_type.normalise(raw)
            if kind == "map":
                entries = found[state].setdefault(key, {})
                assert row["map_key"] not in entries
                entries[row["map_key"]] = row["value"]
            else:
                assert key not in found[state]
                found[state][key] = row["value"]
    return found


class Model:
    """The same operations on dictionaries."""

    def __init__(self) -> None:
        self.state: dict[str, dict[Any, Any]] = {"total": {}, "tags": {}, "log": {}, "counts": {}}

    def copy(self) -> dict[str, dict[Any, Any]]:
        return copy.deepcopy(self.state)
