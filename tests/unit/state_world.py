"""A whole operator in one process: subtasks with their state on a backend, and beside them plain dictionaries.

    kinds      what is tried: a row of the table in test_every_kind_of_state.py
    snapshot   every subtask's state into one stored file each, as a slot writes it, or as increments over the last
               completed one; files that no checkpoint needs any more are deleted, as the driver does it
    crash      everything in memory is gone
    restore    at any parallelism, shared out by protocol/redistribution.py

The backends, the file format, the increments, the registry of their files, the redistribution and the stores are the
product's.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rocksdb_kit import RocksBackends
from state_kit import MAX_PARALLELISM

from tidegate.ids import CheckpointId, SubtaskIndex
from tidegate.protocol.redistribution import StoredPart, distribution_of, owner_of, redistribute
from tidegate.protocol.shared_state import SharedFile, SharedStateRegistry
from tidegate.state.backend import bind_states
from tidegate.state.declarations import Declaration
from tidegate.state.heap import HeapStateBackend
from tidegate.state.key_groups import key_group, key_group_range
from tidegate.state.keys import KeyType
from tidegate.state.operator_state import OperatorStateStore
from tidegate.storage.metadata import FileRef, SectionRef
from tidegate.storage.snapshot_file import (
    SCHEMA_KIND,
    SnapshotFileWriter,
    read_sections,
    select_sections,
    store_snapshot,
)
from tidegate.storage.state_files import StateFiles
from tidegate.storage.store import open_store
from tidegate.task.keyed_files import HeapFiles, KeyedFiles, RocksFiles, restore_files
from tidegate.testing.clock import ManualClock

_numbers = itertools.count()


class Kind:
    """One kind of state. `declare` for keyed state; the hooks for the rest."""

    name = ""

    def declare(self) -> dict[str, Declaration]:
        return {}

    def begin(self, subtask: Subtask) -> None:
        """The state is restored: take what is needed to use it."""

    def prepare(self, subtask: Subtask) -> None:
        """A snapshot is about to be taken; raw state is written to `subtask.raw`."""

    def act(self, world: World, rng: random.Random) -> None:
        """One random step, in the product and in `world.model[self.name]`."""
        raise NotImplementedError

    def check(self, world: World) -> None:
        """What can be read is what the model has."""
        raise NotImplementedError

    def restored(self, world: World, before: Any) -> None:
        """After a restore; `before` is the model of the snapshot. Keyed state needs nothing: a key keeps what it has."""
        world.model[self.name] = before


@dataclass
class Subtask:
    index: int
    parallelism: int
    backend: Any
    function: Any
    store: OperatorStateStore
    files: KeyedFiles | None = None  #: where checkpoints are incremental
    held: dict[str, Any] = field(default_factory=dict)  #: what kinds have taken in `begin`
    raw: Any = None

    @property
    def key_groups(self) -> range:
        return key_group_range(self.index, self.parallelism, MAX_PARALLELISM)


@dataclass
class Stored:
    """A completed checkpoint."""

    number: CheckpointId
    parallelism: int
    files: list[FileRef]
    states: list[StateFiles]  #: the keyed state of each subtask, where checkpoints are incremental
    model: dict[str, Any]


@dataclass
class World:
    key_type: KeyType
    keys: list[Any]
    kinds: list[Kind]
    rocks: RocksBackends
    backends: Callable[[], str]  #: "heap", "heap increments", "rocksdb" or "rocksdb increments", for each start
    clock: ManualClock = field(default_factory=ManualClock)
    model: dict[str, Any] = field(default_factory=dict)
    subtasks: list[Subtask] = field(default_factory=list)
    completed: Stored | None = None
    pending: Any = None  #: taken and not stored
    registry: SharedStateRegistry = field(default_factory=SharedStateRegistry)
    attempt: int = 0
    number: int = 0  #: of the last checkpoint

    def __post_init__(self) -> None:
        self._objects = open_store(f"memory://state-world-{next(_numbers)}")
        self._class = type("Function", (), {})
        for kind in self.kinds:
            for name, declaration in kind.declare().items():
                setattr(self._class, name, declaration)

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self, parallelism: int) -> None:
        """Fresh, or from the completed checkpoint."""
        kept = self.completed
        self.backend_name = self.backends()
        self.attempt += 1
        self.subtasks = [self._new_subtask(index, parallelism) for index in range(parallelism)]
        if kept is not None:
            self._restore(kept, parallelism)
        for subtask in self.subtasks:
            for kind in self.kinds:
                kind.begin(subtask)
            subtask.store.check_all_claimed()
        for kind in self.kinds:
            if kept is None:
                self.model[kind.name] = {}
            else:
                kind.restored(self, copy.deepcopy(kept.model[kind.name]))
        self.check()

    def _new_subtask(self, index: int, parallelism: int) -> Subtask:
        groups = key_group_range(index, parallelism, MAX_PARALLELISM)
        name, _, increments = self.backend_name.partition(" ")
        place = ("op", index, groups)
        where = (self._objects, lambda number, file: f"chk-{number}/a{self.attempt}/{index}-{file}")
        files: KeyedFiles
        if name == "heap":
            backend: Any = HeapStateBackend(self.key_type, groups, MAX_PARALLELISM, self.clock, bool(increments))
            files = HeapFiles(*place, *where, backend=backend)
        else:
            backend = self.rocks.backend(self.key_type, groups, self.clock)
            files = RocksFiles(*place, *where)
        function = self._class()
        bind_states(function, backend)
        store = OperatorStateStore(groups)
        return Subtask(index, parallelism, backend, function, store, files if increments else None)

    def snapshot(self) -> None:
        self.take()
        self.store(completes=True)

    def take(self) -> None:
        """The synchronous part in all subtasks; what is written from here on must not be in it."""
        taken = []
        for subtask in self.subtasks:
            subtask.raw = subtask.store.raw_output()
            for kind in self.kinds:
                kind.prepare(subtask)
            taken.append((subtask, subtask.backend.snapshot(), subtask.store.snapshot(subtask.raw)))
        self.pending = (taken, copy.deepcopy(self.model))

    def store(self, completes: bool) -> None:
        """The rest of it; one that does not complete leaves the older checkpoint as the one to continue from."""
        assert self.pending is not None
        (taken, model), self.pending = self.pending, None
        self.number += 1
        number = CheckpointId(self.number)
        files, states = [], []
        for subtask, keyed, operator in taken:
            writer = SnapshotFileWriter()
            if subtask.files is not None:
                states.append(subtask.files.store(number, keyed))
                subtask.files.let_go(keyed)
            else:
                for section in keyed.sections():
                    writer.add("op", *section)
                keyed.release()
            for section in operator.sections():
                writer.add("op", *section)
            data, sections = writer.finish()
            files.append(store_snapshot(self._objects, f"snapshot-{number}-{subtask.index}", data, sections, 64))
        self._objects.delete_many(self.registry.acknowledged(number, _shared(states)))
        if completes:
            self.completed = Stored(number, len(self.subtasks), files, states, model)
            self._objects.delete_many(self.registry.completed(number))
        for subtask, _, _ in taken:
            if subtask.files is not None and completes:
                subtask.files.completed(number)
            elif subtask.files is not None and self.number % 2:  # of the others nobody says anything
                subtask.files.aborted(number)

    def crash(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.close()
        self.subtasks = []
        self.pending = None

    def _restore(self, kept: Stored, parallelism: int) -> None:
        parts: list[StoredPart] = []
        where: list[tuple[FileRef, SectionRef]] = []
        for old, file in enumerate(kept.files):
            for section in file.sections:
                if section.kind == SCHEMA_KIND:
                    continue
                group = section.key_group if section.key_group >= 0 else None
                of = distribution_of(section.kind, section.key_group)
                parts.append(StoredPart(section.state, of, SubtaskIndex(old), section.rows, group))  # type: ignore[arg-type]
                where.append((file, section))
        shares = redistribute(
            parts, old_parallelism=kept.parallelism, new_parallelism=parallelism, max_parallelism=MAX_PARALLELISM
        )
        for subtask, share in zip(self.subtasks, shares, strict=True):
            for piece in share:
                file, section = where[piece.part]
                for _, batch in read_sections(self._objects, _only(file, section)):
                    rows = batch.slice(piece.start, piece.stop - piece.start)
                    if section.kind.startswith(("operator-", "raw-")):
                        subtask.store.restore(section.state, section.kind, section.key_group, [rows])
                    else:
                        subtask.backend.restore(section.state, section.kind, [rows])
            mine = [state for state in kept.states if set(state.key_groups) & set(subtask.key_groups)]
            if mine and restore_files(subtask.backend, self._objects, mine) and subtask.files is not None:
                subtask.files.restored(kept.number, mine[0])

    # -- use -------------------------------------------------------------------------------------------------------

    def at(self, key: Any, namespace: bytes = b"") -> tuple[Subtask, Any]:
        """Make a key current where it belongs; its subtask, and what the model calls it."""
        subtask = self.owner(key)
        normalised = self.key_type.normalise(key)
        subtask.backend.set_current_key(normalised)
        if namespace:
            subtask.backend.set_current_namespace(namespace)
        return subtask, (repr(normalised), namespace)

    def owner(self, key: Any) -> Subtask:
        group = key_group(self.key_type.hash(self.key_type.normalise(key)), MAX_PARALLELISM)
        return self.subtasks[owner_of(group, len(self.subtasks), MAX_PARALLELISM)]  # type: ignore[arg-type]

    def check(self) -> None:
        for kind in self.kinds:
            kind.check(self)

    @property
    def now_ms(self) -> int:
        return int(self.clock.now * 1000)


def _only(file: FileRef, wanted: SectionRef) -> FileRef:
    return select_sections(file, lambda section: section == wanted)


def _shared(states: list[StateFiles]) -> list[SharedFile]:
    return [SharedFile(file.path, file.size, CheckpointId(file.checkpoint)) for state in states for file in state.files]
