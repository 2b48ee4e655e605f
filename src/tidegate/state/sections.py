"""The rows in which keyed state is stored, the same for every backend. The one place that writes and reads them.

Executor: written by the snapshot's thread, read by the task's thread at restore.

    value state   key, namespace, value, expiry                 a row for each key and namespace
    list state    key, namespace, value: list<T>, expiry        a row for each key and namespace, elements in order
    map state     key, namespace, map_key, value, expiry        a row for each entry, in no order

Reducing and aggregating state is stored as value state is. `key` is the canonical bytes of the key (state/keys.py).
`namespace` is empty but for windows. `expiry` is when the entry expires, in ms since 1970 (int64), and of a list state
the same for each element (list<int64>). Without a TTL it is a column of Arrow's type null, which takes no space.
Read are also rows without `expiry`, as the first version wrote them.

The writer is fed pieces of at most `PIECE_ROWS` rows: what holds the GIL (turning Python objects into columns) is then
short, and the task's thread is not kept waiting. Sorting and joining are Arrow's and numpy's, which let the GIL go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import CheckpointDamaged, ProtocolViolation, TypeDeclarationError
from tidegate.ids import KeyGroup
from tidegate.state.backend import Section
from tidegate.state.declarations import Declaration, MapState
from tidegate.state.key_codec import encode_int64s
from tidegate.state.key_groups import key_groups as key_groups_of
from tidegate.state.key_hash import hash_int64s
from tidegate.state.map_keys import canonical_form
from tidegate.state.namespaces import in_namespace, split_namespaces
from tidegate.types.containers import ListType

if TYPE_CHECKING:
    from tidegate.state.heap_index import KeyColumn
    from tidegate.state.keys import KeyType
    from tidegate.types import DataType

PIECE_ROWS = 4096  #: about a millisecond of Python objects
DELETED = "deleted"  #: kind of a section that names keys, and says that they are gone
_DELETED_SCHEMA = pa.schema([pa.field("key", pa.binary(), nullable=False), pa.field("namespace", pa.binary())])
BLOCK_ROWS = 65_536  #: sorted by key group at once; larger blocks mean fewer, longer slices to join


def section_schema(declaration: Declaration) -> pa.Schema:
    fields = [pa.field("key", pa.binary(), nullable=False), pa.field("namespace", pa.binary(), nullable=False)]
    value = declaration.value_type.arrow
    if declaration.kind == "list":
        value = pa.list_(value)
    if isinstance(declaration, MapState):
        fields.append(pa.field("map_key", declaration.key_type.arrow))
    fields.append(pa.field("value", value))
    expiry = pa.null()
    if declaration.ttl is not None:
        expiry = pa.list_(pa.int64()) if declaration.kind == "list" else pa.int64()
    fields.append(pa.field("expiry", expiry))
    return pa.schema(fields)


class SectionWriter:
    """Turns the keys and values of one state, in any order, into one section for each key group.

    Keys are those of a table: normalised, with their namespace (state/namespaces.py). Of a state with a TTL each call
    brings expiries too, one for each value; of a state without there are none.
    """

    def __init__(
        self, declaration: Declaration, key_type: KeyType, key_groups: range, max_parallelism: int, now_ms: int = 0
    ) -> None:
        self.now_ms = now_ms  #: of the snapshot: what has expired by then does not belong into it
        self._declaration = declaration
        self._key_type = key_type
        self._own = key_groups
        self._max_parallelism = max_parallelism
        self._schema = section_schema(declaration)
        self._block: list[tuple[np.ndarray[Any, Any], pa.RecordBatch]] = []
        self._block_rows = 0
        self._slices: dict[int, list[pa.RecordBatch]] = {}  # by key group

    def add_values(self, keys: list[Any], values: list[Any], expiries: list[int] | None = None) -> None:
        filed = self._file(keys)
        self._add(filed, [self._column(self._declaration.value_type, values, filed.keys)], _int64(expiries))

    def add_value_column(self, keys: KeyColumn, values: pa.Array) -> None:
        self._add(self._file(keys), [values])

    def add_lists(self, keys: list[Any], lists: list[list[Any]], expiries: list[list[int]] | None = None) -> None:
        filed = self._file(keys)
        lengths = np.fromiter(map(len, lists), dtype=np.int32, count=len(lists))
        elements = [element for elements in lists for element in elements]
        column = self._column(self._declaration.value_type, elements, _Repeated(filed.keys, lengths))
        offsets = pa.array(np.concatenate([np.zeros(1, dtype=np.int32), np.cumsum(lengths, dtype=np.int32)]))
        each_expiry = None if expiries is None else _int64([at for each in expiries for at in each])
        self._add(
            filed,
            [pa.ListArray.from_arrays(offsets, column)],
            None if each_expiry is None else pa.ListArray.from_arrays(offsets, each_expiry),
        )

    def add_map_entries(
        self,
        keys: list[Any],
        counts: Sequence[int],
        map_keys: list[Any],
        values: list[Any],
        expiries: list[int] | None = None,
    ) -> None:
        """`counts[i]` entries belong to `keys[i]`; the other lists hold all of them, one after the other."""
        assert isinstance(self._declaration, MapState)
        filed = self._file(keys)
        owners = _Repeated(filed.keys, np.asarray(counts, dtype=np.int64))
        columns = [
            self._column(self._declaration.key_type, map_keys, owners),
            self._column(self._declaration.value_type, values, owners),
        ]
        self._add(filed.take(owners.positions), columns, _int64(expiries))

    def finish(self) -> Iterator[Section]:
        """All that was added, key groups ascending."""
        self._sort_block()
        for group in sorted(self._slices):
            # A section leaves the writer as it is handed out, so the memory goes down while the upload goes on.
            table = pa.Table.from_batches(self._slices.pop(group), self._schema).combine_chunks()
            (rows,) = table.to_batches()
            yield Section(self._declaration.name, self._declaration.kind, KeyGroup(group), rows)

    def deleted(self, table_keys: list[Any]) -> Iterator[Section]:
        """Sections that say: these keys are gone since an older snapshot (state/heap_increments.py)."""
        if not table_keys:
            return
        filed = self._file(table_keys)
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
        foreign = np.flatnonzero((groups < self._own.start) | (groups >= self._own.stop))
        if len(foreign):
            of, group = keys[foreign[0]], int(groups[foreign[0]])
            key = self._key_type.denormalise(of) if isinstance(keys, list) else int(of)
            raise ProtocolViolation(
                f"state {self._declaration.name!r} holds the key {key!r} of key group {group}, but this subtask owns "
                f"the key groups {self._own.start} to {self._own.stop - 1}: a record was routed under another key than "
                "the one its state was written under. The key function is not deterministic, or it has changed since "
                "the checkpoint was taken; it must always give the same key for the same record.",
                state=self._declaration.name,
                key_group=group,
            )
        if namespaces is None:
            namespace = pa.repeat(pa.scalar(b"", pa.binary()), len(keys))
        else:
            namespace = pa.array(namespaces, pa.binary())
        return _Filed(keys, groups, encoded, namespace)

    def _column(self, data_type: DataType, values: list[Any], owners: KeyColumn | _Repeated) -> pa.Array:
        if len(values) <= PIECE_ROWS:
            return self._piece(data_type, values, owners, 0)
        starts = range(0, len(values), PIECE_ROWS)
        return pa.concat_arrays([self._piece(data_type, values[s : s + PIECE_ROWS], owners, s) for s in starts])

    def _piece(self, data_type: DataType, values: list[Any], owners: KeyColumn | _Repeated, start: int) -> pa.Array:
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

    def _add(self, filed: _Filed, columns: list[pa.Array], expiry: pa.Array | None = None) -> None:
        groups = filed.groups
        if expiry is None:
            expiry = pa.nulls(len(groups))
        arrays = [filed.encoded, filed.namespaces, *columns, expiry]
        self._block.append((groups, pa.RecordBatch.from_arrays(arrays, schema=self._schema)))
        self._block_rows += len(groups)
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
        self._block_rows = 0


@dataclass(frozen=True, slots=True)
class _Filed:
    """Where rows belong, a row in each column."""

    keys: KeyColumn  #: normalised; of `take`: not repeated
    groups: np.ndarray[Any, Any]
    encoded: pa.Array
    namespaces: pa.Array

    def take(self, positions: np.ndarray[Any, Any]) -> _Filed:
        rows = pa.array(positions)
        return _Filed(self.keys, self.groups.take(positions), self.encoded.take(rows), self.namespaces.take(rows))


def _int64(moments: list[int] | None) -> pa.Array | None:
    return None if moments is None else pa.array(moments, pa.int64())


class _Repeated(Sequence[Any]):
    """`keys[i]` as often as `counts[i]` says, without making that list; only an error asks for an element."""

    def __init__(self, keys: KeyColumn, counts: np.ndarray[Any, Any]) -> None:
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
    """Takes stored rows of one state apart. What has expired by `now_ms` is left out (`live`, `lists`)."""

    def __init__(self, declaration: Declaration, key_type: KeyType, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self._declaration = declaration
        self._key_type = key_type

    def keys(self, rows: pa.RecordBatch) -> list[Any]:
        """As tables have them: normalised, with their namespace."""
        keys = self._bare_keys(rows)
        if "namespace" in rows.schema.names:
            column = rows.column("namespace")
            if pc.max(pc.binary_length(column)).as_py():
                return list(map(in_namespace, keys, column.fill_null(b"").to_pylist()))
        return keys

    def values(self, rows: pa.RecordBatch) -> list[Any]:
        """Of a list state: lists."""
        value_type = self._declaration.value_type
        return self._read(rows, "value", ListType(value_type) if self._declaration.kind == "list" else value_type)

    def live(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have not expired. Elements of lists are told apart by `lists`."""
        expiry = self._expiry(rows)
        if expiry is None or self._declaration.kind == "list":
            return rows
        return rows.filter(pc.fill_null(pc.greater(expiry, self.now_ms), True))

    def expiries(self, rows: pa.RecordBatch, otherwise: int) -> list[int]:
        """When each row expires; `otherwise` for those that were stored without a TTL."""
        expiry = self._expiry(rows)
        if expiry is None:
            return [otherwise] * rows.num_rows
        return expiry.fill_null(otherwise).to_pylist()  # type: ignore[no-any-return]

    def lists(self, rows: pa.RecordBatch) -> list[list[Any]]:
        """The elements of each row that have not expired."""
        if self._expiry(rows) is None:
            return self.values(rows)
        return [elements for elements, _ in self.expiring_lists(rows, 0)]

    def expiring_lists(self, rows: pa.RecordBatch, otherwise: int) -> Iterator[tuple[list[Any], list[int]]]:
        """The same, with the expiry of each element; `otherwise` as in `expiries`."""
        expiry = self._expiry(rows)
        values = self.values(rows)
        if expiry is None:
            yield from ((elements, [otherwise] * len(elements)) for elements in values)
            return
        for elements, moments in zip(values, expiry.to_pylist(), strict=True):
            if moments is None:
                moments = [None] * len(elements)
            if len(moments) != len(elements):
                raise self._damaged(f"hold a list of {len(elements)} elements with {len(moments)} expiries")
            live = [
                (element, otherwise if moment is None else moment)
                for element, moment in zip(elements, moments, strict=True)
                if moment is None or moment > self.now_ms
            ]
            yield [element for element, _ in live], [moment for _, moment in live]

    def value_column(self, rows: pa.RecordBatch) -> pa.Array:
        """The values, still as a column, of the declared type."""
        column = self._stored(rows, "value")
        value_type = self._declaration.value_type
        if column.type == value_type.arrow and (value_type.nullable or not column.null_count):
            return column
        return value_type.to_arrow(self.values(rows))

    def map_keys(self, rows: pa.RecordBatch) -> list[Any]:
        assert isinstance(self._declaration, MapState)
        keys = self._read(rows, "map_key", self._declaration.key_type)
        canonical = canonical_form(self._declaration.key_type)
        return keys if canonical is None else list(map(canonical, keys))

    def only(self, rows: pa.RecordBatch, key_groups: range, max_parallelism: int) -> pa.RecordBatch:
        groups = key_groups_of(self._key_type.hash_many(self._bare_keys(rows)), max_parallelism)
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

    def _bare_keys(self, rows: pa.RecordBatch) -> list[Any]:
        return self._key_type.decode_many(self._stored(rows, "key"))

    def _expiry(self, rows: pa.RecordBatch) -> pa.Array | None:
        """The column, when it says anything."""
        if "expiry" not in rows.schema.names:
            return None
        column = rows.column("expiry")
        if column.null_count == len(column):
            return None
        wanted = pa.list_(pa.int64()) if self._declaration.kind == "list" else pa.int64()
        try:
            return column.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._damaged(f"have a column 'expiry' of {column.type}, not {wanted}") from error

    def _stored(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        if name not in rows.schema.names:
            raise self._damaged(f"have no column {name!r}, but {rows.schema.names}")
        return rows.column(name)

    def _damaged(self, what: str) -> CheckpointDamaged:
        return CheckpointDamaged(
            f"the stored rows of {self._declaration.kind} state {self._declaration.name!r} {what}. "
            "The file was not written by Tidegate, or was edited.",
            state=self._declaration.name,
        )
