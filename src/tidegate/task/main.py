"""A slot under Spark: what `mapInArrow` calls in a Python worker. Executor.

Threads: Spark drives the generator (the task's thread); one reads frames from Spark into the mailbox; one listens to the
coordinator; one sends heartbeats; one stores snapshots; one commits; one samples the task's thread while somebody looks.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import cloudpickle
import pyarrow as pa

from tidegate.errors import UnshippableFunction
from tidegate.graph.plan import JobPlan
from tidegate.ids import AttemptId, SlotId
from tidegate.ports import CrashPoints
from tidegate.process_use import process_use
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.memory_store import UnreachableStore
from tidegate.storage.store import open_store, read_probe
from tidegate.task.call_loop import CallLoopThread
from tidegate.task.control_client import ControlClient
from tidegate.task.failures import describe_failure
from tidegate.task.garbage import BoundedCollections
from tidegate.task.inbox import Inbox
from tidegate.task.logs import SlotLog
from tidegate.task.mailbox import Mailbox
from tidegate.task.operators.base import OperatorFailed
from tidegate.task.outbox import Row
from tidegate.task.profiler import StackSampler
from tidegate.task.program import SlotProgram, SlotSettings
from tidegate.task.slot import Slot
from tidegate.types.main_program import load_with_classes
from tidegate.wire.control import PROTOCOL_VERSION, Cancel, Heartbeat, SampleStacks, ToSlot
from tidegate.wire.frame import FrameOpener
from tidegate.wire.handshake import ControlAddress, Hello, new_challenge

ROW_SCHEMA = pa.schema([("dst", pa.int32()), ("frame", pa.binary())])
YIELD_BYTES = 256 * 1024
SOURCE_PATIENCE_S = 0.020
SWITCH_INTERVAL_S = 0.0005  #: four threads share the GIL; Python's default lets each keep it for 5 ms
LAST_WORDS_S = 10.0
PULSE_S = 5.0  #: how long a channel may be silent; 128 slots over 128 others send 26 small frames a second each for it


@dataclass(frozen=True, slots=True)
class ShippedAttempt:
    """All that a worker is given. Travels in the task's closure, which Spark shows on no page."""

    job: str
    plan: bytes  #: the JobPlan, pickled by itself: what cannot be loaded is said on the control connection
    attempt: AttemptId
    coordinator: ControlAddress
    settings: SlotSettings
    storage_uri: str | None  #: None: there is none that executors can reach, and all state travels to the driver
    crash_points: CrashPoints
    modules: str = ""  #: the folder of the main program, where modules that it imports are likely to be
    imports: tuple[str, ...] = ()  #: packages that the main program has imported


def run_layer(shipped: bytes, layer: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The function of one layer's `mapInArrow`."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    attempt: ShippedAttempt = cloudpickle.loads(shipped)
    yield from SlotProcess(attempt, SlotId(layer, context.partitionId())).run(batches)


class SlotProcess:
    """Threads and sockets around a Slot."""

    def __init__(self, shipped: ShippedAttempt, slot: SlotId) -> None:
        self._id = slot
        self._shipped = shipped
        settings = shipped.settings
        inbox = Inbox(settings.inbox_bytes, settings.held_memory_bytes, settings.held_disk_bytes)
        self._mailbox = Mailbox(inbox, lambda message: self._control.send(message))
        self._slot: Slot | None = None
        self._calls = CallLoopThread("tidegate-calls", self._mailbox.fail)
        self._sampler: StackSampler | None = None  #: once the task's thread is known
        self._cancelled = threading.Event()
        self._busy_s = self._idle_s = self._blocked_s = self._waited_s = 0.0
        self._log = SlotLog(shipped.job, str(shipped.attempt), str(slot), shipped.settings.log_format)
        self._log.install()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        hello = Hello(
            version=PROTOCOL_VERSION,
            generation=shipped.attempt.generation,
            attempt=shipped.attempt.number,
            layer=slot.layer,
            index=slot.index,
            pid=os.getpid(),
            host=socket.gethostname(),
            challenge=new_challenge(),
        )
        self._control = ControlClient(shipped.coordinator, hello, settings.silence_s)

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._sampler = StackSampler(threading.get_ident(), self._control.send)
        self._control.start(self._on_message, self._heartbeat, self._last_words)
        collections = BoundedCollections()
        try:
            self._slot = self._build()
            collections.start()
            if self._id.layer > 0:
                reading = (batches, FrameOpener(self._slot.program.seal(), self._id))
                threading.Thread(target=self._read, args=reading, name="tidegate-reader", daemon=True).start()
            yield from self._loop(self._slot, collections)
            self._close(self._slot)
        except GeneratorExit:
            raise
        except BaseException as error:
            self._last_words(error)
        finally:
            collections.stop()
        self._control.close()

    def _close(self, slot: Slot) -> None:
        """FINISHED is in the log and all is committed: whatever fails now is told, and changes nothing."""
        try:
            slot.close()
        except OperatorFailed as failed:
            print(f"tidegate: close() of {failed.operator.name} failed after the job had finished:", file=sys.stderr)
            traceback.print_exception(failed.cause)
        self._calls.stop()

    def _build(self) -> Slot:
        shipped = self._shipped
        plan = _loaded(shipped.plan, shipped.modules, shipped.imports)
        storage = reaching_anywhere(
            UnreachableStore() if shipped.storage_uri is None else open_store(shipped.storage_uri)
        )
        if shipped.storage_uri is not None:
            read_probe(storage, plan.job, shipped.attempt)
        program = SlotProgram(plan, self._id, shipped.attempt, shipped.coordinator.token, shipped.settings)
        return Slot(
            program=program,
            mailbox=self._mailbox,
            control=self._control,
            storage=storage,
            uploads=BackgroundThread("tidegate-uploads", self._mailbox.fail),
            commits=BackgroundThread("tidegate-commits", self._mailbox.fail),
            calls=self._calls,
            crash_points=shipped.crash_points,
            clock=time.monotonic,
            wall_clock=time.time,
            sleep=self._sleep,
        )

    def _loop(self, slot: Slot, collections: BoundedCollections) -> Iterator[pa.RecordBatch]:
        clock = time.monotonic
        last = clock()
        pulse_at = last + PULSE_S
        while not slot.finished:
            active = slot.has_active_source()
            patience = self._patience(slot) if active else 0.0
            worked = slot.turn(patience)
            if worked:
                collections.between_records()
            slot.on_time()
            slot.flush_if_due(idle=not worked)
            now = clock()
            waited, self._waited_s = self._waited_s, 0.0  # in a source's poll, for records to come
            if worked:
                slot.paused(now - last - waited)
                self._busy_s += now - last - waited
                self._idle_s += waited
            else:
                self._idle_s += now - last
            last = now
            if now >= pulse_at:
                slot.outbox.pulse()
                pulse_at = now + PULSE_S
            if len(slot.outbox):
                while len(slot.outbox):
                    yield _rows_to_batch(slot.outbox.take(YIELD_BYTES))
                now = clock()
                self._blocked_s += now - last
                last = now
            elif not worked and not active and not slot.finished:
                deadline = slot.next_deadline()
                due = pulse_at if deadline is None else min(deadline, pulse_at)
                must_wait, letters_only = slot.must_wait, not slot.takes_frames
                self._mailbox.wait(max(0.0, due - now), letters_only)
                now = clock()
                if must_wait:
                    self._blocked_s += now - last
                else:
                    self._idle_s += now - last
                last = now

    def _sleep(self, seconds: float) -> None:
        """A source waits: the slot is idle, also when records come of it."""
        began = time.monotonic()
        time.sleep(seconds)
        self._waited_s += time.monotonic() - began

    def _patience(self, slot: Slot) -> float:
        """How long a source may wait for records: until a buffer is due, and never so long that a trigger waits."""
        deadline = slot.next_deadline()
        if deadline is None:
            return SOURCE_PATIENCE_S
        return max(0.0, min(SOURCE_PATIENCE_S, deadline - time.monotonic()))

    def _read(self, batches: Iterator[pa.RecordBatch], opener: FrameOpener) -> None:
        """Reader thread: from Spark's rows to the mailbox. Waiting here is the back-pressure."""
        try:
            for batch in batches:
                column = batch.column(1)
                for i in range(batch.num_rows):
                    frame = opener.open(memoryview(column[i].as_buffer()))
                    if not self._mailbox.put_frame(frame):
                        return
            self._mailbox.end_input()
        except BaseException as error:
            self._mailbox.fail(error)

    def _on_message(self, message: ToSlot) -> None:
        if isinstance(message, Cancel):
            # The attempt is over. Leave at once and without a word: Spark is cancelling the job anyway.
            os._exit(0)
        if isinstance(
            message, SampleStacks
        ):  # not for the task's thread: it may be busy with the very line that is slow
            assert self._sampler is not None
            self._sampler.order(message)
            return
        self._mailbox.post(message)

    def _heartbeat(self) -> Heartbeat:
        slot = self._slot
        logs, logs_dropped = self._log.take()
        return Heartbeat(
            busy_ms=int(self._busy_s * 1000),
            idle_ms=int(self._idle_s * 1000),
            backpressured_ms=int(self._blocked_s * 1000),
            inbox_bytes=self._mailbox.frames_bytes,
            held_bytes=0 if slot is None else slot.held_bytes,
            operators=[] if slot is None else slot.metrics(),
            logs=logs,
            logs_dropped=logs_dropped,
            process=process_use(),
        )

    def _last_words(self, error: BaseException) -> None:
        """Tell the coordinator, wait to be cancelled, and go without a traceback on the executor's console. Any thread."""
        try:
            self._control.send(self._heartbeat())  # what was logged right before
        except Exception:
            traceback.print_exc()  # the failure itself must be told in any case
        self._control.send(describe_failure(error))
        self._cancelled.wait(LAST_WORDS_S)
        os._exit(1)


def _loaded(plan: bytes, modules: str, imports: tuple[str, ...]) -> JobPlan:
    """:raises UnshippableFunction: when the user's functions need what this worker does not have."""
    if modules and modules not in sys.path and os.path.isdir(modules):
        sys.path.append(modules)  # the same machine, or a shared folder; after what is installed here
    try:
        loaded: JobPlan = load_with_classes(plan)
    except (ImportError, AttributeError) as error:
        lacks = " differs from the driver's"
        if isinstance(error, ModuleNotFoundError):
            others = [name for name in imports if name != error.name and importlib.util.find_spec(name) is None]
            lacks = f" has no module {error.name!r}"
            lacks += f", and of what the program imports not {', '.join(map(repr, others))} either" if others else ""
        raise UnshippableFunction(
            f"an executor cannot load the functions of the job ({type(error).__name__}: {error}): its Python "
            f"({sys.executable} on {socket.gethostname()}){lacks}. What the main program defines is sent along, and modules "
            "beside it; others are shipped with `tidegate run --py-files`, installed packages in an environment with "
            "--archives, or must be installed where the executors run."
        ) from error
    return loaded


class BackgroundThread:
    """Implements ports.Background: jobs in order, on one daemon thread, started when first needed."""

    def __init__(self, name: str, on_failure: Callable[[BaseException], None]) -> None:
        self._name = name
        self._on_failure = on_failure
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            try:
                self._jobs.get()()
            except BaseException as error:
                self._on_failure(error)


def _rows_to_batch(rows: list[Row]) -> pa.RecordBatch:
    receivers, frames = zip(*rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(receivers, pa.int32()), pa.array(frames, pa.binary())], schema=ROW_SCHEMA
    )
