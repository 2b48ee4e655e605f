"""State as declared on a class."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from state_kit import backend_for

from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.state.backend import bind_states
from tidegate.state.declarations import ListState, MapState, ValueState, declared_states
from tidegate.state.keys import key_type


class Counter:
    count = ValueState(int, default=0)


class Visitor(Counter):
    pages = ListState(str)
    seen = MapState(str, float)


def test_states_are_known_without_an_instance_bases_first():
    states = declared_states(Visitor)

    assert list(states) == ["count", "pages", "seen"]
    assert [(s.name, s.kind, s.type_name) for s in states.values()] == [
        ("count", "value", "int"),
        ("pages", "list", "list[str]"),
        ("seen", "map", "map[str, float]"),
    ]
    assert declared_states(Visitor()) == states


def test_a_declaration_knows_the_line_it_was_written_on():
    line = declared_states(Counter)["count"].line

    assert line.file == __file__
    assert "ValueState(int, default=0)" in Path(__file__).read_text().splitlines()[line.line - 1]


def test_state_that_is_touched_without_a_running_job_says_where_it_can_be_used():
    with pytest.raises(ConfigurationError, match=r"Counter\.count .* only inside process_element"):
        Counter().count.get()


def test_a_bound_handle_hides_the_declaration():
    function, backend = Counter(), backend_for(key_type(int))
    bind_states(function, backend)
    backend.set_current_key(1)
    function.count.set(5)

    assert function.count.get() == 5
    assert function.count is function.__dict__["count"]
    assert Counter.count.type_name == "int"


def test_one_name_with_two_types_in_a_hierarchy_is_refused():
    class Confused(Counter):
        count = ValueState(str)

    with pytest.raises(TypeDeclarationError, match=r"'count' of Confused is declared twice .* int .* str"):
        declared_states(Confused)


def test_one_name_with_two_kinds_is_refused_even_when_hidden_in_between():
    class Hidden(Counter):
        count = None

    class Confused(Hidden):
        count = ListState(int)

    assert declared_states(Hidden) == {}
    with pytest.raises(TypeDeclarationError, match="declared twice"):
        declared_states(Confused)


def test_a_subclass_may_give_another_default():
    class FromTen(Counter):
        count = ValueState(int, default=10)

    assert declared_states(FromTen)["count"].default == 10


def test_one_declaration_under_two_names_is_refused():
    class Twins:
        first = ValueState(int)
        second = first

    with pytest.raises(TypeDeclarationError, match=r"Twins\.second is the declaration of state 'first'"):
        declared_states(Twins)


def test_a_declaration_that_was_assigned_later_gets_its_name():
    class Late:
        pass

    Late.count = ValueState(int)

    assert declared_states(Late)["count"].name == "count"


def test_a_default_that_does_not_fit_is_refused_with_its_line():
    with pytest.raises(TypeDeclarationError, match=r"test_state_declarations\.py:\d+: the default 'no' does not fit"):
        ValueState(int, default="no")


def test_a_type_that_cannot_be_stored_is_refused():
    with pytest.raises(TypeDeclarationError):
        ValueState(object)


def test_a_map_whose_keys_can_change_is_refused():
    with pytest.raises(TypeDeclarationError, match="cannot be the key type of a MapState"):
        MapState(list[int], int)


def test_a_declaration_survives_pickling():
    again = pickle.loads(pickle.dumps(Visitor.seen))

    assert (again.name, again.kind, again.type_name) == ("seen", "map", "map[str, float]")
