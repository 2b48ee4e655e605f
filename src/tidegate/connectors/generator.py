"""`DataGenerator`: records computed from their index, as many as wanted, as fast as wanted.

Where it runs: readers on the executors; nothing is asked of the driver but the split ids.

Index i belongs to split i % splits, so every index is produced once whatever the parallelism, and the position of a
split is the next index that it will produce. The number of splits is a setting, not the parallelism: ids and positions
keep their meaning when the job is restored at another parallelism.

The rate is kept by a schedule, not by pauses: record k of a split is due k * splits / rate seconds after its reader
opened, so slow polls do not add up. A schedule that has fallen more than 100 ms behind (a pause, back-pressure) is
moved forward: what was missed is not made up for in a burst.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.types import RecordType, record_type

MAX_BACKLOG_S = 0.1  #: a schedule is never further behind than this
_COALESCE_S = 0.001  #: at most a thousand batches a second: a frame a record would cost more than the record
_ROUNDING_S = 1e-9  #: a record is due when its time is this close: time is added up in floats
_ROWS_PER_POLL = 1024
_VECTORISED_ROWS_PER_POLL = 65536
_ROWS_BETWEEN_CLOCK_READINGS = 16


class DataGenerator(Source):
    """`function(index)` for the indices 0, 1, 2, ...

    :param function: makes the record of an index; with `vectorised`, gets an int64 numpy array of indices and returns a
        `pa.RecordBatch`, or one array for each column, with a row for each index. Must depend on the index alone, or a
        replay after a failure is not the same input.
    :param count: how many records; None: the source never ends.
    :param rate: records a second over all subtasks; None: as fast as they are taken.
    :param type: annotation or pyarrow schema of a record; needed with `vectorised`.
    :param splits: how many readers can work. Must not change between a checkpoint and a restore.
    """

    makes_new_records = True

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        count: int | None = None,
        rate: float | None = None,
        type: Any = None,
        vectorised: bool = False,
        splits: int = 16,
    ) -> None:
        if count is not None and count < 0:
            raise ConfigurationError(f"A generator cannot make {count} records; give count=None for one without end.")
        if rate is not None and not (rate > 0 and math.isfinite(rate)):
            raise ConfigurationError(f"rate is in records a second and must be above 0; got {rate}. None: no limit.")
        if splits < 1:
            raise ConfigurationError(f"splits must be at least 1; got {splits}.")
        if vectorised and not record_type(type).typed:
            raise ConfigurationError(
                "A vectorised generator returns columns, so its records need a type: give type= a dataclass, an "
                "annotation or a pyarrow schema."
            )
        self.function = function
        self.count = count
        self.rate = rate
        self.record_type = type
        self.vectorised = vectorised
        self.split_count = splits
        self.bounded = count is not None

    def discover_splits(self, parallelism: int) -> list[Split]:
        wanted = self.split_count if self.count is None else min(self.split_count, self.count)
        return [Split(f"{number}-of-{self.split_count}") for number in range(wanted)]

    def reader(self, context: ReaderContext) -> SourceReader:
        return _GeneratorReader(self, context)

    def number_of(self, split: Split) -> int:
        """:raises ConfigurationError: when the split is of a generator with another number of splits."""
        number, _, of = split.id.partition("-of-")
        if of != str(self.split_count) or not number.isdecimal() or int(number) >= self.split_count:
            raise ConfigurationError(
                f"The checkpoint continues generator split {split.id!r}, but this generator has "
                f"splits={self.split_count}. Start with the setting that the checkpoint was taken with.",
                split=split.id,
            )
        return int(number)


@dataclass(slots=True)
class _SplitProgress:
    id: str
    next_index: int
    next_due: float  #: when next_index is due, on the reader's clock; not used without a rate


class _GeneratorReader(SourceReader):
    def __init__(self, source: DataGenerator, context: ReaderContext) -> None:
        self._source = source
        self._clock = context.clock
        self._sleep = context.sleep
        self._wanted = context.wanted
        self._stride = source.split_count
        self._interval_s = 0.0 if source.rate is None else source.split_count / source.rate  #: of one split
        self._rows_per_poll = _VECTORISED_ROWS_PER_POLL if source.vectorised else _ROWS_PER_POLL
        self._progress: dict[int, _SplitProgress] = {}  #: by split number
        self._last_emission = -math.inf
        self._type: RecordType = record_type(source.record_type)
        self._copy = self._type.copier()

    def add_splits(self, splits: Sequence[Split]) -> None:
        now = self._clock()
        for split in splits:
            number = self._source.number_of(split)
            next_index = number if split.position is None else split.position
            if not isinstance(next_index, int) or next_index % self._stride != number:
                raise ConfigurationError(
                    f"Position {next_index!r} of generator split {split.id!r} is not an index of that split.",
                    split=split.id,
                )
            # Shifted against each other, so that all splits together are as even as one.
            shift_s = self._interval_s * number / self._stride
            self._progress[number] = _SplitProgress(split.id, next_index, now + shift_s)

    def poll(self, deadline: float) -> list[Any] | pa.RecordBatch | None:
        open_splits = [split for split in self._progress.values() if not self._is_finished(split)]
        if not open_splits:
            return None
        if self._source.rate is not None:
            self._wait(open_splits, deadline)
        indices = self._due_indices(open_splits, self._clock())
        if len(indices) == 0:
            return None
        if self._source.vectorised:
            records: list[Any] | pa.RecordBatch = self._columns(indices)
        else:
            records = self._rows(indices.tolist(), deadline)
        self._advance(indices[: len(records)])
        self._last_emission = self._clock()
        return records

    def _wait(self, open_splits: list[_SplitProgress], deadline: float) -> None:
        """Until a record is due and the last batch is a moment ago, or until the deadline."""
        due = min(split.next_due for split in open_splits)
        wake = min(max(due, self._last_emission + _COALESCE_S), deadline)
        pause_s = wake - self._clock()
        if pause_s > 0:
            self._sleep(pause_s)

    def _due_indices(self, open_splits: list[_SplitProgress], now: float) -> np.ndarray[Any, Any]:
        """What may be produced now, in ascending order, and so in order for each split."""
        most = max(1, min(self._rows_per_poll, self._wanted()) // len(open_splits))
        parts = []
        for split in open_splits:
            rows = min(most, self._due_rows(split, now))
            if self._source.count is not None:
                rows = min(rows, -(-(self._source.count - split.next_index) // self._stride))
            if rows > 0:
                parts.append(split.next_index + self._stride * np.arange(rows, dtype=np.int64))
        return np.sort(np.concatenate(parts)) if parts else np.empty(0, dtype=np.int64)

    def _due_rows(self, split: _SplitProgress, now: float) -> int:
        if self._source.rate is None:
            return self._rows_per_poll
        split.next_due = max(split.next_due, now - MAX_BACKLOG_S)
        late_s = now - split.next_due + _ROUNDING_S
        return 0 if late_s < 0 else int(late_s / self._interval_s) + 1

    def _rows(self, indices: list[int], deadline: float) -> list[Any]:
        """Stops at the deadline, after a few rows at the earliest: a slow function must not hold up a checkpoint."""
        function, clock, copy = self._source.function, self._clock, self._copy
        rows: list[Any] = []
        for start in range(0, len(indices), _ROWS_BETWEEN_CLOCK_READINGS):
            some = map(function, indices[start : start + _ROWS_BETWEEN_CLOCK_READINGS])
            rows.extend(some if copy is None else map(copy, some))  # the function may return one object again and again
            if clock() >= deadline:
                break
        return rows

    def _columns(self, indices: np.ndarray[Any, Any]) -> pa.RecordBatch:
        made = self._source.function(indices)
        schema = self._type.schema
        assert schema is not None  # of a vectorised generator it is typed
        try:
            if isinstance(made, pa.RecordBatch):
                columns = [made.column(name) for name in schema.names]
            else:
                columns = list(made) if isinstance(made, tuple | list) else [made]
            arrays = [
                field_type.to_arrow(list(column)) if _is_of_objects(column) else _cast(column, field.type)
                for column, field, field_type in zip(columns, schema, self._type.field_types, strict=True)
            ]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        except (pa.ArrowException, TypeDeclarationError, KeyError, ValueError, TypeError) as error:
            raise TypeDeclarationError(
                f"The vectorised generator function returned what does not fit its type ({error}). It must return a "
                f"RecordBatch or one array for each of the columns {', '.join(schema.names)}."
            ) from error
        if batch.num_rows != len(indices):
            raise TypeDeclarationError(
                f"The vectorised generator function returned {batch.num_rows} rows for {len(indices)} indices. It must "
                "return one row for each index, in order."
            )
        return batch

    def _advance(self, produced: np.ndarray[Any, Any]) -> None:
        rows_of = np.bincount(produced % self._stride, minlength=self._stride)
        for number, split in self._progress.items():
            rows = int(rows_of[number])
            split.next_index += rows * self._stride
            split.next_due += rows * self._interval_s

    def _is_finished(self, split: _SplitProgress) -> bool:
        return self._source.count is not None and split.next_index >= self._source.count

    def splits(self) -> list[Split]:
        return [
            Split(split.id, split.next_index, finished=self._is_finished(split)) for split in self._progress.values()
        ]


def _is_of_objects(column: Any) -> bool:
    """Values in Python, which pyarrow would bend to the type: 1.5 to 1."""
    return not isinstance(column, pa.Array | np.ndarray) or (isinstance(column, np.ndarray) and column.dtype == object)


def _cast(column: pa.Array | np.ndarray[Any, Any], arrow: pa.DataType) -> pa.Array:
    return (column if isinstance(column, pa.Array) else pa.array(column)).cast(arrow)
