"""What backends that keep a table for each state have in common: finding a state, refusing what does not fit it, restoring
rows, walking keys. Executor, the task's thread."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from tidegate.errors import ConfigurationError
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.declarations import Declaration, StoredList, StoredMap, StoredValue
from tidegate.state.fitting import Intake, object_intake
from tidegate.state.folding import OVER_STORED
from tidegate.state.heap_tables import NO_KEY, CurrentKey
from tidegate.state.key_groups import key_group
from tidegate.state.map_keys import map_key_fit
from tidegate.state.namespaces import bare_key, in_namespace
from tidegate.state.nested_handles import KeptList, KeptMap, TimedList, TimedMap
from tidegate.state.sections import SectionReader
from tidegate.state.timers import TimerState, timers_in_lists
from tidegate.state.ttl import Lifetime
from tidegate.state.value_handles import KeptValue, TimedValue

if TYPE_CHECKING:
    import pyarrow as pa

    from tidegate.state.handles import Handle
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
        if isinstance(declaration, StoredValue) and declaration.ttl is None:
            table, handle = self._new_plain_value(declaration, columnar)
        else:
            table, handle = self._new_table(declaration)
        over = OVER_STORED.get(declaration.kind)
        return table, handle if over is None else over(declaration, handle)

    def _new_plain_value(self, declaration: StoredValue, columnar: bool) -> tuple[TableT, Handle]:
        """Without a TTL. A backend that has columns, or a quicker handle, gives that."""
        return self._new_table(declaration)

    def _new_table(self, declaration: Declaration) -> tuple[TableT, Handle]:
        current, values = self._current, self._intake(declaration, declaration.value_type)
        lifetime = None if declaration.ttl is None else Lifetime(declaration.ttl, self._wall_clock)
        table: Any
        if isinstance(declaration, StoredValue):
            table = self._new_values(declaration)
            if lifetime is None:
                return table, KeptValue(declaration, table, current, self.key_type, values)
            return table, TimedValue(declaration, table, current, self.key_type, values, lifetime)
        if isinstance(declaration, StoredList):
            table = self._new_lists(declaration)
            if lifetime is None:
                return table, KeptList(table, current, values)
            return table, TimedList(table, current, values, lifetime)
        assert isinstance(declaration, StoredMap)
        table, keys = self._new_maps(declaration), self._intake_of_map_keys(declaration)
        if lifetime is None:
            return table, KeptMap(table, current, keys, values)
        return table, TimedMap(table, current, keys, values, lifetime)

    def _intake(self, declaration: Declaration, data_type: DataType) -> Intake:
        """In and out of the form in which this backend keeps values of a type: the objects that they are, unless it says so."""
        return object_intake(declaration, data_type)

    def _intake_of_map_keys(self, declaration: StoredMap) -> Intake:
        return Intake(map_key_fit(declaration), None)

    @abstractmethod
    def _new_values(self, declaration: StoredValue) -> TableT:
        """`KeptValues` (state/value_handles.py) too."""

    @abstractmethod
    def _new_lists(self, declaration: StoredList) -> TableT:
        """`KeptLists` (state/nested_handles.py) too."""

    @abstractmethod
    def _new_maps(self, declaration: StoredMap) -> TableT:
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

    def restore(self, state_name: str, kind: str, batches: Iterable[pa.RecordBatch]) -> None:
        declaration, table = self._declared(state_name, kind)
        reader = SectionReader(declaration, self.key_type, self._now_ms())
        for stored in batches:
            rows = timers_in_lists(stored) if (kind, declaration.kind) == _TIMERS_IN_LISTS else stored
            table.load(reader.live(rows), reader)

    def _now_ms(self) -> int:
        return int(self._wall_clock() * 1000)
