"""What is read from the user's functions without running them."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import pytest

import tidegate as tg
from tidegate.errors import GraphError
from tidegate.graph import specs
from tidegate.graph.user_code import check_states, line_of, mentions, never_emits

TAG = tg.OutputTag("late", int)
tags = types.ModuleType("tags")
tags.TAG = TAG  # type: ignore[attr-defined]


class Nothing(tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> None:
        value += 1


class Sometimes(tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> Any:
        if value:
            return None
        return [value]


class Yields(Nothing):
    def process_element(self, value: Any, ctx: tg.Context) -> Iterator[Any]:
        yield value


class AtTheEnd(Nothing):
    def end_input(self, ctx: tg.Context) -> Iterator[Any]:
        yield 1


class Timed(tg.KeyedProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> None: ...

    def on_timer(self, timestamp: int, ctx: tg.Context) -> Any:
        return [timestamp]


class ClassForm(tg.FlatMapFunction):
    def flat_map(self, value: Any, /) -> Any:
        return [value]

    def end_input(self, ctx: tg.Context) -> None:
        print("the end")


class Raises(tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> Any:
        raise NotImplementedError


class Tried(tg.ProcessFunction):
    def process_element(self, value: Any, ctx: tg.Context) -> Any:
        try:
            with open("nowhere") as file:
                return file.readlines()
        finally:
            value.close()


def returns_early(value: Any) -> None:
    if value:
        return
    print(value)


def test_a_function_that_can_emit_nothing_is_found() -> None:
    for function in (Nothing(), type("Inherits", (Nothing,), {})()):
        assert str(never_emits(specs.ProcessSpec(function))) == str(line_of(Nothing()))
    assert never_emits(specs.FlatMapSpec(returns_early)) is not None
    assert never_emits(specs.FlatMapSpec(lambda value: None)) is not None


@pytest.mark.parametrize(
    "function",
    [Sometimes(), Yields(), AtTheEnd(), Timed(), ClassForm(), Raises(), Tried()],
    ids=lambda f: type(f).__name__,
)
def test_a_function_that_may_emit_is_let_be(function: Any) -> None:
    assert never_emits(specs.ProcessSpec(function)) is None


@pytest.mark.parametrize(
    "function", [str.split, list, lambda v: [v], functools.partial(map, str), type("Own", (), {"__call__": print})()]
)
def test_what_cannot_be_read_or_returns_something_is_let_be(function: Any) -> None:
    assert never_emits(specs.FlatMapSpec(function)) is None
    assert never_emits(specs.MapSpec(returns_early)) is None, "a map emits whatever it returns"


def test_a_function_has_the_line_of_its_definition_or_none() -> None:
    assert str(line_of(returns_early)) == f"{__file__}:{returns_early.__code__.co_firstlineno}"
    assert str(line_of(functools.partial(returns_early, 1))) == str(line_of(returns_early))
    assert str(line_of(Yields())) == f"{__file__}:{Yields.process_element.__code__.co_firstlineno}"
    assert str(line_of(ClassForm())) == f"{__file__}:{ClassForm.flat_map.__code__.co_firstlineno}"
    assert line_of(str.upper) is None
    assert line_of(tg.ProcessFunction()) is None, "ours is not a line of the user's"


def test_a_function_that_names_a_tag_is_found() -> None:
    captured = TAG

    class Global(Nothing):
        def process_element(self, value: Any, ctx: tg.Context) -> Any:
            yield TAG, value

    class OfAModule(Nothing):
        def process_element(self, value: Any, ctx: tg.Context) -> Any:
            return [(tags.TAG, value)]

    class Closure(Nothing):
        def process_element(self, value: Any, ctx: tg.Context) -> Any:
            return ((captured, each) for each in value)

    class OfTheClass(Nothing):
        late = TAG

    given = Nothing()
    given.late = TAG  # type: ignore[attr-defined]
    for function in (Global(), OfAModule(), Closure(), OfTheClass(), given):
        assert mentions(function, tg.OutputTag)
    assert not mentions(Yields(), tg.OutputTag)


def test_state_on_the_class_and_other_attributes_are_let_be() -> None:
    class Right(tg.KeyedProcessFunction):
        count = tg.ValueState(int)

        def __init__(self) -> None:
            self.limit = 5

        def open(self, ctx: tg.Context) -> None:
            self.cache: dict[str, int] = {}
            kind = tg.ValueState
            self.kind = kind.__name__

    check_states(Right())
    check_states(returns_early)


def test_state_that_an_instance_makes_is_refused_with_its_line() -> None:
    from tidegate import BroadcastState as Rules

    class InOpen(tg.KeyedProcessFunction):
        def open(self, ctx: tg.Context) -> None:
            self.limit = 5
            self.seen = tg.MapState(str, bool)

    class ByName(tg.KeyedProcessFunction):
        def __init__(self) -> None:
            self.rules = Rules(str, int)

    with pytest.raises(
        GraphError, match=rf"InOpen\.open makes state at {__file__}:\d+: self\.seen = MapState\("
    ) as raised:
        check_states(InOpen())
    assert raised.value.user_line == f"{__file__}:{InOpen.open.__code__.co_firstlineno + 2}"
    with pytest.raises(GraphError, match=r"ByName\.__init__ makes state at .*: self\.rules = BroadcastState\("):
        check_states(ByName())
