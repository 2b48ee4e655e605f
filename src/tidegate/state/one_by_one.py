"""`get_many` and its kin for states that are kept key by key: every type, every backend. Executor, the task's thread.

The rows of the call are read together and written together; in between is a dictionary, so a key that comes often costs the
backend one read and one write.
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.state.fitting import Fitter, column_of
from tidegate.state.handles import ValueHandle
from tidegate.state.key_columns import normalised_keys

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import StoredValue
    from tidegate.state.handles import Column, Extreme
    from tidegate.state.keys import KeyType

T = TypeVar("T")
EXTREMES: dict[Extreme, Callable[[Any, Any], Any]] = {"min": min, "max": max}


class OneByOneValue(ValueHandle[T]):
    """A value handle whose columns are made of single reads and writes."""

    __slots__ = ("_declaration", "_default", "_fitter", "_key_type")

    def __init__(self, declaration: StoredValue, key_type: KeyType) -> None:
        self._declaration = declaration
        self._default: Any = declaration.default
        self._fitter = Fitter(declaration, declaration.value_type)
        self._key_type = key_type

    @abstractmethod
    def _read_many(self, keys: list[Any]) -> list[Any]:
        """Of normalised keys, in the empty namespace: the caller's own values, the default where there is none."""

    @abstractmethod
    def _write_many(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Pairs of normalised key and value, which may not fit; of one key the last one stays."""

    def get_many(self, keys: Column) -> pa.Array:
        return column_of(self._declaration, self._read_many(normalised_keys(self._key_type, keys)))

    def update_many(self, keys: Column, values: Column) -> None:
        given = self._fitter.values(values, len(keys))
        self._write_many(zip(normalised_keys(self._key_type, keys), given, strict=True))

    def add_many(self, keys: Column, values: Column | int | float, *, running: bool = False) -> pa.Array | None:
        sums = self._fold(keys, values, operator.add, 0)
        return column_of(self._declaration, sums) if running else None

    def fold_many(self, keys: Column, values: Column | int | float, how: Extreme) -> pa.Array:
        return column_of(self._declaration, self._fold(keys, values, EXTREMES[how], None))

    def _fold(
        self, keys: Column, values: Column | int | float, fold: Callable[[Any, Any], Any], start: Any
    ) -> list[Any]:
        """The result after each row. A key without a value begins with `start`, or with its first number."""
        self._fitter.require_number()
        normalised = normalised_keys(self._key_type, keys)
        numbers = self._fitter.values(values, len(keys))
        totals = dict(zip(normalised, self._read_many(normalised), strict=True))
        fit_sum = self._fitter.fit_sum
        folded = []
        for key, number in zip(normalised, numbers, strict=True):
            before = totals[key]
            if number is None:  # passed over, where a number may be None
                folded.append(before)
                continue
            if before is None:
                before = start
            total = totals[key] = number if before is None else fit_sum(fold(before, number))
            folded.append(total)
        self._write_many(item for item in totals.items() if item[1] is not None)
        return folded
