"""What the user's functions say of themselves, read from their code and never by running it. Pure; both sides.

Code is read as Python has compiled it, not as text: a function of a notebook or of another machine has no file to look into.
What cannot be read (a builtin, a C function) says nothing, and nothing is concluded from it.
"""

from __future__ import annotations

import dis
import functools
import inspect
import os
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from tidegate.errors import GraphError, UserLine
from tidegate.graph import specs
from tidegate.state.broadcast import BroadcastState
from tidegate.state.declarations import Declaration

_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: The first that is the user's is where a function is defined; of a function in class form `process_element` is ours.
_HOOKS = (
    *("process_element", "process_element1", "process_batch"),
    *("map", "flat_map", "filter", "reduce", "map1", "flat_map1", "__call__"),
)
_EMITTING = (
    "process_element",
    "process_element1",
    "process_element2",
    "process_broadcast_element",
    "on_timer",
    "end_input",
)
_STATES = (Declaration, BroadcastState)
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def line_of(function: Any) -> UserLine | None:
    """Where a function, or the main hook of a function object, is defined. None: it has no line of the user's."""
    hooks = [function, *(getattr(type(function), name, None) for name in _HOOKS)]
    for code in map(_code_of, hooks):
        if code is not None and not code.co_filename.startswith((_OUR_FOLDER, "<")):
            return UserLine(code.co_filename, code.co_firstlineno)
    return None


def is_users(method: Any) -> bool:
    """Whether the user has written it; what cannot be read may be."""
    code = _code_of(method)
    return code is None or not _is_ours(code)


def never_emits(spec: specs.Spec) -> UserLine | None:
    """Where a function is defined that can put nothing out: none of its hooks yields, or returns anything. None:
    it may."""
    match spec:
        case specs.FlatMapSpec(function):
            code = _code_of(function)
            return line_of(function) if code is not None and not _may_emit(code) and _ends(code) else None
        case (
            specs.ProcessSpec(function)
            | specs.KeyedProcessSpec(function)
            | specs.CoProcessSpec(function)
            | specs.BroadcastProcessSpec(function)
        ):
            hooks = [hook for name in _EMITTING if (hook := getattr(type(function), name, None)) is not None]
            codes = [_code_of(hook) for hook in hooks]
            if any(code is None or _may_emit(code) for code in codes):
                return None
            written = [code for code in codes if code is not None and not _is_ours(code)]
            return line_of(function) if any(map(_ends, written)) else None
        case _:
            return None


def mentions(function: object, kind: type) -> bool:
    """Whether its methods name an object of this class: a global, one of a closure, of a module, of its class or
    its own."""
    held = [*vars(function).values()] if hasattr(function, "__dict__") else []
    for owner in type(function).__mro__:
        held += [value for value in vars(owner).values() if not isinstance(value, FunctionType)]
    methods = [value for owner in type(function).__mro__ for value in vars(owner).values()]
    return any(isinstance(value, kind) for value in held) or any(
        isinstance(method, FunctionType) and any(isinstance(value, kind) for value in _named_in(method))
        for method in methods
    )


def check_states(function: Any) -> None:
    """:raises GraphError: for state that an instance makes: it must be declared on the class, or nobody knows of it.

    On the driver `open` has not run, so its code is read.
    """
    check_own_states(function, "__init__")
    open_method = getattr(type(function), "open", None)
    if isinstance(open_method, FunctionType) and not _is_ours(open_method.__code__):
        for attribute, kind, line in _states_made_in(open_method):
            raise _misplaced(function, "open", attribute, kind, line)


def check_own_states(function: Any, method: str) -> None:
    """:raises GraphError: for an attribute of the instance that is a declaration; `method` has set it."""
    for attribute, value in getattr(function, "__dict__", {}).items():
        if isinstance(value, _STATES):
            raise _misplaced(function, method, attribute, type(value).__name__, value.line)


def _misplaced(function: Any, method: str, attribute: str, kind: str, line: UserLine) -> GraphError:
    owner = type(function).__name__
    return GraphError(
        f"{owner}.{method} makes state at {line}: self.{attribute} = {kind}(...). State is declared on the class, "
        f"so that it is "
        f"known before anything runs. Write {attribute} = tg.{kind}(...) in the body of class {owner}, above its "
        f"methods; "
        f"inside process_element, self.{attribute} is then the state of the current key.",
        state=attribute,
        user_line=str(line),
    )


def _states_made_in(method: FunctionType) -> Iterator[tuple[str, str, UserLine]]:
    """Each `self.name = tg.ValueState(...)`: the name, the class and the line."""
    loaded: Any = None
    made: type | None = None
    for step in dis.get_instructions(method):
        if step.opname in _LOADS:
            loaded = method.__globals__.get(step.argval)
        elif step.opname in _ATTRIBUTES and isinstance(loaded, ModuleType):
            loaded = getattr(loaded, step.argval, None)
        elif step.opname == "STORE_ATTR":
            if made is not None:
                number = None if step.positions is None else step.positions.lineno
                yield step.argval, made.__name__, UserLine(method.__code__.co_filename, number or 0)
            made = None
        elif step.opname.startswith(("STORE_", "POP_TOP", "RETURN_")):
            made = None
        if isinstance(loaded, type) and issubclass(loaded, _STATES):
            made, loaded = loaded, None


def _named_in(method: FunctionType) -> Iterator[Any]:
    """What the names in a function stand for, as far as it can be said without running it."""
    for cell in method.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue
    for code in _with_inner(method.__code__):
        named = [method.__globals__[name] for name in code.co_names if name in method.__globals__]
        yield from named
        for module in named:
            if isinstance(module, ModuleType):
                yield from (vars(module)[name] for name in code.co_names if name in vars(module))


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _may_emit(code: CodeType) -> bool:
    """A generator, or a function with `return value`."""
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR | inspect.CO_COROUTINE):
        return True
    before = None
    for step in dis.get_instructions(code):
        if step.opname in ("RETURN_VALUE", "RETURN_CONST"):
            value = step if step.opname == "RETURN_CONST" else before
            if value is None or not value.opname.endswith("_CONST") or value.argval is not None:
                return True
        before = step
    return False


def _ends(code: CodeType) -> bool:
    """Not where it does nothing but raise."""
    return any(
        step.opname.startswith("RETURN_V") or step.opname == "RETURN_CONST" for step in dis.get_instructions(code)
    )


def _code_of(function: Any) -> CodeType | None:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, MethodType):
        function = function.__func__
    if not isinstance(function, FunctionType):
        return None
    unwrapped = inspect.unwrap(function)
    return unwrapped.__code__ if isinstance(unwrapped, FunctionType) else None


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith(_OUR_FOLDER)
