"""What a user's function says it returns. Pure; driver, when a job is declared.

An annotation is a help here, never a duty: what is missing, cannot be resolved or has no column form gives None, and
the stream is untyped. Only what the user gives as `returns=` is refused.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from typing import Any

from tidegate.types.records import record_type

_ITERABLES = (Iterator, Iterable, Generator, Sequence, Collection, list, set, frozenset)


def return_annotation_of(function: Any, element_of_iterable: bool = False) -> Any | None:
    """The annotation of what `function` returns, or of each element of it; None when it does not tell. Never raises."""
    try:
        annotation = _return_annotation(function)
        if element_of_iterable:
            annotation = _element(annotation)
        return annotation if record_type(annotation).typed else None
    except Exception:  # annotations are user code, evaluated here: anything can come out of them
        return None


def _return_annotation(function: Any) -> Any | None:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, type):
        return function  # a class is a function that returns its instances: stream.map(int), stream.map(Order)
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        function = type(function).__call__
    function = inspect.unwrap(getattr(function, "__func__", function))
    annotation = function.__annotations__.get("return")
    if annotation is None:
        return None
    # The return annotation alone: a parameter's that cannot be resolved (TYPE_CHECKING imports) does no harm then.
    stub = types.SimpleNamespace(__annotations__={"return": annotation})
    nonlocals = {
        name: cell.cell_contents
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
        if _is_set(cell)
    }
    hints = typing.get_type_hints(stub, globalns=function.__globals__, localns=nonlocals, include_extras=True)
    return hints["return"]


def _is_set(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _element(annotation: Any) -> Any | None:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in _ITERABLES:
        return arguments[0]
    if origin is tuple and arguments:
        parts = set(arguments) - {Ellipsis}
        return parts.pop() if len(parts) == 1 else None
    return None
