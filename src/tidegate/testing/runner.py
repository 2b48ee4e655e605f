"""Runs a job in this process, without Spark: the very Slot, Attempt and JobRun of the product, scheduled from one seed.

Replaced are only channel, clock and storage. Everything that can happen next (a slot's turn, a frame arriving, a control
message, a background job, time) is one action; which one happens is drawn from the seed, so every interleaving can be
reached and every failure repeated. Channels keep Spark's look-ahead: a frame arrives only when another row follows it.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tidegate.api.environment import StreamEnvironment
from tidegate.config import JobConfig
from tidegate.connectors.collect_sink import CollectedResults
from tidegate.coordinator.attempt import Attempt, AttemptEnded, AttemptFinished, AttemptRescaled, Timeouts
from tidegate.coordinator.job import AttemptInputs, Decision, JobEnded, JobRun, RestartIn
from tidegate.coordinator.observing import JobStatus, JobView
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.errors import CheckpointDamaged, CommitLost, ConfigurationError, JobFolderInUse, Superseded, TidegateError
from tidegate.ids import SlotId
from tidegate.launch import collected_results, slot_settings
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.store import ObjectStore, open_store
from tidegate.task.failures import describe_failure
from tidegate.task.inbox import Inbox
from tidegate.task.mailbox import Mailbox
from tidegate.task.operators.base import OperatorFailed
from tidegate.task.program import SlotProgram
from tidegate.task.slot import Slot
from tidegate.testing.clock import ManualClock
from tidegate.testing.crash_points import Crash, InProcessCrashPoints, SimulatedCrash
from tidegate.wire.control import FromSlot, ToDriver, ToSlot, decode_from_slot, decode_to_slot, encode
from tidegate.wire.frame import FrameSeal, decode_frame

log = logging.getLogger("tidegate.testing")

MAX_ACTIONS = 2_000_000
MOST_ZOMBIES = 20  #: workers of older attempts that may still wake up
CHANNEL_ROWS = 8  #: Spark's credit: a slot whose outbox cannot be emptied does not turn
LATE_CALL = 0.02  #: weight of a late slot's call: others do a hundred things or more before


class Stuck(AssertionError):
    """Nothing can happen any more, or too much has: a deadlock or a livelock."""


class AllDriversDied(Stuck):
    """As many drivers have crashed as the run was given. What the last one left in storage can be resumed."""


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
class RunResult:
    """How a job ended."""

    status: JobStatus
    error: TidegateError | None
    view: JobView
    store: ObjectStore
    collected: CollectedResults
    printed: str
    drivers: int  #: how many drivers it took
    attempts: int
    points_reached: set[str]


@dataclass(slots=True)
class _Background:
    """A thread's work, as a queue of actions."""

    jobs: deque[Callable[[], None]] = field(default_factory=deque)

    def submit(self, job: Callable[[], None]) -> None:
        self.jobs.append(job)


@dataclass(slots=True)
class _ControlLink:
    """Both directions of one slot's connection; messages pass through the real encoding."""

    to_driver: deque[bytes] = field(default_factory=deque)
    to_slot: deque[bytes] = field(default_factory=deque)
    cut: bool = False

    def send(self, message: FromSlot) -> None:
        if self.cut:
            raise SimulatedCrash("a slot without a connection ends")
        self.to_driver.append(encode(message))


@dataclass(slots=True)
class _Channel:
    """The rows on their way from one slot to another."""

    receiver: _Process
    rows: deque[bytes] = field(default_factory=deque)


@dataclass(slots=True)
class _Process:
    """One worker process."""

    slot: Slot
    link: _ControlLink
    uploads: _Background
    commits: _Background
    alive: bool = True
    connected: bool = False  #: nothing that the driver says before reaches it
    speed: float = 1.0
    outgoing: dict[int, _Channel] = field(default_factory=dict)  #: by index of the receiving slot
    idle_until: float | None = None  #: nothing to do before this time, unless something arrives

    def let_go(self) -> None:
        """What the system does for a process that is gone: its files on the local disk are nobody's."""
        self.slot._files.copies.close(job_ended=False)
        for chain in self.slot.chains:
            for operator in chain.operators:
                if operator.backend is not None:
                    operator.backend.close()


class InProcessRun:
    """One job, from its first driver to its end."""

    def __init__(
        self,
        env: StreamEnvironment,
        seed: int,
        crashes: list[Crash] | None = None,
        storage: str | None = None,
        max_drivers: int = 10,
        zombies: bool = True,
        store: ObjectStore | None = None,
        max_actions: int = MAX_ACTIONS,
        crash_points: InProcessCrashPoints | None = None,
        asks: Sequence[Ask] = (),
    ) -> None:
        self._asks = list(asks)
        self._env = env
        self._random = random.Random(seed)
        self._crash_points = crash_points or InProcessCrashPoints(list(crashes or []))
        self._clock = ManualClock()
        uri = storage or env._config.storage or f"memory://run-{seed}-{self._random.getrandbits(48):x}"
        self._config: JobConfig = replace(env.config(), storage=uri)
        self._store = reaching_anywhere(open_store(uri) if store is None else store)
        self._max_drivers = max_drivers
        self._max_actions = max_actions
        self._zombies_allowed = zombies
        self._zombies: list[_Process] = []
        self._view = JobView()
        self._printed: list[str] = []
        self._collected: CollectedResults = CollectedResults()
        self._attempts = 0
        self._actions = 0

    def run(self) -> RunResult:
        try:
            return self._run_drivers()
        finally:
            for zombie in self._zombies:
                zombie.let_go()

    def _run_drivers(self) -> RunResult:
        drivers = 0
        while True:
            drivers += 1
            if drivers > self._max_drivers:
                raise AllDriversDied(f"{self._max_drivers} drivers died")
            config = self._config if drivers == 1 else replace(self._config, resume="latest")
            try:
                ended = self._run_driver(config)
            except SimulatedCrash:
                continue
            except JobFolderInUse:
                if drivers == 1:
                    raise
                ended = JobEnded(JobStatus.FINISHED, None)  # its driver died right behind the last record
            return RunResult(
                ended.status,
                ended.error,
                self._view,
                self._store,
                self._collected,
                "".join(self._printed),
                drivers,
                self._attempts,
                self._crash_points.reached,
            )

    # -- the driver ---------------------------------------------------------------------------------------------------

    def _run_driver(self, config: JobConfig) -> JobEnded:
        job = JobRun(
            name=self._env.name,
            graph=self._env._graph,
            default_parallelism=self._env.parallelism,
            config=config,
            store=self._store,
            driver="in-process",
            view=self._view,
            crash_points=self._crash_points,
            clock=self._clock,
            wall_clock=self._clock,
            sleep=self._clock.sleep,
            jitter=lambda: self._random.uniform(-1, 1),
        )
        types = collected_results(job.plan)
        for uid, record_type in types._types.items():
            self._collected.expect(uid, record_type)
        try:
            job.begin()
            while True:
                match self._next_decision(job):
                    case JobEnded() as ended:
                        return ended
                    case RestartIn(seconds):
                        self._clock.advance(seconds)
        except JobFolderInUse:
            raise
        except TidegateError as error:
            return job.fail(error)

    def _next_decision(self, job: JobRun) -> Decision:
        """One attempt. As in coordinator/execution.py, storage that does not answer is a failure like any other."""
        try:
            inputs = job.next_attempt()
        except (ConfigurationError, CheckpointDamaged, CommitLost, JobFolderInUse, Superseded):
            raise
        except TidegateError as error:
            return job.attempt_ended(AttemptEnded(error))
        return inputs if isinstance(inputs, JobEnded) else job.attempt_ended(self._run_attempt(job, inputs))

    def _run_attempt(self, job: JobRun, inputs: AttemptInputs) -> Any:
        self._attempts += 1
        run = _AttemptRun(self, job, inputs)
        try:
            return run.until_outcome()
        finally:
            if run.attempt.outcome is not None:  # else the driver has died
                run.attempt.abandon_savepoints()
            if isinstance(run.attempt.outcome, AttemptRescaled):
                run.attempt.desk.open.pop(run.attempt.rescale_request).future.set_result(run.attempt.outcome)
            run.attempt.desk.refuse_all("the attempt has ended")
            job.used_ids_below(run.attempt.scheduler.next_id)
            for process in run.processes.values():
                process.link.cut = True
                if self._zombies_allowed and process.alive:
                    self._zombies.append(process)
                else:
                    process.let_go()
            while len(self._zombies) > MOST_ZOMBIES:
                self._zombies.pop(0).let_go()

    def count_action(self) -> None:
        self._actions += 1
        if self._actions > self._max_actions:
            raise Stuck(f"no end after {self._max_actions} actions")


class _AttemptRun:
    """One attempt: processes, channels, and the draw of what happens next."""

    def __init__(self, run: InProcessRun, job: JobRun, inputs: AttemptInputs) -> None:
        self._run = run
        self._random = run._random
        self._clock = run._clock
        self._posted: deque[Callable[[], None]] = deque()
        self._storing = _Background()
        self._key = self._random.randbytes(32)
        self._seal = FrameSeal(self._key)
        self.plan = job.plan
        self.processes: dict[SlotId, _Process] = {}
        self._channels: list[_Channel] = []
        self.attempt = Attempt(
            id=inputs.id,
            starts=inputs.starts,
            policy=job.config.policy(),
            next_checkpoint_id=inputs.next_checkpoint_id,
            shared=inputs.shared,
            latest_completed=inputs.latest_completed,
            links=self,
            recorder=job.recorder,
            storing=self._storing,
            post=self._posted.append,
            view=run._view,
            crash_points=run._crash_points,
            clock=self._clock,
            wall_clock=self._clock,
            on_driver_payload=self._payload,
            timeouts=Timeouts(heartbeat_s=float("inf"), start_s=float("inf")),
            commit_only=inputs.commit_only,
        )
        settings = slot_settings(job.config)
        for id in job.plan.slots:
            self.processes[id] = self._start_process(job, inputs, id, settings)
        for process in self._first_to_call():
            self._connect(process)

    def _start_process(self, job: JobRun, inputs: AttemptInputs, id: SlotId, settings: Any) -> _Process:
        link, uploads, commits = _ControlLink(), _Background(), _Background()
        inbox = Inbox(settings.inbox_bytes, settings.held_memory_bytes, settings.held_disk_bytes)
        slot = Slot(
            program=SlotProgram(job.plan, id, inputs.id, self._key, settings),
            mailbox=Mailbox(inbox, link.send),
            control=link,
            storage=self._run._store,
            uploads=uploads,
            commits=commits,
            crash_points=self._run._crash_points,
            clock=self._clock,
            wall_clock=self._clock,
            sleep=self._clock.sleep,
        )
        return _Process(slot, link, uploads, commits, speed=self._random.choice([0.1, 0.5, 1.0, 1.0, 3.0]))

    def _first_to_call(self) -> list[_Process]:
        """In some attempts part of the slots call when others are at work already. Drawn without changing other draws."""
        draw = random.Random(self._key)
        late = draw.choice([0.0, 0.0, 0.5])
        return [process for process in self.processes.values() if draw.random() >= late]

    def _connect(self, process: _Process) -> None:
        process.connected = True
        self.attempt.slot_connected(process.slot.id)

    def send(self, slot: SlotId, message: ToSlot) -> None:
        """Implements coordinator.ports.SlotLinks."""
        process = self.processes.get(slot)
        if process is not None and process.alive and process.connected:
            process.link.to_slot.append(encode(message))

    def _payload(self, message: ToDriver) -> None:
        if message.topic == "print":
            self._run._printed.append(message.payload.decode())
        else:
            self._run._collected.accept(message.uid, message.subtask, message.topic, message.payload)

    def until_outcome(self) -> Any:
        while self.attempt.outcome is None:
            self._run.count_action()
            self._ask()
            weights, actions = self._possible()
            if not actions:
                self._let_time_pass()
                continue
            action, arguments = self._random.choices(actions, weights)[0]
            action(*arguments)
            if self._random.random() < 0.2:
                self._clock.advance(self._random.random() * 0.003)
                self.attempt.tick()
        # An ended attempt's last log record may still be on its way; the product waits for it too.
        while self._storing.jobs:
            self._storing.jobs.popleft()()
        if isinstance(self.attempt.outcome, AttemptFinished | AttemptRescaled):
            self._wind_down()
        return self.attempt.outcome

    def _ask(self) -> None:
        for ask in self._run._asks:
            if not ask.asked and self.attempt.running and self._run._view.completed >= ask.after_checkpoints:
                ask.asked = True
                self.attempt.request_savepoint(ask.request)

    def _wind_down(self) -> None:
        """FINISHED stands in the log: the slots hear it and end, layer by layer, as Spark's tasks do."""
        for _, process in sorted(self.processes.items()):
            if not process.alive:
                continue
            while process.link.to_slot:
                self._tell(process)
            waiting = [row for channel in self._channels if channel.receiver is process for row in channel.rows]
            frames = deque(decode_frame(self._seal, memoryview(row)) for row in waiting)
            while not process.slot.finished:
                self._run.count_action()
                while frames and process.slot.mailbox.put_frame(frames[0], wait=False):
                    frames.popleft()
                if not frames:
                    process.slot.mailbox.end_input()
                process.slot.turn(0.0)
            try:
                process.slot.close()
            except OperatorFailed as failed:  # as in task/main.py: told, and nothing changes
                log.warning("close() of %s failed after the job had finished: %s", failed.operator.name, failed.cause)
            process.alive = False

    # -- what can happen ----------------------------------------------------------------------------------------------

    def _possible(self) -> tuple[list[float], list[tuple[Callable[..., None], tuple[Any, ...]]]]:
        """Weights and actions. The inner loop of every run: no closures, no look-ups."""
        weights: list[float] = []
        actions: list[tuple[Callable[..., None], tuple[Any, ...]]] = []

        def may(weight: float, action: Callable[..., None], *arguments: Any) -> None:
            weights.append(weight)
            actions.append((action, arguments))

        if self._posted:
            may(5.0, self._run_next, self._posted)
        if self._storing.jobs:
            may(0.5, self._run_next, self._storing.jobs)
        for process in self.processes.values():
            link = process.link
            if link.to_driver:
                may(2.0, self._hear, process)
            if not process.alive:
                continue
            if not process.connected:
                may(LATE_CALL, self._connect, process)
                continue
            if link.to_slot:
                may(1.0, self._tell, process)
            if process.uploads.jobs:
                may(0.5, self._run_guarded, process, process.uploads)
            if process.commits.jobs:
                may(0.5, self._run_guarded, process, process.commits)
            if self._can_turn(process):
                may(process.speed * 3, self._turn, process)
        for channel in self._channels:
            if len(channel.rows) > 1 and channel.receiver.alive and channel.receiver.slot.mailbox.has_room:
                may(channel.receiver.speed, self._deliver, channel)
        for zombie in self._run._zombies:
            for background in (zombie.uploads, zombie.commits):
                if background.jobs:
                    may(0.05, self._haunt, zombie, background)
        return weights, actions

    def _run_next(self, jobs: deque[Callable[[], None]]) -> None:
        jobs.popleft()()

    def _run_guarded(self, process: _Process, background: _Background) -> None:
        self._guard(process, background.jobs.popleft())

    def _can_turn(self, process: _Process) -> bool:
        if process.slot.finished:
            return False
        for channel in process.outgoing.values():
            if len(channel.rows) > CHANNEL_ROWS:
                return False
        if process.idle_until is None or self._clock() >= process.idle_until:
            return True
        mailbox = process.slot.mailbox
        return mailbox.has_letters or (mailbox.has_frames and not process.slot.must_wait)

    def _turn(self, process: _Process) -> None:
        slot = process.slot

        def work() -> None:
            worked = slot.turn(0.0)
            slot.on_time()
            slot.flush_if_due(idle=not worked)
            while len(slot.outbox):
                for receiver, row in slot.outbox.take(1 << 20):
                    self._channel(process, receiver).rows.append(row)
            if worked:
                process.idle_until = None
            elif slot.has_active_source():
                process.idle_until = self._clock() + 0.005
            else:
                process.idle_until = slot.next_deadline() or float("inf")

        self._guard(process, work)

    def _channel(self, sender: _Process, receiver: int) -> _Channel:
        channel = sender.outgoing.get(receiver)
        if channel is None:
            channel = _Channel(self.processes[SlotId(sender.slot.id.layer + 1, receiver)])
            sender.outgoing[receiver] = channel
            self._channels.append(channel)
        return channel

    def _guard(self, process: _Process, work: Callable[[], None]) -> None:
        """Run a process's code; its death is the driver's "connection lost", its exception a last message."""
        if not process.alive:
            return
        try:
            work()
        except SimulatedCrash:
            self._die(process)
        except Exception as error:
            process.link.send(describe_failure(error))
            self._die(process)

    def _die(self, process: _Process) -> None:
        process.alive = False
        id = process.slot.id
        waiting = process.link.to_driver

        def lost() -> None:
            if waiting:  # what was sent before the death arrives before its news
                self._posted.append(lost)
            else:
                self.attempt.slot_lost(id, "killed")

        self._posted.append(lost)

    def _hear(self, process: _Process) -> None:
        message = decode_from_slot(process.link.to_driver.popleft())
        self.attempt.slot_said(process.slot.id, message)

    def _tell(self, process: _Process) -> None:
        process.slot.mailbox.post(decode_to_slot(process.link.to_slot.popleft()))

    def _deliver(self, channel: _Channel) -> None:
        frame = decode_frame(self._seal, memoryview(channel.rows[0]))
        if channel.receiver.slot.mailbox.put_frame(frame, wait=False):
            channel.rows.popleft()

    def _haunt(self, zombie: _Process, background: _Background) -> None:
        """A frozen worker of an older attempt wakes up and does what it was about to do."""
        job = background.jobs.popleft()
        try:
            job()
        except (SimulatedCrash, Exception):
            zombie.uploads.jobs.clear()
            zombie.commits.jobs.clear()

    def _let_time_pass(self) -> None:
        """Nothing is ready: go to the next moment at which something is due."""
        times = [self.attempt.next_wake()]
        for process in self.processes.values():
            if process.alive and process.idle_until not in (None, float("inf")):
                times.append(process.idle_until or 0.0)
        now = self._clock()
        later = [time for time in times if time > now]
        if not later:
            raise Stuck("nothing can happen, and nothing is due")
        self._clock.now = min(later)
        self.attempt.tick()


def run_in_process(
    env: StreamEnvironment,
    seed: int = 0,
    crashes: list[Crash] | None = None,
    storage: str | None = None,
    zombies: bool = True,
    store: ObjectStore | None = None,
    asks: Sequence[Ask] = (),
) -> RunResult:
    """Run the job of `env` to its end in this process. The same seed gives the same run.

    `store` is used in place of what the storage's address names: a FlakyStore around it, say.
    """
    return InProcessRun(env, seed, crashes, storage, zombies=zombies, store=store, asks=asks).run()


__all__ = ["AllDriversDied", "Ask", "InProcessRun", "RunResult", "Stuck", "run_in_process"]
