"""What the coordinator needs of the world, as contracts. Driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tidegate.ids import SlotId
from tidegate.wire.control import ToSlot


class SlotLinks(Protocol):
    """The way to the slots of one attempt. Sending never blocks."""

    def send(self, slot: SlotId, message: ToSlot) -> None: ...


class Background(Protocol):
    """Runs jobs one after another, off the coordinator's thread."""

    def submit(self, job: Callable[[], None]) -> None: ...


class CrashPoints(Protocol):
    """Named places where a test may let the driver die. Does nothing in production."""

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None: ...
