"""The operator state of one subtask: of a CheckpointedFunction, or of a function with a broadcast side. Executor; task's
thread.

Whatever a user may write can keep operator state: process functions, the functions of map, flat_map, filter and
map_batches in class form, a source's reader, a sink's writer.

    restore (the runtime) -> initialize -> records -> snapshot, for each checkpoint
"""

from __future__ import annotations

from typing import Any

from tidegate.functions.checkpointed import CheckpointedFunction, InitializationContext, SnapshotContext
from tidegate.ids import CheckpointId
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.broadcast import Gate, bind_broadcast_states, broadcast_states
from tidegate.state.operator_state import OperatorStateSnapshot, OperatorStateStore


class OperatorStateKeeper:
    """Calls the hooks of a user's object around its state."""

    def __init__(self, owner: Any, backend: KeyedStateBackend | None) -> None:
        self._backend = backend
        self._key_groups = range(0) if backend is None else backend.key_groups
        self.store = OperatorStateStore(self._key_groups)
        self.gate = Gate()  #: closed: broadcast state is read-only
        self._owner = owner

    def initialize(self, is_restored: bool, subtask: int, parallelism: int) -> None:
        """:raises ConfigurationError: for stored state that nobody asks for."""
        bind_broadcast_states(self._owner, self.store, self.gate)
        if isinstance(self._owner, CheckpointedFunction):
            keyed = () if self._backend is None else (self._backend.key_group_of,)
            self._owner.initialize_state(
                InitializationContext(self.store, is_restored, subtask, parallelism, self._key_groups, *keyed)
            )
        self.store.check_all_claimed()

    def snapshot(self, checkpoint: CheckpointId) -> OperatorStateSnapshot:
        """The synchronous part."""
        context = SnapshotContext(checkpoint, self.store.raw_output())
        if isinstance(self._owner, CheckpointedFunction):
            self._owner.snapshot_state(context)
        return self.store.snapshot(context.raw)


def keeper_for(owner: Any, backend: KeyedStateBackend | None = None) -> OperatorStateKeeper | None:
    """None for an object that keeps no operator state. `backend`: of a keyed operator."""
    if isinstance(owner, CheckpointedFunction) or broadcast_states(owner):
        return OperatorStateKeeper(owner, backend)
    return None
