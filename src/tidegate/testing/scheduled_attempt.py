"""One attempt in this process: the product's Attempt and Slots, and the draw of what happens next. See runner.py."""

from __future__ import annotations

import logging
import random
from bisect import bisect
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from tidegate.coordinator.attempt import Attempt, Timeouts
from tidegate.coordinator.job import AttemptInputs, JobRun
from tidegate.coordinator.outcomes import AttemptFinished, AttemptRescaled
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.errors import ConfigurationError
from tidegate.ids import SlotId
from tidegate.launch import slot_settings
from tidegate.task.failures import describe_failure
from tidegate.task.inbox import Inbox
from tidegate.task.mailbox import Mailbox
from tidegate.task.operators.base import OperatorFailed
from tidegate.task.program import SlotProgram
from tidegate.task.slot import Slot
from tidegate.testing.crash_points import SimulatedCrash
from tidegate.testing.stepped_loop import SteppedCalls
from tidegate.testing.world import Background, Channel, ControlLink, Stuck, WorkerProcess, World
from tidegate.wire.control import ToDriver, ToSlot, decode_from_slot, decode_to_slot, encode
from tidegate.wire.frame import decode_frame
from tidegate.wire.seal import FrameSeal

log = logging.getLogger("tidegate.testing")

CHANNEL_ROWS = 8  #: Spark's credit: a slot whose outbox cannot be emptied does not turn
DRAWS = 60  #: that may fail before all is looked at
HEARS_AT_SOURCE = (1.0, 1.0, 0.2)  #: weights of a message to a slot of the first layer
HEARS = (1.0, 0.1, 0.1)  #: and to any other: where its worker is busy, barriers are quicker
LATE_CALL = 0.02  #: weight of a late slot's call: others do a hundred things or more before


class ScheduledAttempt:
    """One attempt: processes, channels, and the draw of what happens next."""

    def __init__(self, world: World, job: JobRun, inputs: AttemptInputs) -> None:
        self._world = world
        self._random = world.random
        self._clock = world.clock
        self._posted: deque[Callable[[], None]] = deque()
        self._storing = Background()
        self._key = self._random.randbytes(32)
        self._seal = FrameSeal(self._key, job.config.encrypt)
        self._job = job
        self.plan = job.plan
        self.processes: dict[SlotId, WorkerProcess] = {}
        self._channels: list[Channel] = []
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
            view=world.view,
            crash_points=world.crash_points,
            clock=self._clock,
            wall_clock=self._world.wall_clock,
            on_driver_payload=self._payload,
            timeouts=Timeouts(heartbeat_s=float("inf"), start_s=float("inf")),
            commit_only=inputs.commit_only,
        )
        self._chances: list[tuple[Callable[..., Any], Callable[..., None], tuple[Any, ...]]] = []
        self._cumulated: list[float] = []
        settings = slot_settings(job.config)
        for id in job.plan.slots:
            self.processes[id] = self._start_process(job, inputs, id, settings)
        for process in self._first_to_call():
            self._connect(process)

    def _start_process(self, job: JobRun, inputs: AttemptInputs, id: SlotId, settings: Any) -> WorkerProcess:
        link, uploads, commits, calls = ControlLink(), Background(), Background(), SteppedCalls(self._clock)
        inbox = Inbox(settings.inbox_bytes, settings.held_memory_bytes, settings.held_disk_bytes)
        slot = Slot(
            program=SlotProgram(job.plan, id, inputs.id, self._key, settings),
            mailbox=Mailbox(inbox, link.send),
            control=link,
            storage=self._world.store,
            uploads=uploads,
            commits=commits,
            calls=calls,
            crash_points=self._world.crash_points,
            clock=self._clock,
            wall_clock=self._world.wall_clock,
            sleep=self._clock.sleep,
        )
        return WorkerProcess(slot, link, uploads, commits, calls, speed=self._random.choice([0.1, 0.5, 1.0, 1.0, 3.0]))

    def _first_to_call(self) -> list[WorkerProcess]:
        """In some attempts part of the slots call when others are at work already. Drawn without changing other draws."""
        draw = random.Random(self._key)
        late = draw.choice([0.0, 0.0, 0.5])
        return [process for process in self.processes.values() if draw.random() >= late]

    def _connect(self, process: WorkerProcess) -> None:
        process.connected = True
        self.attempt.slot_connected(process.slot.id)

    def send(self, slot: SlotId, message: ToSlot) -> None:
        """Implements ports.SlotLinks."""
        process = self.processes.get(slot)
        if process is not None and process.alive and process.connected:
            process.link.to_slot.append(encode(message))

    def _payload(self, message: ToDriver) -> None:
        if message.topic == "print":
            self._world.printed.append(message.payload.decode())
        else:
            self._world.collected.accept(message.uid, message.subtask, message.topic, message.payload)

    def until_outcome(self) -> Any:
        while self.attempt.outcome is None:
            self._world.count_action()
            self._ask()
            chosen = self._drawn() or self._searched()
            if chosen is None:
                self._let_time_pass()
                continue
            action, arguments = chosen
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

    def leave(self, job: JobRun) -> None:
        """The attempt is over, or its driver has died: every user who has asked for something gets an answer."""
        attempt = self.attempt
        if attempt.outcome is not None:  # else the driver has died
            attempt.abandon_savepoints()
        if isinstance(attempt.outcome, AttemptRescaled):
            attempt.desk.rescale_begins(attempt.rescale_request, attempt.halted_at)
            attempt.desk.rescaled(self._clock(), attempt.latest_completed)  # the next begins at once
        attempt.desk.refuse_all("the attempt has ended")
        job.used_ids_below(attempt.scheduler.next_id)

    def _ask(self) -> None:
        if self._world.canceled is not None and self.attempt.scheduler.ends_by is None:
            self.attempt.end_when_committed(self._world.canceled)
        if not self.attempt.running:
            return
        while self._world.calls:
            self._world.calls.popleft()(self.attempt)
        for ask in self._world.asks:
            if not ask.asked and self._world.view.completed >= ask.after_checkpoints:
                ask.asked = True
                if self._may_have(ask.request):
                    self.attempt.request_savepoint(ask.request)

    def _may_have(self, request: SavepointRequest) -> bool:
        """As in coordinator/execution.py, a parallelism that the job cannot have is refused before anything is stopped."""
        try:
            if request.parallelism is not None:
                self._job.check_parallelism(request.parallelism)
        except ConfigurationError as error:
            request.future.set_exception(error)
            return False
        return True

    def _wind_down(self) -> None:
        """FINISHED is in the log: the slots hear it and end, layer by layer, as Spark's tasks do."""
        for _, process in sorted(self.processes.items()):
            if not process.alive:
                continue
            while process.link.to_slot:
                self._tell(process)
            waiting = [row for channel in self._channels if channel.receiver is process for row in channel.rows]
            frames = deque(decode_frame(self._seal, process.slot.id, memoryview(row)) for row in waiting)
            while not process.slot.finished:
                self._world.count_action()
                while frames and process.slot.mailbox.put_frame(frames[0], wait=False):
                    frames.popleft()
                if not frames:
                    process.slot.mailbox.end_input()
                process.slot.turn(0.0)
            try:
                process.slot.close()
                process.calls.run()
            except OperatorFailed as failed:  # as in task/main.py: told, and nothing changes
                log.warning("close() of %s failed after the job had finished: %s", failed.operator.name, failed.cause)
            process.alive = False

    # -- what can happen ----------------------------------------------------------------------------------------------

    def _drawn(self) -> tuple[Callable[..., None], tuple[Any, ...]] | None:
        """What happens next, without looking at everything: draw until something can be. None when that takes long: little
        can happen. The inner loop of every run."""
        if len(self._chances) != self._chances_for(len(self._channels)):
            self._list_chances()
        chances, cumulated, draw = self._chances, self._cumulated, self._random.random
        total, last = cumulated[-1], len(chances) - 1
        for _ in range(DRAWS):  # written out: as random.choices does it, at half the cost
            may, action, arguments = chances[bisect(cumulated, draw() * total, 0, last)]
            if may(*arguments):
                return action, arguments
        return None

    def _searched(self) -> tuple[Callable[..., None], tuple[Any, ...]] | None:
        """The same with a look at everything. None when nothing can happen."""
        weights, possible, below = [], [], 0.0
        for (may, action, arguments), cumulated in zip(self._chances, self._cumulated, strict=True):
            if may(*arguments):
                possible.append((action, arguments))
                weights.append(cumulated - below)
            below = cumulated
        return self._random.choices(possible, weights)[0] if possible else None

    def _chances_for(self, channels: int) -> int:
        return 2 + 7 * len(self.processes) + channels + 2 * len(self._world.zombies)

    def _list_chances(self) -> None:
        """Everything that could ever happen; channels come with the first frame."""
        weighted: list[tuple[float, tuple[Callable[..., Any], Callable[..., None], tuple[Any, ...]]]] = [
            (5.0, (bool, self._run_next, (self._posted,))),
            (0.5, (bool, self._run_next, (self._storing.jobs,))),
        ]
        draw = random.Random(self._key)
        later = draw.choice(HEARS)
        for process in self.processes.values():
            hears = later if process.slot.id.layer else draw.choice(HEARS_AT_SOURCE)
            weighted += [
                (2.0, (_has_said, self._hear, (process,))),
                (LATE_CALL, (_may_connect, self._connect, (process,))),
                (hears, (_may_be_told, self._tell, (process,))),
                (0.5, (_may_run, self._run_guarded, (process, process.uploads))),
                (0.5, (_may_run, self._run_guarded, (process, process.commits))),
                (0.5, (_may_call, self._step_calls, (process,))),
                (process.speed * 3, (self._may_turn, self._turn, (process,))),
            ]
        weighted += [(channel.receiver.speed, (_may_deliver, self._deliver, (channel,))) for channel in self._channels]
        for zombie in self._world.zombies:
            weighted += [(0.05, (_may_haunt, self._haunt, (zombie, of))) for of in (zombie.uploads, zombie.commits)]
        self._chances = [chance for _, chance in weighted]
        self._cumulated = list(accumulate(weight for weight, _ in weighted))

    def _may_turn(self, process: WorkerProcess) -> bool:
        return process.alive and process.connected and self._can_turn(process)

    def _run_next(self, jobs: deque[Callable[[], None]]) -> None:
        jobs.popleft()()

    def _run_guarded(self, process: WorkerProcess, background: Background) -> None:
        self._guard(process, background.jobs.popleft())

    def _step_calls(self, process: WorkerProcess) -> None:
        self._guard(process, process.calls.step)

    def _can_turn(self, process: WorkerProcess) -> bool:
        slot = process.slot
        if slot.finished:
            return False
        for channel in process.outgoing.values():
            if len(channel.rows) > CHANNEL_ROWS:
                return False
        if process.idle_until is None or self._clock.now >= process.idle_until:
            return True
        mailbox = slot.mailbox
        return mailbox.has_letters or (mailbox.has_frames and slot.takes_frames)

    def _turn(self, process: WorkerProcess) -> None:
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

    def _channel(self, sender: WorkerProcess, receiver: int) -> Channel:
        channel = sender.outgoing.get(receiver)
        if channel is None:
            channel = Channel(self.processes[SlotId(sender.slot.id.layer + 1, receiver)])
            sender.outgoing[receiver] = channel
            self._channels.append(channel)
        return channel

    def _guard(self, process: WorkerProcess, work: Callable[[], None]) -> None:
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

    def _die(self, process: WorkerProcess) -> None:
        process.alive = False
        id = process.slot.id
        waiting = process.link.to_driver

        def lost() -> None:
            if waiting:  # what was sent before the death arrives before its news
                self._posted.append(lost)
            else:
                self.attempt.slot_lost(id, "killed")

        self._posted.append(lost)

    def _hear(self, process: WorkerProcess) -> None:
        message = decode_from_slot(process.link.to_driver.popleft())
        self.attempt.slot_said(process.slot.id, message)

    def _tell(self, process: WorkerProcess) -> None:
        process.slot.mailbox.post(decode_to_slot(process.link.to_slot.popleft()))

    def _deliver(self, channel: Channel) -> None:
        frame = decode_frame(self._seal, channel.receiver.slot.id, memoryview(channel.rows[0]))
        if channel.receiver.slot.mailbox.put_frame(frame, wait=False):
            channel.rows.popleft()

    def _haunt(self, zombie: WorkerProcess, background: Background) -> None:
        """A frozen worker of an older attempt wakes up and does what it was about to do."""
        job = background.jobs.popleft()
        try:
            job()
        except (SimulatedCrash, Exception):
            zombie.uploads.jobs.clear()
            zombie.commits.jobs.clear()

    def _let_time_pass(self) -> None:
        """Nothing is ready: go to the next moment at which something is due."""
        if self.attempt.next_wake() <= self._clock():  # user code took long, and the driver's moment passed meanwhile
            self.attempt.tick()
            if self.attempt.outcome is not None or self._searched() or self.attempt.next_wake() > self._clock():
                return
        looks = [process.calls.look_outside() for process in self.processes.values() if process.alive]
        if any(looks):
            return
        times = [self.attempt.next_wake()]
        times += [due for process in self.processes.values() if process.alive and (due := process.calls.next_due())]
        for process in self.processes.values():
            if process.alive and process.idle_until not in (None, float("inf")):
                times.append(process.idle_until or 0.0)
        now = self._clock()
        later = [time for time in times if time > now]
        if not later:
            raise Stuck("nothing can happen, and nothing is due")
        self._clock.now = min(later)
        self.attempt.tick()


# -- whether it can happen --------------------------------------------------------------------------------------------


def _has_said(process: WorkerProcess) -> bool:
    return bool(process.link.to_driver)


def _may_connect(process: WorkerProcess) -> bool:
    return process.alive and not process.connected


def _may_be_told(process: WorkerProcess) -> bool:
    return process.alive and process.connected and bool(process.link.to_slot)


def _may_run(process: WorkerProcess, background: Background) -> bool:
    return process.alive and process.connected and bool(background.jobs)


def _may_call(process: WorkerProcess) -> bool:
    return process.alive and process.calls.may_step


def _may_haunt(zombie: WorkerProcess, background: Background) -> bool:
    return bool(background.jobs)


def _may_deliver(channel: Channel) -> bool:
    return len(channel.rows) > 0 and channel.receiver.alive and channel.receiver.slot.mailbox.has_room
