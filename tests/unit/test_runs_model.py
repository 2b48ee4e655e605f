"""Values in runs against plain dictionaries, over many restores in a row: at any parallelism, from snapshots that were stored
late, with merges at every moment and hardly any memory.

Values are those at the limits of their types, and must come back to the bit.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from rocksdb_kit import AMPLE, FORGETFUL, HASTY, NONE, RocksBackends, rocks_backends
from state_kit import MAX_PARALLELISM

from tidegate.protocol.redistribution import owner_of
from tidegate.state import tiers
from tidegate.state.backend import StoredFolder, bind_states
from tidegate.state.cold_table import ColdTable
from tidegate.state.declarations import ValueState
from tidegate.state.key_groups import key_group, key_group_range
from tidegate.state.keys import key_type

KEYS = key_type(Any)
ALL_KEYS = [*range(60), -1, 2**63 - 1, -(2**63), 2**64, None, True, 0.5, "", "a", "x" * 40, (1, "a"), (None, 2.5)]
VALUES: dict[str, list[Any]] = {
    "total": [0, 1, -1, 2**63 - 1, -(2**63)],
    "level": [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324, 0.1],
    "flag": [True, False],
    "word": ["", "a", "\0", "\U0001f30a" * 30],
    "raw": [b"", b"\0", bytes(range(256))],
    "maybe": [None, 0, 7],
}


class Function:
    total = ValueState(int, default=0)
    level = ValueState(float)
    flag = ValueState(bool)
    word = ValueState(str)
    raw = ValueState(bytes)
    maybe = ValueState(int | None)


Model = dict[tuple[str, str, bytes], str]  #: state, key, namespace -> the value's repr


class Job:
    """Subtasks that are thrown away at each restore, and what they hold."""

    def __init__(self, rocks: RocksBackends, dice: random.Random) -> None:
        self.rocks, self.dice = rocks, dice
        self.model: Model = {}
        self.completed: tuple[list[StoredFolder], Model] | None = None
        self.late: tuple[list[Any], Model] | None = None  #: taken, and not stored
        self.subtasks: list[tuple[Any, Function]] = []
        self._numbers = iter(range(10**6))
        self.start()

    def start(self) -> None:
        """From the completed checkpoint."""
        for backend, _ in self.subtasks:
            backend.close()
        self.late = None
        parallelism = self.dice.choice([1, 1, 2, 3, 5])
        self.subtasks = []
        for index in range(parallelism):
            groups = key_group_range(index, parallelism, MAX_PARALLELISM)
            backend, function = self.rocks.backend(KEYS, groups), Function()
            bind_states(function, backend, columnar=self.dice.random() < 0.5)
            for _, table, _ in backend._states.values():
                if isinstance(table, ColdTable):
                    table.cold.part_bytes = 600
            if self.completed is not None:
                kept = [stored for stored in self.completed[0] if set(stored.key_groups) & set(groups)]
                mine = [self.rocks.copied(stored, f"fetched-{next(self._numbers)}") for stored in kept]
                if self.dice.random() < 0.8:
                    backend.restore_files(mine)
                else:
                    self.read_in(backend, mine)
            self.subtasks.append((backend, function))
        self.model = {} if self.completed is None else dict(self.completed[1])

    def read_in(self, backend: Any, mine: list[StoredFolder]) -> None:
        """As a job does that changes its backend."""
        for stored in mine:
            for section in self.rocks.sections_in(stored, backend.key_groups):
                backend.restore(section.state, section.kind, [section.rows])

    def take(self) -> None:
        self.late = [(backend, backend.snapshot()) for backend, _ in self.subtasks], dict(self.model)

    def store(self, completes: bool) -> None:
        assert self.late is not None
        (taken, model), self.late = self.late, None
        folders = [
            self.rocks.fetched(snapshot, f"chk-{next(self._numbers)}", backend.key_groups)
            for backend, snapshot in taken
        ]
        for _, snapshot in taken:
            snapshot.release()
        if completes:
            self.completed = folders, model

    def owner(self, key: Any) -> tuple[Any, Function]:
        group = key_group(KEYS.hash(KEYS.normalise(key)), MAX_PARALLELISM)
        return self.subtasks[owner_of(group, len(self.subtasks), MAX_PARALLELISM)]

    def write_some(self) -> None:
        for state in self.dice.sample(sorted(VALUES), 2):
            for key in self.dice.sample(ALL_KEYS, self.dice.choice([1, 20])):
                namespace = self.dice.choice([b"", b"", b"", b"w"])
                handle = self.handle(state, key, namespace)
                value = self.dice.choice(VALUES[state])
                if self.dice.random() < 0.2:
                    handle.clear()
                    self.model.pop((state, repr(key), namespace), None)
                else:
                    handle.set(value)
                    self.model[state, repr(key), namespace] = repr(value)

    def add_many(self) -> None:
        keys = [key for key in ALL_KEYS if type(key) is int and abs(key) < 100 and self.dice.random() < 0.7]
        for backend, function in self.subtasks:
            mine = [key for key in keys if self.owner(key)[0] is backend]
            function.total.update_many(pa.array(mine, pa.int64()), pa.array([3 * key for key in mine], pa.int64()))
            self.model |= {("total", repr(key), b""): repr(3 * key) for key in mine}

    def handle(self, state: str, key: Any, namespace: bytes) -> Any:
        backend, function = self.owner(key)
        backend.set_current_key(KEYS.normalise(key))
        if namespace:
            backend.set_current_namespace(namespace)
        return getattr(function, state)

    def read_some(self) -> None:
        backend, _ = self.dice.choice(self.subtasks)
        backend.expect([KEYS.normalise(key) for key in ALL_KEYS if self.owner(key)[0] is backend])
        for key in self.dice.sample(ALL_KEYS, 10):
            self.compare(self.dice.choice(sorted(VALUES)), key, self.dice.choice([b"", b"w"]))

    def read_all(self) -> None:
        for state in VALUES:
            for key in ALL_KEYS:
                for namespace in (b"", b"w"):
                    self.compare(state, key, namespace)
            held = sum(1 for backend, _ in self.subtasks for _ in backend.entries(state))
            assert held == sum(named == state for named, _, _ in self.model)

    def compare(self, state: str, key: Any, namespace: bytes) -> None:
        default = repr(0) if state == "total" else repr(None)
        found = repr(self.handle(state, key, namespace).get())
        assert found == self.model.get((state, repr(key), namespace), default), (state, key, namespace, found)


@pytest.fixture
def eager_merges(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[random.Random], None]]:
    def draw(dice: random.Random) -> None:
        monkeypatch.setattr(tiers, "MAX_RUNS", dice.choice([1, 2, 6]))
        monkeypatch.setattr(tiers, "AT_ONCE_ROWS", dice.choice([0, 50, 16_384]))  # the fewer, the more in threads

    return draw


@pytest.mark.parametrize("part", range(3))
def test_values_are_those_of_plain_dictionaries_after_any_number_of_restores(eager_merges: Any, part: int) -> None:
    for seed in range(4 * part, 4 * part + 4):
        run(seed, eager_merges)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_same_in_hundreds_of_runs(eager_merges: Any) -> None:
    for seed in range(1000, 1300):
        run(seed, eager_merges)


def run(seed: int, eager_merges: Any) -> None:
    dice = random.Random(seed)
    eager_merges(dice)
    with rocks_backends(dice.choice([AMPLE, NONE, FORGETFUL, HASTY])) as rocks:
        job = Job(rocks, dice)
        try:
            for _ in range(60):
                match dice.randrange(12):
                    case 0:
                        if job.late is None:
                            job.take()
                        job.store(completes=dice.random() < 0.8)
                    case 1:
                        if job.late is not None:
                            job.store(completes=False)
                        job.take()
                    case 2 | 3 if job.completed is not None:
                        job.start()
                        job.read_all()
                    case 4:
                        job.add_many()
                    case 5 | 6 | 7:
                        job.read_some()
                    case _:
                        job.write_some()
            job.read_all()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
