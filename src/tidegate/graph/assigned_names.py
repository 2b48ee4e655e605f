"""Whether each local variable of a function has been assigned before it is read, on every way through it. Pure.

A function that is written into a loop (graph/record_loop.py) keeps its variables from one record to the next. Where a variable
cannot be read before it is assigned, nobody can tell.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import TypeGuard

#: What has a scope or a life of its own, and what changes the scope that it stands in.
_NOT_FOLLOWED: dict[type[ast.AST], str] = {
    ast.FunctionDef: "it defines a function",
    ast.AsyncFunctionDef: "it defines a function",
    ast.ClassDef: "it defines a class",
    ast.Lambda: "it has a lambda",
    ast.GeneratorExp: "it has a generator expression (a list would do)",
    ast.Await: "it awaits",
    ast.AsyncFor: "it awaits",
    ast.AsyncWith: "it awaits",
    ast.Global: "it assigns a global variable",
    ast.Nonlocal: "it assigns a variable of the function around it",
    ast.Delete: "it has a del",
    ast.Match: "it has a match",
    ast.NamedExpr: "it has a :=",
}
#: They look at the frame that calls them.
_LOOK_AT_FRAMES = frozenset(
    {"locals", "eval", "exec", "vars", "dir", "super", "__class__", "_getframe", "currentframe"}
)


class NotFollowed(Exception):
    """Why a function cannot be followed, in words that stand after "because"."""


def check_names(definition: ast.FunctionDef) -> None:
    """:raises NotFollowed: where a variable may be read before it is assigned, or the function does what is not followed."""
    for node in ast.walk(definition):
        if node is not definition and type(node) in _NOT_FOLLOWED:
            raise NotFollowed(_NOT_FOLLOWED[type(node)])
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name in _LOOK_AT_FRAMES or name.startswith("_tg_"):
            raise NotFollowed(f"it names {name}")
    _Follower(definition).follow()


def names_assigned(definition: ast.FunctionDef) -> set[str]:
    """By whatever way, in comprehensions too."""
    return {node.id for node in ast.walk(definition) if _is_stored(node)} | _bound_by_statements(definition)


class _Follower:
    def __init__(self, definition: ast.FunctionDef) -> None:
        self._definition = definition
        own = {argument.arg for argument in definition.args.args}
        stored = {node.id for node in _outside_comprehensions(definition) if _is_stored(node)}
        self._locals = own | stored | _bound_by_statements(definition)
        self._all = frozenset(self._locals)

    def follow(self) -> None:
        self._block(self._definition.body, frozenset(argument.arg for argument in self._definition.args.args))

    def _block(self, statements: Iterable[ast.stmt], assigned: frozenset[str]) -> frozenset[str]:
        """What is assigned after the statements; everything, where nothing comes after them."""
        for statement in statements:
            assigned = self._statement(statement, assigned)
        return assigned

    def _statement(self, node: ast.stmt, assigned: frozenset[str]) -> frozenset[str]:
        match node:
            case ast.Assign(targets, value):
                self._read(value, assigned)
                return self._targets(targets, assigned)
            case ast.AnnAssign(target, _, value):
                if value is None:
                    return assigned
                self._read(value, assigned)
                return self._targets([target], assigned)
            case ast.AugAssign(target, _, value):
                if isinstance(target, ast.Name):
                    self._name(target.id, assigned)
                self._read(value, assigned)
                return self._targets([target], assigned)
            case ast.If(test, body, orelse):
                self._read(test, assigned)
                return self._block(body, assigned) & self._block(orelse, assigned)
            case ast.For(target, iter, body, orelse):
                self._read(iter, assigned)
                self._block(body, self._targets([target], assigned))
                self._block(orelse, assigned)
                return assigned
            case ast.While(test, body, orelse):
                self._read(test, assigned)
                self._block(body, assigned)
                self._block(orelse, assigned)
                return assigned
            case ast.With(items, body):
                inside = assigned
                for item in items:
                    self._read(item.context_expr, inside)
                    if item.optional_vars is not None:
                        inside = self._targets([item.optional_vars], inside)
                self._block(body, inside)
                return assigned  # it may swallow an error of its body
            case ast.Try(body, handlers, orelse, finalbody):
                ends = self._block(orelse, self._block(body, assigned))
                for handler in handlers:
                    if handler.type is not None:
                        self._read(handler.type, assigned)
                    caught = frozenset({handler.name} if handler.name else ())
                    ends &= self._block(handler.body, assigned | caught) - caught
                return ends | (self._block(finalbody, assigned) if finalbody else frozenset())
            case ast.Import(names) | ast.ImportFrom(_, names):
                return assigned | {(alias.asname or alias.name).partition(".")[0] for alias in names}
            case ast.Return() | ast.Raise():
                self._read(node, assigned)
                return self._all
            case ast.Break() | ast.Continue():
                return self._all
            case ast.Expr() | ast.Pass() | ast.Assert():
                self._read(node, assigned)
                return assigned
            case _:
                raise NotFollowed(f"it has a statement that is not followed ({type(node).__name__})")

    def _targets(self, targets: Iterable[ast.expr], assigned: frozenset[str]) -> frozenset[str]:
        for target in targets:
            self._read(target, assigned)  # what a subscript or an attribute reads
            assigned |= {node.id for node in ast.walk(target) if _is_stored(node)}
        return assigned

    def _read(self, node: ast.AST, assigned: frozenset[str]) -> None:
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                self._name(node.id, assigned)
        elif isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp)):
            own = {name.id for each in node.generators for name in ast.walk(each.target) if _is_stored(name)}
            self._read(node.generators[0].iter, assigned)
            for child in ast.iter_child_nodes(node):
                self._read(child, assigned | own)
        else:
            for child in ast.iter_child_nodes(node):
                self._read(child, assigned)

    def _name(self, name: str, assigned: frozenset[str]) -> None:
        if name in self._locals and name not in assigned:
            raise NotFollowed(f"its variable {name} is not assigned on every way to where it is read")


def _bound_by_statements(definition: ast.FunctionDef) -> set[str]:
    """By `import` and `except ... as`, whose names are not nodes."""
    found: set[str] = set()
    for node in ast.walk(definition):
        match node:
            case ast.Import(names) | ast.ImportFrom(_, names):
                found.update((alias.asname or alias.name).partition(".")[0] for alias in names)
            case ast.ExceptHandler(_, str(name)):
                found.add(name)
    return found


def _is_stored(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _outside_comprehensions(node: ast.AST) -> Iterable[ast.Name]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name):
            yield child
        if not isinstance(child, (ast.ListComp, ast.SetComp, ast.DictComp)):
            yield from _outside_comprehensions(child)
