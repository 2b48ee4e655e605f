"""Handles over tables whose entries expire (state/heap_ttl_tables.py). Part of the heap backend.

Executor, the task's thread, per-record path. A read never removes anything: it looks away from what has expired, and
`sweep` takes it later. With `update="read_and_write"` a read writes: each entry that it gives out begins its time anew.

An entry that has expired is not refreshed, also where it may still be returned: it is as good as gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import pyarrow as pa

from tidegate.state.declarations import ABSENT
from tidegate.state.fitting import Fitter
from tidegate.state.handles import ListHandle, MapHandle, ValueHandle
from tidegate.state.heap_dict import column_of
from tidegate.state.heap_tables import CurrentKey, chunk_of
from tidegate.state.key_columns import normalised_keys

if TYPE_CHECKING:
    from tidegate.state.declarations import ListState, MapState, StoredValue
    from tidegate.state.handles import Column
    from tidegate.state.heap_ttl_tables import ExpiringLists, ExpiringMaps, ExpiringValues
    from tidegate.state.keys import KeyType
    from tidegate.state.ttl import Lifetime

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class ExpiringValue(ValueHandle[T]):
    """Value state with a TTL."""

    __slots__ = ("_copy", "_current", "_declaration", "_default", "_fit", "_fitter", "_key_type", "_lifetime", "_table")

    def __init__(
        self,
        declaration: StoredValue,
        table: ExpiringValues,
        current: CurrentKey,
        key_type: KeyType,
        lifetime: Lifetime,
    ) -> None:
        self._declaration = declaration
        self._table = table
        self._current = current
        self._key_type = key_type
        self._lifetime = lifetime
        self._default: Any = declaration.default
        self._copy = declaration.value_type.copy
        self._fitter = Fitter(declaration, declaration.value_type)
        self._fit = self._fitter.fit if declaration.value_type.name != "int" else _fit_int(self._fitter)

    def get(self) -> T:
        current = self._current
        value = self._read(current.chunk, current.key)
        return cast("T", value if value is None or value is ABSENT else self._copy(value))

    def set(self, value: T) -> None:
        current = self._current
        self._write(current.chunk, current.key, self._fit(value))

    def clear(self) -> None:
        self._table.discard(self._current.chunk, self._current.key)

    def _read(self, chunk: int, key: Any) -> Any:
        entry = self._table.chunks[chunk].get(key)
        if entry is None:
            return self._default
        lifetime = self._lifetime
        if entry[1] <= lifetime.now_ms():
            return entry[0] if lifetime.shows_expired else self._default
        if lifetime.refreshes:
            self._write(chunk, key, entry[0])
        return entry[0]

    def _write(self, chunk: int, key: Any, value: Any) -> None:
        table = self._table
        if not table.owned[chunk]:
            table.own(chunk)
        table.chunks[chunk][key] = (value, self._lifetime.expiry_ms())

    def get_many(self, keys: Column) -> pa.Array:
        found = [self._read(chunk_of(key), key) for key in normalised_keys(self._key_type, keys)]
        return column_of(self._declaration, found)

    def update_many(self, keys: Column, values: Column) -> None:
        rows = zip(normalised_keys(self._key_type, keys), self._fitter.values(values, len(keys)), strict=True)
        for key, value in rows:
            self._write(chunk_of(key), key, self._fit(value))

    def add_many(self, keys: Column, values: Column | int | float, *, running: bool = False) -> pa.Array | None:
        self._fitter.require_number()
        sums = []
        rows = zip(normalised_keys(self._key_type, keys), self._fitter.values(values, len(keys)), strict=True)
        for key, value in rows:
            chunk = chunk_of(key)
            before = self._read(chunk, key)
            total = self._fitter.fit_sum((0 if before is None else before) + value)
            self._write(chunk, key, total)
            sums.append(total)
        return column_of(self._declaration, sums) if running else None


class ExpiringList(ListHandle[T]):
    """List state with a TTL for each element."""

    __slots__ = ("_copy", "_current", "_fit", "_lifetime", "_table")

    def __init__(
        self, declaration: ListState[T], table: ExpiringLists, current: CurrentKey, lifetime: Lifetime
    ) -> None:
        self._table = table
        self._current = current
        self._lifetime = lifetime
        self._fit = Fitter(declaration, declaration.value_type).fit
        self._copy = declaration.value_type.copy

    def get(self) -> list[T]:
        current, lifetime, copy = self._current, self._lifetime, self._copy
        pairs = self._table.chunks[current.chunk].get(current.key)
        if pairs is None:
            return []
        now = lifetime.now_ms()
        visible = pairs if lifetime.shows_expired else [pair for pair in pairs if pair[1] > now]
        found = [copy(element) for element, _ in visible]
        if lifetime.refreshes:
            expiry = lifetime.expiry_ms()
            refreshed = [(element, expiry) if at > now else (element, at) for element, at in visible]
            if refreshed:
                self._table.put_inner(current.chunk, current.key, refreshed)
        return found

    def add(self, value: T) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[T]) -> None:
        expiry = self._lifetime.expiry_ms()
        fitted = [(self._fit(value), expiry) for value in values]  # all or none: a misfit leaves the list as it was
        current = self._current
        pairs = self._table.inner_for_write(current.chunk, current.key)
        if pairs is not None:
            pairs.extend(fitted)
        elif fitted:
            self._table.put_inner(current.chunk, current.key, fitted)

    def set(self, values: Iterable[T]) -> None:
        expiry = self._lifetime.expiry_ms()
        fitted = [(self._fit(value), expiry) for value in values]
        if fitted:
            self._table.put_inner(self._current.chunk, self._current.key, fitted)
        else:
            self.clear()

    def clear(self) -> None:
        self._table.discard(self._current.chunk, self._current.key)


class ExpiringMap(MapHandle[K, V]):
    """Map state with a TTL for each entry."""

    __slots__ = ("_copy", "_current", "_fit_key", "_fit_value", "_lifetime", "_table")

    def __init__(
        self, declaration: MapState[K, V], table: ExpiringMaps, current: CurrentKey, lifetime: Lifetime
    ) -> None:
        self._table = table
        self._current = current
        self._lifetime = lifetime
        self._fit_key = Fitter(declaration, declaration.key_type).fit
        self._fit_value = Fitter(declaration, declaration.value_type).fit
        self._copy = declaration.value_type.copy

    def get(self, key: K, default: V | None = None) -> V | None:
        pair = self._read(self._fit_key(key))
        return default if pair is None else self._copy(pair[0])

    def contains(self, key: K) -> bool:
        return self._read(self._fit_key(key)) is not None

    def _read(self, fitted: Any) -> tuple[Any, int] | None:
        current, lifetime = self._current, self._lifetime
        inner = self._table.chunks[current.chunk].get(current.key)
        pair: tuple[Any, int] | None = None if inner is None else inner.get(fitted)
        if pair is None:
            return None
        if pair[1] <= lifetime.now_ms():
            return pair if lifetime.shows_expired else None
        if lifetime.refreshes:
            inner = self._table.inner_for_write(current.chunk, current.key)
            inner[fitted] = (pair[0], lifetime.expiry_ms())
        return pair

    def _read_all(self) -> list[tuple[Any, Any]]:
        """Of all that is to be seen: map key and value."""
        current, lifetime = self._current, self._lifetime
        inner = self._table.chunks[current.chunk].get(current.key)
        if inner is None:
            return []
        now, shows_expired = lifetime.now_ms(), lifetime.shows_expired
        visible = [(key, value) for key, (value, expiry) in inner.items() if shows_expired or expiry > now]
        if lifetime.refreshes:
            expiry = lifetime.expiry_ms()
            inner = self._table.inner_for_write(current.chunk, current.key)
            inner.update({key: (value, expiry) for key, value in visible if inner[key][1] > now})
        return visible

    def put(self, key: K, value: V) -> None:
        self._put_fitted({self._fit_key(key): (self._fit_value(value), self._lifetime.expiry_ms())})

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        expiry = self._lifetime.expiry_ms()
        self._put_fitted({self._fit_key(key): (self._fit_value(value), expiry) for key, value in pairs})

    def _put_fitted(self, entries: dict[Any, tuple[Any, int]]) -> None:
        current = self._current
        inner = self._table.inner_for_write(current.chunk, current.key)
        if inner is not None:
            inner.update(entries)
        elif entries:
            self._table.put_inner(current.chunk, current.key, entries)

    def remove(self, key: K) -> None:
        fitted = self._fit_key(key)
        current = self._current
        if fitted in self._table.chunks[current.chunk].get(current.key, ()):
            self._table.remove_entry(current.chunk, current.key, fitted)

    def items(self) -> Iterator[tuple[K, V]]:
        copy = self._copy
        return ((key, copy(value)) for key, value in self._read_all())

    def keys(self) -> Iterator[K]:
        return iter([key for key, _ in self._read_all()])

    def values(self) -> Iterator[V]:
        copy = self._copy
        return (copy(value) for _, value in self._read_all())

    def clear(self) -> None:
        self._table.discard(self._current.chunk, self._current.key)

    def __len__(self) -> int:
        """Of what is to be seen; counting is not reading, so it refreshes nothing."""
        current, lifetime = self._current, self._lifetime
        inner = self._table.chunks[current.chunk].get(current.key, {})
        if lifetime.shows_expired:
            return len(inner)
        now = lifetime.now_ms()
        return sum(expiry > now for _, expiry in inner.values())


def _fit_int(fitter: Fitter) -> Callable[[Any], Any]:
    """One that is beyond 64 bits is refused when it is set, and not first by the snapshot."""

    def fit(value: Any) -> Any:
        if value.__class__ is int and -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            return value
        return fitter.fit_sum(fitter.fit(value))

    return fit
