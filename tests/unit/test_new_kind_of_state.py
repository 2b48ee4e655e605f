"""A kind of state that the product does not have (set_state.py), through all that a state goes through on every backend."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
from rocksdb_kit import rocks_backends
from set_state import SetState, known_to_the_product
from state_backends import EVERY_BACKEND, Backends, backends_of

from tidegate.savepoints.canonical_rows import canonical_rows
from tidegate.savepoints.editing import new_savepoint
from tidegate.state.backend import bind_states
from tidegate.state.keys import key_type
from tidegate.state.ttl import Ttl
from tidegate.testing.clock import ManualClock

STR = key_type(str)
KEYS = ["", "a", "b", "key"]
ELEMENTS = [(1, "x"), (1, "y"), (2, "")]
Sets = dict[tuple[str, bytes], set[Any]]


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    known_to_the_product(monkeypatch)


class Seen:
    elements = SetState(tuple[int, str])


class SeenLately:
    elements = SetState(tuple[int, str], ttl=Ttl("10s"))


def act(function: Any, backend: Any, model: Sets, dice: random.Random) -> None:
    key, namespace, element = dice.choice(KEYS), dice.choice([b"", b"w"]), dice.choice(ELEMENTS)
    backend.set_current_key(key)
    backend.set_current_namespace(namespace)
    kept = model.setdefault((key, namespace), set())
    match dice.randrange(8):
        case 0:
            function.elements.clear()
            kept.clear()
        case 1 | 2:
            function.elements.discard(element)
            kept.discard(element)
        case _:
            function.elements.add(element)
            kept.add(element)
    assert (element in function.elements) == (element in kept)


def check(function: Any, backend: Any, model: Sets) -> None:
    for (key, namespace), kept in model.items():
        backend.set_current_key(key)
        backend.set_current_namespace(namespace)
        assert function.elements.get() == kept


def test_it_agrees_with_plain_sets_and_goes_from_backend_to_backend() -> None:
    dice, model = random.Random(1), Sets()
    sorts = [*EVERY_BACKEND, EVERY_BACKEND[0]]
    sections: list[Any] = []
    for _ in range(5):
        for sort in sorts:
            with backends_of(sort) as made:
                backend, function = made.bound(STR, function=Seen())
                for section in sections:
                    backend.restore(section.state, section.kind, [section.rows])
                check(function, backend, model)
                for _ in range(60):
                    act(function, backend, model, dice)
                snapshot, taken = backend.snapshot(), {at: set(kept) for at, kept in model.items()}
                act(function, backend, model, dice)
                sections, model = list(snapshot.sections()), taken
                snapshot.release()
                backend.close()
    assert any(model.values())


def test_its_elements_expire(backends: Backends) -> None:
    clock = ManualClock()
    backend, function = backends.new(STR, wall_clock=clock), SeenLately()
    bind_states(function, backend)
    backend.set_current_key("a")
    function.elements.add((1, "x"))
    clock.advance(6)
    function.elements.add((1, "y"))
    clock.advance(6)

    assert function.elements.get() == {(1, "y")}
    (section,) = backend.snapshot().sections()
    assert section.rows.num_rows == 1


def test_increments_and_files_have_it() -> None:
    with backends_of("heap") as made:
        backend, function = made.bound(STR, function=Seen())
        snapshots = [backend.snapshot()]
        for element in ELEMENTS:
            backend.set_current_key("a")
            function.elements.add(element)
            snapshots.append(backend.snapshot())
        changed = [list(new.changes(old) or ()) for old, new in pairwise(snapshots)]
        assert [section.rows.num_rows for (section,) in changed] == [1, 2, 3]
    with rocks_backends() as rocks:
        backend = rocks.backend(STR)
        function = Seen()
        bind_states(function, backend)
        backend.set_current_key("a")
        function.elements.add((1, "x"))
        stored = rocks.fetched(backend.snapshot(), "files", backend.key_groups)
        twin = rocks.copied(stored, "twin")
        (section,) = rocks.sections_in(stored, backend.key_groups)
        assert (section.kind, section.rows.num_rows) == ("set", 1)
        again, restored = rocks.backend(STR), Seen()
        bind_states(restored, again)
        assert again.restore_files([twin])
        check(restored, again, {("a", b""): {(1, "x")}})


def test_its_rows_are_shown_in_a_savepoint_and_made_for_one(backends: Backends) -> None:
    backend, function = backends.bound(STR, function=Seen())
    backend.set_current_key("a")
    function.elements.add((1, "x"))
    (section,) = backend.snapshot().sections()

    shown = canonical_rows(section.rows, section.kind, section.key_group, STR)
    assert shown.select(["key", "map_key"]).to_pylist() == [{"key": "a", "map_key": {"f0": 1, "f1": "x"}}]
    edit = new_savepoint("job").add_operator("seen", key_type=str, function=Seen)
    assert edit.add_state("seen", "elements", shown.to_pylist()) is edit
