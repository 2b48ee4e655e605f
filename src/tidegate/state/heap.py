"""The heap backend: keyed state in the memory of the worker. Executor.

A state is a table, in one of two layouts with the same stored form: dictionaries (state/heap_dict.py), or numpy columns
for numbers that are used in batches (state/heap_columns.py). Both are copied piece by piece on the first write after a
snapshot began, so the synchronous part of a snapshot takes microseconds whatever the size of the state.

State with a TTL is in dictionaries that keep an expiry with each entry (state/heap_ttl_tables.py), also where columns
were asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.errors import ConfigurationError
from tidegate.state.backend import KeyedSnapshot, KeyedStateBackend, Section
from tidegate.state.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    ReducingState,
    StoredValue,
    ValueState,
)
from tidegate.state.folding import FoldedAggregating, FoldedReducing
from tidegate.state.heap_columns import ColumnTable, ColumnValue
from tidegate.state.heap_dict import DictList, DictMap, value_handle
from tidegate.state.heap_tables import (
    CHUNK_MASK,
    NO_KEY,
    CurrentKey,
    DictTable,
    ListTable,
    MapTable,
    ValueTable,
    chunk_of,
)
from tidegate.state.heap_ttl import ExpiringList, ExpiringMap, ExpiringValue
from tidegate.state.heap_ttl_tables import ExpiringLists, ExpiringMaps, ExpiringValues, Moment, SweptTable
from tidegate.state.namespaces import bare_key, in_namespace
from tidegate.state.sections import SectionReader, SectionWriter
from tidegate.state.ttl import Lifetime

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.backend import Handle
    from tidegate.state.handles import ValueHandle
    from tidegate.state.keys import KeyType


class FrozenTable(Protocol):
    """A table at one moment; `write` comes from the snapshot's thread, at most once."""

    def write(self, writer: SectionWriter) -> None: ...

    def release(self) -> None: ...


class Table(Protocol):
    """All keys of one state."""

    def freeze(self) -> FrozenTable: ...

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None: ...

    def live_keys(self, now_ms: int) -> Iterator[Hashable]: ...

    def __len__(self) -> int: ...


class HeapStateBackend(KeyedStateBackend):
    """Keyed state of one operator in one subtask, in memory.

    `wall_clock` gives seconds since 1970; TTLs count by it.
    """

    honours_ttl = True

    def __init__(
        self,
        key_type: KeyType,
        key_groups: range,
        max_parallelism: int,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.key_type = key_type
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self._wall_clock = wall_clock
        self._current = CurrentKey()
        self._states: dict[str, tuple[Declaration, Table, Handle]] = {}
        self._swept: list[SweptTable] = []  # the tables whose entries expire
        self._swept_at = Moment()
        self._sweep = self._rounds()

    def bind(self, declaration: Declaration, columnar: bool = False) -> Handle:
        state = self._states.get(declaration.name)
        if state is None:
            state = self._states[declaration.name] = (declaration, *self._new_state(declaration, columnar))
        return state[2]

    def _new_state(self, declaration: Declaration, columnar: bool) -> tuple[Table, Handle]:
        if isinstance(declaration, (ListState, MapState)):
            return self._new_nested(declaration)
        assert isinstance(declaration, StoredValue)
        table, value = self._new_value(declaration, columnar and isinstance(declaration, ValueState))
        if isinstance(declaration, ReducingState):
            return table, FoldedReducing(declaration, value)
        if isinstance(declaration, AggregatingState):
            return table, FoldedAggregating(declaration, value)
        return table, value

    def _new_nested(self, declaration: ListState[Any] | MapState[Any, Any]) -> tuple[Table, Handle]:
        current = self._current
        if declaration.ttl is None:
            if isinstance(declaration, ListState):
                lists = ListTable()
                return lists, DictList(declaration, lists, current)
            maps = MapTable()
            return maps, DictMap(declaration, maps, current)
        lifetime = Lifetime(declaration.ttl, self._wall_clock)
        if isinstance(declaration, ListState):
            expiring_lists = ExpiringLists(lifetime.milliseconds)
            self._swept.append(expiring_lists)
            return expiring_lists, ExpiringList(declaration, expiring_lists, current, lifetime)
        expiring_maps = ExpiringMaps(lifetime.milliseconds)
        self._swept.append(expiring_maps)
        return expiring_maps, ExpiringMap(declaration, expiring_maps, current, lifetime)

    def _new_value(self, declaration: StoredValue, columnar: bool) -> tuple[Table, ValueHandle[Any]]:
        if declaration.ttl is not None:
            lifetime = Lifetime(declaration.ttl, self._wall_clock)
            expiring = ExpiringValues(lifetime.milliseconds)
            self._swept.append(expiring)
            return expiring, ExpiringValue(declaration, expiring, self._current, self.key_type, lifetime)
        if columnar and declaration.value_type.numpy is not None:
            assert isinstance(declaration, ValueState)
            columns = ColumnTable(declaration, self.key_type)
            return columns, ColumnValue(declaration, columns, self._current)
        values = ValueTable()
        return values, value_handle(declaration, values, self._current, self.key_type)

    def set_current_key(self, key: Hashable) -> None:
        current = self._current
        current.key = key
        current.chunk = hash((key,)) & CHUNK_MASK  # chunk_of, without the call

    def set_current_namespace(self, namespace: bytes) -> None:
        current = self._current
        if current.key is not NO_KEY:
            current.key = in_namespace(bare_key(current.key), namespace)
            current.chunk = chunk_of(current.key)

    def clear_current_key(self) -> None:
        self._current.unset()

    def snapshot(self) -> HeapSnapshot:
        frozen = [(declaration, table.freeze()) for declaration, table, _ in self._states.values()]
        return HeapSnapshot(frozen, self.key_type, self.key_groups, self.max_parallelism, self._now_ms())

    def restore(
        self, state_name: str, kind: str, batches: Iterable[pa.RecordBatch], *, only_own_key_groups: bool = False
    ) -> None:
        declaration, table, _ = self._declared(state_name, kind)
        reader = SectionReader(declaration, self.key_type, self._now_ms())
        for rows in batches:
            own = reader.only(rows, self.key_groups, self.max_parallelism) if only_own_key_groups else rows
            table.load(reader.live(own), reader)

    def _declared(self, state_name: str, kind: str) -> tuple[Declaration, Table, Handle]:
        state = self._states.get(state_name)
        if state is None:
            raise ConfigurationError(
                f"the checkpoint holds a {kind} state {state_name!r}, which the operator no longer declares; it "
                f"declares {sorted(self._states) or 'none'}. Declare it again, or start without this operator's "
                "state under another uid.",
                state=state_name,
            )
        if state[0].kind != kind:
            raise ConfigurationError(
                f"the checkpoint holds {state_name!r} as a {kind} state, but it is declared as a {state[0].kind} state "
                f"at {state[0].line}. Declare it as it was, or give the new state another name.",
                state=state_name,
            )
        return state

    def clean_up(self, budget_entries: int) -> int:
        if not self._swept:
            return 0
        self._swept_at.ms = self._now_ms()
        return sum(islice(self._sweep, budget_entries))

    def _rounds(self) -> Iterator[int]:
        """For ever; taken a few steps at a time, and only when there is something to sweep."""
        while True:
            for table in self._swept:
                yield from table.sweep(self._swept_at)

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)

    def entries(self, state_name: str) -> Iterator[tuple[Hashable, Any]]:
        table = self._states[state_name][1]
        assert isinstance(table, DictTable)
        yield from table.entries()

    def keys(self, state_name: str) -> Iterator[Hashable]:
        return self._states[state_name][1].live_keys(self._now_ms())

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
            writer = SectionWriter(declaration, self._key_type, self._key_groups, self._max_parallelism, self._now_ms)
            table.write(writer)
            yield from writer.finish()

    def release(self) -> None:
        for _, table in self._frozen:
            table.release()
