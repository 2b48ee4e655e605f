"""What is made of two streams that meet in windows. Runs on the executors, in the task's thread.

A window of two streams is a window over both at once: it keeps each record as `([record], [])`, one of the left, or
`([], [record])`, one of the right, in the order in which they came. So triggers, evictors, lateness and sessions are those of
any window; only what a window's function is given differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
import pyarrow as pa

from tidegate.functions.process import Context, Out
from tidegate.functions.window_functions import ProcessWindowFunction, WindowContext
from tidegate.types import RecordType, stored_annotation
from tidegate.types.copying import own_to_each

if TYPE_CHECKING:
    from tidegate.functions.windows import TimeWindow

Sided = tuple[list[Any], list[Any]]  #: one record, in the list of its side


def sided(row: Any, side: int) -> Sided:
    return ([], [row]) if side else ([row], [])


def sided_annotation(left: RecordType, right: RecordType) -> Any:
    """As what records of both sides are kept in state."""
    return tuple[list[stored_annotation(left)], list[stored_annotation(right)]]  # type: ignore[misc]


def sides_of(elements: Iterable[Sided]) -> tuple[list[Any], list[Any]]:
    """The records of the left and those of the right, each in their order."""
    lefts: list[Any] = []
    rights: list[Any] = []
    for left, right in elements:
        lefts += left
        rights += right
    return lefts, rights


class CoGroupFunction(ProcessWindowFunction[Any, Out], Generic[Out]):
    """What `co_group(...).apply` takes where a function of the two lists is not enough: it is told of the key and the window,
    and may declare state, which is the window's.

    >>> class More(tg.CoGroupFunction):
    ...     def co_group(self, key, context, first, second):
    ...         yield (key, context.window.start, len(first) - len(second))
    """

    def co_group(
        self, key: Any, context: WindowContext, first: list[Any], second: list[Any], /
    ) -> Iterable[Out] | None:
        raise NotImplementedError(f"{type(self).__name__} must define co_group(self, key, context, first, second)")

    def process(self, key: Any, context: WindowContext, elements: list[Any], /) -> Iterable[Out] | None:
        return self.co_group(key, context, *sides_of(elements))


class Applied(CoGroupFunction[Any]):
    """A plain function of both lists."""

    def __init__(self, function: Callable[[list[Any], list[Any]], Iterable[Any] | None]) -> None:
        self.function = function

    def co_group(
        self, key: Any, context: WindowContext, first: list[Any], second: list[Any], /
    ) -> Iterable[Any] | None:
        return self.function(first, second)


class Joined(CoGroupFunction[Any]):
    """Each left record of a window with each right one; with None where `how` keeps those that have met nobody."""

    def __init__(self, pair: Callable[[Any, Any], Any], types: tuple[RecordType, RecordType], how: str) -> None:
        self.pair = pair
        self.types = types
        self.how = how

    def co_group(self, key: Any, context: WindowContext, first: list[Any], second: list[Any], /) -> Iterator[Any]:
        found = list(pairs(first, second, self.how))
        lefts, rights = ([pair[side] for pair in found] for side in (0, 1))
        left, right = (type.copier() for type in self.types)
        return map(self.pair, own_to_each(lefts, left), own_to_each(rights, right))


def pairs(lefts: Sequence[Any], rights: Sequence[Any], how: str) -> Iterator[tuple[Any, Any]]:
    """Of one key in one window."""
    if not rights and how in ("left", "full"):
        yield from ((left, None) for left in lefts)
    elif not lefts and how in ("right", "full"):
        yield from ((None, right) for right in rights)
    else:
        yield from ((left, right) for left in lefts for right in rights)


class PairColumns:
    """The pairs of all windows that fire together as columns: the window, those of the left, those of the right."""

    def __init__(self, left: RecordType, right: RecordType, how: str, out: RecordType) -> None:
        self._types = (left, right)
        self._how = how
        self._out = out

    def open(self, ctx: Context, /) -> None: ...

    def end_input(self, ctx: Context, /) -> None: ...

    def close(self) -> None: ...

    def columns(self, fired: Sequence[tuple[TimeWindow, list[Sided]]]) -> pa.RecordBatch:
        """A row for each pair. Each record becomes columns once, however many it meets."""
        rows: tuple[list[Any], list[Any]] = ([], [])
        places: tuple[list[int | None], list[int | None]] = ([], [])
        counts = []
        for _, elements in fired:
            begun = [len(side) for side in rows]
            for side, more in zip(rows, sides_of(elements), strict=True):
                side += more
            lefts, rights = (range(begin, len(side)) for begin, side in zip(begun, rows, strict=True))
            found = list(pairs(lefts, rights, self._how))
            counts.append(len(found))
            places[0].extend(left for left, _ in found)
            places[1].extend(right for _, right in found)
        windows = np.repeat(np.array([window for window, _ in fired], np.int64).reshape(-1, 2), counts, axis=0)
        columns = [pa.array(windows[:, 0]), pa.array(windows[:, 1])]
        for type, side, at in zip(self._types, rows, places, strict=True):
            columns += type.to_batch(side).take(pa.array(at, pa.int64())).columns
        return pa.RecordBatch.from_arrays(columns, schema=self._out.schema)
