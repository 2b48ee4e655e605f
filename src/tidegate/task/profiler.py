"""A sampling profiler of one slot: where the task's thread is, looked at from another thread. Executor.

It runs only while somebody looks: an order (SampleStacks) starts it, a newer one prolongs it, and it ends by itself. A sample
is the stack of the task's thread, folded at once: equal stacks are counted, and what is counted is sent about once a second.
The task's thread does nothing for it; it waits for as long as the sampler holds the GIL to walk up its stack.

A surprise here ends the sampling of this process, is logged once, and changes nothing for the job.

Bias, to be known when one reads the result: a sample is taken when the task's thread lets go of the GIL. Python code does so
anywhere; a call into C that keeps the GIL is seen at the line that made it, right after it has returned.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

from tidegate.task import operators
from tidegate.task.code_owners import owner_of
from tidegate.task.logs import operator_on_stack
from tidegate.wire.control import CodeLine, Sampled, SampledStack, SampleStacks

log = logging.getLogger("tidegate.task")

MAX_SECONDS = 300.0  #: of one order
MAX_PER_S = 200.0
MAX_DEPTH = 120  #: calls of one stack; of a deeper one the outermost are left out
MAX_STACKS = 500  #: different ones between two messages
MAX_LINES = 5_000
SEND_S = 1.0
LOOK_S = (
    0.001  #: right before a sample. What the thread has computed since the last one says nothing of where it is now
)
ON_CPU = 0.25  #: of that time; with less the thread was waiting. A loaded machine takes some of it, too

_OPERATORS = os.path.dirname(os.path.abspath(str(operators.__file__))) + os.sep


class FoldedStacks:
    """Samples since the last message. Used by one thread."""

    def __init__(self) -> None:
        self._described: list[CodeLine] = []
        self._lines: dict[tuple[CodeType, int], int] = {}  #: number of each in `_described`
        self._places: dict[tuple[CodeType, int], int] = {}  #: the same by instruction: to find its line takes a while
        self._counts: dict[tuple[str, tuple[int, ...]], list[int]] = {}  #: all samples, and those on the CPU

    def add(self, frame: FrameType | None, on_cpu: bool) -> None:
        """One stack, given by its innermost frame."""
        uid, numbers = "", []
        for _ in range(MAX_DEPTH):
            if frame is None:
                break
            code = frame.f_code
            numbers.append(self._number(code, frame))
            if not uid and code.co_filename.startswith(_OPERATORS):
                operator = operator_on_stack(frame)
                uid = "" if operator is None else operator.uid
            frame = frame.f_back
        stack = (uid, tuple(reversed(numbers)))
        counted = self._counts.get(stack)
        if counted is None:
            if len(self._counts) >= MAX_STACKS or len(self._described) >= MAX_LINES:
                return  # a profile is a sample anyway; the next message begins with empty tables
            counted = self._counts[stack] = [0, 0]
        counted[0] += 1
        counted[1] += on_cpu

    def take(self) -> Sampled:
        """What was counted; from here on it is counted anew."""
        stacks = [
            SampledStack(uid, list(numbers), samples, on_cpu)
            for (uid, numbers), (samples, on_cpu) in self._counts.items()
        ]
        taken = Sampled(self._described, stacks)
        self._described, self._lines, self._places, self._counts = [], {}, {}, {}
        return taken

    def _number(self, code: CodeType, frame: FrameType) -> int:
        number = self._places.get((code, frame.f_lasti))
        if number is None:
            line = frame.f_lineno or 0
            number = self._lines.setdefault((code, line), len(self._described))
            if number == len(self._described):
                file = code.co_filename
                self._described.append(CodeLine(code.co_qualname, file, line, owner_of(file).value))
            self._places[code, frame.f_lasti] = number
        return number


class StackSampler:
    """Samples one thread on request. `order` is called by the control thread."""

    def __init__(
        self,
        thread: int,
        send: Callable[[Sampled], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._target = thread  #: as threading.get_ident() says
        self._send = send
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._until = 0.0
        self._interval_s = 0.0
        self._is_running = False
        self._has_failed = False

    def order(self, order: SampleStacks) -> None:
        with self._lock:
            self._until = self._clock() + min(order.seconds, MAX_SECONDS)
            self._interval_s = 1.0 / min(max(order.per_s, 1.0), MAX_PER_S)
            if not self._is_running and not self._has_failed:
                self._is_running = True
                threading.Thread(target=self._run, name="tidegate-profiler", daemon=True).start()

    def _run(self) -> None:
        try:
            self._sample()
        except Exception:
            self._has_failed = True
            log.exception("the profiler failed and is not started again; the job continues")

    def _continues(self) -> bool:
        """Decided under the lock: an order that comes now prolongs this run, or starts another."""
        with self._lock:
            self._is_running = self._clock() < self._until
            return self._is_running

    def _sample(self) -> None:
        folded = FoldedStacks()
        cpu_s = _cpu_clock_of(self._target)
        sent = self._clock()
        while self._continues():
            # Never in step with what the job itself does at a fixed pace.
            self._sleep(self._interval_s * random.uniform(0.5, 1.5))
            began, used = self._clock(), cpu_s()
            self._sleep(LOOK_S)
            frame = sys._current_frames().get(self._target)
            if frame is None:
                return  # the thread has ended
            now = self._clock()
            folded.add(frame, cpu_s() - used >= ON_CPU * (now - began))
            del frame  # it would keep alive what the task's thread has let go
            if now - sent >= SEND_S:
                self._send(folded.take())
                sent = now
        self._send(folded.take())


def _cpu_clock_of(thread: int) -> Callable[[], float]:
    """Seconds that a thread has computed. Where the system does not tell (macOS), every sample counts as computing."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic
    clock = time.pthread_getcpuclockid(thread)
    return lambda: time.clock_gettime(clock)
