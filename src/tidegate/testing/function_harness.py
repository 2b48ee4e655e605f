"""A harness for one function: feed it records, time and watermarks by hand; look at its output and its state. No Spark.

    counting = harness(CountWords(), key_by=lambda word: word)

    assert counting.process("tide") == [("tide", 1)]
    assert counting.state("tide") == {"count": 1}

What runs is what runs on an executor: the operators of task/operators, a state backend, and the code that takes and restores
snapshots. Records reach the function as they do over an edge of a job, encoded and decoded once, so it may change what it is
given. All of it in the caller's thread, on a clock that moves only when told.

Life of a harness: made (open has run) -> process, advance_..., snapshot, restore -> end_input (bounded input) -> close.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import cloudpickle
import numpy as np

from tidegate.batch import Batch
from tidegate.connectors.contract import MANY_RECORDS
from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError
from tidegate.functions.process import OutputTag
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.graph.specs import keys_of, user_function_of
from tidegate.ids import CheckpointId
from tidegate.protocol.watermarks import Channel, WatermarkValve
from tidegate.settings.choices import TypeChecks
from tidegate.state.backend import KeyedStateBackend
from tidegate.state.backends import BackendSettings, StateBackends
from tidegate.state.broadcast import broadcast_states
from tidegate.state.declarations import declared_states
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.metadata import FileRef
from tidegate.storage.snapshot_file import SnapshotFileWriter
from tidegate.task.answers import nothing
from tidegate.task.chains import HostedChain, close_all
from tidegate.task.local_copies import RestoreStorage
from tidegate.task.operators.async_calls import AsyncOperator
from tidegate.task.operators.base import Emit, OperatorFailed, Readers, RunningOperator
from tidegate.task.operators.build import OperatorContext, build_operator
from tidegate.task.operators.first_rows import CHECKED_ROWS
from tidegate.task.operators.process import KeyedProcessOperator
from tidegate.task.operators.timers import Time
from tidegate.task.operators.windows import WindowOperator
from tidegate.task.processing_time import ProcessingTime
from tidegate.task.restore import open_operators, restore_state
from tidegate.testing.clock import ManualClock
from tidegate.testing.one_operator import JOB, UID, Asked, OneOperator, plan_operator
from tidegate.testing.plain_state import plain_state
from tidegate.testing.stepped_loop import SteppedCalls
from tidegate.types.pickled import pickled
from tidegate.wire.control import Start, SubtaskRestore

T = TypeVar("T")


class Emitted(NamedTuple):
    """A record with its event time, in ms; None where it has none."""

    value: Any
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class HarnessSnapshot:
    """All that a checkpoint holds of the function: keyed state, timers, operator and broadcast state, the watermark.

    Stored as checkpoints store it, in the format that every state backend reads.
    """

    file: FileRef
    watermark: int
    ended: bool


class FunctionHarness:
    """One subtask of one function. Made by `harness(...)`."""

    def __init__(
        self, asked: Asked, backend: str, processing_time: int, restored: HarnessSnapshot | None = None
    ) -> None:
        self._clock = ManualClock(processing_time / 1000)
        self._calls = SteppedCalls(self._clock)
        self._job: OneOperator = plan_operator(asked)
        self._backend_kind = backend
        self._emitted: dict[str, list[Emitted]] = {tag: [] for tag in self._job.planned.operator.outputs}
        self._checkpoint = 0
        self._channels: list[Channel] = [(index, 0) for index in range(len(self._job.input_types))]
        self._chain: HostedChain
        self._closed = False
        self._start(restored)

    # -- records ------------------------------------------------------------------------------------------------------

    def process(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """Give it one record, with its event time in ms; what it emitted for it (side outputs: `side_output`)."""
        return self._feed(0, [value], None if timestamp is None else [timestamp])

    def process_many(self, values: Iterable[Any], timestamps: Sequence[int] | None = None) -> list[Any]:
        """Several records in one batch, as a job hands them over. For functions over batches, and where there are many."""
        return self._feed(0, list(values), timestamps)

    def process2(self, value: Any, timestamp: int | None = None) -> list[Any]:
        """One record of the second input; `process` is the first."""
        if len(self._channels) == 1 or self._job.second_is_broadcast:
            way_out = "broadcast(...)" if self._job.second_is_broadcast else "process(...)"
            raise ConfigurationError(f"{self._named} has no process_element2: use {way_out}")
        return self._feed(1, [value], None if timestamp is None else [timestamp])

    def broadcast(self, value: Any) -> list[Any]:
        """An element of the broadcast side, as every subtask gets it."""
        if not self._job.second_is_broadcast:
            raise ConfigurationError(f"{self._named} has no broadcast side: use process(...)")
        return self._feed(1, [value], None)

    def end_input(self) -> list[Any]:
        """All input has ended: the last event-time timers fire, then the function's `end_input` runs."""
        return self._emitted_by(self._end)

    @property
    def output(self) -> list[Any]:
        """What the function has emitted so far, in order."""
        return [each.value for each in self.emitted]

    @property
    def emitted(self) -> list[Emitted]:
        """The same with the event time of each record."""
        return self._emitted[MAIN_OUTPUT]

    def side_output(self, tag: OutputTag) -> list[Any]:
        """What it has emitted to a side output so far."""
        if tag.name not in self._emitted:
            raise ConfigurationError(
                f"nothing reads the side output {tag.name!r} of {self._named}: harness(..., side_outputs=[{tag.name}])"
            )
        return [each.value for each in self._emitted[tag.name]]

    # -- time ---------------------------------------------------------------------------------------------------------

    def advance_watermark(self, watermark: int, input: int | None = None) -> list[Any]:
        """Event time has come to `watermark` (ms) on all inputs, or on input 1 or 2 alone: the slower one holds the function's
        time back. Timers that are due fire; what they emitted."""
        channels = self._channels if input is None else [self._channels[input - 1]]

        def advance() -> None:
            for channel in channels:
                self._chain.on_watermark(channel, watermark)

        return self._emitted_by(advance)

    def advance_processing_time(self, by: Duration) -> list[Any]:
        """The clock advances by so much ("5s"): timers fire one after another, each at its time, and state expires."""
        end = self._clock() + seconds(by, "advance_processing_time")

        def advance() -> None:
            while (due := self._next_due_s()) is not None and due <= end:
                self._clock.now = max(due, self._clock.now)
                self._answer()
                self._chain.on_time()
            self._clock.now = end
            self._answer()
            self._chain.on_time()

        return self._emitted_by(advance)

    @property
    def watermark(self) -> int:
        """How far event time has come, in ms."""
        return self._operator.watermark

    @property
    def processing_time(self) -> int:
        """What the function sees as the time of day, in ms."""
        return round(self._clock() * 1000)

    @property
    def next_event_timer(self) -> int | None:
        """When the next event-time timer of any key is due, in ms; None: there is none."""
        timers = self._timers
        return None if timers is None else timers.event.next_timestamp()

    @property
    def next_processing_timer(self) -> int | None:
        """The same of processing time."""
        timers = self._timers
        return None if timers is None else timers.processing.next_timestamp()

    # -- state --------------------------------------------------------------------------------------------------------

    @property
    def function(self) -> Any:
        """The function that runs: a copy of the one that was given, as each subtask of a job has one."""
        return user_function_of(self._operator.planned.operator.spec)

    def state(self, key: Any) -> dict[str, Any]:
        """All that is stored for a key, by the name of the state: a value, a list, a dict, the result of a fold.

        States that hold nothing are left out: `{}` is a key that takes no room.
        """
        backend, function = self._keyed_backend, self.function
        normalised = keys_of(self._operator.planned.operator.spec)[0].key_type().normalise(key)
        found: dict[str, Any] = {}
        backend.set_current_key(normalised)
        try:
            for name in declared_states(function):
                if normalised in set(backend.keys(name)):
                    found[name] = plain_state(function.__dict__[name])
        finally:
            backend.clear_current_key()
        return found

    def keys(self) -> set[Any]:
        """Every key that has something stored. Timers are not looked at."""
        backend = self._keyed_backend
        denormalise = keys_of(self._operator.planned.operator.spec)[0].key_type().denormalise
        return {denormalise(key) for name in declared_states(self.function) for key in backend.keys(name)}

    def broadcast_state(self) -> dict[str, dict[Any, Any]]:
        """The broadcast state, by the name of each."""
        function = self.function
        return {name: dict(function.__dict__[name].items()) for name in broadcast_states(function)}

    # -- failures -----------------------------------------------------------------------------------------------------

    def snapshot(self) -> HarnessSnapshot:
        """What a checkpoint at this moment would hold. What happens afterwards does not change it."""
        self._checkpoint += 1
        checkpoint, operator = CheckpointId(self._checkpoint), self._operator
        operator.prepare(checkpoint)
        taken = operator.snapshot_sync(checkpoint)
        writer = SnapshotFileWriter()
        for part in (taken.keyed, taken.operator):
            for section in () if part is None else part.sections():
                writer.add(UID, *section)
        if taken.keyed is not None:
            taken.keyed.release()
        data, sections = writer.finish()
        file = FileRef(size=data.size, inline=data.to_pybytes(), sections=sections)
        return HarnessSnapshot(file, taken.watermark, taken.ended)

    def restore(self, snapshot: HarnessSnapshot, *, backend: str | None = None) -> None:
        """As after a failure: the function that ran is gone, and a new one continues from the snapshot. Its plain attributes
        are those of the beginning; declared state is as it was. With `backend` it is restored onto that one.

        What was emitted stays in `output`: it was sent, and a job would take care that it does not count twice.
        """
        self._let_go()
        self._backend_kind = backend or self._backend_kind
        self._start(snapshot)

    def close(self) -> None:
        """The function's `close`, as at the end of a job. Calling it again does nothing."""
        if not self._closed:
            self._closed = True
            _as_the_user_sees_it(lambda: close_all([self._operator]))
            self._calls.run()
            self._calls.let_go()

    def __del__(self) -> None:
        self._calls.let_go()

    def __enter__(self) -> FunctionHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if kind is None else self._let_go()

    # -- the operator -------------------------------------------------------------------------------------------------

    @property
    def _operator(self) -> RunningOperator:
        return self._chain.head

    @property
    def _named(self) -> str:
        return self._operator.name

    @property
    def _keyed_backend(self) -> KeyedStateBackend:
        if self._operator.backend is None:
            raise ConfigurationError(f"{self._named} has no keys, so there is no state of a key")
        return self._operator.backend

    @property
    def _timers(self) -> Any:
        operator = self._operator
        return operator._timers if isinstance(operator, (KeyedProcessOperator, WindowOperator)) else None

    def _next_due_s(self) -> float | None:
        """A timer's time, or when a call that sleeps continues."""
        if isinstance(self._operator, KeyedProcessOperator):
            timer = self.next_processing_timer
            due = None if timer is None else timer / 1000
        else:
            due = self._chain.next_time()
        return min((at for at in (due, self._calls.next_due()) if at is not None), default=None)

    def _answer(self) -> None:
        """What calls have brought back by now leaves."""
        operator = self._operator
        if isinstance(operator, AsyncOperator):
            self._calls.run()
            while operator.release():
                self._calls.run()

    def _start(self, snapshot: HarnessSnapshot | None) -> None:
        """Build, restore and open the operator, by the steps of a slot's start."""
        operator = self._built()
        valve = WatermarkValve.over(self._channels)
        self._chain = HostedChain(0, [operator], [], set(self._channels), valve)
        self._closed = False
        if snapshot is None:
            start = Start(restored_from=None, subtasks=[], files=[])
        else:
            subtask = SubtaskRestore(UID, 0, snapshot.ended, snapshot.watermark, old_parallelism=1)
            start = Start(restored_from=1, subtasks=[subtask], files=[snapshot.file])
        storage = RestoreStorage(MemoryStore("harness"))  # snapshots travel inside `start`
        _as_the_user_sees_it(lambda: restore_state(storage, start, [self._chain], {}))
        _as_the_user_sees_it(lambda: open_operators(start, [self._chain]))
        if snapshot is not None:
            _as_the_user_sees_it(self._answer)

    def _built(self) -> RunningOperator:
        time = ProcessingTime(self._clock, self._clock)
        context = OperatorContext(
            job=JOB,
            attempt="harness",
            time=Time(self._clock, time),
            backends=StateBackends(BackendSettings(kind=self._backend_kind, memory_bytes=16 << 20), time),
            sleep=self._clock.sleep,
            hot_keys=False,
            object_reuse=False,
            checked_rows=CHECKED_ROWS[TypeChecks.ALL],
            wanted=lambda: MANY_RECORDS,
            send_to_driver=_no_driver,
            calls=self._calls,
            wake=nothing,
        )
        planned = cloudpickle.loads(cloudpickle.dumps(self._job.planned))  # each subtask has a function of its own
        operator = build_operator(planned, 0, self._job.input_types[0], context)
        readers = {tag: Readers(edges=[_into(rows)]) for tag, rows in self._emitted.items()}
        operator.connect(readers, [], context.checked_rows)
        return operator

    def _feed(self, input_index: int, rows: list[Any], timestamps: Sequence[int] | None) -> list[Any]:
        stamps = None if timestamps is None else np.array(timestamps, np.int64)
        record_type = self._job.input_types[input_index]
        sent = Batch(record_type, rows, timestamps=stamps)
        if record_type.typed:
            received = Batch(record_type, columns=sent.columns(), timestamps=stamps)
        else:
            received = Batch(record_type, pickle.loads(pickled(rows)), timestamps=stamps)
        return self._emitted_by(lambda: self._operator.run(received, input_index))

    def _end(self) -> None:
        for channel in self._channels:
            self._chain.end_channel(channel)
        while not self._chain.end():  # calls are in flight
            self._answer()
            due = self._calls.next_due()
            if self._chain.head.is_pending and due is not None:
                self._clock.now = max(due, self._clock.now)

    def _emitted_by(self, call: Callable[[], None]) -> list[Any]:
        before = len(self.emitted)

        def answered() -> None:
            call()
            self._answer()

        _as_the_user_sees_it(answered)
        return [each.value for each in self.emitted[before:]]

    def _let_go(self) -> None:
        """What the system does for a worker that is gone: the function hears nothing of it."""
        self._calls.let_go()
        if not self._closed and self._operator.backend is not None:
            self._operator.backend.close()
        self._closed = True


def harness(
    function: Any,
    *,
    via: str | None = None,
    key_by: Any = None,
    second_key_by: Any = None,
    key_type: Any = None,
    input_type: Any = None,
    second_type: Any = None,
    returns: Any = None,
    side_outputs: Sequence[OutputTag] = (),
    options: Mapping[str, Any] | None = None,
    backend: str = "hashmap",
    processing_time: int = 0,
    restored: HarnessSnapshot | None = None,
) -> FunctionHarness:
    """A harness for `function`, opened: an instance of any function class, or a plain function with `via="map"` (or
    "flat_map", "filter", "map_batches", "reduce"). With `via="window"`, a function of the keyed stream that gives the results
    of its windows: `harness(lambda keyed: keyed.window(...).reduce(...), via="window", key_by=...)`.

    :param key_by: as the stream's key_by takes it, a function or a column; several columns as a list. The second input of a
        KeyedCoProcessFunction has the same key, unless `second_key_by` says another.
    :param input_type: the type of the records that come in, as `returns=` of the operator before would say it; `second_type`
        that of the second input. Not given: any records.
    :param side_outputs: the tags that are read, as `stream.side_output(tag)` does in a job.
    :param options: more keywords of the call that puts it into a stream: `{"capacity": 4}` of async_map.
    :param backend: "hashmap" or "rocksdb".
    :param processing_time: where the clock stands at first, in ms.
    :param restored: begin with this snapshot, which another harness has taken, of this or of an older version of the function.
    :raises ConfigurationError: and all else that a job raises for a function that it cannot take.
    """
    asked = Asked(
        function,
        via,
        key_by,
        second_key_by,
        key_type,
        input_type,
        second_type,
        returns,
        tuple(side_outputs),
        options or {},
    )
    return FunctionHarness(asked, backend, processing_time, restored)


def _into(rows: list[Emitted]) -> Emit:
    def emit(batch: Batch) -> None:
        stamps = [None] * len(batch) if batch.timestamps is None else batch.timestamps.tolist()
        rows.extend(map(Emitted, batch.rows(), stamps))

    return emit


def _as_the_user_sees_it(call: Callable[[], T]) -> T:
    """The function's own exception, without ours around it: a test says pytest.raises(ZeroDivisionError)."""
    try:
        return call()
    except OperatorFailed as error:
        failed = error
    raise failed.cause


def _no_driver(uid: str, subtask: int, topic: str, payload: bytes) -> None:
    """Only sinks send something to the driver."""
