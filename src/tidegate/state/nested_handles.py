"""Handles of list and map state, with a TTL and without, over what any backend keeps. Executor, the task's thread, per-record
path.

A table keeps elements and entries in a form of its own (`Intake`: in and out of it). With a TTL it keeps each as a `Timed`
(state/ttl.py), and the handle looks away from what has expired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidegate.state.declarations import ABSENT
from tidegate.state.handles import ListHandle, MapHandle

if TYPE_CHECKING:
    from tidegate.state.fitting import Intake
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.ttl import Lifetime, Timed

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class KeptLists(Protocol):
    """The lists of all keys. Each call refuses when no key is current."""

    def whole(self, at: CurrentKey) -> Sequence[Any]:
        """Not the caller's own."""

    def add(self, at: CurrentKey, kept: list[Any]) -> None:
        """Elements that are the table's own from here on."""

    def replace(self, at: CurrentKey, kept: list[Any]) -> None:
        """The same; with none, nothing is kept."""


class KeptMaps(Protocol):
    """The maps of all keys. Each call refuses when no key is current."""

    def entry(self, at: CurrentKey, map_key: Any) -> Any:
        """ABSENT when there is none."""

    def seen(self, at: CurrentKey) -> Iterable[tuple[Any, Any]]:
        """As they are now, whatever is changed later."""

    def count(self, at: CurrentKey) -> int: ...

    def put(self, at: CurrentKey, entries: dict[Any, Any]) -> None:
        """A dictionary that is the table's own from here on."""

    def remove(self, at: CurrentKey, map_key: Any) -> None: ...

    def clear(self, at: CurrentKey) -> None: ...


# -- lists -------------------------------------------------------------------------------------------------------------


class KeptList(ListHandle[T]):
    """List state."""

    __slots__ = ("_admit", "_current", "_give", "_table")

    def __init__(self, table: KeptLists, current: CurrentKey, intake: Intake) -> None:
        self._table = table
        self._current = current
        self._admit = intake.admit
        self._give = intake.give

    def get(self) -> list[T]:
        kept, give = self._table.whole(self._current), self._give
        return list(kept) if give is None else [give(each) for each in kept]

    def add(self, value: T) -> None:
        self._table.add(self._current, [self._admit(value)])

    def add_all(self, values: Iterable[T]) -> None:
        kept = self._admitted(values)  # all or none: a misfit leaves the list as it was
        self._table.add(self._current, kept)

    def set(self, values: Iterable[T]) -> None:
        self._table.replace(self._current, self._admitted(values))

    def clear(self) -> None:
        self._table.replace(self._current, [])

    def _admitted(self, values: Iterable[T]) -> list[Any]:
        admit = self._admit
        return [admit(value) for value in values]


class TimedList(KeptList[T]):
    """List state with a TTL for each element."""

    __slots__ = ("_lifetime",)

    def __init__(self, table: KeptLists, current: CurrentKey, intake: Intake, lifetime: Lifetime) -> None:
        super().__init__(table, current, intake)
        self._lifetime = lifetime

    def get(self) -> list[T]:
        lifetime, give = self._lifetime, self._give
        kept: Sequence[Timed] = self._table.whole(self._current)
        now = lifetime.now_ms()
        visible = kept if lifetime.shows_expired else [timed for timed in kept if timed[1] > now]
        found = [value if give is None else give(value) for value, _ in visible]
        if lifetime.refreshes and visible:
            expiry = now + lifetime.milliseconds
            self._table.replace(self._current, [(value, expiry if at > now else at) for value, at in visible])
        return found

    def add(self, value: T) -> None:
        self._table.add(self._current, [(self._admit(value), self._lifetime.expiry_ms())])

    def _admitted(self, values: Iterable[T]) -> list[Any]:
        admit, expiry = self._admit, self._lifetime.expiry_ms()
        return [(admit(value), expiry) for value in values]


# -- maps --------------------------------------------------------------------------------------------------------------


class KeptMap(MapHandle[K, V]):
    """Map state. A map that has lost its last entry is not kept."""

    __slots__ = ("_admit", "_admit_key", "_current", "_give", "_table")

    def __init__(self, table: KeptMaps, current: CurrentKey, keys: Intake, values: Intake) -> None:
        self._table = table
        self._current = current
        self._admit_key = keys.admit
        self._admit = values.admit
        self._give = values.give or _as_it_is

    def get(self, key: K, default: V | None = None) -> V | None:
        kept = self._table.entry(self._current, self._admit_key(key))
        return default if kept is ABSENT else self._give(kept)

    def contains(self, key: K) -> bool:
        return self._table.entry(self._current, self._admit_key(key)) is not ABSENT

    def put(self, key: K, value: V) -> None:
        self._table.put(self._current, {self._admit_key(key): self._admit(value)})

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        admit_key, admit = self._admit_key, self._admit
        kept = {admit_key(key): admit(value) for key, value in _pairs(entries)}  # all or none
        if kept:
            self._table.put(self._current, kept)

    def remove(self, key: K) -> None:
        self._table.remove(self._current, self._admit_key(key))

    def _seen(self) -> Iterable[tuple[Any, Any]]:
        """Of all that is to be seen, as it is now: map key and value as it is kept."""
        return self._table.seen(self._current)

    def items(self) -> Iterator[tuple[K, V]]:
        give = self._give
        return ((key, give(kept)) for key, kept in self._seen())

    def keys(self) -> Iterator[K]:
        return (key for key, _ in self._seen())

    def values(self) -> Iterator[V]:
        give = self._give
        return (give(kept) for _, kept in self._seen())

    def clear(self) -> None:
        self._table.clear(self._current)

    def __len__(self) -> int:
        return self._table.count(self._current)


class TimedMap(KeptMap[K, V]):
    """Map state with a TTL for each entry."""

    __slots__ = ("_lifetime",)

    def __init__(self, table: KeptMaps, current: CurrentKey, keys: Intake, values: Intake, lifetime: Lifetime) -> None:
        super().__init__(table, current, keys, values)
        self._lifetime = lifetime

    def get(self, key: K, default: V | None = None) -> V | None:
        timed = self._read(self._admit_key(key))
        return default if timed is None else self._give(timed[0])

    def contains(self, key: K) -> bool:
        return self._read(self._admit_key(key)) is not None

    def _read(self, map_key: Any) -> Timed | None:
        lifetime, timed = self._lifetime, self._table.entry(self._current, map_key)
        if timed is ABSENT:
            return None
        now = lifetime.now_ms()
        if timed[1] <= now:
            return timed if lifetime.shows_expired else None
        if lifetime.refreshes:
            self._table.put(self._current, {map_key: (timed[0], now + lifetime.milliseconds)})
        return timed  # type: ignore[no-any-return]

    def _seen(self) -> Iterable[tuple[Any, Any]]:
        lifetime, now = self._lifetime, self._lifetime.now_ms()
        shows_expired, kept = lifetime.shows_expired, self._table.seen(self._current)
        if not lifetime.refreshes:
            return ((map_key, value) for map_key, (value, expiry) in kept if shows_expired or expiry > now)
        visible = [(map_key, timed) for map_key, timed in kept if shows_expired or timed[1] > now]
        expiry = now + lifetime.milliseconds
        refreshed = {map_key: (value, expiry) for map_key, (value, at) in visible if at > now}
        if refreshed:
            self._table.put(self._current, refreshed)
        return [(map_key, value) for map_key, (value, _) in visible]

    def put(self, key: K, value: V) -> None:
        self._table.put(self._current, {self._admit_key(key): (self._admit(value), self._lifetime.expiry_ms())})

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        admit_key, admit, expiry = self._admit_key, self._admit, self._lifetime.expiry_ms()
        kept = {admit_key(key): (admit(value), expiry) for key, value in _pairs(entries)}  # all or none
        if kept:
            self._table.put(self._current, kept)

    def __len__(self) -> int:
        """Of what is to be seen; counting is not reading, so it refreshes nothing."""
        now, shows_expired = self._lifetime.now_ms(), self._lifetime.shows_expired
        return sum(shows_expired or expiry > now for _, (_, expiry) in self._table.seen(self._current))


def _pairs(entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> Iterable[tuple[K, V]]:
    return entries.items() if isinstance(entries, Mapping) else entries


def _as_it_is(kept: Any) -> Any:
    return kept
