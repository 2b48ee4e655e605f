"""The rows in which keyed state is stored, the same for every backend. Written by state/section_writer.py, read here.

Executor: written by the snapshot's thread, read by the task's thread at restore.

    value state   key, namespace, value, expiry                 a row for each key and namespace
    list state    key, namespace, value: list<T>, expiry        a row for each key and namespace, elements in order
    map state     key, namespace, map_key, value, expiry        a row for each entry, in no order

Reducing and aggregating state is stored as value state is, and so are timers: a row for each, in a namespace that begins
with its moment (state/timers.py). `key` is the canonical bytes of the key (state/keys.py). `namespace` is empty but for windows
and timers. `expiry` is when the entry expires, in ms since 1970 (int64), and of a list state the same for each element
(list<int64>). Without a TTL it is a column of Arrow's type null, which takes no space. Read are also rows without `expiry`, as
the first version wrote them.

Arrow counts the bytes of a column of text, bytes or lists in 32 bits, so no more than 2 GiB can be one column. What a key group
has beyond `SECTION_BYTES` is in further sections of it. A row is never cut: one value, or one list, has to fit alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.errors import CheckpointDamaged, TypeDeclarationError
from tidegate.state.declarations import Declaration, StoredList, StoredMap
from tidegate.state.key_codec import decode_int64s
from tidegate.state.map_keys import canonical_form
from tidegate.state.namespaces import in_namespace
from tidegate.types.containers import ListType

if TYPE_CHECKING:
    from tidegate.state.keys import KeyType
    from tidegate.types import DataType

PIECE_ROWS = 4096  #: about a millisecond of Python objects
DELETED = "deleted"  #: kind of a section that names keys, and says that they are gone
SECTION_BYTES = 256 << 20  #: of a block and of a section; far below what Arrow can join
MAX_ROW_BYTES = (1 << 31) - (1 << 20)  #: Arrow's limit for a column of text, bytes or lists, and some room
_MAY_BE_INTS = ("int", "optional[int]", "any")
PARTS = 16  #: of a piece that is as large: how finely large values are cut


def section_schema(declaration: Declaration) -> pa.Schema:
    fields = [pa.field("key", pa.binary(), nullable=False), pa.field("namespace", pa.binary(), nullable=False)]
    value = declaration.value_type.arrow
    is_list = isinstance(declaration, StoredList)
    if is_list:
        value = pa.list_(value)
    if isinstance(declaration, StoredMap):
        fields.append(pa.field("map_key", declaration.key_type.arrow))
    fields.append(pa.field("value", value))
    expiry = pa.null()
    if declaration.ttl is not None:
        expiry = pa.list_(pa.int64()) if is_list else pa.int64()
    fields.append(pa.field("expiry", expiry))
    return pa.schema(fields)


class SectionReader:
    """Takes stored rows of one state apart. What has expired by `now_ms` is left out (`live`, `kept_lists`)."""

    def __init__(self, declaration: Declaration, key_type: KeyType, now_ms: int = 0) -> None:
        self.now_ms = now_ms
        self._declaration = declaration
        self._is_list = isinstance(declaration, StoredList)
        self._key_type = key_type

    def keys(self, rows: pa.RecordBatch) -> list[Any]:
        """As tables have them: normalised, with their namespace."""
        keys = self.bare_keys(rows)
        if "namespace" in rows.schema.names:
            column = rows.column("namespace")
            if pc.max(pc.binary_length(column)).as_py():
                return list(map(in_namespace, keys, column.fill_null(b"").to_pylist()))
        return keys

    def int64_keys(self, rows: pa.RecordBatch) -> np.ndarray[Any, Any] | None:
        """The same as an array, where all are ints of 64 bits in the empty namespace; else None."""
        if "namespace" in rows.schema.names and pc.max(pc.binary_length(rows.column("namespace"))).as_py():
            return None
        return decode_int64s(self._stored(rows, "key"))

    def values(self, rows: pa.RecordBatch) -> list[Any]:
        """Of a list state: lists."""
        value_type = self._declaration.value_type
        return self._read(rows, "value", ListType(value_type) if self._is_list else value_type)

    def live(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that have not expired. Elements of lists are told apart by `kept_lists`."""
        expiry = self._expiry(rows)
        if expiry is None or self._is_list:
            return rows
        return rows.filter(pc.fill_null(pc.greater(expiry, self.now_ms), True))

    def kept(self, rows: pa.RecordBatch) -> list[Any]:
        """The values as tables keep them: of a state with a TTL they are `Timed` (state/ttl.py).

        The time of one that was stored without a TTL begins now.
        """
        values, ttl = self.values(rows), self._declaration.ttl
        if ttl is None:
            return values
        expiry, otherwise = self._expiry(rows), self.now_ms + ttl.milliseconds
        expiries = [otherwise] * len(values) if expiry is None else expiry.fill_null(otherwise).to_pylist()
        return list(zip(values, expiries, strict=True))

    def kept_lists(self, rows: pa.RecordBatch) -> list[list[Any]]:
        """The same for the elements of each row, without those that have expired."""
        lists, ttl, expiry = self.values(rows), self._declaration.ttl, self._expiry(rows)
        otherwise = None if ttl is None else self.now_ms + ttl.milliseconds
        if expiry is None:
            return lists if ttl is None else [[(each, otherwise) for each in elements] for elements in lists]
        return [
            self._live_elements(elements, moments, otherwise)
            for elements, moments in zip(lists, expiry.to_pylist(), strict=True)
        ]

    def _live_elements(self, elements: list[Any], moments: list[Any] | None, otherwise: int | None) -> list[Any]:
        if moments is None:
            moments = [None] * len(elements)
        if len(moments) != len(elements):
            raise self._damaged(f"hold a list of {len(elements)} elements with {len(moments)} expiries")
        live = [
            (element, otherwise if moment is None else moment)
            for element, moment in zip(elements, moments, strict=True)
            if moment is None or moment > self.now_ms
        ]
        return [element for element, _ in live] if otherwise is None else live

    def value_column(self, rows: pa.RecordBatch) -> pa.Array:
        """The values, still as a column, of the declared type."""
        column = self._stored(rows, "value")
        value_type = self._declaration.value_type
        if column.type == value_type.arrow and (value_type.nullable or not column.null_count):
            return column
        return value_type.to_arrow(self.values(rows))

    def map_keys(self, rows: pa.RecordBatch) -> list[Any]:
        assert isinstance(self._declaration, StoredMap)
        keys = self._read(rows, "map_key", self._declaration.key_type)
        canonical = canonical_form(self._declaration.key_type)
        return keys if canonical is None else list(map(canonical, keys))

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

    def bare_keys(self, rows: pa.RecordBatch) -> list[Any]:
        """Normalised, without their namespace."""
        column = self._stored(rows, "key")
        ints = decode_int64s(column) if self._key_type.name in _MAY_BE_INTS else None
        return self._key_type.decode_many(column) if ints is None else ints.tolist()

    def _expiry(self, rows: pa.RecordBatch) -> pa.Array | None:
        """The column, when it says anything."""
        if "expiry" not in rows.schema.names:
            return None
        column = rows.column("expiry")
        if column.null_count == len(column):
            return None
        wanted = pa.list_(pa.int64()) if self._is_list else pa.int64()
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
