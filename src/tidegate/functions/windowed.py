"""A windowed operator as data: its assigner, trigger and evictor, what it keeps of a window, what it makes of it.

Made on the driver, shipped, and given its state on the executor like any function: the class is made for it, with the states
that it needs, those that the window's function declares, and those of the trigger (under `trigger_...`).

What is kept of a window is its records (`elements`), or one value into which each record is folded (`folded`). It is filed
under the key in a namespace, which is the window; of a session under the window that was its first. Windows of two streams keep
each record with its side (functions/window_joins.py).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from tidegate.errors import ConfigurationError
from tidegate.functions.evictors import Evictor
from tidegate.functions.process import Context
from tidegate.functions.triggers import Trigger, innermost
from tidegate.functions.window_functions import ProcessWindowFunction, WindowBatchFunction
from tidegate.functions.window_joins import PairColumns
from tidegate.functions.windows import WindowAssigner
from tidegate.state.declarations import Declaration, ListState, declared_states

TRIGGER_STATE = "trigger_"  #: before the name of a trigger's state
OWN_STATES = ("contents", "timestamps", "sessions")

WindowFunction = ProcessWindowFunction[Any, Any] | WindowBatchFunction[Any] | PairColumns


class Windowed:
    """One windowed operator. `declare` makes it."""

    assigner: WindowAssigner
    trigger: Trigger
    evictor: Evictor | None
    lateness_ms: int
    function: WindowFunction | None  #: of all elements, or of the folded value; None: the value itself goes out
    fold: (
        Callable[[list[Any]], Any] | None
    )  #: of the elements, where an evictor keeps the window from being folded at once
    late_tags: tuple[str, ...]  #: the side output of late records of each input. Two: it keeps records with their side

    @property
    def is_of_two(self) -> bool:
        return len(self.late_tags) == 2

    def open(self, ctx: Context, /) -> None:
        if self.function is not None:
            self.function.open(ctx)

    def end_input(self, ctx: Context, /) -> Any:
        return None if self.function is None else self.function.end_input(ctx)

    def close(self) -> None:
        if self.function is not None:
            self.function.close()

    def hand_out_states(self) -> None:
        """The handles that the operator has bound to this object, to the function and the trigger that declared them."""
        for part, prefix in ((self.function, ""), (innermost(self.trigger), TRIGGER_STATE)):
            for name in declared_states(part) if part is not None else ():
                part.__dict__[name] = self.__dict__[prefix + name]


def declare(
    contents: Declaration,
    *,
    assigner: WindowAssigner,
    trigger: Trigger,
    evictor: Evictor | None,
    lateness_ms: int,
    function: WindowFunction | None,
    fold: Callable[[list[Any]], Any] | None,
    late_tags: tuple[str, ...],
) -> Windowed:
    """`contents`: the state that keeps what is in a window."""
    states: dict[str, Any] = {"contents": contents}
    if evictor is not None:
        states["timestamps"] = ListState(int)
    if assigner.merges:
        states["sessions"] = ListState(tuple[int, int, int, int])
    for part, prefix in ((function, ""), (innermost(trigger), TRIGGER_STATE)):
        for name, declaration in (declared_states(part) if part is not None else {}).items():
            if part is function and (name in OWN_STATES or name.startswith(TRIGGER_STATE)):
                raise ConfigurationError(
                    f"state {name!r} ({declaration.line}): windows have one of that name themselves, as they have "
                    f"{', '.join(OWN_STATES)} and {TRIGGER_STATE}...: call it otherwise",
                    state=name,
                )
            states[prefix + name] = _renamed(declaration, prefix + name)
    windowed: Windowed = type("DeclaredWindowed", (Windowed,), states)()  # cloudpickle ships it whole
    windowed.assigner = assigner
    windowed.trigger = trigger
    windowed.evictor = evictor
    windowed.lateness_ms = lateness_ms
    windowed.function = function
    windowed.fold = fold
    windowed.late_tags = late_tags
    return windowed


def _renamed(declaration: Declaration, name: str) -> Declaration:
    twin = copy(declaration)
    twin.name = name
    return twin
