"""What a run does, told as events of spec/Layers.tla.

    with traced(events.append):        everything in this process, from here on
        ...

Nothing in the product knows of this, and nothing is told unless somebody asks: the observer is put around the doors of the
machines (`SlotMachine.on`, `CheckpointScheduler.on`), around what counts records (`Outbox.send`, `SlotFlow.processed`), and
where snapshots, commits and log records leave the process.

Processes of one machine share a monotonic clock, so their events can be put into one order: each is noted before what it causes
can happen elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import xxhash

from tidegate.coordinator.attempt import Attempt
from tidegate.graph.logical import Partitioning
from tidegate.protocol import checkpoint_events as driver
from tidegate.protocol import slot_events as of_slot
from tidegate.protocol.checkpointing import CheckpointScheduler
from tidegate.protocol.slot_machine import SlotMachine
from tidegate.storage.log import JobLog, LogKind, LogRecord, decode_record
from tidegate.storage.metadata import Committable
from tidegate.storage.store import ObjectStore
from tidegate.task.capture import RESTORED
from tidegate.task.committing import Commits
from tidegate.task.flow import SlotFlow
from tidegate.task.input_queue import InputQueue
from tidegate.task.operators.sink import SinkOperator
from tidegate.task.outbox import Outbox
from tidegate.task.slot import Slot
from tidegate.task.snapshots import SnapshotUploader
from tidegate.wire.control import Acknowledge
from tidegate.wire.frame import Frame, Kind

#: (when, of which job, of which attempt or "", name, arguments), as it can stand in JSON
Event = tuple[int, str, str, str, list[Any]]
Write = Callable[[Event], Any]


# -- the observer -----------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _SlotTrace:
    """The counts of one slot, and where its events go."""

    write: Write
    slot: Slot
    attempt: str
    passed: list[int]
    sent: list[int]
    job: str = ""  #: the incarnation of its log, once the slot has heard it
    left: int = 0
    cuts: dict[int, bool] = field(default_factory=dict)  #: forwarded barriers: is it a cut?
    captured: dict[int, tuple[list[int], int, int]] = field(default_factory=dict)

    @property
    def place(self) -> list[int]:
        return [self.slot.id.layer + 1, self.slot.id.index + 1]

    def tell(self, name: str, *arguments: Any) -> None:
        self.write((time.monotonic_ns(), self.job, self.attempt, name, [self.place, *arguments]))

    def is_moved(self, frame: Frame) -> bool:
        """Not of a broadcast: its records are restored once for each receiver there is then."""
        return self.slot._plan.edges[frame.edge].partitioning is not Partitioning.BROADCAST

    def forwarded(self, checkpoint: int) -> None:
        cut = self.cuts.pop(checkpoint, False)
        self.tell("forward", checkpoint, cut, list(self.passed), self.left, list(self.sent))

    def stored(self, checkpoint: int, frames: Iterable[Frame]) -> None:
        captured, left, moved = [0] * len(self.passed), 0, 0
        for frame in frames:
            if frame.sender == RESTORED:
                left += frame.count
            else:
                captured[frame.sender] += frame.count
            moved += frame.count * self.is_moved(frame)
        self.captured[checkpoint] = captured, left, moved


_traces: weakref.WeakKeyDictionary[Any, _SlotTrace] = weakref.WeakKeyDictionary()
_machines: dict[int, _SlotTrace] = {}  #: by id: a machine has slots and no weak references; its slot keeps it


def _pieces(committables: Iterable[Committable]) -> list[list[Any]]:
    return [[each.checkpoint, xxhash.xxh3_64_hexdigest(each.uid.encode() + each.payload)] for each in committables]


class _ToldControl:
    """The connection of a slot's uploader."""

    def __init__(self, inner: Any, trace: _SlotTrace) -> None:
        self._inner, self._trace = inner, trace

    def send(self, message: Any) -> None:
        if isinstance(message, Acknowledge):
            captured = self._trace.captured.pop(message.checkpoint, None)
            if captured is not None:
                self._trace.tell("acknowledge", message.checkpoint, *captured)
        self._inner.send(message)


def _around_slot(write: Write) -> Callable[[Any], Any]:
    def around(init: Any) -> Any:
        @wraps(init)
        def __init__(slot: Slot, *arguments: Any, **named: Any) -> None:
            init(slot, *arguments, **named)
            id, layers = slot.id, slot._plan.layers
            above = layers[id.layer - 1].width if id.layer else 0
            below = layers[id.layer + 1].width if id.layer + 1 < len(layers) else 0
            attempt = slot.program.attempt
            trace = _SlotTrace(write, slot, f"{attempt.generation}.{attempt.number}", [0] * above, [0] * below)
            for part in (slot.outbox, slot._flow, slot._input, slot._commits, slot):
                _traces[part] = trace
            for chain in slot.chains:
                for sink in chain.sinks:
                    _traces[sink] = trace
            _machines[id_of(slot._machine)] = trace
            uploader = slot._checkpoints.uploader
            uploader.control = _ToldControl(uploader.control, trace)

        return __init__

    return around


id_of = id  #: the name is taken where an attempt has one


def _around_start(start: Any) -> Any:
    @wraps(start)
    def _start(slot: Slot, message: Any) -> None:
        _traces[slot].job = message.incarnation
        _start_messages[id_of(slot._input)] = (
            message  # told by InputQueue.restore, which comes before anything is opened
        )
        start(slot, message)

    return _start


_start_messages: dict[int, Any] = {}


def _around_restore(restore: Any) -> Any:
    @wraps(restore)
    def told(queue: InputQueue, frames: Any) -> None:
        trace, start = _traces[queue], _start_messages.pop(id_of(queue))
        kept = [frame for frame in frames if frame.kind is Kind.RECORDS]
        trace.left = sum(frame.count for frame in kept)
        moved = sum(frame.count for frame in kept if trace.is_moved(frame))
        pieces = _pieces(piece for subtask in start.subtasks for piece in subtask.committables)
        exact = trace.slot.settings.exactly_once
        trace.tell("restore", start.restored_from or 0, trace.left, moved, pieces, exact)
        restore(queue, frames)

    return told


def _around_machine(on: Any) -> Any:
    @wraps(on)
    def told(machine: SlotMachine, event: Any, now: float) -> Any:
        trace = _machines.get(id_of(machine))
        if trace is None:
            return on(machine, event, now)
        match event:
            case of_slot.SlotOpened():
                trace.tell("open")
            case of_slot.BarrierTaken(channel, checkpoint):
                trace.tell("barrier", channel + 1, checkpoint, list(trace.passed), trace.left)
            case of_slot.SnapshotTaken(checkpoint):
                sinks = [sink for chain in trace.slot.chains for sink in chain.sinks]
                pieces = _pieces(piece for sink in sinks for piece in sink._uncommitted)
                trace.tell("taken", checkpoint, list(trace.sent), pieces)
            case of_slot.SnapshotFailed(checkpoint):
                trace.tell("decline", checkpoint)
            case of_slot.CheckpointCompleted(logged):
                trace.tell("complete", logged.id)
            case of_slot.CheckpointAborted(checkpoint):
                trace.tell("abort", checkpoint)
        actions = on(machine, event, now)
        for action in actions:
            match action:
                case of_slot.BeginCut(checkpoint):
                    trace.cuts[checkpoint] = True
                case of_slot.DeclineCheckpoint(checkpoint):
                    trace.tell("decline", checkpoint)
        return actions

    return told


def _around_send(send: Any) -> Any:
    @wraps(send)
    def told(outbox: Outbox, receiver: int, kind: Kind, **more: Any) -> None:
        trace = _traces.get(outbox)
        if trace is not None and kind is Kind.RECORDS:
            trace.sent[receiver] += more["count"]
        send(outbox, receiver, kind, **more)

    return told


def _around_barrier(send_barrier: Any) -> Any:
    @wraps(send_barrier)
    def told(outbox: Outbox, checkpoint: int, flags: int) -> None:
        if (trace := _traces.get(outbox)) is not None:
            trace.forwarded(checkpoint)
        send_barrier(outbox, checkpoint, flags)

    return told


def _around_processed(processed: Any) -> Any:
    @wraps(processed)
    def told(flow: SlotFlow, frame: Frame, records: int, began: float, ended: float) -> None:
        trace = _traces.get(flow)
        if trace is not None and frame.kind is Kind.RECORDS:
            if frame.sender == RESTORED:
                trace.left -= records
            else:
                trace.passed[frame.sender] += records
        processed(flow, frame, records, began, ended)

    return told


def _around_store(store: Any) -> Any:
    @wraps(store)
    def told(uploader: SnapshotUploader, checkpoint: Any, operators: Any, in_flight: Any, order: Any) -> Any:
        if isinstance(uploader.control, _ToldControl):
            uploader.control._trace.stored(checkpoint, in_flight)
        return store(uploader, checkpoint, operators, in_flight, order)

    return told


def _around_ask(ask: Any) -> Any:
    @wraps(ask)
    def told(commits: Commits, goal: Any, work: Any) -> None:
        if (trace := _traces.get(commits)) is not None:
            trace.tell("commit", goal, _pieces(piece for _, due in work for piece in due))
        ask(commits, goal, work)

    return told


def _around_forget(forget: Any) -> Any:
    @wraps(forget)
    def told(sink: SinkOperator, committed: Any) -> None:
        if committed and (trace := _traces.get(sink)) is not None:
            trace.tell("forget", _pieces(committed))
        forget(sink, committed)

    return told


def _around_committed(said: Any) -> Any:
    @wraps(said)
    def told(slot: Slot, checkpoint: Any) -> None:
        if (trace := _traces.get(slot)) is not None:
            trace.tell("committed", checkpoint)
        said(slot, checkpoint)

    return told


def _around_attempt(write: Write) -> Callable[[Any], Any]:
    def around(init: Any) -> Any:
        @wraps(init)
        def __post_init__(attempt: Attempt) -> None:
            widths: dict[int, int] = {}
            for slot in attempt.starts:
                widths[slot.layer] = widths.get(slot.layer, 0) + 1
            from_ = next(iter(attempt.starts.values())).restored_from or 0
            id = attempt.id
            told = [id.generation, id.number, from_, [widths[layer] for layer in sorted(widths)]]
            job = next(iter(attempt.starts.values())).incarnation
            write((time.monotonic_ns(), job, f"{id.generation}.{id.number}", "attempt", told))
            init(attempt)
            _jobs[id_of(attempt.scheduler)] = job

        return __post_init__

    return around


_jobs: dict[int, str] = {}  #: by id of a scheduler


def _around_scheduler(write: Write) -> Callable[[Any], Any]:
    def around(on: Any) -> Any:
        @wraps(on)
        def told(scheduler: CheckpointScheduler, event: Any, now: float) -> Any:
            actions = on(scheduler, event, now)
            attempt, job = f"{scheduler.attempt.generation}.{scheduler.attempt.number}", _jobs.get(id_of(scheduler))
            if job is None:
                return actions

            def tell(name: str, *arguments: Any) -> None:
                write((time.monotonic_ns(), job, attempt, name, list(arguments)))

            match event:
                case driver.SnapshotAcknowledged(slot, _, checkpoint):
                    if not any(isinstance(action, driver.DiscardSnapshot) for action in actions):
                        tell("heard", [slot.layer + 1, slot.index + 1], checkpoint)
                case driver.SavepointStored(checkpoint):
                    tell("savepoint", checkpoint)
            for action in actions:
                match action:
                    case driver.TriggerCheckpoint(checkpoint, purpose, _, unaligned_after_s):
                        tell(
                            "trigger",
                            checkpoint,
                            unaligned_after_s is not None,
                            purpose is not driver.Purpose.SAVEPOINT,
                        )
                    case driver.NotifyAborted(checkpoint):
                        tell("give up", checkpoint)
                    case driver.NotifyComplete(logged):
                        tell("notify", logged.id)
            return actions

        return told

    return around


_LOGGED = {
    LogKind.GENERATION: "take over",
    LogKind.CHECKPOINT: "logged",
    LogKind.SAVEPOINT_STOP: "logged",
    LogKind.FINISHED: "finished",
}


def log_event(record: LogRecord, at: int) -> Event | None:
    """What the record says; its number comes first: more than one driver may tell of it."""
    name = _LOGGED.get(record.kind)
    if name is None:
        return None
    latest = 0 if record.latest is None else record.latest.id
    return (
        at,
        record.incarnation,
        "",
        name,
        [record.sequence, record.generation, *([] if name == "finished" else [latest])],
    )


def _innermost(store: ObjectStore) -> ObjectStore:
    """Without what misbehaves around it."""
    while (inner := getattr(store, "_inner", None) or getattr(store, "_home", None)) is not None:
        store = inner
    return store


def _around_create(write: Write) -> Callable[[Any], Any]:
    def around(create: Any) -> Any:
        @wraps(create)
        def told(log: JobLog, record: LogRecord) -> bool:
            began = time.monotonic_ns()
            try:
                created: bool = create(log, record)
            finally:  # the answer may be lost: what stands there is what happened
                path, store = log._paths.log(record.sequence), _innermost(log._store)
                with contextlib.suppress(Exception):
                    if store.exists(path) and decode_record(store.get(path), path) == record:
                        event = log_event(record, began)
                        if event is not None:
                            write(event)
            return created

        return told

    return around


def _around_read(write: Write) -> Callable[[Any], Any]:
    """A driver that was killed right after its record is not left to tell of it: whoever reads it first does."""

    def around(read: Any) -> Any:
        @wraps(read)
        def told(log: JobLog, sequence: int) -> LogRecord:
            record: LogRecord = read(log, sequence)
            event = log_event(record, time.monotonic_ns())
            if event is not None:
                write(event)
            return record

        return told

    return around


@contextlib.contextmanager
def traced(write: Write) -> Iterator[None]:
    """Every job that runs in this process is told of. Not for two at a time."""
    take_away = install(write)
    try:
        yield
    finally:
        take_away()
        _machines.clear()
        _start_messages.clear()
        _jobs.clear()


def install(write: Write) -> Callable[[], None]:
    """Put the observer around the doors; call what it returns to take it away again."""
    around = (
        (Slot, "__init__", _around_slot(write)),
        (Slot, "_start", _around_start),
        (Slot, "_committed", _around_committed),
        (InputQueue, "restore", _around_restore),
        (SlotMachine, "on", _around_machine),
        (Outbox, "send", _around_send),
        (Outbox, "send_barrier", _around_barrier),
        (SlotFlow, "processed", _around_processed),
        (SnapshotUploader, "_store", _around_store),
        (Commits, "_ask", _around_ask),
        (SinkOperator, "forget", _around_forget),
        (Attempt, "__post_init__", _around_attempt(write)),
        (CheckpointScheduler, "on", _around_scheduler(write)),
        (JobLog, "_create", _around_create(write)),
        (JobLog, "read", _around_read(write)),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in around]
    for owner, name, wrap in around:
        setattr(owner, name, wrap(getattr(owner, name)))

    def take_away() -> None:
        for owner, name, method in before:
            setattr(owner, name, method)

    return take_away


# -- of processes that die --------------------------------------------------------------------------------------------


def write_to_folder(folder: str) -> Write:
    """A file for each process, each event in it before anything else happens."""
    files: dict[int, int] = {}

    def write(event: Event) -> None:
        pid = os.getpid()  # a worker is forked from a daemon that has written nothing
        if pid not in files:
            path = os.path.join(folder, f"{pid}-{time.monotonic_ns()}.jsonl")
            files[pid] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(files[pid], json.dumps(event).encode() + b"\n")

    return write


def read_folder(folder: str | Path) -> list[Event]:
    events: list[Event] = []
    for path in Path(folder).glob("*.jsonl"):
        for line in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # its process was killed in the middle of it
                when, job, attempt, name, arguments = json.loads(line)
                events.append((when, job, attempt, name, arguments))
    return events


def jobs_of(events: Iterable[Event]) -> dict[str, list[Event]]:
    jobs: dict[str, list[Event]] = {}
    for event in events:
        jobs.setdefault(event[1], []).append(event)
    return jobs
