"""What every backend promises to user code and to snapshots, case by case: in both layouts, with a TTL and without.

The same against plain dictionaries, in long runs, is test_state_model.py; what expires when is test_state_ttl.py.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from state_backends import Backends
from state_kit import MAX_PARALLELISM, STATES, Everything, plain

from tidegate.errors import CheckpointDamaged, ConfigurationError, ProtocolViolation, TypeDeclarationError
from tidegate.state.backend import bind_states
from tidegate.state.declarations import ListState, MapState, ValueState
from tidegate.state.key_groups import key_group
from tidegate.state.keys import key_type
from tidegate.state.ttl import Ttl
from tidegate.types import Pickled

INT = key_type(int)


@dataclass
class Basket:
    owner: str
    items: list[str]


def shop_with(ttl: Ttl | None) -> Any:
    class Shop:
        basket = ValueState(Basket, default=Basket("nobody", []), ttl=ttl)
        limit = ValueState(float, ttl=ttl)
        name = ValueState(str | None, default="?", ttl=ttl)
        anything = ValueState(Pickled, ttl=ttl)
        history = ListState(Basket, ttl=ttl)
        shelves = MapState(str, list[int], ttl=ttl)

    return Shop()


TTLS = {"plain": None, "ttl": Ttl("1h"), "ttl of reads": Ttl("1h", update="read_and_write")}
both_layouts = pytest.mark.parametrize("columnar", [False, True], ids=["one by one", "columns"])


@pytest.fixture(params=TTLS)
def shop(backends: Backends, request: pytest.FixtureRequest) -> Any:
    backend, function = backends.bound(INT, function=shop_with(TTLS[request.param]))
    backend.set_current_key(1)
    function.backend = backend
    return function


# -- values are the caller's own ---------------------------------------------------------------------------------------


def test_a_changed_value_is_seen_only_after_set(shop):
    shop.basket.set(Basket("ann", ["tea"]))
    taken = shop.basket.get()
    taken.items.append("milk")

    assert shop.basket.get() == Basket("ann", ["tea"])


def test_a_mutable_default_is_not_shared(shop):
    shop.basket.get().items.append("tea")

    assert shop.basket.get() == Basket("nobody", [])
    assert type(shop).basket.default == Basket("nobody", [])


def test_what_was_handed_in_can_be_changed_without_changing_state(shop):
    basket, numbers = Basket("ann", ["tea"]), [1]
    shop.history.add(basket)
    shop.shelves.put("top", numbers)
    basket.items.append("milk")
    numbers.append(2)

    assert shop.history.get() == [Basket("ann", ["tea"])]
    assert shop.shelves.get("top") == [1]
    shop.history.get()[0].items.clear()
    next(shop.shelves.values()).clear()
    next(shop.shelves.items())[1].clear()
    assert shop.history.get() == [Basket("ann", ["tea"])]
    assert shop.shelves["top"] == [1]


def test_none_is_a_value_of_an_optional_type_and_not_the_default(shop):
    assert shop.name.get() == "?"
    shop.name.set(None)

    assert shop.name.get() is None


def test_pyflink_names_do_the_same(shop):
    shop.limit.update(1.5)
    shop.history.update([Basket("ann", [])])

    assert shop.limit.value() == 1.5
    assert shop.history.get() == [Basket("ann", [])]


# -- values of another type fail where they are set --------------------------------------------------------------------


@both_layouts
@pytest.mark.parametrize("wrong", ["1", 1.5, None, True, 2**63, -(2**63) - 1])
def test_a_value_that_does_not_fit_is_refused_when_it_is_set(backends, wrong, columnar):
    backend, function = backends.bound(INT, columnar)
    backend.set_current_key(1)
    function.total.set(7)

    with pytest.raises(TypeDeclarationError, match="state 'total'"):
        function.total.set(wrong)
    assert function.total.get() == 7


def test_a_value_that_fits_without_loss_is_kept_as_the_declared_type(backends, shop):
    shop.limit.set(3)

    assert type(shop.limit.get()) is float
    backend, function = backends.bound(INT)
    backend.set_current_key(1)
    function.total.set(np.int32(4))
    assert type(function.total.get()) is int


def test_a_wrong_element_leaves_the_list_as_it_was(shop):
    shop.history.add(Basket("ann", []))

    with pytest.raises(TypeDeclarationError, match="'history'"):
        shop.history.add_all([Basket("bob", []), "no basket"])
    assert shop.history.get() == [Basket("ann", [])]


def test_a_misfit_deep_inside_a_value_never_gets_into_a_snapshot_and_is_blamed_on_its_state(shop):
    """Where the values are kept as objects, the snapshot finds it, and says under which key; else `set` does."""

    def set_and_store():
        shop.basket.set(Basket("ann", [1]))
        list(shop.backend.snapshot().sections())

    with pytest.raises(TypeDeclarationError, match=r"state 'basket'.*field 'items' of Basket"):
        set_and_store()


# -- maps -------------------------------------------------------------------------------------------------------------


def test_a_map_behaves_like_a_dictionary(shop):
    shelves = shop.shelves
    shelves["top"] = [1]
    shelves.put_all({"low": [2], "mid": []})

    assert sorted(shelves) == ["low", "mid", "top"]
    assert len(shelves) == 3
    assert "low" in shelves
    assert shelves.get("none") is None
    assert shelves.get("none", [9]) == [9]
    del shelves["low"]
    shelves.remove("never there")
    assert not shelves.contains("low")
    with pytest.raises(KeyError):
        shelves["low"]
    with pytest.raises(KeyError):
        del shelves["low"]
    shelves.clear()
    assert shelves.is_empty()


def test_iteration_sees_the_map_as_it_was_when_it_began(shop):
    shop.shelves.put_all([("a", [1]), ("b", [2])])
    seen = []
    for name, numbers in shop.shelves.items():
        seen.append((name, numbers))
        shop.shelves.remove("a")
        shop.shelves.put(name + "!", [0])
        shop.shelves.put("b", [99])

    assert sorted(seen) == [("a", [1]), ("b", [2])]


# -- keys -------------------------------------------------------------------------------------------------------------


@both_layouts
def test_state_without_a_current_key_is_refused(backends, columnar):
    backend, function = backends.bound(INT, columnar)
    backend.set_current_key(1)
    backend.clear_current_key()
    uses = [
        function.total.get,
        lambda: function.total.set(1),
        function.total.clear,
        function.log.get,
        lambda: function.log.add("x"),
        lambda: function.log.set(["x"]),
        function.log.clear,
        lambda: function.counts.get("x"),
        lambda: function.counts.put("x", 1),
        lambda: function.counts.remove("x"),
        function.counts.clear,
        lambda: len(function.counts),
        function.best.get,
        lambda: function.best.add(1),
        function.best.clear,
        function.mean.get,
        lambda: function.mean.add(1),
    ]
    for use in uses:
        with pytest.raises(ConfigurationError, match="no key is current"):
            use()
    backend.set_current_namespace(b"window")
    for use in uses:
        with pytest.raises(ConfigurationError, match="no key is current"):
            use()
    assert plain(backend.snapshot().sections(), INT) == {name: {} for name in STATES}


@both_layouts
def test_a_key_of_another_subtask_fails_every_snapshot_and_blames_the_key_function(backends, columnar):
    backend, function = backends.bound(INT, columnar, range(4))
    stray = next(key for key in range(100) if key_group(INT.hash(key), MAX_PARALLELISM) >= 4)

    def use_and_store():
        backend.set_current_key(stray)
        function.total.set(1)
        list(backend.snapshot().sections())

    for _ in range(2):  # what could not be written is not lost in silence
        with pytest.raises(ProtocolViolation, match=rf"the key {stray} .*not deterministic, or it has changed"):
            use_and_store()


# -- restore ----------------------------------------------------------------------------------------------------------


def test_sections_of_some_key_groups_make_a_part_of_the_state(backends):
    backend, function = backends.bound(INT)
    for key in range(200):
        backend.set_current_key(key)
        function.total.set(key)
        function.counts.put("n", key)
    sections = list(backend.snapshot().sections())
    halves = [backends.new(INT, range(8)), backends.new(INT, range(8, 16))]
    for half in halves:
        bind_states(Everything(), half)
        for section in sections:
            if section.key_group in half.key_groups:
                half.restore(section.state, section.kind, [section.rows])

    first, second = (plain(half.snapshot().sections(), INT) for half in halves)
    assert first["total"]
    assert second["total"]
    assert first["total"] | second["total"] == {key: key for key in range(200)}
    assert not first["total"].keys() & second["total"].keys()
    assert first["counts"] | second["counts"] == {key: {"n": key} for key in range(200)}


def rows_of_total(values: pa.Array) -> pa.RecordBatch:
    keys = pa.array([INT.encode(key) for key in range(len(values))], pa.binary())
    return pa.RecordBatch.from_pydict({"key": keys, "namespace": pa.array([b""] * len(keys)), "value": values})


@both_layouts
def test_a_narrower_stored_number_is_widened(backends, columnar):
    backend, function = backends.bound(INT, columnar)
    backend.restore("total", "value", [rows_of_total(pa.array([5, -6], pa.int16()))])
    backend.set_current_key(1)

    assert function.total.get() == -6


@both_layouts
@pytest.mark.parametrize("stored", [pa.array(["5"]), pa.array([1.5]), pa.array([None], pa.int64())])
def test_stored_values_of_another_type_are_refused(backends, stored, columnar):
    backend, _ = backends.bound(INT, columnar)

    with pytest.raises(TypeDeclarationError, match=r"'total' .* Declare the type that is stored"):
        backend.restore("total", "value", [rows_of_total(stored)])


def test_rows_without_a_needed_column_are_damaged(backends):
    backend, _ = backends.bound(INT)

    with pytest.raises(CheckpointDamaged, match="no column 'value'"):
        backend.restore("total", "value", [rows_of_total(pa.array([1])).drop_columns("value")])


def test_a_state_that_is_no_longer_declared_or_of_another_kind_is_refused(backends):
    backend, _ = backends.bound(INT)

    with pytest.raises(ConfigurationError, match="no longer declares"):
        backend.restore("gone", "value", [])
    with pytest.raises(ConfigurationError, match="as a list state, but it is declared as a value state"):
        backend.restore("total", "list", [])


def test_every_type_of_value_survives_a_restore(backends, shop):
    shop.basket.set(Basket("ann", ["tea"]))
    shop.limit.set(2.5)
    shop.name.set(None)
    shop.anything.set({"any": {1, 2}})
    shop.history.set([Basket("bob", []), Basket("ann", ["x"])])
    shop.shelves.put("top", [1, 2])
    backend, again = backends.bound(INT, function=type(shop)())
    for section in shop.backend.snapshot().sections():
        backend.restore(section.state, section.kind, [section.rows])
    backend.set_current_key(1)

    assert again.basket.get() == Basket("ann", ["tea"])
    assert again.limit.get() == 2.5
    assert again.name.get() is None
    assert again.anything.get() == {"any": {1, 2}}
    assert again.history.get() == [Basket("bob", []), Basket("ann", ["x"])]
    assert dict(again.shelves.items()) == {"top": [1, 2]}


# -- snapshots --------------------------------------------------------------------------------------------------------


def test_a_map_larger_than_a_piece_is_stored_whole(backends):
    backend, function = backends.bound(INT)
    backend.set_current_key(1)
    expected = {str(n): n for n in range(10_000)}
    function.counts.put_all(expected)
    function.log.set(list(expected))
    backend.set_current_key(2)
    function.counts.put("x", 1)

    found = plain(backend.snapshot().sections(), INT)
    assert found["counts"] == {1: expected, 2: {"x": 1}}
    assert found["log"] == {1: list(expected)}


@both_layouts
def test_a_snapshot_that_is_read_by_another_thread_never_sees_later_writes(backends, columnar):
    """Each round makes all keys equal; a snapshot taken between two rounds must find them so."""
    backend, function = backends.bound(INT, columnar)
    keys = np.arange(40_000)
    few = range(0, 3_000, 3)
    failures: list[str] = []
    reading = threading.Semaphore(2)  # several snapshots at once

    def read(snapshot: Any, round: int) -> None:
        try:
            found = plain(snapshot.sections(), INT)
            if set(found["total"].values()) != {round} or len(found["total"]) != len(keys):
                failures.append(f"round {round}: totals are {set(found['total'].values())}")
            if found["counts"] != {key: {"n": round, str(round): 1} for key in few}:
                failures.append(f"round {round}: maps differ")
            if found["log"] != {key: [str(r) for r in range(1, round + 1)] for key in few}:
                failures.append(f"round {round}: lists differ")
        except BaseException as error:
            failures.append(repr(error))
        finally:
            snapshot.release()
            reading.release()

    readers = []
    for round in range(1, 9):
        function.total.add_many(keys, 1)
        for key in few:
            backend.set_current_key(key)
            function.counts.put("n", round)
            function.counts.remove(str(round - 1))
            function.counts.put(str(round), 1)
            function.log.add(str(round))
        reading.acquire()
        reader = threading.Thread(target=read, args=(backend.snapshot(), round))
        reader.start()
        readers.append(reader)
    for reader in readers:
        reader.join()

    assert failures == []


def test_binding_again_gives_the_same_handle(backends):
    backend = backends.new(INT)

    assert backend.bind(Everything.total) is backend.bind(Everything.total)
