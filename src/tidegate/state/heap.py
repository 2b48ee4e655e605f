"""The heap backend: keyed state in the memory of the worker. Executor.

A state is a table, in one of two layouts with the same stored form: dictionaries (state/heap_tables.py), or numpy columns
for numbers that are used in batches (state/heap_columns.py). Both are copied piece by piece on the first write after a
snapshot began, so the synchronous part of a snapshot takes microseconds whatever the size of the state.

State with a TTL is in dictionaries of `Timed` values (state/ttl.py), also where columns were asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.state.backend import KeyedSnapshot, Section
from tidegate.state.declarations import Declaration, StoredList, StoredMap, StoredValue, ValueState
from tidegate.state.direct import DirectAccess
from tidegate.state.heap_columns import ColumnTable, ColumnValue, fits_columns
from tidegate.state.heap_nested import ListTable, MapTable
from tidegate.state.heap_tables import CHUNK_MASK, DictTable, Moment, ValueTable, chunks_of
from tidegate.state.heap_timers import HeapTimers
from tidegate.state.heap_values import DictValue, value_handle
from tidegate.state.section_writer import SectionWriter
from tidegate.state.table_backend import StateTable, TableBackend

if TYPE_CHECKING:
    from tidegate.state.handles import Handle
    from tidegate.state.keys import KeyType
    from tidegate.state.timers import TimerState


class FrozenTable(Protocol):
    """A table at one moment; `write` comes from the snapshot's thread, at most once."""

    def write(self, writer: SectionWriter) -> None: ...

    def write_changes(self, since: Any, writer: SectionWriter) -> list[Any] | None:
        """Whole keys that differ from an older moment of the same table; returns the keys that are gone.

        None, and nothing written, when the two cannot be compared.
        """

    def release(self) -> None: ...


class Table(StateTable, Protocol):
    """All keys of one state."""

    def freeze(self) -> FrozenTable: ...

    def __len__(self) -> int: ...


class HeapStateBackend(TableBackend[Table]):
    """Keyed state of one operator in one subtask, in memory."""

    def __init__(
        self,
        key_type: KeyType,
        key_groups: range,
        max_parallelism: int,
        wall_clock: Callable[[], float] = time.time,
        incremental: bool = False,
    ) -> None:
        """`incremental`: snapshots can be compared with older ones that were not released (`HeapSnapshot.changes`)."""
        super().__init__(key_type, key_groups, max_parallelism, wall_clock)
        self._incremental = incremental
        self._swept_at = Moment()
        self._sweep = self._rounds()

    def _new_plain_value(self, declaration: StoredValue, columnar: bool) -> tuple[Table, Handle]:
        if columnar and isinstance(declaration, ValueState) and fits_columns(declaration):
            columns = ColumnTable(declaration, self.key_type, self._incremental)
            return columns, ColumnValue(declaration, columns, self._current)
        values = self._new_values(declaration)
        return values, value_handle(declaration, values, self._current, self.key_type)

    def _new_values(self, declaration: StoredValue) -> ValueTable:
        return ValueTable(declaration.ttl is not None)

    def _new_lists(self, declaration: StoredList) -> ListTable:
        return ListTable(declaration.ttl is not None)

    def _new_maps(self, declaration: StoredMap) -> MapTable:
        return MapTable(declaration.ttl is not None)

    def _new_timers(self, declaration: TimerState) -> tuple[Table, Handle]:
        timers = HeapTimers()
        return timers, timers

    def set_current_key(self, key: Hashable) -> None:
        current = self._current
        current.key = key
        current.chunk = hash((key,)) & CHUNK_MASK  # chunk_of, without the call

    def _set_table_key(self, table_key: Hashable) -> None:
        self.set_current_key(table_key)

    def direct(self) -> DirectAccess:
        values = {
            name: handle.direct() for name, (_, _, handle) in self._states.items() if isinstance(handle, DictValue)
        }
        return DirectAccess(self._current, chunks_of, values)

    def snapshot(self) -> HeapSnapshot:
        frozen = [(declaration, table.freeze()) for declaration, table, _ in self._states.values()]
        return HeapSnapshot(frozen, self.key_type, self.key_groups, self.max_parallelism, self._now_ms())

    def clean_up(self, budget_entries: int) -> int:
        if not self._swept:
            return 0
        self._swept_at.ms = self._now_ms()
        return sum(islice(self._sweep, budget_entries))

    def _rounds(self) -> Iterator[int]:
        """For ever; taken a few steps at a time, and only when there is something to sweep."""
        while True:
            for table in list(self._swept):
                assert isinstance(table, DictTable)  # with a TTL there are no columns
                yield from table.sweep(self._swept_at)

    def state_size(self) -> dict[str, int]:
        return {name: len(table) for name, (_, table, _) in self._states.items()}


class HeapSnapshot(KeyedSnapshot):
    """All tables of a backend at one moment."""

    def __init__(
        self,
        frozen: list[tuple[Declaration, FrozenTable]],
        key_type: KeyType,
        key_groups: range,
        max_parallelism: int,
        now_ms: int,
    ) -> None:
        self._frozen = frozen
        self._key_type = key_type
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism
        self._now_ms = now_ms

    def sections(self) -> Iterator[Section]:
        for declaration, table in self._frozen:
            writer = self._writer(declaration)
            table.write(writer)
            yield from writer.finish()

    def changes(self, since: KeyedSnapshot) -> Iterator[Section] | None:
        if not isinstance(since, HeapSnapshot):
            return None
        found: list[Section] = []
        for (declaration, table), (_, older) in zip(self._frozen, since._frozen, strict=True):
            writer = self._writer(declaration)
            gone = table.write_changes(older, writer)
            if gone is None:
                return None
            found += writer.finish()
            found += writer.deleted(gone)
        return iter(found)

    def _writer(self, declaration: Declaration) -> SectionWriter:
        return SectionWriter(declaration, self._key_type, self._key_groups, self._max_parallelism, self._now_ms)

    def release(self) -> None:
        for _, table in self._frozen:
            table.release()
