"""What a run does, told as events of spec/Layers.tla.

    with traced(events.append):        everything in this process, from here on
        ...

Nothing in the product knows of this, and nothing is told unless somebody asks: the observer is put around the doors of the
machines (`SlotMachine.on`, `CheckpointScheduler.on`), around what counts records (`Outbox.send`, `SlotFlow.processed`), and
where snapshots, commits and log records leave the process. Those of slots are in observed_slots.py.

Processes of one machine share a monotonic clock, so their events can be put into one order: each is noted before what it causes
can happen elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from observed_slots import Door, Event, Write, doors_of_slots, forget_slots
from tidegate.coordinator.attempt import Attempt
from tidegate.protocol import checkpoint_events as driver
from tidegate.protocol.checkpointing import CheckpointScheduler
from tidegate.storage.log import JobLog, LogKind, LogRecord, decode_record
from tidegate.storage.store import ObjectStore

# -- the driver -------------------------------------------------------------------------------------------------------


def _around_attempt(write: Write) -> Callable[[Any], Any]:
    def around(init: Any) -> Any:
        @wraps(init)
        def __post_init__(attempt: Attempt) -> None:
            widths: dict[int, int] = {}
            for slot in attempt.starts:
                widths[slot.layer] = widths.get(slot.layer, 0) + 1
            from_ = next(iter(attempt.starts.values())).restored_from or 0
            generation, number = attempt.id.generation, attempt.id.number
            told = [generation, number, from_, [widths[layer] for layer in sorted(widths)]]
            job = next(iter(attempt.starts.values())).incarnation
            write((time.monotonic_ns(), job, f"{generation}.{number}", "attempt", told))
            init(attempt)
            _jobs[id(attempt.scheduler)] = job

        return __post_init__

    return around


_jobs: dict[int, str] = {}  #: by id of a scheduler


def _around_scheduler(write: Write) -> Callable[[Any], Any]:
    def around(on: Any) -> Any:
        @wraps(on)
        def told(scheduler: CheckpointScheduler, event: Any, now: float) -> Any:
            actions = on(scheduler, event, now)
            attempt, job = f"{scheduler.attempt.generation}.{scheduler.attempt.number}", _jobs.get(id(scheduler))
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
        forget_slots()
        _jobs.clear()


def install(write: Write) -> Callable[[], None]:
    """Put the observer around the doors; call what it returns to take it away again."""
    around: list[Door] = [
        *doors_of_slots(write),
        (Attempt, "__post_init__", _around_attempt(write)),
        (CheckpointScheduler, "on", _around_scheduler(write)),
        (JobLog, "_create", _around_create(write)),
        (JobLog, "read", _around_read(write)),
    ]
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
