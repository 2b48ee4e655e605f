"""What of RocksDB's rows is in memory as Python objects, bounded in bytes. Part of the RocksDB backend.

Executor, the task's thread only. A handle reads and writes here; the rows are read when something is not here, and
written when there is too much of it, or for a snapshot. So a key that is in use costs what it costs on the heap.

What was read or written is kept in two generations, which makes "least recently used" cost nothing on a hit:

    find:    in `young`; else in `old`, and then it moves to `young`
    full:    `young` becomes `old`, and the old `old` is forgotten

What is known is only ever a short cut, and may be forgotten at any time. What is changed and not written is elsewhere:

    dirty         since the changes were last taken
    handed over   taken by a snapshot, until its thread, or whoever comes first, has written them

Invariant. A read asks what is known, then `dirty`, then `handed_over`, then the rows, in this order: each is older than the
           one before it. `handed_over` is looked at before the rows are, because it may be written, and then is emptied,
           at any moment in between: what is not in it any more is in the rows.

Sizes are estimates (Python does not tell): a fixed sum for an entry's dictionary slot, key and small object, and the length
of what is long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tidegate.state.heap_tables import NO_KEY, CurrentKey, refuse_without_key
from tidegate.state.namespaces import is_namespaced
from tidegate.state.rocksdb_keys import group_prefix
from tidegate.state.rocksdb_rows import expiry_of, live_cell

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import Declaration
    from tidegate.state.rocksdb_keys import Addresses
    from tidegate.state.rocksdb_options import Share
    from tidegate.state.rocksdb_store import Family, RocksStore, Row
    from tidegate.state.sections import SectionReader

ENTRY_BYTES = 200  #: a dictionary slot with a key and a small object


class _Missing:
    __slots__ = ()


#: Nobody knows: look at the rows. (What is known to have no value is ABSENT.)
MISSING: Final[Any] = _Missing()


class Generations:
    """Key -> what is known of it; forgets what has not been used for long."""

    __slots__ = ("_size_of", "limit_bytes", "old", "weight_bytes", "young")

    def __init__(self, size_of: Callable[[Any], int]) -> None:
        self.young: dict[Any, Any] = {}
        self.old: dict[Any, Any] = {}
        self.weight_bytes = 0  #: of `young`
        self.limit_bytes = 0  #: of each of the two
        self._size_of = size_of

    def find(self, key: Any) -> Any:
        """MISSING when it is not here."""
        found = self.young.get(key, MISSING)
        if found is MISSING:
            found = self.old.pop(key, MISSING)
            if found is not MISSING:
                self.remember(key, found)
        return found

    def remember(self, key: Any, known: Any) -> None:
        self.young[key] = known
        self.grow(self._size_of(known))

    def remember_all(self, known: dict[Any, Any], entry_bytes: int) -> None:
        before = len(self.young)
        self.young.update(known)
        self.grow((len(self.young) - before) * entry_bytes)

    def forget(self, key: Any) -> None:
        self.young.pop(key, None)
        self.old.pop(key, None)

    def peek(self, key: Any) -> Any:
        """As `find`, but not a use of it."""
        found = self.young.get(key, MISSING)
        return self.old.get(key, MISSING) if found is MISSING else found

    def grow(self, size_bytes: int) -> None:
        """Something in `young` has become larger."""
        self.weight_bytes += size_bytes
        if self.weight_bytes > self.limit_bytes:
            self.old, self.young = self.young, {}
            self.weight_bytes = 0

    def __len__(self) -> int:
        return len(self.young) + len(self.old)


class Swept(NamedTuple):
    """Of a few steps over the entries of a table."""

    is_round: bool  #: the next step begins anew
    looked_at: int
    forgotten: int


class Table(ABC):
    """All keys of one state: what of it is in memory, over what is on the disk."""

    declaration: Declaration

    def __init__(
        self,
        declaration: Declaration,
        store: RocksStore,
        addresses: Addresses,
        current: CurrentKey,
        share: Callable[[], Share],
    ) -> None:
        self.declaration = declaration
        self.store = store
        self.addresses = addresses
        self.current = current
        self.share = share
        self.rebind()

    @abstractmethod
    def rebind(self) -> None:
        """The store has opened a database."""

    @abstractmethod
    def take_changes(self) -> Any:
        """The changes since the last time, which from here on are the caller's to write."""

    @abstractmethod
    def write_out(self) -> None:
        """Too much is changed and not written."""

    @abstractmethod
    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        """Write stored rows; nothing of them is in memory."""

    @abstractmethod
    def entries(self) -> Iterator[tuple[Any, Any]]:
        """Every key with what it holds, from the disk."""

    @abstractmethod
    def live_keys(self, now_ms: int) -> Iterator[Any]:
        """The keys in the empty namespace with something that has not expired, from the disk as it is at the first step."""

    @abstractmethod
    def row_count(self) -> int:
        """An estimate."""

    @abstractmethod
    def resize(self) -> None:
        """The share of memory has changed."""

    def close(self) -> None:
        """Once or more."""

    def key_at(self, at: CurrentKey) -> Any:
        """:raises ConfigurationError: when no key is current."""
        key = at.key
        if key is NO_KEY:
            refuse_without_key()
        return key

    def address(self, key: Any) -> bytes:
        if key is NO_KEY:
            refuse_without_key()
        return self.addresses.of(key, self.declaration.name)


class Changes(ABC):
    """What a table of rows has changed since it was asked before. Read once, in any thread, under the store's lock."""

    @abstractmethod
    def rows(self, family: Family) -> Iterable[Row]:
        """Each row's key at most once."""


class RocksTable(Table):
    """A state whose cold part is rows in a column family."""

    family: Family
    _swept_to: bytes | None = None

    def __init__(self, declaration: Declaration, *surroundings: Any) -> None:
        #: Changes that were taken and may not be on the disk yet, by key. Filled by `take_changes`, emptied by `written`, which
        #: may come from the snapshot's thread: a read takes the dictionary once.
        self.handed_over: dict[Any, Any] = {}
        super().__init__(declaration, *surroundings)

    def rebind(self) -> None:
        self.family = self.store.family(self.declaration)

    def write(self, changes: Changes) -> None:
        """Write what was taken. Under the store's lock, in any thread."""
        self.family.write(changes.rows(self.family))

    def written(self) -> None:
        """What was taken is on the disk. Under the store's lock, in any thread."""
        self.handed_over = {}

    def write_out(self) -> None:
        with self.store.lock:
            self.store.settle()
            self.write(self.take_changes())
            self.written()

    def row_count(self) -> int:
        return self.family.rows.property_int_value("rocksdb.estimate-num-keys") or 0

    def entries(self) -> Iterator[tuple[Any, Any]]:
        for address, of_key in self._rows_by_address():
            yield self.addresses.table_key(address), self._value_in(address, of_key)

    def live_keys(self, now_ms: int) -> Iterator[Any]:
        expires = self.declaration.ttl is not None
        for address, rows in self._rows_by_address():
            key = self.addresses.table_key(address)
            if not is_namespaced(key) and (not expires or any(self.is_live(cell, now_ms) for _, cell in rows)):
                yield key

    # -- with a TTL ------------------------------------------------------------------------------------------------

    def is_live(self, cell: bytes, now_ms: int) -> bool:
        """Whether a row still has something that has not expired."""
        return expiry_of(cell) > now_ms

    def swept(self, cell: bytes, now_ms: int) -> tuple[bytes | None, int, int]:
        """What is to stay of a row (None: nothing), how many entries it has, how many of them have expired."""
        kept = live_cell(cell, now_ms)
        return kept, 1, int(kept is None)

    def forget_expired(self, row_key: bytes, now_ms: int) -> None:
        """What is in memory of a row that was swept goes, unless it is newer."""
        raise NotImplementedError

    def sweep(self, budget_entries: int, now_ms: int) -> Swept:
        """Rows, of which a list may have several elements in one. Nothing is done while a snapshot is unsettled: to write now
        would make the task wait for it. And when none is, a row is the newest that there is of it, but for what is changed and
        not written, which is written later.
        """
        looked_at = forgotten = 0
        if not self.store.is_settled:
            return Swept(True, 0, 0)
        changed: list[Row] = []
        own = self.addresses.own
        start, self._swept_to = self._swept_to or group_prefix(own.start), None
        stop = group_prefix(own.stop)
        for row_key, cell in self.family.scan_between(start, stop) if self.family.holds_rows else ():
            kept, entries, expired = self.swept(cell, now_ms)
            looked_at += entries
            if expired:
                forgotten += expired
                changed.append((row_key, kept))
            if looked_at >= budget_entries:
                self._swept_to = row_key + b"\x00"
                break
        if changed:
            with self.store.lock:
                self.family.write(changed)
            for row_key, _ in changed:
                self.forget_expired(row_key, now_ms)
        return Swept(self._swept_to is None, looked_at, forgotten)

    def _rows_by_address(self) -> Iterator[tuple[bytes, Iterator[tuple[bytes, bytes]]]]:
        self.write_out()
        own = self.addresses.own
        rows = self.family.scan_between(group_prefix(own.start), group_prefix(own.stop))
        return groupby(rows, key=lambda row: self._address_in(row[0]))

    def _address_in(self, row_key: bytes) -> bytes:
        return row_key

    @abstractmethod
    def _value_in(self, address: bytes, rows: Iterator[tuple[bytes, bytes]]) -> Any:
        """What the rows of one key hold, as user code would see it."""
