"""Which files of checkpoints have a copy on the executor's own disk, and which copies may be trusted. Pure.

    restored(n)   the slot continues from n, and these copies of it are intact     known: n
    begun(n)      files of n are being stored                                      known: n, too
    kept(n)       one of them, which is in storage now, has a copy here
    completed(n)  n is in the log                                                  known: n and younger; older ones go
    aborted(n)    n was given up                                                   n's go
    failed(n)     a copy of n could not be made                                    n is without copies, and completes so

A copy is only ever a short cut. Storage has every file, so whatever is doubtful here is simply not used.

Invariant 1. A copy is used only when its size, and the checksum of everything that is read from it, are those in the
             checkpoint's metadata, which came from the coordinator.
Invariant 2. No more than the last completed checkpoint and those under way have copies, as soon as one completes.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.ids import CheckpointId

ABANDONED_S = 3600.0  #: after which the copies of a job that has no process on this machine are taken away


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of a file that will be read."""

    offset: int
    length: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file that a restore needs, as the metadata describes it."""

    path: str  #: in storage
    size: int
    parts: tuple[Part, ...]

    @property
    def wanted_bytes(self) -> int:
        return sum(part.length for part in self.parts)


class Verdict(enum.Enum):
    INTACT = "intact"
    CUT = "of another size"
    CHANGED = "changed"


def judge(wanted: Wanted, size: int, checksums: Iterable[str]) -> Verdict:
    """Of a copy: its size, and the checksums of the wanted parts, in their order, which are computed as they are asked for."""
    if size != wanted.size:
        return Verdict.CUT
    found = iter(checksums)
    if any(part.checksum != next(found, None) for part in wanted.parts):
        return Verdict.CHANGED
    return Verdict.INTACT


def is_abandoned(unused_s: float) -> bool:
    """Whether the copies of a job that nobody uses may go. A job between two attempts has nobody either."""
    return unused_s > ABANDONED_S


@dataclass(slots=True)
class CopyLedger:
    """The copies of one slot: storage path -> place on the disk, for each checkpoint."""

    known: dict[CheckpointId, dict[str, str]] = field(default_factory=dict)
    spoiled: set[CheckpointId] = field(default_factory=set)  #: of `known`: a copy failed, so there are none
    completed_up_to: CheckpointId = CheckpointId(0)

    def restored(self, checkpoint: CheckpointId, copies: Mapping[str, str]) -> None:
        self.known[checkpoint] = dict(copies)
        self.completed_up_to = checkpoint

    def begun(self, checkpoint: CheckpointId) -> None:
        self.known.setdefault(checkpoint, {})

    def wants(self, checkpoint: CheckpointId) -> bool:
        """Whether files of it are to be copied: not when it was given up meanwhile."""
        return checkpoint in self.known and checkpoint not in self.spoiled

    def kept(self, checkpoint: CheckpointId, path: str, copy: str) -> None:
        if self.wants(checkpoint):
            self.known[checkpoint][path] = copy

    def failed(self, checkpoint: CheckpointId) -> None:
        if checkpoint in self.known:
            self.known[checkpoint].clear()
            self.spoiled.add(checkpoint)

    def copy_of(self, path: str) -> str | None:
        """The youngest copy: it will be there longest."""
        for checkpoint in sorted(self.known, reverse=True):
            if path in self.known[checkpoint]:
                return self.known[checkpoint][path]
        return None

    def completed(self, checkpoint: CheckpointId) -> bool:
        """Whether copies of older checkpoints can go now. A savepoint, which has no copies, changes nothing."""
        if checkpoint <= self.completed_up_to or checkpoint not in self.known:
            return False
        self.completed_up_to = checkpoint
        self.known = {id: copies for id, copies in self.known.items() if id >= checkpoint}
        self.spoiled &= self.known.keys()
        return True

    def aborted(self, checkpoint: CheckpointId) -> bool:
        """Whether it had copies, which can go now. One that has completed cannot be aborted any more."""
        if checkpoint <= self.completed_up_to:
            return False
        self.spoiled.discard(checkpoint)
        return self.known.pop(checkpoint, None) is not None
