"""Cells with an expiry: how a state with a TTL is stored in RocksDB. Pure; executor.

    cell = when it expires, in ms since 1970 (8 bytes, little-endian) + the cell of the value (state/rocksdb_rows.py)

Of a list each element has its own. In memory a pair is kept: the value as it is kept without a TTL, and the expiry.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.state.rocksdb_rows import Cells, cells_of, decode_elements, encode_elements

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import Declaration
    from tidegate.state.sections import SectionReader

EXPIRING = "expiring "  #: how the layout of a state with a TTL begins
_EXPIRY = struct.Struct("<q")


class ExpiringCells(Cells):
    """Of a state with a TTL: what is kept is a pair, the value as the inner cells keep it and its expiry."""

    as_objects = False

    def __init__(self, inner: Cells, lifetime_ms: int) -> None:
        super().__init__(inner.type)
        self.inner = inner
        self.layout = EXPIRING + inner.layout
        self._lifetime_ms = lifetime_ms

    def admit(self, value: Any) -> Any:
        raise AssertionError("a value without its expiry")

    def give(self, kept: Any) -> Any:
        return self.inner.give(kept[0])

    def to_cell(self, kept: Any) -> bytes:
        return _EXPIRY.pack(kept[1]) + self.inner.to_cell(kept[0])

    def of_cell(self, cell: bytes) -> Any:
        return self.inner.of_cell(cell[_EXPIRY.size :]), expiry_of(cell)

    def size_of(self, kept: Any) -> int:
        return self.inner.size_of(kept[0]) + 2 * _EXPIRY.size

    def admit_stored(self, rows: pa.RecordBatch, reader: SectionReader) -> list[Any]:
        expiries = reader.expiries(rows, reader.now_ms + self._lifetime_ms)
        return list(zip(self.inner.admit_stored(rows, reader), expiries, strict=True))

    def admit_stored_lists(self, rows: pa.RecordBatch, reader: SectionReader) -> list[list[Any]]:
        admit = self.inner.admit
        lists = reader.expiring_lists(rows, reader.now_ms + self._lifetime_ms)
        return [list(zip(map(admit, elements), expiries, strict=True)) for elements, expiries in lists]


def cells_for(declaration: Declaration) -> Cells:
    """The cells of a declared state's values."""
    cells = cells_of(declaration.value_type)
    return cells if declaration.ttl is None else ExpiringCells(cells, declaration.ttl.milliseconds)


def expiry_of(cell: bytes) -> int:
    """Of a cell of an expiring layout."""
    return _EXPIRY.unpack_from(cell)[0]  # type: ignore[no-any-return]


def live_cell(cell: bytes, now_ms: int) -> bytes | None:
    """The cell, None when it has expired."""
    return cell if expiry_of(cell) > now_ms else None


def live_elements(row: bytes, now_ms: int) -> tuple[bytes | None, int, int]:
    """A row of a list state without the elements that have expired (None: all have), how many it has, how many have."""
    elements = decode_elements(row)
    live = [cell for cell in elements if expiry_of(cell) > now_ms]
    expired = len(elements) - len(live)
    if not expired:
        return row, len(elements), 0
    return (encode_elements(live) if live else None), len(elements), expired


def without_expiries(layout: str, cells: Sequence[bytes]) -> tuple[str, Sequence[bytes], list[int] | None]:
    """The inner layout, the inner cells and the expiries; None for a layout that does not expire."""
    if not layout.startswith(EXPIRING):
        return layout, cells, None
    return layout.removeprefix(EXPIRING), [cell[_EXPIRY.size :] for cell in cells], list(map(expiry_of, cells))
