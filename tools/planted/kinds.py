"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """In `file` (below src/tidegate), `new` instead of `old`, which stands there exactly once."""

    file: str
    old: str
    new: str


#: Where checkpoints are decided, carried out, logged and restored.
OF_THE_PROTOCOL = (
    "protocol/",
    "coordinator/",
    "storage/log.py",
    "storage/checkpoints.py",
    "task/committing.py",
    "task/capture.py",
    "task/in_flight.py",
    "task/inbox.py",
    "task/input_queue.py",
    "task/restore.py",
    "task/slot.py",
    "task/slot_checkpoints.py",
    "task/snapshots.py",
    "task/operators/sink.py",
    "task/operators/source.py",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    what: str
    changes: tuple[Change, ...]
    tests: tuple[str, ...]  #: those that should catch it

    @property
    def of_the_protocol(self) -> bool:
        return any(change.file.startswith(OF_THE_PROTOCOL) for change in self.changes)
