"""A plain model of keyed state, and what a snapshot's sections say, in the same plain form."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tidegate.state.backend import Section, bind_states
from tidegate.state.declarations import AggregatingState, ListState, MapState, ReducingState, ValueState
from tidegate.state.heap import HeapStateBackend
from tidegate.state.key_groups import key_group
from tidegate.state.keys import KeyType

MAX_PARALLELISM = 16


@dataclass(frozen=True, slots=True)
class InNamespace:
    """How a key in a namespace other than the empty one is written in models."""

    key: Any
    namespace: bytes


class Mean:
    """An aggregation as users write it in haste: it changes the accumulator that it was given."""

    accumulator_type = list[int]

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        accumulator[0] += value
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator: list[int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        return [a[0] + b[0], a[1] + b[1]]


class Everything:
    """A function with one state of each sort. `total` is bound columnar or not, as the test says."""

    total = ValueState(int, default=0)
    tags = ValueState(list[int])  # mutable
    log = ListState(str)
    counts = MapState(str, int)
    best = ReducingState(int, max)
    mean = AggregatingState(Mean())


STATES = ("total", "tags", "log", "counts", "best", "mean")


def backend_for(
    key_type: KeyType,
    key_groups: range = range(MAX_PARALLELISM),
    wall_clock: Callable[[], float] = time.time,
) -> HeapStateBackend:
    return HeapStateBackend(key_type, key_groups, MAX_PARALLELISM, wall_clock)


def bound(key_type: KeyType, columnar: bool) -> tuple[HeapStateBackend, Everything]:
    backend, function = backend_for(key_type), Everything()
    bind_states(function, backend, columnar)
    return backend, function


def plain(sections: Iterable[Section], key_type: KeyType) -> dict[str, dict[Any, Any]]:
    """State name -> normalised key -> value. Checks on the way what must hold for every section without a TTL."""
    found: dict[str, dict[Any, Any]] = {name: {} for name in STATES}
    for row in stored_rows(sections, key_type):
        assert row.expiry is None
        if row.kind == "map":
            entries = found[row.state].setdefault(row.key, {})
            assert row.map_key not in entries
            entries[row.map_key] = row.value
        else:
            assert row.key not in found[row.state]
            found[row.state][row.key] = row.value
    return found


@dataclass(frozen=True, slots=True)
class Row:
    state: str
    kind: str
    key: Any  #: normalised; InNamespace where there is one
    map_key: Any
    value: Any
    expiry: Any


def stored_rows(sections: Iterable[Section], key_type: KeyType) -> Iterable[Row]:
    """The rows of all sections; each is where it belongs."""
    seen: set[tuple[str, int]] = set()
    for state, kind, group, rows in sections:
        assert (state, group) not in seen, "one section for each state and key group"
        assert rows.num_rows > 0
        seen.add((state, group))
        for row in rows.to_pylist():
            raw = key_type.decode(row["key"])
            assert key_group(key_type.hash(raw), MAX_PARALLELISM) == group
            key = key_type.normalise(raw)
            at = InNamespace(key, row["namespace"]) if row["namespace"] else key
            yield Row(state, kind, at, row.get("map_key"), row["value"], row["expiry"])


class Model:
    """The same operations on dictionaries."""

    def __init__(self) -> None:
        self.state: dict[str, dict[Any, Any]] = {name: {} for name in STATES}

    def copy(self) -> dict[str, dict[Any, Any]]:
        return copy.deepcopy(self.state)
