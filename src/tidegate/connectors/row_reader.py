"""A reader that works through its splits one after the other. Executor, the task's thread.

For bounded sources whose splits can be read in any order: lists, ranges, files. What is read and where it stands is the
business of a `SplitCursor`; this module keeps the books.

    waiting --opened--> current --read() is None--> finished

Invariant 1. At most one cursor is open.
Invariant 2. `splits()` names every split that was added, once, in the order in which they are read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Union

from tidegate.connectors.contract import JsonValue, ReaderContext, SourceReader, Split

if TYPE_CHECKING:
    import pyarrow as pa

Records = Union[list[Any], "pa.RecordBatch"]


class SplitCursor(ABC):
    """An open split."""

    @abstractmethod
    def read(self, wanted: int) -> Records | None:
        """The next records, empty where a stretch of input holds none, or None at the end of the split.

        No more than `wanted` are needed; a cursor that reads by the page may return its page.
        """

    @abstractmethod
    def position(self) -> JsonValue:
        """The position *after* the last record that `read` has returned."""

    def close(self) -> None: ...


class OneByOneReader(SourceReader):
    """Reads splits in the order in which they were added."""

    def __init__(self, context: ReaderContext, open_split: Callable[[Split], SplitCursor]) -> None:
        self._clock = context.clock
        self._wanted = context.wanted
        self._open_split = open_split
        self._waiting: deque[Split] = deque()
        self._current: Split | None = None
        self._cursor: SplitCursor | None = None  #: None exactly when _current is None
        self._finished: list[Split] = []

    def add_splits(self, splits: Sequence[Split]) -> None:
        self._waiting.extend(splits)

    def poll(self, deadline: float) -> Records | None:
        # At least one step a call, so that a deadline in the past cannot starve the reader.
        while True:
            if self._cursor is None:
                if not self._waiting:
                    return None
                self._cursor = self._open_split(self._waiting[0])
                self._current = self._waiting.popleft()
            records = self._cursor.read(self._wanted())
            if records is None:
                self._finish()
            elif len(records) > 0:
                return records
            if self._clock() >= deadline:
                return None

    def _finish(self) -> None:
        assert self._cursor is not None
        assert self._current is not None
        self._finished.append(Split(self._current.id, self._cursor.position(), finished=True))
        self._cursor.close()
        self._cursor = self._current = None

    def splits(self) -> list[Split]:
        current = []
        if self._cursor is not None and self._current is not None:
            current = [Split(self._current.id, self._cursor.position())]
        return [*self._finished, *current, *self._waiting]

    def close(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
