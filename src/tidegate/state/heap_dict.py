"""Handles over dictionary tables: any type, made for one key at a time. Part of the heap backend.

Executor, the task's thread, per-record path. All handles of a backend read one `CurrentKey`; when no key is current its
chunk is the one that refuses, so `get` and `set` need no test for that.

Invariant. A stored value is never changed in place: mutable ones are copied on the way in and on the way out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tidegate.state.declarations import ABSENT
from tidegate.state.fitting import Fitter
from tidegate.state.handles import ListHandle, MapHandle, ValueHandle
from tidegate.state.heap_tables import CurrentKey, ListTable, MapTable, ValueTable, chunk_of
from tidegate.state.map_keys import map_key_fit
from tidegate.state.one_by_one import OneByOneValue

if TYPE_CHECKING:
    from tidegate.state.declarations import ListState, MapState, StoredValue
    from tidegate.state.keys import KeyType

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_MISSING: Any = object()
_NO_ENTRIES: dict[Any, Any] = {}


class DictValue(OneByOneValue[T]):
    """Value state whose values cannot change, so they are given out as they are."""

    __slots__ = ("_chunks", "_current", "_exact", "_owned", "_table")

    def __init__(self, declaration: StoredValue, table: ValueTable, current: CurrentKey, key_type: KeyType) -> None:
        super().__init__(declaration, key_type)
        self._table = table
        self._chunks = table.chunks
        self._owned = table.owned
        self._current = current
        self._exact = self._fitter.exact

    def get(self) -> T:
        current = self._current
        return self._chunks[current.chunk].get(current.key, self._default)  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        if value.__class__ is not self._exact:
            value = self._fitter.fit(value)
        current = self._current
        chunk = current.chunk
        if not self._owned[chunk]:
            self._table.own(chunk)
        self._chunks[chunk][current.key] = value

    def clear(self) -> None:
        self._table.discard(self._current.chunk, self._current.key)

    def _read_many(self, keys: list[Any]) -> list[Any]:
        chunks, default = self._chunks, self._default
        return [chunks[chunk_of(key)].get(key, default) for key in keys]

    def _write_many(self, values: Iterable[tuple[Any, Any]]) -> None:
        put, fit = self._table.put, self._fitter.fit
        for key, value in values:
            put(key, fit(value))


class DictIntValue(DictValue[int]):
    """Value state of ints: one that is beyond 64 bits is refused when it is set."""

    __slots__ = ()

    def set(self, value: int) -> None:
        if value.__class__ is not int or not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            value = self._fitter.fit_sum(self._fitter.fit(value))
        current = self._current
        chunk = current.chunk
        if not self._owned[chunk]:
            self._table.own(chunk)
        self._chunks[chunk][current.key] = value


class DictTextValue(DictValue[str]):
    """Value state of text: a lone surrogate, which no encoder takes, is refused when it is set."""

    __slots__ = ()

    def set(self, value: str) -> None:
        if value.__class__ is not str or not value.isascii():
            value = self._fitter.fit(value)
        current = self._current
        chunk = current.chunk
        if not self._owned[chunk]:
            self._table.own(chunk)
        self._chunks[chunk][current.key] = value


class DictMutableValue(DictValue[T]):
    """Value state whose values can change, so each caller gets a copy (`fit` makes one on the way in)."""

    __slots__ = ("_copy",)

    def __init__(self, declaration: StoredValue, table: ValueTable, current: CurrentKey, key_type: KeyType) -> None:
        super().__init__(declaration, table, current, key_type)
        self._copy = declaration.value_type.copy

    def get(self) -> T:
        current = self._current
        value: Any = self._chunks[current.chunk].get(current.key, self._default)
        return cast("T", value if value is None or value is ABSENT else self._copy(value))


class DictList(ListHandle[T]):
    """List state."""

    __slots__ = ("_copy", "_current", "_fit", "_table")

    def __init__(self, declaration: ListState[T], table: ListTable, current: CurrentKey) -> None:
        self._table = table
        self._current = current
        self._fit = Fitter(declaration, declaration.value_type).fit
        self._copy = None if declaration.value_type.immutable else declaration.value_type.copy

    def get(self) -> list[T]:
        current = self._current
        elements = self._table.chunks[current.chunk].get(current.key)
        if elements is None:
            return []
        return elements.copy() if self._copy is None else [self._copy(element) for element in elements]

    def add(self, value: T) -> None:
        self.add_all((value,))

    def add_all(self, values: Iterable[T]) -> None:
        fitted = [self._fit(value) for value in values]  # all or none: a misfit leaves the list as it was
        current = self._current
        self._table.extend(current.chunk, current.key, fitted)

    def set(self, values: Iterable[T]) -> None:
        fitted = [self._fit(value) for value in values]
        if fitted:
            self._table.put_inner(self._current.chunk, self._current.key, fitted)
        else:
            self.clear()

    def clear(self) -> None:
        self._table.discard(self._current.chunk, self._current.key)


class DictMap(MapHandle[K, V]):
    """Map state. A map that has lost its last entry is not kept."""

    __slots__ = ("_copy", "_current", "_fit_key", "_fit_value", "_table")

    def __init__(self, declaration: MapState[K, V], table: MapTable, current: CurrentKey) -> None:
        self._table = table
        self._current = current
        self._fit_key = map_key_fit(declaration)
        self._fit_value = Fitter(declaration, declaration.value_type).fit
        self._copy = declaration.value_type.copy

    def _entries(self) -> dict[Any, Any]:
        """For reading only."""
        current = self._current
        return self._table.chunks[current.chunk].get(current.key) or _NO_ENTRIES

    def get(self, key: K, default: V | None = None) -> V | None:
        value = self._entries().get(self._fit_key(key), _MISSING)
        return default if value is _MISSING else self._copy(value)

    def put(self, key: K, value: V) -> None:
        self._put_fitted({self._fit_key(key): self._fit_value(value)})

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        self._put_fitted({self._fit_key(key): self._fit_value(value) for key, value in pairs})

    def _put_fitted(self, entries: dict[Any, Any]) -> None:
        current = self._current
        self._table.update(current.chunk, current.key, entries)

    def remove(self, key: K) -> None:
        fitted = self._fit_key(key)
        if fitted not in self._entries():
            return
        current = self._current
        inner = self._table.inner_for_write(current.chunk, current.key)
        del inner[fitted]
        if not inner:
            self._table.discard(current.chunk, current.key)

    def contains(self, key: K) -> bool:
        return self._fit_key(key) in self._entries()

    def items(self) -> Iterator[tuple[K, V]]:
        copy = self._copy
        return ((key, copy(value)) for key, value in list(self._entries().items()))

    def keys(self) -> Iterator[K]:
        return iter(list(self._entries()))

    def values(self) -> Iterator[V]:
        return map(self._copy, list(self._entries().values()))

    def clear(self) -> None:
        self._table.discard(self._current.chunk, self._current.key)

    def __len__(self) -> int:
        return len(self._entries())


def value_handle(
    declaration: StoredValue, table: ValueTable, current: CurrentKey, key_type: KeyType
) -> ValueHandle[Any]:
    if not declaration.value_type.immutable:
        return DictMutableValue(declaration, table, current, key_type)
    if declaration.value_type.name == "int":
        return DictIntValue(declaration, table, current, key_type)
    if declaration.value_type.name == "str":
        return DictTextValue(declaration, table, current, key_type)
    return DictValue(declaration, table, current, key_type)
