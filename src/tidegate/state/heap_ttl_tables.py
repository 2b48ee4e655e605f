"""Tables whose entries expire. Part of the heap backend.

Executor; threads as in state/heap_tables.py, whose tables these are, but what is kept is a pair:

    value state   key -> (value, expiry)
    list state    key -> [(element, expiry), ...]
    map state     key -> {map key: (value, expiry), ...}

They are what the handles of state/expiring.py ask for. What has expired stays until `sweep` comes by, and is written
into no snapshot.

`sweep` is one round over a table, as a generator that looks at one entry (or one chunk) for each step: the task's thread
takes a few steps at a time and never looks at everything at once. An entry that is written meanwhile is seen in this
round or the next. A single inner map is listed at once: about ten milliseconds for a million entries under one key.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tidegate.state.heap_tables import CHUNKS, DictTable, ListTable, MapTable, ValueTable, chunk_of, map_pieces, pieces

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.expiring import Pair
    from tidegate.state.heap_tables import Chunk
    from tidegate.state.section_writer import SectionWriter
    from tidegate.state.sections import SectionReader

_NO_PAIRS: dict[Any, Any] = {}
ELEMENTS_AT_ONCE = 256  #: of a list, forgotten in one go


class Moment:
    """What the clock showed when a few steps of a sweep began: it is asked once for all of them."""

    __slots__ = ("ms",)

    def __init__(self) -> None:
        self.ms = 0


class ExpiringTable(DictTable):
    """What all of them have."""

    __slots__ = ("_lifetime_ms",)

    def __init__(self, lifetime_ms: int) -> None:
        super().__init__()
        self._lifetime_ms = lifetime_ms

    def drop(self, key: Any) -> None:
        self.discard(chunk_of(key), key)

    @abstractmethod
    def sweep(self, now: Moment) -> Iterator[int]:
        """One round; each step gives how many entries it has forgotten, 0 or 1."""


class ExpiringValues(ExpiringTable, ValueTable):
    """Chunks of key -> (value, expiry)."""

    __slots__ = ()

    def find_pair(self, key: Any) -> Pair | None:
        return self.chunks[chunk_of(key)].get(key)

    def find_pairs(self, keys: list[Any]) -> list[Pair | None]:
        return list(map(self.find_pair, keys))

    def put_pair(self, key: Any, pair: Pair) -> None:
        self.put(key, pair)

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        expiries = reader.expiries(rows, reader.now_ms + self._lifetime_ms)
        for key, value, expiry in zip(reader.keys(rows), reader.values(rows), expiries, strict=True):
            self.put(key, (value, expiry))

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        now = writer.now_ms
        for piece in pieces(chunks):
            live = [(key, value, expiry) for key, (value, expiry) in piece.items() if expiry > now]
            if live:
                writer.add_values([k for k, _, _ in live], [v for _, v, _ in live], [e for _, _, e in live])

    def is_live(self, kept: Any, now_ms: int) -> bool:
        return bool(kept[1] > now_ms)

    def sweep(self, now: Moment) -> Iterator[int]:
        for chunk in range(CHUNKS):
            yield 0
            for key in list(self.chunks[chunk]):
                entry = self.chunks[chunk].get(key)
                expired = entry is not None and entry[1] <= now.ms
                if expired:
                    self.discard(chunk, key)
                yield int(expired)


class ExpiringLists(ExpiringTable, ListTable):
    """Chunks of key -> list of (element, expiry)."""

    __slots__ = ()

    def pairs_of(self, key: Any) -> Sequence[Pair]:
        pairs: Sequence[Pair] = self.chunks[chunk_of(key)].get(key, ())
        return pairs

    def add_pairs(self, key: Any, pairs: list[Pair]) -> None:
        self.extend(chunk_of(key), key, pairs)

    def replace_pairs(self, key: Any, pairs: list[Pair]) -> None:
        if pairs:
            self.put_inner(chunk_of(key), key, pairs)
        else:
            self.drop(key)

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        lists = reader.expiring_lists(rows, reader.now_ms + self._lifetime_ms)
        for key, (elements, expiries) in zip(reader.keys(rows), lists, strict=True):
            if elements:
                self.put_inner(chunk_of(key), key, list(zip(elements, expiries, strict=True)))

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        now = writer.now_ms
        for piece in pieces(chunks):
            live = {key: [pair for pair in pairs if pair[1] > now] for key, pairs in piece.items()}
            live = {key: pairs for key, pairs in live.items() if pairs}
            if live:
                writer.add_lists(
                    list(live),
                    [[element for element, _ in pairs] for pairs in live.values()],
                    [[expiry for _, expiry in pairs] for pairs in live.values()],
                )

    def is_live(self, kept: Any, now_ms: int) -> bool:
        return any(expiry > now_ms for _, expiry in kept)

    def sweep(self, now: Moment) -> Iterator[int]:
        # Elements are added at the end, so those that expire first are in front. Where a duration was made shorter, or
        # the clock was set back, some wait here behind later ones; no reader ever sees them.
        for chunk in range(CHUNKS):
            yield 0
            for key in list(self.chunks[chunk]):
                yield 0
                while expired := self._drop_front(chunk, key, now.ms):
                    yield from [1] * expired

    def _drop_front(self, chunk: int, key: Any, now: int) -> int:
        pairs = self.chunks[chunk].get(key, ())
        expired = 0
        while expired < min(len(pairs), ELEMENTS_AT_ONCE) and pairs[expired][1] <= now:
            expired += 1
        if expired:
            pairs = self.inner_for_write(chunk, key)
            del pairs[:expired]
            if not pairs:
                self.discard(chunk, key)
        return expired


class ExpiringMaps(ExpiringTable, MapTable):
    """Chunks of key -> map of map key -> (value, expiry)."""

    __slots__ = ()

    def pair_of(self, key: Any, map_key: Any) -> Pair | None:
        pair: Pair | None = self.chunks[chunk_of(key)].get(key, _NO_PAIRS).get(map_key)
        return pair

    def pairs_of(self, key: Any) -> list[tuple[Any, Pair]]:
        return list(self.chunks[chunk_of(key)].get(key, _NO_PAIRS).items())

    def put_pairs(self, key: Any, pairs: dict[Any, Pair]) -> None:
        self.update(chunk_of(key), key, pairs)

    def remove_pair(self, key: Any, map_key: Any) -> None:
        chunk = chunk_of(key)
        if map_key in self.chunks[chunk].get(key, ()):
            self._remove_entry(chunk, key, map_key)

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        expiries = reader.expiries(rows, reader.now_ms + self._lifetime_ms)
        entries = zip(reader.keys(rows), reader.map_keys(rows), reader.values(rows), expiries, strict=True)
        for key, map_key, value, expiry in entries:
            self.put_entry(key, map_key, (value, expiry))

    def write(self, chunks: Iterable[Chunk], writer: SectionWriter) -> None:
        now = writer.now_ms

        def live(inner: Chunk) -> Iterator[tuple[Any, Any]]:
            return (entry for entry in inner.items() if entry[1][1] > now)

        for keys, counts, map_keys, pairs in map_pieces(chunks, live):
            writer.add_map_entries(
                keys, counts, map_keys, [value for value, _ in pairs], [expiry for _, expiry in pairs]
            )

    def is_live(self, kept: Any, now_ms: int) -> bool:
        return any(expiry > now_ms for _, expiry in kept.values())

    def sweep(self, now: Moment) -> Iterator[int]:
        for chunk in range(CHUNKS):
            yield 0
            for key in list(self.chunks[chunk]):
                for map_key in list(self.chunks[chunk].get(key, ())):
                    pair = self.chunks[chunk].get(key, {}).get(map_key)
                    expired = pair is not None and pair[1] <= now.ms
                    if expired:
                        self._remove_entry(chunk, key, map_key)
                    yield int(expired)

    def _remove_entry(self, chunk: int, key: Any, map_key: Any) -> None:
        inner = self.inner_for_write(chunk, key)
        del inner[map_key]
        if not inner:
            self.discard(chunk, key)
