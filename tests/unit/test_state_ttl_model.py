"""State that expires against plain dictionaries: random writes, reads, moves of the clock, clean-ups and restores."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rocksdb_kit import AMPLE, NONE, rocks_backends
from state_kit import InNamespace, backend_for, stored_rows

from tidegate.state.backend import bind_states
from tidegate.state.declarations import ListState, MapState, ReducingState, ValueState
from tidegate.state.keys import key_type
from tidegate.state.ttl import Ttl
from tidegate.testing.clock import ManualClock

INT = key_type(int)
LIFETIME_S = 10
NAMES = ("value", "list", "map", "reducing")
Stored = dict[str, dict[Any, Any]]  # state -> key -> what the model keeps: (value, expiry), in a list or a map of such


class Run:
    """One backend and its model, moved together."""

    def __init__(self, update: Any, new_backend: Any) -> None:
        self.new_backend = new_backend

        class States:
            value = ValueState(int, ttl=Ttl(f"{LIFETIME_S}s", update))
            list = ListState(int, ttl=Ttl(f"{LIFETIME_S}s", update))
            map = MapState(str, int, ttl=Ttl(f"{LIFETIME_S}s", update))
            reducing = ReducingState(int, lambda a, b: a + b, ttl=Ttl(f"{LIFETIME_S}s", update))

        self.refreshes = update == "read_and_write"
        self.clock = ManualClock()
        self.states = States
        self.model: Stored = {name: {} for name in NAMES}
        self.snapshots: list[tuple[Any, int, Stored]] = []
        self.start()

    def start(self) -> None:
        self.backend = self.new_backend(INT, wall_clock=self.clock)
        self.f: Any = self.states()
        bind_states(self.f, self.backend)

    @property
    def now(self) -> int:
        return int(self.clock.now * 1000)

    @property
    def fresh(self) -> int:
        return self.now + LIFETIME_S * 1000

    def at(self, key: int) -> Any:
        """Keys from 3 on are the others in a namespace."""
        self.backend.set_current_key(key % 3)
        if key >= 3:
            self.backend.set_current_namespace(b"w")
            return InNamespace(key % 3, b"w")
        return key

    def live(self, name: str, at: Any) -> int | None:
        value, expiry = self.model[name].get(at, (None, 0))
        return value if expiry > self.now else None

    # -- operations: a key and a number ------------------------------------------------------------------------------

    def set_value(self, key: int, number: int) -> None:
        at = self.at(key)
        self.f.value.set(number)
        self.model["value"][at] = (number, self.fresh)

    def get_value(self, key: int, _: int) -> None:
        at = self.at(key)
        expected = self.live("value", at)
        assert self.f.value.get() == expected
        if self.refreshes and expected is not None:
            self.model["value"][at] = (expected, self.fresh)

    def reduce(self, key: int, number: int) -> None:
        at = self.at(key)
        self.f.reducing.add(number)
        self.model["reducing"][at] = ((self.live("reducing", at) or 0) + number, self.fresh)

    def append(self, key: int, number: int) -> None:
        at = self.at(key)
        self.f.list.add_all([number, number + 1])
        self.model["list"].setdefault(at, []).extend([(number, self.fresh), (number + 1, self.fresh)])

    def get_list(self, key: int, _: int) -> None:
        at = self.at(key)
        expected = [value for value, expiry in self.model["list"].get(at, []) if expiry > self.now]
        assert self.f.list.get() == expected
        if self.refreshes:
            self.model["list"][at] = [(value, self.fresh) for value in expected]

    def put(self, key: int, number: int) -> None:
        at = self.at(key)
        self.f.map.put(str(number % 4), number)
        self.model["map"].setdefault(at, {})[str(number % 4)] = (number, self.fresh)

    def get_entry(self, key: int, number: int) -> None:
        at = self.at(key)
        entries = self.model["map"].get(at, {})
        value, expiry = entries.get(str(number % 4), (None, 0))
        expected = value if expiry > self.now else None
        assert self.f.map.get(str(number % 4)) == expected
        if self.refreshes and expected is not None:
            entries[str(number % 4)] = (expected, self.fresh)

    def get_map(self, key: int, _: int) -> None:
        at = self.at(key)
        entries = self.model["map"].get(at, {})
        expected = {name: value for name, (value, expiry) in entries.items() if expiry > self.now}
        assert len(self.f.map) == len(expected)
        assert dict(self.f.map.items()) == expected
        if self.refreshes:
            entries.update({name: (value, self.fresh) for name, value in expected.items()})

    def remove(self, key: int, number: int) -> None:
        at = self.at(key)
        self.f.map.remove(str(number % 4))
        self.model["map"].get(at, {}).pop(str(number % 4), None)

    def clear(self, key: int, number: int) -> None:
        at = self.at(key)
        getattr(self.f, NAMES[number % 4]).clear()
        self.model[NAMES[number % 4]].pop(at, None)

    def wait(self, _: int, number: int) -> None:
        self.clock.advance(abs(number) % 8)

    def clean_up(self, _: int, number: int) -> None:
        self.backend.clean_up(abs(number) * 100)

    def snapshot(self, _: int, __: int) -> None:
        self.snapshots.append((self.backend.snapshot(), self.now, copy.deepcopy(self.model)))

    def read_snapshot(self, _: int, number: int) -> None:
        if self.snapshots:
            snapshot, taken_at, expected = self.snapshots.pop(number % len(self.snapshots))
            assert stored(snapshot.sections()) == unexpired(expected, taken_at)
            snapshot.release()

    def restart(self, _: int, __: int) -> None:
        sections = list(self.backend.snapshot().sections())
        self.start()
        for section in sections:
            self.backend.restore(section.state, section.kind, [section.rows])


OPERATIONS = [
    Run.set_value, Run.get_value, Run.reduce, Run.append, Run.get_list, Run.put, Run.get_entry, Run.get_map, Run.remove,
    Run.clear, Run.wait, Run.wait, Run.clean_up, Run.snapshot, Run.read_snapshot, Run.restart,
]  # fmt: skip


OPERATION_LISTS = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 5), st.integers(-50, 50)), max_size=60)


def stored(sections: Any) -> Stored:
    found: Stored = {name: {} for name in NAMES}
    for row in stored_rows(sections, INT):
        if row.kind == "map":
            found["map"].setdefault(row.key, {})[row.map_key] = (row.value, row.expiry)
        elif row.kind == "list":
            found["list"][row.key] = list(zip(row.value, row.expiry, strict=True))
        else:
            found[row.state][row.key] = (row.value, row.expiry)
    return found


def unexpired(model: Stored, now: int) -> Stored:
    live: Stored = {
        "list": {key: [pair for pair in pairs if pair[1] > now] for key, pairs in model["list"].items()},
        "map": {key: {k: pair for k, pair in e.items() if pair[1] > now} for key, e in model["map"].items()},
    }
    live = {name: {key: content for key, content in live[name].items() if content} for name in live}
    for name in ("value", "reducing"):
        live[name] = {key: pair for key, pair in model[name].items() if pair[1] > now}
    return live


@pytest.mark.parametrize("update", ["write", "read_and_write"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=OPERATION_LISTS)
def test_state_that_expires_agrees_with_plain_dictionaries(update, operations):
    run = drive(Run(update, backend_for), operations)
    assert sum(run.backend.state_size().values()) == 0, "clean-up has left something"


@pytest.mark.parametrize("room", [AMPLE, NONE], ids=["memory", "no memory"])
@pytest.mark.parametrize("update", ["write", "read_and_write"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(operations=OPERATION_LISTS)
def test_state_that_expires_in_rocksdb_agrees_with_plain_dictionaries(update, room, operations):
    with rocks_backends(room) as made:
        run = drive(Run(update, made.backend), operations)
        assert sum(made.rows_of(run.backend, name) for name in NAMES) == 0, "clean-up has left something"


def drive(run: Run, operations: Any) -> Run:
    for operation, key, number in operations:
        operation(run, key, number)
    run.snapshot(0, 0)
    while run.snapshots:
        run.read_snapshot(0, 0)
    run.clock.advance(LIFETIME_S)
    run.backend.clean_up(100_000)
    return run
