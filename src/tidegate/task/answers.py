"""The asynchronous operators of one slot: whether they have room, and what they let go. Executor; the task's thread.

A slot whose calls are at their most takes no input, as one without credit does: a queue that is full says so to whoever
sends. So that no barrier waits for a call, a checkpoint of such a slot turns unaligned soon (TURNS_AFTER_S), whatever the job's
setting is: what stands before its barriers becomes part of it. A savepoint does not, and waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.protocol.credit import MANY
from tidegate.task.operators.async_calls import AsyncOperator
from tidegate.task.operators.base import OperatorFailed, RunningOperator

TURNS_AFTER_S = 0.1


class SlotAnswers:
    """See the module. Costs nothing where there are no such operators."""

    def __init__(self, operators: Sequence[RunningOperator]) -> None:
        self._operators = [operator for operator in operators if isinstance(operator, AsyncOperator)]

    def __bool__(self) -> bool:
        return bool(self._operators)

    @property
    def room(self) -> int:
        """How many records all of them can take."""
        return min(operator.room for operator in self._operators) if self._operators else MANY

    def release(self) -> bool:
        """Hand on what was answered, and ask about what waits. Whether there was something."""
        released = False
        for operator in self._operators:
            try:
                released = operator.release() or released
            except OperatorFailed:
                raise
            except Exception as error:
                raise OperatorFailed(operator, error) from error
        return released

    @property
    def aligned_at_most_s(self) -> float | None:
        """For so long may a barrier wait in this slot; None: for as long as it must."""
        return TURNS_AFTER_S if self._operators else None


def nothing() -> None:
    """A letter that only wakes."""
