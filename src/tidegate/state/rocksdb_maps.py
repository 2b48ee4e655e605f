"""Map state over RocksDB. Executor, the task's thread, per-record path.

A map is the rows that begin with its key's address, one for each entry. What was read of a map or written to it is known:
single entries, or all of them (`whole`) once it has been walked. So an entry is read by its own key, and only walking,
counting and clearing look at all rows. A map that is too large to be kept whole is walked row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.state.declarations import ABSENT
from tidegate.state.rocksdb_cache import ENTRY_BYTES, MISSING, Changes, Generations, RocksTable
from tidegate.state.rocksdb_keys import address_in
from tidegate.state.rocksdb_rows import Cells, MapKeys, cells_for

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import MapState
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.rocksdb_keys import Addresses
    from tidegate.state.rocksdb_store import Family, Row
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


class MapChanges(Changes):
    def __init__(
        self, maps: dict[Any, MapChange], keys: MapKeys, cells: Cells, addresses: Addresses, state: str
    ) -> None:
        self._maps = maps
        self._keys = keys
        self._cells = cells
        self._addresses = addresses
        self._state = state

    def rows(self, family: Family) -> Iterable[Row]:
        key_to_cell, to_cell = self._keys.to_cell, self._cells.to_cell
        addresses = self._addresses.of_many(list(self._maps), self._state)
        for address, change in zip(addresses, self._maps.values(), strict=True):
            rows: dict[bytes, bytes | None] = {}
            if change.cleared:
                rows = dict.fromkeys((stored for stored, _ in family.scan(address)), None)
            for key, kept in change.entries.items():
                rows[address + key_to_cell(key)] = None if kept is ABSENT else to_cell(kept)
            yield from rows.items()


class RocksMaps(RocksTable):
    """Key -> map."""

    def __init__(self, declaration: MapState[Any, Any], *surroundings: Any) -> None:
        super().__init__(declaration, *surroundings)
        self.keys = MapKeys(declaration.key_type)
        self.cells = cells_for(declaration)
        self._known = Generations(self._size_of_map)
        self._dirty: dict[Any, MapChange] = {}
        self._dirty_bytes = 0
        self._dirty_limit_bytes = 0
        self._mean_entry_bytes = ENTRY_BYTES
        self.resize()

    def resize(self) -> None:
        share = self.share()
        self._known.limit_bytes = share.clean_bytes // 2
        self._dirty_limit_bytes = share.unwritten_bytes

    # -- reading ---------------------------------------------------------------------------------------------------

    def _known_of(self, key: Any) -> KnownMap:
        found = self._known.find(key)
        if found is MISSING:
            self.address(key)  # refuses a foreign key, and none
            found = KnownMap()
            self._known.remember(key, found)
        return found  # type: ignore[no-any-return]

    def entry(self, at: CurrentKey, map_key: Any) -> Any:
        key = at.key
        known = self._known_of(key)
        kept = known.entries.get(map_key, MISSING)
        if kept is MISSING:
            if known.whole:
                return ABSENT
            for changes in (self._dirty, self.handed_over):
                change = changes.get(key)
                kept = MISSING if change is None else change.of(map_key)
                if kept is not MISSING:
                    break
            else:
                cell = self.family.get(self.address(key) + self.keys.to_cell(map_key))
                kept = ABSENT if cell is None else self.cells.of_cell(cell)
            self._note(known, {map_key: kept})
        return kept

    def whole(self, key: Any) -> dict[Any, Any] | None:
        """All entries as they are kept, not the caller's own; None when they are too many to be kept."""
        known = self._known_of(key)
        if known.whole:
            return known.entries
        address = self.address(key)
        changes = [change for change in (self.handed_over.get(key), self._dirty.get(key)) if change is not None]
        entries: dict[Any, Any] = {}
        size = 0
        for row_key, cell in self.family.scan(address):
            kept = self.cells.of_cell(cell)
            entries[self.keys.of_cell(row_key[len(address) :])] = kept
            size += self._size_of(kept)
            if size > self._known.limit_bytes:
                return None
        for change in changes:  # written meanwhile or not, the rows together with these give the same
            entries = change.applied_to(entries)
        known.entries, known.whole = {}, True
        self._note(known, entries)
        return entries

    def walk(self, key: Any) -> Iterator[tuple[Any, Any]]:
        """The entries of a map that is too large, from its rows: as they are now, whatever is written later."""
        self.write_out()
        address = self.address(key)
        of_key, of_cell = self.keys.of_cell, self.cells.of_cell
        rows = self.family.scan(address)
        return ((of_key(row_key[len(address) :]), of_cell(cell)) for row_key, cell in rows)

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
            size += self._size_of(kept)
        if entries:
            self._mean_entry_bytes += (size // len(entries) - self._mean_entry_bytes) // 8
        if len(known.entries) * self._mean_entry_bytes > self._known.limit_bytes:
            known.entries, known.whole = {}, False  # one map, however often used, must not take all memory
        self._known.grow(size)
        return size

    def _size_of(self, kept: Any) -> int:
        return ENTRY_BYTES + (0 if kept is ABSENT else self.cells.size_of(kept))

    def _size_of_map(self, known: KnownMap) -> int:
        return ENTRY_BYTES + len(known.entries) * self._mean_entry_bytes

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, at: CurrentKey, entries: dict[Any, Any]) -> None:
        """Where a value is ABSENT, the entry is removed."""
        key = at.key
        known = self._known_of(key)
        change = self._dirty.get(key)
        if change is None:
            change = self._dirty[key] = MapChange()
        change.entries |= entries
        self._wrote(self._note(known, entries))

    def remove(self, at: CurrentKey, map_key: Any) -> None:
        self.put(at, {map_key: ABSENT})

    def clear(self, at: CurrentKey) -> None:
        key = at.key
        known = self._known_of(key)
        known.entries, known.whole = {}, True
        change = self._dirty[key] = MapChange()
        change.cleared = True
        self._wrote(ENTRY_BYTES)

    def _wrote(self, size_bytes: int) -> None:
        self._dirty_bytes += size_bytes
        if self._dirty_bytes > self._dirty_limit_bytes:
            self.write_out()

    def take_changes(self) -> MapChanges:
        self.resize()
        taken, self._dirty, self._dirty_bytes = self._dirty, {}, 0
        self.handed_over = taken
        return MapChanges(taken, self.keys, self.cells, self.addresses, self.declaration.name)

    def _address_in(self, row_key: bytes) -> bytes:
        return address_in(row_key)

    def _value_in(self, address: bytes, rows: Iterator[tuple[bytes, bytes]]) -> Any:
        give, of_cell, of_key = self.cells.give, self.cells.of_cell, self.keys.of_cell
        return {of_key(row_key[len(address) :]): give(of_cell(cell)) for row_key, cell in rows}

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        addresses = self.addresses.of_many(reader.keys(rows), self.declaration.name)
        to_cell, admit = self.cells.to_cell, self.cells.admit
        key_to_cell, admit_key = self.keys.to_cell, self.keys.admit
        entries = zip(addresses, reader.map_keys(rows), reader.kept(rows), strict=True)
        with self.store.lock:
            self.family.write(
                {address + key_to_cell(admit_key(key)): to_cell(admit(kept)) for address, key, kept in entries}.items()
            )

    # -- with a TTL, values are `Timed` (state/timed.py) ------------------------------------------------------------

    def forget_expired(self, row_key: bytes, now_ms: int) -> None:
        address = address_in(row_key)
        known = self._known.peek(self.addresses.table_key(address))
        if known is not MISSING:
            map_key = self.keys.of_cell(row_key[len(address) :])
            pair = known.entries.get(map_key, ABSENT)
            if pair is not ABSENT and pair[1] <= now_ms:
                del known.entries[map_key]
