"""`from_sequence`: the whole numbers from start to end, both included, as Arrow batches. Bounded.

Where it runs: split ranges are computed on the driver and again on the executors, from the settings alone. Their number
is a setting, not the parallelism, so that ids keep their meaning when the job is restored at another parallelism.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidegate.connectors.contract import ReaderContext, Source, SourceReader, Split
from tidegate.connectors.row_reader import OneByOneReader, SplitCursor
from tidegate.errors import ConfigurationError
from tidegate.types import record_type

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class NumberSequence(Source):
    """The numbers `start` .. `end`, both included, in order within each split.

    :param splits: how many ranges there are, and so how many readers can work. Must not change between a checkpoint and
        a restore.
    :param batch_rows: rows of one Arrow batch; 65536 rows are half a megabyte.
    """

    bounded = True
    record_type = int

    def __init__(self, start: int, end: int, *, splits: int = 16, batch_rows: int = 65536) -> None:
        if not _INT64_MIN <= start <= end <= _INT64_MAX:
            raise ConfigurationError(
                f"A number sequence goes from a smaller to a larger 64-bit number, both included; got {start} to {end}."
            )
        if splits < 1 or batch_rows < 1:
            raise ConfigurationError(f"splits and batch_rows must be at least 1; got {splits} and {batch_rows}.")
        self.start = start
        self.end = end
        self.split_count = min(splits, end - start + 1)
        self.batch_rows = batch_rows

    def discover_splits(self, parallelism: int) -> list[Split]:
        return [Split(id) for id in self._ranges()]

    def reader(self, context: ReaderContext) -> SourceReader:
        return OneByOneReader(context, self._open)

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """Split id to (first number, number after the last)."""
        count, parts = self.end - self.start + 1, self.split_count
        bounds = [self.start + part * count // parts for part in range(parts + 1)]
        digits = len(str(parts))  # so that ids sort as the ranges do, and one reader gives all numbers in order
        return {
            f"{part:0{digits}d}:{low}..{high - 1}": (low, high) for part, (low, high) in enumerate(pairwise(bounds))
        }

    def _open(self, split: Split) -> SplitCursor:
        found = self._ranges().get(split.id)
        if found is None:
            raise ConfigurationError(
                f"The checkpoint continues the range {split.id}, which is not a split of the sequence {self.start} to "
                f"{self.end} in {self.split_count} splits. Start with the settings that the checkpoint was taken with.",
                split=split.id,
            )
        low, high = found
        next_number = low if split.position is None else split.position
        if not isinstance(next_number, int) or not low <= next_number <= high:
            raise ConfigurationError(
                f"Position {next_number!r} of split {split.id} is not a number from {low} to {high}.", split=split.id
            )
        return _RangeCursor(next_number, high, self.batch_rows)


class _RangeCursor(SplitCursor):
    def __init__(self, next_number: int, stop: int, batch_rows: int) -> None:
        self._next = next_number
        self._stop = stop
        self._batch_rows = batch_rows
        self._schema = record_type(int).schema

    def read(self, wanted: int) -> pa.RecordBatch | None:
        rows = min(self._batch_rows, wanted, self._stop - self._next)
        if rows == 0:
            return None
        # Counted from zero and shifted: arange's own stop would overflow at the last 64-bit number.
        numbers = np.arange(rows, dtype=np.int64) + np.int64(self._next)
        self._next += rows
        return pa.RecordBatch.from_arrays([pa.array(numbers)], schema=self._schema)

    def position(self) -> int:
        return self._next
