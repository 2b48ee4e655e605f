"""What the coordinator needs of the world, as contracts. Driver."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Protocol

from tidegate.ids import SlotId
from tidegate.wire.control import ToSlot


class GangEnd(enum.Enum):
    """How the Spark job of an attempt has ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    NO_SLOTS = "too few free slots at the moment"
    NO_PYTHON = "the executors' Python cannot run it"  #: and a restart would find the same


class SlotLinks(Protocol):
    """The way to the slots of one attempt. Sending never blocks."""

    def send(self, slot: SlotId, message: ToSlot) -> None: ...


class Background(Protocol):
    """Runs jobs one after another, off the coordinator's thread."""

    def submit(self, job: Callable[[], None]) -> None: ...


class CrashPoints(Protocol):
    """Named places where a test may let the driver die. Does nothing in production."""

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None: ...
