"""Map state over RocksDB. Executor, the task's thread, per-record path.

A map is the rows that begin with its key's address, one for each entry. What was read of a map or written to it is known:
single entries, or all of them (`whole`) once it has been walked. So an entry is read by its own key, and only walking,
counting and clearing look at all rows. A map that is too large to be kept whole is walked row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.errors import TypeDeclarationError
from tidegate.state.declarations import ABSENT
from tidegate.state.handles import MapHandle
from tidegate.state.rocksdb_cache import ENTRY_BYTES, MISSING, Changes, Generations, RocksTable
from tidegate.state.rocksdb_keys import address_in
from tidegate.state.rocksdb_rows import Cells, MapKeys, cells_of
from tidegate.state.rocksdb_values import Intake

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import MapState
    from tidegate.state.rocksdb_keys import Addresses
    from tidegate.state.rocksdb_store import Family, Row
    from tidegate.state.sections import SectionReader

K = TypeVar("K")
V = TypeVar("V")


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
        self.cells = cells_of(declaration.value_type)
        self._known = Generations(self._settle, self._size_of_map)
        self._dirty: dict[Any, MapChange] = {}
        self._dirty_bytes = 0
        self._dirty_limit_bytes = 0
        self._handed_over: dict[Any, MapChange] = {}  #: to a snapshot that may not be settled
        self._mean_entry_bytes = ENTRY_BYTES
        self.resize()

    def resize(self) -> None:
        share = self.share()
        self._known.limit_bytes = share.clean_bytes // 2
        self._dirty_limit_bytes = share.unwritten_bytes

    def _settle(self) -> None:
        self.store.settle()
        self._handed_over = {}

    # -- reading ---------------------------------------------------------------------------------------------------

    def _known_of(self, key: Any) -> KnownMap:
        found = self._known.find(key)
        if found is MISSING:
            self.address(key)  # refuses a foreign key, and none
            found = KnownMap()
            self._known.remember(key, found)
        return found  # type: ignore[no-any-return]

    def entry(self, key: Any, map_key: Any) -> Any:
        """As it is kept, or ABSENT."""
        known = self._known_of(key)
        kept = known.entries.get(map_key, MISSING)
        if kept is MISSING:
            if known.whole:
                return ABSENT
            change = self._dirty.get(key)
            kept = MISSING if change is None else change.of(map_key)
            if kept is MISSING:
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
        entries: dict[Any, Any] = {}
        size = 0
        for row_key, cell in self.family.scan(address):
            kept = self.cells.of_cell(cell)
            entries[self.keys.of_cell(row_key[len(address) :])] = kept
            size += self._size_of(kept)
            if size > self._known.limit_bytes:
                return None
        # Settled or not, the rows together with these give the same.
        for changes in (self._handed_over, self._dirty):
            change = changes.get(key)
            if change is not None:
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
            self._settle()
            known.entries, known.whole = {}, False  # one map, however often used, must not take all memory
        self._known.grow(size)
        return size

    def _size_of(self, kept: Any) -> int:
        return ENTRY_BYTES + (0 if kept is ABSENT else self.cells.size_of(kept))

    def _size_of_map(self, known: KnownMap) -> int:
        return ENTRY_BYTES + len(known.entries) * self._mean_entry_bytes

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, key: Any, entries: dict[Any, Any]) -> None:
        """Map keys and values as they are kept; ABSENT removes."""
        known = self._known_of(key)
        change = self._dirty.get(key)
        if change is None:
            change = self._dirty[key] = MapChange()
        change.entries |= entries
        self._wrote(self._note(known, entries))

    def clear(self, key: Any) -> None:
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
        self._handed_over = taken
        return MapChanges(taken, self.keys, self.cells, self.addresses, self.declaration.name)

    def _address_in(self, row_key: bytes) -> bytes:
        return address_in(row_key)

    def _value_in(self, address: bytes, rows: Iterator[tuple[bytes, bytes]]) -> Any:
        give, of_cell, of_key = self.cells.give, self.cells.of_cell, self.keys.of_cell
        return {of_key(row_key[len(address) :]): give(of_cell(cell)) for row_key, cell in rows}

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        addresses = self.addresses.of_many(reader.keys(rows), self.declaration.name)
        admit, to_cell, key_to_cell = self.cells.admit, self.cells.to_cell, self.keys.to_cell
        admit_key = self.keys.admit
        entries = zip(addresses, reader.map_keys(rows), reader.values(rows), strict=True)
        with self.store.lock:
            self.family.write(
                {
                    address + key_to_cell(admit_key(key)): to_cell(admit(value)) for address, key, value in entries
                }.items()
            )


class RocksMap(MapHandle[K, V]):
    """Map state."""

    __slots__ = ("_admit", "_declaration", "_give", "_keys", "_table")

    def __init__(self, declaration: MapState[K, V], table: RocksMaps) -> None:
        self._declaration = declaration
        self._table = table
        self._keys = table.keys
        self._admit = Intake(declaration, table.cells).admit
        self._give = table.cells.give

    def _key(self, key: Any) -> Any:
        try:
            return self._keys.admit(key)
        except TypeDeclarationError as error:
            raise TypeDeclarationError(
                f"state {self._declaration.name!r} ({self._declaration.line}): {error.message}",
                **{**error.context, "state": self._declaration.name},
            ) from None

    def get(self, key: K, default: V | None = None) -> V | None:
        kept = self._table.entry(self._table.current_key(), self._key(key))
        return default if kept is ABSENT else self._give(kept)

    def put(self, key: K, value: V) -> None:
        self._table.put(self._table.current_key(), {self._key(key): self._admit(value)})

    def put_all(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        kept = {self._key(key): self._admit(value) for key, value in pairs}  # all or none
        if kept:
            self._table.put(self._table.current_key(), kept)

    def remove(self, key: K) -> None:
        self._table.put(self._table.current_key(), {self._key(key): ABSENT})

    def contains(self, key: K) -> bool:
        return self._table.entry(self._table.current_key(), self._key(key)) is not ABSENT

    def items(self) -> Iterator[tuple[K, V]]:
        give = self._give
        return ((key, give(kept)) for key, kept in self._walk())

    def keys(self) -> Iterator[K]:
        return (key for key, _ in self._walk())

    def values(self) -> Iterator[V]:
        give = self._give
        return (give(kept) for _, kept in self._walk())

    def _walk(self) -> Iterable[tuple[Any, Any]]:
        """The entries as they are now; what is changed meanwhile is not seen."""
        key = self._table.current_key()
        entries = self._table.whole(key)
        return list(entries.items()) if entries is not None else self._table.walk(key)

    def clear(self) -> None:
        self._table.clear(self._table.current_key())

    def __len__(self) -> int:
        key = self._table.current_key()
        entries = self._table.whole(key)
        return len(entries) if entries is not None else sum(1 for _ in self._table.walk(key))
