"""Writes and reads the metadata file of a checkpoint, and finds the one that a user names. Driver only.

Order of completing a checkpoint; a crash between two steps leaves the last logged checkpoint as the one that counts:

1. The slots have stored their snapshot files and acknowledged.
2. `store_checkpoint` writes the metadata file. Nobody looks for it: recovery reads the log, never a listing.
3. `JobLog.append` writes the log record with the pointer: from here on the checkpoint counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote

import xxhash

from tidegate.errors import CheckpointDamaged, ConfigurationError
from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation
from tidegate.storage.anywhere import as_uri, folder_of, is_uri, reaching_anywhere
from tidegate.storage.log import CheckpointPointer, JobLog
from tidegate.storage.metadata import CheckpointMetadata, decode_metadata, encode_metadata, metadata_with_paths
from tidegate.storage.paths import METADATA_NAME, JobPaths
from tidegate.storage.savepoint_format import is_savepoint, read_savepoint
from tidegate.storage.store import ObjectStore, StorageNotFound, check_path, without_credentials


def store_checkpoint(store: ObjectStore, paths: JobPaths, metadata: CheckpointMetadata) -> CheckpointPointer:
    """Write the metadata file, durably. The checkpoint does not count yet."""
    attempt = AttemptId(Generation(metadata.generation), AttemptNumber(metadata.attempt))
    path = paths.metadata(CheckpointId(metadata.checkpoint), attempt)
    data = encode_metadata(metadata)
    store.put(path, data)
    return pointer_to(path, data, metadata)


def load_checkpoint(
    store: ObjectStore, pointer: CheckpointPointer, older: Sequence[CheckpointPointer] = ()
) -> CheckpointMetadata:
    """The metadata that the pointer names. `older` are the retained ones that an error can offer instead.

    :raises CheckpointDamaged: when the file is missing or not the one that the log means. Never falls back by itself:
        sinks have committed what came after an older checkpoint, and would write it again.
    """
    path = pointer.metadata_path
    uri = store.uri(path)
    try:
        data = store.get(path)
    except StorageNotFound:
        raise damaged_checkpoint(store, pointer, f"{uri} is missing", older) from None
    if xxhash.xxh3_128_hexdigest(data) != pointer.checksum:
        raise damaged_checkpoint(store, pointer, f"{uri} was changed or cut short: its checksum does not match", older)
    metadata = read_metadata(store, path, data)
    if (metadata.checkpoint, metadata.generation, metadata.attempt) != (
        pointer.id,
        pointer.generation,
        pointer.attempt,
    ):
        raise damaged_checkpoint(store, pointer, f"{uri} is of another checkpoint ({metadata.checkpoint})", older)
    return metadata


def read_metadata(store: ObjectStore, path: str, data: bytes) -> CheckpointMetadata:
    """Of a checkpoint or a savepoint, from the bytes of its metadata file at `path`."""
    if is_savepoint(data):
        return read_savepoint(store, folder_of(path), data)
    metadata = decode_metadata(data, store.uri(path))
    return placed_at(metadata, path) if is_uri(path) else metadata


def placed_at(metadata: CheckpointMetadata, uri: str) -> CheckpointMetadata:
    """The metadata of a checkpoint that lies at `uri`, with paths that can be followed from anywhere.

    Files in the checkpoint's own folder are looked for beside the metadata, so a copied folder will do. The others
    are where the storage of the checkpoint's job is.
    """
    attempt = AttemptId(Generation(metadata.generation), AttemptNumber(metadata.attempt))
    folder = JobPaths(metadata.job).checkpoint(CheckpointId(metadata.checkpoint), attempt)
    here = folder_of(uri) + "/"
    root = here.removesuffix(folder) if here.endswith("/" + folder) else here

    def follow(path: str | None) -> str | None:
        if path is None or is_uri(path):
            return path
        return here + path.removeprefix(folder) if path.startswith(folder) else root + path

    return metadata_with_paths(metadata, follow)


def is_claimed_with(pointer: CheckpointPointer, metadata: CheckpointMetadata, path: str) -> bool:
    """Whether a file that the checkpoint refers to became the job's own with it, to be deleted one day.

    What a job has claimed names files by URI. Those of others, wherever the metadata says they are, stay theirs.
    """
    if not is_uri(pointer.metadata_path):
        return True
    folder = folder_of(pointer.metadata_path)
    if not metadata.savepoint:
        folder = folder_of(folder_of(folder))  # of the job: its checkpoints share files
    return path.startswith(f"{folder}/")


def damaged_checkpoint(
    store: ObjectStore, pointer: CheckpointPointer, what: str, older: Sequence[CheckpointPointer]
) -> CheckpointDamaged:
    """The error for a checkpoint that cannot be restored, with the way to start from an older one."""
    ways = [store.uri(other.metadata_path) for other in reversed(older) if other.metadata_path != pointer.metadata_path]
    if ways:
        # Tidegate does not do this alone: what the sinks committed since then would be written once more.
        advice = (
            "To start from an older checkpoint (sinks will write again what they have committed since), run\n"
            + "\n".join(f"    tidegate run JOB --resume {way}" for way in ways)
            + '\nor pass resume="<that path>".'
        )
    else:
        advice = (
            "No older checkpoint is retained. Restore the file from a backup, or start anew under another job name; "
            "`tidegate run JOB --resume <path>` starts from any other checkpoint that you have."
        )
    return CheckpointDamaged(
        f"checkpoint {pointer.id} cannot be restored: {what}. {advice}",
        checkpoint=pointer.id,
        path=pointer.metadata_path,
        older=ways,
    )


def resolve(store: ObjectStore, paths: JobPaths, text: str) -> CheckpointPointer:
    """The checkpoint that a user names by `chk-17`, or by the path or URI of its folder or metadata file.

    `chk-17` must be retained by the job's log. A path need not be: it may be of another job, a savepoint, in any storage.

    :raises ConfigurationError: when the text names no checkpoint.
    :raises CheckpointDamaged: when the named metadata file cannot be read.
    """
    store = reaching_anywhere(store)
    newest = JobLog(store, paths).read_newest()
    retained = [] if newest is None else newest.retained
    by_id = re.fullmatch(r"(?:chk-)?([0-9]+)", text)
    if by_id is not None:
        for pointer in retained:
            if pointer.id == int(by_id[1]):
                return pointer
        kept = ", ".join(f"chk-{pointer.id}" for pointer in retained) or "none"
        raise ConfigurationError(
            f"the job {paths.job!r} has no checkpoint {text!r} (retained: {kept}). Name a retained one, or the path "
            "of a checkpoint's _metadata.json.",
            resume=text,
        )
    path = _path_of(store, text)
    if not path.endswith(".json"):
        path = f"{path}/{METADATA_NAME}"
    for pointer in retained:
        if pointer.metadata_path == path:
            return pointer
    try:
        data = store.get(path if is_uri(path) else check_path(path))
    except StorageNotFound:
        raise ConfigurationError(
            f"there is no checkpoint at {without_credentials(text)}: {store.uri(path)} does not exist. Name the "
            f"folder that holds {METADATA_NAME}, or that file.",
            resume=text,
        ) from None
    return pointer_to(path, data, read_metadata(store, path, data), owned=not is_uri(path))


def _path_of(store: ObjectStore, text: str) -> str:
    """Inside the store where it lies there, else its whole URI."""
    text = text.rstrip("/")
    if not is_uri(text):
        return text
    uri = as_uri(text)
    inside = uri.startswith(store.location + "/")
    return unquote(uri[len(store.location) + 1 :]) if inside else uri


def pointer_to(path: str, data: bytes, metadata: CheckpointMetadata, owned: bool = True) -> CheckpointPointer:
    return CheckpointPointer(
        id=metadata.checkpoint,
        metadata_path=path,
        checksum=xxhash.xxh3_128_hexdigest(data),
        size_bytes=metadata.size_bytes(),
        generation=metadata.generation,
        attempt=metadata.attempt,
        completed_at=metadata.completed_at,
        owned=owned and not metadata.savepoint,
    )
