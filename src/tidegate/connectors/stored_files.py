"""Files of a sink in a store that checkpoints can use: S3, Google Cloud Storage, Azure, memory. Executors and driver.

There is no link and no rename in such a store. A part is put under a hidden name, and published by creating its final name
only if absent, from what was put; then the hidden one is deleted. Size and checksum in the committable are the evidence.

    staged       final            answer
    there        absent           create it: DONE
    there        the same bytes   an earlier try came that far: ALREADY_DONE
    absent       the same bytes   ALREADY_DONE
    any          other bytes      LOST: an earlier run or another sink wrote here; nothing is overwritten
    absent       absent           LOST
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import xxhash

from tidegate.connectors.contract import CommitOutcome
from tidegate.connectors.staged_file import StagedFile
from tidegate.storage.store import ObjectStore, StorageNotFound

if TYPE_CHECKING:
    from tidegate.connectors.file_sink import FileCommittable

SPOOL_BUFFER_BYTES = 256 * 1024


class SpooledFile(StagedFile):
    """A local file without a name: it is gone when the process is. Closing it keeps it, for `take`."""

    def __init__(self, path: str) -> None:
        self._begin(path, tempfile.TemporaryFile(buffering=SPOOL_BUFFER_BYTES))  # noqa: SIM115 - held until discard

    def sync(self) -> None:
        self.flush()

    def close(self) -> None: ...

    def take(self) -> bytes:
        self._file.seek(0)
        data: bytes = self._file.read()
        self.discard()
        return data

    def discard(self) -> None:
        super().close()


class SpooledParts:
    """Open parts are local; a closed one is moved to the store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._files: dict[str, SpooledFile] = {}
        self._count = 0

    def open_file(self) -> StagedFile:
        self._count += 1
        file = SpooledFile(f"part {self._count}")
        self._files[file.path] = file
        return file

    def move(self, local: str, path: str) -> None:
        """Durable under `path` when it returns."""
        self._store.put(path, self._files.pop(local).take())

    def close(self) -> None:
        for file in self._files.values():
            file.discard()
        self._files.clear()


def publish(store: ObjectStore, part: FileCommittable) -> tuple[CommitOutcome, str]:
    """The second phase of one part; with LOST, the reason."""
    try:
        data = store.get(part.staged)
    except StorageNotFound:
        return _by_the_final_name(store, part)
    if not _is(data, part):
        return CommitOutcome.LOST, f"{store.uri(part.staged)} is not what was prepared: its size or checksum differs."
    if store.create(part.final, data):
        store.delete(part.staged)
        return CommitOutcome.DONE, ""
    outcome, reason = _by_the_final_name(store, part)
    if outcome is CommitOutcome.ALREADY_DONE:
        store.delete(part.staged)
    return outcome, reason


def _by_the_final_name(store: ObjectStore, part: FileCommittable) -> tuple[CommitOutcome, str]:
    try:
        found = store.get(part.final)
    except StorageNotFound:
        return CommitOutcome.LOST, (
            f"Neither {store.uri(part.staged)} nor {store.uri(part.final)} exists: {part.rows} rows that were prepared have "
            "been deleted, from outside or by a start from an older checkpoint. Put one of the two back, start from the newest "
            "checkpoint, or from an older savepoint into an empty folder."
        )
    if _is(found, part):
        return CommitOutcome.ALREADY_DONE, ""
    return CommitOutcome.LOST, (
        f"{store.uri(part.final)} exists, and is not the file that was prepared as {store.uri(part.staged)}. An earlier run "
        "of the job, or another sink, has written to this folder. Give every sink and every run a folder of its own."
    )


def _is(data: bytes, part: FileCommittable) -> bool:
    return len(data) == part.size_bytes and xxhash.xxh3_128_hexdigest(data) == part.checksum
