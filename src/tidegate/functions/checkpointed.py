"""Functions that keep operator state: state of the subtask, not of a key. They run on the executors, in the task's thread.

    class Buffer(tg.CheckpointedFunction, tg.ProcessFunction):
        def initialize_state(self, ctx):
            self.rows = ctx.operator_state.list_state("rows", str)

        def process_element(self, row, ctx):
            self.rows.add(row)

Order: initialize_state, open, then records; snapshot_state for each checkpoint, between two records. What the state
holds when snapshot_state returns is what the checkpoint has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.errors import ConfigurationError

if TYPE_CHECKING:
    from tidegate.state.operator_state import OperatorStateStore
    from tidegate.state.raw_state import RawInput, RawOutput


def _no_keys(key: Any) -> int:
    raise ConfigurationError("this operator has no keys, so no key group either: use it after key_by.")


@dataclass(frozen=True, slots=True)
class InitializationContext:
    """What `initialize_state` may ask."""

    operator_state: OperatorStateStore
    is_restored: bool  #: this attempt continues from a checkpoint that knows this operator
    subtask: int  #: 0 .. parallelism-1
    parallelism: int
    key_groups: range  #: the key groups of this subtask; empty for an operator without keys
    key_group_of: Callable[[Any], int] = _no_keys  #: the key group of a key, for raw keyed state

    @property
    def raw(self) -> RawInput:
        """Bytes that `snapshot_state` wrote itself."""
        return self.operator_state.raw


@dataclass(frozen=True, slots=True)
class SnapshotContext:
    """What `snapshot_state` may ask."""

    checkpoint: int  #: its id
    raw: RawOutput  #: for bytes that the function writes itself


class CheckpointedFunction:
    """Mixin for whatever keeps operator state: process functions, functions in class form for map and its kin, readers of
    sources, writers of sinks. Put it before the other base class."""

    def initialize_state(self, ctx: InitializationContext, /) -> None:
        """Ask for every operator state, on every start: a stored one that is not asked for stops the job.

        Classic mistake: to fill a state on every start. Fill it only where `ctx.is_restored` is False.
        """
        raise NotImplementedError(f"{type(self).__name__} must define initialize_state(self, ctx)")

    def snapshot_state(self, ctx: SnapshotContext, /) -> None:
        """Bring the states up to date from plain attributes, where there are such. Runs in the task's thread: be quick."""
