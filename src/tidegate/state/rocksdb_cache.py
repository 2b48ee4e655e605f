"""What is in memory of state that may be larger than it, bounded in bytes. Part of the RocksDB backend.

Executor, the task's thread only. What was read or written is kept in two generations, which makes "least recently used" cost
nothing on a hit:

    find:    in `young`; else in `old`, and then it moves to `young`
    full:    `young` becomes `old`, and the old `old` is forgotten

What is known is only ever a short cut, and may be forgotten at any time. What is changed and not written is elsewhere.

Sizes are estimates (Python does not tell): a fixed sum for an entry's dictionary slot, key and small object, and the length
of what is long.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tidegate.state.heap_tables import NO_KEY, CurrentKey, refuse_without_key

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.declarations import Declaration
    from tidegate.state.rocksdb_keys import Addresses
    from tidegate.state.rocksdb_options import Share
    from tidegate.state.rocksdb_store import RocksStore
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


@dataclass(frozen=True, slots=True)
class TableContext:
    """What the tables of a backend have in common."""

    store: RocksStore
    addresses: Addresses
    share: Callable[[], Share]


class Table(ABC):
    """All keys of one state: what of it is in memory, over what is on the disk."""

    declaration: Declaration

    def __init__(self, declaration: Declaration, context: TableContext) -> None:
        self.declaration = declaration
        self.store = context.store
        self.addresses = context.addresses
        self.share = context.share
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
