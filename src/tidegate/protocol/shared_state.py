"""Which stored files incremental checkpoints still need. Pure; driven by coordinator/attempt.py and job.py on the driver.

A checkpoint refers to files that were uploaded for it, and to files of earlier ones. A file is deleted when no checkpoint
that counts, or may still come to count, refers to it:

    acknowledged  every file of the acknowledgement is noted as used by its checkpoint, *before* anybody asks whether the
                  acknowledgement still counts: late, doubled and foreign ones too
    completed     the log record stands, and says which checkpoint is the oldest that is retained: what was last used by
                  an older one is given out, to be deleted
    aborted       nothing: its files are like any others, and go when a newer checkpoint is the oldest retained one. They
                  cannot go at once: whether a checkpoint is in the log may be in doubt when it is given up

Invariant 1. A path that was given out is in no checkpoint from the oldest retained one on, and is never taken in again.
Invariant 2. An acknowledgement that refers to an older file which is not known here is refused: the file may be gone.
Invariant 3. What we do not own (of a checkpoint that another job owns) is never given out.

No counting of references: the newest checkpoint that used a file says all, because a slot never comes back to a file that
its last completed checkpoint had not (task/incremental.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidegate.errors import ProtocolViolation
from tidegate.ids import CheckpointId


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A stored file that several checkpoints may refer to. Its path holds attempt and checkpoint, so it is unique."""

    path: str
    size_bytes: int
    uploaded_for: CheckpointId


@dataclass(slots=True)
class _Use:
    file: SharedFile
    last_used: CheckpointId
    owned: bool


@dataclass(slots=True)
class SharedStateRegistry:
    """One for each driver; it begins with the checkpoints that the log retains."""

    oldest_retained: CheckpointId = CheckpointId(0)
    _uses: dict[str, _Use] = field(default_factory=dict)  #: by path

    def restored(self, checkpoint: CheckpointId, files: Iterable[SharedFile], owned: bool = True) -> None:
        """A retained checkpoint, before the first attempt; not `owned`: another job's, which we only start from."""
        if owned:
            self.oldest_retained = min(self.oldest_retained or checkpoint, checkpoint)
        for file in files:
            self._note(checkpoint, file, owned)

    def acknowledged(self, checkpoint: CheckpointId, files: Iterable[SharedFile]) -> list[str]:
        """A slot's acknowledgement, whatever becomes of it. Returns what can be deleted at once.

        :raises ProtocolViolation: when it refers to a file that may have been deleted. It must not complete then.
        """
        files = list(files)
        if checkpoint < self.oldest_retained:
            # Too late for anything. What it has uploaded is nobody's; what else it refers to has been decided upon.
            return [file.path for file in files if file.uploaded_for == checkpoint and file.path not in self._uses]
        for file in files:
            if file.uploaded_for != checkpoint and file.path not in self._uses:
                raise ProtocolViolation(
                    f"an acknowledgement of checkpoint {checkpoint} refers to {file.path}, which was uploaded for "
                    f"checkpoint {file.uploaded_for} and is used by no checkpoint since {self.oldest_retained}: it may "
                    "have been deleted",
                    checkpoint=checkpoint,
                    path=file.path,
                )
        for file in files:
            self._note(checkpoint, file, owned=True)
        return []

    def completed(self, oldest_retained: CheckpointId) -> list[str]:
        """A checkpoint is in the log, with those that are retained. Returns what is to be deleted, in order."""
        if oldest_retained < self.oldest_retained:
            raise ProtocolViolation(
                f"checkpoint {oldest_retained} cannot be retained again after {self.oldest_retained} was the oldest"
            )
        self.oldest_retained = oldest_retained
        dead = sorted(path for path, use in self._uses.items() if use.last_used < oldest_retained)
        return [path for path in dead if self._uses.pop(path).owned]

    def paths(self) -> set[str]:
        """Every file that may still be needed: no sweep may take it."""
        return set(self._uses)

    def _note(self, checkpoint: CheckpointId, file: SharedFile, owned: bool) -> None:
        use = self._uses.get(file.path)
        if use is None:
            self._uses[file.path] = _Use(file, checkpoint, owned)
            return
        if use.file != file:
            raise ProtocolViolation(
                f"{file.path} is said to be {file.size_bytes} bytes of checkpoint {file.uploaded_for}, and was "
                f"{use.file.size_bytes} bytes of checkpoint {use.file.uploaded_for}: two files under one name",
                path=file.path,
            )
        use.last_used = max(use.last_used, checkpoint)
