"""Tables of lists and maps, in chunks that a snapshot can share. Part of the heap backend; threads as in state/heap_tables.py.

Invariant. An inner list or map is changed only if it was made or copied after the newest live snapshot: its chunk is owned, and
           the chunk's `fresh` is None (no snapshot is live) or has the key.

One inner map is copied, and swept, whole: a single map of a million entries costs its writer tens of milliseconds once after
each snapshot, and a sweep about ten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.state.declarations import ABSENT
from tidegate.state.heap_tables import DictTable, chunk_of, pieces
from tidegate.state.sections import PIECE_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.heap_tables import Chunk, CurrentKey, Moment
    from tidegate.state.section_writer import SectionWriter
    from tidegate.state.sections import SectionReader

_NO_ENTRIES: dict[Any, Any] = {}
ELEMENTS_AT_ONCE = 256  #: of a list, forgotten in one go


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

    def whole(self, at: CurrentKey) -> Sequence[Any]:
        return self.chunks[at.chunk].get(at.key, ())  # type: ignore[no-any-return]

    def add(self, at: CurrentKey, kept: list[Any]) -> None:
        known = self.inner_for_write(at.chunk, at.key)
        if known is not None:
            known.extend(kept)
        elif kept:
            self.put_inner(at.chunk, at.key, kept)

    def replace(self, at: CurrentKey, kept: list[Any]) -> None:
        if kept:
            self.put_inner(at.chunk, at.key, kept)
        else:
            self.discard(at.chunk, at.key)

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        for key, elements in zip(reader.keys(rows), reader.kept_lists(rows), strict=True):
            if elements:
                self.put_inner(chunk_of(key), key, elements)

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        for piece in pieces(chunks):
            writer.add_lists(list(piece), list(piece.values()))

    def is_live(self, kept: Any, now_ms: int) -> bool:
        return any(expiry > now_ms for _, expiry in kept)

    def _expire(self, chunk: int, key: Any, now: Moment) -> Iterator[int]:
        # Elements are added at the end, so those that expire first are in front. Where a duration was made shorter, or
        # the clock was set back, some wait here after later ones; no reader ever sees them.
        yield 0
        while expired := self._drop_front(chunk, key, now.ms):
            yield from [1] * expired

    def _drop_front(self, chunk: int, key: Any, now: int) -> int:
        kept = self.chunks[chunk].get(key, ())
        expired = 0
        while expired < min(len(kept), ELEMENTS_AT_ONCE) and kept[expired][1] <= now:
            expired += 1
        if expired:
            kept = self.inner_for_write(chunk, key)
            del kept[:expired]
            if not kept:
                self.discard(chunk, key)
        return expired


class MapTable(NestedTable):
    """Chunks of key -> map. No map is empty."""

    __slots__ = ()

    def entry(self, at: CurrentKey, map_key: Any) -> Any:
        return self.chunks[at.chunk].get(at.key, _NO_ENTRIES).get(map_key, ABSENT)

    def seen(self, at: CurrentKey) -> Iterable[tuple[Any, Any]]:
        return list(self.chunks[at.chunk].get(at.key, _NO_ENTRIES).items())

    def count(self, at: CurrentKey) -> int:
        return len(self.chunks[at.chunk].get(at.key, _NO_ENTRIES))

    def put(self, at: CurrentKey, entries: Chunk) -> None:
        self._update(at.chunk, at.key, entries)

    def _update(self, chunk: int, key: Any, entries: Chunk) -> None:
        inner = self.inner_for_write(chunk, key)
        if inner is None:
            self.put_inner(chunk, key, entries)
        else:
            inner.update(entries)

    def remove(self, at: CurrentKey, map_key: Any) -> None:
        if map_key in self.chunks[at.chunk].get(at.key, _NO_ENTRIES):
            self._remove(at.chunk, at.key, map_key)

    def _remove(self, chunk: int, key: Any, map_key: Any) -> None:
        inner = self.inner_for_write(chunk, key)
        del inner[map_key]
        if not inner:
            self.discard(chunk, key)

    def clear(self, at: CurrentKey) -> None:
        self.discard(at.chunk, at.key)

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        for key, map_key, kept in zip(reader.keys(rows), reader.map_keys(rows), reader.kept(rows), strict=True):
            self._update(chunk_of(key), key, {map_key: kept})

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        for keys, counts, map_keys, kept in map_pieces(chunks, writer.live_entries):
            writer.add_map_entries(keys, counts, map_keys, kept)

    def is_live(self, kept: Any, now_ms: int) -> bool:
        return any(expiry > now_ms for _, expiry in kept.values())

    def _expire(self, chunk: int, key: Any, now: Moment) -> Iterator[int]:
        for map_key in list(self.chunks[chunk].get(key, ())):
            timed = self.chunks[chunk].get(key, _NO_ENTRIES).get(map_key)
            expired = timed is not None and timed[1] <= now.ms
            if expired:
                self._remove(chunk, key, map_key)
            yield int(expired)


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
