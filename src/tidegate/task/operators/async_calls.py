"""An asynchronous operator: calls to the outside, many at a time, and the order of their answers. Executor; the task's thread.

    process -> AnswerQueue -> ask, in the loop -> letter to the mailbox -> release -> the next operator
                     |                                                         ^
                     +-- snapshot: records without an answer, and answers that have not left

The task's thread never waits for a call. A full queue (`room` is 0) keeps the slot from taking input (task/answers.py), as
missing credit does, so barriers pass. What is in flight is stored with each checkpoint (task/operators/async_state.py), and
what a completed one has an answer of is not asked about again.

Watermarks and IDLE keep their place among the records (protocol/answer_queue.py); the operator's own watermark is the last
that has left. Input ends when all that is in flight has left.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.batch import Batch
from tidegate.errors import ContractError, UnansweredCall
from tidegate.functions.asynchronous import AsyncCalls, AsyncContext, PlainCall, has_batch_form, has_timeout
from tidegate.functions.failed_records import OnError
from tidegate.functions.process import Context
from tidegate.protocol.answer_queue import AnswerQueue, Entry, Fence
from tidegate.protocol.watermarks import IDLE
from tidegate.task.operators.async_state import InFlightRow, InFlightStore
from tidegate.task.operators.base import OperatorFailed, OperatorSnapshot, RunningOperator
from tidegate.task.operators.failing import Failures
from tidegate.task.operators.first_rows import function_line

if TYPE_CHECKING:
    from tidegate.graph.plan import PlannedOperator
    from tidegate.ids import CheckpointId
    from tidegate.task.operators.build import OperatorContext
    from tidegate.types import RecordType
    from tidegate.wire.control import SubtaskRestore

GRACE_S = 5.0  #: after a time-out, for the loop to say so; then it is blocked


@dataclass(eq=False)
class Asked(Entry):
    """A record in flight."""

    value: Any
    timestamp: int | None
    key: Any = None  #: normalised, of a keyed operator
    rows: list[Any] | None = None  #: what leaves for it; None: not answered
    error: Exception | None = None  #: it has failed; a checkpoint has it as not answered
    asked_at: float = float("inf")  #: None has asked yet


class AsyncOperator(RunningOperator):
    """See the module."""

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        calls: AsyncCalls,
        input_type: RecordType,
        store: InFlightStore,
        context: OperatorContext,
    ) -> None:
        super().__init__(planned, subtask)
        self._job = context.job
        self._function = calls.function
        self._settings = calls.settings
        self._store = store
        self.keeper = store.keeper
        self.backend = store.backend
        self._loop = context.calls
        self._wake = context.wake
        self._clock = context.time.clock
        self._queue: AnswerQueue[Asked] = AnswerQueue(calls.settings.ordered)
        self._unasked: deque[Asked] = deque()
        self._calls = 0  #: in the loop
        self._most_calls = max(1, calls.settings.capacity // calls.settings.batch_size)
        # Both are stored with checkpoints: a restore changes neither what is asked about nor what was answered.
        self._copy_in = input_type.settled
        self._copy_out = self.output_type.settled
        self._back: deque[list[Asked]] = deque()  #: answered calls, from the loop
        self._asked: deque[Asked] = deque()  #: those with a time-out, oldest first
        self._opened: asyncio.Future[None] | None = None  #: of the loop
        self._opens_at: float | None = None  #: when it was asked to
        self._open_at: float | None = None  #: when it was open; by the loop
        self._broken: Exception | None = None  #: why it cannot be opened; by the loop
        self._tasks: set[asyncio.Task[None]] = set()  #: of the loop
        self._closed = False
        self._fails = planned.operator.on_error is OnError.FAIL
        self._failures = Failures(self)

    # -- the life -----------------------------------------------------------------------------------------------------

    def open(self, restore: SubtaskRestore | None) -> None:
        super().open(restore)
        self._context = Context(
            self._job, self.uid, self.name, self.subtask, self.parallelism, restored=restore is not None
        )
        self.user_metrics = self._context._metrics
        self._context.gauge("records_in_flight", lambda: len(self._queue))
        self._function.open(self._context)
        for row in self._store.restored():
            entry = Asked(row.value, row.timestamp, row.key, row.rows)
            self._queue.add(entry)
            if row.rows is None:
                self._unasked.append(entry)
            else:
                self._queue.answered(entry)
        self._ask()
        if self._queue.can_leave:
            self._wake()

    def process(self, batch: Batch, input_index: int) -> None:
        rows, stamps = batch.rows(), batch.timestamps
        keys = self._store.keys_of(self, rows)
        for place, value in enumerate(rows):
            entry = Asked(value, None if stamps is None else int(stamps[place]), None if keys is None else keys[place])
            self._queue.add(entry)
            self._unasked.append(entry)
        self._ask()

    def run_watermark(self, watermark: int) -> None:
        if len(self._queue) == 0 and not self._queue.can_leave:
            super().run_watermark(watermark)
        else:
            self._queue.fence(watermark)

    @property
    def room(self) -> int:
        """How many records more may come."""
        return self._settings.capacity - len(self._queue)

    @property
    def is_pending(self) -> bool:
        """Something is in flight, or waits for its turn to leave."""
        return len(self._queue) > 0 or self._queue.can_leave

    def release(self) -> bool:
        """Emit what may leave. Whether there was something."""
        self._take_answers()
        if not self._queue.can_leave:
            return False
        rows: list[Any] = []
        stamps: list[int | None] = []
        for item in self._queue.take():
            if isinstance(item, Fence):
                self._emit(rows, stamps)
                rows, stamps = [], []
                self._pass(item.watermark)
            elif item.error is not None:
                self._failures.note(item.value, item.timestamp, item.error)
            else:
                assert item.rows is not None
                rows += item.rows
                stamps += [item.timestamp] * len(item.rows)
        self._emit(rows, stamps)
        self._ask()
        return True

    def _emit(self, rows: list[Any], stamps: list[int | None]) -> None:
        if rows:
            timestamps = None if None in stamps else np.array(stamps, np.int64)
            self.emit(Batch(self.output_type, rows, timestamps=timestamps))
        self._failures.send()

    def _pass(self, watermark: int) -> None:
        if watermark != IDLE:
            self.watermark = max(self.watermark, watermark)
        self.pass_watermark(watermark)

    def next_time(self) -> float | None:
        """When a call is so late that the loop cannot be running."""
        if self._settings.timeout_s is None:
            return None
        while self._asked and self._asked[0].is_answered:
            self._asked.popleft()
        if not self._asked:
            return None
        since = self._opens_at if self._open_at is None else max(self._asked[0].asked_at, self._open_at)
        assert since is not None
        return since + self._settings.timeout_s + GRACE_S

    def on_time(self) -> None:
        self._take_answers()
        due = self.next_time()
        if due is not None and due <= self._clock():
            raise UnansweredCall(
                f"{self.name} has asked about a record {self._settings.timeout_s} s ago, and not even its time-out came: "
                "something blocks the loop of asynchronous functions. Do not call what blocks in it (time.sleep, requests): "
                "await asyncio.to_thread(function, ...) instead.",
                user_line=function_line(self),
            )

    def snapshot_sync(self, checkpoint: CheckpointId) -> OperatorSnapshot:
        self._take_answers()
        self._store.keep(
            [InFlightRow(each.timestamp, each.value, each.rows, each.key) for each in self._queue.entries()]
        )
        return super().snapshot_sync(checkpoint)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.call(self._close_in_loop)
            self._function.close()

    # -- from the loop to the task's thread -------------------------------------------------------------------------

    def _take_answers(self) -> None:
        """:raises OperatorFailed: for a call that has failed."""
        if self._broken is not None:
            raise OperatorFailed(self, self._broken) from self._broken
        while self._back:
            entries = self._back.popleft()
            self._calls -= 1
            for entry in entries:
                if entry.error is not None and (self._fails or isinstance(entry.error, ContractError)):
                    raise OperatorFailed(self, entry.error) from entry.error
                self._queue.answered(entry)
        self._ask()

    def _ask(self) -> None:
        """As many calls as there may be, each about as many records as wait."""
        groups: list[list[Asked]] = []
        while self._unasked and self._calls < self._most_calls:
            size = min(self._settings.batch_size, len(self._unasked))
            group = [self._unasked.popleft() for _ in range(size)]
            if self._settings.timeout_s is not None:
                now = self._clock()
                for entry in group:
                    entry.asked_at = now
                self._asked += group
            groups.append(group)
            self._calls += 1
        if groups:
            self._opens_at = self._clock() if self._opens_at is None else self._opens_at
            self._loop.call(self._start, groups)

    # -- in the loop --------------------------------------------------------------------------------------------------

    def _start(self, groups: list[list[Asked]]) -> None:
        loop = asyncio.get_running_loop()
        if self._opened is None:
            self._opened = loop.create_task(self._open_in_loop())
        for group in groups:
            task = loop.create_task(self._answer(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open_in_loop(self) -> None:
        """What goes wrong here is not a record's: it fails the job, whatever becomes of records. Their time begins after it."""
        limit = self._settings.timeout_s
        try:
            async with asyncio.timeout(limit) as time:
                await self._function.async_open(self._context)
        except Exception as error:
            self._broken = error
            if isinstance(error, TimeoutError) and time.expired():
                self._broken = UnansweredCall(
                    f"async_open of {self.name} has not come to its end within {limit} s. Give it longer (timeout=).",
                    user_line=function_line(self),
                )
            self._wake()
        self._open_at = self._clock()

    async def _answer(self, entries: list[Asked]) -> None:
        try:
            assert self._opened is not None
            await asyncio.shield(self._opened)
            if self._broken is not None:
                return
            for entry, rows in zip(entries, await self._rows(entries), strict=True):
                entry.rows = rows
        except asyncio.CancelledError:
            if self._closed:
                raise
            entries[0].error = ContractError(
                f"a call of {self.name} was cancelled by its own function", user_line=function_line(self)
            )
        except Exception as error:
            for entry in entries:
                entry.error = error
        self._back.append(entries)
        if len(self._back) == 1:
            self._wake()

    async def _rows(self, entries: list[Asked]) -> list[list[Any]]:
        """What leaves for each of them. :raises Exception: when all attempts have failed, or time is over."""
        stamps, limit = [entry.timestamp for entry in entries], self._settings.timeout_s
        attempt = 0
        try:
            async with asyncio.timeout(limit) as time:
                while True:
                    attempt += 1
                    context = AsyncContext(self._context, stamps, attempt)
                    try:
                        answers = await self._called(entries, context)
                        if self._settings.is_flat:
                            return [list(map(self._copy_out, answer)) for answer in answers]
                        return [[self._copy_out(answer)] for answer in answers]
                    except Exception as error:
                        if not self._settings.retry.is_worth_it(error, attempt):
                            raise
                        await asyncio.sleep(self._settings.retry.pause_s(attempt))
        except TimeoutError:
            if not time.expired():
                raise
        if has_timeout(self._function):
            return [[self._copy_out(self._given_up(each, attempt))] for each in entries]
        raise UnansweredCall(
            f"{self.name} has not answered within {limit} s, in {attempt} attempt{'s' if attempt != 1 else ''}. Give it longer "
            "(timeout=), define timeout(self, value, ctx) to answer in its place, or say on_error= to do without the record.",
            user_line=function_line(self),
        )

    def _given_up(self, entry: Asked, attempts: int) -> Any:
        context = AsyncContext(self._context, [entry.timestamp], attempts)
        return self._function.timeout(self._copy_in(entry.value), context)

    async def _called(self, entries: list[Asked], context: AsyncContext) -> Sequence[Any]:
        if has_batch_form(self._function):
            batch = self._function.async_invoke_batch([self._copy_in(entry.value) for entry in entries], context)
            answers = await self._awaitable(batch)
            if not isinstance(answers, Sequence) or isinstance(answers, (str, bytes)) or len(answers) != len(entries):
                raise ContractError(
                    f"{type(self._function).__name__}.async_invoke_batch must return a list with one answer for each of its "
                    f"{len(entries)} values, not {_described(answers)}",
                    user_line=function_line(self),
                )
            return answers
        value = self._copy_in(entries[0].value)
        function = self._function
        called = function.function(value) if isinstance(function, PlainCall) else function.async_invoke(value, context)
        return [await self._awaitable(called)]

    def _awaitable(self, called: Any) -> Any:
        if not inspect.isawaitable(called):
            raise ContractError(
                f"the function of {self.name} returned a {type(called).__name__}, which cannot be awaited: write `async "
                "def`, or use map for a function that answers at once",
                user_line=function_line(self),
            )
        return called

    def _close_in_loop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._opened is not None:
            self._closing = asyncio.get_running_loop().create_task(self._function.async_close())


def _described(value: Any) -> str:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return f"{len(value)} of them"
    return f"a {type(value).__name__}"
