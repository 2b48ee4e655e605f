"""The text of a user's method, as the one who wrote it sees it, and the proof that it is the method's text. Pure; both sides.

Text is looked for on the driver, where the file is, and travels with the operator. It is believed only where compiling it
gives the very code that the method has: a file that was edited since, a decorator, a class that was made by another program
show at once. Whatever cannot be had costs speed and nothing else.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Collection
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

_OUTER = "_tg_outer"


@dataclass(frozen=True, slots=True)
class FunctionText:
    """A method as it stands in its file."""

    text: str  #: without the indentation of its class
    first_line: int


def text_of(function: object, method: str) -> FunctionText | None:
    """Of a function object's method. None: it has none that can be believed."""
    found = plain_method(function, method)
    if found is None:
        return None
    try:
        lines, first_line = inspect.getsourcelines(found)
    except (OSError, TypeError):  # typed into a shell, or made by a program
        return None
    text = FunctionText(textwrap.dedent("".join(lines)), first_line)
    return text if definition_of(text, found) is not None else None


def plain_method(function: object, method: str) -> FunctionType | None:
    """A method that is written in Python and called as it is written: of no decorator, and not replaced in the instance."""
    found = getattr(type(function), method, None)
    if method in getattr(function, "__dict__", {}) or hasattr(found, "__wrapped__"):
        return None
    return found if isinstance(found, FunctionType) else None


def definition_of(text: FunctionText, function: FunctionType) -> ast.FunctionDef | None:
    """The definition, with the lines of the file; None where it is not that of the function."""
    try:
        module = ast.parse(text.text)
    except (SyntaxError, ValueError):
        return None
    definition = module.body[0] if len(module.body) == 1 else None
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        return None
    ast.increment_lineno(module, text.first_line - 1)
    for imported in _perhaps_imported(definition, function):
        code = compiled_inside(definition, function.__code__, imported)
        if code is not None and _same(code, function.__code__):
            return definition
    return None


def _perhaps_imported(definition: ast.FunctionDef, function: FunctionType) -> list[set[str]]:
    """Python compiles `math.floor(x)` in another way where the file says `import math`. The file is not read for that: either
    nothing of what is called upon was imported there, or the modules were, or all that another module has made."""
    called_upon = {
        node.func.value.id
        for node in ast.walk(definition)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name)
    }
    known = {name: function.__globals__[name] for name in called_upon if name in function.__globals__}
    modules = {name for name, value in known.items() if isinstance(value, ModuleType)}
    own = (None, function.__module__)
    foreign = modules | {name for name, value in known.items() if getattr(value, "__module__", None) not in own}
    return [set(), *([modules] if modules else []), *([foreign] if foreign != modules else [])]


def compiled_inside(definition: ast.FunctionDef, method: CodeType, imported: Collection[str] = ()) -> CodeType | None:
    """The code of a definition that stands in the place of a method: it reads the same variables of a function around it.

    It has the method's file and qualified name, which are what tracebacks, profiles and flame graphs show.

    :param imported: names that the file imports.
    """
    outer = ast.parse(f"def {_OUTER}():\n    pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body = [*(ast.parse(f"{name} = None").body[0] for name in method.co_freevars), definition]
    body = [*(ast.parse(f"import {name}").body[0] for name in imported), outer]
    made = compile(ast.fix_missing_locations(ast.Module(body, [])), method.co_filename, "exec", dont_inherit=True)
    (around,) = (const for const in made.co_consts if isinstance(const, CodeType))
    codes = [const for const in around.co_consts if isinstance(const, CodeType) and const.co_name == definition.name]
    return _renamed(codes[0], codes[0].co_qualname, method.co_qualname) if len(codes) == 1 else None


def _renamed(code: CodeType, prefix: str, name: str) -> CodeType:
    """With another beginning of its qualified name, and of those of the functions inside it."""
    consts = tuple(_renamed(const, prefix, name) if isinstance(const, CodeType) else const for const in code.co_consts)
    return code.replace(co_qualname=name + code.co_qualname.removeprefix(prefix), co_consts=consts)


def _same(one: Any, other: Any) -> bool:
    """Whether two constants are the same; of codes, whether they do the same."""
    if isinstance(one, CodeType) and isinstance(other, CodeType):
        alike = (
            one.co_code == other.co_code
            and one.co_names == other.co_names
            and one.co_varnames == other.co_varnames
            and one.co_freevars == other.co_freevars
            and one.co_cellvars == other.co_cellvars
            and one.co_argcount == other.co_argcount
            and one.co_exceptiontable == other.co_exceptiontable
        )
        return alike and _same(one.co_consts, other.co_consts)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)
