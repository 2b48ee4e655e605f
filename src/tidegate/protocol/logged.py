"""The permit to commit: a checkpoint whose record is in the job's log. A value; driver and executor.

Nothing may become visible before the log record stands. So whatever commits asks for a `LoggedCheckpoint` and not for a number,
and there are two ways to get one:

    in_log(id)     storage/log.py alone, from a record that was read from the log or has been appended to it
    from_driver(id)  task/slot.py alone: the driver has said so (Start, Complete, Abort), which had one of the first kind

A test reads the source and finds nobody else who makes one.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.errors import ProtocolViolation
from tidegate.ids import CheckpointId

_SEAL = object()


@dataclass(frozen=True, slots=True, repr=False)
class LoggedCheckpoint:
    id: CheckpointId
    _seal: object = None

    def __post_init__(self) -> None:
        if self._seal is not _SEAL:
            raise ProtocolViolation(
                f"nobody has seen checkpoint {self.id} in the job's log, so nothing of it is committed"
            )

    @classmethod
    def in_log(cls, checkpoint: int) -> LoggedCheckpoint:
        return cls(CheckpointId(checkpoint), _SEAL)

    @classmethod
    def from_driver(cls, checkpoint: int) -> LoggedCheckpoint:
        return cls(CheckpointId(checkpoint), _SEAL)

    def __repr__(self) -> str:
        return f"LoggedCheckpoint({self.id})"
