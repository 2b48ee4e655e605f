"""Sorted runs: values of many keys, in files that never change, looked up for a whole batch at once. Executor; any thread.

A run is what was written together, in the order of the keys' hashes; of several runs the newest that has a key is right.

    column      what
    order       the hash of the key; its upper half decides the key group, so a key group is a slice (`order_of`)
    identity    the key: an int64, or its canonical bytes followed by the namespace (state/rocksdb_keys.py)
    cell        the value: a number, or the bytes of its cell (state/rocksdb_rows.py)
    present     0: the key is gone

A run is cut into parts, a file each (an Arrow IPC file of one batch, mapped into memory: a read costs no system call, and the
kernel decides what of it stays). Lookups, sorting and merging are NumPy's and Arrow's, which let the GIL go.

Invariant 1. A part never changes, and in a folder no two have one name. Its file is deleted when nobody refers to the part any
             more.
Invariant 2. In a run each identity is there once, and the parts' ranges of hashes do not overlap.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import weakref
import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import CheckpointDamaged

RUN_SUFFIX = ".run"
MAX_ORDER = (1 << 64) - 1
_CHECKSUM = b"crc32"
_COLUMNS = ("order", "identity", "cell", "present")

#: The one that gives memory back: Arrow's own keeps tens of MiB for each thread that merges, however little it allocates.
_POOL = pa.system_memory_pool()

Array = np.ndarray[Any, np.dtype[Any]]
Column = Any  #: a numpy array of numbers, or an Arrow array of binaries


def take(column: Column, rows: Array) -> Column:
    if isinstance(column, pa.Array):
        return pc.take(column, pa.array(rows), memory_pool=_POOL)
    return np.take(column, rows)


def joined(columns: Sequence[Column]) -> Column:
    if len(columns) == 1:
        return columns[0]
    if isinstance(columns[0], pa.Array):
        return pa.concat_arrays(columns, memory_pool=_POOL)
    return np.concatenate(columns)


def equal(one: Column, other: Column) -> Array:
    if isinstance(one, pa.Array):
        return pc.equal(one, other).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    return one == other  # type: ignore[no-any-return]


def bytes_between(cells: pa.Array, start: Any, stop: Any) -> Any:
    """How long the cells from one row to another are together; of one stretch, or of each of many."""
    offsets = np.frombuffer(cells.buffers()[1], np.int64)[cells.offset : cells.offset + len(cells) + 1]
    return offsets[stop] - offsets[start]


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows in memory, or mapped."""

    order: Array
    identity: Column
    cell: Column
    present: Array

    def __len__(self) -> int:
        return len(self.order)

    @property
    def size_bytes(self) -> int:
        return sum(int(column.nbytes) for column in self._all())

    def take(self, rows: Array) -> Columns:
        return Columns(*(take(column, rows) for column in self._all()))

    def slice(self, start: int, stop: int) -> Columns:
        return Columns(*(column[start:stop] for column in self._all()))

    def _all(self) -> tuple[Column, ...]:
        return (self.order, self.identity, self.cell, self.present)

    @staticmethod
    def joined(pieces: Sequence[Columns]) -> Columns:
        return Columns(*(joined(columns) for columns in zip(*(piece._all() for piece in pieces), strict=True)))

    def sorted(self) -> Columns:
        """By hash; rows that were in one order before stay so where hashes are equal."""
        return self.take(np.argsort(self.order, kind="stable"))

    def without_older(self) -> Columns:
        """Of sorted rows, newest first where hashes are equal: the first of each identity."""
        again = np.flatnonzero(self.order[1:] == self.order[:-1]) + 1
        if not len(again):
            return self
        keep = np.ones(len(self), dtype=np.bool_)
        same = equal(take(self.identity, again), take(self.identity, again - 1))
        keep[again[same]] = False
        if not same.all():  # different keys with one hash
            seen: dict[int, set[Any]] = {}
            for row in np.unique(np.concatenate([again, again - 1])).tolist():
                of_hash = seen.setdefault(int(self.order[row]), set())
                identity = self.identity[row]
                identity = identity.as_py() if isinstance(identity, pa.Scalar) else int(identity)
                keep[row] = identity not in of_hash
                of_hash.add(identity)
        return self.take(np.flatnonzero(keep))

    def within(self, first: int, last: int) -> Columns:
        """The rows whose hashes lie between, both included."""
        start = int(np.searchsorted(self.order, np.uint64(first), "left"))
        stop = int(np.searchsorted(self.order, np.uint64(last), "right"))
        return self if (start, stop) == (0, len(self)) else self.slice(start, stop)

    def find(self, order: Array, identity: Column) -> tuple[Array, Array]:
        """Which of the sought rows (ascending by hash) are here, and where."""
        at = np.searchsorted(self.order, order)
        sought = np.flatnonzero(at < len(self.order))
        found: list[Array] = []
        places: list[Array] = []
        while len(sought):
            here = at[sought]
            met = np.take(self.order, here) == order[sought]
            sought, here = sought[met], here[met]
            if not len(sought):
                break
            same = equal(take(self.identity, here), take(identity, sought))
            found.append(sought[same])
            places.append(here[same])
            sought = sought[~same]  # another key with this hash: the next row may be ours
            at[sought] += 1
            sought = sought[at[sought] < len(self.order)]
        if not found:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        return (found[0], places[0]) if len(found) == 1 else (np.concatenate(found), np.concatenate(places))


def order_of(hashes: Array, namespaces: Sequence[bytes] | None = None) -> Array:
    """The upper half is the key's alone, and says its key group; the namespace only goes into the lower."""
    if namespaces is None:
        return hashes
    lower = np.fromiter(map(zlib.crc32, namespaces), np.uint64, len(namespaces))
    return hashes ^ lower  # that of no bytes is 0


LOWER = (1 << 32) - 1


def order_of_rows(hashes: Array, identities: Sequence[bytes]) -> Array:
    """Of keys that have several rows, told apart by what their identities say after the key."""
    lower = np.fromiter(map(zlib.crc32, identities), np.uint64, len(identities))
    return hashes & ~np.uint64(LOWER) | lower


def order_range(groups: range, max_parallelism: int) -> tuple[int, int]:
    """The least and the greatest hash of these key groups (see `key_groups.key_group`)."""

    def least(group: int) -> int:
        return -(-(group << 32) // max_parallelism) << 32

    return least(groups.start), least(groups.stop) - 1


class Loaded:
    """Sorted rows as a part of a run."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.first, self.last = int(columns.order[0]), int(columns.order[-1])


#: As a checkpoint names it: the file; and the key groups that count, first and last, where it has rows of others too.
StoredPart = str | tuple[str, int, int]


class Part(Loaded):
    """Rows in a file, which goes when this does."""

    def __init__(self, path: Path, columns: Columns, counting: range | None = None) -> None:
        """`counting`: the key groups that `columns` are of, where the file has rows of others too."""
        super().__init__(columns)
        self.name = path.name
        self.path = path
        self._counting = counting
        weakref.finalize(self, _unlink, str(path))

    @staticmethod
    def write(folder: Path, columns: Columns) -> Part:
        """:raises OSError: and nothing is left behind."""
        path = folder / new_name()
        arrays = [_stored(columns.order), _stored(columns.identity), _stored(columns.cell), _stored(columns.present)]
        checksum = str(_checksum(arrays)).encode()
        schema = pa.schema(
            [pa.field(name, array.type) for name, array in zip(_COLUMNS, arrays, strict=True)],
            {_CHECKSUM: checksum, b"cell": str(getattr(columns.cell, "dtype", "bytes")).encode()},
        )
        try:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
                writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
            return Part(path, read_columns(path))
        except BaseException:
            _unlink(str(path))
            raise

    def link(self, folder: Path) -> StoredPart:
        os.link(self.path, folder / self.name)
        counting = self._counting
        return self.name if counting is None else (self.name, counting.start, counting.stop - 1)

    def check(self) -> None:
        """:raises CheckpointDamaged: when the file is not what was written."""
        read_columns(self.path, check=True)


def new_name() -> str:
    """Of a part."""
    return secrets.token_hex(8) + RUN_SUFFIX


def read_columns(path: Path, *, check: bool = False) -> Columns:
    """:raises CheckpointDamaged: when the file is not what was written."""
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            batch = reader.get_batch(0)
        metadata = batch.schema.metadata
        if check and int(metadata[_CHECKSUM]) != _checksum(batch.columns):
            raise ValueError("its checksum is another")
        cell = batch.column(2)
        numbers = metadata[b"cell"].decode()
        return Columns(
            batch.column(0).to_numpy(),
            batch.column(1) if pa.types.is_large_binary(batch.column(1).type) else batch.column(1).to_numpy(),
            cell if numbers == "bytes" else cell.to_numpy().view(numbers),
            batch.column(3).to_numpy().view(np.bool_),
        )
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise CheckpointDamaged(
            f"a file of state, {path}, cannot be read: {error}. The local disk, or the checkpoint that it comes from, is "
            "damaged.",
            path=str(path),
        ) from error


class Run:
    """Parts whose ranges of hashes ascend."""

    __slots__ = ("_first", "_firsts", "parts", "rows")

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts: tuple[Any, ...] = tuple(parts)  #: `Part`s; one that is `Loaded`, for a lookup
        self.rows = sum(len(part.columns) for part in parts)
        self._firsts = [part.first for part in parts]
        self._first = np.array(self._firsts, np.uint64)

    def find(self, order: Array, identity: Column, left: Array) -> Iterator[tuple[Columns, Array, Array]]:
        """For each part that has some of them: the part's rows, which of the sought (`left` of `order`), and where."""
        ascending = order[left]
        cuts = [*np.searchsorted(ascending, self._first).tolist(), len(ascending)]
        for part, start, stop in zip(self.parts, cuts, cuts[1:], strict=False):
            if start < stop:
                sought = left[start:stop]
                found, places = part.columns.find(ascending[start:stop], take(identity, sought))
                if len(found):
                    yield part.columns, sought[found], places

    def find_one(self, order: np.uint64, identity: Any) -> tuple[Columns, int] | None:
        """The same for one, with a tenth of the calls."""
        number = bisect_right(self._firsts, order) - 1 if len(self.parts) > 1 else 0
        if number < 0:
            return None
        columns = self.parts[number].columns
        at = int(columns.order.searchsorted(order))
        while at < len(columns) and columns.order[at] == order:
            here = columns.identity[at]
            if (here.as_py() if isinstance(here, pa.Scalar) else int(here)) == identity:
                return columns, at
            at += 1
        return None

    def between(self, first: int, last: int) -> Iterator[tuple[Columns, int, int]]:
        """The same as `pieces`, by places: of the few rows of one key, with a tenth of the calls."""
        ends = np.array([first, last], np.uint64)
        begin = max(bisect_right(self._firsts, first) - 1, 0)
        for part in self.parts[begin : bisect_right(self._firsts, last)]:
            order = part.columns.order
            start, stop = order.searchsorted(ends).tolist()
            while stop < len(order) and order[stop] == ends[1]:
                stop += 1
            if start < stop:
                yield part.columns, start, stop

    def places_of(self, first: Array, last: Array) -> Iterator[tuple[Columns, Array, Array, Array]]:
        """For each part that has rows of some ranges of hashes (ascending, and apart): its rows, which ranges, from where to
        where."""
        for part in self.parts:
            begin, end = np.searchsorted(last, np.array([part.first, part.last], np.uint64), "left").tolist()
            some = slice(begin, min(end + 1, len(first)))
            starts = np.searchsorted(part.columns.order, first[some], "left")
            stops = np.searchsorted(part.columns.order, last[some], "right")
            there = np.flatnonzero(stops > starts)
            if len(there):
                yield part.columns, there + begin, starts[there], stops[there]

    def pieces(self, first: int, last: int) -> list[Columns]:
        """The rows between two hashes, both included, in order."""
        start = max(bisect_right(self._firsts, first) - 1, 0)
        some = [part.columns.within(first, last) for part in self.parts[start : bisect_right(self._firsts, last)]]
        return [columns for columns in some if len(columns)]

    def end_of(self, first: int, rows: int) -> int:
        """The hash of the last of so many rows from a hash on; MAX_ORDER where there are fewer."""
        for part in self.parts[max(bisect_right(self._firsts, first) - 1, 0) :]:
            at = int(part.columns.order.searchsorted(np.uint64(first)))
            if at + rows <= len(part.columns):
                return int(part.columns.order[at + rows - 1])
            rows -= len(part.columns) - at
        return MAX_ORDER


def find_in(runs: Sequence[Run], order: Array, identity: Column) -> Iterator[tuple[Columns, Array, Array]]:
    """The newest row of each sought identity (in any order), as `Run.find` gives them. Runs are given newest first."""
    by_hash = np.argsort(order)
    order, identity = order[by_hash], take(identity, by_hash)
    left = np.arange(len(order))
    for run in runs:
        taken: list[Array] = []
        for columns, sought, places in run.find(order, identity, left):
            taken.append(sought)
            yield columns, by_hash[sought], places
        if taken:
            still = np.ones(len(order), dtype=np.bool_)
            for sought in taken:
                still[sought] = False
            left = left[still[left]]
            if not len(left):
                return


def merged(runs: Sequence[Run], *, forget_absent: bool, part_bytes: int) -> Iterator[Columns]:
    """The rows of several runs (newest first) as those of one, in order, about `part_bytes` at a time.

    Runs need not have rows of the same key groups: after a rescale they are of different subtasks.
    """
    if not runs:
        return
    rows = sum(run.rows for run in runs)
    size_bytes = sum(part.columns.size_bytes for run in runs for part in run.parts)
    step = max(1, part_bytes // (size_bytes // rows + 1))
    apart = max(1, step // (4 * len(runs)))  # so finely each run is looked at, as it may have all rows of a range
    samples = sorted(chain.from_iterable(_every(apart, run) for run in runs))
    first = 0
    for last in [*samples[step // apart - 1 :: step // apart], MAX_ORDER]:
        if last < first:
            continue  # a hash that several runs have
        pieces = [piece for run in runs for piece in run.pieces(first, last)]
        first = last + 1
        if pieces:
            columns = together(pieces, forget_absent=forget_absent)
            if len(columns):
                yield columns


def by_upper_half(runs: Sequence[Run], part_bytes: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Identities and cells of what is there, in order. Those together whose hashes have one upper half: of a key that has
    several rows, and perhaps of another key."""
    half, rows = -1, list[tuple[bytes, bytes]]()
    for columns in merged(runs, forget_absent=True, part_bytes=part_bytes):
        uppers = (columns.order >> np.uint64(32)).tolist()
        for upper, identity, cell in zip(uppers, columns.identity.to_pylist(), columns.cell.to_pylist(), strict=True):
            if upper != half:
                yield rows
                half, rows = upper, []
            rows.append((identity, cell))
    yield rows


def together(pieces: Sequence[Columns], *, forget_absent: bool) -> Columns:
    """Sorted rows of several runs (newest first) as those of one."""
    columns = Columns.joined(pieces).sorted().without_older() if len(pieces) > 1 else pieces[0]
    if forget_absent and not columns.present.all():
        columns = columns.take(np.flatnonzero(columns.present))
    return columns


def _every(step: int, run: Run) -> Iterator[int]:
    """The hash of each `step`-th row, counted across parts, which may be far shorter."""
    at = step
    for part in run.parts:
        rows = len(part.columns)
        yield from part.columns.order[at::step].tolist()
        at += -(-max(rows - at, 0) // step) * step - rows


def listed(column: Column) -> list[Any]:
    return column.to_pylist() if isinstance(column, pa.Array) else column.tolist()  # type: ignore[no-any-return]


def _stored(column: Column) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.array(column.view(np.uint8) if column.dtype == np.bool_ else column)


def _checksum(arrays: Sequence[pa.Array]) -> int:
    """Of what the arrays hold, whatever lies around it."""
    checksum = 0
    for array in arrays:
        if pa.types.is_large_binary(array.type):
            offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
            checksum = zlib.crc32(np.diff(offsets).data, checksum)
            data = array.buffers()[2]
            if data is not None:
                checksum = zlib.crc32(memoryview(data)[int(offsets[0]) : int(offsets[-1])], checksum)
        else:
            checksum = zlib.crc32(np.ascontiguousarray(array.to_numpy()).data, checksum)
    return checksum


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
