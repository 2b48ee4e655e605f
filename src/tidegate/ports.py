"""What the coordinator and a slot need of the world, as contracts. Spark's runner gives real ones, the in-process runner
its own."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.ids import SlotId
from tidegate.storage.state_files import FileStorage
from tidegate.wire.control import FromSlot, ToSlot


class Background(Protocol):
    """Runs jobs one after another, off the thread of whoever submits them."""

    def submit(self, job: Callable[[], None]) -> None: ...


class RunAtOnce:
    """In place of a background: the caller waits."""

    def submit(self, job: Callable[[], None]) -> None:
        job()


class CrashPoints(Protocol):
    """Named places where a test may let the process die. Does nothing in production."""

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None: ...


class NoCrashPoints:
    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None: ...


# -- the coordinator's ------------------------------------------------------------------------------------------------


class GangEnd(enum.Enum):
    """How the Spark job of an attempt has ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    NO_SLOTS = "too few free slots at the moment"
    NO_PYTHON = "the executors' Python cannot run it"  #: and a restart would find the same
    NO_SPARK = "Spark has ended"  #: nothing in this program brings it back

    @property
    def is_final(self) -> bool:
        """Another attempt would end just so."""
        return self in (GangEnd.NO_PYTHON, GangEnd.NO_SPARK)


class SlotLinks(Protocol):
    """The way to the slots of one attempt. Sending never blocks."""

    def send(self, slot: SlotId, message: ToSlot) -> None: ...


# -- a slot's ---------------------------------------------------------------------------------------------------------


class ControlPort(Protocol):
    """The way to the coordinator. Thread-safe. After the connection is lost nothing more reaches the outside."""

    def send(self, message: FromSlot) -> None: ...


class CallLoop(Protocol):
    """The asyncio loop of one slot's process, in which asynchronous functions run."""

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Soon, in the loop, in the order of the calls. Thread-safe; never blocks."""


class SnapshotStorage(FileStorage, Protocol):
    """Where snapshot files are written to and read from; `storage.ObjectStore` is one."""

    def delete(self, path: str) -> None: ...
