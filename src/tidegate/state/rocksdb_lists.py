"""List state over sorted runs. Executor, the task's thread, per-record path.

A list is the rows of its key, each with some elements, in the order of their sequence numbers. Adding to a list reads nothing:
what was added since the last write becomes one more row. A list that is read and has many rows is written again as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.state.cold_keys import ELEMENTS
from tidegate.state.hot_table import HotRows
from tidegate.state.rocksdb_cache import ENTRY_BYTES, MISSING
from tidegate.state.rocksdb_keys import SEQUENCE_BYTES
from tidegate.state.rocksdb_rows import decode_elements, encode_elements, expiry_of, live_elements

if TYPE_CHECKING:
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.hot_table import Rows
    from tidegate.state.runs import Columns
    from tidegate.state.sections import SectionReader

_ELEMENT_BYTES = 64  #: a place in a list and a small object
_ROWS_TO_JOIN = 16


class ListChange:
    """What happened to one list since the last write."""

    __slots__ = ("added", "part", "replaced", "rewritten")

    def __init__(self, part: bytes, replaced: bool, added: list[Any]) -> None:
        self.part = part  #: the sequence number of what was added
        self.replaced = replaced  #: `added` is the whole list
        self.added = added  #: as they are kept
        self.rewritten: dict[bytes, bytes | None] = {}  #: older rows without what has expired


class RocksLists(HotRows):
    """Key -> list; known are whole lists."""

    tiers = (ELEMENTS,)
    _part = b""  #: of all that is dirty

    def whole(self, at: CurrentKey) -> list[Any]:
        key = self.key_at(at)
        known = self.known.find(key)
        if known is MISSING:
            known = self._read(key)
        return known  # type: ignore[no-any-return]

    def _read(self, key: Any) -> list[Any]:
        changes = self.changes_of(key)
        stored = [] if any(change.replaced for change in changes) else self._stored(key)
        rows = {part: self._elements(row) for part, row in stored}
        count = len(rows)
        for change in reversed(changes):
            if change.replaced:
                rows = {}
            rows |= {part: self._elements(row) if row else [] for part, row in change.rewritten.items()}
            rows[change.part] = change.added
        elements = [each for part in sorted(rows) for each in rows[part]]
        self.known.remember(key, elements)
        if count > _ROWS_TO_JOIN:
            self._change(key, ListChange(self._new_part(), True, list(elements)))
        return elements

    def _elements(self, row: bytes) -> list[Any]:
        of_cell = self.cells.of_cell
        return [of_cell(cell) for cell in decode_elements(row)]

    def _size_of(self, elements: list[Any]) -> int:
        return ENTRY_BYTES + sum(map(self.cells.size_of, elements)) + _ELEMENT_BYTES * len(elements)

    def add(self, at: CurrentKey, kept: list[Any]) -> None:
        key = self.key_at(at)
        if not kept:
            return
        change = self.dirty.get(key)
        if change is None:
            change = self.dirty[key] = ListChange(self._new_part(), False, [])
        change.added += kept
        size = self._size_of(kept)
        known = self.known.find(key)
        if known is not MISSING:
            known += kept
            self.known.grow(size)
            if len(known) * _ELEMENT_BYTES > self.known.limit_bytes:
                self.known.forget(key)  # one list, however often used, must not take all memory
        self.dirty_bytes += size
        self._bound()

    def replace(self, at: CurrentKey, kept: list[Any]) -> None:
        key = self.key_at(at)
        self.known.remember(key, list(kept))
        self._change(key, ListChange(self._new_part(), True, kept))

    def _change(self, key: Any, change: ListChange) -> None:
        self.dirty[key] = change
        self.dirty_bytes += self._size_of(change.added)
        self._bound()

    def _new_part(self) -> bytes:
        """The same for all changes that are written together; only grows, also over restores."""
        if not self.dirty:
            self._part = self.store.next_sequence().to_bytes(SEQUENCE_BYTES, "big")
        return self._part

    def _rows_of(self, key: Any, change: ListChange) -> Mapping[bytes, bytes | None]:
        rows: dict[bytes, bytes | None] = {}
        if change.replaced:
            rows = dict.fromkeys((part for part, _ in self.cold.parts(key)), None)
        rows |= change.rewritten
        if change.added:
            to_cell = self.cells.to_cell
            rows[change.part] = encode_elements([to_cell(kept) for kept in change.added])
        return rows

    def _value_of(self, rows: Rows) -> Any:
        give = self.cells.give
        return [give(kept) for _, row in sorted(rows) for kept in self._elements(row)]

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        to_cell, admit, first = self.cells.to_cell, self.cells.admit, bytes(SEQUENCE_BYTES)
        keys, cells = [], []
        for key, elements in zip(reader.keys(rows), reader.kept_lists(rows), strict=True):
            if elements:
                keys.append(key)
                cells.append(encode_elements([to_cell(admit(element)) for element in elements]))
        self.load_parts(keys, [[first]] * len(keys), pa.array(cells, pa.large_binary()))

    # -- with a TTL, elements are `Timed` (state/ttl.py) ----------------------------------------------------------

    def _is_live(self, cell: bytes, now_ms: int) -> bool:
        return any(expiry_of(element) > now_ms for element in decode_elements(cell))

    def _forget_expired(self, tier: str, rows: Columns, newer: Sequence[Mapping[Any, Any]], now_ms: int) -> int:
        forgotten = 0
        for (key, part), row in zip(self.cold.split(rows.identity), rows.cell.to_pylist(), strict=True):
            live, _, expired = live_elements(row, now_ms)
            changes = [of_key[key] for of_key in newer if key in of_key] if expired else []
            if expired and not any(change.replaced or part in change.rewritten for change in changes):
                change = self.dirty.get(key)
                if change is None:
                    change = self.dirty[key] = ListChange(self._new_part(), False, [])
                change.rewritten[part] = live
                self.known.forget(key)
                self.dirty_bytes += ENTRY_BYTES
                forgotten += expired
        return forgotten
