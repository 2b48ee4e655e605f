"""Crash points: named places in the protocol where a test lets a process die. See docs/failure-scenarios.md for the list.

The same names work in both worlds: in-process a crash is an exception that the runner takes for a death; under Spark it is a
real SIGKILL (or SIGSTOP), claimed through files, so that it happens as often as asked over all processes and attempts.
"""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.ids import SlotId

#: Every point of the product, in the order of the protocol. A test checks that each is reached.
SLOT_POINTS = (
    "slot.restored",
    "source.before-barrier",
    "slot.aligned",
    "slot.barrier-forwarded",
    "slot.snapshot-taken",
    "slot.before-store",
    "slot.before-ack",
    "slot.after-ack",
    "slot.before-commit",
    "slot.after-commit",
)
DRIVER_POINTS = (
    "driver.triggered",
    "driver.before-metadata",
    "driver.before-log",
    "driver.after-log",
    "driver.before-notify",
    "driver.notified",
    "driver.before-finished",
    "driver.after-finished",
)
ALL_POINTS = (*SLOT_POINTS, *DRIVER_POINTS)
#: Reached only by a savepoint; it passes all the others too.
SAVEPOINT_POINTS = ("slot.table-stored", "driver.tables-stored", "driver.savepoint-stored")
#: Where a job begins, from the first of its log or from any snapshot.
START_POINTS = ("driver.generation-taken", "slot.restoring")


@dataclass(frozen=True, slots=True)
class Crash:
    """Die at `point`, on its `nth` time (from 1) in one process, `times` times over all processes."""

    point: str
    nth: int = 1
    times: int = 1
    layer: int | None = None
    index: int | None = None

    def __post_init__(self) -> None:
        known = (*ALL_POINTS, *SAVEPOINT_POINTS, *START_POINTS)
        if self.point not in known:
            raise ValueError(f"there is no crash point {self.point!r}; there are {', '.join(known)}")

    def fits(self, point: str, slot: SlotId | None) -> bool:
        if point != self.point:
            return False
        if slot is None:
            return True
        return self.layer in (None, slot.layer) and self.index in (None, slot.index)


class SimulatedCrash(BaseException):
    """A process died here. No product code may catch it."""


@dataclass(slots=True)
class InProcessCrashPoints:
    """For the in-process runner: raises."""

    crashes: list[Crash]
    hits: dict[Crash, int] = field(default_factory=dict)
    done: dict[Crash, int] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        self.reached.add(point)
        for crash in self.crashes:
            if crash.fits(point, slot):
                self.hits[crash] = self.hits.get(crash, 0) + 1
                if self.hits[crash] >= crash.nth and self.done.get(crash, 0) < crash.times:
                    self.done[crash] = self.done.get(crash, 0) + 1
                    self.hits[crash] = 0
                    raise SimulatedCrash(f"{point} slot {slot} checkpoint {checkpoint}")


class FileCrashPoints:
    """For Spark: kills the process that gets there. `folder` must be shared by all processes of the test."""

    def __init__(self, folder: str | Path, crashes: list[Crash], signal_number: int = signal.SIGKILL) -> None:
        self._folder = str(folder)
        self._crashes = crashes
        self._signal = signal_number
        self._hits: dict[Crash, int] = {}
        os.makedirs(self._folder, exist_ok=True)

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        for number, crash in enumerate(self._crashes):
            if crash.fits(point, slot):
                self._hits[crash] = self._hits.get(crash, 0) + 1
                if self._hits[crash] >= crash.nth and self._claim(number, crash):
                    os.kill(os.getpid(), self._signal)

    def happened(self) -> list[str]:
        """What died, as `point pid`, in order."""
        return [file.read_text() for file in sorted(Path(self._folder).glob("crash-*"))]

    def _claim(self, number: int, crash: Crash) -> bool:
        text = f"{crash.point} {os.getpid()}"
        return any(claim(f"{self._folder}/crash-{number:03}-{time:03}", text) for time in range(crash.times))


def claim(path: str, text: str) -> bool:
    """True for the first to ask. Whoever sees the file sees the text: it is there at once, or not at all."""
    folder, name = os.path.split(path)
    mine = f"{folder}/.{name}.{os.getpid()}.{threading.get_ident()}"
    with open(mine, "w") as file:
        file.write(text)
    try:
        os.link(mine, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(mine)
    return True
