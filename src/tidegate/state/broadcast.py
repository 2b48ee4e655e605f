"""Broadcast state as a function declares it: a map of which every subtask has a copy. Driver (declared), executor (bound).

    class Alarm(tg.KeyedBroadcastProcessFunction):
        limits = tg.BroadcastState(str, float)

Stored as every broadcast state is (state/operator_state.py). What a function holds is a view that can be written only
while an element of the broadcast side is worked on: every subtask gets those, so every copy changes alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, overload

from tidegate.errors import ConfigurationError, UserLine
from tidegate.state.declarations import MapState
from tidegate.state.handles import MapHandle

if TYPE_CHECKING:
    from tidegate.state.operator_state import OperatorStateStore

K = TypeVar("K")
V = TypeVar("V")


class BroadcastState(Generic[K, V]):
    """A map that is the same in every subtask, on the class of a broadcast function.

    :raises TypeDeclarationError: for a type that cannot be stored, or map keys that can change.
    """

    def __init__(self, key_type: type[K] | Any, value_type: type[V] | Any) -> None:
        self.declaration: MapState[K, V] = MapState(key_type, value_type)

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def line(self) -> UserLine:
        return self.declaration.line

    @property
    def type_name(self) -> str:
        return self.declaration.type_name

    def __set_name__(self, owner: type, name: str) -> None:
        self.declaration.__set_name__(owner, name)

    @overload
    def __get__(self, instance: None, owner: type) -> BroadcastState[K, V]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> BroadcastView[K, V]: ...

    def __get__(self, instance: object | None, owner: type) -> BroadcastState[K, V] | BroadcastView[K, V]:
        if instance is None:
            return self
        raise ConfigurationError(
            f"broadcast state {owner.__name__}.{self.name} ({self.line}) was used outside a running job, or in a "
            "function that has no broadcast side. Declare it in a BroadcastProcessFunction or a "
            "KeyedBroadcastProcessFunction, and use it in open, process_element, process_broadcast_element or on_timer.",
            state=self.name,
        )


class Gate:
    """Whether broadcast state may be written now. One for all states of a function."""

    __slots__ = ("is_open",)

    def __init__(self) -> None:
        self.is_open = False

    @contextmanager
    def opened(self) -> Iterator[None]:
        self.is_open = True
        try:
            yield
        finally:
            self.is_open = False


class BroadcastView(MapHandle[K, V]):
    """One subtask's copy, read-only while the gate is closed."""

    __slots__ = ("_gate", "_map", "_state")

    def __init__(self, state: BroadcastState[K, V], copy: MapHandle[K, V], gate: Gate) -> None:
        self._state = state
        self._map = copy
        self._gate = gate

    def get(self, key: K, default: V | None = None) -> V | None:
        return self._map.get(key, default)

    def contains(self, key: K) -> bool:
        return self._map.contains(key)

    def items(self) -> Iterator[tuple[K, V]]:
        return self._map.items()

    def keys(self) -> Iterator[K]:
        return self._map.keys()

    def values(self) -> Iterator[V]:
        return self._map.values()

    def __len__(self) -> int:
        return len(self._map)

    def put(self, key: K, value: V) -> None:
        self._writable().put(key, value)

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        self._writable().put_all(entries)

    def remove(self, key: K) -> None:
        self._writable().remove(key)

    def clear(self) -> None:
        self._writable().clear()

    def _writable(self) -> MapHandle[K, V]:
        if not self._gate.is_open:
            self._refuse()
        return self._map

    def _refuse(self) -> NoReturn:
        raise ConfigurationError(
            f"broadcast state {self._state.name!r} ({self._state.line}) is written where not every subtask does the same: "
            "the copies would differ. Write it in process_broadcast_element only; everywhere else it can be read.",
            state=self._state.name,
        )


def broadcast_states(function: object) -> dict[str, BroadcastState[Any, Any]]:
    """The broadcast states of a function's class, by name: those of base classes first."""
    found: dict[str, BroadcastState[Any, Any]] = {}
    for owner in reversed(type(function).__mro__):
        for name, attribute in vars(owner).items():
            if isinstance(attribute, BroadcastState):
                attribute.__set_name__(owner, name)
                found[name] = attribute
            else:
                found.pop(name, None)
    return found


def bind_broadcast_states(function: object, store: OperatorStateStore, gate: Gate) -> None:
    """Put a view under each state's name into the function. After the store was restored."""
    for name, state in broadcast_states(function).items():
        function.__dict__[name] = BroadcastView(state, store.broadcast(state.declaration), gate)
