"""What user code holds when it touches declared state: one handle for each declared state of a function.

Runs on the executor, in the task's thread, under the key of the record in work. What a handle gives out is the caller's
own: changing it changes no state. What is handed in is kept as it is at that moment: only `set`, `add`, `put` and
their kin change state. This holds for every backend.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from tidegate.state.timers import TimerTable

    Column: TypeAlias = pa.Array | pa.ChunkedArray | np.ndarray[Any, Any]
    #: What a backend gives for a declaration.
    Handle: TypeAlias = (
        "ValueHandle[Any] | ListHandle[Any] | MapHandle[Any, Any] | ReducingHandle[Any] | AggregatingHandle[Any, Any]"
        " | TimerTable"
    )

Extreme: TypeAlias = Literal["min", "max"]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
_NOTHING: Any = object()


class ValueHandle(ABC, Generic[T]):
    """One value for each key."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> T:
        """The value of the current key, or the declared default (None when there is none)."""

    @abstractmethod
    def set(self, value: T) -> None:
        """:raises TypeDeclarationError: when the value does not fit the declared type."""

    @abstractmethod
    def clear(self) -> None:
        """Forget the current key's value; `get` gives the default again."""

    def value(self) -> T:
        """PyFlink's name for `get`."""
        return self.get()

    def update(self, value: T) -> None:
        """PyFlink's name for `set`."""
        self.set(value)

    # -- whole columns, for batch functions: the keys are in the call, the current key plays no part ---------------

    @abstractmethod
    def get_many(self, keys: Column) -> pa.Array:
        """The value of each key, in order; the default, or null without one, for a key that has none."""

    @abstractmethod
    def update_many(self, keys: Column, values: Column) -> None:
        """Set each key's value. Where a key comes twice the last one wins."""

    @abstractmethod
    def add_many(self, keys: Column, values: Column | int | float, *, running: bool = False) -> pa.Array | None:
        """Add to each key's number, row by row; a key without one starts at the default, or at 0.

        With `running`, returns for each row the key's number after that row. The additions happen in the order of the
        rows, so a sum of floats does not depend on how the stream was cut into batches.

        :raises TypeDeclarationError: for a state that holds no number, or a sum beyond its type's range (never wraps).
        """

    @abstractmethod
    def fold_many(self, keys: Column, values: Column | int | float, how: Extreme) -> pa.Array:
        """Keep the smaller or the larger of each key's number and the row's, row by row; what the key has after each row.

        A key without one starts at the default, or with its first number. As Python's `min` and `max` do it: a NaN that
        comes later is passed over, one that comes first stays.

        :raises TypeDeclarationError: for a state that holds no number.
        """


class ListHandle(ABC, Generic[T]):
    """An ordered list for each key. A key without one has the empty list."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> list[T]:
        """A list of the caller's own; changing it changes no state."""

    @abstractmethod
    def add(self, value: T) -> None: ...

    @abstractmethod
    def add_all(self, values: Iterable[T]) -> None: ...

    @abstractmethod
    def set(self, values: Iterable[T]) -> None:
        """Replace the whole list."""

    @abstractmethod
    def clear(self) -> None: ...

    def update(self, values: Iterable[T]) -> None:
        """PyFlink's name for `set`."""
        self.set(values)

    def __iter__(self) -> Iterator[T]:
        return iter(self.get())


class MapHandle(ABC, Generic[K, V]):
    """A map for each key. Its order is not part of the state.

    Iteration sees the map as it was when `items`, `keys` or `values` was called, whatever is changed meanwhile.
    """

    __slots__ = ()

    @abstractmethod
    def get(self, key: K, default: V | None = None) -> V | None: ...

    @abstractmethod
    def put(self, key: K, value: V) -> None: ...

    @abstractmethod
    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None: ...

    @abstractmethod
    def remove(self, key: K) -> None:
        """Removing what is not there does nothing."""

    @abstractmethod
    def contains(self, key: K) -> bool: ...

    @abstractmethod
    def items(self) -> Iterator[tuple[K, V]]: ...

    @abstractmethod
    def keys(self) -> Iterator[K]: ...

    @abstractmethod
    def values(self) -> Iterator[V]: ...

    @abstractmethod
    def clear(self) -> None: ...

    @abstractmethod
    def __len__(self) -> int: ...

    def is_empty(self) -> bool:
        return len(self) == 0

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __contains__(self, key: object) -> bool:
        return self.contains(cast("K", key))

    def __getitem__(self, key: K) -> V:
        """:raises KeyError: when there is none, as a dict does."""
        # One read, because between two of them an entry may expire.
        found = self.get(key, cast("V", _NOTHING))
        if found is _NOTHING:
            raise KeyError(key)
        return cast("V", found)

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        if not self.contains(key):
            raise KeyError(key)
        self.remove(key)


class ReducingHandle(ABC, Generic[T]):
    """One value for each key, into which each added one is folded."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> T | None:
        """What has been added to the current key, folded; None when nothing was."""

    @abstractmethod
    def add(self, value: T) -> None:
        """:raises TypeDeclarationError: when the value, or what the reduce function made of it, does not fit."""

    @abstractmethod
    def clear(self) -> None: ...


class AggregatingHandle(ABC, Generic[In, Out]):
    """An accumulator for each key, seen through its aggregation."""

    __slots__ = ()

    @abstractmethod
    def get(self) -> Out | None:
        """The aggregation's result for the current key; None when nothing was added."""

    @abstractmethod
    def add(self, value: In) -> None:
        """:raises TypeDeclarationError: when the new accumulator is not of the declared type."""

    @abstractmethod
    def clear(self) -> None: ...
