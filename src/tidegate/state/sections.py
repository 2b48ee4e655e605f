"""The rows in which keyed state is stored, the same for every backend. The one place that writes and reads them.

Executor: written by the snapshot's thread, read by the task's thread at restore.

    value state   key, namespace, value                 a row for each key
    list state    key, namespace, value: list<T>        a row for each key, elements in order
    map state     key, namespace, map_key, value        a row for each entry, in no order

`key` is the canonical bytes of the key (state/keys.py). `namespace` is empty; it stands in the format for windows.

The writer is fed pieces of at most `PIECE_ROWS` rows: what holds the GIL (turning Python objects into columns) is then
short, and the task's thread is not kept waiting. Sorting and joining are Arrow's and numpy's, which let the GIL go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.errors import CheckpointDamaged, ProtocolViolation, TypeDeclarationError
from tidegate.ids import KeyGroup
from tidegate.state.backend import Section
from tidegate.state.declarations import Declaration, MapState
from tidegate.state.key_groups import key_groups as key_groups_of
from tidegate.types.containers import ListType

if TYPE_CHECKING:
    from tidegate.state.keys import KeyType
    from tidegate.types import DataType

PIECE_ROWS = 4096  #: about a millisecond of Python objects
BLOCK_ROWS = 65_536  #: sorted by key group at once; larger blocks mean fewer, longer slices to join


def section_schema(declaration: Declaration) -> pa.Schema:
    fields = [pa.field("key", pa.binary(), nullable=False), pa.field("namespace", pa.binary(), nullable=False)]
    value = declaration.value_type.arrow
    if declaration.kind == "list":
        value = pa.list_(value)
    if isinstance(declaration, MapState):
        fields.append(pa.field("map_key", declaration.key_type.arrow))
    fields.append(pa.field("value", value))
    return pa.schema(fields)


class SectionWriter:
    """Turns the keys and values of one state, in any order, into one section for each key group."""

    def __init__(self, declaration: Declaration, key_type: KeyType, key_groups: range, max_parallelism: int) -> None:
        self._declaration = declaration
        self._key_type = key_type
        self._own = key_groups
        self._max_parallelism = max_parallelism
        self._schema = section_schema(declaration)
        self._block: list[tuple[np.ndarray[Any, Any], pa.RecordBatch]] = []
        self._block_rows = 0
        self._slices: dict[int, list[pa.RecordBatch]] = {}  # by key group

    def add_values(self, keys: list[Any], values: list[Any]) -> None:
        self._add(self._key_column(keys), [self._column(self._declaration.value_type, values, keys)])

    def add_value_column(self, keys: list[Any], values: pa.Array) -> None:
        self._add(self._key_column(keys), [values])

    def add_lists(self, keys: list[Any], lists: list[list[Any]]) -> None:
        lengths = np.fromiter(map(len, lists), dtype=np.int32, count=len(lists))
        elements = [element for elements in lists for element in elements]
        owners = _Repeated(keys, lengths)
        column = self._column(self._declaration.value_type, elements, owners)
        offsets = np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32)])
        self._add(self._key_column(keys), [pa.ListArray.from_arrays(pa.array(offsets), column)])

    def add_map_entries(self, keys: list[Any], counts: Sequence[int], map_keys: list[Any], values: list[Any]) -> None:
        """`counts[i]` entries belong to `keys[i]`; `map_keys` and `values` hold all of them, one after the other."""
        assert isinstance(self._declaration, MapState)
        owners = _Repeated(keys, np.asarray(counts, dtype=np.int64))
        groups, encoded = self._key_column(keys)
        columns = [
            self._column(self._declaration.key_type, map_keys, owners),
            self._column(self._declaration.value_type, values, owners),
        ]
        self._add((groups.take(owners.positions), encoded.take(pa.array(owners.positions))), columns)

    def finish(self) -> Iterator[Section]:
        """All that was added, key groups ascending."""
        self._sort_block()
        for group in sorted(self._slices):
            # A section leaves the writer as it is handed out, so the memory goes down while the upload goes on.
            table = pa.Table.from_batches(self._slices.pop(group), self._schema).combine_chunks()
            (rows,) = table.to_batches()
            yield Section(self._declaration.name, self._declaration.kind, KeyGroup(group), rows)

    def _key_column(self, keys: list[Any]) -> tuple[np.ndarray[Any, Any], pa.Array]:
        groups = key_groups_of(self._key_type.hash_many(keys), self._max_parallelism)
        foreign = np.flatnonzero((groups < self._own.start) | (groups >= self._own.stop))
        if len(foreign):
            key, group = self._key_type.denormalise(keys[foreign[0]]), int(groups[foreign[0]])
            raise ProtocolViolation(
                f"state {self._declaration.name!r} holds the key {key!r} of key group {group}, but this subtask owns "
                f"the key groups {self._own.start} to {self._own.stop - 1}: a record was routed under another key than "
                "the one its state was written under. The key function is not deterministic, or it has changed since "
                "the checkpoint was taken; it must always give the same key for the same record.",
                state=self._declaration.name,
                key_group=group,
            )
        return groups, pa.array(self._key_type.encode_many(keys), pa.binary())

    def _column(self, data_type: DataType, values: list[Any], owners: Sequence[Any]) -> pa.Array:
        if len(values) <= PIECE_ROWS:
            return self._piece(data_type, values, owners, 0)
        starts = range(0, len(values), PIECE_ROWS)
        return pa.concat_arrays([self._piece(data_type, values[s : s + PIECE_ROWS], owners, s) for s in starts])

    def _piece(self, data_type: DataType, values: list[Any], owners: Sequence[Any], start: int) -> pa.Array:
        try:
            return data_type.to_arrow(values)
        except Exception as error:
            position, reason = _first_unfit(data_type, values, error)
            key = self._key_type.denormalise(owners[start + position])
            raise TypeDeclarationError(
                f"state {self._declaration.name!r} ({self._declaration.line}) is declared as "
                f"{self._declaration.type_name}, but what it holds under the key {key!r} is not: {reason}",
                state=self._declaration.name,
            ) from error

    def _add(self, keys: tuple[np.ndarray[Any, Any], pa.Array], columns: list[pa.Array]) -> None:
        groups, encoded = keys
        namespace = pa.repeat(pa.scalar(b"", pa.binary()), len(encoded))
        self._block.append((groups, pa.RecordBatch.from_arrays([encoded, namespace, *columns], schema=self._schema)))
        self._block_rows += len(groups)
        if self._block_rows >= BLOCK_ROWS:
            self._sort_block()

    def _sort_block(self) -> None:
        if not self._block_rows:
            self._block.clear()
            return
        groups = np.concatenate([groups for groups, _ in self._block])
        order = np.argsort(groups, kind="stable")
        rows = pa.Table.from_batches([batch for _, batch in self._block], self._schema).combine_chunks()
        rows = rows.take(pa.array(order)).combine_chunks()
        (batch,) = rows.to_batches()
        ordered = groups[order]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=True):
            self._slices.setdefault(int(ordered[start]), []).append(batch.slice(start, stop - start))
        self._block.clear()
        self._block_rows = 0


class _Repeated(Sequence[Any]):
    """`keys[i]` as often as `counts[i]` says, without making that list; only an error asks for an element."""

    def __init__(self, keys: list[Any], counts: np.ndarray[Any, Any]) -> None:
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
    raise error  # each fits alone, so it is no value of the user's


# -- reading ------------------------------------------------------------------------------------------------------


class SectionReader:
    """Takes stored rows of one state apart."""

    def __init__(self, declaration: Declaration, key_type: KeyType) -> None:
        self._declaration = declaration
        self._key_type = key_type

    def keys(self, rows: pa.RecordBatch) -> list[Any]:
        """Normalised."""
        return self._key_type.decode_many(self._stored(rows, "key"))

    def values(self, rows: pa.RecordBatch) -> list[Any]:
        """Of a list state: lists."""
        value_type = self._declaration.value_type
        return self._read(rows, "value", ListType(value_type) if self._declaration.kind == "list" else value_type)

    def value_column(self, rows: pa.RecordBatch) -> pa.Array:
        """The values, still as a column, of the declared type."""
        column = self._stored(rows, "value")
        value_type = self._declaration.value_type
        if column.type == value_type.arrow and (value_type.nullable or not column.null_count):
            return column
        return value_type.to_arrow(self.values(rows))

    def map_keys(self, rows: pa.RecordBatch) -> list[Any]:
        assert isinstance(self._declaration, MapState)
        return self._read(rows, "map_key", self._declaration.key_type)

    def only(self, rows: pa.RecordBatch, key_groups: range, max_parallelism: int) -> pa.RecordBatch:
        groups = key_groups_of(self._key_type.hash_many(self.keys(rows)), max_parallelism)
        return rows.filter(pa.array((groups >= key_groups.start) & (groups < key_groups.stop)))

    def _read(self, rows: pa.RecordBatch, name: str, data_type: DataType) -> list[Any]:
        column = self._stored(rows, name)
        try:
            return data_type.from_arrow(column)
        except TypeDeclarationError as error:
            raise TypeDeclarationError(
                f"state {self._declaration.name!r} ({self._declaration.line}) is declared as "
                f"{self._declaration.type_name}, but the checkpoint holds {column.type} in its column {name!r}: "
                f"{error.message} Declare the type that is stored, or give the new state another "
                "name and start it empty.",
                state=self._declaration.name,
            ) from error

    def _stored(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        if name not in rows.schema.names:
            raise CheckpointDamaged(
                f"the stored rows of {self._declaration.kind} state {self._declaration.name!r} have no column "
                f"{name!r}, but {rows.schema.names}. The file was not written by Tidegate, or was edited.",
                state=self._declaration.name,
            )
        return rows.column(name)
