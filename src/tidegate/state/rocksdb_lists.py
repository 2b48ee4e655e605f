"""List state over RocksDB. Executor, the task's thread, per-record path.

A list is the rows that begin with its key's address, each with some elements, in the order of their sequence numbers.
Adding to a list reads nothing: what was added since the last write becomes one more row. (Flink uses RocksDB's merge for
this, which rocksdict does not have.) A list that is read and has many rows is written again as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tidegate.state.rocksdb_cache import ENTRY_BYTES, MISSING, Changes, Generations, RocksTable
from tidegate.state.rocksdb_rows import (
    Cells,
    cells_for,
    decode_elements,
    encode_elements,
    expiry_of,
    live_elements,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import ListState
    from tidegate.state.heap_tables import CurrentKey
    from tidegate.state.rocksdb_keys import Addresses
    from tidegate.state.rocksdb_store import Family, Row
    from tidegate.state.sections import SectionReader

SEQUENCE_BYTES = 8
_ELEMENT_BYTES = 64  #: a place in a list and a small object
_ROWS_TO_JOIN = 16


class ListChange:
    """What happened to one list since the last write."""

    __slots__ = ("added", "replaced")

    def __init__(self, replaced: bool, added: list[Any]) -> None:
        self.replaced = replaced  #: `added` is the whole list
        self.added = added  #: as they are kept


class ListChanges(Changes):
    def __init__(
        self, lists: dict[Any, ListChange], sequence: int, cells: Cells, addresses: Addresses, state: str
    ) -> None:
        self._lists = lists
        self._sequence = sequence.to_bytes(SEQUENCE_BYTES, "big")
        self._cells = cells
        self._addresses = addresses
        self._state = state

    def rows(self, family: Family) -> Iterable[Row]:
        to_cell = self._cells.to_cell
        addresses = self._addresses.of_many(list(self._lists), self._state)
        for address, change in zip(addresses, self._lists.values(), strict=True):
            row_key = address + self._sequence
            if change.replaced:
                for stored, _ in family.scan(address):
                    if stored != row_key:  # it is there when settling failed half-way and is tried again
                        yield stored, None
            if change.added:
                yield row_key, encode_elements([to_cell(kept) for kept in change.added])
            elif change.replaced:
                yield row_key, None


class RocksLists(RocksTable):
    """Key -> list."""

    def __init__(self, declaration: ListState[Any], *surroundings: Any) -> None:
        super().__init__(declaration, *surroundings)
        self.cells = cells_for(declaration)
        self._wholes = Generations(self._size_of)  #: whole lists, with all changes
        self._dirty: dict[Any, ListChange] = {}
        self._dirty_bytes = 0
        self._dirty_limit_bytes = 0
        self._handed_over_as = b""  #: the sequence number, which ends the keys of the rows that are made of it
        self.resize()

    def resize(self) -> None:
        share = self.share()
        self._wholes.limit_bytes = share.clean_bytes // 2
        self._dirty_limit_bytes = share.unwritten_bytes

    def whole(self, at: CurrentKey) -> list[Any]:
        key = self.key_at(at)
        known = self._wholes.find(key)
        if known is MISSING:
            known = self._read(key)
        return known  # type: ignore[no-any-return]

    def _read(self, key: Any) -> list[Any]:
        address = self.address(key)
        handed_over, change = self.handed_over.get(key), self._dirty.get(key)
        elements: list[Any] = []
        rows = 0
        if not any(newer is not None and newer.replaced for newer in (handed_over, change)):
            # A row of what was handed over may be there or not yet: it is taken from memory in any case.
            passed_over = b"" if handed_over is None else address + self._handed_over_as
            of_cell = self.cells.of_cell
            for row_key, row in self.family.scan(address):
                if row_key != passed_over:
                    elements += [of_cell(cell) for cell in decode_elements(row)]
                    rows += 1
        for newer in (handed_over, change):
            if newer is not None:
                elements = elements + newer.added if not newer.replaced else list(newer.added)
        self._wholes.remember(key, elements)
        if rows > _ROWS_TO_JOIN:
            self._dirty[key] = ListChange(True, list(elements))
            self._wrote(self._size_of(elements))
        return elements

    def _size_of(self, elements: list[Any]) -> int:
        return ENTRY_BYTES + sum(map(self.cells.size_of, elements)) + _ELEMENT_BYTES * len(elements)

    def add(self, at: CurrentKey, kept: list[Any]) -> None:
        key = self.key_at(at)
        if not kept:
            return
        change = self._dirty.get(key)
        if change is None:
            change = self._dirty[key] = ListChange(False, [])
        change.added += kept
        size = self._size_of(kept)
        known = self._wholes.find(key)
        if known is not MISSING:
            known += kept
            self._wholes.grow(size)
            if len(known) * _ELEMENT_BYTES > self._wholes.limit_bytes:
                self._wholes.forget(key)  # one list, however often used, must not take all memory
        self._wrote(size)

    def replace(self, at: CurrentKey, kept: list[Any]) -> None:
        key = self.key_at(at)
        self._dirty[key] = ListChange(True, kept)
        self._wholes.remember(key, list(kept))
        self._wrote(self._size_of(kept))

    def _wrote(self, size_bytes: int) -> None:
        self._dirty_bytes += size_bytes
        if self._dirty_bytes > self._dirty_limit_bytes:
            self.write_out()

    def take_changes(self) -> ListChanges:
        self.resize()
        taken, self._dirty, self._dirty_bytes = self._dirty, {}, 0
        sequence = self.store.next_sequence() if taken else 0
        self._handed_over_as = sequence.to_bytes(SEQUENCE_BYTES, "big")
        self.handed_over = taken
        return ListChanges(taken, sequence, self.cells, self.addresses, self.declaration.name)

    def _address_in(self, row_key: bytes) -> bytes:
        return row_key[:-SEQUENCE_BYTES]

    def _value_in(self, address: bytes, rows: Iterator[tuple[bytes, bytes]]) -> Any:
        give, of_cell = self.cells.give, self.cells.of_cell
        return [give(of_cell(cell)) for _, row in rows for cell in decode_elements(row)]

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        addresses = self.addresses.of_many(reader.keys(rows), self.declaration.name)
        to_cell, admit, first = self.cells.to_cell, self.cells.admit, bytes(SEQUENCE_BYTES)
        with self.store.lock:
            self.family.write(
                [
                    (address + first, encode_elements([to_cell(admit(element)) for element in elements]))
                    for address, elements in zip(addresses, reader.kept_lists(rows), strict=True)
                    if elements
                ]
            )

    # -- with a TTL, elements are `Timed` (state/timed.py) ----------------------------------------------------------

    def is_live(self, cell: bytes, now_ms: int) -> bool:
        return any(expiry_of(element) > now_ms for element in decode_elements(cell))

    def swept(self, cell: bytes, now_ms: int) -> tuple[bytes | None, int, int]:
        return live_elements(cell, now_ms)

    def forget_expired(self, row_key: bytes, now_ms: int) -> None:
        self._wholes.forget(self.addresses.table_key(self._address_in(row_key)))
