"""Handles of state with a TTL, over tables that keep an expiry with each entry. For every backend.

Executor, the task's thread, per-record path. What a table keeps is a pair: the value as the backend keeps it, and when it
expires (ms since 1970). Pairs are never changed, only replaced.

A read never removes anything: it looks away from what has expired, and the backend's clean-up takes it later. With
`update="read_and_write"` a read writes: each entry that it gives out begins its time anew. An entry that has expired is
not refreshed, also where it may still be returned: it is as good as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidegate.state.declarations import ABSENT
from tidegate.state.handles import ListHandle, MapHandle
from tidegate.state.one_by_one import OneByOneValue

if TYPE_CHECKING:
    from tidegate.state.declarations import StoredValue
    from tidegate.state.keys import KeyType
    from tidegate.state.ttl import Lifetime

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Pair = tuple[Any, int]  #: the value as it is kept, and its expiry


class PairValues(Protocol):
    """Key -> pair."""

    def find_pairs(self, keys: list[Any]) -> list[Pair | None]:
        """Of normalised keys."""

    def find_pair(self, key: Any) -> Pair | None: ...

    def put_pair(self, key: Any, pair: Pair) -> None: ...

    def drop(self, key: Any) -> None: ...


class PairLists(Protocol):
    """Key -> list of pairs."""

    def pairs_of(self, key: Any) -> Sequence[Pair]:
        """Not the caller's own."""

    def add_pairs(self, key: Any, pairs: list[Pair]) -> None: ...

    def replace_pairs(self, key: Any, pairs: list[Pair]) -> None:
        """With none, nothing is kept."""


class PairMaps(Protocol):
    """Key -> map of map key -> pair."""

    def pair_of(self, key: Any, map_key: Any) -> Pair | None: ...

    def pairs_of(self, key: Any) -> Iterable[tuple[Any, Pair]]:
        """As they are now, whatever is changed later."""

    def put_pairs(self, key: Any, pairs: dict[Any, Pair]) -> None: ...

    def remove_pair(self, key: Any, map_key: Any) -> None: ...

    def drop(self, key: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a handle needs besides its table."""

    current_key: Callable[[], Any]  #: with its namespace; raises ConfigurationError when there is none
    lifetime: Lifetime
    admit: Callable[[Any], Any]  #: a value as it is to be kept; raises TypeDeclarationError
    give: Callable[[Any], Any]  #: what is kept, as the caller's own
    admit_key: Callable[[Any], Any] = lambda key: key  #: the same for the keys of a map


class ExpiringValue(OneByOneValue[T]):
    """Value state with a TTL."""

    __slots__ = ("_around", "_copy", "_lifetime", "_table")

    def __init__(self, declaration: StoredValue, table: PairValues, key_type: KeyType, around: Surroundings) -> None:
        super().__init__(declaration, key_type)
        self._table = table
        self._around = around
        self._lifetime = around.lifetime
        self._copy = declaration.value_type.copy

    def get(self) -> T:
        around = self._around
        key = around.current_key()
        return self._seen(key, self._table.find_pair(key), self._lifetime.now_ms())  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        around = self._around
        self._table.put_pair(around.current_key(), (around.admit(value), self._lifetime.expiry_ms()))

    def clear(self) -> None:
        self._table.drop(self._around.current_key())

    def _seen(self, key: Any, pair: Pair | None, now: int) -> Any:
        """What a read gives out; refreshes where reads do."""
        lifetime = self._lifetime
        if pair is None or (pair[1] <= now and not lifetime.shows_expired):
            default = self._default
            return default if default is None or default is ABSENT else self._copy(default)
        if lifetime.refreshes and pair[1] > now:
            self._table.put_pair(key, (pair[0], now + lifetime.milliseconds))
        return self._around.give(pair[0])

    def _read_many(self, keys: list[Any]) -> list[Any]:
        now = self._lifetime.now_ms()
        return [self._seen(key, pair, now) for key, pair in zip(keys, self._table.find_pairs(keys), strict=True)]

    def _write_many(self, values: Iterable[tuple[Any, Any]]) -> None:
        admit, put, expiry = self._around.admit, self._table.put_pair, self._lifetime.expiry_ms()
        for key, pair in [(key, (admit(value), expiry)) for key, value in values]:
            put(key, pair)


class ExpiringList(ListHandle[T]):
    """List state with a TTL for each element."""

    __slots__ = ("_around", "_lifetime", "_table")

    def __init__(self, table: PairLists, around: Surroundings) -> None:
        self._table = table
        self._around = around
        self._lifetime = around.lifetime

    def get(self) -> list[T]:
        lifetime, give = self._lifetime, self._around.give
        key = self._around.current_key()
        pairs = self._table.pairs_of(key)
        now = lifetime.now_ms()
        visible = pairs if lifetime.shows_expired else [pair for pair in pairs if pair[1] > now]
        found = [give(kept) for kept, _ in visible]
        if lifetime.refreshes and visible:
            expiry = now + lifetime.milliseconds
            self._table.replace_pairs(key, [(kept, expiry if at > now else at) for kept, at in visible])
        return found

    def add(self, value: T) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[T]) -> None:
        pairs = self._admitted(values)  # all or none: a misfit leaves the list as it was
        self._table.add_pairs(self._around.current_key(), pairs)

    def set(self, values: Iterable[T]) -> None:
        self._table.replace_pairs(self._around.current_key(), self._admitted(values))

    def clear(self) -> None:
        self._table.replace_pairs(self._around.current_key(), [])

    def _admitted(self, values: Iterable[T]) -> list[Pair]:
        admit, expiry = self._around.admit, self._lifetime.expiry_ms()
        return [(admit(value), expiry) for value in values]


class ExpiringMap(MapHandle[K, V]):
    """Map state with a TTL for each entry."""

    __slots__ = ("_around", "_lifetime", "_table")

    def __init__(self, table: PairMaps, around: Surroundings) -> None:
        self._table = table
        self._around = around
        self._lifetime = around.lifetime

    def get(self, key: K, default: V | None = None) -> V | None:
        pair = self._read(self._around.admit_key(key))
        return default if pair is None else self._around.give(pair[0])

    def contains(self, key: K) -> bool:
        return self._read(self._around.admit_key(key)) is not None

    def _read(self, map_key: Any) -> Pair | None:
        lifetime, key = self._lifetime, self._around.current_key()
        pair = self._table.pair_of(key, map_key)
        if pair is None:
            return None
        now = lifetime.now_ms()
        if pair[1] <= now:
            return pair if lifetime.shows_expired else None
        if lifetime.refreshes:
            self._table.put_pairs(key, {map_key: (pair[0], now + lifetime.milliseconds)})
        return pair

    def _read_all(self) -> Iterable[tuple[Any, Any]]:
        """Of all that is to be seen, as it is now: map key and value as it is kept."""
        lifetime, key = self._lifetime, self._around.current_key()
        now, shows_expired = lifetime.now_ms(), lifetime.shows_expired
        pairs = self._table.pairs_of(key)
        if not lifetime.refreshes:
            return ((map_key, kept) for map_key, (kept, expiry) in pairs if shows_expired or expiry > now)
        visible = [(map_key, pair) for map_key, pair in pairs if shows_expired or pair[1] > now]
        expiry = now + lifetime.milliseconds
        self._table.put_pairs(key, {map_key: (kept, expiry) for map_key, (kept, at) in visible if at > now})
        return [(map_key, kept) for map_key, (kept, _) in visible]

    def put(self, key: K, value: V) -> None:
        self.put_all([(key, value)])

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        around, expiry = self._around, self._lifetime.expiry_ms()
        admitted = {around.admit_key(key): (around.admit(value), expiry) for key, value in pairs}  # all or none
        self._table.put_pairs(around.current_key(), admitted)

    def remove(self, key: K) -> None:
        self._table.remove_pair(self._around.current_key(), self._around.admit_key(key))

    def items(self) -> Iterator[tuple[K, V]]:
        give = self._around.give
        return ((key, give(kept)) for key, kept in self._read_all())

    def keys(self) -> Iterator[K]:
        return (key for key, _ in self._read_all())

    def values(self) -> Iterator[V]:
        give = self._around.give
        return (give(kept) for _, kept in self._read_all())

    def clear(self) -> None:
        self._table.drop(self._around.current_key())

    def __len__(self) -> int:
        """Of what is to be seen; counting is not reading, so it refreshes nothing."""
        now, shows_expired = self._lifetime.now_ms(), self._lifetime.shows_expired
        pairs = self._table.pairs_of(self._around.current_key())
        return sum(shows_expired or expiry > now for _, (_, expiry) in pairs)
