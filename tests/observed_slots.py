"""What slots do, told as events of spec/Layers.tla: observed.py puts this around the doors of a slot's parts."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import xxhash

from tidegate.graph.logical import Partitioning
from tidegate.protocol import slot_events as of_slot
from tidegate.protocol.slot_machine import SlotMachine
from tidegate.storage.metadata import Committable
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
Door = tuple[type, str, Callable[[Any], Any]]  #: a method, by its class and name, and what is put around it


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
_start_messages: dict[int, Any] = {}  #: by id of an input queue


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
            layer, layers = slot.id.layer, slot._plan.layers
            above = layers[layer - 1].width if layer else 0
            below = layers[layer + 1].width if layer + 1 < len(layers) else 0
            attempt = slot.program.attempt
            trace = _SlotTrace(write, slot, f"{attempt.generation}.{attempt.number}", [0] * above, [0] * below)
            for part in (slot.outbox, slot._flow, slot._input, slot._commits, slot):
                _traces[part] = trace
            for chain in slot.chains:
                for sink in chain.sinks:
                    _traces[sink] = trace
            _machines[id(slot._machine)] = trace
            uploader = slot._checkpoints.uploader
            uploader.control = _ToldControl(uploader.control, trace)

        return __init__

    return around


def _around_start(start: Any) -> Any:
    @wraps(start)
    def _start(slot: Slot, message: Any) -> None:
        _traces[slot].job = message.incarnation
        _start_messages[id(slot._input)] = message  # told by InputQueue.restore, which comes before anything is opened
        start(slot, message)

    return _start


def _around_restore(restore: Any) -> Any:
    @wraps(restore)
    def told(queue: InputQueue, frames: Any) -> None:
        trace, start = _traces[queue], _start_messages.pop(id(queue))
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
        trace = _machines.get(id(machine))
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


def doors_of_slots(write: Write) -> list[Door]:
    return [
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
    ]


def forget_slots() -> None:
    """They have ended: ids are used again."""
    _machines.clear()
    _start_messages.clear()
