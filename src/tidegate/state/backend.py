"""The contract of a keyed state backend: where the state of one subtask lives, and how it gets in and out of snapshots.

Runs on the executor. Everything is called by the task's thread, except `KeyedSnapshot.sections` and `release`, which
run in the snapshot's thread while the task goes on writing.

Invariant 1. A snapshot holds the state as it was when `snapshot` was called, whatever is written before it is read.
Invariant 2. `snapshot` does not get slower as the state grows: what it does is bounded by the number of chunks.
Invariant 3. What `sections` writes, `restore` of any backend reads (the rows are described in state/sections.py).
Invariant 4. What has expired (state/ttl.py) is in no section and is never returned after a restore, whether or not it was
             cleaned up.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from tidegate.state.declarations import declared_states

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa

    from tidegate.ids import KeyGroup
    from tidegate.state.declarations import Declaration
    from tidegate.state.direct import DirectAccess
    from tidegate.state.handles import Handle


class Section(NamedTuple):
    """Rows of one key group of one state. There may be several of each in a snapshot, where the state is large: a key's rows of
    a value or list state are in one of them. None is empty.

    Operator state (state/operator_state.py) has sections too, with kinds and a key group of its own.
    """

    state: str
    kind: str
    key_group: KeyGroup
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file on this disk, with state of one moment."""

    name: str
    path: Path
    size: int
    shareable: bool  #: it never changes under its name, so later checkpoints can refer to it


@dataclass(frozen=True, slots=True)
class StoredFolder:
    """The files of one old subtask's state, fetched to the local disk; they are used up by `restore_files`."""

    folder: Path
    key_groups: range  #: that the old subtask owned


class KeyedSnapshot(ABC):
    """The state at one moment. Read once, at any later time, then released; releasing without reading is fine."""

    @abstractmethod
    def sections(self) -> Iterator[Section]:
        """State by state, key groups ascending. Gives up the GIL often.

        :raises ProtocolViolation: for a key that belongs to another subtask's key group.
        :raises TypeDeclarationError: for a value that does not fit its declared type; names the state and the key.
        """

    def changes(self, since: KeyedSnapshot) -> Iterator[Section] | None:
        """What differs from an older snapshot of the same backend, which was not released: whole keys at a time.

        Keys that are gone are in sections of the kind `DELETED`. None: the two cannot be compared.
        """
        return None

    def files(self) -> list[LocalFile] | None:
        """The files that hold this state, until `release`; None where the backend has no `file_format`."""
        return None

    @abstractmethod
    def release(self) -> None:
        """Nothing will be read any more. May be called from any thread, and twice."""


class KeyedStateBackend(ABC):
    """Keyed state of one operator in one subtask, for the keys of its `key_groups`."""

    key_groups: range
    #: What the files are that its snapshots consist of; None: there are none, and increments are made of `changes`.
    file_format: ClassVar[str | None] = None

    @abstractmethod
    def bind(self, declaration: Declaration, columnar: bool = False) -> Handle:
        """The handle for a declared state; the same one when asked again.

        `columnar` asks for a layout that favours `get_many`, `update_many` and `add_many`. Every handle answers all
        calls, and both layouts are stored alike.
        """

    @abstractmethod
    def set_current_key(self, key: Hashable) -> None:
        """All handles work on this key (normalised by the operator's key type), in the empty namespace, from now on.

        On the per-record path.
        """

    def direct(self) -> DirectAccess | None:
        """Where value states lie, for a loop that reads and writes them itself. None: nowhere that it could."""
        return None

    @abstractmethod
    def set_current_namespace(self, namespace: bytes) -> None:
        """All handles work in this namespace of the current key, until another is set, or a key.

        Classic mistake: to set the namespace first. It belongs to the key, and setting a key leaves it. What names its
        keys itself (`get_many` and its kin) works in the empty namespace.
        """

    def expect(self, keys: list[Hashable]) -> None:
        """The (normalised) keys of the next records: what is on a disk may be read for all of them at once. A hint."""

    @abstractmethod
    def key_group_of(self, key: Any) -> int:
        """Of a key as the user has it. :raises TypeDeclarationError: for what cannot be a key of this operator."""

    @abstractmethod
    def clear_current_key(self) -> None:
        """No key is current; to use state now is an error."""

    @abstractmethod
    def snapshot(self) -> KeyedSnapshot:
        """The synchronous part of a snapshot."""

    @abstractmethod
    def restore(self, state_name: str, kind: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Add stored rows, of our key groups, to a state that was bound before. Called before the first record.

        :raises ConfigurationError: for a state that is not declared, or is declared as another kind.
        :raises TypeDeclarationError: for stored values of another type than the declared one.
        """

    def fetch_folder(self) -> Path:
        """A folder that does not exist yet, on the same disk: where files to restore from are best fetched to."""
        raise NotImplementedError(f"{type(self).__name__} has no files")

    def restore_files(self, stored: Sequence[StoredFolder]) -> bool:
        """Continue from files of its own `file_format`. Called after all states are bound, before the first record.

        True: the files are now this backend's own, so they need not be stored again by the next checkpoint.

        :raises ConfigurationError: for a state that is not declared any more, or is declared as another kind.
        :raises TypeDeclarationError: for stored values of another type than the declared one.
        :raises CheckpointDamaged: when the files are not of that format.
        """
        raise NotImplementedError(f"{type(self).__name__} has no files")

    def clean_up(self, budget_entries: int) -> int:
        """Look at the next entries that can expire, at most so many, and forget those that have; how many they were.

        Goes round all of them in turn. To be called when the task is idle, and now and then when it is not: without it
        expired entries are never returned, but stay in memory.
        """
        return 0

    @abstractmethod
    def entries(self, state_name: str) -> Iterator[tuple[Hashable, Any]]:
        """Every key (normalised) of a bound state with its value, in no order. Reads all of it: after a restore only."""

    @abstractmethod
    def keys(self, state_name: str) -> Iterator[Hashable]:
        """Every key (normalised) that has something in a bound state, in the empty namespace, in no order.

        Between two steps the state of the key that was given last may be changed, and no other.
        """

    @abstractmethod
    def state_size(self) -> dict[str, int]:
        """How many keys (in each of their namespaces) each state holds, expired ones too. For metrics."""

    def metrics(self) -> dict[str, float]:
        """Numbers of the backend's own, by the names in docs/metrics.md. For the heartbeat's thread: it must only read."""
        return {}

    def close(self) -> None:
        """Let go of files and memory."""


def bind_states(function: object, backend: KeyedStateBackend, columnar: bool = False) -> None:
    """Give an instance its handles: from here on `self.count` is the handle, not the declaration."""
    for name, declaration in declared_states(function).items():
        function.__dict__[name] = backend.bind(declaration, columnar)
