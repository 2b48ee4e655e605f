"""Tables of Python dictionaries, in chunks that a snapshot can share. Part of the heap backend.

Executor. The task's thread reads and writes; a `FrozenDicts` is written and released by the snapshot's thread.

A table is a fixed number of chunks, dictionaries from key (normalised, in its namespace) to what is kept. Another thread
reads a snapshot of them while the task goes on:

    freeze:  no chunk is owned any more
    write:   before the first change of a chunk that is not owned, its entries are saved in every live snapshot that has
             not saved it; then it is owned
    read:    the snapshot's thread takes what was saved; else a copy of the chunk, if nothing was saved by then
    release: with the last snapshot gone, every chunk is owned again

Invariant 1. A chunk that is not owned has not changed since the newest live snapshot.
Invariant 2. In a nested table (lists, maps) an inner object is changed only if it was made or copied after the newest
             live snapshot: the chunk is owned, and its `fresh` is None (no snapshot is live) or has the key.

Copying a dictionary, or saving its entries, is one step for all other threads: no code of Python's runs in between.

Entries are saved in numpy arrays, because the cyclic garbage collector does not look into these. Copies as dictionaries
would be a million new references for it to follow, several times over: seen as pauses of 40 to 500 ms.

With 1,024 chunks a million keys make chunks of a thousand: saving one costs about 20 microseconds. One inner map is
copied whole, so a single map of a million entries costs its writer tens of milliseconds once after each snapshot.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from tidegate.errors import ConfigurationError
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


class DictTable(ABC):
    """What all keys of one state have."""

    __slots__ = ("_lock", "_snapshots", "chunks", "fresh", "owned")

    def __init__(self) -> None:
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
                key for key, kept in self.chunks[chunk].items() if not is_namespaced(key) and self.is_live(kept, now_ms)
            ]

    def is_live(self, kept: Any, now_ms: int) -> bool:
        """Whether anything of what a key has is still to be seen."""
        return True

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

    def put(self, key: Any, value: Any) -> None:
        chunk = chunk_of(key)
        if not self.owned[chunk]:
            self.own(chunk)
        self.chunks[chunk][key] = value

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        assert not self._snapshots, "stored rows come before the first snapshot"
        chunks = self.chunks
        for key, value in zip(reader.keys(rows), reader.values(rows), strict=True):
            chunks[hash((key,)) & CHUNK_MASK][key] = value  # chunk_of, without the call

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        for piece in pieces(chunks):
            writer.add_values(list(piece), list(piece.values()))


class NestedTable(DictTable):
    """Chunks of key -> inner list or map."""

    __slots__ = ()

    def inner_for_write(self, chunk: int, key: Any) -> Any:
        """The inner list or map of a key, safe to change; None when there is none."""
        if not self.owned[chunk]:
            self.own(chunk)
        inner = self.chunks[chunk].get(key)
        if inner is not None:
            fresh = self.fresh[chunk]
            if fresh is not None and key not in fresh:
                inner = inner.copy()
                self.put_inner(chunk, key, inner)
        return inner

    def put_inner(self, chunk: int, key: Any, inner: Any) -> None:
        """Store a list or map that nobody else holds."""
        if not self.owned[chunk]:
            self.own(chunk)
        self.chunks[chunk][key] = inner
        fresh = self.fresh[chunk]
        if fresh is not None:
            fresh.add(key)


class ListTable(NestedTable):
    """Chunks of key -> list. No list is empty."""

    __slots__ = ()

    def extend(self, chunk: int, key: Any, elements: list[Any]) -> None:
        """Elements that are the table's own from here on."""
        known = self.inner_for_write(chunk, key)
        if known is not None:
            known.extend(elements)
        elif elements:
            self.put_inner(chunk, key, elements)

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        for key, elements in zip(reader.keys(rows), reader.lists(rows), strict=True):
            if elements:
                self.put_inner(chunk_of(key), key, elements)

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        for piece in pieces(chunks):
            writer.add_lists(list(piece), list(piece.values()))


class MapTable(NestedTable):
    """Chunks of key -> map. No map is empty."""

    __slots__ = ()

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        entries = zip(reader.keys(rows), reader.map_keys(rows), reader.values(rows), strict=True)
        for key, map_key, value in entries:
            self.put_entry(key, map_key, value)

    def put_entry(self, key: Any, map_key: Any, value: Any) -> None:
        self.update(chunk_of(key), key, {map_key: value})

    def update(self, chunk: int, key: Any, entries: Chunk) -> None:
        """Entries that are the table's own from here on."""
        inner = self.inner_for_write(chunk, key)
        if inner is not None:
            inner.update(entries)
        elif entries:
            self.put_inner(chunk, key, entries)

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        for keys, counts, map_keys, values in map_pieces(chunks, lambda inner: iter(inner.items())):
            writer.add_map_entries(keys, counts, map_keys, values)


def map_pieces(
    chunks: Iterable[Chunk], entries_of: Callable[[Chunk], Iterator[tuple[Any, Any]]]
) -> Iterator[tuple[list[Any], list[int], list[Any], list[Any]]]:
    """Keys, how many entries each has, map keys and values: about `PIECE_ROWS` entries at a time, a large map cut."""
    keys: list[Any] = []
    counts: list[int] = []
    map_keys: list[Any] = []
    values: list[Any] = []
    for piece in pieces(chunks):
        for key, inner in piece.items():
            entries = entries_of(inner)
            while part := list(islice(entries, PIECE_ROWS - len(values))):
                keys.append(key)
                counts.append(len(part))
                map_keys.extend([map_key for map_key, _ in part])
                values.extend([value for _, value in part])
                if len(values) >= PIECE_ROWS:
                    yield keys, counts, map_keys, values
                    keys, counts, map_keys, values = [], [], [], []
    if keys:
        yield keys, counts, map_keys, values


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
