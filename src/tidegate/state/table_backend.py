"""What backends that keep a table for each state have in common: finding a state, refusing what does not fit it, restoring
rows, walking keys. Executor, the task's thread."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tidegate.errors import ConfigurationError
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.declarations import (
    AggregatingState,
    Declaration,
    ListState,
    MapState,
    ReducingState,
    StoredValue,
)
from tidegate.state.folding import FoldedAggregating, FoldedReducing
from tidegate.state.heap_tables import NO_KEY, CurrentKey
from tidegate.state.key_groups import key_group
from tidegate.state.namespaces import bare_key, in_namespace
from tidegate.state.nested_handles import KeptList, KeptMap, TimedList, TimedMap
from tidegate.state.sections import SectionReader
from tidegate.state.timed import TimedValue
from tidegate.state.timers import TimerState, timers_in_lists
from tidegate.state.ttl import Lifetime

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.backend import Handle
    from tidegate.state.fitting import Intake
    from tidegate.state.handles import ValueHandle
    from tidegate.state.keys import KeyType
    from tidegate.types import DataType


class StateTable(Protocol):
    """All keys of one state."""

    def load(self, rows: pa.RecordBatch, reader: SectionReader) -> None:
        """Add stored rows."""

    def entries(self) -> Iterator[tuple[Hashable, Any]]:
        """Every key with what it holds."""

    def live_keys(self, now_ms: int) -> Iterator[Hashable]:
        """The keys in the empty namespace that have something which has not expired."""


_TIMERS_IN_LISTS = ("list", "timer")  #: stored as, declared as

TableT = TypeVar("TableT", bound=StateTable)


class TableBackend(KeyedStateBackend, Generic[TableT]):
    """Keyed state of one operator in one subtask: a table and a handle for each state.

    `wall_clock` gives seconds since 1970; TTLs count by it.
    """

    def __init__(
        self, key_type: KeyType, key_groups: range, max_parallelism: int, wall_clock: Callable[[], float]
    ) -> None:
        self.key_type = key_type
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self._wall_clock = wall_clock
        self._current = CurrentKey()
        self._states: dict[str, tuple[Declaration, TableT, Handle]] = {}
        self._swept: deque[TableT] = deque()  #: the tables whose entries expire

    # -- states ------------------------------------------------------------------------------------------------------

    def bind(self, declaration: Declaration, columnar: bool = False) -> Handle:
        state = self._states.get(declaration.name)
        if state is None:
            state = self._states[declaration.name] = (declaration, *self._new_state(declaration, columnar))
            if declaration.ttl is not None:
                self._swept.append(state[1])
        return state[2]

    def _new_state(self, declaration: Declaration, columnar: bool) -> tuple[TableT, Handle]:
        if isinstance(declaration, TimerState):
            return self._new_timers(declaration)
        if isinstance(declaration, StoredValue):
            table, value = self._new_value(declaration, columnar)
            if isinstance(declaration, ReducingState):
                return table, FoldedReducing(declaration, value)
            if isinstance(declaration, AggregatingState):
                return table, FoldedAggregating(declaration, value)
            return table, value
        values = self._intake(declaration, declaration.value_type)
        lifetime = None if declaration.ttl is None else Lifetime(declaration.ttl, self._wall_clock)
        if isinstance(declaration, ListState):
            lists: Any = self._new_lists(declaration)
            if lifetime is None:
                return lists, KeptList(lists, self._current, values)
            return lists, TimedList(lists, self._current, values, lifetime)
        assert isinstance(declaration, MapState)
        maps: Any = self._new_maps(declaration)
        keys = self._intake_of_map_keys(declaration)
        if lifetime is None:
            return maps, KeptMap(maps, self._current, keys, values)
        return maps, TimedMap(maps, self._current, keys, values, lifetime)

    def _new_value(self, declaration: StoredValue, columnar: bool) -> tuple[TableT, ValueHandle[Any]]:
        if declaration.ttl is None:
            return self._new_plain_value(declaration, columnar)
        table: Any = self._new_values(declaration)
        lifetime, intake = (
            Lifetime(declaration.ttl, self._wall_clock),
            self._intake(declaration, declaration.value_type),
        )
        return table, TimedValue(declaration, table, self._current, self.key_type, intake, lifetime)

    @abstractmethod
    def _intake(self, declaration: Declaration, data_type: DataType) -> Intake:
        """In and out of the form in which this backend keeps values of a type."""

    @abstractmethod
    def _intake_of_map_keys(self, declaration: MapState[Any, Any]) -> Intake: ...

    @abstractmethod
    def _new_plain_value(self, declaration: StoredValue, columnar: bool) -> tuple[TableT, ValueHandle[Any]]:
        """Without a TTL, and as fast as can be: its handle is the backend's own."""

    @abstractmethod
    def _new_values(self, declaration: StoredValue) -> TableT:
        """`KeptValues` (state/timed.py) too."""

    @abstractmethod
    def _new_lists(self, declaration: ListState[Any]) -> TableT:
        """`KeptLists` (state/nested_handles.py) too."""

    @abstractmethod
    def _new_maps(self, declaration: MapState[Any, Any]) -> TableT:
        """`KeptMaps` (state/nested_handles.py) too."""

    @abstractmethod
    def _new_timers(self, declaration: TimerState) -> tuple[TableT, Handle]: ...

    def _declared(self, state_name: str, kind: str) -> tuple[Declaration, TableT]:
        """:raises ConfigurationError: for stored state that is not declared any more, or as another kind."""
        state = self._states.get(state_name) or self._renamed(state_name)
        if state is None:
            raise ConfigurationError(
                f"the checkpoint holds a {kind} state {state_name!r}, which the operator no longer declares; it "
                f"declares {sorted(self._states) or 'none'}. Declare it again, or start without this operator's "
                "state under another uid.",
                state=state_name,
            )
        if state[0].kind != kind and (kind, state[0].kind) != _TIMERS_IN_LISTS:
            raise ConfigurationError(
                f"the checkpoint holds {state_name!r} as a {kind} state, but it is declared as a {state[0].kind} state "
                f"at {state[0].line}. Declare it as it was, or give the new state another name.",
                state=state_name,
            )
        return state[0], state[1]

    def _renamed(self, stored_name: str) -> tuple[Declaration, TableT, Handle] | None:
        """The state that had this name when it was stored."""
        return next((state for state in self._states.values() if state[0].renamed_from == stored_name), None)

    # -- keys --------------------------------------------------------------------------------------------------------

    def set_current_namespace(self, namespace: bytes) -> None:
        current = self._current
        if current.key is not NO_KEY:
            self._set_table_key(in_namespace(bare_key(current.key), namespace))

    def _set_table_key(self, table_key: Hashable) -> None:
        self._current.key = table_key

    def key_group_of(self, key: Any) -> int:
        return key_group(self.key_type.hash(self.key_type.normalise(key)), self.max_parallelism)

    def clear_current_key(self) -> None:
        self._current.unset()

    def entries(self, state_name: str) -> Iterator[tuple[Hashable, Any]]:
        return self._states[state_name][1].entries()

    def keys(self, state_name: str) -> Iterator[Hashable]:
        return self._states[state_name][1].live_keys(self._now_ms())

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def restore(
        self, state_name: str, kind: str, batches: Iterable[pa.RecordBatch], *, only_own_key_groups: bool = False
    ) -> None:
        declaration, table = self._declared(state_name, kind)
        reader = SectionReader(declaration, self.key_type, self._now_ms())
        for stored in batches:
            rows = timers_in_lists(stored) if (kind, declaration.kind) == _TIMERS_IN_LISTS else stored
            own = reader.only(rows, self.key_groups, self.max_parallelism) if only_own_key_groups else rows
            table.load(reader.live(own), reader)

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)
