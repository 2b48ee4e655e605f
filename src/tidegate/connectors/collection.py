"""`from_collection`: a list of records as a bounded source.

Where it runs: the list is made on the driver and shipped with the source, so it is for tests, examples and small
inputs.

A split is a contiguous range of the list. Their number depends on the list alone, never on the parallelism: a job that
is restored at another parallelism must find the same ids with the same ranges. 16 keeps up to 16 readers
busy and costs nothing where there are fewer. The id holds the length of the list, so that a checkpoint is never
continued with a list of another length, and sorts as the ranges do: one reader gives the whole list in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.connectors.row_reader import OneByOneReader, SplitCursor
from tidegate.errors import ConfigurationError
from tidegate.types import record_type
from tidegate.types.copying import Copier
from tidegate.types.inference import inferred_annotation

MAX_SPLITS = 16
_ROWS_PER_POLL = 4096


class Collection(Source):
    """The items of a list, in order within each split.

    :param items: anything that can be iterated over; it is copied.
    :param type: annotation or pyarrow schema of an item. Not given: inferred where all items are of one scalar type,
        tuples of one shape of scalars, or of one dataclass; else the stream is untyped.
    :raises TypeDeclarationError: when an item does not fit `type`.
    """

    bounded = True
    makes_new_records = True

    def __init__(self, items: Iterable[Any], type: Any = None) -> None:
        self.items = list(items)
        if type is not None:
            record_type(type).to_batch(self.items)
        self.record_type = inferred_annotation(self.items) if type is None else type

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(id) for id in self._ranges()]

    def reader(self, context: ReaderContext) -> SourceReader:
        return OneByOneReader(context, self._open)

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Split id to the range of the list that it names."""
        total = len(self.items)
        parts = min(total, MAX_SPLITS)
        return {
            f"part-{part:02d}-of-{parts}-in-{total}": (part * total // parts, (part + 1) * total // parts)
            for part in range(parts)
        }

    def _open(self, split: Split) -> SplitCursor:
        found = self._ranges().get(split.id)
        if found is None:
            raise ConfigurationError(
                f"The checkpoint continues split {split.id!r} of a collection, but the collection of this program has "
                f"{len(self.items)} items. Start with the list that the checkpoint was taken with, or without resume.",
                split=split.id,
            )
        start, stop = found
        next_item = start if split.position is None else split.position
        if not isinstance(next_item, int) or not start <= next_item <= stop:
            raise ConfigurationError(
                f"Position {next_item!r} of split {split.id!r} of a collection is not an index from {start} to {stop}.",
                split=split.id,
            )
        return _ListCursor(self.items, next_item, stop, record_type(self.record_type).copier())


class _ListCursor(SplitCursor):
    def __init__(self, items: list[Any], next_item: int, stop: int, copy: Copier | None) -> None:
        self._items = items
        self._copy = copy  #: a list may hold one object several times
        self._next = next_item
        self._stop = stop

    def read(self, wanted: int) -> list[Any] | None:
        if self._next == self._stop:
            return None
        start = self._next
        self._next = min(start + min(_ROWS_PER_POLL, wanted), self._stop)
        items = self._items[start : self._next]
        return items if self._copy is None else list(map(self._copy, items))

    def position(self) -> int:
        return self._next
