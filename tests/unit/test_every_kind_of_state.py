"""Every kind of state on both backends: written, stored, killed, restored at another parallelism, equal.

One table of kinds. Each is tried alone through fixed changes of parallelism, and all together in random runs against plain
dictionaries: random steps, keys of every type, snapshots that complete or do not, crashes, restores.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from rocksdb_kit import AMPLE, NONE, Room, rocks_backends
from state_kit import Mean, backend_for
from state_world import Kind, Subtask, World

import tidegate as tg
from matrices import in_turn
from tidegate.ids import EVENT_TIMERS, PROCESSING_TIMERS
from tidegate.state.backend import bind_states
from tidegate.state.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from tidegate.state.keys import key_type
from tidegate.state.namespaces import parts_of_table_key
from tidegate.state.timers import TimerQueue, TimerState, timer_filed_under
from tidegate.state.ttl import Ttl

LIFETIME_MS = 10_000
WORDS = ["", "a", "b", "ab", "süß"]
NAMESPACES = [b"", b"", b"w1", b"\x00\xff"]


@dataclass
class Line:
    item: str
    prices: list[float]


#: of each declared type two values and a third that is not like them
VALUES: dict[Any, list[Any]] = {
    int: [0, -5, 2**62],
    float: [0.5, -2.25, float("inf")],
    str: ["", "a", "ключ"],
    bytes: [b"", b"\x00\xff", b"abc"],
    bool: [True, False, True],
    datetime: [datetime(2026, 1, 2, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)],
    date: [date(2026, 1, 2), date(1, 1, 1), date(9999, 12, 31)],
    Decimal: [Decimal("1.50"), Decimal("-0.001"), Decimal(10) ** 20],
    UUID: [UUID(int=0), UUID(int=5), UUID(int=2**128 - 1)],
    list[int]: [[], [1, 2], [3]],
    dict[str, float]: [{}, {"a": 1.0}, {"b": 2.0, "c": 3.0}],
    tuple[int, str]: [(1, "a"), (2, ""), (-1, "b")],
    str | None: [None, "a", ""],
    Line: [Line("tea", [1.0]), Line("", []), Line("x", [2.0, 3.0])],
    pa.int16(): [0, -300, 32767],
    tg.Pickled: [{1, 2}, "text", None],
}


# -- keyed state -------------------------------------------------------------------------------------------------------


class Keyed(Kind):
    """The model: key and namespace -> what the key has; entries with a TTL as (value, expiry)."""

    ttl: Ttl | None = None

    def place(self, world: World, rng: random.Random) -> tuple[Any, Any, dict[Any, Any]]:
        subtask, at = world.at(rng.choice(world.keys), rng.choice(NAMESPACES))
        return getattr(subtask.function, self.attribute), at, world.model[self.name]

    @property
    def attribute(self) -> str:
        return self.name.replace(" ", "_")

    def entry(self, world: World, value: Any) -> Any:
        return value if self.ttl is None else (value, world.now_ms + LIFETIME_MS)

    def live(self, world: World, entry: Any) -> Any:
        """The value, None when there is none or it has expired."""
        if entry is None or self.ttl is None:
            return entry
        return entry[0] if entry[1] > world.now_ms else None

    def check(self, world: World) -> None:
        for key in world.keys:
            for namespace in dict.fromkeys(NAMESPACES):
                subtask, at = world.at(key, namespace)
                self.check_one(world, getattr(subtask.function, self.attribute), world.model[self.name].get(at))

    def check_one(self, world: World, handle: Any, expected: Any) -> None:
        raise NotImplementedError


class Value(Keyed):
    def __init__(self, name: str, of: Any = int, ttl: Ttl | None = None) -> None:
        self.name, self.of, self.ttl = name, of, ttl

    def declare(self) -> dict[str, Declaration]:
        return {self.attribute: ValueState(self.of, ttl=self.ttl)}

    def act(self, world: World, rng: random.Random) -> None:
        handle, at, model = self.place(world, rng)
        if rng.random() < 0.2:
            handle.clear()
            model.pop(at, None)
        else:
            value = rng.choice(VALUES[self.of])
            given = copy.deepcopy(value)
            handle.set(given)
            spoil(given)
            model[at] = self.entry(world, value)

    def check_one(self, world: World, handle: Any, expected: Any) -> None:
        found = handle.get()
        assert found == self.live(world, expected)
        spoil(found)
        assert handle.get() == self.live(world, expected), "a change without set was seen"


def spoil(value: Any) -> None:
    """Change it, where it can change."""
    match value:
        case list():
            value.append(99)
        case dict():
            value["spoiled"] = 9.0
        case set():
            value.add("spoiled")
        case Line():
            value.item += "spoiled"
            value.prices.append(9.0)


class List(Keyed):
    def __init__(self, name: str, of: Any = str, ttl: Ttl | None = None) -> None:
        self.name, self.of, self.ttl = name, of, ttl

    def declare(self) -> dict[str, Declaration]:
        return {self.attribute: ListState(self.of, ttl=self.ttl)}

    def act(self, world: World, rng: random.Random) -> None:
        handle, at, model = self.place(world, rng)
        words = rng.choices(VALUES[self.of], k=rng.randint(0, 3))
        added = [self.entry(world, word) for word in copy.deepcopy(words)]
        words = copy.deepcopy(words)
        choice = rng.random()
        if choice < 0.1:
            handle.clear()
            model.pop(at, None)
        elif choice < 0.3:
            handle.set(words)
            model[at] = added
        else:
            handle.add_all(words)
            model[at] = model.get(at, []) + added
        for word in words:
            spoil(word)

    def check_one(self, world: World, handle: Any, expected: Any) -> None:
        live = [self.live(world, entry) for entry in expected or []]
        for _ in range(2):  # the second time it would see what the first has changed
            found = handle.get()
            assert found == [word for word in live if word is not None]
            for word in found:
                spoil(word)
            found.append("spoiled")


class Map(Keyed):
    def __init__(self, name: str, of: Any = int, ttl: Ttl | None = None) -> None:
        self.name, self.of, self.ttl = name, of, ttl

    def declare(self) -> dict[str, Declaration]:
        return {self.attribute: MapState(str, self.of, ttl=self.ttl)}

    def act(self, world: World, rng: random.Random) -> None:
        handle, at, model = self.place(world, rng)
        word, value = rng.choice(WORDS), copy.deepcopy(rng.choice(VALUES[self.of]))
        entry = self.entry(world, copy.deepcopy(value))
        choice = rng.random()
        if choice < 0.1:
            handle.clear()
            model.pop(at, None)
        elif choice < 0.3:
            handle.remove(word)
            model.get(at, {}).pop(word, None)
        elif choice < 0.4:  # changed while it is walked: the walk sees what was there
            before = {w: v for w, e in model.get(at, {}).items() if (v := self.live(world, e)) is not None}
            seen = {}
            for name, found in handle.items():
                seen[name] = found
                handle.remove(name)
                handle.put(name + "!", value)
            assert seen == before
            entries = {w: e for w, e in model.get(at, {}).items() if w not in before}
            model[at] = entries | {f"{w}!": entry for w in before}
            for name in before:
                handle.remove(f"{name}!")
                model[at].pop(f"{name}!")
        else:
            handle.put(word, value)
            model.setdefault(at, {})[word] = entry
        spoil(value)

    def check_one(self, world: World, handle: Any, expected: Any) -> None:
        live = {word: self.live(world, entry) for word, entry in (expected or {}).items()}
        live = {word: number for word, number in live.items() if number is not None}
        for _ in range(2):  # the second time it would see what the first has changed
            walked, found = dict(handle.items()), {word: handle.get(word) for word in live}
            values = list(handle.values())
            assert walked == found == live
            assert sorted(handle.keys()) == sorted(live)
            assert Counter(map(repr, values)) == Counter(map(repr, live.values()))
            assert len(handle) == len(live)
            for value in (*walked.values(), *found.values(), *values):
                spoil(value)


class Reducing(Keyed):
    def __init__(self, name: str, ttl: Ttl | None = None) -> None:
        self.name, self.ttl = name, ttl

    def declare(self) -> dict[str, Declaration]:
        return {self.attribute: ReducingState(int, lambda a, b: a * 3 + b, ttl=self.ttl)}

    def act(self, world: World, rng: random.Random) -> None:
        handle, at, model = self.place(world, rng)
        if rng.random() < 0.2:
            handle.clear()
            model.pop(at, None)
            return
        number, before = rng.randint(-1, 1), self.live(world, model.get(at))
        after = number if before is None else before * 3 + number
        if abs(after) > 2**60:
            after = number
            handle.clear()
        handle.add(number)
        model[at] = self.entry(world, after)

    def check_one(self, world: World, handle: Any, expected: Any) -> None:
        assert handle.get() == self.live(world, expected)


class Aggregating(Keyed):
    def __init__(self, name: str, ttl: Ttl | None = None) -> None:
        self.name, self.ttl = name, ttl

    def declare(self) -> dict[str, Declaration]:
        return {self.attribute: AggregatingState(Mean(), ttl=self.ttl)}

    def act(self, world: World, rng: random.Random) -> None:
        handle, at, model = self.place(world, rng)
        if rng.random() < 0.2:
            handle.clear()
            model.pop(at, None)
            return
        number = rng.randint(-9, 9)
        total, count = self.live(world, model.get(at)) or (0, 0)
        handle.add(number)
        model[at] = self.entry(world, (total + number, count + 1))

    def check_one(self, world: World, handle: Any, expected: Any) -> None:
        live = self.live(world, expected)
        assert handle.get() == (None if live is None else live[0] / live[1])


class Timers(Kind):
    """The model: key and namespace -> its moments."""

    def __init__(self, name: str, state: str) -> None:
        self.name, self.state = name, state

    def begin(self, subtask: Subtask) -> None:
        subtask.held[self.name] = TimerQueue(subtask.backend, self.state)

    def declare(self) -> dict[str, Declaration]:
        return {self.state: TimerState(self.state)}

    def act(self, world: World, rng: random.Random) -> None:
        key, namespace, moment = rng.choice(world.keys), rng.choice(NAMESPACES), rng.randint(-3, 30)
        model = world.model[self.name]
        if rng.random() < 0.1:
            self.fire(world, moment)
            return
        subtask, at = world.at(key, namespace)
        queue = subtask.held[self.name]
        if rng.random() < 0.25:
            queue.delete(world.key_type.normalise(key), moment, namespace)
            model.get(at, set()).discard(moment)
        else:
            queue.register(world.key_type.normalise(key), moment, namespace)
            model.setdefault(at, set()).add(moment)

    def fire(self, world: World, up_to: int) -> None:
        """In each subtask in order, each once, and no other."""
        fired: Counter[tuple[Any, int]] = Counter()
        for subtask in world.subtasks:
            moments = []
            for timer in subtask.held[self.name].due(up_to):
                fired[(repr(timer.key), timer.namespace), timer.timestamp] += 1
                moments.append(timer.timestamp)
            assert moments == sorted(moments)
        model = world.model[self.name]
        assert fired == Counter((at, moment) for at, of_key in model.items() for moment in of_key if moment <= up_to)
        world.model[self.name] = {at: {m for m in of_key if m > up_to} for at, of_key in model.items()}

    def check(self, world: World) -> None:
        found: dict[Any, set[int]] = {}
        for subtask in world.subtasks:
            for filed, moment in subtask.backend.entries(self.state):
                timer = timer_filed_under(*parts_of_table_key(filed))
                assert timer.timestamp == moment
                found.setdefault((repr(timer.key), timer.namespace), set()).add(moment)
        assert found == {at: moments for at, moments in world.model[self.name].items() if moments}


# -- operator state ----------------------------------------------------------------------------------------------------


class PerSubtask(Kind):
    """The model: subtask -> its elements, numbers that only grow."""

    number = 0

    def elements(self, subtask: Subtask) -> list[Any]:
        raise NotImplementedError

    def add(self, subtask: Subtask, number: int) -> None:
        raise NotImplementedError

    def act(self, world: World, rng: random.Random) -> None:
        subtask = rng.choice(world.subtasks)
        self.number += 1
        self.add(subtask, self.number)
        world.model[self.name].setdefault(subtask.index, []).append(self.number)

    def check(self, world: World) -> None:
        for subtask in world.subtasks:
            assert self.elements(subtask) == world.model[self.name].get(subtask.index, [])

    def restored(self, world: World, before: dict[int, list[int]]) -> None:
        """Unchanged: each keeps its own. Else all in the order of the old subtasks, cut into even runs."""
        assert world.completed is not None
        if world.completed.parallelism == len(world.subtasks):
            world.model[self.name] = before
            return
        everything = [element for old in sorted(before) for element in before[old]]
        shares = {subtask.index: self.elements(subtask) for subtask in world.subtasks}
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1
        assert Counter(e for share in shares.values() for e in share) == Counter(everything)
        place = {element: at for at, element in enumerate(everything)}
        for share in shares.values():
            assert (
                [place[e] for e in share] == list(range(place[share[0]], place[share[0]] + len(share)))
                if share
                else True
            )
        world.model[self.name] = {index: share for index, share in shares.items() if share}


class OperatorList(PerSubtask):
    name = "operator list"

    def begin(self, subtask: Subtask) -> None:
        subtask.held[self.name] = subtask.store.list_state("list", int)

    def elements(self, subtask: Subtask) -> list[Any]:
        found: list[Any] = subtask.held[self.name].get()
        return found

    def add(self, subtask: Subtask, number: int) -> None:
        subtask.held[self.name].add(number)


class RawOperator(PerSubtask):
    name = "raw operator"

    def begin(self, subtask: Subtask) -> None:
        subtask.held[self.name] = [int(piece) for piece in subtask.store.raw.operator()]

    def prepare(self, subtask: Subtask) -> None:
        for number in subtask.held[self.name]:
            subtask.raw.write_operator(str(number).encode())

    def elements(self, subtask: Subtask) -> list[Any]:
        return list(subtask.held[self.name])

    def add(self, subtask: Subtask, number: int) -> None:
        subtask.held[self.name].append(number)


class UnionList(OperatorList):
    name = "union list"

    def begin(self, subtask: Subtask) -> None:
        subtask.held[self.name] = subtask.store.union_list_state("union", int)

    def restored(self, world: World, before: dict[int, list[int]]) -> None:
        """Everyone gets all; each picks its own, or the list would grow for ever."""
        everything = [element for old in sorted(before) for element in before[old]]
        world.model[self.name] = {}
        for subtask in world.subtasks:
            assert self.elements(subtask) == everything
            mine = everything[subtask.index :: len(world.subtasks)]
            subtask.held[self.name].set(mine)
            world.model[self.name][subtask.index] = mine


class Broadcast(Kind):
    """The model: one map, the same for all."""

    name = "broadcast"

    def begin(self, subtask: Subtask) -> None:
        subtask.held[self.name] = subtask.store.broadcast_state("rules", str, int)

    def act(self, world: World, rng: random.Random) -> None:
        word, number = rng.choice(WORDS), rng.randint(-9, 9)
        for subtask in world.subtasks:
            rules = subtask.held[self.name]
            rules.remove(word) if number < -5 else rules.put(word, number)
        if number < -5:
            world.model[self.name].pop(word, None)
        else:
            world.model[self.name][word] = number

    def check(self, world: World) -> None:
        for subtask in world.subtasks:
            assert dict(subtask.held[self.name].items()) == world.model[self.name]


class RawKeyed(Kind):
    """The model: key group -> bytes."""

    name = "raw keyed"

    def begin(self, subtask: Subtask) -> None:
        subtask.held[self.name] = dict(subtask.store.raw.keyed())

    def prepare(self, subtask: Subtask) -> None:
        for group, data in subtask.held[self.name].items():
            subtask.raw.write_keyed(group, data[:1])
            subtask.raw.write_keyed(group, data[1:])

    def act(self, world: World, rng: random.Random) -> None:
        subtask = rng.choice(world.subtasks)
        group, data = rng.choice(subtask.key_groups), rng.randbytes(3)
        subtask.held[self.name][group] = world.model[self.name][group] = data

    def check(self, world: World) -> None:
        assert {g: d for subtask in world.subtasks for g, d in subtask.held[self.name].items()} == world.model[
            self.name
        ]
        for subtask in world.subtasks:
            assert set(subtask.held[self.name]) <= set(subtask.key_groups)


# -- the table ---------------------------------------------------------------------------------------------------------

TTL = Ttl("10s")
EVERY_KIND: list[Any] = [
    lambda: Value("value"),
    lambda: List("list"),
    lambda: Map("map"),
    lambda: Reducing("reducing"),
    lambda: Aggregating("aggregating"),
    lambda: Value("value with ttl", ttl=TTL),
    lambda: List("list with ttl", ttl=TTL),
    lambda: Map("map with ttl", ttl=TTL),
    lambda: List("list of lists", list[int]),
    lambda: Map("map of dataclasses", Line),
    lambda: Reducing("reducing with ttl", ttl=TTL),
    lambda: Aggregating("aggregating with ttl", ttl=TTL),
    lambda: Timers("event timers", EVENT_TIMERS),
    lambda: Timers("processing timers", PROCESSING_TIMERS),
    OperatorList,
    UnionList,
    Broadcast,
    RawOperator,
    RawKeyed,
]
CHANGES = [(2, 3), (4, 1), (3, 2), (1, 5)]
#: one after the other, for each start
BACKENDS = {
    "heap": ["heap"],
    "heap increments": ["heap increments"],
    "rocksdb": ["rocksdb"],
    "rocksdb increments": ["rocksdb increments"],
    "back and forth": ["rocksdb increments", "heap", "heap increments", "rocksdb"],
}
#: of every type that a key can have
KEYS: dict[str, tuple[Any, list[Any]]] = {
    "int": (int, [0, 1, -1, 1024, 2**31, -(2**63), 2**63 - 1, 2**63, 2**70]),
    "str": (str, ["", "a", "ab", "ключ", "a\x00b", "a\x00"]),
    "bytes": (bytes, [b"", b"\x00", b"\x00\x00", b"\xff\xff", b"ab"]),
    "bool": (bool, [True, False]),
    "float": (float, [0.0, 1.5, -2.25, float("inf"), float("nan"), 1e300]),
    "Decimal": (Decimal, [Decimal("1.5"), Decimal("1e30"), Decimal(0), Decimal("-0.07")]),
    "date": (date, [date(2026, 1, 1), date(1, 1, 1), date(9999, 12, 31)]),
    "datetime": (datetime, [datetime(2026, 1, 1, tzinfo=UTC), datetime(1900, 1, 1, 5, tzinfo=UTC)]),
    "UUID": (UUID, [UUID(int=0), UUID(int=1), UUID(int=2**127)]),
    "tuple": (tuple[int, str], [(0, "a"), (1, "a"), (1, ""), (-5, "b\x00")]),
    "optional": (str | None, [None, "", "a"]),
    "mixed": (None, [1, True, 1.5, "1", b"1", None, (1, "a"), date(2026, 1, 1), Decimal("1.5"), UUID(int=1)]),
}


def turns(names: list[str]) -> Any:
    it = iter(names * 100)
    return lambda: next(it)


#: operator state is in memory on every backend; beside keyed state of each it is in the random runs
CASES = [(make, backend) for make in EVERY_KIND for backend in (BACKENDS if make().declare() else ["heap"])]


def name_of(value: Any) -> str | None:
    return value().name if callable(value) else None


@pytest.mark.parametrize(("kind", "backend", "before", "after"), in_turn(CASES, CHANGES), ids=name_of)
def test_a_kind_of_state_is_the_same_after_a_kill_at_another_parallelism(kind, backend, before, after):
    rng = random.Random(f"{kind().name} {before} {after}")
    with rocks_backends(AMPLE) as rocks:
        world = World(key_type(str), [f"key {n}" for n in range(12)], [kind()], rocks, turns(BACKENDS[backend]))
        world.start(before)
        for parallelism in (after, before):
            for _ in range(60):
                world.kinds[0].act(world, rng)
            world.clock.advance(3)  # of ten
            world.snapshot()
            for _ in range(20):
                world.kinds[0].act(world, rng)  # lost with the crash
            world.crash()
            world.start(parallelism)
            assert world.model[world.kinds[0].name], "nothing was tried"


MAP_KEYS: dict[Any, list[list[Any]]] = {  # each inner list: different ways to write one key
    float: [[0.0, -0.0], [float("nan"), -float("nan"), float("inf") - float("inf")], [1.5, np.float64(1.5)]],
    Decimal: [[Decimal("1.0"), Decimal("1.00")], [Decimal("100"), Decimal("1e2")], [Decimal(0), Decimal("-0.0")]],
    tuple[float, str]: [[(0.0, "a"), (-0.0, "a")], [(float("nan"), ""), (float("nan"), "")]],
    float | None: [[None], [float("nan"), float("nan")]],
    bytes: [[b""], [b"\x00"], [b"\x00\x00"]],
}


@pytest.mark.parametrize("ttl", [None, TTL], ids=["for ever", "with a ttl"])
@pytest.mark.parametrize("room", [AMPLE, NONE], ids=["memory", "no memory"])
@pytest.mark.parametrize("of", list(MAP_KEYS), ids=str)
@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_different_ways_to_write_a_key_of_a_map_are_one_key(backend, of, room, ttl):
    class States:
        entries = MapState(of, int, ttl=ttl)

    def started(sections: Any = ()) -> tuple[Any, Any]:
        made = backend_for(key_type(int)) if backend == "heap" else rocks.backend(key_type(int))
        function: Any = States()
        bind_states(function, made)
        for section in sections:
            made.restore(section.state, section.kind, [section.rows])
        made.set_current_key(1)
        return made, function.entries

    with rocks_backends(room) as rocks:
        made, entries = started()
        for _ in range(2):
            for number, ways in enumerate(MAP_KEYS[of]):
                for way in ways:
                    entries.put(way, number)
                assert [entries.get(way) for way in ways] == [number] * len(ways)
            assert sorted(entries.values()) == list(range(len(MAP_KEYS[of])))
            assert len(list(entries.keys())) == len(entries) == len(MAP_KEYS[of])
            made, entries = started(list(made.snapshot().sections()))
        for ways in MAP_KEYS[of]:
            entries.remove(ways[-1])
        assert entries.is_empty()


@pytest.mark.parametrize(("of", "backend"), in_turn(VALUES, BACKENDS), ids=str)
def test_values_of_every_declared_type_are_the_same_after_a_kill(of, backend):
    rng = random.Random(str(of))
    with rocks_backends(AMPLE) as rocks:
        world = World(key_type(int), list(range(6)), [Value("value", of)], rocks, turns(BACKENDS[backend]))
        world.start(2)
        for parallelism in (3, 1):
            for _ in range(30):
                world.kinds[0].act(world, rng)
            world.snapshot()
            world.crash()
            world.start(parallelism)


ROOMS = [AMPLE, NONE, Room(3000, 3000)]


#: each type of keys on one backend, and on another with other room; the slow ones are on all
SOME = [(keys, list(BACKENDS)[(2 * at + more) % len(BACKENDS)]) for at, keys in enumerate(KEYS) for more in (0, 3)]


@pytest.mark.parametrize(("keys", "backend"), SOME)
def test_random_runs_agree_with_plain_dictionaries(backend, keys):
    turn = list(KEYS).index(keys) + list(BACKENDS).index(backend)
    random_run(backend, keys, ROOMS[turn % len(ROOMS)], f"{backend} {keys}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("keys", list(KEYS))
@pytest.mark.parametrize("backend", list(BACKENDS))
def test_many_random_runs_agree_with_plain_dictionaries(backend, keys, seed):
    random_run(backend, keys, ROOMS[seed % len(ROOMS)], f"{backend} {keys} {seed}")


def random_run(backend: str, keys: str, room: Room, seed: str) -> None:
    print("seed:", seed)
    rng = random.Random(seed)
    annotation, pool = KEYS[keys]
    with rocks_backends(room) as rocks:
        kinds = [make() for make in EVERY_KIND]
        world = World(key_type(annotation), pool, kinds, rocks, turns(BACKENDS[backend]))
        world.start(rng.randint(1, 4))
        for _ in range(200):
            step = rng.random()
            if step < 0.90:
                rng.choice(kinds).act(world, rng)
            elif step < 0.94:
                world.store(completes=rng.random() < 0.7) if world.pending else world.take()
            elif step < 0.97:
                world.clock.advance(rng.choice([0.5, 3, 6]))
                for subtask in world.subtasks:
                    subtask.backend.clean_up(rng.choice([3, 1000]))
            elif step < 0.985:
                rng.choice(kinds).check(world)
            else:
                world.crash()
                world.start(rng.randint(1, 5))
        if world.pending:
            world.store(completes=False)
        world.snapshot()
        world.crash()
        world.start(rng.randint(1, 5))
        for kind in kinds:
            if isinstance(kind, Timers):
                kind.fire(world, 100)
