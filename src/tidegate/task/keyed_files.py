"""Keyed state that is stored as files, so that checkpoints can share them: one keeper for each keyed operator. Executor.

    store       the snapshot's thread: upload what the last completed checkpoint lacks; name all files
    let_go      the snapshot's thread: the snapshot was read, or never will be
    completed   the task's thread: the checkpoint is in the log, and may be built on
    aborted     the task's thread: it was given up, and may not
    restore     the task's thread, before the first record

RocksDB's files are its tables (`RocksFiles`, task/incremental.py says which are shared); the heap's are a full base and
increments of changed keys (`HeapFiles`). What checkpoints own, and on which the next can be built, is said by
protocol/owned_state.py.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from tidegate.ids import CheckpointId
from tidegate.ports import SnapshotStorage
from tidegate.protocol.owned_state import OwnedState
from tidegate.savepoints.stored_sections import stored_sections
from tidegate.state.backend import KeyedSnapshot, KeyedStateBackend, Section, StoredFolder
from tidegate.storage.increment_file import store_increment_file
from tidegate.storage.state_files import HEAP, StateFiles, StoredFile, fetch_state
from tidegate.task.incremental import Lineage, store_increment
from tidegate.task.local_copies import LocalCopies

if TYPE_CHECKING:
    from tidegate.task.operators.base import RunningOperator

#: The path of a new file: (checkpoint, its name). Holds the operator, the slot and the attempt.
PathOf = Callable[[CheckpointId, str], str]

LONGEST_CHAIN = 16  #: increments over one base; a restore reads all of them
LARGEST_SHARE = 0.5  #: of the base's size; when the increments are larger together, the next checkpoint is a new base


@dataclass(eq=False)
class KeyedFiles(ABC):
    """See the module."""

    uid: str
    subtask: int
    key_groups: range
    storage: SnapshotStorage
    path_of: PathOf
    copies: LocalCopies = field(default_factory=LocalCopies)

    @abstractmethod
    def store(self, checkpoint: CheckpointId, snapshot: KeyedSnapshot) -> StateFiles: ...

    def let_go(self, snapshot: KeyedSnapshot) -> None:
        snapshot.release()

    @abstractmethod
    def completed(self, checkpoint: CheckpointId) -> None: ...

    @abstractmethod
    def aborted(self, checkpoint: CheckpointId) -> None: ...

    @abstractmethod
    def restored(self, checkpoint: CheckpointId, state: StateFiles) -> None:
        """The backend continues with exactly this state, which is the job's own: it can be built on."""


@dataclass(eq=False)
class RocksFiles(KeyedFiles):
    """Tables of RocksDB. They lie on this disk already: local copies are links to them."""

    _lineage: Lineage = field(default_factory=Lineage, init=False)

    def store(self, checkpoint: CheckpointId, snapshot: KeyedSnapshot) -> StateFiles:
        files = snapshot.files()
        assert files is not None, "a backend with a file format has files"
        stored = store_increment(
            self._lineage,
            files,
            self.storage,
            checkpoint,
            lambda name: self.path_of(checkpoint, name),
            uid=self.uid,
            subtask=self.subtask,
            key_groups=self.key_groups,
        )
        here = {file.name: file.path for file in files}
        self.copies.link(checkpoint, {file.path: here[file.name] for file in stored.files})
        return stored

    def completed(self, checkpoint: CheckpointId) -> None:
        self._lineage.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        self._lineage.aborted(checkpoint)

    def restored(self, checkpoint: CheckpointId, state: StateFiles) -> None:
        self._lineage.restored(checkpoint, state.files)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A stored snapshot that is kept in memory, to be compared with the next."""

    files: list[StoredFile]
    snapshot: KeyedSnapshot


class SharedSnapshots:
    """Snapshots that several look at, in several threads: the last one to let go releases it.

    Whoever has taken a snapshot looks at it; everybody else says so (`hold`) before the last one has let go.
    """

    def __init__(self) -> None:
        self._others: dict[KeyedSnapshot, int] = {}  #: how many look at it beside the first
        self._lock = threading.Lock()

    def hold(self, snapshot: KeyedSnapshot) -> None:
        with self._lock:
            self._others[snapshot] = self._others.get(snapshot, 0) + 1

    def let_go(self, snapshot: KeyedSnapshot) -> None:
        with self._lock:
            others = self._others.pop(snapshot, 0)
            if others > 1:
                self._others[snapshot] = others - 1
        if not others:
            snapshot.release()

    def __len__(self) -> int:
        return len(self._others)


@dataclass(eq=False)
class HeapFiles(KeyedFiles):
    """A full base, then increments over the last completed checkpoint.

    The snapshot of that checkpoint stays in memory, so the state's tables copy what they change (copy-on-write): what has
    changed since is found by comparing, and costs the task nothing while it runs. The price is memory, for the old values
    of what was changed.

    Invariant 1. While a new base is pending, nothing is built on the old one, whose files may be gone once the new one
                 completes.
    Invariant 2. A snapshot is not released while it is compared with, or stored: the next checkpoint may complete, and become
                 the base, in the middle of that. One that is released looks as if nothing had changed.
    """

    backend: KeyedStateBackend = field(kw_only=True)
    _owned: OwnedState[_Stored] = field(default_factory=OwnedState, init=False)
    _shared: SharedSnapshots = field(default_factory=SharedSnapshots, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def store(self, checkpoint: CheckpointId, snapshot: KeyedSnapshot) -> StateFiles:
        files = self._store(checkpoint, snapshot)
        with self._lock:
            if self._owned.stored(checkpoint, _Stored(files, snapshot)):
                self._shared.hold(snapshot)
        return StateFiles(
            uid=self.uid,
            subtask=self.subtask,
            first_key_group=self.key_groups.start,
            last_key_group=self.key_groups.stop - 1,
            files=files,
            format=HEAP,
        )

    def _store(self, checkpoint: CheckpointId, snapshot: KeyedSnapshot) -> list[StoredFile]:
        with self._lock:
            base = self._buildable()
            if base is not None:
                self._shared.hold(base.snapshot)
        if base is not None:
            try:
                changes = snapshot.changes(base.snapshot)
            finally:
                self._shared.let_go(base.snapshot)
            if changes is not None:
                file = self._upload(checkpoint, "changes", changes)
                self.copies.carry(checkpoint, [older.path for older in base.files])
                return [*base.files, file]
        return [self._upload(checkpoint, "base", snapshot.sections())]

    def _buildable(self) -> _Stored | None:
        base = self._owned.base
        if base is None or len(base.files) > LONGEST_CHAIN:
            return None
        if any(stored.files[0] != base.files[0] for stored in self._owned.pending.values()):
            return None  # a new base is under way
        grown = sum(file.size for file in base.files[1:])
        return base if grown <= LARGEST_SHARE * base.files[0].size else None

    def _upload(self, checkpoint: CheckpointId, name: str, sections: Iterator[Section]) -> StoredFile:
        return store_increment_file(self.storage, self.path_of(checkpoint, name), name, self.uid, checkpoint, sections)

    def let_go(self, snapshot: KeyedSnapshot) -> None:
        self._shared.let_go(snapshot)

    def completed(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            gone = self._owned.completed(checkpoint)
        for each in gone:
            self._shared.let_go(each.snapshot)

    def aborted(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            stored = self._owned.aborted(checkpoint)
        if stored is not None:
            self._shared.let_go(stored.snapshot)

    def restored(self, checkpoint: CheckpointId, state: StateFiles) -> None:
        self._owned.restored(checkpoint, _Stored(list(state.files), self.backend.snapshot()))


class SlotFiles(dict[str, KeyedFiles]):
    """The keepers of one slot by uid; none where checkpoints are full. And its copies on the local disk, of both."""

    def __init__(self, copies: LocalCopies | None = None) -> None:
        super().__init__()
        self.copies = copies or LocalCopies()

    def keep(
        self, operators: Iterable[RunningOperator], storage: SnapshotStorage, path_of: Callable[[str], PathOf]
    ) -> None:
        """`path_of` gives each operator's way of naming files."""
        for operator in operators:
            backend = operator.backend
            if backend is None:
                continue
            of, named = (operator.uid, operator.subtask, backend.key_groups), path_of(operator.uid)
            if backend.file_format is None:
                stored = self.copies.around(storage)
                self[operator.uid] = HeapFiles(*of, stored, named, self.copies, backend=backend)
            else:
                self[operator.uid] = RocksFiles(*of, storage, named, self.copies)

    def completed(self, checkpoint: CheckpointId) -> None:
        for files in self._told():
            files.completed(checkpoint)

    def _told(self) -> list[KeyedFiles | LocalCopies]:
        return [*self.values(), self.copies]

    def aborted(self, checkpoint: CheckpointId, latest_completed: CheckpointId) -> None:
        for files in self._told():
            files.aborted(checkpoint)
            files.completed(latest_completed)  # repairs a lost "complete"


# -- restoring ----------------------------------------------------------------------------------------------------


def restore_files(
    backend: KeyedStateBackend,
    storage: SnapshotStorage,
    states: Sequence[StateFiles],
    dropped: Collection[str] = (),
    copies: Mapping[str, Path] = MappingProxyType({}),
) -> bool:
    """Fill a backend from the files of all old subtasks with key groups of its own, without the `dropped` states.

    `copies`: files that are on this disk and intact, by their path in storage. `storage` may read them too; here they are
    linked.

    True: the backend's state is exactly what the (only) files hold, so the next checkpoint can be built on them.

    :raises CheckpointDamaged: when a file is not what was stored.
    """
    if backend.file_format is not None and not dropped and all(state.format == backend.file_format for state in states):
        return _restore_folders(backend, storage, states, copies)
    for state in states:
        for section in stored_sections(storage, state, backend.key_groups):
            if section.state not in dropped:
                backend.restore(section.state, section.kind, [section.rows])
    same = not dropped and len(states) == 1 and states[0].key_groups == backend.key_groups
    return same and backend.file_format is None and states[0].format == HEAP


def _restore_folders(
    backend: KeyedStateBackend, storage: SnapshotStorage, states: Sequence[StateFiles], copies: Mapping[str, Path]
) -> bool:
    folders = []
    for state in states:
        folder = backend.fetch_folder()
        fetch_state(storage, state, folder, copies=copies)
        folders.append(StoredFolder(folder, state.key_groups))
    return backend.restore_files(folders)
