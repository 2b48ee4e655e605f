"""What a checkpoint is made of, as stored in its metadata file and carried by acknowledgements. Version 1.

The metadata file is JSON, so that anyone can read it; bytes are base64. Nothing in it is ever unpickled. Written by the
driver only, before the log record that makes the checkpoint count. Unknown fields are ignored when read, so a later
minor version may add some; a change of meaning raises `FORMAT_VERSION`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidegate.errors import CheckpointDamaged, StorageError
from tidegate.storage.state_files import StateFiles, files_with_paths
from tidegate.storage.store import check_path
from tidegate.storage.versioned import decode_versioned

FORMAT_VERSION = 1
NOT_KEYED = -1  #: the key group of what has none
SECTIONS, PARQUET = "sections", "parquet"  #: formats of a snapshot file
IN_FLIGHT = "in-flight"  #: kind of a section that holds records under way, of an unaligned checkpoint


class SectionRef(msgspec.Struct, frozen=True):
    """One key group of one state: an Arrow IPC stream inside the slot's snapshot file."""

    uid: str
    state: str
    kind: str  # value | list | map | raw ...
    key_group: int  # -1 for what is not keyed
    offset: int
    length: int
    rows: int
    checksum: str  # xxh3_128, hex


class FileRef(msgspec.Struct, frozen=True):
    """The slot's snapshot file: in storage under `path`, or `inline` where it is tiny.

    Of a Parquet file (a table of a savepoint) the sections' offsets and lengths are rows, and their checksum is that of
    the whole file.
    """

    size: int
    path: str | None = None
    inline: bytes | None = None
    sections: list[SectionRef] = []
    format: str = SECTIONS


class SplitState(msgspec.Struct, frozen=True):
    """A source split and the position after the last record that is part of the checkpoint."""

    id: str
    position: Any = None
    finished: bool = False


class Committable(msgspec.Struct, frozen=True):
    """Prepared by a sink's writer for `checkpoint`; stays in every snapshot until its commit has returned."""

    uid: str
    checkpoint: int
    version: int
    payload: bytes


class SubtaskSnapshot(msgspec.Struct, frozen=True):
    """What one subtask of one operator handed in (its keyed state is in the slot's file)."""

    uid: str
    subtask: int
    ended: bool = False  # end_input has run
    watermark: int | None = None
    splits: list[SplitState] = []
    committables: list[Committable] = []


class SlotSnapshot(msgspec.Struct, frozen=True):
    """What one slot acknowledges with."""

    layer: int
    index: int
    file: FileRef
    subtasks: list[SubtaskSnapshot] = []
    tables: list[FileRef] = []  # more files: the tables of a canonical savepoint, or many records in flight, in order
    states: list[StateFiles] = []  # keyed state that is kept as files, which other checkpoints may refer to as well

    def files(self) -> list[FileRef]:
        """All files with sections."""
        return [self.file, *self.tables]

    def size_bytes(self) -> int:
        """Of the whole state; what this checkpoint had to store is `added_bytes`."""
        return sum(file.size for file in self.files()) + sum(state.size_bytes() for state in self.states)

    def added_bytes(self, checkpoint: int) -> int:
        return sum(file.size for file in self.files()) + sum(state.added_bytes(checkpoint) for state in self.states)


class StateInfo(msgspec.Struct, frozen=True):
    """A declared state, as the operator knew it."""

    name: str
    kind: str
    type: str


class OperatorInfo(msgspec.Struct, frozen=True):
    """An operator as it was when the checkpoint was taken."""

    uid: str
    name: str
    parallelism: int
    max_parallelism: int
    key_type: str | None = None
    states: list[StateInfo] = []


class CheckpointMetadata(msgspec.Struct, frozen=True):
    """The whole of a checkpoint."""

    job: str
    checkpoint: int
    generation: int
    attempt: int
    triggered_at: float  # epoch seconds
    completed_at: float
    operators: list[OperatorInfo]
    slots: list[SlotSnapshot]
    final: bool = False  # taken after all input had ended
    savepoint: bool = False  # read from a savepoint's folder; never stored
    format_version: int = FORMAT_VERSION

    def size_bytes(self) -> int:
        return sum(slot.size_bytes() for slot in self.slots)


def check_stored_path(path: str, uri: str) -> None:
    """`path`: as the metadata at `uri` names a file, relative to a folder.

    :raises CheckpointDamaged: when it leads out of the folder. Somebody has changed it: no release writes such a path.
    """
    try:
        check_path(path)
    except StorageError:
        raise CheckpointDamaged(
            f"{uri} names the file {path!r}, which is not inside its folder. No release writes that: the file was changed, or "
            "was made to have the job read or delete files of others. Do not use it.",
            path=uri,
        ) from None


def metadata_with_paths(metadata: CheckpointMetadata, follow: Callable[[str | None], str | None]) -> CheckpointMetadata:
    """The same, with every file under another path."""

    def placed(file: FileRef) -> FileRef:
        return msgspec.structs.replace(file, path=follow(file.path))

    slots = [
        msgspec.structs.replace(
            slot,
            file=placed(slot.file),
            tables=[placed(table) for table in slot.tables],
            states=[files_with_paths(state, lambda path: follow(path) or path) for state in slot.states],
        )
        for slot in metadata.slots
    ]
    return msgspec.structs.replace(metadata, slots=slots)


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    return msgspec.json.format(msgspec.json.encode(metadata), indent=1)


def decode_metadata(data: bytes, path: str) -> CheckpointMetadata:
    """:raises CheckpointDamaged: when the file is not metadata, of a version that this release cannot read, or names a file
    outside of every storage."""
    try:
        metadata = decode_versioned(data, CheckpointMetadata, "format_version", (FORMAT_VERSION,), path)
    except msgspec.MsgspecError as error:
        raise CheckpointDamaged(f"{path} is not a checkpoint's metadata: {error}", path=path) from error
    for slot in metadata.slots:
        for named in [file.path for file in slot.files()] + [
            file.path for state in slot.states for file in state.files
        ]:
            if named is not None:
                # A whole URI: of a job that continues from files of a savepoint elsewhere.
                check_stored_path(named.partition("://")[2].lstrip("/") if "://" in named else named, path)
    return metadata
