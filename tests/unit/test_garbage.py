"""The collector stops a worker for a bounded time: what has survived a long collection is not looked at again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest

from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.task.garbage import BoundedCollections
from tidegate.testing.clock import ManualClock


class Node:
    """Can be part of a cycle."""

    other: object = None


def cycle() -> weakref.ref[Node]:
    node = Node()
    node.other = node
    return weakref.ref(node)


@pytest.fixture
def collections() -> Iterator[BoundedCollections]:
    started = BoundedCollections(long_s=0.0)  # every full collection is long
    started.start()
    yield started
    started.stop()


def test_what_survived_a_long_collection_is_not_looked_at_again(collections: BoundedCollections) -> None:
    kept = [Node() for _ in range(1000)]
    before = gc.get_freeze_count()
    gc.collect()

    assert collections.frozen_times == 1
    assert gc.get_freeze_count() >= before + len(kept)
    assert not any(isinstance(found, Node) for found in gc.get_objects())


def test_new_garbage_is_still_collected(collections: BoundedCollections) -> None:
    gc.collect()
    dead = cycle()
    gc.collect()

    assert dead() is None


@pytest.mark.parametrize("how", ["grows", "is replaced", "is replaced while a snapshot keeps the old values"])
def test_no_collection_looks_at_many_objects_while_a_large_state(how: str) -> None:
    looked_at: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations = range(info["generation"] + 1)
            looked_at.append(sum(len(gc.get_objects(generation)) for generation in generations))

    size = 200_000
    state: list[object] = [[number] for number in range(size)]
    kept = np.array([None] * size, dtype=object)  # as a snapshot saves: where the collector does not look
    clock = ManualClock()
    collections = BoundedCollections(long_s=-1.0, clock=clock)  # on this clock every collection takes no time
    collections.start()
    gc.callbacks.append(note)
    try:
        for at in range(size):
            if how == "grows":
                state.append([at])
            else:
                if how != "is replaced":
                    kept[at] = state[at]
                state[at] = [at]
            if at % 500 == 0:
                clock.advance(0.001)  # half a million objects a second
                collections.between_records()
    finally:
        gc.callbacks.remove(note)
        collections.stop()

    assert looked_at, "garbage is never looked for"
    assert max(looked_at) < size // 4


def test_between_records_garbage_is_collected_but_not_at_every_call() -> None:
    collections = BoundedCollections(long_s=60.0)
    collections.start()
    looks = []
    gc.callbacks.append(lambda phase, info: looks.append(info["generation"]))
    try:
        dead = cycle()
        collections.between_records()
        assert dead() is None
        for _ in range(100):
            collections.between_records()
    finally:
        gc.callbacks.pop()
        collections.stop()

    assert looks.count(2) < 50


def test_short_collections_freeze_nothing() -> None:
    collections = BoundedCollections(long_s=60.0)
    collections.start()
    before = gc.get_freeze_count()
    gc.collect()

    assert collections.frozen_times == 0
    assert gc.get_freeze_count() <= before  # what others have frozen may die meanwhile
    collections.stop()


def test_after_the_attempt_everything_is_looked_at_again_and_nobody_listens() -> None:
    listening = len(gc.callbacks)
    collections = BoundedCollections(long_s=0.0)
    collections.start()
    node = Node()
    node.other, seen = node, weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert seen() is not None  # the price: it was alive when it was frozen
    collections.stop()
    gc.collect()

    assert seen() is None
    assert len(gc.callbacks) == listening


def test_what_a_snapshot_saves_is_not_followed_by_the_collector() -> None:
    import tidegate as tg
    from tidegate.state.backend import bind_states

    class Function:
        kept = tg.ValueState(tg.Pickled)

    backend, function = HeapStateBackend(key_type(int), range(8), 8), Function()
    bind_states(function, backend, columnar=False)
    for key in range(20_000):
        backend.set_current_key(key)
        function.kept.set([key])
    gc.collect()
    gc.freeze()
    snapshot = backend.snapshot()
    for key in range(20_000):
        backend.set_current_key(key)
        function.kept.set(key)

    # Each chunk has been saved by now; a copy as a dictionary or list would show here, with its references.
    assert sum(len(found) for found in gc.get_objects() if type(found) in (dict, list)) < 20_000
    snapshot.release()
    gc.unfreeze()
