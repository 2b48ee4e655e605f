"""Functions with a broadcast side: records on input 0, elements that every subtask gets on input 1. Executor; task's thread.

Broadcast state is open for writing only while an element of input 1 is worked on (state/broadcast.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.batch import Batch
from tidegate.errors import ConfigurationError
from tidegate.functions.process import BroadcastContext
from tidegate.state.broadcast import Gate
from tidegate.state.declarations import declared_states
from tidegate.task.operators.process import FunctionOperator, KeyedProcessOperator
from tidegate.wire.control import SubtaskRestore


class _BroadcastSide(FunctionOperator):
    """What both have: the second input."""

    def open(self, restore: SubtaskRestore | None) -> None:
        super().open(restore)
        context = BroadcastContext(
            self._job, self.uid, self.name, self.subtask, self.parallelism, restored=restore is not None
        )
        context._emit_side = self._collect_side
        context._metrics = self._context._metrics
        context._apply = self._apply
        self._broadcast_context = context
        self._gate = Gate() if self.keeper is None else self.keeper.gate  # without a keeper there is no broadcast state

    def _run_broadcast(self, batch: Batch) -> None:
        context = self._broadcast_context
        context.current_watermark = self.watermark
        with self._gate.opened():
            self._run_plain(batch, self._hook("process_broadcast_element"), context)

    def _apply(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        raise ConfigurationError(
            f"{self.name} has no keys, so there is no keyed state to apply a function to. Use a "
            "KeyedBroadcastProcessFunction on a keyed stream."
        )


class BroadcastOperator(_BroadcastSide):
    """Records without keys."""

    def process(self, batch: Batch, input_index: int) -> None:
        if input_index:
            self._run_broadcast(batch)
        else:
            self._run_plain(batch, self._hook("process_element"), self._context)


class KeyedBroadcastOperator(_BroadcastSide, KeyedProcessOperator):
    """Records with keys."""

    def process(self, batch: Batch, input_index: int) -> None:
        if input_index:
            self._run_broadcast(batch)
        else:
            super().process(batch, input_index)

    def _apply(self, state: Any, function: Callable[[Any, Any], None]) -> None:
        backend, context = self._keyed_backend, self._broadcast_context
        name, handle = self._declared(state)
        try:
            for normalised in backend.keys(name):
                backend.set_current_key(normalised)
                context.key = key = self._denormalise(normalised)
                function(key, handle)
        finally:
            backend.clear_current_key()
            context.key = None

    def _declared(self, state: Any) -> tuple[str, Any]:
        """A state by its handle or its name."""
        for name in declared_states(self._function):
            handle = self._function.__dict__[name]
            if state is handle or state == name:
                return name, handle
        raise ConfigurationError(
            f"{self.name}: apply_to_keyed_state was called with {state!r}, which is not a keyed state of "
            f"{type(self._function).__name__}. Give it one of its declared states, as self.count."
        )
