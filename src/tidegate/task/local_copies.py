"""Local recovery: a slot keeps copies of its checkpoints' files on its own disk, and restores from them. Executor.

Storage is the truth. A copy is made after the file is stored, and trouble with it (a full disk, a folder that cannot be
written) costs the copy, never the checkpoint. Which copies stay and which are trusted: protocol/local_copies.py.

    around      what the slot stores goes to storage, then here         the snapshot's thread
    link, carry files that are on this disk already                     the snapshot's thread
    begin       find and check what a restore wants                     the task's thread
    completed, aborted, close                                           the task's thread; deleting is left to the background
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tidegate.errors import ProtocolViolation
from tidegate.ids import AttemptId, CheckpointId, SlotId
from tidegate.ports import Background, RunAtOnce, SnapshotStorage
from tidegate.protocol.local_copies import CopyLedger, Part, Verdict, Wanted, judge
from tidegate.storage.metadata import FileRef
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import Data
from tidegate.task.copy_folder import CopyFolder, base_in, checksums
from tidegate.task.program import CopySettings
from tidegate.wire.control import Ready, Start

log = logging.getLogger("tidegate.task")


@dataclass(slots=True)
class RestoreStorage:
    """What a slot restores from: intact copies on this disk first, then storage. Counts both."""

    storage: SnapshotStorage
    began: float = 0.0  #: by the slot's clock
    copies: Mapping[str, Path] = field(default_factory=dict)  #: by path in storage; checked
    local_bytes: int = 0
    storage_bytes: int = 0
    rejected_copies: int = 0

    def get_range(self, path: str, start: int, length: int) -> bytes:
        copy = self.copies.get(path)
        if copy is not None:
            try:
                with copy.open("rb") as file:
                    return os.pread(file.fileno(), length, start)
            except OSError as error:
                log.warning("the local copy of %s cannot be read any more: %s", path, error)
        data = self.storage.get_range(path, start, length)
        self.storage_bytes += len(data)
        return data

    def uri(self, path: str) -> str:
        return self.storage.uri(path)

    def put(self, path: str, data: Data) -> None:
        raise ProtocolViolation("a restore stores nothing")

    def delete(self, path: str) -> None:
        raise ProtocolViolation("a restore deletes nothing")

    def ready(self, now: float) -> Ready:
        return Ready(now - self.began, self.local_bytes, self.storage_bytes, self.rejected_copies)


class LocalCopies:
    """The copies of one slot. Without settings it does nothing."""

    def __init__(
        self,
        settings: CopySettings | None = None,
        job: str = "",
        attempt: AttemptId | None = None,
        slot: SlotId | None = None,
        background: Background | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._job = job
        self._attempt = attempt
        self._slot = slot
        self._background = background or RunAtOnce()
        self._now = now
        self._folder: CopyFolder | None = None  #: None: not begun, or given up
        self._ledger = CopyLedger()
        self._lock = threading.Lock()
        self._warned = False

    # -- restoring ------------------------------------------------------------------------------------------------

    def begin(self, storage: SnapshotStorage, start: Start, clock_now: float = 0.0) -> RestoreStorage:
        """Before the restore: what of it is here, and intact."""
        reading = RestoreStorage(storage, clock_now)
        if self._settings is None:
            return reading
        try:
            self._folder = CopyFolder(base_in(self._settings.folder), self._job, start.incarnation, self._now())
        except OSError as error:
            log.warning("local recovery is off: %s. Checkpoints go to storage as ever.", error)
            return reading
        self._background.submit(self._sweep)
        if start.restored_from is not None:
            found: dict[str, Path] = {}
            for wanted in wanted_files(start):
                copy = self._intact(CheckpointId(start.restored_from), wanted, reading)
                if copy is not None:
                    found[wanted.path] = copy
                    reading.local_bytes += wanted.wanted_bytes
            reading.copies = found
            self._ledger.restored(CheckpointId(start.restored_from), {path: str(copy) for path, copy in found.items()})
        return reading

    def _intact(self, checkpoint: CheckpointId, wanted: Wanted, reading: RestoreStorage) -> Path | None:
        assert self._folder is not None
        for copy in self._folder.find(checkpoint, wanted.path):
            try:
                verdict = verdict_on(copy, wanted)
            except OSError as error:
                log.warning("a local copy cannot be read: %s", error)
                reading.rejected_copies += 1
                continue
            if verdict is Verdict.INTACT:
                return copy
            reading.rejected_copies += 1
            log.warning("the local copy of %s is %s; it is read from storage", wanted.path, verdict.value)
        return None

    # -- keeping --------------------------------------------------------------------------------------------------

    def around(self, storage: SnapshotStorage) -> SnapshotStorage:
        """The storage that also keeps what is put into a checkpoint of this attempt."""
        return storage if self._settings is None else _CopyingStorage(storage, self, JobPaths(self._job), self._attempt)

    def take(self, checkpoint: CheckpointId) -> None:
        """Files of this checkpoint are going to be stored."""
        with self._lock:
            self._ledger.begun(checkpoint)

    def write(self, checkpoint: CheckpointId, path: str, data: Data) -> None:
        self._keep(checkpoint, path, partial(CopyFolder.write, path=path, data=data))

    def link(self, checkpoint: CheckpointId, files: Mapping[str, Path]) -> None:
        """Files of this disk, by their path in storage. They never change, but may be deleted."""
        for path, file in files.items():
            self._keep(checkpoint, path, partial(CopyFolder.link, path=path, existing=file))

    def carry(self, checkpoint: CheckpointId, paths: Iterable[str]) -> None:
        """Files of an older checkpoint, as far as there are copies of them."""
        with self._lock:
            known = {path: Path(copy) for path in paths if (copy := self._ledger.copy_of(path)) is not None}
        self.link(checkpoint, known)

    def _keep(self, checkpoint: CheckpointId, path: str, make: Callable[[CopyFolder, Path], Path]) -> None:
        folder = self._folder
        with self._lock:
            if folder is None or not self._ledger.wants(checkpoint):
                return
        into = folder.of_slot(checkpoint, *self._place())
        try:
            copy = make(folder, into)
        except OSError as error:
            self._give_up(checkpoint, error)
            folder.delete(into)
            return
        with self._lock:
            self._ledger.kept(checkpoint, path, str(copy))

    def _give_up(self, checkpoint: CheckpointId, error: OSError) -> None:
        """Half a set of copies is of little use, and a full disk wants its space back."""
        with self._lock:
            self._ledger.failed(checkpoint)
        if not self._warned:
            self._warned = True
            log.warning("checkpoint %d has no local copy: %s. It is stored all the same.", checkpoint, error)

    def _place(self) -> tuple[AttemptId, SlotId]:
        assert self._attempt is not None
        assert self._slot is not None
        return self._attempt, self._slot

    # -- the life of a checkpoint ---------------------------------------------------------------------------------

    def completed(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            older_go = self._ledger.completed(checkpoint)
        if older_go and self._folder is not None:
            self._background.submit(lambda: self._delete_below(checkpoint))

    def aborted(self, checkpoint: CheckpointId) -> None:
        with self._lock:
            goes = self._ledger.aborted(checkpoint)
        folder = self._folder
        if goes and folder is not None:
            self._background.submit(lambda: folder.delete(folder.of_slot(checkpoint, *self._place())))

    def close(self, job_ended: bool) -> None:
        """After the end of the job nobody will look for copies again."""
        if self._folder is not None:
            if job_ended:
                self._folder.delete_all()
            self._folder.close()
            self._folder = None

    def _delete_below(self, checkpoint: CheckpointId) -> None:
        if self._folder is not None:
            self._folder.delete_below(checkpoint)
            self._folder.touch(self._now())

    def _sweep(self) -> None:
        if self._folder is not None:
            for job in self._folder.sweep(self._now()):
                log.info("the local copies of %s, which is gone, were deleted", job)


@dataclass(slots=True)
class _CopyingStorage:
    """Storage first, then a copy. Savepoints lie elsewhere and have none."""

    storage: SnapshotStorage
    copies: LocalCopies
    paths: JobPaths
    attempt: AttemptId | None

    def put(self, path: str, data: Data) -> None:
        self.storage.put(path, data)
        of = self.paths.checkpoint_of(path)
        if of is not None and of[1] == self.attempt:
            self.copies.write(of[0], path, data)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self.storage.get_range(path, start, length)

    def delete(self, path: str) -> None:
        self.storage.delete(path)

    def uri(self, path: str) -> str:
        return self.storage.uri(path)


def wanted_files(start: Start) -> Iterator[Wanted]:
    """Every file that a restore reads, once, with all of what it reads of it."""
    for state in start.states:
        for file in state.files:
            yield Wanted(file.path, file.size, (Part(0, file.size, file.checksum),))
    parts: dict[tuple[str, int], dict[Part, None]] = {}
    for ref in _refs(start):
        if ref.path is not None and ref.sections:
            found = parts.setdefault((ref.path, ref.size), {})
            found |= dict.fromkeys(Part(part.offset, part.length, part.checksum) for part in ref.sections)
    for (path, size), wanted in parts.items():
        yield Wanted(path, size, tuple(wanted))


def _refs(start: Start) -> Iterator[FileRef]:
    yield from start.files
    yield from start.in_flight
    for share in start.operator_state:
        yield share.file


def verdict_on(copy: Path, wanted: Wanted) -> Verdict:
    """:raises OSError:"""
    file = os.open(copy, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        found = checksums(file, ((part.offset, part.length) for part in wanted.parts))
        return judge(wanted, os.fstat(file).st_size, found)
    finally:
        os.close(file)
