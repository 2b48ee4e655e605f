"""Writing keyed state as rows, sorted by key group; state/sections.py says what they look like. Executor.

All of it runs in the snapshot's thread. The writer is fed pieces of at most `PIECE_ROWS` rows: what holds the GIL (turning
Python objects into columns) is then short, and the task's thread is not kept waiting. Sorting and joining are Arrow's and
numpy's, which let the GIL go.

    part      rows that were turned into columns together      about a sixteenth of a section, by the size of those before
    block     parts that are sorted together                   65,536 rows, or the bytes of a section
    section   the rows of one key group, out of many blocks    `section_bytes`, or one row

Nobody knows the size of Python objects before they are columns. A part that turns out to be larger than a section, or than
Arrow can hold, is made again in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.errors import ProtocolViolation, StateTooLarge, TypeDeclarationError
from tidegate.ids import KeyGroup
from tidegate.state.backend import Section
from tidegate.state.declarations import Declaration, StoredList, StoredMap
from tidegate.state.key_codec import encode_int64s
from tidegate.state.key_groups import key_groups as key_groups_of
from tidegate.state.key_hash import hash_int64s
from tidegate.state.namespaces import split_namespaces
from tidegate.state.sections import DELETED, PARTS, PIECE_ROWS, SECTION_BYTES, section_schema
from tidegate.types.base import TooManyBytes

if TYPE_CHECKING:
    from tidegate.state.heap_index import KeyColumn
    from tidegate.state.keys import KeyType
    from tidegate.types import DataType

_DELETED_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("namespace", pa.binary())])
BLOCK_ROWS = 65_536  #: sorted by key group at once; larger blocks mean fewer, longer slices to join


class SectionWriter:
    """Turns the keys and values of one state, in any order, into sections: one for each key group, more where it is large.

    Keys are those of a table: normalised, with their namespace (state/namespaces.py). Of a state with a TTL values are
    `Timed` (state/ttl.py), and those that have expired are left out.
    """

    def __init__(
        self,
        declaration: Declaration,
        key_type: KeyType,
        key_groups: range,
        max_parallelism: int,
        now_ms: int = 0,
        section_bytes: int = SECTION_BYTES,
    ) -> None:
        self._section_bytes = section_bytes
        self._part_rows = PIECE_ROWS // PARTS  # at first; then by the size of what came before
        self.now_ms = now_ms  #: of the snapshot: what has expired by then does not belong into it
        self._declaration = declaration
        self._timed = declaration.ttl is not None
        self._key_type = key_type
        self._own = key_groups
        self._max_parallelism = max_parallelism
        self._schema = section_schema(declaration)
        self._block: list[tuple[np.ndarray[Any, Any], pa.RecordBatch]] = []
        self._block_rows = self._block_bytes = 0
        self._slices: dict[int, list[pa.RecordBatch]] = {}  # by key group

    def add_values(self, keys: list[Any], kept: list[Any]) -> None:
        if self._timed:
            keys = [key for key, timed in zip(keys, kept, strict=True) if timed[1] > self.now_ms]
            kept = [timed for timed in kept if timed[1] > self.now_ms]
        filed = self._file(keys)
        values, expiries = self._apart(kept)

        def columns(rows: slice) -> list[pa.Array]:
            return [
                self._column(self._declaration.value_type, values[rows], filed.keys, rows.start),
                _int64(expiries, rows),
            ]

        self._add_in_parts(filed, columns)

    def _apart(self, kept: list[Any]) -> tuple[list[Any], list[int] | None]:
        """Values and expiries."""
        return ([value for value, _ in kept], [expiry for _, expiry in kept]) if self._timed else (kept, None)

    def live_entries(self, entries: dict[Any, Any]) -> Iterator[tuple[Any, Any]]:
        """Of a map."""
        return (
            (entry for entry in entries.items() if entry[1][1] > self.now_ms) if self._timed else iter(entries.items())
        )

    def add_value_column(self, keys: KeyColumn, values: pa.Array) -> None:
        filed = self._file(keys)
        self._add(filed, self._batch(filed, [values, pa.nulls(len(values))]))

    def add_columns(
        self,
        keys: pa.Array,
        hashes: np.ndarray[Any, Any],
        encoded: pa.Array,
        namespaces: pa.Array,
        values: pa.Array,
    ) -> None:
        """Rows that are columns already, with the hashes and the canonical bytes of their keys; `keys` is for messages."""
        groups = key_groups_of(hashes, self._max_parallelism)
        self._refuse_foreign(groups, lambda place: keys[place].as_py())
        filed = _Filed([], groups, encoded, namespaces)
        for start in range(0, len(groups), BLOCK_ROWS):
            part = filed.part(slice(start, start + BLOCK_ROWS))
            rows = values.slice(start, BLOCK_ROWS)
            self._add(part, self._batch(part, [rows, pa.nulls(len(rows))]))

    def add_lists(self, keys: list[Any], lists: list[list[Any]]) -> None:
        if self._timed:
            now = self.now_ms
            live = {key: [timed for timed in kept if timed[1] > now] for key, kept in zip(keys, lists, strict=True)}
            keys, lists = [key for key, kept in live.items() if kept], [kept for kept in live.values() if kept]
        filed = self._file(keys)
        keys_of_lists: Any = filed.keys

        def columns(rows: slice) -> list[pa.Array]:
            part = lists[rows]
            lengths = np.fromiter(map(len, part), dtype=np.int32, count=len(part))
            elements, expiries = self._apart([element for elements in part for element in elements])
            owners = _Repeated(keys_of_lists[rows], lengths)
            offsets = pa.array(np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32)]))
            found = [pa.ListArray.from_arrays(offsets, self._column(self._declaration.value_type, elements, owners))]
            if expiries is None:
                return [*found, pa.nulls(len(part))]
            return [*found, pa.ListArray.from_arrays(offsets, pa.array(expiries, pa.int64()))]

        self._add_in_parts(filed, columns)

    def add_map_entries(self, keys: list[Any], counts: Sequence[int], map_keys: list[Any], kept: list[Any]) -> None:
        """`counts[i]` entries belong to `keys[i]`; the other lists hold all of them, one after the other.

        Only `live_entries`.
        """
        declaration = self._declaration
        assert isinstance(declaration, StoredMap)
        filed = self._file(keys)
        owners = _Repeated(filed.keys, np.asarray(counts, dtype=np.int64))
        values, expiries = self._apart(kept)

        def columns(rows: slice) -> list[pa.Array]:
            return [
                self._column(declaration.key_type, map_keys[rows], owners, rows.start),
                self._column(declaration.value_type, values[rows], owners, rows.start),
                _int64(expiries, rows),
            ]

        self._add_in_parts(filed.repeated(owners), columns)

    def finish(self) -> Iterator[Section]:
        """All that was added, key groups ascending."""
        self._sort_block()
        for group in sorted(self._slices):
            # A section leaves the writer as it is handed out, so the memory goes down while the upload goes on.
            slices = self._slices.pop(group)
            while slices:
                table = pa.Table.from_batches(take_bytes(slices, self._section_bytes), self._schema).combine_chunks()
                (rows,) = table.to_batches()
                yield Section(self._declaration.name, self._declaration.kind, KeyGroup(group), rows)

    def deleted(self, table_keys: list[Any]) -> Iterator[Section]:
        """Sections that say: these keys are gone since an older snapshot (savepoints/heap_increments.py)."""
        for start in range(0, len(table_keys), BLOCK_ROWS):
            filed = self._file(table_keys[start : start + BLOCK_ROWS])
            for group in np.unique(filed.groups).tolist():
                rows = pa.array(np.flatnonzero(filed.groups == group))
                columns = [filed.encoded.take(rows), filed.namespaces.take(rows)]
                batch = pa.RecordBatch.from_arrays(columns, schema=_DELETED_SCHEMA)
                yield Section(self._declaration.name, DELETED, KeyGroup(group), batch)

    def _file(self, table_keys: KeyColumn) -> _Filed:
        """An int is hashed and encoded in one way, whatever type of key was declared."""
        keys: KeyColumn
        if isinstance(table_keys, list):
            keys, namespaces = split_namespaces(table_keys)
            hashes, encoded = self._key_type.hash_many(keys), self._key_type.encode_column(keys)
        else:
            keys, namespaces = table_keys, None
            hashes, encoded = hash_int64s(keys), encode_int64s(keys)
        groups = key_groups_of(hashes, self._max_parallelism)
        self._refuse_foreign(
            groups, lambda at: self._key_type.denormalise(keys[at]) if isinstance(keys, list) else int(keys[at])
        )
        if namespaces is None:
            namespace = pa.repeat(pa.scalar(b"", pa.binary()), len(keys))
        else:
            namespace = pa.array(namespaces, pa.binary())
        return _Filed(keys, groups, encoded, namespace)

    def _refuse_foreign(self, groups: np.ndarray[Any, Any], key_at: Callable[[int], Any]) -> None:
        """:raises ProtocolViolation: for a key of another subtask's key group."""
        foreign = np.flatnonzero((groups < self._own.start) | (groups >= self._own.stop))
        if len(foreign):
            key, group = key_at(int(foreign[0])), int(groups[foreign[0]])
            raise ProtocolViolation(
                f"state {self._declaration.name!r} holds the key {key!r} of key group {group}, but this subtask owns "
                f"the key groups {self._own.start} to {self._own.stop - 1}: a record was routed under another key than "
                "the one its state was written under. The key function is not deterministic, or it has changed since "
                "the checkpoint was taken; it must always give the same key for the same record.",
                state=self._declaration.name,
                key_group=group,
            )

    def _column(
        self, data_type: DataType, values: list[Any], owners: KeyColumn | _Repeated, first_owner: int = 0
    ) -> pa.Array:
        if len(values) <= PIECE_ROWS:
            return self._piece(data_type, values, owners, first_owner)
        starts = range(0, len(values), PIECE_ROWS)
        pieces = [self._piece(data_type, values[s : s + PIECE_ROWS], owners, first_owner + s) for s in starts]
        try:
            return pa.concat_arrays(pieces)
        except pa.ArrowInvalid as error:  # they are of one type, so they are too many
            raise TooManyBytes(str(error)) from error

    def _piece(self, data_type: DataType, values: list[Any], owners: KeyColumn | _Repeated, start: int) -> pa.Array:
        try:
            return data_type.to_arrow(values)
        except TooManyBytes:
            raise
        except Exception as error:
            position, reason = _first_unfit(data_type, values, error)
            key = self._key_type.denormalise(owners[start + position])
            raise TypeDeclarationError(
                f"state {self._declaration.name!r} ({self._declaration.line}) is declared as "
                f"{self._declaration.type_name}, but what it holds under the key {key!r} is not: {reason}",
                state=self._declaration.name,
            ) from error

    def _add_in_parts(self, filed: _Filed, columns: Callable[[slice], list[pa.Array]]) -> None:
        """Add all rows, so many at a time that a part is about a sixteenth of a section."""
        start, end = 0, len(filed.groups)
        while start < end:
            stop = min(end, start + self._part_rows)
            size = self._add_part(filed, columns, start, stop)
            wanted = self._section_bytes // PARTS * (stop - start) // max(size, 1)
            self._part_rows = max(1, min(wanted, PIECE_ROWS))
            start = stop

    def _add_part(self, filed: _Filed, columns: Callable[[slice], list[pa.Array]], start: int, stop: int) -> int:
        """Returns the size. In halves, when it is more than a section: what comes may be larger than all before."""
        part = filed.part(slice(start, stop))
        batch: pa.RecordBatch | None = None
        try:
            batch = self._batch(part, columns(slice(start, stop)))
        except (pa.ArrowCapacityError, TooManyBytes) as error:
            if stop - start == 1:
                raise self._too_large(filed.keys[start], error) from error
        if batch is None or (batch.nbytes > self._section_bytes and stop - start > 1):
            middle = (start + stop) // 2
            return self._add_part(filed, columns, start, middle) + self._add_part(filed, columns, middle, stop)
        self._add(part, batch)
        return int(batch.nbytes)

    def _too_large(self, key: Any, error: Exception) -> StateTooLarge:
        return StateTooLarge(
            f"state {self._declaration.name!r} ({self._declaration.line}) holds more than 2 GiB in one "
            f"{'list' if isinstance(self._declaration, StoredList) else 'value'}, under the key "
            f"{self._key_type.denormalise(key)!r}, which cannot be stored ({error}). Spread it over the entries of a "
            "MapState, each of which is stored alone, or over more keys.",
            state=self._declaration.name,
        )

    def _batch(self, filed: _Filed, columns: list[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([filed.encoded, filed.namespaces, *columns], schema=self._schema)

    def _add(self, filed: _Filed, batch: pa.RecordBatch) -> None:
        size = batch.nbytes
        if self._block_bytes + size > self._section_bytes:
            self._sort_block()
        self._block.append((filed.groups, batch))
        self._block_rows += len(filed.groups)
        self._block_bytes += size
        if self._block_rows >= BLOCK_ROWS:
            self._sort_block()

    def _sort_block(self) -> None:
        if not self._block_rows:
            self._block.clear()
            return
        groups = np.concatenate([groups for groups, _ in self._block])
        order = np.argsort(groups.astype(np.uint16), kind="stable")  # of 16 bits it is a radix sort
        rows = pa.Table.from_batches([batch for _, batch in self._block], self._schema).combine_chunks()
        rows = rows.take(pa.array(order)).combine_chunks()
        (batch,) = rows.to_batches()
        ordered = groups[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=True):
            self._slices.setdefault(int(ordered[start]), []).append(batch.slice(start, stop - start))
        self._block.clear()
        self._block_rows = self._block_bytes = 0


def take_bytes(batches: list[pa.RecordBatch], most_bytes: int) -> list[pa.RecordBatch]:
    """Take from the front as many as make so many bytes together, and one at least."""
    taken, size = 0, 0
    while taken < len(batches):
        size += batches[taken].nbytes
        if taken and size > most_bytes:
            break
        taken += 1
    front = batches[:taken]
    del batches[:taken]
    return front


@dataclass(frozen=True, slots=True)
class _Filed:
    """Where rows belong, a row in each column."""

    keys: KeyColumn | _Repeated  #: normalised; of `part`: of all parts
    groups: np.ndarray[Any, Any]
    encoded: pa.Array
    namespaces: pa.Array

    def repeated(self, owners: _Repeated) -> _Filed:
        positions = owners.positions
        rows = pa.array(positions)
        return _Filed(owners, self.groups.take(positions), self.encoded.take(rows), self.namespaces.take(rows))

    def part(self, rows: slice) -> _Filed:
        return _Filed(self.keys, self.groups[rows], self.encoded[rows], self.namespaces[rows])


def _int64(moments: list[int] | None, rows: slice) -> pa.Array:
    return pa.nulls(rows.stop - rows.start) if moments is None else pa.array(moments[rows], pa.int64())


class _Repeated(Sequence[Any]):
    """`keys[i]` as often as `counts[i]` says, without making that list; only an error asks for an element."""

    def __init__(self, keys: KeyColumn | _Repeated, counts: np.ndarray[Any, Any]) -> None:
        self._keys = keys
        self.positions: np.ndarray[Any, Any] = np.repeat(np.arange(len(keys)), counts)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: Any) -> Any:
        return self._keys[self.positions[index]]


def _first_unfit(data_type: DataType, values: list[Any], error: Exception) -> tuple[int, Exception]:
    for position, value in enumerate(values):
        try:
            data_type.to_arrow([value])
        except Exception as reason:
            return position, reason
    raise error  # each fits alone, so it is not a value of the user's
