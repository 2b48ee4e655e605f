"""Tables of Python dictionaries, in chunks that a snapshot can share. Part of the heap backend.

Executor. The task's thread reads and writes; a `FrozenDicts` is written and released by the snapshot's thread.

A table is a fixed number of chunks, dictionaries from key (normalised, in its namespace) to what is kept. Another thread
reads a snapshot of them while the task goes on:

    freeze:  no chunk is owned any more
    write:   before the first change of a chunk that is not owned, its entries are saved in every live snapshot that has
             not saved it; then it is owned
    read:    the snapshot's thread takes what was saved; else a copy of the chunk, if nothing was saved by then
    release: with the last snapshot gone, every chunk is owned again

Invariant. A chunk that is not owned has not changed since the newest live snapshot.

Copying a dictionary, or saving its entries, is one step for all other threads: no code of Python's runs in between.

Entries are saved in numpy arrays, because the cyclic garbage collector does not look into these. Copies as dictionaries
would be a million new references for it to follow, several times over: seen as pauses of 40 to 500 ms.

With 1,024 chunks a million keys make chunks of a thousand: saving one costs about 20 microseconds.

Values are here, lists and maps in state/heap_nested.py.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tidegate.errors import ConfigurationError
from tidegate.state.declarations import ABSENT
from tidegate.state.namespaces import is_namespaced
from tidegate.state.sections import PIECE_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.section_writer import SectionWriter
    from tidegate.state.sections import SectionReader

    Chunk = dict[Any, Any]

CHUNKS = 1024  #: a power of two
CHUNK_MASK = CHUNKS - 1
_ALL = b"\x01" * CHUNKS
_NONE = b"\x00" * CHUNKS


class NoKey:
    """Stands where the current key would be."""

    __slots__ = ()


NO_KEY = NoKey()


def chunk_of(key: Hashable) -> int:
    # The hash of a 1-tuple, because that of an int is the int: keys with a common step would share a few chunks.
    return hash((key,)) & CHUNK_MASK


def chunks_of(keys: list[Any]) -> list[int]:
    """The same for many keys: a third of the time of a call for each."""
    hashes = np.fromiter(map(hash, zip(keys)), np.int64, len(keys))
    return (hashes & CHUNK_MASK).tolist()  # type: ignore[no-any-return]


class CurrentKey:
    """The key of the record in work with its namespace, and its chunk; one slot that all handles of a backend read."""

    __slots__ = ("chunk", "key")

    key: Hashable
    chunk: int

    def __init__(self) -> None:
        self.unset()

    def unset(self) -> None:
        self.key = NO_KEY
        self.chunk = CHUNKS  # of each table, the one that refuses


def refuse_without_key() -> NoReturn:
    raise ConfigurationError(
        "state was used where no key is current: it can be used only inside process_element and on_timer. "
        "Move the access there; what belongs to the whole subtask goes into attributes set in open."
    )


class _NoCurrentKey(dict[Any, Any]):
    """The chunk that is looked at when no key is current. So the per-record path needs no test for that."""

    def get(self, key: Any, default: Any = None) -> NoReturn:
        refuse_without_key()

    def pop(self, key: Any, default: Any = None) -> NoReturn:
        refuse_without_key()

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        refuse_without_key()

    def __contains__(self, key: object) -> NoReturn:
        refuse_without_key()


class Moment:
    """What the clock showed when a few steps of a sweep began: it is asked once for all of them."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        self.ms = 0


class DictTable(ABC):
    """What all keys of one state have."""

    __slots__ = ("_lock", "_snapshots", "chunks", "fresh", "owned", "timed")

    def __init__(self, timed: bool = False) -> None:
        self.timed = timed  #: what is kept are `Timed` (state/ttl.py)
        self.chunks: list[Chunk] = [*({} for _ in range(CHUNKS)), _NoCurrentKey()]
        self.owned = bytearray(_ALL + b"\x01")
        self.fresh: list[set[Any] | None] = [None] * (CHUNKS + 1)
        self._snapshots: tuple[FrozenDicts, ...] = ()  # live ones; replaced as a whole, under the lock
        self._lock = threading.Lock()  # freeze and release only; never on the per-record path

    @abstractmethod
    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        """Add stored rows."""

    @abstractmethod
    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        """Write the rows of chunks that nobody changes, piece by piece."""

    def own(self, chunk: int) -> None:
        """Before the first change of a chunk since a snapshot."""
        # `release` may come at any point in between: then this saves for nothing, and no more.
        saved: Saved | None = None
        for snapshot in self._snapshots:
            if chunk not in snapshot.saved:
                snapshot.saved[chunk] = saved = saved or save(self.chunks[chunk])
        self.fresh[chunk] = set()
        self.owned[chunk] = 1

    def discard(self, chunk: int, key: Any) -> None:
        if not self.owned[chunk]:
            self.own(chunk)
        self.chunks[chunk].pop(key, None)

    def freeze(self) -> FrozenDicts:
        frozen = FrozenDicts(self)
        with self._lock:
            self._snapshots = (*self._snapshots, frozen)
            self.owned[:CHUNKS] = _NONE
        return frozen

    def release(self, frozen: FrozenDicts) -> None:
        with self._lock:
            self._snapshots = tuple(other for other in self._snapshots if other is not frozen)
            if not self._snapshots:
                self.fresh[:] = [None] * (CHUNKS + 1)
                self.owned[:CHUNKS] = _ALL

    def entries(self) -> Iterator[tuple[Hashable, Any]]:
        for chunk in self.chunks[:CHUNKS]:
            yield from chunk.items()

    def live_keys(self, now_ms: int) -> Iterator[Hashable]:
        """The keys in the empty namespace; what is changed of the last one meanwhile disturbs nothing."""
        for chunk in range(CHUNKS):
            yield from [
                key
                for key, kept in self.chunks[chunk].items()
                if not is_namespaced(key) and (not self.timed or self.is_live(kept, now_ms))
            ]

    # -- where what is kept are `Timed` ------------------------------------------------------------------------------

    @abstractmethod
    def is_live(self, kept: Any, now_ms: int) -> bool:
        """Whether anything of what a key has is still to be seen."""

    def sweep(self, now: Moment) -> Iterator[int]:
        """One round over the table; each step looks at one entry or one chunk, and gives how many entries it has forgotten.

        The task's thread takes a few steps at a time and never looks at everything at once. An entry that is written
        meanwhile is seen in this round or the next.
        """
        for chunk in range(CHUNKS):
            yield 0
            for key in list(self.chunks[chunk]):
                yield from self._expire(chunk, key, now)

    @abstractmethod
    def _expire(self, chunk: int, key: Any, now: Moment) -> Iterator[int]:
        """The steps of a sweep over one key, which may be gone by now."""

    def __len__(self) -> int:
        return sum(map(len, self.chunks))


Saved = tuple[Any, Any]  #: keys and what is kept, as numpy arrays of objects


def save(chunk: Chunk) -> Saved:
    count = len(chunk)
    return np.fromiter(chunk, dtype=object, count=count), np.fromiter(chunk.values(), dtype=object, count=count)


class FrozenDicts:
    """The chunks of a table at one moment, until `release`."""

    __slots__ = ("_lock", "_table", "saved")

    def __init__(self, table: DictTable) -> None:
        self.saved: dict[int, Saved] = {}  #: by chunk; by the task's thread, before the first change since this moment
        self._table: DictTable | None = table
        self._lock = threading.Lock()

    def write(self, writer: SectionWriter) -> None:
        table = self._living()
        chunks = table.chunks
        # In this order: a chunk that is empty, and was not saved by then, was empty at this snapshot's moment.
        held = (chunk for chunk in range(CHUNKS) if chunks[chunk] or chunk in self.saved)
        table.write((self._at(table, chunk) for chunk in held), writer)

    def write_changes(self, since: FrozenDicts, writer: SectionWriter) -> list[Any]:
        """Write what differs from an older snapshot, whole keys at a time; returns the keys that are gone.

        While a snapshot lives, what it holds is replaced and never changed, so "the same object" means "the same value".
        """
        table = self._living()
        changed: list[Chunk] = []
        gone: list[Any] = []
        for chunk in sorted(since.saved):  # what is not there yet was not changed before the newer one
            before = since.saved[chunk]
            if before is self.saved.get(chunk):
                continue  # first changed after the newer one
            old, new = dict(zip(*before, strict=True)), self._at(table, chunk)
            changed.append({key: kept for key, kept in new.items() if old.get(key, NO_KEY) is not kept})
            gone += [key for key in old if key not in new]
        table.write(changed, writer)
        return gone

    def _at(self, table: DictTable, chunk: int) -> Chunk:
        """The chunk as it was; a dictionary that nobody changes."""
        copy = None if chunk in self.saved else table.chunks[chunk].copy()
        # Looked at again: what the task's thread has changed meanwhile, it has saved before.
        saved = self.saved.get(chunk)
        return dict(zip(*saved, strict=True)) if saved is not None else copy or {}

    def _living(self) -> DictTable:
        assert self._table is not None, "a released snapshot was read"
        return self._table

    def release(self) -> None:
        with self._lock:  # two threads may come, and the table counts
            table, self._table = self._table, None
        if table is not None:
            table.release(self)
            while self.saved:  # chunk by chunk: to free all at once would keep the GIL for as long as a second
                self.saved.popitem()


class ValueTable(DictTable):
    """Chunks of key -> value."""

    __slots__ = ()

    def kept(self, at: CurrentKey) -> Any:
        return self.chunks[at.chunk].get(at.key, ABSENT)

    def keep(self, at: CurrentKey, kept: Any) -> None:
        chunk = at.chunk
        if not self.owned[chunk]:
            self.own(chunk)
        self.chunks[chunk][at.key] = kept

    def drop(self, at: CurrentKey) -> None:
        self.discard(at.chunk, at.key)

    def find_many(self, keys: list[Any]) -> list[Any]:
        chunks = self.chunks
        return [chunks[chunk_of(key)].get(key, ABSENT) for key in keys]

    def keep_many(self, kept: Iterable[tuple[Any, Any]]) -> None:
        for key, each in kept:
            chunk = chunk_of(key)
            if not self.owned[chunk]:
                self.own(chunk)
            self.chunks[chunk][key] = each

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        assert not self._snapshots, "stored rows come before the first snapshot"
        chunks = self.chunks
        for key, value in zip(reader.keys(rows), reader.kept(rows), strict=True):
            chunks[hash((key,)) & CHUNK_MASK][key] = value  # chunk_of, without the call

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        for piece in pieces(chunks):
            writer.add_values(list(piece), list(piece.values()))

    def is_live(self, kept: Any, now_ms: int) -> bool:
        return bool(kept[1] > now_ms)

    def _expire(self, chunk: int, key: Any, now: Moment) -> Iterator[int]:
        kept = self.chunks[chunk].get(key)
        expired = kept is not None and kept[1] <= now.ms
        if expired:
            self.discard(chunk, key)
        yield int(expired)


def pieces(chunks: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same entries in dictionaries of about `PIECE_ROWS`: small chunks joined, large ones cut."""
    joined: Chunk = {}
    for chunk in chunks:
        if len(chunk) > PIECE_ROWS:
            entries = iter(chunk.items())
            while part := dict(islice(entries, PIECE_ROWS)):
                yield part
        elif chunk:
            joined.update(chunk)
            if len(joined) >= PIECE_ROWS:
                yield joined
                joined = {}
    if joined:
        yield joined
