"""Rows of a stored database as the sections that every backend reads and writes. Executor, the snapshot's thread.

The rows come in the order of their key groups, so a section is done when the next key group begins or it is large, and no more
than one is in memory. What a section looks like is said in state/sections.py; this is the other place that makes them, from
cells and without making a Python object of each value.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from tidegate.errors import StateTooLarge
from tidegate.ids import KeyGroup
from tidegate.state.backend import Section
from tidegate.state.declarations import ROWS
from tidegate.state.rocksdb_keys import GROUP_BYTES, SEQUENCE_BYTES, address_in, group_of, group_prefix, parts_of
from tidegate.state.rocksdb_plain import offsets_of
from tidegate.state.rocksdb_rows import (
    EXPIRING,
    column_of_cells,
    decode_elements,
    live_cell,
    live_elements,
    without_expiries,
)
from tidegate.state.rocksdb_timers import timer_parts
from tidegate.state.sections import MAX_ROW_BYTES, PARTS, PIECE_ROWS, SECTION_BYTES

if TYPE_CHECKING:
    from tidegate.state.rocksdb_store import RowFormat, StoredStates

    RowPair = tuple[bytes, bytes]
    Parts = tuple[bytes, bytes]  # key, namespace


def stored_sections(
    stored: StoredStates,
    written: RowFormat,
    key_groups: range,
    now_ms: int = 0,
    section_bytes: int = SECTION_BYTES,
) -> Iterator[Section]:
    """Of one state, key groups ascending, without what has expired at `now_ms`.

    :raises StateTooLarge: for a list that is too large to be a row.
    """
    rows = stored.rows_between(written.name, group_prefix(key_groups.start), group_prefix(key_groups.stop))
    live = _live(written, rows, now_ms) if written.layout.startswith(EXPIRING) else rows
    for group, group_rows in groupby(live, key=lambda row: row[0][:GROUP_BYTES]):
        for batches in _in_sections(_batches(written, group_rows, section_bytes // PARTS), section_bytes):
            (batch,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
            yield Section(written.name, written.kind, KeyGroup(group_of(group)), batch)


def _in_sections(batches: Iterator[pa.RecordBatch], section_bytes: int) -> Iterator[list[pa.RecordBatch]]:
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if waiting and size + batch.nbytes > section_bytes:
            yield waiting
            waiting, size = [], 0
        waiting.append(batch)
        size += batch.nbytes
    yield waiting


def _live(written: RowFormat, rows: Iterator[RowPair], now_ms: int) -> Iterator[RowPair]:
    for row_key, stored in rows:
        cell = live_elements(stored, now_ms)[0] if ROWS[written.kind] == "list" else live_cell(stored, now_ms)
        if cell is not None:
            yield row_key, cell


def _batches(written: RowFormat, rows: Iterator[RowPair], piece_bytes: int) -> Iterator[pa.RecordBatch]:
    columns = _timer_columns if written.kind == "timer" else _COLUMNS[ROWS[written.kind]]
    is_list = ROWS[written.kind] == "list"
    piece: list[RowPair] = []
    size = 0
    for row in rows:
        row_bytes = len(row[0]) + len(row[1])
        is_full = len(piece) >= PIECE_ROWS or size + row_bytes > piece_bytes
        # The rows of a list belong together.
        if piece and is_full and not (is_list and row[0].startswith(address_in(piece[-1][0]))):
            yield columns(written, piece)
            piece, size = [], 0
        piece.append(row)
        size += row_bytes
    yield columns(written, piece)


def _value_columns(written: RowFormat, rows: list[RowPair]) -> pa.RecordBatch:
    layout, cells, expiries = without_expiries(written.layout, [cell for _, cell in rows])
    column = column_of_cells(layout, written.schema.field("value").type, cells)
    return _batch([parts_of(row_key) for row_key, _ in rows], {"value": column}, _int64(expiries))


def _list_columns(written: RowFormat, rows: list[RowPair]) -> pa.RecordBatch:
    keys: list[Parts] = []
    lists: list[list[bytes]] = []
    for address, parts in groupby(rows, key=lambda row: row[0][:-SEQUENCE_BYTES]):
        keys.append(parts_of(address))
        elements = [cell for _, row in parts for cell in decode_elements(row)]
        if sum(map(len, elements)) > MAX_ROW_BYTES:
            raise StateTooLarge(
                f"state {written.name!r} holds more than 2 GiB in one list, which cannot be a row of a full snapshot. Spread "
                "it over the entries of a MapState, or over more keys; incremental checkpoints store it as it is.",
                state=written.name,
            )
        lists.append(elements)
    layout, cells, expiries = without_expiries(written.layout, [cell for cells in lists for cell in cells])
    offsets = offsets_of([len(cells) for cells in lists])
    flat = column_of_cells(layout, written.schema.field("value").type, cells)
    column = pa.ListArray.from_arrays(offsets, flat)
    expiry = None if expiries is None else pa.ListArray.from_arrays(offsets, _int64(expiries))
    return _batch(keys, {"value": column}, expiry)


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
    layout, cells, expiries = without_expiries(written.layout, [cell for _, cell in rows])
    value_column = column_of_cells(layout, schema.field("value").type, cells)
    return _batch(keys, {"map_key": map_key_column, "value": value_column}, _int64(expiries))


def _timer_columns(written: RowFormat, rows: list[RowPair]) -> pa.RecordBatch:
    column = column_of_cells(written.layout, written.schema.field("value").type, [cell for _, cell in rows])
    return _batch([timer_parts(row_key) for row_key, _ in rows], {"value": column}, None)


_COLUMNS = {"value": _value_columns, "list": _list_columns, "map": _map_columns}


def _int64(expiries: list[int] | None) -> pa.Array | None:
    return None if expiries is None else pa.array(expiries, pa.int64())


def _batch(keys: list[Parts], columns: dict[str, pa.Array], expiry: pa.Array | None) -> pa.RecordBatch:
    if expiry is None:
        expiry = pa.nulls(len(keys))
    fields = [pa.field("key", pa.binary(), nullable=False), pa.field("namespace", pa.binary(), nullable=False)]
    fields += [pa.field(name, column.type) for name, column in columns.items()]
    fields.append(pa.field("expiry", expiry.type))
    arrays = [
        pa.array([key for key, _ in keys], pa.binary()),
        pa.array([namespace for _, namespace in keys], pa.binary()),
        *columns.values(),
        expiry,
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
