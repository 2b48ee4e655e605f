"""What a keyed function keeps beside its state: read from its code and never by running it. Pure; driver.

A plain dict that `process_element` fills is the commonest mistake of all: it holds the keys of one subtask, is in no
checkpoint, and is empty after a restart. It may be meant (a cache), so this is told and not refused.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from tidegate.errors import UserLine
from tidegate.graph import specs
from tidegate.graph.user_code import is_users

_HOOKS = (
    *("process_element", "process_element1", "process_element2", "process_broadcast_element", "on_timer"),
    *("process_batch", "process_batches"),
)
_CHANGES = frozenset(
    {
        "append",
        "extend",
        "insert",
        "add",
        "update",
        "setdefault",
        "pop",
        "popitem",
        "remove",
        "discard",
        "clear",
        "appendleft",
    }
)
_CONTAINERS = frozenset({"dict", "list", "set", "defaultdict", "Counter", "deque", "OrderedDict"})
_OWN_STORES = ("initialize_state", "snapshot_state")  #: whoever has these puts into checkpoints what it wants


@dataclass(frozen=True, slots=True)
class Unkept:
    """An attribute that is not a state, and where it is changed."""

    function: str
    attribute: str
    line: UserLine

    def __str__(self) -> str:
        return (
            f"{self.function} changes self.{self.attribute} at {self.line}, which is not a state: it is in no checkpoint, "
            "holds what one subtask has seen of all its keys, and is gone after a restart. If that matters, declare it in the "
            f"body of class {self.function}: {self.attribute} = tg.ValueState(...), or tg.MapState(...). A cache may "
            "stay as it is."
        )


def unkept(spec: specs.Spec) -> Unkept | None:
    """The first one of a keyed function; None: there is none, or it cannot be said."""
    match spec:
        case specs.KeyedProcessSpec(function):
            pass
        case _:
            return None
    kind = type(function)
    if any(hasattr(kind, name) for name in _OWN_STORES):
        return None
    made = {name for method in ("__init__", "open") for name in _made_in(getattr(kind, method, None))}
    for name in _HOOKS:
        hook = getattr(kind, name, None)
        if isinstance(hook, FunctionType) and is_users(hook):
            for attribute, line in _changed(hook.__code__):
                if attribute in made:
                    return Unkept(kind.__name__, attribute, UserLine(hook.__code__.co_filename, line))
    return None


def _made_in(method: Any) -> Iterator[str]:
    """Attributes that it sets to a new dict, list, set or number."""
    if not isinstance(method, FunctionType) or not is_users(method):
        return
    named: set[str] = set()  #: what was loaded since the last statement
    fresh = False
    for step in dis.get_instructions(method):
        if step.opname == "STORE_ATTR" and fresh:
            yield step.argval
        if step.opname.startswith("STORE_"):
            named.clear()
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"):
            named.add(step.argval)
            fresh = False
        elif step.opname == "LOAD_CONST":
            fresh = type(step.argval) in (int, float)
        elif step.opname in ("BUILD_MAP", "BUILD_LIST", "BUILD_SET"):
            fresh = True
        elif step.opname.startswith("CALL"):
            fresh = not named.isdisjoint(_CONTAINERS)
        elif not step.opname.startswith("LOAD_FAST"):
            fresh = False


def _changed(code: CodeType) -> Iterator[tuple[str, int]]:
    """`self.x[...] = `, `self.x += `, `self.x.append(...)`: the attribute and the line."""
    if not code.co_varnames:
        return
    me = code.co_varnames[0]
    read: dict[Any, str] = {}  #: by the place where the expression begins
    own: str | None = None  #: of `self.x`, right before
    before: dis.Instruction | None = None
    for step in dis.get_instructions(code):
        at = step.positions
        place = None if at is None else (at.lineno, at.col_offset)
        line = 0 if at is None or at.lineno is None else at.lineno
        is_own = before is not None and before.opname.startswith("LOAD_FAST") and before.argval == me
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if own is not None and step.argval in _CHANGES:
                yield own, line
            own = step.argval if is_own else None
            if own is not None:
                read[place] = own
        else:
            if step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR") and place in read:
                yield read[place], line
            elif step.opname == "STORE_ATTR" and place in read and read[place] == step.argval:
                yield step.argval, line
            if step.opname not in ("CACHE", "COPY"):
                own = None
        if step.opname not in ("CACHE", "COPY"):
            before = step
