"""State with a TTL: each value is kept together with when it expires, and so it is a value of another type. For every backend.

Executor, the task's thread, per-record path. A `Timed` is never changed, only replaced. Tables keep them as they keep any
value; rows have the expiry in a column beside the value (state/sections.py), and cells before it (state/rocksdb_rows.py).

A read never removes anything: it looks away from what has expired, and the backend's clean-up takes it later. With
`update="read_and_write"` a read writes: each entry that it gives out begins its time anew. An entry that has expired is
not refreshed, also where it may still be returned: it is as good as gone.

Lists and maps are in state/nested_handles.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from tidegate.state.declarations import ABSENT
from tidegate.state.one_by_one import OneByOneValue

if TYPE_CHECKING:
    from tidegate.state.declarations import StoredValue
    from tidegate.state.fitting import Intake
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.keys import KeyType
    from tidegate.state.ttl import Lifetime

T = TypeVar("T")
Timed = tuple[Any, int]  #: a value as it is kept, and its expiry (ms since 1970)


class KeptValues(Protocol):
    """The values of all keys; ABSENT where there is none."""

    def kept(self, at: CurrentKey) -> Any:
        """Refuses when no key is current, as the next two do."""

    def keep(self, at: CurrentKey, kept: Any) -> None: ...

    def drop(self, at: CurrentKey) -> None: ...

    def find_many(self, keys: list[Any]) -> list[Any]:
        """Of normalised keys."""

    def keep_many(self, kept: Iterable[tuple[Any, Any]]) -> None:
        """Normalised keys and what is to be kept."""


class TimedValue(OneByOneValue[T]):
    """Value state with a TTL."""

    __slots__ = ("_admit", "_copy", "_current", "_give", "_lifetime", "_table")

    def __init__(
        self,
        declaration: StoredValue,
        table: KeptValues,
        current: CurrentKey,
        key_type: KeyType,
        intake: Intake,
        lifetime: Lifetime,
    ) -> None:
        super().__init__(declaration, key_type)
        self._table = table
        self._current = current
        self._admit = intake.admit
        self._give = intake.give
        self._lifetime = lifetime
        self._copy = declaration.value_type.copy

    def get(self) -> T:
        lifetime, now = self._lifetime, self._lifetime.now_ms()
        timed = self._table.kept(self._current)
        if lifetime.refreshes and timed is not ABSENT and timed[1] > now:
            self._table.keep(self._current, (timed[0], now + lifetime.milliseconds))
        return self._shown(timed, now)  # type: ignore[no-any-return]

    def set(self, value: T) -> None:
        self._table.keep(self._current, (self._admit(value), self._lifetime.expiry_ms()))

    def clear(self) -> None:
        self._table.drop(self._current)

    def _shown(self, timed: Any, now: int) -> Any:
        """What a read gives out."""
        if timed is ABSENT or (timed[1] <= now and not self._lifetime.shows_expired):
            default = self._default
            return default if default is None or default is ABSENT else self._copy(default)
        return timed[0] if self._give is None else self._give(timed[0])

    def _read_many(self, keys: list[Any]) -> list[Any]:
        lifetime, now = self._lifetime, self._lifetime.now_ms()
        found = self._table.find_many(keys)
        if lifetime.refreshes:
            expiry = now + lifetime.milliseconds
            live = [(key, timed) for key, timed in zip(keys, found, strict=True) if timed is not ABSENT]
            self._table.keep_many([(key, (timed[0], expiry)) for key, timed in live if timed[1] > now])
        return [self._shown(timed, now) for timed in found]

    def _write_many(self, values: Iterable[tuple[Any, Any]]) -> None:
        admit, expiry = self._admit, self._lifetime.expiry_ms()
        self._table.keep_many([(key, (admit(value), expiry)) for key, value in values])
