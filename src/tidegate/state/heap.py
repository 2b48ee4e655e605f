"""The heap backend: keyed state in the memory of the worker. Executor.

A state is a table, in one of two layouts with the same stored form: dictionaries (state/heap_dict.py), or numpy columns
for numbers that are used in batches (state/heap_columns.py). Both are copied piece by piece on the first write after a
snapshot began, so the synchronous part of a snapshot takes microseconds whatever the size of the state.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from tidegate.errors import ConfigurationError
from tidegate.state.backend import KeyedSnapshot, KeyedStateBackend, Section
from tidegate.state.declarations import Declaration, ListState, MapState, ValueState
from tidegate.state.heap_columns import ColumnTable, ColumnValue
from tidegate.state.heap_dict import DictList, DictMap, value_handle
from tidegate.state.heap_tables import CHUNK_MASK, CurrentKey, ListTable, MapTable, ValueTable
from tidegate.state.sections import SectionReader, SectionWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.backend import Handle
    from tidegate.state.keys import KeyType


class FrozenTable(Protocol):
    """A table at one moment; `write` comes from the snapshot's thread, at most once."""

    def write(self, writer: SectionWriter) -> None: ...

    def release(self) -> None: ...


class Table(Protocol):
    """All keys of one state."""

    def freeze(self) -> FrozenTable: ...

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None: ...

    def __len__(self) -> int: ...


class HeapStateBackend(KeyedStateBackend):
    """Keyed state of one operator in one subtask, in memory."""

    def __init__(self, key_type: KeyType, key_groups: range, max_parallelism: int) -> None:
        self.key_type = key_type
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self._current = CurrentKey()
        self._states: dict[str, tuple[Declaration, Table, Handle]] = {}

    def bind(self, declaration: Declaration, columnar: bool = False) -> Handle:
        state = self._states.get(declaration.name)
        if state is None:
            state = self._states[declaration.name] = (declaration, *self._new_state(declaration, columnar))
        return state[2]

    def _new_state(self, declaration: Declaration, columnar: bool) -> tuple[Table, Handle]:
        if isinstance(declaration, ListState):
            lists = ListTable()
            return lists, DictList(declaration, lists, self._current)
        if isinstance(declaration, MapState):
            maps = MapTable()
            return maps, DictMap(declaration, maps, self._current)
        assert isinstance(declaration, ValueState)
        if columnar and declaration.value_type.numpy is not None:
            columns = ColumnTable(declaration, self.key_type)
            return columns, ColumnValue(declaration, columns, self._current)
        values = ValueTable()
        return values, value_handle(declaration, values, self._current, self.key_type)

    def set_current_key(self, key: Hashable) -> None:
        current = self._current
        current.key = key
        current.chunk = hash((key,)) & CHUNK_MASK  # chunk_of, without the call

    def clear_current_key(self) -> None:
        self._current.unset()

    def snapshot(self) -> HeapSnapshot:
        frozen = [(declaration, table.freeze()) for declaration, table, _ in self._states.values()]
        return HeapSnapshot(frozen, self.key_type, self.key_groups, self.max_parallelism)

    def restore(
        self, state_name: str, kind: str, batches: Iterable[pa.RecordBatch], *, only_own_key_groups: bool = False
    ) -> None:
        declaration, table, _ = self._declared(state_name, kind)
        reader = SectionReader(declaration, self.key_type)
        for rows in batches:
            table.load(
                reader.only(rows, self.key_groups, self.max_parallelism) if only_own_key_groups else rows, reader
            )

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
    ) -> None:
        self._frozen = frozen
        self._key_type = key_type
        self._key_groups = key_groups
        self._max_parallelism = max_parallelism

    def sections(self) -> Iterator[Section]:
        for declaration, table in self._frozen:
            writer = SectionWriter(declaration, self._key_type, self._key_groups, self._max_parallelism)
            table.write(writer)
            yield from writer.finish()

    def release(self) -> None:
        for _, table in self._frozen:
            table.release()
