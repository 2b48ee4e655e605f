"""Incremental snapshots of one subtask's database: what is stored already, and what must be uploaded. Executor.

`Lineage` decides and remembers; `store_increment` acts. Of the tables that a checkpoint of the database has, those are not
uploaded again that the last *completed* checkpoint of this lineage has as well. The acknowledgement names all files, old
and new, so whoever reads the checkpoint needs no other.

Which checkpoint that is, and which are pending, is a matter of protocol/owned_state.py.

Invariant 1. A table that the lineage has is uploaded again all the same, when a pending checkpoint has uploaded it under
             another path: if that one completes, the first copy is used by nobody, and may be gone before we hear of it.
Invariant 2. One lineage for each attempt and subtask. It begins with the files that the database was opened from, or with
             nothing; what another attempt has uploaded is never built on. (A table's name is of one database only.)
Invariant 3. Each upload has a path of its own: it holds the checkpoint and the attempt.

`stored` and `plan` are called in the snapshot's thread, the others in the task's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tidegate.errors import StorageError
from tidegate.ids import CheckpointId
from tidegate.ports import SnapshotStorage
from tidegate.protocol.owned_state import OwnedState
from tidegate.state.backend import LocalFile
from tidegate.storage.state_files import SmallFile, StateFiles, StoredFile, store_file

log = logging.getLogger("tidegate.task")

#: Runs one function over many files; `map`, or that of a pool.
MapFiles = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


class Lineage:
    """Which tables of one database are stored, as far as completed checkpoints say."""

    def __init__(self) -> None:
        self._owned: OwnedState[dict[str, StoredFile]] = OwnedState()  #: by name
        self._lock = threading.Lock()

    def restored(self, checkpoint: CheckpointId, files: Iterable[StoredFile]) -> None:
        """The database continues with these very tables, and the checkpoint is ours to build on."""
        with self._lock:
            self._owned.restored(checkpoint, {file.name: file for file in files})

    def plan(self, tables: Sequence[LocalFile]) -> tuple[list[StoredFile], list[LocalFile]]:
        """(stored already, to upload)."""
        with self._lock:
            usable = {name: file for name, file in (self._owned.base or {}).items() if not self._uploaded_again(file)}
        reused, new = [], []
        for table in tables:
            file = usable.get(table.name)
            if file is not None and file.size == table.size:
                reused.append(file)
            else:
                new.append(table)
        return reused, new

    def _uploaded_again(self, file: StoredFile) -> bool:
        return any(
            other is not None and other.path != file.path
            for other in (files.get(file.name) for files in self._owned.pending.values())
        )

    def stored(self, checkpoint: CheckpointId, files: Iterable[StoredFile]) -> None:
        """To be called before the acknowledgement: its answer may be quick."""
        with self._lock:
            self._owned.stored(checkpoint, {file.name: file for file in files})

    def completed(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            self._owned.completed(checkpoint)

    def aborted(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            self._owned.aborted(checkpoint)


def store_increment(
    lineage: Lineage,
    files: Sequence[LocalFile],
    storage: SnapshotStorage,
    checkpoint: CheckpointId,
    path_of: Callable[[str], str],
    *,
    uid: str,
    subtask: int,
    key_groups: range,
    share: bool = True,
    map_files: MapFiles = map,
) -> StateFiles:
    """Upload what must be; everything is durable when this returns. The snapshot that `files` are of may be released then.

    `path_of` gives the path of a new file by its local name, and must hold checkpoint and attempt. `share=False` uploads all
    and is built on by nobody: a savepoint owns its files.

    :raises StorageError: nothing is left behind then, as far as storage lets us.
    """
    tables = [file for file in files if file.shareable]
    small_files = [SmallFile(file.name, file.path.read_bytes()) for file in files if not file.shareable]
    reused, new = lineage.plan(tables) if share else ([], tables)
    uploaded: list[StoredFile] = []
    try:
        for stored in map_files(
            lambda table: store_file(storage, table.path, table.name, path_of(table.name), checkpoint), new
        ):
            uploaded.append(stored)
    except BaseException:
        _delete(storage, [path_of(table.name) for table in new])
        raise
    if share:
        lineage.stored(checkpoint, [*reused, *uploaded])
    return StateFiles(
        uid=uid,
        subtask=subtask,
        first_key_group=key_groups.start,
        last_key_group=key_groups.stop - 1,
        files=sorted([*reused, *uploaded], key=lambda file: file.name),
        small_files=small_files,
    )


def _delete(storage: SnapshotStorage, paths: list[str]) -> None:
    """Nobody has been told of these: the checkpoint is declined."""
    for path in paths:
        try:
            storage.delete(path)
        except StorageError as error:
            log.warning("a file of a failed snapshot stays behind: %s", error)
