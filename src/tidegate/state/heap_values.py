"""Handles of value state over dictionaries: any type, made for one key at a time. Part of the heap backend.

Executor, the task's thread, per-record path. All handles of a backend read one `CurrentKey`; when no key is current its
chunk is the one that refuses, so `get` and `set` need no test for that.

Invariant. A stored value is never changed in place: mutable ones are copied on the way in and on the way out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tidegate.state.declarations import ABSENT
from tidegate.state.direct import DirectValue
from tidegate.state.handles import ValueHandle
from tidegate.state.heap_tables import CurrentKey, ValueTable, chunk_of
from tidegate.state.one_by_one import OneByOneValue

if TYPE_CHECKING:
    from tidegate.state.declarations import StoredValue
    from tidegate.state.keys import KeyType

T = TypeVar("T")


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

    def direct(self) -> DirectValue | None:
        """What `get` and `set` do, for a loop that does it itself."""
        table = self._table
        fit, default = self._fitter.fit, self._default
        return DirectValue(self, "plain", self._exact, fit, default, table.chunks, table.owned, table.own)

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
        fit = self._fitter.fit
        self._table.keep_many((key, fit(value)) for key, value in values)


class DictIntValue(DictValue[int]):
    """Value state of ints: one that is beyond 64 bits is refused when it is set."""

    __slots__ = ()

    def direct(self) -> DirectValue | None:
        return replace(super().direct(), kind="int", fit=self._fit_int)  # type: ignore[type-var]

    def _fit_int(self, value: Any) -> int:
        return self._fitter.fit_sum(self._fitter.fit(value))  # type: ignore[no-any-return]

    def set(self, value: int) -> None:
        if value.__class__ is not int or not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            value = self._fit_int(value)
        current = self._current
        chunk = current.chunk
        if not self._owned[chunk]:
            self._table.own(chunk)
        self._chunks[chunk][current.key] = value


class DictTextValue(DictValue[str]):
    """Value state of text: a lone surrogate, which no encoder takes, is refused when it is set."""

    __slots__ = ()

    def direct(self) -> DirectValue | None:
        return replace(super().direct(), kind="text")  # type: ignore[type-var]

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

    def direct(self) -> None:
        return None

    def __init__(self, declaration: StoredValue, table: ValueTable, current: CurrentKey, key_type: KeyType) -> None:
        super().__init__(declaration, table, current, key_type)
        self._copy = declaration.value_type.copy

    def get(self) -> T:
        current = self._current
        value: Any = self._chunks[current.chunk].get(current.key, self._default)
        return cast("T", value if value is None or value is ABSENT else self._copy(value))


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
