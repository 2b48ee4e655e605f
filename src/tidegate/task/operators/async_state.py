"""What an asynchronous operator has in flight, as state. Executor; the task's thread.

    without keys   the operator state "in_flight", a list: at another parallelism split evenly
    with keys      the keyed state "in_flight", a list for each key: at another parallelism it follows its key

Written whole at each checkpoint: it is never more than the operator may have in flight. A row is (place, timestamp, record,
answers); no answers: it has to be asked about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.functions.asynchronous import IN_FLIGHT
from tidegate.functions.checkpointed import CheckpointedFunction, InitializationContext, SnapshotContext
from tidegate.state.declarations import declared_states
from tidegate.task.operators.base import OperatorFailed, RunningOperator, key_place
from tidegate.task.operators.checkpointed import OperatorStateKeeper, keeper_for

if TYPE_CHECKING:
    from tidegate.functions.asynchronous import AsyncCalls
    from tidegate.graph.key_selector import KeySelector
    from tidegate.state.backend import KeyedStateBackend
    from tidegate.state.handles import ListHandle


@dataclass(frozen=True, slots=True)
class InFlightRow:
    """A record in flight."""

    timestamp: int | None
    value: Any
    rows: list[Any] | None  #: what leaves for it; None: not answered
    key: Any = None


class InFlightStore:
    """Of an operator without keys."""

    backend: KeyedStateBackend | None = None

    def __init__(self, function: Any, row_type: Any) -> None:
        self._owner = _Owner(function, row_type)
        self.keeper: OperatorStateKeeper | None = keeper_for(self._owner)

    def keys_of(self, operator: RunningOperator, rows: list[Any]) -> list[Any] | None:
        return None

    def restored(self) -> list[InFlightRow]:
        return [InFlightRow(stamp, value, rows) for _, stamp, value, rows in self._owner.restored]

    def keep(self, rows: list[InFlightRow]) -> None:
        self._owner.rows = [(place, row.timestamp, row.value, row.rows) for place, row in enumerate(rows)]


class _Owner(CheckpointedFunction):
    """Keeps the list beside what the user's function keeps."""

    def __init__(self, function: Any, row_type: Any) -> None:
        self._function = function if isinstance(function, CheckpointedFunction) else None
        self._row_type = row_type
        self.rows: list[Any] = []  #: for the next snapshot
        self.restored: list[Any] = []

    def initialize_state(self, ctx: InitializationContext, /) -> None:
        self._list = ctx.operator_state.list_state(IN_FLIGHT, self._row_type)
        self.restored = self._list.get()
        if self._function is not None:
            self._function.initialize_state(ctx)

    def snapshot_state(self, ctx: SnapshotContext, /) -> None:
        self._list.set(self.rows)
        if self._function is not None:
            self._function.snapshot_state(ctx)


class KeyedInFlightStore(InFlightStore):
    """Of an operator with keys."""

    def __init__(self, calls: AsyncCalls, key: KeySelector, backend: KeyedStateBackend) -> None:
        self.keeper = keeper_for(calls.owner, backend)
        declaration = declared_states(calls)[IN_FLIGHT]
        self.backend = backend
        self._keyed_backend = backend
        self._list: ListHandle[Any] = backend.bind(declaration)  # type: ignore[assignment]
        self._key = key
        self._stored: set[Any] = set()  #: keys that have something stored

    def keys_of(self, operator: RunningOperator, rows: list[Any]) -> list[Any] | None:
        try:
            return self._key.key_type().normalise_many(list(map(self._key.row_key(), rows)))
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(operator, error, place=key_place(operator.planned.operator, self._key)) from error

    def restored(self) -> list[InFlightRow]:
        """As they came, where they come from one old subtask; else those of one key."""
        found = [(row, key) for key, rows in self._keyed_backend.entries(IN_FLIGHT) for row in rows]
        self._stored = {key for _, key in found}
        found.sort(key=lambda pair: pair[0][0])
        return [InFlightRow(stamp, value, rows, key) for (_, stamp, value, rows), key in found]

    def keep(self, rows: list[InFlightRow]) -> None:
        backend = self._keyed_backend
        try:
            for key in self._stored:
                backend.set_current_key(key)
                self._list.clear()
            by_key: dict[Any, list[Any]] = {}
            for place, row in enumerate(rows):
                by_key.setdefault(row.key, []).append((place, row.timestamp, row.value, row.rows))
            for key, stored in by_key.items():
                backend.set_current_key(key)
                self._list.set(stored)
            self._stored = set(by_key)
        finally:
            backend.clear_current_key()
