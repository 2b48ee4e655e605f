"""Which checkpoints are kept, and how the others are deleted. Driver only; the plan is pure.

Order, so that no crash loses a file that is still needed:

1. `plan_retention` chooses.
2. The log record with the shorter `retained` is appended.
3. Only then `delete_checkpoint`.

Files of keyed state (`*.state`) may belong to several checkpoints. `delete_checkpoint` leaves them: the registry of shared
state (protocol/shared_state.py) says when one can go.

A crash between 2 and 3, or a deletion that fails, leaves files that nobody refers to; storage/sweep.py finds them.
Deleting never stops a job: what went wrong is returned.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tidegate.errors import ProtocolViolation, StorageError
from tidegate.ids import CheckpointId
from tidegate.storage.anywhere import folder_of, is_uri
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import CheckpointPointer, LogRecord
from tidegate.storage.metadata import CheckpointMetadata
from tidegate.storage.paths import STATE_SUFFIX, JobPaths
from tidegate.storage.store import ObjectStore


def plan_retention(
    retained: Sequence[CheckpointPointer], keep: int
) -> tuple[list[CheckpointPointer], list[CheckpointPointer]]:
    """(kept, dropped): the last `keep` stay, the newest always does. What is not ours (a savepoint) is not dropped, but
    no longer listed once there is something newer."""
    ours = [pointer for pointer in retained[:-1] if pointer.owned] + list(retained[-1:])
    first = max(0, len(ours) - max(1, keep))
    return ours[first:], ours[:first]


@dataclass(frozen=True, slots=True)
class Deletion:
    """What became of one checkpoint's files."""

    checkpoint: CheckpointId
    deleted: tuple[str, ...]
    failures: tuple[str, ...]  #: for the log file; the files stay behind as orphans


def delete_checkpoint(
    store: ObjectStore,
    paths: JobPaths,
    pointer: CheckpointPointer,
    metadata: CheckpointMetadata | None,
    newest: LogRecord,
    in_use: Collection[str] = (),
) -> Deletion:
    """Delete the files in the checkpoint's own folder, except `in_use` (files that retained checkpoints refer to).

    `metadata` says which files; None (it cannot be read) means all that the folder lists. The metadata file goes first,
    so that nobody starts from a checkpoint that is deleted by half. Storage trouble is returned, never raised.

    :raises ProtocolViolation: when the newest log record still refers to the checkpoint.
    """
    if pointer == newest.latest or pointer in newest.retained:
        raise ProtocolViolation(f"checkpoint {pointer.id} is still retained by log record {newest.sequence}")
    if not pointer.owned:
        raise ProtocolViolation(f"checkpoint {pointer.id} is not ours to delete")
    metadata_path = pointer.metadata_path
    folder = folder_of(metadata_path) + "/"
    if is_uri(metadata_path):
        metadata = None  # it was claimed, and the folder with it
    deleted: list[str] = []
    failures: list[str] = []
    try:
        files = store.list(folder) if metadata is None else sorted(_own_files(metadata))
        doomed = [
            path
            for path in files
            if path.startswith(folder)
            and path not in in_use
            and path != metadata_path
            and not path.endswith(STATE_SUFFIX)
        ]
        if metadata_path not in in_use:
            store.delete(metadata_path)
            deleted.append(metadata_path)
        store.delete_many(doomed)
        deleted += doomed
    except StorageError as error:
        failures.append(str(error))
    return Deletion(CheckpointId(pointer.id), tuple(deleted), tuple(failures))


def files_in_use(store: ObjectStore, newest: LogRecord) -> set[str]:
    """Every file that a retained checkpoint, or the latest one, refers to.

    :raises CheckpointDamaged: when the metadata of one of them cannot be read. Then nobody knows, and nothing may go.
    """
    pointers = list(newest.retained)
    if newest.latest is not None and newest.latest not in pointers:
        pointers.append(newest.latest)
    found = {pointer.metadata_path for pointer in pointers}
    for pointer in pointers:
        found |= _files(load_checkpoint(store, pointer, newest.retained))
    return found


def _files(metadata: CheckpointMetadata) -> set[str]:
    return _own_files(metadata) | {
        file.path for slot in metadata.slots for state in slot.states for file in state.files
    }


def _own_files(metadata: CheckpointMetadata) -> set[str]:
    return {file.path for slot in metadata.slots for file in slot.files() if file.path is not None}
