"""Kinds of state that are another view of a stored value, list or map: reducing and aggregating state. For every backend.

Executor, the task's thread. A backend keeps them as what their declaration is (`StoredValue`, here with the default ABSENT)
and puts one of these handles before its own: copying, fitting, expiry and namespaces are those of the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.errors import ConfigurationError
from tidegate.state.declarations import ABSENT
from tidegate.state.handles import AggregatingHandle, ListHandle, MapHandle, ReducingHandle, ValueHandle

if TYPE_CHECKING:
    from tidegate.state.backend import KeyedStateBackend
    from tidegate.state.declarations import AggregatingState, ReducingState
    from tidegate.state.handles import Handle

T = TypeVar("T")
In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class FoldedReducing(ReducingHandle[T]):
    """Reducing state over a value handle."""

    __slots__ = ("_reduce", "_value")

    def __init__(self, declaration: ReducingState[T], value: ValueHandle[Any]) -> None:
        self._reduce = declaration.reduce_function
        self._value = value

    def get(self) -> T | None:
        value = self._value.get()
        return None if value is ABSENT else value

    def add(self, value: T) -> None:
        so_far = self._value.get()
        self._value.set(value if so_far is ABSENT else self._reduce(so_far, value))

    def clear(self) -> None:
        self._value.clear()

    def stored(self) -> Any:
        """Of the current key and namespace; ABSENT when nothing was added."""
        return self._value.get()

    def merge_in(self, other: Any) -> None:
        """Fold in what `stored` gave elsewhere."""
        self.add(other)


class FoldedAggregating(AggregatingHandle[In, Out]):
    """Aggregating state over a value handle that holds the accumulator."""

    __slots__ = ("_aggregate", "_declaration", "_value")

    def __init__(self, declaration: AggregatingState[In, Out], value: ValueHandle[Any]) -> None:
        self._declaration = declaration
        self._aggregate = declaration.aggregate
        self._value = value

    def get(self) -> Out | None:
        accumulator = self._value.get()
        return None if accumulator is ABSENT else self._aggregate.get_result(accumulator)

    def add(self, value: In) -> None:
        accumulator = self._value.get()
        if accumulator is ABSENT:
            accumulator = self._aggregate.create_accumulator()
        self._value.set(self._aggregate.add(value, accumulator))

    def clear(self) -> None:
        self._value.clear()

    def stored(self) -> Any:
        """The accumulator of the current key and namespace; ABSENT when nothing was added."""
        return self._value.get()

    def merge_in(self, other: Any) -> None:
        """Fold in what `stored` gave elsewhere.

        :raises ConfigurationError: for an aggregation without `merge`.
        """
        merge = getattr(self._aggregate, "merge", None)
        if merge is None:
            raise ConfigurationError(
                f"state {self._declaration.name!r} ({self._declaration.line}): windows that merge need to merge their "
                f"results, but {type(self._aggregate).__name__} has no merge. Define merge(self, a, b), which returns "
                "one accumulator for both.",
                state=self._declaration.name,
            )
        own = self._value.get()
        self._value.set(other if own is ABSENT else merge(own, other))


#: By kind, the handle over that of what is stored; the other kinds are given that itself.
OVER_STORED: dict[str, Callable[[Any, Any], Handle]] = {"reducing": FoldedReducing, "aggregating": FoldedAggregating}


def merge_namespaces(
    backend: KeyedStateBackend, handle: Handle, target: bytes, sources: Iterable[bytes], *, default: Any = None
) -> None:
    """Move what the current key has in the namespaces `sources` into `target`, in their order; they are empty then.

    For list, reducing and aggregating state, whose kind says how two become one. `target` is current afterwards. What
    was moved is written anew, so a TTL begins again. Other kinds may be the key's alone, and have nothing in any window.

    :param default: of a value, what it is where nothing is stored.
    :raises ConfigurationError: for something in another kind of state, or an aggregation without `merge`.
    """
    if not isinstance(handle, (ListHandle, FoldedReducing, FoldedAggregating)):
        _clear_namespaces(backend, handle, sources, default)
        backend.set_current_namespace(target)
        return
    for source in sources:
        if source == target:
            continue
        backend.set_current_namespace(source)
        if isinstance(handle, ListHandle):
            elements = handle.get()
            backend.set_current_namespace(target)
            handle.add_all(elements)
        else:
            stored = handle.stored()
            backend.set_current_namespace(target)
            if stored is not ABSENT:
                handle.merge_in(stored)
        backend.set_current_namespace(source)
        handle.clear()
    backend.set_current_namespace(target)


def _clear_namespaces(backend: KeyedStateBackend, handle: Any, namespaces: Iterable[bytes], default: Any) -> None:
    """Of a value or a map. :raises ConfigurationError: for one that holds something."""
    for namespace in namespaces:
        backend.set_current_namespace(namespace)
        if len(handle) if isinstance(handle, MapHandle) else handle.get() != default:
            raise ConfigurationError(
                "only list, reducing and aggregating state can be merged: of two values or maps under one key nothing says "
                "which is to stay. Keep the state of windows that merge in one of these kinds."
            )
        handle.clear()  # a value that is the default may have been set
