"""Rows of a stored database as the sections that every backend reads and writes. Executor, the snapshot's thread.

The rows come in the order of their key groups, so a section is done when the next key group begins, and no more than one
is in memory. What a section looks like is said in state/sections.py; this is the other place that makes them, from
cells and without making a Python object of each value.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.ids import KeyGroup
from tidegate.state.backend import Section
from tidegate.state.rocksdb_keys import GROUP_BYTES, address_in, group_of, group_prefix, parts_of
from tidegate.state.rocksdb_lists import SEQUENCE_BYTES
from tidegate.state.rocksdb_rows import column_of_cells, column_of_lists, decode_elements
from tidegate.state.sections import PIECE_ROWS

if TYPE_CHECKING:
    from tidegate.state.rocksdb_store import RowFormat, StoredStates

    RowPair = tuple[bytes, bytes]
    Parts = tuple[bytes, bytes]  # key, namespace


def stored_sections(stored: StoredStates, written: RowFormat, key_groups: range) -> Iterator[Section]:
    """Of one state, key groups ascending."""
    rows = stored.rows_between(written.name, group_prefix(key_groups.start), group_prefix(key_groups.stop))
    for group, group_rows in groupby(rows, key=lambda row: row[0][:GROUP_BYTES]):
        batches = list(_batches(written, group_rows))
        (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        yield Section(written.name, written.kind, KeyGroup(group_of(group)), batch)


def _batches(written: RowFormat, rows: Iterator[RowPair]) -> Iterator[pa.RecordBatch]:
    columns = _COLUMNS[written.kind]
    piece: list[RowPair] = []
    address = b""
    for row in rows:
        # A piece ends between two keys: the rows of a list belong together.
        if len(piece) >= PIECE_ROWS and not row[0].startswith(address):
            yield columns(written, piece)
            piece = []
        piece.append(row)
        if len(piece) >= PIECE_ROWS:
            address = address_in(row[0])
    yield columns(written, piece)


def _value_columns(written: RowFormat, rows: list[RowPair]) -> pa.RecordBatch:
    column = column_of_cells(written.layout, written.schema.field("value").type, [cell for _, cell in rows])
    return _batch([parts_of(row_key) for row_key, _ in rows], {"value": column})


def _list_columns(written: RowFormat, rows: list[RowPair]) -> pa.RecordBatch:
    keys: list[Parts] = []
    lists: list[list[bytes]] = []
    for address, parts in groupby(rows, key=lambda row: row[0][:-SEQUENCE_BYTES]):
        keys.append(parts_of(address))
        lists.append([cell for _, row in parts for cell in decode_elements(row)])
    return _batch(keys, {"value": column_of_lists(written.layout, written.schema.field("value").type, lists)})


def _map_columns(written: RowFormat, rows: list[RowPair]) -> pa.RecordBatch:
    assert written.map_key_layout is not None
    address, key = None, (b"", b"")
    keys: list[Parts] = []
    map_keys: list[bytes] = []
    for row_key, _ in rows:
        if address is None or not row_key.startswith(address):  # taken apart once for each map
            address = address_in(row_key)
            key = parts_of(address)
        keys.append(key)
        map_keys.append(row_key[len(address) :])
    schema = written.schema
    map_key_column = column_of_cells(written.map_key_layout, schema.field("map_key").type, map_keys)
    value_column = column_of_cells(written.layout, schema.field("value").type, [cell for _, cell in rows])
    return _batch(keys, {"map_key": map_key_column, "value": value_column})


_COLUMNS = {
    "value": _value_columns,
    "reducing": _value_columns,
    "aggregating": _value_columns,
    "list": _list_columns,
    "map": _map_columns,
}


def _batch(keys: list[Parts], columns: dict[str, pa.Array]) -> pa.RecordBatch:
    fields = [pa.field("key", pa.binary(), nullable=False), pa.field("namespace", pa.binary(), nullable=False)]
    fields += [pa.field(name, column.type) for name, column in columns.items()]
    fields.append(pa.field("expiry", pa.null()))
    arrays = [
        pa.array([key for key, _ in keys], pa.binary()),
        pa.array([namespace for _, namespace in keys], pa.binary()),
        *columns.values(),
        pa.nulls(len(keys)),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
