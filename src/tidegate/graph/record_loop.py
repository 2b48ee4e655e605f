"""A user's `process_element`, written into a loop over the records of a batch. Pure; both sides.

Called record by record, a function costs about seven calls of Python for each: itself, its generator, the key, the state's
`get` and `set`, a record that is made and one that is taken apart. Written into a loop it costs none of them:

    class Total(tg.KeyedProcessFunction):             for key, chunk, amount in zip(keys, chunks, amounts):
        total = tg.ValueState(int, default=0)             entries = total_chunks[chunk]
        def process_element(self, sale, ctx):             total = entries.get(key, 0) + amount
            total = self.total.get() + sale.amount        ... the value is checked, the chunk is owned
            self.total.set(total)                         entries[key] = total
            yield (sale.item, total)                      items.append(key); totals.append(total)

It is the same code, statement for statement, of the same file, name and lines, with the same globals and the same variables of
a function around it: tracebacks, breakpoints and flame graphs show what they show without it. What is written out is only:

    self.state.get(), self.state.set(value)   of declared value states in memory, whose values nobody can change
    record.field, record[0], record["name"]   where the function reads fields and nothing else of a record
    yield value, return                       into the lists that leave as columns
    ctx.key

Everything else stands as it is written. A function that is not followed in every way (graph/assigned_names.py) is called as
before, and `unfit` says why.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from tidegate.graph.assigned_names import NotFollowed, check_names, names_assigned
from tidegate.graph.function_text import FunctionText, compiled_inside, definition_of, plain_method
from tidegate.state.declarations import ValueState, declared_states
from tidegate.types import RecordType
from tidegate.types.records import DataclassRecords, SchemaRecords, TupleRecords

_NO_TEXT = "its text cannot be read (it was typed into a shell, is decorated, or is not in its file any more)"
_OWN_CALLS = ("_tg_append", "_tg_put", "_tg_type", "_tg_fit_", "_tg_own_", "_tg_entries_")
_YIELDS = (ast.Yield, ast.YieldFrom)
_BITS = f"-{1 << 63} <= _tg_value <= {(1 << 63) - 1}"


@dataclass(frozen=True, slots=True)
class Ways:
    """How a loop is to be written for a batch at hand."""

    by_field: bool  #: the records come as columns
    stamped: bool  #: they have timestamps
    in_columns: bool  #: what is emitted may leave as columns
    timed: bool  #: the function has timers
    states: tuple[tuple[str, str], ...]  #: that can be written out: name, and "int", "text" or "plain"


@dataclass(frozen=True, slots=True)
class RecordLoop:
    """A compiled loop. It is called with the function object, the context, its rows and, by these names, all else."""

    run: Callable[..., None]
    parameters: tuple[str, ...]
    fields: tuple[int, ...] | None  #: the columns whose values stand in a row, after what else does; None: the record
    columns: int | None  #: how many lists of values it fills; None: it fills one, of records
    is_generator: bool  #: the function is one: a StopIteration that gets out of it is an error


def unfit(function: object, text: FunctionText | None, records: RecordType, out: RecordType) -> str:
    """Why `process_element` cannot be written into a loop; "" where it can."""
    states = tuple((name, "plain") for name in _plain_states(function))
    found = record_loop(function, text, records, out, Ways(True, False, True, False, states))
    return found if isinstance(found, str) else ""


def record_loop(
    function: object, text: FunctionText | None, records: RecordType, out: RecordType, ways: Ways
) -> RecordLoop | str:
    """The loop, or why there is none."""
    method = plain_method(function, "process_element")
    if text is None or method is None or type(function).__getattribute__ is not object.__getattribute__:
        return _NO_TEXT
    definition = definition_of(text, method)
    if definition is None:
        return _NO_TEXT
    try:
        check_names(definition)
        return _written(definition, method, records, out, ways)
    except NotFollowed as why:
        return str(why)


def _plain_states(function: object) -> list[str]:
    return [
        name
        for name, state in declared_states(function).items()
        if isinstance(state, ValueState) and state.ttl is None and state.value_type.immutable
    ]


def _written(
    definition: ast.FunctionDef, method: FunctionType, records: RecordType, out: RecordType, ways: Ways
) -> RecordLoop:
    arguments = definition.args
    if len(arguments.args) != 3 or arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
        raise NotFollowed("it takes other arguments than self, the record and the context")
    _refuse_shapes(definition)
    own, row, context = (argument.arg for argument in arguments.args)
    if not names_assigned(definition).isdisjoint({own, row, context}):
        raise NotFollowed("it assigns one of its arguments")
    _refuse_assigned_states(definition, own, dict(ways.states))
    read = _fields_read(definition, row, records) if ways.by_field else None
    width = _columns_emitted(definition, out) if ways.in_columns else None
    writer = _Writer(own, row, context, dict(ways.states), records, read, width)
    is_generator = any(isinstance(node, _YIELDS) for node in ast.walk(definition))
    writer.emits_later = not is_generator
    writer.stamped = ways.stamped
    body = writer.block(copy.deepcopy(definition).body)
    target = ["_tg_key", "_tg_chunk", "_tg_user_key"]
    head = ["_tg_current.key = _tg_key", "_tg_current.chunk = _tg_chunk", f"{context}.key = _tg_user_key"]
    if ways.timed:
        head.append("_tg_timers.key = _tg_key")
    if ways.stamped:
        target += ["_tg_place", "_tg_stamp"]
        head.append(f"{context}._timestamp = _tg_stamp")
    if not _hands_over(body, own, context):
        head = []
    target += [row] if read is None else [_field(at) for at in read]
    head += [f"_tg_entries_{name} = _tg_chunks_{name}[_tg_chunk]" for name in sorted(writer.states_used)]
    parameters = [own, context, "_tg_rows", *writer.parameters(ways)]
    made = ast.parse(
        f"def {definition.name}({', '.join(parameters)}):\n for {', '.join(target)}, in _tg_rows:\n  "
        + "\n  ".join(head or ["pass"])
    ).body[0]
    assert isinstance(made, ast.FunctionDef)
    loop = made.body[0]
    assert isinstance(loop, ast.For)
    for node in ast.walk(made):
        if "lineno" in node._attributes:
            ast.copy_location(node, definition)
    loop.body += body
    code = compiled_inside(made, method.__code__)
    if code is None:
        raise NotFollowed(_NO_TEXT)
    cells = dict(zip(method.__code__.co_freevars, method.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    run = FunctionType(code, method.__globals__, method.__name__, None, closure)
    run.__qualname__ = method.__qualname__
    return RecordLoop(run, tuple(parameters[3:]), None if read is None else tuple(read), width, is_generator)


def _hands_over(body: list[ast.stmt], own: str, context: str) -> bool:
    """Whether anything but the loop itself runs that could ask for the current key, or for the context."""
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Name) and node.id in (own, context):
            return True
        if isinstance(node, ast.Call):
            called = node.func.value if isinstance(node.func, ast.Attribute) else node.func
            if not isinstance(called, ast.Name) or not called.id.startswith(_OWN_CALLS):
                return True
    return False


def _refuse_shapes(definition: ast.FunctionDef) -> None:
    """What is given out leaves at once, where the function would give it to its caller: nothing may stand in between that could
    stop it on its way, or take it back."""
    yields = [node for node in ast.walk(definition) if isinstance(node, _YIELDS)]
    alone = [node.value for node in ast.walk(definition) if isinstance(node, ast.Expr)]
    if any(node not in alone for node in yields):
        raise NotFollowed("it uses what a yield gives back")
    for node in ast.walk(definition):
        inside = list(ast.walk(node))
        if isinstance(node, (ast.For, ast.While)) and any(isinstance(inner, ast.Return) for inner in inside):
            raise NotFollowed("it returns out of a loop")
        if isinstance(node, (ast.Try, ast.With)):
            what = "try" if isinstance(node, ast.Try) else "with"
            if any(isinstance(inner, _YIELDS) for inner in inside):
                raise NotFollowed(f"it yields inside a {what}")
            if any(isinstance(inner, ast.Return) and not _is_nothing(inner.value) for inner in inside):
                raise NotFollowed(f"it returns what it emits inside a {what}")


def _refuse_assigned_states(definition: ast.FunctionDef, own: str, states: Mapping[str, str]) -> None:
    for node in ast.walk(definition):
        match node:
            case ast.Attribute(ast.Name(id), name, ast.Store()) if id == own and name in states:
                raise NotFollowed(f"it assigns self.{name}, which is a state")


def _fields_read(definition: ast.FunctionDef, row: str, records: RecordType) -> list[int] | None:
    """The columns that the function reads, where it does nothing else with a record."""
    reader = _FieldReader(row, records)
    reader.visit(definition)
    return sorted(reader.found) if reader.alone else None


def _field_at(node: ast.AST, row: str, records: RecordType) -> int | None:
    """The column that an expression reads of the record."""
    names = records.field_names
    match node:
        case ast.Attribute(ast.Name(id), attribute, ast.Load()) if id == row and isinstance(records, DataclassRecords):
            held = getattr(records.annotation, attribute, None)
            is_slot = type(held).__name__ == "member_descriptor"
            if attribute in names and (is_slot or not hasattr(type(held), "__set__")) and _plain_class(records):
                return names.index(attribute)
        case ast.Subscript(ast.Name(id), ast.Constant(at), ast.Load()) if id == row:
            if isinstance(records, TupleRecords) and type(at) is int and -len(names) <= at < len(names):
                return at % len(names)
            if isinstance(records, SchemaRecords) and type(at) is str and at in names:
                return names.index(at)
    return None


def _plain_class(records: RecordType) -> bool:
    return getattr(records.annotation, "__getattribute__", None) is object.__getattribute__


class _FieldReader(ast.NodeVisitor):
    def __init__(self, row: str, records: RecordType) -> None:
        self._row, self._records = row, records
        self.found: set[int] = set()
        self.alone = True

    def visit(self, node: ast.AST) -> None:
        at = _field_at(node, self._row, self._records)
        if at is not None:
            self.found.add(at)
        elif isinstance(node, ast.Name) and node.id == self._row:
            self.alone = False
        else:
            self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if _unpacks(node, self._row, self._records):
            self.found.update(range(len(self._records.field_names)))
        else:
            self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            self.visit_Assign(child) if isinstance(child, ast.Assign) else self.visit(child)


def _unpacks(node: ast.Assign, row: str, records: RecordType) -> bool:
    """`item, amount = record`."""
    if not isinstance(records, TupleRecords) or not isinstance(node.value, ast.Name) or node.value.id != row:
        return False
    (target, *more) = node.targets
    names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
    return not more and len(names) == len(records.field_names) and all(isinstance(name, ast.Name) for name in names)


def _columns_emitted(definition: ast.FunctionDef, out: RecordType) -> int | None:
    """How many columns leave, where every record that does is written as a tuple of the declared length."""
    if not isinstance(out, TupleRecords) or out.copier() is not None:
        return None
    width = len(out.field_names)
    for node in ast.walk(definition):
        given = [node.value] if isinstance(node, ast.Yield) else []
        if isinstance(node, ast.Return) and isinstance(node.value, ast.List):
            given = list(node.value.elts)
        elif isinstance(node, ast.YieldFrom) or (isinstance(node, ast.Return) and not _is_nothing(node.value)):
            return None
        for value in given:
            if not isinstance(value, ast.Tuple) or len(value.elts) != width:
                return None
            if any(isinstance(part, ast.Starred) for part in value.elts):
                return None
    return width


def _is_nothing(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _field(at: int) -> str:
    return f"_tg_field_{at}"


@dataclass
class _Writer(ast.NodeTransformer):
    """Writes the statements of a function as those of the loop's body."""

    own: str
    row: str
    context: str
    states: dict[str, str]
    records: RecordType
    read: list[int] | None
    width: int | None
    emits_later: bool = False  #: it returns what it emits
    stamped: bool = False
    states_used: set[str] = field(default_factory=set)

    def parameters(self, ways: Ways) -> list[str]:
        names = ["_tg_current", "_tg_extend", "_tg_returned", "_tg_append", "_tg_type", "_tg_int", "_tg_str"]
        names += ["_tg_timers"] if ways.timed else []
        names += ["_tg_put"] if ways.stamped else []
        names += [f"_tg_append_{at}" for at in range(self.width or 0)]
        for name in sorted(self.states_used):
            names += [f"_tg_{what}_{name}" for what in ("chunks", "owned", "own", "default", "fit", "exact")]
        return names

    def block(self, statements: Iterable[ast.stmt]) -> list[ast.stmt]:
        written: list[ast.stmt] = []
        for statement in statements:
            found: Any = self.visit(statement)
            written += found if isinstance(found, list) else [found]
        return written

    def _made(self, text: str, at: ast.AST, **values: ast.expr) -> list[ast.stmt]:
        """Statements, with expressions of the user's in the places of these names."""
        module = ast.parse(text)
        for node in ast.walk(module):
            if "lineno" in node._attributes:
                ast.copy_location(node, at)
        return _Placed(values).visit(module).body  # type: ignore[no-any-return]

    def _emitted(self, value: ast.expr, at: ast.AST) -> list[ast.stmt]:
        put = "\n_tg_put(_tg_place)" if self.stamped else ""
        if self.width is None:
            return self._made(f"_tg_append(_tg_given){put}", at, _tg_given=value)
        assert isinstance(value, ast.Tuple)
        parts = {f"_tg_part_{number}": part for number, part in enumerate(value.elts)}
        lines = [f"_tg_append_{number}(_tg_part_{number})" for number in range(self.width)]
        return self._made("\n".join(lines) + put, at, **parts)

    def visit_Expr(self, node: ast.Expr) -> Any:
        match node.value:
            case ast.Yield(value):
                given = value or ast.copy_location(ast.Constant(None), node)
                return self._emitted(self.visit(given), node)
            case ast.YieldFrom(value):
                return self._many("_tg_extend", value, node)
            case ast.Call(ast.Attribute(owner, "set" | "update"), [value], []) if (name := self._state(owner)) and (
                not isinstance(value, ast.Starred)
            ):
                return self._kept(name, self.visit(value), node)
        self.generic_visit(node)
        return node

    def _kept(self, name: str, value: ast.expr, at: ast.AST) -> list[ast.stmt]:
        self.states_used.add(name)
        wrong = {
            "int": f"_tg_type(_tg_value) is not _tg_int or not {_BITS}",
            "text": "_tg_type(_tg_value) is not _tg_str or not _tg_value.isascii()",
        }.get(self.states[name], f"_tg_type(_tg_value) is not _tg_exact_{name}")
        return self._made(
            f"_tg_value = _tg_given\nif {wrong}:\n _tg_value = _tg_fit_{name}(_tg_value)\n"
            f"if not _tg_owned_{name}[_tg_chunk]:\n _tg_own_{name}(_tg_chunk)\n_tg_entries_{name}[_tg_key] = _tg_value",
            at,
            _tg_given=value,
        )

    def visit_Return(self, node: ast.Return) -> Any:
        done = ast.copy_location(ast.Continue(), node)
        if _is_nothing(node.value):
            return [done]
        assert node.value is not None
        if not self.emits_later:  # of a generator: nobody sees it
            return [ast.copy_location(ast.Expr(self.visit(node.value)), node), done]
        parts = node.value.elts if isinstance(node.value, ast.List) else []
        at_once = len(parts) == 1 or (parts and self.width is not None)  # of several, all are made before one is copied
        if at_once and not any(isinstance(part, ast.Starred) for part in parts):
            return [*(line for part in parts for line in self._emitted(self.visit(part), node)), done]
        return [*self._many("_tg_returned", node.value, node), done]

    def _many(self, by: str, value: ast.expr, at: ast.AST) -> list[ast.stmt]:
        place = ", _tg_place" if self.stamped else ""
        return self._made(f"{by}(_tg_given{place})", at, _tg_given=self.visit(value))

    def visit_Call(self, node: ast.Call) -> Any:
        match node:
            case ast.Call(ast.Attribute(owner, "get" | "value"), [], []) if name := self._state(owner):
                self.states_used.add(name)
                return ast.copy_location(
                    ast.parse(f"_tg_entries_{name}.get(_tg_key, _tg_default_{name})", mode="eval").body, node
                )
        self.generic_visit(node)
        return node

    def visit_Assign(self, node: ast.Assign) -> Any:
        if self.read is not None and _unpacks(node, self.row, self.records):
            load = [ast.Name(_field(at), ast.Load()) for at in range(len(self.records.field_names))]
            node.value = ast.copy_location(
                ast.Tuple([ast.copy_location(name, node) for name in load], ast.Load()), node
            )
            return node
        self.generic_visit(node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        is_key = isinstance(node.value, ast.Name) and node.value.id == self.context and node.attr == "key"
        if is_key and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Name("_tg_user_key", ast.Load()), node)
        return self._read_field(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        return self._read_field(node)

    def _read_field(self, node: ast.Attribute | ast.Subscript) -> Any:
        at = None if self.read is None else _field_at(node, self.row, self.records)
        if at is not None:
            return ast.copy_location(ast.Name(_field(at), ast.Load()), node)
        self.generic_visit(node)
        return node

    def _state(self, node: ast.expr) -> str | None:
        match node:
            case ast.Attribute(ast.Name(owner), name, ast.Load()) if owner == self.own and name in self.states:
                return name
        return None


class _Placed(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._values.get(node.id, node)
