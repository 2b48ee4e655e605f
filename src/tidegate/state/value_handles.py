"""Handles of value state, with a TTL and without, over what any backend keeps. Executor, the task's thread, per-record path.

A table keeps values in a form of its own (`Intake`: in and out of it). With a TTL it keeps each as a `Timed` (state/ttl.py),
and the handle looks away from what has expired. A backend whose records cannot pay for the calls in between overrides `get`
and `set` of `KeptValue`, and nothing else (state/heap_values.py).

Whole columns are made of single values: the rows of a call are read together and written together; in between is a dictionary,
so a key that comes often costs the backend one read and one write.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidegate.state.declarations import ABSENT
from tidegate.state.fitting import Fitter, column_of
from tidegate.state.handles import ValueHandle
from tidegate.state.key_columns import normalised_keys

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import StoredValue
    from tidegate.state.fitting import Intake
    from tidegate.state.handles import Column, Extreme
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.keys import KeyType
    from tidegate.state.ttl import Lifetime

T = TypeVar("T")
EXTREMES: dict[Extreme, Callable[[Any, Any], Any]] = {"min": min, "max": max}


class KeptValues(Protocol):
    """The values of all keys; ABSENT where there is none."""

    def kept(self, at: CurrentKey) -> Any:
        """Refuses when no key is current, as the next two do."""

    def keep(self, at: CurrentKey, kept: Any) -> None: ...

    def drop(self, at: CurrentKey) -> None: ...

    def find_many(self, keys: list[Any]) -> list[Any]:
        """Of normalised keys."""

    def keep_many(self, kept: Iterable[tuple[Any, Any]]) -> None:
        """Normalised keys and what is to be kept; of one key the last one stays."""


class KeptValue(ValueHandle[T]):
    """Value state."""

    __slots__ = ("_admit", "_current", "_declaration", "_default", "_fitter", "_give", "_key_type", "_look", "_table")

    def __init__(
        self, declaration: StoredValue, table: KeptValues, current: CurrentKey, key_type: KeyType, intake: Intake
    ) -> None:
        self._declaration = declaration
        self._default: Any = declaration.default
        self._table = table
        self._current = current
        self._key_type = key_type
        self._fitter = Fitter(declaration, declaration.value_type)
        self._admit = intake.admit
        self._give = intake.give
        self._look = intake.look

    def get(self) -> T:
        kept = self._table.kept(self._current)
        if kept is ABSENT:
            return self._nothing()  # type: ignore[no-any-return]
        give = self._give
        return kept if give is None else give(kept)  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        self._table.keep(self._current, self._admit(value))

    def clear(self) -> None:
        self._table.drop(self._current)

    def _nothing(self) -> Any:
        """The default, the caller's own."""
        default = self._default
        return default if default is None or default is ABSENT else self._declaration.value_type.copy(default)

    # -- whole columns: keys are normalised, in the empty namespace ------------------------------------------------------

    def _read_many(self, keys: list[Any]) -> list[Any]:
        """To be looked at: they become columns, or are numbers. The default where there is none."""
        look, default = self._look, self._default
        found = self._table.find_many(keys)
        if look is None:
            return [default if kept is ABSENT else kept for kept in found]
        return [default if kept is ABSENT else look(kept) for kept in found]

    def _write_many(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Of values that may not fit: all or none."""
        admit = self._admit
        self._table.keep_many([(key, admit(value)) for key, value in values])

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
        changed: dict[Any, Any] = {}
        folded = []
        for key, number in zip(normalised, numbers, strict=True):
            before = totals[key]
            if number is None:  # passed over, where a number may be None
                folded.append(before)
                continue
            if before is None:
                before = start
            total = totals[key] = changed[key] = number if before is None else fit_sum(fold(before, number))
            folded.append(total)
        self._write_many(changed.items())
        return folded


class TimedValue(KeptValue[T]):
    """Value state with a TTL."""

    __slots__ = ("_lifetime",)

    def __init__(
        self,
        declaration: StoredValue,
        table: KeptValues,
        current: CurrentKey,
        key_type: KeyType,
        intake: Intake,
        lifetime: Lifetime,
    ) -> None:
        super().__init__(declaration, table, current, key_type, intake)
        self._lifetime = lifetime

    def get(self) -> T:
        lifetime, now = self._lifetime, self._lifetime.now_ms()
        timed = self._table.kept(self._current)
        if lifetime.refreshes and timed is not ABSENT and timed[1] > now:
            self._table.keep(self._current, (timed[0], now + lifetime.milliseconds))
        if self._is_hidden(timed, now):
            return self._nothing()  # type: ignore[no-any-return]
        return timed[0] if self._give is None else self._give(timed[0])  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        self._table.keep(self._current, (self._admit(value), self._lifetime.expiry_ms()))

    def _is_hidden(self, timed: Any, now: int) -> bool:
        """Whether a read gives the default."""
        return timed is ABSENT or (timed[1] <= now and not self._lifetime.shows_expired)

    def _read_many(self, keys: list[Any]) -> list[Any]:
        lifetime, now = self._lifetime, self._lifetime.now_ms()
        found = self._table.find_many(keys)
        if lifetime.refreshes:
            expiry = now + lifetime.milliseconds
            live = [(key, timed) for key, timed in zip(keys, found, strict=True) if timed is not ABSENT]
            self._table.keep_many([(key, (timed[0], expiry)) for key, timed in live if timed[1] > now])
        default, look = self._default, self._look or _as_it_is
        return [default if self._is_hidden(timed, now) else look(timed[0]) for timed in found]

    def _write_many(self, values: Iterable[tuple[Any, Any]]) -> None:
        admit, expiry = self._admit, self._lifetime.expiry_ms()
        self._table.keep_many([(key, (admit(value), expiry)) for key, value in values])


def _as_it_is(kept: Any) -> Any:
    return kept
