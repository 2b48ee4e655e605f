"""Every kind of state as plain dictionaries: random operations on a handle and on its model, which must agree.

What the model keeps under a key and namespace is never changed, only replaced: a copy of the model is a copy of one dictionary.

    value, reducing, aggregating   (value, expiry)
    list                           ((value, expiry), ...)
    map                            {map key: (value, expiry), ...}
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from state_kit import Mean

from tidegate.state.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from tidegate.state.ttl import Ttl
from tidegate.types.pickled import Pickled

LIFETIME_S = 10
FOREVER = float("inf")
Pair = tuple[Any, float]
NOTHING: Any = None


@dataclass(frozen=True, slots=True)
class Life:
    """How long what is written at this moment stays."""

    now_ms: int
    lifetime_ms: int | None
    refreshes: bool

    @property
    def fresh(self) -> float:
        return FOREVER if self.lifetime_ms is None else self.now_ms + self.lifetime_ms

    def live(self, pair: Pair | None) -> bool:
        return pair is not None and pair[1] > self.now_ms

    def read(self, pair: Pair) -> Pair:
        """What a read makes of a pair that is live."""
        return (pair[0], self.fresh) if self.refreshes else pair


class Kind(ABC):
    """One kind of state with one type of values."""

    def __init__(self, declare: Callable[..., Declaration], *values: Any) -> None:
        self.declare = declare
        self.values = values

    @abstractmethod
    def act(self, dice: random.Random, handle: Any, kept: Any, life: Life) -> Any:
        """One operation; what is kept then, or NOTHING."""

    @abstractmethod
    def read(self, handle: Any, kept: Any, life: Life) -> Any:
        """Compare all that can be seen; what is kept then."""

    def glance(self, dice: random.Random, handle: Any, kept: Any, life: Life) -> Any:
        """The same for the least that can be read."""
        return self.read(handle, kept, life)

    def value(self, dice: random.Random) -> Any:
        return dice.choice(self.values)

    batches: bool = False  #: whether it has operations on many keys


class Value(Kind):
    default: Any = None

    def read(self, handle: Any, kept: Any, life: Life) -> Any:
        is_live = life.live(kept)
        assert handle.get() == (kept[0] if is_live else self.default)
        return life.read(kept) if is_live else kept

    def act(self, dice: random.Random, handle: Any, kept: Any, life: Life) -> Any:
        match dice.randrange(6):
            case 0:
                handle.clear()
                return NOTHING
            case 1 | 2:
                return self.read(handle, kept, life)
            case _:
                value = self.value(dice)
                handle.set(value)
                return value, life.fresh


class Text(Value):
    batches = True

    def act_on_many(self, dice: random.Random, handle: Any, keys: pa.Array, kept: list[Any], life: Life) -> list[Any]:
        """Keys may come twice; `kept` has what the first of them begins with."""
        names = [str(key) for key in keys.to_pylist()]
        state = dict(zip(names, kept, strict=True))
        if dice.randrange(2):
            values = [self.value(dice) for _ in names]
            handle.update_many(keys, pa.array(values))
            state |= {name: (value, life.fresh) for name, value in zip(names, values, strict=True)}
        else:
            expected = [state[name][0] if life.live(state[name]) else self.default for name in names]
            assert handle.get_many(keys).to_pylist() == expected
            state = {name: life.read(pair) if life.live(pair) else pair for name, pair in state.items()}
        return [state[name] for name in names]


class Number(Text):
    default = 0

    def act_on_many(self, dice: random.Random, handle: Any, keys: pa.Array, kept: list[Any], life: Life) -> list[Any]:
        how = dice.randrange(4)
        if how < 2:
            return super().act_on_many(dice, handle, keys, kept, life)
        names, expected = [str(key) for key in keys.to_pylist()], []
        state = dict(zip(names, kept, strict=True))
        numbers = [dice.randrange(-50, 50) for _ in names]
        for name, number in zip(names, numbers, strict=True):
            before = state[name][0] if life.live(state[name]) else self.default
            state[name] = (before + number if how == 2 else max(before, number)), life.fresh
            expected.append(state[name][0])
        column = pa.array(numbers, pa.int64())
        found = handle.add_many(keys, column, running=True) if how == 2 else handle.fold_many(keys, column, "max")
        assert found.to_pylist() == expected
        return [state[name] for name in names]


class Reduced(Kind):
    def read(self, handle: Any, kept: Any, life: Life) -> Any:
        is_live = life.live(kept)
        assert handle.get() == (self.result(kept[0]) if is_live else None)
        return life.read(kept) if is_live else kept

    def act(self, dice: random.Random, handle: Any, kept: Any, life: Life) -> Any:
        match dice.randrange(5):
            case 0:
                handle.clear()
                return NOTHING
            case 1:
                return self.read(handle, kept, life)
            case _:
                number = self.value(dice)
                handle.add(number)
                return self.added(kept[0] if life.live(kept) else None, number), life.fresh

    def result(self, folded: Any) -> Any:
        return folded

    def added(self, before: Any, number: int) -> Any:
        return number if before is None else max(before, number)


class Averaged(Reduced):
    def result(self, folded: Any) -> Any:
        return folded[0] / folded[1]

    def added(self, before: Any, number: int) -> Any:
        return (number, 1) if before is None else (before[0] + number, before[1] + 1)


class List(Kind):
    def read(self, handle: Any, kept: Any, life: Life) -> Any:
        live = tuple(pair for pair in kept or () if life.live(pair))
        assert handle.get() == [value for value, _ in live]
        return tuple(map(life.read, live)) if life.refreshes else kept

    def act(self, dice: random.Random, handle: Any, kept: Any, life: Life) -> Any:
        values = [self.value(dice) for _ in range(dice.randrange(4))]
        pairs = tuple((value, life.fresh) for value in values)
        match dice.randrange(8):
            case 0:
                handle.clear()
                return NOTHING
            case 1 | 2:
                return self.read(handle, kept, life)
            case 3:
                handle.set(values)
                return pairs or NOTHING
            case 4:
                handle.add_all(values)
                return ((kept or ()) + pairs) or NOTHING
            case _:
                value = self.value(dice)
                handle.add(value)
                return (*(kept or ()), (value, life.fresh))


class Map(Kind):
    map_keys: tuple[Any, ...] = ("a", "b", "c", "d")

    def read(self, handle: Any, kept: Any, life: Life) -> Any:
        return self._walk(dict(handle.items()), handle, kept, life)

    def _walk(self, found: dict[Any, Any], handle: Any, kept: Any, life: Life) -> Any:
        live = {key: pair for key, pair in (kept or {}).items() if life.live(pair)}
        assert found == {key: value for key, (value, _) in live.items()}
        assert len(handle) == len(live)
        return {**(kept or {}), **{key: life.read(pair) for key, pair in live.items()}} or NOTHING

    def act(self, dice: random.Random, handle: Any, kept: Any, life: Life) -> Any:
        key, entries = dice.choice(self.map_keys), kept or {}
        match dice.randrange(12):
            case 0:
                handle.clear()
                return NOTHING
            case 1:
                handle.remove(key)
                return {name: each for name, each in entries.items() if name != key} or NOTHING
            case 2:
                return self.read(handle, kept, life)
            case 3:
                live = [name for name, each in entries.items() if life.live(each)]
                assert set(handle.keys()) == set(live)
                return {**entries, **{name: life.read(entries[name]) for name in live}} or NOTHING
            case 4:
                assert len(handle) == sum(map(life.live, entries.values()))
                return kept
            case 5:
                more = {name: self.value(dice) for name in self.map_keys if dice.randrange(2)}
                handle.put_all(more)
                return {**entries, **{name: (value, life.fresh) for name, value in more.items()}} or NOTHING
            case 6 | 7:
                return self.glance(dice, handle, kept, life)
            case _:
                value = self.value(dice)
                handle.put(key, value)
                return {**entries, key: (value, life.fresh)}

    def glance(self, dice: random.Random, handle: Any, kept: Any, life: Life) -> Any:
        entries = kept or {}
        key = dice.choice([*self.map_keys, *entries, *entries])
        pair = entries.get(key)
        is_live = life.live(pair)
        if dice.randrange(2):
            assert handle.contains(key) == is_live
        else:
            assert handle.get(key) == (pair[0] if is_live else None)
        return {**entries, key: life.read(pair)} if is_live else kept


class PairMap(Map):
    map_keys = ((1, "x"), (1, "y"), (2, ""))


LONG = "x" * 300  #: more than an entry is thought to take
KINDS: dict[str, Kind] = {
    "number": Number(lambda **ttl: ValueState(int, default=0, **ttl), *range(-5, 6)),
    "word": Text(lambda **ttl: ValueState(str, **ttl), "", "a", "b", LONG),
    "tags": Value(lambda **ttl: ValueState(list[int], **ttl), [], [1], [1, 2]),
    "thing": Value(lambda **ttl: ValueState(Pickled, **ttl), {1, 2}, "text", (1, LONG)),
    "log": List(lambda **ttl: ListState(str, **ttl), "", "a", "b", LONG),
    "things": List(lambda **ttl: ListState(Pickled, **ttl), {1}, frozenset(), 7),
    "counts": Map(lambda **ttl: MapState(str, int, **ttl), *range(9)),
    "words": PairMap(lambda **ttl: MapState(tuple[int, str], str, **ttl), "a", LONG),
    "pickles": Map(lambda **ttl: MapState(str, Pickled, **ttl), {1}, None, LONG),
    "best": Reduced(lambda **ttl: ReducingState(int, max, **ttl), *range(-9, 9)),
    "mean": Averaged(lambda **ttl: AggregatingState(Mean(), **ttl), *range(-9, 9)),
}
UPDATES: dict[str, Any] = {"": None, "_ttl": "write", "_refreshed": "read_and_write"}
STATES = [name + suffix for name in KINDS for suffix in UPDATES]


def kind_of(state: str) -> Kind:
    return KINDS[state.split("_")[0]]


def function_with(states: list[str]) -> Any:
    """An instance of a class that declares them."""
    declared = {}
    for state in states:
        name, _, suffix = state.partition("_")
        update = UPDATES["_" + suffix if suffix else ""]
        options = {} if update is None else {"ttl": Ttl(f"{LIFETIME_S}s", update)}
        declared[state] = KINDS[name].declare(**options)
    return type("Function", (), declared)()


def life_of(state: str, now_ms: int) -> Life:
    suffix = state.partition("_")[2]
    return Life(now_ms, LIFETIME_S * 1000 if suffix else None, suffix == "refreshed")
