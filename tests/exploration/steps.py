"""The in-process runner, one step at a time, with every choice in the open: what can happen, and doing it.

A step has a name that means the same in every world ("turn 1.0", "deliver 0.1>1.0", "kill 0.0"), so that a path is a list of
names. What goes wrong within a step (a death at a crash point, a call of storage that fails, or whose answer is lost) is
part of its name: "upload 0.0 !slot.before-ack", "store !create-lost".

What is left out, and why: a slot never calls late (the seeded runs draw that), and time passes only where nothing else can
happen, unless the scenario says that it may pass at any moment.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pictures import EPOCH, Picture, take_picture

from tidegate.api.environment import StreamEnvironment
from tidegate.coordinator.job import JobEnded, JobRun
from tidegate.coordinator.job_loop import JobLoop
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.outcomes import AttemptFinished, AttemptRescaled
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.errors import JobFolderInUse, StorageError, TidegateError
from tidegate.ids import SlotId
from tidegate.protocol.job_machine import EndJob, NextStep, RunAttempt
from tidegate.storage import memory_store
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import LogRecord, decode_record
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import Data, ObjectStore
from tidegate.testing.crash_points import InProcessCrashPoints, SimulatedCrash
from tidegate.testing.ledger_sink import Ledger, ledger
from tidegate.testing.runner import InProcessRun
from tidegate.testing.scheduled_attempt import ScheduledAttempt
from tidegate.testing.world import Channel, WorkerProcess

ROOT = "explored"
EVERYTHING = "*"


class Constant:
    """In place of a random generator: nothing is drawn here."""

    def randbytes(self, count: int) -> bytes:
        return bytes(count)

    def choice(self, options: Any) -> Any:
        return options[0]

    def random(self) -> float:
        return 1.0

    def uniform(self, low: float, high: float) -> float:
        return 0.0

    def getrandbits(self, count: int) -> int:
        return 0


@dataclass(slots=True)
class Trouble:
    """What goes wrong within the step that is being taken; and, for whoever looks for more, all that could have."""

    wanted: str = ""  #: "nth name"; none: nothing goes wrong
    offered: list[str] = field(default_factory=list)

    def offer(self, name: str) -> bool:
        named = f"{name}#{sum(each.startswith(name + '#') for each in self.offered)}"
        self.offered.append(named)
        return named == self.wanted


class ExploredPoints(InProcessCrashPoints):
    def __init__(self, trouble: Trouble) -> None:
        super().__init__([])
        self._trouble = trouble

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if self._trouble.offer(point):
            raise SimulatedCrash(f"{point} slot {slot} checkpoint {checkpoint}")


class ExploredStore(memory_store.MemoryStore):
    """Calls that write may fail, or lose their answer."""

    trouble: Trouble
    fails = True

    def put(self, path: str, data: Data) -> None:
        self._maybe("put-fails", path)
        super().put(path, data)
        self._maybe("put-lost", path)

    def create(self, path: str, data: Data) -> bool:
        self._maybe("create-fails", path)
        created = super().create(path, data)
        self._maybe("create-lost", path)
        return created

    def _maybe(self, what: str, path: str) -> None:
        if self.fails and self.trouble.offer(what):
            raise StorageError(f"{path}: {what}", uri=path, reason="unreachable")


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    act: Callable[[], None]
    touches: tuple[str, ...]  #: parts of the world that look different afterwards
    needs: frozenset[str]  #: two steps with nothing in common here can be taken in either order
    inside: bool = True  #: something may go wrong within it


@dataclass(slots=True)
class Holder:
    """The roots of everything that changes, so that a picture of it leads back."""

    job: JobRun
    loop: JobLoop
    next: NextStep
    drivers: int = 1
    attempt: ScheduledAttempt | None = None
    troubles_left: int = 0
    asks_left: list[str] = field(default_factory=list)
    requests: list[SavepointRequest] = field(default_factory=list)
    zombies: list[WorkerProcess] = field(default_factory=list)
    ended: JobEnded | None = None
    failed_with: BaseException | None = None


class ExploredAttempt(ScheduledAttempt):
    def _first_to_call(self) -> list[WorkerProcess]:
        processes = list(self.processes.values())
        for sender in processes:
            layer = sender.slot.id.layer + 1
            for receiver in processes:
                if receiver.slot.id.layer == layer:
                    self._channel(sender, receiver.slot.id.index)
        return processes


class SteppedRun:
    """One job. `steps()` says what can happen, `take` does one, `pictures` is how the world looks."""

    def __init__(
        self,
        env: StreamEnvironment,
        *,
        asks: list[str],
        troubles: int = 1,
        storage_fails: bool = False,
        kills: bool = True,
        time_may_pass: bool = False,
        lazy: bool = False,
    ) -> None:
        memory_store._stores.pop(ROOT, None)
        uri = f"memory://{ROOT}/storage"
        self._trouble = Trouble()
        store = ExploredStore(uri.removeprefix("memory://"))
        store.trouble, store.fails = self._trouble, storage_fails
        self._kills = kills
        self._time_may_pass = time_may_pass
        self._lazy = lazy
        self._run = run = InProcessRun(
            env, 0, storage=uri, store=store, crash_points=ExploredPoints(self._trouble), max_actions=1 << 60
        )
        run.world.random = Constant()  # type: ignore[assignment]
        run.world.clock.now = EPOCH
        self.world = run.world
        self._objects = memory_store._stores[ROOT]
        self.held: Holder
        with self._fixed_names():
            job = run.new_driver(run._config)
            loop = JobLoop(job, run, run.world.clock)
            self.held = Holder(job, loop, loop.begin(), troubles_left=troubles, asks_left=list(asks))
            self._to_the_next_attempt()
        self.pictures: dict[str, Picture] = {}
        self._newest: dict[bytes, tuple[int, frozenset[str]]] = {}  #: by the bytes of the last record
        self.passed: list[str] = []  #: where something could have gone wrong in the last step
        self._look_at_all()

    # -- what can happen --------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        held = self.held
        if held.ended is not None or held.failed_with is not None:
            return []
        attempt = held.attempt
        assert attempt is not None
        if attempt.attempt.outcome is not None:
            return [Step("next", self._leave_attempt, (EVERYTHING,), frozenset({EVERYTHING}))]
        found = []
        if held.asks_left and attempt.attempt.running:
            found.append(
                Step(f"ask {held.asks_left[0]}", self._ask, ("driver", "to-slots"), frozenset({"driver"}), False)
            )
        found += self._in_order(list(self._steps_of(attempt)), attempt)
        if not found or (self._time_may_pass and self._something_is_due(attempt)):
            found.append(Step("time", self._let_time_pass, (EVERYTHING,), frozenset({EVERYTHING}), False))
        if held.troubles_left and self._kills:
            for id, process in attempt.processes.items():
                if process.alive:
                    found.append(self._death(f"kill {id}", lambda process=process: attempt._die(process)))
            found.append(self._death("kill driver", self._kill_driver))
        return found

    def _in_order(self, steps: list[Step], attempt: ScheduledAttempt) -> list[Step]:
        """The plain run's first. Of the sources the one that has sent less goes first, so that all have their turn; a `lazy`
        world does in the background nothing before it must."""
        last = ("upload", "commit", "store", "zombie") if self._lazy else ("zombie",)

        def place(step: Step) -> tuple[int, int, int]:
            kind, _, who = step.name.partition(" ")
            if kind != "turn":
                return (3 if kind in last else 0, last.index(kind) if kind in last else 0, 0)
            layer, index = map(int, who.split("."))
            return (1, -layer, sum(attempt.processes[SlotId(layer, index)].slot.outbox._sequences))

        return sorted(steps, key=place)

    def _death(self, name: str, act: Callable[[], None]) -> Step:
        return Step(name, act, (EVERYTHING,), frozenset({EVERYTHING}), False)

    def _steps_of(self, attempt: ExploredAttempt) -> Iterator[Step]:
        if attempt._posted:
            yield Step(
                "drive", lambda: attempt._run_next(attempt._posted), ("driver", "to-slots"), frozenset({"driver"})
            )
        if attempt._storing.jobs:
            every = frozenset({"driver", *(f"file {id}" for id in attempt.processes)})
            jobs = attempt._storing.jobs
            yield Step("store", lambda: attempt._run_next(jobs), ("driver", "to-slots", "store"), every)
        for id, process in attempt.processes.items():
            name = str(id)
            if process.link.to_driver:
                yield Step(
                    f"hear {name}",
                    lambda process=process: attempt._hear(process),
                    ("driver", "to-slots", f"{name}^"),
                    frozenset({"driver"}),
                )
            if not process.alive:
                continue
            out = (name, f"{name}^", *(f"{name}>{receiver}" for receiver in process.outgoing))
            if process.link.to_slot:
                yield Step(
                    f"tell {name}",
                    lambda process=process: attempt._tell(process),
                    (name, f"{name}v"),
                    frozenset({name}),
                )
            if process.uploads.jobs:
                yield Step(
                    f"upload {name}",
                    lambda process=process: attempt._run_guarded(process, process.uploads),
                    (*out, "store"),
                    frozenset({name, f"file {name}"}),
                )
            if process.commits.jobs:
                yield Step(
                    f"commit {name}",
                    lambda process=process: attempt._run_guarded(process, process.commits),
                    (*out, "ledger"),
                    frozenset({name}),
                )
            if attempt._can_turn(process):
                reads = frozenset({name}) if process.slot._machine.opened else frozenset({name, f"file {name}"})
                yield Step(f"turn {name}", lambda process=process: attempt._turn(process), (*out, "ledger"), reads)
            for index, channel in process.outgoing.items():
                receiver = channel.receiver
                if len(channel.rows) > 1 and receiver.alive and receiver.slot.mailbox.has_room:
                    yield self._delivery(attempt, name, index, channel)
        for number, zombie in enumerate(self.held.zombies):
            for what, background in (("upload", zombie.uploads), ("commit", zombie.commits)):
                if background.jobs:
                    yield Step(
                        f"zombie {number} {what}",
                        lambda zombie=zombie, background=background: attempt._haunt(zombie, background),
                        ("zombies", "store", "ledger"),
                        frozenset({EVERYTHING}),
                        False,
                    )

    def _delivery(self, attempt: ExploredAttempt, sender: str, index: int, channel: Channel) -> Step:
        receiver = str(channel.receiver.slot.id)
        touched = (receiver, f"{sender}>{index}", f"{receiver}^")
        return Step(
            f"deliver {sender}>{receiver}", lambda: attempt._deliver(channel), touched, frozenset({receiver}), False
        )

    # -- doing it ---------------------------------------------------------------------------------------------------

    def take(self, step: Step, trouble: str = "") -> list[str]:
        """What could have gone wrong within it. A violation is kept in `held.failed_with`."""
        self._trouble.wanted, self._trouble.offered = trouble, []
        alive = self._alive()
        held = self.held
        if trouble or step.name.startswith("kill"):
            held.troubles_left -= 1
        with self._fixed_names():
            try:
                step.act()
            except SimulatedCrash:
                self._kill_driver()  # a slot's death is caught where it happens
            except TidegateError as error:
                held.failed_with = error
            except AssertionError as error:
                held.failed_with = error
        offered = self._trouble.offered
        self.passed = list(offered)
        if self._alive() != alive or EVERYTHING in step.touches or trouble or held.failed_with is not None:
            self._look_at_all()
        else:
            self._look_at(step.touches)
        return offered if step.inside and held.troubles_left and not trouble else []

    def _alive(self) -> int:
        attempt = self.held.attempt
        return 0 if attempt is None else sum(process.alive for process in attempt.processes.values())

    @contextmanager
    def _fixed_names(self) -> Iterator[None]:
        """Names that are drawn, so that nobody has them twice, are numbers here, for the same reason."""
        held = getattr(self, "held", None)
        number = 0 if held is None else held.drivers
        original, secrets.token_hex = secrets.token_hex, lambda count=8: f"{number:0{2 * count}x}"  # type: ignore[assignment]
        try:
            yield
        finally:
            secrets.token_hex = original

    def _ask(self) -> None:
        what = self.held.asks_left.pop(0)
        attempt = self.held.attempt
        assert attempt is not None
        if what == "checkpoint":
            attempt.attempt.request_checkpoint()
            return
        from tidegate.protocol.checkpoint_events import StopMode

        stop = None if what == "savepoint" else StopMode(what)
        directory = None if stop is StopMode.RESCALE else f"memory://{ROOT}/savepoints"
        request = SavepointRequest(directory, stop=stop, parallelism=1 if stop is StopMode.RESCALE else None)
        self.held.requests.append(request)
        attempt.attempt.request_savepoint(request)

    def _something_is_due(self, attempt: ScheduledAttempt) -> bool:
        now = self.world.clock.now
        times = [process.slot._machine.next_time() for process in attempt.processes.values() if process.alive]
        return any(time is not None and time > now for time in times)

    def _let_time_pass(self) -> None:
        attempt = self.held.attempt
        assert attempt is not None
        now = self.world.clock.now
        due = [process.slot._machine.next_time() for process in attempt.processes.values() if process.alive]
        soon = [time for time in due if time is not None and time > now]
        if self._time_may_pass and soon:
            self.world.clock.now = min(soon)
            for process in attempt.processes.values():
                process.idle_until = now
        else:
            attempt._let_time_pass()

    def _leave_attempt(self) -> None:
        held = self.held
        attempt, job = held.attempt, held.job
        assert attempt is not None
        while attempt._storing.jobs:
            attempt._storing.jobs.popleft()()
        if isinstance(attempt.attempt.outcome, AttemptFinished | AttemptRescaled):
            attempt._wind_down()
        attempt.leave(job)
        self._bury(attempt)
        held.next = held.loop.heard(attempt.attempt.outcome)
        self._to_the_next_attempt()

    def _kill_driver(self) -> None:
        held = self.held
        if held.attempt is not None:
            held.attempt.leave(held.job)
            self._bury(held.attempt)
        held.drivers += 1
        with self._fixed_names():
            try:
                held.job = self._run.new_driver(replace(self._run._config, resume="latest"))
                held.loop = JobLoop(held.job, self._run, self.world.clock)
                held.next = held.loop.begin()
                self._to_the_next_attempt()
            except JobFolderInUse:
                held.ended, held.attempt = JobEnded(JobStatus.FINISHED, None), None  # right after the last record

    def _bury(self, attempt: ScheduledAttempt) -> None:
        for process in attempt.processes.values():
            process.link.cut = True
            if process.alive and (process.uploads.jobs or process.commits.jobs):
                self.held.zombies.append(process)
        self.held.attempt = None

    def _to_the_next_attempt(self) -> None:
        held = self.held
        while not isinstance(held.next, RunAttempt | EndJob):
            held.next = held.loop.do(held.next)
        if isinstance(held.next, EndJob):
            held.ended = held.loop.ended(held.next)
        else:
            held.attempt = ExploredAttempt(self.world, held.job, held.loop.inputs)

    # -- what storage says --------------------------------------------------------------------------------------------

    def stored_paths(self) -> set[str]:
        return {path.removeprefix("storage/") for path in self._objects}

    def newest_checkpoint(self) -> tuple[int, frozenset[str]]:
        """Its id, 0 if there is none in the log, and all the files that it needs."""
        prefix = f"storage/{JobPaths('job').log_folder}"
        last = max((path for path in self._objects if path.startswith(prefix)), default=None)
        if last is None:
            return 0, frozenset()
        data = self._objects[last]
        if data not in self._newest:
            latest = decode_record(data, last).latest
            paths: set[str] = set()
            if latest is not None:
                paths.add(latest.metadata_path)
                if f"storage/{latest.metadata_path}" in self._objects:
                    for slot in load_checkpoint(self.world.store, latest).slots:
                        paths |= {file.path for file in slot.files() if file.path is not None}
            here = frozenset(path for path in paths if "://" not in path)
            self._newest[data] = (0 if latest is None else int(latest.id), here)
        return self._newest[data]

    # -- how it looks -----------------------------------------------------------------------------------------------

    def _parts(self) -> dict[str, tuple[Any, ...]]:
        held = self.held
        parts: dict[str, tuple[Any, ...]] = {
            "driver": (held,),
            "store": (self._objects,),
            "ledger": (ledger(ROOT).staged, ledger(ROOT).committed),
            "zombies": tuple(zombie for zombie in held.zombies),
        }
        if held.attempt is not None:
            for id, process in held.attempt.processes.items():
                parts[str(id)] = (process,)
                parts[f"{id}^"] = (process.link.to_driver,)
                parts[f"{id}v"] = (process.link.to_slot,)
                for index, channel in process.outgoing.items():
                    parts[f"{id}>{index}"] = (channel.rows,)
        return parts

    def _elsewhere(self, parts: dict[str, tuple[Any, ...]]) -> dict[int, str]:
        named = {id(root): f"the {name}" for name, roots in parts.items() if name != "zombies" for root in roots}
        attempt = self.held.attempt
        if attempt is not None:
            named[id(attempt)] = "the attempt"
            for slot, process in attempt.processes.items():
                named[id(process.slot)] = f"the slot {slot}"
                for channel in process.outgoing.values():
                    named[id(channel)] = f"a channel to {channel.receiver.slot.id}"
        return named

    def _look_at_all(self) -> None:
        self._known_parts = parts = self._parts()
        self._named = self._elsewhere(parts)
        self.pictures = {name: self._picture(name) for name in parts}

    def _look_at(self, touched: tuple[str, ...]) -> None:
        pictures = dict(self.pictures)
        for name in touched:
            if name == "to-slots":
                for each in self._known_parts:
                    if each[-1] == "v":
                        pictures[each] = self._picture(each)
            else:
                pictures[name] = self._picture(name)
        self.pictures = pictures

    def _picture(self, name: str) -> Picture:
        parts, named = self._known_parts, self._named
        roots = parts[name]
        own = [id(root) for root in roots]
        if name == "driver":
            own.append(id(self.held.attempt))
            roots = (self.held, self.world.clock.now)
        elif name == "zombies":
            roots = tuple((zombie.uploads, zombie.commits, zombie.link.cut) for zombie in roots)
        elif roots and isinstance(roots[0], WorkerProcess):
            own.append(id(roots[0].slot))
        hidden = {key: named.pop(key) for key in own if key in named}
        try:
            return take_picture(named, self.world.clock.now, *roots)
        finally:
            named.update(hidden)

    def look(self) -> int:
        """Equal for equal worlds."""
        return hash(tuple((name, picture.digest) for name, picture in self.pictures.items()))

    def go_back_to(self, pictures: dict[str, Picture], now: float) -> None:
        current = self.pictures
        for name, picture in pictures.items():
            if current.get(name) is not picture:
                picture.restore()
        self.world.clock.now = now
        self.pictures = pictures
        self._known_parts = self._parts()
        self._named = self._elsewhere(self._known_parts)


def log_records(store: ObjectStore) -> list[LogRecord]:
    """The whole log of the job, read without JobLog."""
    return [decode_record(store.get(path), path) for path in sorted(store.list(JobPaths("job").log_folder))]


__all__ = ["EVERYTHING", "Ledger", "Step", "SteppedRun"]
