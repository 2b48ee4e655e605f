"""One side of a join over columns: the records that can still meet somebody, as columns. Executor; the task's thread.

Records lie in a few parts, each in the order of the hashes of their keys and then of their times. So the partners of a record
are a run of rows in each part, which is found for a whole batch at once. A new part is merged with those before it that are not
much larger: there are few parts, and a row is moved a few times in its life.

Invariant. Each row has a number of its own among those of its key and time: together they are what it is stored under.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.functions.column_joins import MET, value_type_of
from tidegate.task.rows.backend import NAMESPACE, moments_column, moments_of

if TYPE_CHECKING:
    from tidegate.task.rows.backend import KeyColumns

Numbers = np.ndarray[Any, Any]


@dataclass(slots=True)
class Part:
    """Rows in order; those of `rows` are the columns of the key, then those of the record."""

    rows: pa.RecordBatch
    hashes: Numbers
    times: Numbers
    numbers: Numbers
    met: Numbers  #: the only thing that changes

    def take(self, places: Numbers) -> Part:
        rows = self.rows.take(pa.array(places))
        return Part(rows, self.hashes[places], self.times[places], self.numbers[places], self.met[places])

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Found:
    """Pairs: rows of the batch that asked, and the records that they have met."""

    asked: Numbers
    part: Part
    places: Numbers


class JoinRows:
    """Implements rows/backend.KeptRows."""

    merging = None

    def __init__(self, keys: KeyColumns, schema: pa.Schema) -> None:
        """`schema`: of the records."""
        self._keys = keys
        self.columns = [MET, *(f"v{at}" for at in range(len(schema)))]
        self.value_type = value_type_of(schema)
        self._names = [*keys.names, *self.columns[1:]]
        self._parts: list[Part] = []
        self._next_number = 0

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    # -- records -----------------------------------------------------------------------------------------------------

    def batch(self, keys: list[pa.Array], records: pa.RecordBatch, times: Numbers) -> Part:
        """Records as rows of this side, in the order in which they came, each with a new number."""
        rows = pa.RecordBatch.from_arrays([*keys, *records.columns], self._names)
        numbers = np.arange(self._next_number, self._next_number + len(times))
        self._next_number += len(times)
        return Part(rows, self._keys.hashes(rows), times, numbers, np.zeros(len(times), np.bool_))

    def records(self, part: Part) -> list[pa.Array]:
        """Without the key."""
        columns: list[pa.Array] = part.rows.columns[len(self._keys.names) :]
        return columns

    def add(self, part: Part) -> None:
        """In any order."""
        if not len(part):
            return
        part = _in_order([part])
        while self._parts and len(self._parts[-1]) <= 2 * len(part):
            part = _in_order([self._parts.pop(), part])
        self._parts.append(part)

    def meet(self, asking: Part, earliest: Numbers, latest: Numbers) -> Iterator[Found]:
        """Rows of the same keys with times between both, which belong to it. They have met somebody from now on."""
        for part in self._parts:
            first = np.searchsorted(part.hashes, asking.hashes, "left")
            last = np.searchsorted(part.hashes, asking.hashes, "right")
            first = _not_before(part.times, first, last, earliest)
            counts = _not_before(part.times, first, last, latest + 1) - first
            total = int(counts.sum())
            if not total:
                continue
            asked = np.repeat(np.arange(len(asking)), counts)
            places = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(total)
            same = self._same_keys(asking, asked, part, places)
            if not same.all():
                asked, places = asked[same], places[same]
            part.met[places] = True
            yield Found(asked, part, places)

    def pass_time(self, last: int) -> list[Part]:
        """Drop the rows up to that time; which of them have met nobody."""
        alone: list[Part] = []
        kept: list[Part] = []
        for part in self._parts:
            gone = part.times <= last
            if not gone.any():
                kept.append(part)
                continue
            alone.append(part.take(np.flatnonzero(gone & ~part.met)))
            if not gone.all():
                kept.append(part.take(np.flatnonzero(~gone)))
        self._parts = kept
        return [part for part in alone if len(part)]

    # -- what is stored ------------------------------------------------------------------------------------------------

    def frozen(self) -> list[pa.Table]:
        """Nothing but `met` is ever changed, so that alone is copied."""
        tables = []
        for part in self._parts:
            keys, records = part.rows.columns[: len(self._keys.names)], self.records(part)
            columns = [*keys, moments_column(part.times, part.numbers), pa.array(part.met.copy()), *records]
            tables.append(pa.table(columns, names=[*self._keys.names, NAMESPACE, *self.columns]))
        return tables

    def load(self, rows: pa.Table) -> None:
        times, numbers = moments_of(rows.column(NAMESPACE), 2)
        met = rows.column(MET).to_numpy().astype(np.bool_)
        (batch,) = rows.select(self._names).combine_chunks().to_batches()
        self._next_number = max(self._next_number, int(numbers.max()) + 1)
        self.add(Part(batch, self._keys.hashes(batch), times, numbers, met))

    def _same_keys(self, asking: Part, asked: Numbers, part: Part, places: Numbers) -> Numbers:
        """Hashes are alike; whether the keys are. None is one key, as everywhere."""
        same = np.ones(len(asked), np.bool_)
        for at in range(len(self._keys.names)):
            one, other = asking.rows.column(at).take(pa.array(asked)), part.rows.column(at).take(pa.array(places))
            equal = pc.fill_null(pc.equal(one, other), False)
            if one.null_count:
                equal = pc.or_(equal, pc.and_(one.is_null(), other.is_null()))
            same &= equal.to_numpy(zero_copy_only=False)
        return same


def _in_order(parts: list[Part]) -> Part:
    rows = parts[0].rows if len(parts) == 1 else pa.concat_batches([part.rows for part in parts])
    hashes, times, numbers, met = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("hashes", "times", "numbers", "met")
    )
    return Part(rows, hashes, times, numbers, met).take(np.lexsort((times, hashes)))


def _not_before(times: Numbers, first: Numbers, last: Numbers, moments: Numbers) -> Numbers:
    """Of each run of rows, which is in order, the first row whose time is not before the run's own moment: bisection of all
    runs at once."""
    first, last = first.copy(), last.copy()
    while True:
        open_runs = np.flatnonzero(first < last)
        if not len(open_runs):
            return first
        middle = (first[open_runs] + last[open_runs]) // 2
        before = times[middle] < moments[open_runs]
        first[open_runs[before]] = middle[before] + 1
        last[open_runs[~before]] = middle[~before]
