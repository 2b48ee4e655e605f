"""Map state over sorted runs. Executor, the task's thread, per-record path.

A map is the rows of its key, one for each entry. What was read of a map or written to it is known: single entries, or all of
them (`whole`) once it has been walked. So an entry is read by its own key, and only walking, counting and clearing look at all
rows. A map that is too large to be kept whole is walked row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.state.cold_keys import ENTRIES
from tidegate.state.declarations import ABSENT
from tidegate.state.hot_table import HotRows
from tidegate.state.rocksdb_cache import ENTRY_BYTES, MISSING
from tidegate.state.rocksdb_rows import MapKeys, expiries_of, expiry_of
from tidegate.state.runs import take

if TYPE_CHECKING:
    from tidegate.state.declarations import StoredMap
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.hot_table import Rows
    from tidegate.state.rocksdb_cache import TableContext
    from tidegate.state.runs import Columns
    from tidegate.state.sections import SectionReader


class KnownMap:
    """What is in memory of one map, with all changes."""

    __slots__ = ("entries", "whole")

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}  #: map key -> value as kept; ABSENT only while not whole
        self.whole = False  #: there are no other entries


class MapChange:
    """What happened to one map since the last write."""

    __slots__ = ("cleared", "entries")

    def __init__(self) -> None:
        self.cleared = False  #: before `entries` were put
        self.entries: dict[Any, Any] = {}  #: map key -> value as kept, ABSENT where removed

    def of(self, map_key: Any) -> Any:
        """ABSENT where it is known to be none, MISSING where the rows must be asked."""
        return self.entries.get(map_key, ABSENT if self.cleared else MISSING)

    def applied_to(self, entries: dict[Any, Any]) -> dict[Any, Any]:
        changed = {} if self.cleared else entries
        for map_key, kept in self.entries.items():
            if kept is ABSENT:
                changed.pop(map_key, None)
            else:
                changed[map_key] = kept
        return changed


class RocksMaps(HotRows):
    """Key -> map; known are `KnownMap`s."""

    tiers = (ENTRIES,)

    def __init__(self, declaration: StoredMap, context: TableContext) -> None:
        self.keys = MapKeys(declaration.key_type)
        self._mean_entry_bytes = ENTRY_BYTES
        super().__init__(declaration, context)

    # -- reading ---------------------------------------------------------------------------------------------------

    def _known_of(self, key: Any) -> KnownMap:
        found = self.known.find(key)
        if found is MISSING:
            self.address(key)  # refuses a foreign key, and none
            found = KnownMap()
            self.known.remember(key, found)
        return found  # type: ignore[no-any-return]

    def entry(self, at: CurrentKey, map_key: Any) -> Any:
        key = at.key
        known = self._known_of(key)
        kept = known.entries.get(map_key, MISSING)
        if kept is MISSING:
            if known.whole:
                return ABSENT
            changes = (change.of(map_key) for change in self.changes_of(key))
            kept = next((kept for kept in changes if kept is not MISSING), MISSING)
            if kept is MISSING:
                kept = self._stored_entry(key, map_key)
            self._note(known, {map_key: kept})
        return kept

    def _stored_entry(self, key: Any, map_key: Any) -> Any:
        self._missed()
        if key in self._ahead and (entries := self.whole(key)) is not None:
            return entries.get(map_key, ABSENT)
        cell = self.cold.get_part(key, self.keys.to_cell(map_key))
        return ABSENT if cell is None else self.cells.of_cell(cell)

    def _is_known(self, key: Any) -> bool:
        known = self.known.peek(key)
        return known is not MISSING and known.whole

    def whole(self, key: Any) -> dict[Any, Any] | None:
        """All entries as they are kept, not the caller's own; None when they are too many to be kept."""
        known = self._known_of(key)
        if known.whole:
            return known.entries
        changes = self.changes_of(key)
        entries: dict[Any, Any] = {}
        size = 0
        for part, cell in () if any(change.cleared for change in changes) else self._stored(key):
            kept = self.cells.of_cell(cell)
            entries[self.keys.of_cell(part)] = kept
            size += self._entry_size(kept)
            if size > self.known.limit_bytes:
                return None
        for change in reversed(changes):
            entries = change.applied_to(entries)
        known.entries, known.whole = {}, True
        self._note(known, entries)
        return entries

    def walk(self, key: Any) -> Iterator[tuple[Any, Any]]:
        """The entries of a map that is too large, from its rows: as they are now, whatever is written later."""
        self.write_out()
        self.cold.settle()
        of_key, of_cell = self.keys.of_cell, self.cells.of_cell
        return ((of_key(part), of_cell(cell)) for part, cell in self.cold.parts(key))

    def seen(self, at: CurrentKey) -> Iterable[tuple[Any, Any]]:
        entries = self.whole(at.key)
        return list(entries.items()) if entries is not None else self.walk(at.key)

    def count(self, at: CurrentKey) -> int:
        entries = self.whole(at.key)
        return len(entries) if entries is not None else sum(1 for _ in self.walk(at.key))

    def _note(self, known: KnownMap, entries: dict[Any, Any]) -> int:
        """Add to what is known of a map; returns the size of it."""
        size = 0
        for map_key, kept in entries.items():
            if kept is ABSENT and known.whole:
                known.entries.pop(map_key, None)
            else:
                known.entries[map_key] = kept
            size += self._entry_size(kept)
        if entries:
            self._mean_entry_bytes += (size // len(entries) - self._mean_entry_bytes) // 8
        if len(known.entries) * self._mean_entry_bytes > self.known.limit_bytes:
            known.entries, known.whole = {}, False  # one map, however often used, must not take all memory
        self.known.grow(size)
        return size

    def _entry_size(self, kept: Any) -> int:
        return ENTRY_BYTES + (0 if kept is ABSENT else self.cells.size_of(kept))

    def _size_of(self, known: KnownMap) -> int:
        return ENTRY_BYTES + len(known.entries) * self._mean_entry_bytes

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, at: CurrentKey, entries: dict[Any, Any]) -> None:
        """Where a value is ABSENT, the entry is removed."""
        self._change(at.key, entries)
        self._bound()

    def _change(self, key: Any, entries: dict[Any, Any]) -> None:
        known = self._known_of(key)
        change = self.dirty.get(key)
        if change is None:
            change = self.dirty[key] = MapChange()
        change.entries |= entries
        self.dirty_bytes += self._note(known, entries)

    def remove(self, at: CurrentKey, map_key: Any) -> None:
        self.put(at, {map_key: ABSENT})

    def clear(self, at: CurrentKey) -> None:
        key = at.key
        known = self._known_of(key)
        known.entries, known.whole = {}, True
        change = self.dirty[key] = MapChange()
        change.cleared = True
        self.dirty_bytes += ENTRY_BYTES
        self._bound()

    def _rows_of(self, key: Any, change: MapChange) -> Mapping[bytes, bytes | None]:
        key_to_cell, to_cell = self.keys.to_cell, self.cells.to_cell
        rows: dict[bytes, bytes | None] = {}
        if change.cleared:
            rows = dict.fromkeys((part for part, _ in self.cold.parts(key)), None)
        for map_key, kept in change.entries.items():
            rows[key_to_cell(map_key)] = None if kept is ABSENT else to_cell(kept)
        return rows

    def _value_of(self, rows: Rows) -> Any:
        give, of_cell, of_key = self.cells.give, self.cells.of_cell, self.keys.of_cell
        return {of_key(part): give(of_cell(cell)) for part, cell in rows}

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        to_cell, admit = self.cells.to_cell, self.cells.admit
        key_to_cell, admit_key = self.keys.to_cell, self.keys.admit
        parts = [[key_to_cell(admit_key(key))] for key in reader.map_keys(rows)]
        cells = pa.array([to_cell(admit(kept)) for kept in reader.kept(rows)], pa.large_binary())
        self.load_parts(reader.keys(rows), parts, cells)

    # -- with a TTL, values are `Timed` (state/ttl.py) ------------------------------------------------------------

    def _is_live(self, cell: bytes, now_ms: int) -> bool:
        return expiry_of(cell) > now_ms

    def _forget_expired(self, tier: str, rows: Columns, newer: Sequence[Mapping[Any, Any]], now_ms: int) -> int:
        forgotten = 0
        expired = np.flatnonzero(expiries_of(rows.cell) <= now_ms)
        for key, part in self.cold.split(take(rows.identity, expired)):
            map_key = self.keys.of_cell(part)
            changes = [of_key[key] for of_key in newer if key in of_key]
            if all(change.of(map_key) is MISSING for change in changes):
                self._change(key, {map_key: ABSENT})
                forgotten += 1
        return forgotten
