"""What a user most likely meant, added to an exception that Python words well and nobody new to state understands.
Executor."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from tidegate.functions.process import Context
from tidegate.graph.specs import user_function_of
from tidegate.state.broadcast import BroadcastState, broadcast_states
from tidegate.state.declarations import Declaration, declared_states

if TYPE_CHECKING:
    from tidegate.task.operators.base import RunningOperator


def hint_for(error: BaseException, operator: RunningOperator | None) -> str:
    """A sentence to be put after the message, with the space before it; "" where there is nothing to add."""
    if not isinstance(error, AttributeError) or operator is None:
        return ""
    # Both are set by Python itself, and may be missing where a program raises the error.
    owner, name = getattr(error, "obj", None), getattr(error, "name", None) or ""
    function = user_function_of(operator.planned.operator.spec)
    if isinstance(owner, (Declaration, BroadcastState)):
        return (
            ". This is the declaration of a state, not the state. Declare it on the class, and use it as self.name in "
            "process_element: there it is the state of the current key"
        )
    if isinstance(owner, Context) and name.startswith("get_") and name.endswith("state"):
        return (
            ". State is declared on the class: `count = tg.ValueState(int, default=0)` in its body; self.count is "
            "then the "
            "state of the current key"
        )
    if name and type(owner) is type(function) and hasattr(type(function), "open"):
        return _undeclared(function, name)
    return ""


def _undeclared(function: object, name: str) -> str:
    """An attribute of a function object that nobody has set."""
    declared = [*declared_states(function), *broadcast_states(function)]
    near = difflib.get_close_matches(name, declared, n=1)
    if near:
        return f". Did you mean the state self.{near[0]}?"
    there = f" (declared are {', '.join(declared)})" if declared else ""
    return (
        f". If it is a state{there}: state is declared on the class. Write `{name} = tg.ValueState(int, "
        f"default=0)`, or what it "
        f"is, in the body of class {type(function).__name__}. What is not state is set in open(self, ctx)"
    )
