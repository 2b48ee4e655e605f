"""A batch of records on its way through a chain: Python rows, Arrow columns, or both. Executor, one thread.

A batch is converted at most once in each direction, and only when an operator asks for the other form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    import numpy as np

    from tidegate.types import RecordType
    from tidegate.types.copying import Copier


@dataclass(frozen=True, slots=True)
class Origins:
    """Which splits the records of a batch are from."""

    splits: frozenset[str]  #: all that the reader has not finished, also those without a record here
    of: Sequence[str]  #: for each record


class Batch:
    """Records of one stream, in order. `timestamps` (event time, ms) is None where the stream has no event time.

    `origins` is there right after a source that reads several splits side by side, and not carried on.
    """

    __slots__ = ("_columns", "_rows", "_values", "origins", "timestamps", "type")

    def __init__(
        self,
        type: RecordType,
        rows: list[Any] | None = None,
        columns: pa.RecordBatch | None = None,
        timestamps: np.ndarray[Any, Any] | None = None,
    ) -> None:
        assert rows is not None or columns is not None
        self.type = type
        self._rows = rows
        self._columns = columns
        self._values: dict[int, list[Any]] = {}  #: of columns, by their place, as Python objects
        self.timestamps = timestamps
        self.origins: Origins | None = None

    def __len__(self) -> int:
        return len(self._rows) if self._rows is not None else self._columns.num_rows  # type: ignore[union-attr]

    @property
    def has_columns(self) -> bool:
        return self._columns is not None

    @property
    def has_rows(self) -> bool:
        return self._rows is not None

    @property
    def has_lists(self) -> bool:
        """The values of each field are at hand, so that columns are made of them at once."""
        return False

    def rows(self) -> list[Any]:
        if self._rows is None:
            self._rows = self.type.to_rows(self._columns)
        return self._rows

    def column_values(self, at: int) -> list[Any]:
        """One column as Python objects; the same list each time."""
        values = self._values.get(at)
        if values is None:
            values = self._values[at] = self.type.column_values(self.columns(), at)
        return values

    def columns(self) -> pa.RecordBatch:
        """Raises TypeDeclarationError when the stream is untyped or a row does not fit the type."""
        if self._columns is None:
            self._columns = self.type.to_batch(self.rows())
        return self._columns

    def slice(self, start: int, stop: int) -> Batch:
        if start == 0 and stop >= len(self):
            return self
        return Batch(
            self.type,
            rows=None if self._rows is None else self._rows[start:stop],
            columns=None if self._columns is None else self._columns.slice(start, stop - start),
            timestamps=None if self.timestamps is None else self.timestamps[start:stop],
        )

    def as_received(self) -> Batch:
        """The records as whoever they are sent to gets them, made of columns: an int is a float there where one is declared, a
        float32 is rounded, a moment is in UTC, and a dict has all its fields."""
        if self.has_columns and not self.has_rows and not self.has_lists:
            return self
        return Batch(self.type, columns=self.columns(), timestamps=self.timestamps)

    def take(self, places: np.ndarray[Any, Any]) -> Batch:
        """The records at `places`, as columns."""
        stamps = None if self.timestamps is None else self.timestamps[places]
        return Batch(self.type, columns=self.columns().take(pa.array(places)), timestamps=stamps)

    def copied(self, copy: Copier) -> Batch:
        """The same records for another reader: what the one changes, the other does not see."""
        if self._columns is not None:  # nobody can change columns; each reader makes rows of its own
            twin = Batch(self.type, columns=self._columns, timestamps=self.timestamps)
        else:
            assert self._rows is not None
            twin = Batch(self.type, list(map(copy, self._rows)), timestamps=self.timestamps)
        twin.origins = self.origins
        return twin

    def with_rows(self, type: RecordType, rows: list[Any]) -> Batch:
        """One row out for each row in: timestamps stay."""
        return Batch(type, rows, timestamps=self.timestamps)

    def pick(self, places: list[int], rows: list[Any], type: RecordType) -> Batch:
        """Rows that stem from the records at `places` and inherit their timestamps."""
        stamps = None if self.timestamps is None else self.timestamps[places]
        return Batch(type, rows, timestamps=stamps)


class TupleBatch(Batch):
    """Records that are tuples, as a list of values for each field: what a loop emits (graph/record_loop.py).

    Rows or columns are made when they are asked for, and only one of them for most readers.
    """

    __slots__ = ("_lists",)

    def __init__(
        self, type: RecordType, lists: list[list[Any]], timestamps: np.ndarray[Any, Any] | None = None
    ) -> None:
        super().__init__(type, [], None, timestamps)
        self._rows = None
        self._lists = lists

    def __len__(self) -> int:
        return len(self._lists[0])

    @property
    def has_lists(self) -> bool:
        return True

    def rows(self) -> list[Any]:
        if self._rows is None:
            self._rows = list(zip(*self._lists, strict=True))
        return self._rows

    def columns(self) -> pa.RecordBatch:
        if self._columns is None:
            self._columns = self.type.batch_of_values(self._lists)
        return self._columns

    def slice(self, start: int, stop: int) -> Batch:
        self.rows()
        return super().slice(start, stop)

    def copied(self, copy: Copier) -> Batch:
        self.rows()
        return super().copied(copy)
