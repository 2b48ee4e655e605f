"""Reads between a snapshot and the moment at which its thread has written what it took over. Little is in the caches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from rocksdb_kit import RocksBackends, Room, rocks_backends
from state_kit import Mean

from tidegate.state.backend import bind_states
from tidegate.state.declarations import AggregatingState, ListState, MapState, ReducingState, ValueState
from tidegate.state.keys import key_type
from tidegate.state.ttl import Ttl
from tidegate.types.pickled import Pickled

INT = key_type(int)
#: A few keys of each state; what was written is elsewhere, and not bounded here.
A_FEW_KEYS = Room(22_000, 16 << 20)
HOUR = Ttl("1h")


class States:
    number = ValueState(int, default=0)
    word = ValueState(str)
    thing = ValueState(Pickled)
    list = ListState(int)
    map = MapState(str, int)
    best = ReducingState(int, max)
    mean = AggregatingState(Mean())
    expiring_number = ValueState(int, ttl=HOUR)
    expiring_list = ListState(int, ttl=HOUR)
    expiring_map = MapState(str, int, ttl=HOUR)
    expiring_best = ReducingState(int, max, ttl=HOUR)


def write(f: Any, number: int) -> None:
    """What the state of a key becomes; `number` grows with each call."""
    f.number.set(number)
    f.word.set(f"{number}")
    f.thing.set({number})
    f.best.add(number)
    f.mean.add(number)
    f.expiring_number.set(number)
    f.expiring_best.add(number)
    for states in (f.list, f.expiring_list):
        states.add(number)
    for states in (f.map, f.expiring_map):
        states.put("a", number)
        states.put(f"only {number}", number)
        states.remove(f"only {number - 1}")


#: Each on keys of its own (the first is current), which were written with 1, which was stored, and then with 2.
READS: dict[str, tuple[Callable[[Any, pa.Array], Any], Any]] = {
    "value": (lambda f, keys: f.number.get(), 2),
    "value of text": (lambda f, keys: f.word.get(), "2"),
    "pickled value": (lambda f, keys: f.thing.get(), {2}),
    "values of many keys": (lambda f, keys: f.number.get_many(keys).to_pylist(), [2, 2]),
    "sum of many keys": (lambda f, keys: f.number.add_many(keys, 5, running=True).to_pylist(), [7, 7]),
    "maximum of many keys": (lambda f, keys: f.number.fold_many(keys, 1, "max").to_pylist(), [2, 2]),
    "list": (lambda f, keys: f.list.get(), [1, 2]),
    "entry": (lambda f, keys: f.map.get("a"), 2),
    "new entry": (lambda f, keys: f.map.get("only 2"), 2),
    "removed entry": (lambda f, keys: f.map.get("only 1"), None),
    "contains": (lambda f, keys: (f.map.contains("only 1"), f.map.contains("only 2")), (False, True)),
    "items": (lambda f, keys: sorted(f.map.items()), [("a", 2), ("only 2", 2)]),
    "keys": (lambda f, keys: sorted(f.map.keys()), ["a", "only 2"]),
    "values": (lambda f, keys: sorted(f.map.values()), [2, 2]),
    "number of entries": (lambda f, keys: len(f.map), 2),
    "reduced": (lambda f, keys: f.best.get(), 2),
    "aggregated": (lambda f, keys: f.mean.get(), 1.5),
    "expiring value": (lambda f, keys: f.expiring_number.get(), 2),
    "expiring values of many keys": (lambda f, keys: f.expiring_number.get_many(keys).to_pylist(), [2, 2]),
    "expiring list": (lambda f, keys: f.expiring_list.get(), [1, 2]),
    "expiring entry": (lambda f, keys: f.expiring_map.get("a"), 2),
    "removed expiring entry": (lambda f, keys: f.expiring_map.contains("only 1"), False),
    "expiring items": (lambda f, keys: sorted(f.expiring_map.items()), [("a", 2), ("only 2", 2)]),
    "expiring reduced": (lambda f, keys: f.expiring_best.get(), 2),
}


@pytest.fixture(scope="module")
def backends() -> Iterator[RocksBackends]:
    with rocks_backends(A_FEW_KEYS) as made:
        yield made


@pytest.mark.parametrize("columnar", [False, True], ids=["objects", "columns"])
def test_whatever_is_read_is_what_was_written_last(backends: RocksBackends, columnar: bool) -> None:
    """And no read waits for the snapshot, which has the store's lock while it is written."""
    backend, f = backends.backend(INT), States()
    bind_states(f, backend, columnar)
    keys = {name: [2 * at, 2 * at + 1] for at, name in enumerate(READS)}
    for number in (1, 2):
        for key in range(2 * len(READS)):
            for namespace in (b"", b"w"):
                backend.set_current_key(key)
                backend.set_current_namespace(namespace)
                write(f, number)
        snapshot = backend.snapshot()
        if number == 1:
            snapshot.files()  # writes it
    for key in range(1000, 1030):  # what was written leaves the caches
        backend.set_current_key(key)
        assert [f.number.get(), f.word.get(), f.thing.get(), f.best.get(), f.mean.get()] == [0, None, None, None, None]
        assert [f.expiring_number.get(), f.expiring_best.get()] == [None, None]

    with held_elsewhere(backend._store.lock):
        for name, (read, expected) in READS.items():
            of_many = pa.array(keys[name], pa.int64())
            for namespace in (b"", b"w"):
                backend.set_current_key(keys[name][0])
                backend.set_current_namespace(namespace)
                if not namespace or "of many keys" not in name:  # which are those in the empty namespace
                    assert read(f, of_many) == expected, name
    assert backend._store._unsettled is not None
    backend.close()


def test_an_entry_that_was_counted_is_counted_on_while_the_snapshot_is_not_written(backends: RocksBackends) -> None:
    backend, f = backends.backend(INT), States()
    bind_states(f, backend)

    def count_all() -> None:
        for key in range(200):
            backend.set_current_key(key)
            f.map.put("seen", (f.map.get("seen") or 0) + 1)

    count_all()
    snapshot = backend.snapshot()
    count_all()
    for key in range(200):
        backend.set_current_key(key)
        assert (key, f.map.get("seen")) == (key, 2)
    assert [count for section in snapshot.sections() for count in section.rows["value"].to_pylist()] == [1] * 200


class held_elsewhere:
    """A lock that another thread has, as long as this lasts."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._taken, self._over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold)

    def _hold(self) -> None:
        with self._lock:
            self._taken.set()
            self._over.wait(10)

    def __enter__(self) -> None:
        self._thread.start()
        assert self._taken.wait(10)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def test_lists_that_are_written_again_as_one_count_as_unwritten() -> None:
    with rocks_backends(Room(0, 20_000)) as backends:
        backend, f = backends.backend(INT), States()
        bind_states(f, backend)
        for number in range(20):  # a row each
            for key in range(100):
                backend.set_current_key(key)
                f.list.add(number)
            backend.snapshot().release()
        lists = backend._states["list"][1]
        for key in range(100):
            backend.set_current_key(key)
            assert f.list.get() == list(range(20))
            assert len(lists.dirty) < 20  # of about 1,500 bytes each
