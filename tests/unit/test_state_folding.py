"""Reducing and aggregating state, and namespaces with what merging windows need of them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from state_backends import Backends
from state_kit import Mean

from tidegate.api.aggregates import AggregateFunction
from tidegate.errors import ConfigurationError, TypeDeclarationError
from tidegate.state.backend import bind_states
from tidegate.state.declarations import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    ValueState,
    declared_states,
)
from tidegate.state.folding import merge_namespaces
from tidegate.state.keys import key_type
from tidegate.types import Pickled

INT = key_type(int)


@dataclass
class Basket:
    items: list[str]


def join(a: Basket, b: Basket) -> Basket:
    a.items.extend(b.items)  # changes what it was given
    return a


class Longest(AggregateFunction):
    """Accumulates None at first: a stored None is not the same as nothing stored."""

    accumulator_type = str | None

    def __init__(self) -> None:
        self.created = 0

    def create_accumulator(self) -> None:
        self.created += 1

    def add(self, value: str | None, accumulator: str | None) -> str | None:
        return value if accumulator is None or (value is not None and len(value) > len(accumulator)) else accumulator

    def get_result(self, accumulator: str | None) -> str:
        return f"<{accumulator}>"


class Folds:
    total = ReducingState(int, operator.add)
    basket = ReducingState(Basket, join)
    either = ReducingState(int | None, lambda a, b: b)
    mean = AggregatingState(Mean())
    longest = AggregatingState(Longest())
    seen = AggregatingState(Mean(), accumulator_type=Pickled)
    log = ListState(str)
    last = ValueState(str)
    map = MapState(str, int)


@pytest.fixture
def folds(backends: Backends) -> Any:
    backend, function = backends.bound(INT, function=Folds())
    backend.set_current_key(1)
    function.backend = backend
    return function


def test_the_first_value_is_kept_and_each_next_one_is_folded_in(folds):
    assert folds.total.get() is None
    for number in (3, 4, 5):
        folds.total.add(number)

    assert folds.total.get() == 12
    folds.backend.set_current_key(2)
    assert folds.total.get() is None
    folds.total.clear()
    folds.backend.set_current_key(1)
    folds.total.clear()
    assert folds.total.get() is None


def test_what_is_added_and_what_is_given_out_is_the_callers_own(folds):
    mine = Basket(["tea"])
    folds.basket.add(mine)
    mine.items.append("not for the state")
    folds.basket.get().items.append("nor this")
    folds.basket.add(Basket(["milk"]))

    assert folds.basket.get() == Basket(["tea", "milk"])


def test_a_function_that_changes_the_accumulator_does_not_reach_a_snapshot(folds):
    for number in (1, 2):
        folds.mean.add(number)
        folds.seen.add(number)
        folds.basket.add(Basket([str(number)]))
    snapshot = folds.backend.snapshot()
    folds.mean.add(100)
    folds.seen.add(100)
    folds.basket.add(Basket(["late"]))

    stored = {section.state: section.rows.column("value")[0].as_py() for section in snapshot.sections()}
    assert stored["mean"] == [3, 2]
    assert stored["basket"] == {"items": ["1", "2"]}
    assert folds.mean.get() == folds.seen.get() == 103 / 3


def test_none_that_was_stored_is_not_nothing(folds):
    longest = Folds.longest.aggregate
    longest.created = 0
    assert folds.longest.get() is None
    folds.longest.add(None)
    assert folds.longest.get() == "<None>"
    folds.longest.add("tea")
    folds.longest.add("no")

    assert folds.longest.get() == "<tea>"
    assert longest.created == 1
    folds.either.add(1)
    folds.either.add(None)
    assert folds.either.get() is None
    folds.either.add(2)
    assert folds.either.get() == 2


def test_a_result_that_does_not_fit_is_refused_and_changes_nothing(backends):
    class Broken:
        total = ReducingState(int, lambda a, b: f"{a}{b}")
        forgetful = AggregatingState(type("Forgetful", (Mean,), {"add": lambda self, value, acc: acc.append(value)})())

    backend, function = backends.new(INT), Broken()
    bind_states(function, backend)
    backend.set_current_key(1)
    function.total.add(1)

    with pytest.raises(TypeDeclarationError, match="'total'"):
        function.total.add(2)
    with pytest.raises(TypeDeclarationError, match="'forgetful'"):
        function.forgetful.add(2)
    assert function.total.get() == 1
    assert function.forgetful.get() is None


def test_they_are_stored_under_their_own_kind_and_restored(backends, folds):
    folds.total.add(7)
    folds.mean.add(4)
    folds.longest.add(None)
    sections = list(folds.backend.snapshot().sections())
    again, backend = Folds(), backends.new(INT)
    bind_states(again, backend)
    for section in sections:
        backend.restore(section.state, section.kind, [section.rows])
    backend.set_current_key(1)
    again.total.add(1)

    assert {section.state: section.kind for section in sections} == {
        "total": "reducing",
        "mean": "aggregating",
        "longest": "aggregating",
    }
    assert again.total.get() == 8
    assert again.mean.get() == 4.0
    assert again.longest.get() == "<None>"
    with pytest.raises(ConfigurationError, match="as a value state, but it is declared as a reducing state"):
        backend.restore("total", "value", [])


def test_their_declarations_are_known_before_anything_runs():
    declared = declared_states(Folds)

    assert [(name, declared[name].kind, declared[name].type_name) for name in ("total", "mean")] == [
        ("total", "reducing", "int"),
        ("mean", "aggregating", "list[int]"),
    ]
    with pytest.raises(TypeDeclarationError, match=r"test_state_folding\.py:\d+: a ReducingState needs a function"):
        ReducingState(int, 3)
    with pytest.raises(TypeDeclarationError, match=r"write Mean\(\)"):
        AggregatingState(Mean)
    with pytest.raises(TypeDeclarationError, match=r"type of object's accumulator is not known"):
        AggregatingState(object())
    with pytest.raises(ConfigurationError, match=r"Folds\.total .* only inside process_element"):
        Folds().total.add(1)


# -- namespaces --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("columnar", [False, True])
def test_each_namespace_has_state_of_its_own(backends, columnar):
    backend, function = backends.bound(INT, columnar)
    for number, namespace in enumerate([b"", b"a", b"b"], 1):
        backend.set_current_key(7)
        backend.set_current_namespace(namespace)
        function.total.set(number)
        function.counts.put("n", number)
    backend.set_current_namespace(b"a")
    function.total.clear()
    function.counts.clear()

    found = []
    for namespace in [b"", b"a", b"b", b"c"]:
        backend.set_current_namespace(namespace)
        found.append((function.total.get(), dict(function.counts.items())))
    assert found == [(1, {"n": 1}), (0, {}), (3, {"n": 3}), (0, {})]


def test_a_key_begins_in_the_empty_namespace(backends):
    backend, function = backends.bound(INT, False)
    backend.set_current_key(1)
    backend.set_current_namespace(b"w")
    function.total.set(5)
    backend.set_current_key(1)

    assert function.total.get() == 0


@pytest.mark.parametrize("columnar", [False, True])
def test_columns_of_keys_work_in_the_empty_namespace(backends, columnar):
    backend, function = backends.bound(INT, columnar)
    backend.set_current_key(1)
    backend.set_current_namespace(b"w")
    function.total.set(5)
    function.total.add_many(pa.array([1, 2]), 1)

    assert function.total.get() == 5
    assert function.total.get_many(pa.array([1, 2])).to_pylist() == [1, 1]


def test_a_key_that_looks_like_a_key_in_a_namespace_is_not_one(backends):
    pair = key_type(tuple[int, bytes])
    backend, function = backends.bound(pair, False)
    backend.set_current_key(pair.normalise((1, b"w")))
    function.total.set(1)
    backend.set_current_key(pair.normalise((1, b"")))
    backend.set_current_namespace(b"w")

    assert function.total.get() == 0


def test_rows_are_in_the_key_group_of_their_key_whatever_their_namespace(backends):
    backend, function = backends.bound(INT, False)
    for key in range(50):
        backend.set_current_key(key)
        backend.set_current_namespace(b"w")
        function.total.set(key)
    sections = list(backend.snapshot().sections())
    halves = [backends.new(INT, range(8)), backends.new(INT, range(8, 16))]
    for half in halves:
        half.bind(declared_states(function)["total"])
        for section in sections:
            if section.key_group in half.key_groups:
                half.restore(section.state, section.kind, [section.rows])

    for half in halves:
        list(half.snapshot().sections())  # which refuses a key of another key group
    sizes = [half.state_size()["total"] for half in halves]
    assert sum(sizes) == 50
    assert all(sizes)


def test_rows_without_a_namespace_are_in_the_empty_one(backends):
    backend, function = backends.bound(INT, False)
    keys = pa.array([INT.encode(1), INT.encode(2)], pa.binary())
    backend.restore("total", "value", [pa.RecordBatch.from_pydict({"key": keys, "value": pa.array([5, 6])})])
    with_nulls = {"key": keys, "namespace": pa.array([None, b"w"], pa.binary()), "value": pa.array([7, 8])}
    backend.restore("total", "value", [pa.RecordBatch.from_pydict(with_nulls)])

    assert function.total.get_many(pa.array([1, 2])).to_pylist() == [7, 6]
    backend.set_current_key(2)
    backend.set_current_namespace(b"w")
    assert function.total.get() == 8


def test_merging_moves_what_the_sources_have_into_the_target(folds):
    for namespace, number in ((b"a", 1), (b"b", 2), (b"c", 4)):
        folds.backend.set_current_namespace(namespace)
        folds.total.add(number)
        folds.mean.add(number)
        folds.log.add(str(number))
    for handle in (folds.total, folds.mean, folds.log):
        merge_namespaces(folds.backend, handle, b"b", [b"c", b"b", b"a", b"never used"])

    assert (folds.total.get(), folds.mean.get(), folds.log.get()) == (7, 7 / 3, ["2", "4", "1"])
    for namespace in (b"a", b"c", b"never used"):
        folds.backend.set_current_namespace(namespace)
        assert (folds.total.get(), folds.mean.get(), folds.log.get()) == (None, None, [])
    stored = [section.rows.num_rows for section in folds.backend.snapshot().sections() if section.state == "total"]
    assert stored == [1]


def test_only_kinds_that_say_how_can_be_merged(folds):
    for handle, put in ((folds.last, lambda: folds.last.set("x")), (folds.map, lambda: folds.map.put("x", 1))):
        merge_namespaces(folds.backend, handle, b"a", [b"b"])  # nothing with nothing
        folds.backend.set_current_namespace(b"b")
        put()
        with pytest.raises(ConfigurationError, match="only list, reducing and aggregating"):
            merge_namespaces(folds.backend, handle, b"a", [b"b"])
    for namespace in (b"a", b"b"):
        folds.backend.set_current_namespace(namespace)
        folds.longest.add(namespace.decode())
    with pytest.raises(ConfigurationError, match=r"Longest has no merge.*Define merge"):
        merge_namespaces(folds.backend, folds.longest, b"a", [b"b"])
