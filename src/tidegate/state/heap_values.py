"""Handles of value state over the heap's dictionaries: `get` and `set` as quick as they can be. Part of the heap backend.

Executor, the task's thread, per-record path: a look into a dictionary takes a fraction of what a call of the table takes, so
these do for themselves what `ValueTable.kept` and `keep` do. All handles of a backend read one `CurrentKey`; when no key is
current its chunk is the one that refuses, so `get` and `set` need no test for that.

Only for values that cannot change. Others are copied on the way in and on the way out, beside which a call is little: they have
the handle of every backend (state/value_handles.py).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.state.direct import DirectValue
from tidegate.state.fitting import object_intake
from tidegate.state.handles import ValueHandle
from tidegate.state.heap_tables import CurrentKey, ValueTable
from tidegate.state.value_handles import KeptValue

if TYPE_CHECKING:
    from tidegate.state.declarations import StoredValue
    from tidegate.state.keys import KeyType

T = TypeVar("T")


class DictValue(KeptValue[T]):
    """Value state whose values cannot change, so they are given out as they are."""

    __slots__ = ("_chunks", "_exact", "_own", "_owned")

    def __init__(self, declaration: StoredValue, table: ValueTable, current: CurrentKey, key_type: KeyType) -> None:
        super().__init__(declaration, table, current, key_type, object_intake(declaration, declaration.value_type))
        self._chunks = table.chunks
        self._owned = table.owned
        self._own = table.own
        self._exact = self._fitter.exact

    def direct(self) -> DirectValue:
        """What `get` and `set` do, for a loop that does it itself."""
        return DirectValue(self, "plain", self._exact, self._admit, self._default, self._chunks, self._owned, self._own)

    def get(self) -> T:
        current = self._current
        return self._chunks[current.chunk].get(current.key, self._default)  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        if value.__class__ is not self._exact:
            value = self._admit(value)
        current = self._current
        chunk = current.chunk
        if not self._owned[chunk]:
            self._own(chunk)
        self._chunks[chunk][current.key] = value


class DictIntValue(DictValue[int]):
    """Value state of ints: one that is beyond 64 bits is refused when it is set."""

    __slots__ = ()

    def direct(self) -> DirectValue:
        return replace(super().direct(), kind="int")

    def set(self, value: int) -> None:
        if value.__class__ is not int or not -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF:
            value = self._admit(value)
        current = self._current
        chunk = current.chunk
        if not self._owned[chunk]:
            self._own(chunk)
        self._chunks[chunk][current.key] = value


class DictTextValue(DictValue[str]):
    """Value state of text: a lone surrogate, which no encoder takes, is refused when it is set."""

    __slots__ = ()

    def direct(self) -> DirectValue:
        return replace(super().direct(), kind="text")

    def set(self, value: str) -> None:
        if value.__class__ is not str or not value.isascii():
            value = self._admit(value)
        current = self._current
        chunk = current.chunk
        if not self._owned[chunk]:
            self._own(chunk)
        self._chunks[chunk][current.key] = value


def value_handle(
    declaration: StoredValue, table: ValueTable, current: CurrentKey, key_type: KeyType
) -> ValueHandle[Any]:
    value_type = declaration.value_type
    if not value_type.immutable:
        return KeptValue(declaration, table, current, key_type, object_intake(declaration, value_type))
    of_type: dict[str, type[DictValue[Any]]] = {"int": DictIntValue, "str": DictTextValue}
    return of_type.get(value_type.name, DictValue)(declaration, table, current, key_type)
