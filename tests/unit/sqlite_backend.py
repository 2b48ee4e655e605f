"""A state backend in one module, over SQLite: it shows what a backend has to bring, and that the suites ask for no more.

Not for use: a snapshot copies all state, and a list or map is read and written whole.
"""

from __future__ import annotations

import pickle
import sqlite3
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from tidegate.state.backend import KeyedSnapshot, Section
from tidegate.state.declarations import ABSENT, ROWS, Declaration, StoredList, StoredMap, StoredValue
from tidegate.state.heap_nested import map_pieces
from tidegate.state.heap_tables import NO_KEY, CurrentKey, pieces, refuse_without_key
from tidegate.state.keys import KeyType
from tidegate.state.namespaces import in_namespace, is_namespaced, parts_of_table_key
from tidegate.state.section_writer import SectionWriter
from tidegate.state.sections import SectionReader
from tidegate.state.table_backend import TableBackend
from tidegate.state.timers import Timer, TimerState, TimerTable, filed_namespace, timer_filed_under


class SqliteTable:
    """Key and namespace -> what is kept, pickled. Values are kept as they are, lists and maps whole."""

    def __init__(self, db: sqlite3.Connection, name: str, key_type: KeyType, declaration: Declaration) -> None:
        self._db = db
        self._key_type = key_type
        self._name = f'"state {name}"'
        self._rows = ROWS[declaration.kind]
        self._expires = declaration.ttl is not None
        db.execute(f"CREATE TABLE {self._name} (key BLOB, namespace BLOB, kept BLOB, PRIMARY KEY (key, namespace))")

    def find(self, table_key: Any) -> Any:
        if table_key is NO_KEY:
            refuse_without_key()
        where = f"SELECT kept FROM {self._name} WHERE key = ? AND namespace = ?"
        row = self._db.execute(where, self._place(table_key)).fetchone()
        return ABSENT if row is None else pickle.loads(row[0])

    def write(self, table_key: Any, kept: Any) -> None:
        """ABSENT, or an empty list or map: nothing is kept."""
        if table_key is NO_KEY:
            refuse_without_key()
        place = self._place(table_key)
        if kept is ABSENT or (self._rows != "value" and not kept):
            self._db.execute(f"DELETE FROM {self._name} WHERE key = ? AND namespace = ?", place)
        else:
            self._db.execute(f"INSERT OR REPLACE INTO {self._name} VALUES (?, ?, ?)", (*place, pickle.dumps(kept)))

    def _place(self, table_key: Any) -> tuple[bytes, bytes]:
        key, namespace = parts_of_table_key(table_key)
        return self._key_type.encode(key), namespace

    def entries(self) -> Iterator[tuple[Hashable, Any]]:
        decode, normalise = self._key_type.decode, self._key_type.normalise
        for key, namespace, kept in self._db.execute(f"SELECT * FROM {self._name}").fetchall():
            yield in_namespace(normalise(decode(key)), namespace), pickle.loads(kept)

    def live_keys(self, now_ms: int) -> Iterator[Hashable]:
        for key, kept in self.entries():
            if not is_namespaced(key) and (not self._expires or self.without_expired(kept, now_ms)[0] is not ABSENT):
                yield key

    def without_expired(self, kept: Any, now_ms: int) -> tuple[Any, int]:
        """What stays of it, and how many entries do not."""
        if self._rows == "list":
            live: Any = [timed for timed in kept if timed[1] > now_ms]
        elif self._rows == "map":
            live = {map_key: timed for map_key, timed in kept.items() if timed[1] > now_ms}
        else:
            return (kept, 0) if kept[1] > now_ms else (ABSENT, 1)
        return live or ABSENT, len(kept) - len(live)

    def sweep(self, now: Callable[[], int]) -> Iterator[int]:
        """A step for each entry; a list or map goes when as many steps were taken as it has entries."""
        for key in [key for key, _ in self.entries()]:
            kept = self.find(key)
            entries = 0 if kept is ABSENT else 1 if self._rows == "value" else len(kept)
            yield from [0] * entries
            kept = self.find(key)
            live, gone = (ABSENT, 0) if kept is ABSENT else self.without_expired(kept, now())
            if gone:
                self.write(key, live)
            yield from [1] * gone
        yield 0

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        if self._rows == "list":
            for key, elements in zip(reader.keys(rows), reader.kept_lists(rows), strict=True):
                self.write(key, elements)
        elif self._rows == "map":
            for key, map_key, kept in zip(reader.keys(rows), reader.map_keys(rows), reader.kept(rows), strict=True):
                found = self.find(key)
                self.write(key, {**({} if found is ABSENT else found), map_key: kept})
        else:
            self.keep_many(zip(reader.keys(rows), reader.kept(rows), strict=True))

    # -- values --------------------------------------------------------------------------------------------------------

    def kept(self, at: CurrentKey) -> Any:
        return self.find(at.key)

    def keep(self, at: CurrentKey, kept: Any) -> None:
        self.write(at.key, kept)

    def drop(self, at: CurrentKey) -> None:
        self.write(at.key, ABSENT)

    def find_many(self, keys: list[Any]) -> list[Any]:
        return [self.find(key) for key in keys]

    def keep_many(self, kept: Iterable[tuple[Any, Any]]) -> None:
        for key, each in kept:
            self.write(key, each)


class SqliteLists(SqliteTable):
    def whole(self, at: CurrentKey) -> list[Any]:
        found = self.find(at.key)
        return [] if found is ABSENT else found

    def add(self, at: CurrentKey, kept: list[Any]) -> None:
        self.write(at.key, self.whole(at) + kept)

    def replace(self, at: CurrentKey, kept: list[Any]) -> None:
        self.write(at.key, kept)


class SqliteMaps(SqliteTable):
    def _map(self, at: CurrentKey) -> dict[Any, Any]:
        found = self.find(at.key)
        return {} if found is ABSENT else found

    def entry(self, at: CurrentKey, map_key: Any) -> Any:
        return self._map(at).get(map_key, ABSENT)

    def seen(self, at: CurrentKey) -> Iterable[tuple[Any, Any]]:
        return self._map(at).items()

    def count(self, at: CurrentKey) -> int:
        return len(self._map(at))

    def put(self, at: CurrentKey, entries: dict[Any, Any]) -> None:
        self.write(at.key, self._map(at) | entries)

    def remove(self, at: CurrentKey, map_key: Any) -> None:
        self.write(at.key, {key: kept for key, kept in self._map(at).items() if key != map_key})

    def clear(self, at: CurrentKey) -> None:
        self.write(at.key, ABSENT)


class SqliteTimers(SqliteTable, TimerTable):
    def set_timer(self, timer: Timer) -> None:
        self.write(in_namespace(timer.key, filed_namespace(timer)), timer.timestamp)

    def delete_timer(self, timer: Timer) -> None:
        self.write(in_namespace(timer.key, filed_namespace(timer)), ABSENT)

    def has_timer(self, timer: Timer) -> bool:
        return self.find(in_namespace(timer.key, filed_namespace(timer))) is not ABSENT

    def first_timer(self) -> Timer | None:
        timers = [timer_filed_under(*parts_of_table_key(filed)) for filed, _ in self.entries()]
        return min(timers, key=lambda timer: timer.timestamp, default=None)


class SqliteStateBackend(TableBackend[SqliteTable]):
    """Keyed state of one operator in one subtask, in SQLite."""

    def __init__(
        self, key_type: KeyType, key_groups: range, max_parallelism: int, wall_clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(key_type, key_groups, max_parallelism, wall_clock)
        self._db = sqlite3.connect(":memory:")
        self._sweep = self._rounds()

    def _new_values(self, declaration: StoredValue) -> SqliteTable:
        return SqliteTable(self._db, declaration.name, self.key_type, declaration)

    def _new_lists(self, declaration: StoredList) -> SqliteLists:
        return SqliteLists(self._db, declaration.name, self.key_type, declaration)

    def _new_maps(self, declaration: StoredMap) -> SqliteMaps:
        return SqliteMaps(self._db, declaration.name, self.key_type, declaration)

    def _new_timers(self, declaration: TimerState) -> tuple[SqliteTable, Any]:
        timers = SqliteTimers(self._db, declaration.name, self.key_type, declaration)
        return timers, timers

    def set_current_key(self, key: Hashable) -> None:
        self._current.key = key

    def snapshot(self) -> SqliteSnapshot:
        tables = [(declaration, dict(table.entries())) for declaration, table, _ in self._states.values()]
        return SqliteSnapshot(tables, (self.key_type, self.key_groups, self.max_parallelism, self._now_ms()))

    def clean_up(self, budget_entries: int) -> int:
        return sum(islice(self._sweep, budget_entries)) if self._swept else 0

    def _rounds(self) -> Iterator[int]:
        while True:
            for table in list(self._swept):
                yield from table.sweep(self._now_ms)

    def state_size(self) -> dict[str, int]:
        return {name: sum(1 for _ in table.entries()) for name, (_, table, _) in self._states.items()}

    def close(self) -> None:
        self._db.close()


class SqliteSnapshot(KeyedSnapshot):
    def __init__(self, tables: list[tuple[Declaration, dict[Any, Any]]], place: tuple[Any, ...]) -> None:
        self._tables = tables
        self._place = place

    def sections(self) -> Iterator[Section]:
        for declaration, entries in self._tables:
            writer = SectionWriter(declaration, *self._place)
            if ROWS[declaration.kind] == "map":
                for keys, counts, map_keys, kept in map_pieces([entries], writer.live_entries):
                    writer.add_map_entries(keys, counts, map_keys, kept)
            else:
                add = writer.add_lists if ROWS[declaration.kind] == "list" else writer.add_values
                for piece in pieces([entries]):
                    add(list(piece), list(piece.values()))
            yield from writer.finish()

    def release(self) -> None:
        self._tables = []
