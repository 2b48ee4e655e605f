"""Crash points that are hit one after another: the second is armed by the first, so "twice in a row" and "while it recovers
from that" can be said."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from tidegate.ids import SlotId
from tidegate.testing.crash_points import Crash, claim

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the executors cannot import the tests


class CrashesInOrder:
    """Crash k of the list is armed when the crashes before it have happened; whoever reaches it gets the signal.

    A slot can be hit only by the crash that was armed when its attempt was shipped, so an attempt has one crash at most:
    its other slots may still come to the next point while they are being ended. `folder` is shared by all processes of
    the test. A crash's `nth` counts in one process, from its arming. The first `stops` of them stop the process, the others
    kill it. With `only_while_asked` a crash can happen only while the test is asking for something (`asking`). With
    `epochs`, the folder of a `Noted` sink, a checkpoint counts only when records were prepared for it.
    """

    def __init__(
        self,
        folder: str | Path,
        crashes: list[Crash],
        stops: int = 0,
        only_while_asked: bool = False,
        epochs: str | None = None,
    ) -> None:
        self._folder = str(folder)
        self._only_while_asked = only_while_asked
        self._crashes = [crash for crash in crashes for _ in range(crash.times)]
        self._stops = stops
        self._epochs = epochs
        self._shipped: int | None = None  #: the crash that is armed for the attempt of this slot; None: on the driver
        self._armed = -1
        self._hits = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_shipped": self.happened_count() if self._shipped is None else self._shipped}

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if self._only_while_asked and not os.path.exists(_asking_file(self._folder)):
            return
        armed = self.happened_count()
        if self._shipped not in (None, armed):
            return
        if armed != self._armed:
            self._armed, self._hits = armed, 0
        if armed == len(self._crashes) or not self._crashes[armed].fits(point, slot) or self._is_empty(checkpoint):
            return
        self._hits += 1
        if self._hits >= self._crashes[armed].nth and claim(
            self._claim_file(armed), f"{point} {slot} {checkpoint} {os.getpid()}"
        ):
            os.kill(os.getpid(), signal.SIGSTOP if armed < self._stops else signal.SIGKILL)

    def _is_empty(self, checkpoint: int | None) -> bool:
        if self._epochs is None:
            return False
        return not any(json.loads(file.read_text()) for file in Path(self._epochs).glob(f"{checkpoint}.*.json"))

    def happened_count(self) -> int:
        count = 0
        while count < len(self._crashes) and os.path.exists(self._claim_file(count)):
            count += 1
        return count

    def _claim_file(self, number: int) -> str:
        return f"{self._folder}/crash-{number:03}"


@contextlib.contextmanager
def asking(folder: str | Path) -> Iterator[None]:
    """Crashes that wait for it may happen now. A process that dies in here is followed by one that calls `nothing_asked`."""
    Path(_asking_file(folder)).touch()
    try:
        yield
    finally:
        nothing_asked(folder)


def nothing_asked(folder: str | Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_asking_file(folder))


def _asking_file(folder: str | Path) -> str:
    return f"{folder}/asking"
