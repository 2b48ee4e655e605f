"""The states of a checkpoint in the driver, and the moves between them. Values; checkpointing.py makes the moves.

The diagram stands above checkpointing.py.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.ids import CheckpointId, SlotId
from tidegate.protocol.checkpoint_events import Purpose


class CheckpointState(enum.Enum):
    PENDING = "waits for acknowledgements"
    UNCOVERED = "acknowledged by all; waits for a checkpoint after it"  #: of a savepoint
    STORING = "on its way to storage; it may stand"
    COMPLETED = "stored"
    ABORTED = "given up"


#: An ended checkpoint is forgotten: the last two are left for nothing, and no record has them.
MOVES: Mapping[CheckpointState, frozenset[CheckpointState]] = {
    CheckpointState.PENDING: frozenset(
        {CheckpointState.UNCOVERED, CheckpointState.STORING, CheckpointState.ABORTED},
    ),
    CheckpointState.UNCOVERED: frozenset({CheckpointState.STORING, CheckpointState.ABORTED}),
    CheckpointState.STORING: frozenset({CheckpointState.COMPLETED, CheckpointState.ABORTED}),
    CheckpointState.COMPLETED: frozenset(),
    CheckpointState.ABORTED: frozenset(),
}


@dataclass(slots=True)
class TriggeredCheckpoint:
    """From its trigger to its end."""

    checkpoint: CheckpointId
    purpose: Purpose
    deadline: float  #: does not hold while it is stored
    state: CheckpointState = CheckpointState.PENDING
    snapshots: dict[SlotId, Any] = field(default_factory=dict)  #: of all slots, unless it is PENDING
    request: int | None = None

    @property
    def storing(self) -> bool:
        return self.state is CheckpointState.STORING

    @property
    def commits(self) -> bool:
        """A plain savepoint does not."""
        return self.purpose is not Purpose.SAVEPOINT
