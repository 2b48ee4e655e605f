"""A job's real driver (JobExecution, JobRun, the control server, a storage) over slots that follow a script instead of Spark.

A slot is a thread with a real connection. It takes part in checkpoints, commits and ends as the protocol says, unless the test
holds its answers back; what else it says, the test says for it.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tidegate as tg
from tidegate.client import JobClient
from tidegate.config import RestartSettings
from tidegate.connectors.collect_sink import CollectedResults
from tidegate.coordinator.execution import JobExecution
from tidegate.coordinator.job import JobRun
from tidegate.coordinator.observing import JobStatus, JobView
from tidegate.errors import NotEnoughSlots
from tidegate.graph.plan import JobPlan
from tidegate.ids import AttemptId, SlotId
from tidegate.ports import GangEnd, NoCrashPoints
from tidegate.storage.metadata import FileRef, SlotSnapshot, SubtaskSnapshot
from tidegate.storage.store import ObjectStore, open_store
from tidegate.wire import control
from tidegate.wire.certificates import Certificate
from tidegate.wire.control import (
    PROTOCOL_VERSION,
    Acknowledge,
    Cancel,
    Committed,
    Complete,
    Drain,
    Ended,
    Finish,
    FromSlot,
    Ready,
    SlotFailed,
    SnapshotTimings,
    Start,
    ToDriver,
    ToSlot,
    Trigger,
    decode_to_slot,
)
from tidegate.wire.framing import HEAD, Received, frames_of
from tidegate.wire.handshake import CHALLENGE_BYTES, ControlAddress, Hello, check_coordinator, new_challenge, sign_hello
from tidegate.wire.tls import TlsSocket

DEADLINE_S = 30.0


class ScriptedSlot:
    """One slot of one attempt."""

    def __init__(self, cluster: ScriptedCluster, id: SlotId, attempt: AttemptId, address: ControlAddress) -> None:
        self._cluster = cluster
        self.id = id
        self._attempt = attempt
        self._address = address
        self._lock = threading.Lock()
        self._held: list[FromSlot] = []
        self._socket: socket.socket | None = None
        self._stream: socket.socket | TlsSocket | None = None  #: on that socket
        self._over = False
        self._thread = threading.Thread(target=self._run, name=f"slot-{id}", daemon=True)
        self._thread.start()

    def say(self, message: FromSlot) -> None:
        with self._lock:
            if self._socket is not None and self._stream is not None:
                try:
                    for frame in frames_of(control.encode(message), 0):
                        self._stream.sendall(frame)
                except OSError:
                    return  # the driver was quicker

    def release(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self.say(message)

    def end(self) -> None:
        with self._lock:
            self._over = True
            if self._socket is not None:
                with contextlib.suppress(OSError):  # the driver was quicker
                    self._socket.shutdown(socket.SHUT_RDWR)  # its thread hears it, as of a closed one it would not
                self._socket = None

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            with socket.create_connection((self._address.host, self._address.port), DEADLINE_S) as connection:
                self._cluster.addresses.append(self._address)
                seal = self._address.fingerprint
                self._stream = stream = connection if seal is None else TlsSocket(connection, seal)
                self._greet(stream)
                with self._lock:
                    if self._over:  # canceled while it called
                        return
                    self._socket = connection
                received = Received()
                while not isinstance(message := self._next(stream, received), Finish | Cancel):
                    for answer in self._answers(message):
                        self._answer(answer)
        except OSError:
            return  # the attempt is over
        finally:
            self.end()
            self._cluster.slot_ended(self)

    def _greet(self, connection: socket.socket | TlsSocket) -> None:
        challenge = _exactly(connection, CHALLENGE_BYTES)
        number = self._attempt.number
        hello = Hello(
            PROTOCOL_VERSION, self._attempt.generation, number, self.id.layer, self.id.index, 1, "host", new_challenge()
        )
        signed = sign_hello(self._address.token, challenge, hello)
        connection.sendall(HEAD.pack(len(signed)) + signed)
        (length,) = HEAD.unpack(_exactly(connection, HEAD.size))
        check_coordinator(self._address.token, hello.challenge, _exactly(connection, length))

    def _next(self, connection: socket.socket | TlsSocket, received: Received) -> ToSlot:
        while True:
            head = _exactly(connection, HEAD.size)
            message = received.message(head, _exactly(connection, received.length_of(head)))
            if message is not None:
                return decode_to_slot(message)

    def _answers(self, message: ToSlot) -> list[FromSlot]:
        match message:
            case Start(restored_from, commit_only=commit_only):
                return [Ready(0.0), *([Committed(restored_from or 0)] if commit_only else [])]
            case Trigger(checkpoint):
                return [Acknowledge(checkpoint, self._snapshot(), SnapshotTimings())]
            case Complete(checkpoint):
                return [Committed(checkpoint)]
            case Drain():
                return [Ended()]
            case _:
                return []

    def _answer(self, answer: FromSlot) -> None:
        if type(answer) in self._cluster.holds:
            self._held.append(answer)
            self._cluster.note_held(answer)
        else:
            self.say(answer)

    def _snapshot(self) -> SlotSnapshot:
        hosted = self._cluster.plan.hosted_in(self.id)
        subtasks = [SubtaskSnapshot(op.uid, subtask) for chain, subtask in hosted for op in chain.operators]
        return SlotSnapshot(self.id.layer, self.id.index, FileRef(0), subtasks)


def _exactly(connection: socket.socket | TlsSocket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        if not part:
            raise ConnectionError("closed")
        data += part
    return data


@dataclass
class ScriptedGang:
    """Implements coordinator.execution.RunningGang."""

    cluster: ScriptedCluster
    attempt: AttemptId
    address: ControlAddress
    on_end: Callable[[GangEnd, str], None]

    def start(self) -> None:
        self.cluster.begin(self)

    def cancel(self) -> None:
        for slot in list(self.cluster.slots):
            slot.end()

    def join(self, timeout_s: float) -> bool:
        return all(slot.join(timeout_s) for slot in list(self.cluster.slots))

    def executors(self) -> list[str]:
        return self.cluster.executors


@dataclass
class ScriptedCluster:
    """Implements coordinator.execution.Cluster. `holds`: the kinds of answers that wait until `release`."""

    plan: JobPlan
    holds: set[type] = field(default_factory=set)
    slots: list[ScriptedSlot] = field(default_factory=list)
    executors: list[str] = field(default_factory=lambda: ["0", "1"])
    leaving: set[str] = field(default_factory=set)  #: of these
    has_room: bool = True  #: for the plan, without those that leave
    asked_for: list[list[str]] = field(default_factory=list)  #: in whose place others were asked for, each time
    bind_address: str = "127.0.0.1"
    call_address: str = "127.0.0.1"
    addresses: list[ControlAddress] = field(default_factory=list)  #: that slots have called
    _gang: ScriptedGang | None = None
    _held: list[type] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def gang(
        self, attempt: AttemptId, coordinator: ControlAddress, on_end: Callable[[GangEnd, str], None]
    ) -> ScriptedGang:
        return ScriptedGang(self, attempt, coordinator, on_end)

    def check_plan(self, plan: JobPlan) -> None:
        if not self.has_room:
            raise NotEnoughSlots("too few", needed=len(plan.slots), there=0)

    def use_plan(self, plan: JobPlan) -> None:
        self.plan = plan

    def leaving_executors(self) -> frozenset[str]:
        return frozenset(self.leaving)

    def ask_for_others(self, executors: frozenset[str]) -> None:
        self.asked_for.append(sorted(executors))

    def warm_up(self, done: Callable[[], None]) -> None:
        done()

    def replace_executor(self, executor: str) -> None:
        pass

    def end_gang(self, end: GangEnd, message: str) -> None:
        assert self._gang is not None
        self._gang.on_end(end, message)

    # -- for the slots --------------------------------------------------------------------------------------------------

    def begin(self, gang: ScriptedGang) -> None:
        self._gang = gang
        self.slots = [ScriptedSlot(self, id, gang.attempt, gang.address) for id in self.plan.slots]

    def slot_ended(self, slot: ScriptedSlot) -> None:
        with self._changed:
            if slot in self.slots:
                self.slots.remove(slot)
            if not self.slots and self._gang is not None:
                self._gang.on_end(GangEnd.COMPLETED, "")

    def note_held(self, answer: FromSlot) -> None:
        with self._changed:
            self._held.append(type(answer))
            self._changed.notify_all()

    # -- for the test ---------------------------------------------------------------------------------------------------

    def wait_until_held(self, kind: type) -> None:
        """By every slot."""
        with self._changed:
            held = self._changed.wait_for(lambda: self._held.count(kind) >= len(self.plan.slots), DEADLINE_S)
        assert held, f"{self._held.count(kind)} answers {kind.__name__} of {len(self.plan.slots)} slots"

    def release(self) -> None:
        self.holds.clear()
        for slot in list(self.slots):
            slot.release()

    def say(self, message: FromSlot) -> None:
        """By every slot."""
        for slot in list(self.slots):
            slot.say(message)

    def fail_a_slot(self) -> None:
        self.slots[0].say(SlotFailed("user", "ValueError: a bad record", ""))

    def surprise_the_driver(self) -> None:
        """What it says is a payload that nobody has foreseen."""
        self.slots[0].say(ToDriver("sink", 0, "surprise", b""))


class HoldAt:
    """Crash points at which nobody dies: the storing thread waits at one of them."""

    def __init__(self, point: str) -> None:
        self._point = point
        self.is_there, self.may_continue = threading.Event(), threading.Event()

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if point == self._point and not self.is_there.is_set():
            self.is_there.set()
            assert self.may_continue.wait(DEADLINE_S)


@dataclass
class RunningJob:
    """A job in the hands of a test."""

    job: JobRun
    cluster: ScriptedCluster
    execution: JobExecution
    client: JobClient
    thread: threading.Thread

    @property
    def ended(self) -> JobStatus:
        assert self.execution.end_event.wait(DEADLINE_S), "the job does not end"
        assert self.execution.ended is not None
        return self.execution.ended.status

    def until(self, status: JobStatus) -> None:
        deadline = time.monotonic() + DEADLINE_S
        changed = threading.Event()
        listener = lambda event: changed.set()  # noqa: E731
        self.client.subscribe(listener)
        while self.client.status is not status:
            assert changed.wait(deadline - time.monotonic()), f"{self.client.status}, not {status}"
            changed.clear()
        self.client.unsubscribe(listener)

    def until_attempt(self, number: int) -> None:
        """It has begun: a status between two attempts may be gone before anybody looks."""
        deadline = time.monotonic() + DEADLINE_S
        while len({address.token for address in self.cluster.addresses}) < number:
            assert time.monotonic() < deadline, f"attempt {number} does not begin"
            time.sleep(0.005)

    def close(self) -> None:
        self.cluster.release()
        self.client.cancel()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


def job_run(folder: Path, store: ObjectStore | None = None, view: JobView | None = None, **settings: Any) -> JobRun:
    env = tg.StreamEnvironment("job", parallelism=2)
    env.from_sequence(0, 9, uid="numbers").rebalance().map(lambda n: n, uid="same", returns=int).print(uid="sink")
    uri = f"file://{folder}/storage"
    config = replace(
        env.config(),
        storage=uri,
        savepoint_dir=f"file://{folder}/savepoints",
        restart=RestartSettings("none"),
        rest=False,
    )
    return JobRun(
        name="job",
        graph=env._graph,
        default_parallelism=2,
        config=replace(config, **settings),
        store=store or open_store(uri),
        driver="test",
        view=view or JobView(),
        crash_points=NoCrashPoints(),
        clock=time.monotonic,
        wall_clock=time.time,
        sleep=time.sleep,
        jitter=lambda: random.uniform(-1, 1),
    )


def _no_payload(message: ToDriver) -> None:
    raise RuntimeError(f"nobody waits for {message.topic}")


def start_job(
    folder: Path, store: ObjectStore | None = None, certificate: Certificate | None = None, **settings: Any
) -> RunningJob:
    job = job_run(folder, store, **settings)
    cluster = ScriptedCluster(job.plan)
    execution = JobExecution(job, cluster, NoCrashPoints(), _no_payload, certificate)
    client = JobClient("job", execution, job.view, CollectedResults(), job.config.savepoint_dir)
    thread = threading.Thread(target=execution.run, name="tidegate-job", daemon=True)
    thread.start()
    return RunningJob(job, cluster, execution, client, thread)
