"""The RocksDB backend against plain dictionaries: the heap's own random operations and more, with much memory and none."""

from __future__ import annotations

import random
from itertools import count
from typing import Any

import pytest
from rocksdb_kit import AMPLE, FORGETFUL, HASTY, NONE, RocksBackends, Room, rocks_backends
from state_kit import MAX_PARALLELISM, bound, plain
from test_state_heap_model import BATCH_OPERATIONS, KEY_SETS, NAMESPACES, SCALAR_OPERATIONS, Run, column_of

from tidegate.state.keys import key_type

ALL = range(MAX_PARALLELISM)
HALVES = (range(MAX_PARALLELISM // 2), range(MAX_PARALLELISM // 2, MAX_PARALLELISM))
ROOMS = {
    "ample": AMPLE,
    "none": NONE,
    "forgetful": FORGETFUL,
    "hasty": HASTY,
    "little": Room(2000, 2000),
    "some": Room(12_000, 1 << 20),
}
_folders = count()


class RocksRun(Run):
    """Also reads without writing and writes without reading, and goes on from its own files."""

    backends: RocksBackends
    columnar: bool

    def append_unseen(self, key: Any, number: int, word: str) -> None:
        at = self.at(key)
        self.function.log.add_all([word] * (abs(number) % 3))
        if number % 3:
            self.model.state["log"].setdefault(at, []).extend([word] * (abs(number) % 3))

    def read_log(self, key: Any, _: int, __: str) -> None:
        at = self.at(key)
        assert self.function.log.get() == self.model.state["log"].get(at, [])

    def put_unseen(self, key: Any, number: int, word: str) -> None:
        at = self.at(key)
        self.function.counts.put(word, number)
        self.model.state["counts"].setdefault(at, {})[word] = number

    def remove_unseen(self, key: Any, _: int, word: str) -> None:
        at = self.at(key)
        self.function.counts.remove(word)
        self.model.state["counts"].get(at, {}).pop(word, None)
        if not self.model.state["counts"].get(at, True):
            del self.model.state["counts"][at]

    def clear_counts(self, key: Any, _: int, __: str) -> None:
        at = self.at(key)
        self.function.counts.clear()
        self.model.state["counts"].pop(at, None)

    def read_entry(self, key: Any, _: int, word: str) -> None:
        entries = self.model.state["counts"].get(self.at(key), {})
        assert self.function.counts.get(word) == entries.get(word)
        assert self.function.counts.contains(word) == (word in entries)

    def read_tags(self, key: Any, _: int, __: str) -> None:
        at = self.at(key)
        assert self.function.tags.get() == self.model.state["tags"].get(at)

    def read_total(self, key: Any, _: int, __: str) -> None:
        at = self.at(key)
        assert self.function.total.get() == self.model.state["total"].get(at, 0)

    # -- restores --------------------------------------------------------------------------------------------------

    def go_on_from_files(self) -> None:
        old, snapshot = self.backend, self.backend.snapshot()
        self.backend, self.function = self.backends.bound(self.type, self.columnar)
        assert self.backend.restore_files([self.backends.fetched(snapshot, f"{next(_folders)}", ALL)])
        self._let_go(old)

    def go_on_over_two_halves(self) -> None:
        """Rescale out and in again."""
        old, snapshot = self.backend, self.backend.snapshot()
        parts = []
        for half in HALVES:
            part, _ = self.backends.bound(self.type, self.columnar, half)
            assert not part.restore_files([self.backends.fetched(snapshot, f"{next(_folders)}", ALL)])
            parts.append((part, half))
        self.backend, self.function = self.backends.bound(self.type, self.columnar)
        fetched = [self.backends.fetched(part.snapshot(), f"{next(_folders)}", half) for part, half in parts]
        assert not self.backend.restore_files(fetched)
        self._let_go(old, *(part for part, _ in parts))

    def go_on_over_the_heap(self) -> None:
        old, snapshot = self.backend, self.backend.snapshot()
        heap, _ = bound(self.type, self.columnar)
        for section in snapshot.sections():
            heap.restore(section.state, section.kind, [section.rows])
        self.columnar = not self.columnar
        self.backend, self.function = self.backends.bound(self.type, self.columnar)
        for section in heap.snapshot().sections():
            self.backend.restore(section.state, section.kind, [section.rows])
        self._let_go(old)

    def _let_go(self, *backends: Any) -> None:
        for snapshot, expected in self.snapshots:
            assert plain(snapshot.sections(), self.type) == expected
            snapshot.release()
        self.snapshots.clear()
        for backend in backends:
            backend.close()


SCALAR = [
    *SCALAR_OPERATIONS,
    RocksRun.append_unseen,
    RocksRun.append_unseen,
    RocksRun.read_log,
    RocksRun.put_unseen,
    RocksRun.put_unseen,
    RocksRun.remove_unseen,
    RocksRun.clear_counts,
    RocksRun.read_entry,
    RocksRun.read_entry,
    RocksRun.read_tags,
    RocksRun.read_total,
]
RESTORES = [RocksRun.go_on_from_files, RocksRun.go_on_over_two_halves, RocksRun.go_on_over_the_heap]


def step(run: RocksRun, pool: list[Any], rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.80:
        place = (rng.choice(pool), rng.choice(NAMESPACES))
        rng.choice(SCALAR)(run, place, rng.randint(-100, 100), rng.choice("abcdefghijkl"))
    elif kind < 0.92:
        rows = [(rng.randint(0, 50), rng.randint(-100, 100)) for _ in range(rng.randint(0, 12))]
        rng.choice(BATCH_OPERATIONS)(run, column_of(pool, [i for i, _ in rows]), [number for _, number in rows])
    elif kind < 0.96:
        run.snapshot()
    elif kind < 0.99:
        rng.choice([Run.read_and_release, Run.release_unread])(run, rng.randint(0, 3))
    else:
        rng.choice(RESTORES)(run)


@pytest.mark.parametrize("room", list(ROOMS))
@pytest.mark.parametrize("columnar", [False, True], ids=["objects", "columns"])
@pytest.mark.parametrize("keys", list(KEY_SETS))
def test_state_snapshots_and_restores_agree_with_plain_dictionaries(keys, columnar, room):
    annotation, pool = KEY_SETS[keys]
    type_of_key = key_type(annotation)
    seed = f"{keys} {columnar} {room}"
    rng = random.Random(seed)
    print("seed:", seed)
    with rocks_backends(ROOMS[room]) as backends:
        run = RocksRun(type_of_key, *backends.bound(type_of_key, columnar))
        run.backends, run.columnar = backends, columnar
        for _ in range(400):
            step(run, pool, rng)
        run.snapshot()
        snapshot, expected = run.snapshots.pop()
        assert plain(snapshot.sections(), type_of_key) == expected == run.model.state
        entries = {name: dict(run.backend.entries(name)) for name in run.model.state}
        assert {name: len(of_state) for name, of_state in entries.items()} == {
            name: len(of_state) for name, of_state in run.model.state.items()
        }
        for restore in RESTORES:
            restore(run)
            assert plain(run.backend.snapshot().sections(), type_of_key) == run.model.state
