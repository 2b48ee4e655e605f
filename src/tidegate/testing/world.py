"""What the attempts of an in-process run share, and what they are made of: worker processes, connections, channels."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.connectors.collect_sink import CollectedResults
from tidegate.coordinator.attempt import Attempt
from tidegate.coordinator.observing import JobView
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.storage.store import ObjectStore
from tidegate.task.slot import Slot
from tidegate.testing.clock import ManualClock
from tidegate.testing.crash_points import InProcessCrashPoints, SimulatedCrash
from tidegate.testing.stepped_loop import SteppedCalls
from tidegate.wire.control import FromSlot, encode

MAX_ZOMBIES = 20  #: workers of older attempts that may still wake up


class Stuck(AssertionError):
    """Nothing can happen any more, or too much has: a deadlock or a livelock."""


@dataclass(slots=True)
class Ask:
    """Ask for a savepoint, a stop or a rescale as soon as so many checkpoints have completed; `outcome` is the answer."""

    request: SavepointRequest
    after_checkpoints: int = 1
    asked: bool = False

    @property
    def outcome(self) -> Any:
        """What the user's call would return or raise."""
        return self.request.future.result(timeout=0)


@dataclass(slots=True)
class Background:
    """A thread's work, as a queue of actions."""

    jobs: deque[Callable[[], None]] = field(default_factory=deque)

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)


@dataclass(slots=True)
class ControlLink:
    """Both directions of one slot's connection; messages pass through the real encoding."""

    to_driver: deque[bytes] = field(default_factory=deque)
    to_slot: deque[bytes] = field(default_factory=deque)
    cut: bool = False

    def send(self, message: FromSlot) -> None:
        if self.cut:
            raise SimulatedCrash("a slot without a connection ends")
        self.to_driver.append(encode(message))


@dataclass(slots=True)
class Channel:
    """The rows on their way from one slot to another."""

    receiver: WorkerProcess
    rows: deque[bytes] = field(default_factory=deque)


@dataclass(slots=True)
class WorkerProcess:
    """One worker process."""

    slot: Slot
    link: ControlLink
    uploads: Background
    commits: Background
    calls: SteppedCalls
    alive: bool = True
    connected: bool = False  #: nothing that the driver says before reaches it
    speed: float = 1.0
    outgoing: dict[int, Channel] = field(default_factory=dict)  #: by index of the receiving slot
    idle_until: float | None = None  #: nothing to do before this time, unless something arrives

    def let_go(self) -> None:
        """What the system does for a process that is gone: its files on the local disk are nobody's."""
        self.calls.let_go()
        self.slot._files.copies.close(job_ended=False)
        for chain in self.slot.chains:
            for operator in chain.operators:
                if operator.backend is not None:
                    operator.backend.close()


@dataclass(slots=True)
class World:
    """Of one run: the seed's draws, the time, the storage, and who is left of older attempts."""

    random: random.Random
    clock: ManualClock
    wall_clock: Callable[[], float]  #: of all machines; the clock itself, unless a test sets it
    store: ObjectStore
    crash_points: InProcessCrashPoints
    asks: list[Ask]
    max_actions: int
    view: JobView = field(default_factory=JobView)
    printed: list[str] = field(default_factory=list)
    collected: CollectedResults = field(default_factory=CollectedResults)
    zombies: list[WorkerProcess] = field(default_factory=list)
    actions: int = 0
    #: By whoever runs the job from another thread (testing/in_process_jobs.py): how long commits may take.
    canceled: float | None = None
    calls: deque[Callable[[Attempt], None]] = field(default_factory=deque)  #: theirs too, for the attempt that runs

    def count_action(self) -> None:
        self.actions += 1
        if self.actions > self.max_actions:
            raise Stuck(f"no end after {self.max_actions} actions")

    def bury(self, process: WorkerProcess, may_wake: bool) -> None:
        """Its attempt is over, and its connection cut. It may still wake up and do what it was about to do."""
        process.link.cut = True
        if may_wake and process.alive:
            self.zombies.append(process)
        else:
            process.let_go()
        while len(self.zombies) > MAX_ZOMBIES:
            self.zombies.pop(0).let_go()
