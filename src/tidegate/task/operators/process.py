"""Process functions: plain, keyed, with two inputs, and keyed over batches. Executor; the task's thread.

What a function emits for a record inherits the record's timestamp; what it emits for a timer has the timer's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import count, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.errors import ContractError
from tidegate.functions.process import Context, OutputTag, has_timers
from tidegate.graph.user_code import check_own_states, is_users, mentions
from tidegate.protocol.watermarks import MAX_WATERMARK
from tidegate.state.backend import bind_states
from tidegate.state.declarations import declared_states
from tidegate.state.heap_tables import NO_KEY
from tidegate.state.timers import LONGEST_CHAIN, Timer
from tidegate.task.operators.base import OperatorFailed, RunningOperator, key_place
from tidegate.task.operators.checkpointed import keeper_for
from tidegate.task.operators.column_keys import key_arrays
from tidegate.task.operators.first_rows import FIRST_ROWS, function_line, is_tagged
from tidegate.task.operators.record_loops import RecordLoops
from tidegate.task.operators.returned import MANY, check_many
from tidegate.task.operators.stateless import emit_columns
from tidegate.task.operators.timers import Time, Timers

if TYPE_CHECKING:
    from tidegate.graph.function_text import FunctionText
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.plan import PlannedOperator
    from tidegate.state.backend import KeyedStateBackend
    from tidegate.wire.control import SubtaskRestore
log = logging.getLogger("tidegate.task")

Hook = Callable[[Any, Any], Any]
_HOOKS = ("process_element1", "process_element2")  #: by input, where there are two

WORTH_A_LOOP = 16  #: records of a batch; to begin a loop takes as long as to call a function for about so many
CLEAN_UP_PAUSE_S = 1.0  #: between two looks for expired state, beside those that follow each frame
CLEAN_UP_BUSY_PAUSE_S = 0.02  #: while there is some
CLEAN_UP_ENTRIES = 2048  #: about a millisecond


class FunctionOperator(RunningOperator):
    """A user's function object: its context, its side outputs, its hooks."""

    columnar = False  #: whether batch access to state is the common case

    def __init__(
        self, planned: PlannedOperator, subtask: int, job: str, function: Any, backend: KeyedStateBackend | None
    ) -> None:
        super().__init__(planned, subtask)
        self._function = function
        self.guards: dict[str, Hook] = {}  #: called for a record in place of the function's own hook of that name
        self.backend = backend
        self._job = job
        self._side: dict[str, tuple[list[Any], list[int | None]]] = {}  #: records and their timestamps, by tag
        self._context: Context
        self.keeper = keeper_for(function, backend)
        # Where nothing speaks of a side output, the first rows are looked at all the same; then it costs nothing.
        speaks_of_tags = len(planned.operator.outputs) > 1 or mentions(function, OutputTag)
        self._look_for_tags: float = float("inf") if speaks_of_tags else FIRST_ROWS  #: in so many more rows
        if backend is not None:
            bind_states(function, backend, self.columnar)

    def _hook(self, name: str) -> Hook:
        """What the operator calls for a record; what the function calls of its own is its own."""
        return self.guards.get(name) or getattr(self._function, name)

    def open(self, restore: SubtaskRestore | None) -> None:
        self._context = self._new_context(restore)
        self._context._emit_side = self._collect_side
        self.user_metrics = self._context._metrics
        self._context.current_watermark = self.watermark
        super().open(restore)
        self._function.open(self._context)
        check_own_states(self._function, "open")

    def _new_context(self, restore: SubtaskRestore | None) -> Context:
        return Context(self._job, self.uid, self.name, self.subtask, self.parallelism, restored=restore is not None)

    def on_watermark(self, watermark: int) -> None:
        self._context.current_watermark = watermark

    def end_input(self) -> None:
        result = self._function.end_input(self._context)
        if isinstance(result, (pa.RecordBatch, pa.Table)):
            emit_columns(self, result)
        else:
            self._emit_rows(result)
        self._flush_side()

    def close(self) -> None:
        self._function.close()

    def _emit_rows(self, result: Iterable[Any] | None) -> None:
        if result is None:
            return
        if type(result) not in MANY:
            check_many(result, self, self._named("end_input"))
        rows = list(result if self.copy is None else map(self.copy, result))
        if self._look_for_tags > 0:
            rows, _ = self._without_tagged(rows, [], None)
        if rows:
            self.emit(Batch(self.output_type, rows))

    def _named(self, method: str) -> str:
        owner = type(self._function)
        return f"{owner.__name__}.{method}" if is_users(getattr(owner, method)) else owner.__name__

    def _without_tagged(self, rows: list[Any], places: list[int], stamps: Any) -> tuple[list[Any], list[int]]:
        """PyFlink's `yield tag, value` is a record of a side output, as `ctx.output(tag, value)` is: no stream holds tags.

        :param stamps: the timestamp of each place; or of all rows, where there are no places; None: they have none.
        """
        self._look_for_tags -= len(rows)
        if not any(map(is_tagged, rows)):
            return rows, places
        self._look_for_tags = float("inf")
        for at, row in enumerate(rows):
            if is_tagged(row):
                stamp = stamps if stamps is None or not places else int(stamps[places[at]])
                self._collect_side(row[0].name, row[1], stamp)
        kept = [at for at, row in enumerate(rows) if not is_tagged(row)]
        return [rows[at] for at in kept], [places[at] for at in kept] if places else places

    def _run_plain(self, batch: Batch, process_element: Hook, context: Context) -> None:
        """Every record, without a key."""
        stamps, copy = batch.timestamps, self.copy
        out: list[Any] = []
        places: list[int] = []
        for place, row in enumerate(batch.rows()):
            if stamps is not None:
                context._timestamp = int(stamps[place])
            result = process_element(row, context)
            if result is not None:
                if type(result) not in MANY:
                    check_many(result, self, self._named(process_element.__name__))
                out.extend(result if copy is None else map(copy, result))
                if stamps is not None:
                    places.extend(repeat(place, len(out) - len(places)))
        context._timestamp = None
        if self._look_for_tags > 0:
            out, places = self._without_tagged(out, places, stamps)
        if out:
            self.emit(batch.pick(places, out, self.output_type))
        self._flush_side()

    def _collect_side(self, tag: str, value: Any, timestamp: int | None) -> None:
        rows, stamps = self._side.setdefault(tag, ([], []))
        copy = self.copiers.get(tag)
        rows.append(value if copy is None else copy(value))
        stamps.append(timestamp)

    def _flush_side(self) -> None:
        if not self._side:
            return
        for tag, (rows, stamps) in self._side.items():
            record_type = self.planned.operator.outputs.get(tag)
            if record_type is None:
                raise ContractError(
                    f"{self.name} emits to the side output {tag!r}, but nothing reads it: "
                    f"call .side_output(tag) on its stream, with the same tag",
                    user_line=function_line(self),
                )
            timestamps = None if None in stamps else np.array(stamps, np.int64)
            self.emit_to(tag, Batch(record_type, rows, timestamps=timestamps))
        self._side = {}


class ProcessOperator(FunctionOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, job: str, function: Any) -> None:
        super().__init__(planned, subtask, job, function, None)

    def process(self, batch: Batch, input_index: int) -> None:
        self._run_plain(batch, self._hook("process_element"), self._context)


class KeyedProcessOperator(FunctionOperator):
    """One keyed input, or two that share their keys' state. Timers, where the function defines on_timer."""

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        job: str,
        function: Any,
        backend: KeyedStateBackend,
        keys: tuple[KeySelector, ...],
        time: Time,
        text: FunctionText | None = None,
    ) -> None:
        super().__init__(planned, subtask, job, function, backend)
        self._keyed_backend = backend
        access = backend.direct() if text is not None else None
        self._loops: RecordLoops | None = None  #: where the function could be written into one
        if text is not None and access is not None:
            self._loops = RecordLoops(self, function, text, keys[0], access)
        self._inputs = [(key.row_key(), key.key_type().normalise_many) for key in keys]
        self._key_places = [key_place(planned.operator, key) for key in keys]
        self._denormalise = keys[0].key_type().denormalise
        self._time = time
        self._expires = any(declaration.ttl is not None for declaration in declared_states(function).values())
        self._clean_up_at = time.clock() + CLEAN_UP_PAUSE_S
        self._timers: Timers | None = None
        if has_timers(function):
            self._timers = Timers(backend, time)

    def open(self, restore: SubtaskRestore | None) -> None:
        if self._timers is not None and restore is not None:
            self._timers.watermark = self.watermark
        super().open(restore)
        self._context._timers = self._timers

    def process(self, batch: Batch, input_index: int) -> None:
        if self._loops is None or len(batch) < WORTH_A_LOOP or not self._process_in_a_loop(self._loops, batch):
            self._process_each(batch, input_index)

    def _process_in_a_loop(self, loops: RecordLoops, batch: Batch) -> bool:
        try:
            keys = loops.keys_of(batch)
            normalised = self._inputs[0][1](keys)
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self, error, place=self._key_places[0]) from error
        emitted = loops.run(batch, keys, normalised, self._timers)
        if emitted is None:
            return False
        self._leave_key()
        if self._look_for_tags > 0 and emitted.may_hold_tags:
            rows, places = self._without_tagged(emitted.take_rows(), emitted.places, batch.timestamps)
            emitted.rows, emitted.places = rows, places
        if self.hot_keys is not None:
            self.hot_keys.note(normalised)
        made = emitted.batch()
        if made is not None:
            self.emit(made)
        self._flush_side()
        return True

    def _process_each(self, batch: Batch, input_index: int) -> None:
        process_element = self._hook("process_element" if len(self._inputs) == 1 else _HOOKS[input_index])
        row_key, normalise_many = self._inputs[input_index]
        context, set_current_key, timers = self._context, self._keyed_backend.set_current_key, self._timers
        stamps, copy = batch.timestamps, self.copy
        out: list[Any] = []
        places: list[int] = []
        rows = batch.rows()
        # All at once, before the function sees (and may change) any of the records; checked here, at every parallelism.
        try:
            keys = list(map(row_key, rows))
            normalised_keys = normalise_many(keys)
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self, error, place=self._key_places[input_index]) from error
        self._keyed_backend.expect(normalised_keys)
        for place, row, key, normalised in zip(count(), rows, keys, normalised_keys):
            context.key = key
            set_current_key(normalised)
            if timers is not None:
                timers.key = normalised
            if stamps is not None:
                context._timestamp = int(stamps[place])
            result = process_element(row, context)
            if result is not None:
                if type(result) not in MANY:
                    check_many(result, self, self._named(process_element.__name__))
                out.extend(result if copy is None else map(copy, result))
                if stamps is not None:
                    places.extend(repeat(place, len(out) - len(places)))
        self._leave_key()
        if self._look_for_tags > 0:
            out, places = self._without_tagged(out, places, stamps)
        if self.hot_keys is not None:
            self.hot_keys.note(normalised_keys)
        if out:
            self.emit(batch.pick(places, out, self.output_type))
        self._flush_side()

    def on_watermark(self, watermark: int) -> None:
        super().on_watermark(watermark)
        if self._timers is not None:
            ends_again = watermark == self._timers.watermark == MAX_WATERMARK  # restored from after the end
            self._timers.watermark = watermark
            if watermark < MAX_WATERMARK:
                self._fire(self._timers.event.due(watermark), "event")
            elif not ends_again:
                self._fire(self._timers.event.due_at_the_end(), "event")
                self._tell_of_timers_left()

    def next_time(self) -> float | None:
        timer = None if self._timers is None else self._timers.next_processing_time()
        if not self._expires:
            return timer
        return self._clean_up_at if timer is None else min(timer, self._clean_up_at)

    def on_time(self) -> None:
        if self._timers is not None:
            self._fire(self._timers.processing.due(self._time.now_ms()), "processing")
        if self._expires and self._clean_up_at <= (now := self._time.clock()):
            # Also while no record comes: what has expired must not stay for ever in a stream that has fallen silent.
            forgotten = self._keyed_backend.clean_up(CLEAN_UP_ENTRIES)
            self._clean_up_at = now + (CLEAN_UP_BUSY_PAUSE_S if forgotten else CLEAN_UP_PAUSE_S)

    def _tell_of_timers_left(self) -> None:
        assert self._timers is not None
        left = self._timers.event.next_timestamp()
        if left is not None:
            log.warning(
                "%s, at %s: input has ended, and on_timer keeps setting event-time timers. After %d in a row they are left "
                "set and do not fire (the next was for %d). A periodic timer can end by itself: set the next one only "
                "where ctx.current_watermark < tg.MAX_WATERMARK",
                self.planned.operator,
                self.planned.operator.line,
                LONGEST_CHAIN,
                left,
            )

    def _fire(self, due: Iterator[Timer], domain: str) -> None:
        assert self._timers is not None
        context = self._context
        for timestamp, normalised, _ in due:
            self._timers.key = normalised
            context.key = self._denormalise(normalised)
            context._timestamp = timestamp
            context.time_domain = domain
            result = self._function.on_timer(timestamp, context)
            if result is not None:
                if type(result) not in MANY:
                    check_many(result, self, self._named("on_timer"))
                rows = list(result if self.copy is None else map(self.copy, result))
                if self._look_for_tags > 0:
                    rows, _ = self._without_tagged(rows, [], timestamp if domain == "event" else None)
                if rows:
                    stamps = np.full(len(rows), timestamp, np.int64) if domain == "event" else None
                    self.emit(Batch(self.output_type, rows, timestamps=stamps))
        context.time_domain = None
        self._leave_key()
        self._flush_side()

    def _leave_key(self) -> None:
        self._keyed_backend.clear_current_key()
        if self._timers is not None:
            self._timers.key = NO_KEY
        self._context.key = None
        self._context._timestamp = None


class KeyedBatchOperator(FunctionOperator):
    columnar = True

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        job: str,
        function: Any,
        backend: KeyedStateBackend,
        key: KeySelector,
    ) -> None:
        super().__init__(planned, subtask, job, function, backend)
        self._key = key
        self._key_type = key.key_type()
        self._key_place = key_place(planned.operator, key)

    def process(self, batch: Batch, input_index: int) -> None:
        try:
            keys = self._key.key_column(batch)
            parts = [(None, keys)] if keys is not None else list(key_arrays(self._key_type, self._key.keys_of(batch)))
        except Exception as error:
            raise OperatorFailed(self, error, place=self._key_place) from error
        for places, column in parts:
            self._process(column, batch if places is None else batch.take(places))

    def _process(self, keys: pa.Array, batch: Batch) -> None:
        if self.hot_keys is not None:
            self.hot_keys.note_column(keys)
        result = self._function.process_batch(keys, batch.columns(), self._context)
        same_rows = isinstance(result, pa.RecordBatch) and result.num_rows == len(batch)
        emit_columns(self, result, batch.timestamps if same_rows else None)
        self._flush_side()


class CoProcessOperator(FunctionOperator):
    """Two inputs without keys."""

    def process(self, batch: Batch, input_index: int) -> None:
        self._run_plain(batch, self._hook(_HOOKS[input_index]), self._context)
