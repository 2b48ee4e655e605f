"""Windows record by record: any assigner, trigger, evictor and function. Executor; the task's thread.

    record   its windows -> late ones aside -> what the window keeps -> the trigger -> perhaps fire, perhaps purge
             of two inputs: kept with its side, so that one window has the records of both
    timer    the window of its namespace -> the trigger -> perhaps fire, perhaps purge; at its last moment it is dropped

A window of a key is a namespace: what is kept of it, its trigger's state and its timers are filed under it. Sessions move:
what they keep stays in the namespace of the first of them (`Session.kept_in`), so that a session that grows is not copied.

Invariant. A window that is not late has a timer for its last moment, `_last_moment`: when it has fired nothing is left of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.batch import Batch
from tidegate.errors import ContractError
from tidegate.functions.evictors import Timestamped
from tidegate.functions.joins import SIDES
from tidegate.functions.process import OutputTag
from tidegate.functions.triggers import TriggerResult
from tidegate.functions.window_functions import ProcessWindowFunction, WindowBatchFunction, WindowContext
from tidegate.functions.window_joins import PairColumns, sided
from tidegate.functions.windowed import TRIGGER_STATE
from tidegate.functions.windows import GLOBAL_WINDOW, TimeWindow
from tidegate.graph.logical import MAIN_OUTPUT
from tidegate.graph.user_code import mentions
from tidegate.protocol.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tidegate.state.declarations import ABSENT, declared_states
from tidegate.state.folding import merge_namespaces
from tidegate.state.handles import ListHandle
from tidegate.state.heap_tables import NO_KEY
from tidegate.state.timers import Timer
from tidegate.task.operators.base import OperatorFailed, key_place
from tidegate.task.operators.checkpointed import keeper_for
from tidegate.task.operators.event_time_marks import EventTimeMarks
from tidegate.task.operators.fired_windows import Fired, records_of
from tidegate.task.operators.late import LATE_RECORDS, refuse_without_time
from tidegate.task.operators.process import FunctionOperator
from tidegate.task.operators.returned import MANY, check_many
from tidegate.task.operators.sessions_of_keys import Session, Sessions
from tidegate.task.operators.stateless import emit_columns
from tidegate.task.operators.timers import Time, Timers
from tidegate.task.operators.trigger_context import WindowTriggerContext, namespace_of, window_of

if TYPE_CHECKING:
    from tidegate.functions.windowed import Windowed
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.plan import PlannedOperator
    from tidegate.state.backend import KeyedStateBackend
    from tidegate.types import RecordType
    from tidegate.wire.control import SubtaskRestore


class WindowOperator(FunctionOperator):
    """Windows of one keyed input, or of two with keys of one type."""

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        job: str,
        windowed: Windowed,
        backend: KeyedStateBackend,
        keys: tuple[KeySelector, ...],
        input_type: RecordType,
        time: Time,
    ) -> None:
        super().__init__(planned, subtask, job, windowed, backend)
        windowed.hand_out_states()
        self._windowed = windowed
        self._state: Any = windowed  # with its states as attributes, which only its own class declares
        self._assigner, self._trigger = windowed.assigner, windowed.trigger
        self._states = backend
        self._row_keys, self._key_type = [key.row_key() for key in keys], keys[0].key_type()
        self._key_places = [key_place(planned.operator, key) for key in keys]
        self._input_type = input_type
        self._sessions = Sessions(backend, windowed)
        self._timers = Timers(backend, time)
        self._marks = EventTimeMarks(backend.key_groups, planned.max_parallelism)
        self.keeper = keeper_for(self._marks, backend)
        self._late_up_to = MIN_WATERMARK  #: for the key in work
        self._end_timers = self._timers.event if self._assigner.is_event_time else self._timers.processing
        self._trigger_context = WindowTriggerContext(backend, self._timers)
        declared = declared_states(windowed)
        self._defaults = {windowed.__dict__[name]: getattr(each, "default", None) for name, each in declared.items()}
        own = [name for name in declared if name not in ("sessions", "timestamps")]
        #: The states that each window has: what it keeps, and its trigger's.
        self._kept_states = [windowed.__dict__[name] for name in own if not name.startswith(TRIGGER_STATE)]
        self._trigger_states = [windowed.__dict__[name] for name in own if name.startswith(TRIGGER_STATE)]
        if windowed.function is not None and mentions(windowed.function, OutputTag):
            self._look_for_tags = float("inf")
        self._kept_in = GLOBAL_WINDOW  #: of the window that fires
        self._out: list[Any] = []
        self._out_stamps: list[int | None] = []
        self._fired: list[Fired] = []  #: for a function of batches
        self._late: tuple[list[Any], list[int]] = ([], [])

    def open(self, restore: SubtaskRestore | None) -> None:
        if self._assigner.is_event_time:
            self._marks.watermark = self.watermark
        if restore is not None:
            self._timers.watermark = self.watermark
        super().open(restore)

    def _new_context(self, restore: SubtaskRestore | None) -> WindowContext:
        context = WindowContext(
            self._job, self.uid, self.name, self.subtask, self.parallelism, restored=restore is not None
        )
        context._global_state = self._in_global_state
        context._processing_time = self._timers.current_processing_time
        return context

    # -- records -----------------------------------------------------------------------------------------------------

    def process(self, batch: Batch, input_index: int) -> None:
        rows = batch.rows()
        try:
            keys = list(map(self._row_keys[input_index], rows))
            normalised_keys = self._key_type.normalise_many(keys)
        except Exception as error:  # the user's key function, or a key that cannot be one
            raise OperatorFailed(self, error, place=self._key_places[input_index]) from error
        is_of_two = self._windowed.is_of_two
        now = self._timers.current_processing_time()
        if self._assigner.is_event_time:
            if batch.timestamps is None:
                refuse_without_time(self._assigner, f"its {SIDES[input_index]} input" if is_of_two else "this stream")
            times = batch.timestamps.tolist()
        else:
            times = [now] * len(rows)
        has_stamps = batch.timestamps is not None
        stamps = batch.timestamps.tolist() if batch.timestamps is not None else times
        context = self._context
        marks = self._marks.of_keys(self._key_type, normalised_keys)
        given = zip(rows, keys, normalised_keys, times, stamps, marks, strict=True)
        for row, key, normalised, time, stamp, self._late_up_to in given:
            context.key = key
            context._timestamp = stamp if has_stamps else None
            self._timers.key = normalised
            self._states.set_current_key(normalised)
            self._add(row, sided(row, input_index) if is_of_two else row, time, stamp)
        self._leave_key()
        if self.hot_keys is not None:
            self.hot_keys.note(normalised_keys)
        self._flush()
        self._flush_late(input_index)

    def _add(self, row: Any, kept: Any, time: int, stamp: int) -> None:
        """`kept`: the record as windows keep it. `time` is what windows go by, `stamp` the record's own, where it has one."""
        windows = list(self._assigner.assign_windows(row, time))
        is_late = bool(windows)
        for window in windows:
            if self._assigner.merges:
                session = self._session_for(window)
                if session is None:
                    continue
                window, kept_in = session
            elif self._is_late(window):
                continue
            else:
                kept_in = window
            is_late = False
            self._enter(kept_in)
            self._state.contents.add(kept)
            if self._windowed.evictor is not None:
                self._state.timestamps.add(stamp)
            self._enter_trigger(window)
            result = self._trigger.on_element(row, stamp, window, self._trigger_context)
            self._act(result, window, kept_in)
            self._set_last_timer(window)
        if is_late:
            self._late[0].append(row)
            self._late[1].append(time)

    def _is_late(self, window: TimeWindow) -> bool:
        """Nothing is kept of such a window any more."""
        return self._assigner.is_event_time and self._last_moment(window) <= self._late_up_to

    def _last_moment(self, window: TimeWindow) -> int:
        if not self._assigner.is_event_time:
            return window.max_timestamp()
        return min(window.max_timestamp() + self._windowed.lateness_ms, MAX_WATERMARK)

    def _set_last_timer(self, window: TimeWindow) -> None:
        if window != GLOBAL_WINDOW:
            self._end_timers.register(self._timers.key, self._last_moment(window), namespace_of(window))

    def _delete_last_timer(self, window: TimeWindow) -> None:
        self._end_timers.delete(self._timers.key, self._last_moment(window), namespace_of(window))

    def _enter(self, window: TimeWindow) -> None:
        self._states.set_current_namespace(namespace_of(window))

    def _enter_trigger(self, window: TimeWindow) -> None:
        """A trigger's state and timers are those of the window as it is now."""
        self._enter(window)
        self._trigger_context.window = window

    @contextmanager
    def _in_global_state(self) -> Iterator[None]:
        self._states.set_current_namespace(b"")
        try:
            yield
        finally:
            self._enter(self._kept_in)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def _session_for(self, window: TimeWindow) -> Session | None:
        """The session that a record goes into, after those that it joins have become one; None: it is late."""
        known = self._sessions.all()
        joined = [session for session in known if session.window.touches(window)]
        merged = window
        for session in joined:
            merged = merged.cover(session.window)
        if not joined and self._is_late(merged):
            return None
        into = Session(merged, joined[0].kept_in if joined else merged)
        if joined == [into]:
            return into
        self._sessions.set([*(session for session in known if session not in joined), into])
        if joined:
            self._merge(joined, into)
        return into

    def _merge(self, joined: list[Session], into: Session) -> None:
        context = self._trigger_context
        sources = [session.window for session in joined if session.window != into.window]
        context.merged = sources
        if sources:
            for source in sources:
                self._delete_last_timer(source)
            self._enter_trigger(into.window)
            # The triggers' timers go before their states, which may say when those are.
            for source in sources:
                self._enter_trigger(source)
                self._trigger.clear(source, context)
            self._enter_trigger(into.window)
            self._trigger.on_merge(into.window, context)
            for source in sources:
                self._enter(source)
                for handle in self._trigger_states:
                    handle.clear()
        context.merged = []
        moved = [namespace_of(session.kept_in) for session in joined if session.kept_in != into.kept_in]
        target = namespace_of(into.kept_in)
        for handle in self._kept_handles() if moved else ():
            merge_namespaces(self._states, handle, target, moved, default=self._defaults[handle])

    def _kept_handles(self) -> list[Any]:
        """The states of a session's records, which are one after a merge; the trigger has merged its own."""
        return [*self._kept_states, self._state.timestamps] if self._windowed.evictor is not None else self._kept_states

    # -- time --------------------------------------------------------------------------------------------------------

    def on_watermark(self, watermark: int) -> None:
        super().on_watermark(watermark)
        ends_again = watermark == self._timers.watermark == MAX_WATERMARK  # restored from after the end
        self._timers.watermark = watermark
        if self._assigner.is_event_time:
            self._marks.watermark = watermark
        if watermark < MAX_WATERMARK:
            self._run_timers(self._timers.event.due(watermark), "event")
        elif not ends_again:
            self._run_timers(self._timers.event.due_at_the_end(), "event")

    def next_time(self) -> float | None:
        due = self._timers.next_processing_time()
        return None if due is None else due + 0.001

    def on_time(self) -> None:
        # A millisecond is over when the next has come: until then records may still come into a window that ends with it.
        self._run_timers(self._timers.processing.due(self._timers.current_processing_time() - 1), "processing")

    def end_input(self) -> None:
        """What the clock has not closed yet is closed now: no record of a bounded input is left in a window of time."""
        self._run_timers(self._timers.processing.due_at_the_end(), "processing", only_last=True)
        super().end_input()

    def _run_timers(self, due: Iterator[Timer], domain: str, only_last: bool = False) -> None:
        """`only_last`: those of windows' last moments, and no other. The global window, which has none, keeps its timers."""
        context = self._context
        kept: list[Timer] = []
        for time, normalised, namespace in due:
            window = window_of(namespace)
            is_last = (
                window != GLOBAL_WINDOW
                and time == self._last_moment(window)
                and (domain == "event") == self._assigner.is_event_time
            )
            if only_last and not is_last:
                if window == GLOBAL_WINDOW:
                    kept.append(Timer(time, normalised, namespace))
                continue
            self._timers.key = normalised
            context.key = self._key_type.denormalise(normalised)
            context._timestamp = time if domain == "event" else None
            context.time_domain = domain
            kept_in = window
            if self._assigner.merges:
                session = self._sessions.at(window)
                if session is None:
                    continue  # a timer of a session that has become another one
                kept_in = session.kept_in
            self._enter_trigger(window)
            if domain == "event":
                result = self._trigger.on_event_time(time, window, self._trigger_context)
            else:
                result = self._trigger.on_processing_time(time, window, self._trigger_context)
            self._act(result, window, kept_in)
            if is_last:
                self._drop(window, kept_in)
        for time, normalised, namespace in kept:
            self._timers.processing.register(normalised, time, namespace)
        context.time_domain = None
        self._leave_key()
        self._flush()

    # -- firing ------------------------------------------------------------------------------------------------------

    def _act(self, result: TriggerResult, window: TimeWindow, kept_in: TimeWindow) -> None:
        if result is TriggerResult.CONTINUE:
            return
        if not isinstance(result, TriggerResult):
            raise ContractError(
                f"{type(self._trigger).__name__} gave {result!r}: a trigger gives tg.TriggerResult.CONTINUE, FIRE, PURGE or "
                "FIRE_AND_PURGE"
            )
        self._enter(kept_in)
        self._kept_in = kept_in
        if result.fires:
            self._fire(window)
        if result.purges:
            self._clear_contents()

    def _fire(self, window: TimeWindow) -> None:
        windowed = self._windowed
        elements = self._elements(window)
        if not elements:
            return
        function = windowed.function
        context = self._context
        assert isinstance(context, WindowContext)
        context.window, own_timestamp = window, context._timestamp
        if window != GLOBAL_WINDOW:
            context._timestamp = window.max_timestamp() if self._assigner.is_event_time else None
        if isinstance(function, WindowBatchFunction | PairColumns):
            self._fired.append(Fired(window, elements))
        elif function is None:
            self._emit_later(elements, context._timestamp)
        else:
            result = function.process(context.key, context, elements)
            if result is not None:
                if type(result) not in MANY:
                    check_many(result, self, f"{type(function).__name__}.process")
                self._emit_later(list(result), context._timestamp)
        context._timestamp = own_timestamp

    def _elements(self, window: TimeWindow) -> list[Any]:
        """What the window's function is given: its records, or the one value that they have become."""
        contents, evictor = self._state.contents, self._windowed.evictor
        if not isinstance(contents, ListHandle):
            return [] if contents.stored() is ABSENT else [contents.get()]
        rows = contents.get()
        if evictor is None:
            return rows
        stamped = list(map(Timestamped, rows, self._state.timestamps.get()))
        before = evictor.evict_before(stamped, window)
        after = evictor.evict_after(before, window)
        contents.set([each.value for each in after])
        self._state.timestamps.set([each.timestamp for each in after])
        given = [each.value for each in before]
        return [self._windowed.fold(given)] if given and self._windowed.fold is not None else given

    def _clear_contents(self) -> None:
        self._state.contents.clear()
        if self._windowed.evictor is not None:
            self._state.timestamps.clear()

    def _drop(self, window: TimeWindow, kept_in: TimeWindow) -> None:
        """Nothing is left of the window."""
        function = self._windowed.function
        self._enter_trigger(window)
        self._trigger.clear(window, self._trigger_context)
        for handle in self._trigger_states:
            handle.clear()
        self._enter(kept_in)
        if isinstance(function, ProcessWindowFunction):
            assert isinstance(self._context, WindowContext)
            self._context.window, self._kept_in = window, kept_in
            function.clear(self._context)
        for handle in self._kept_handles():
            handle.clear()
        if self._assigner.merges:
            self._sessions.drop(window)

    # -- what goes out -----------------------------------------------------------------------------------------------

    def _emit_later(self, rows: list[Any], stamp: int | None) -> None:
        self._out += rows if self.copy is None else map(self.copy, rows)
        self._out_stamps += [stamp] * (len(self._out) - len(self._out_stamps))

    def _flush(self) -> None:
        rows, stamps = self._out, self._out_stamps
        if self._look_for_tags > 0:
            places = list(range(len(rows)))
            known = [0 if stamp is None else stamp for stamp in stamps]
            rows, places = self._without_tagged(rows, places, known)
            stamps = [stamps[place] for place in places]
        if rows:
            timestamps = None if None in stamps else np.array(stamps, np.int64)
            self.emit(Batch(self.output_type, rows, timestamps=timestamps))
        self._out, self._out_stamps = [], []
        if self._fired:
            self._flush_fired()
        self._flush_side()

    def _flush_fired(self) -> None:
        """All windows that have fired together, for a function that takes them at once."""
        fired, self._fired = self._fired, []
        function = self._windowed.function
        if isinstance(function, PairColumns):
            columns = function.columns(fired)
            stamps = columns.column("window_end").to_numpy() - 1 if self._assigner.is_event_time else None
            self.emit(Batch(self.output_type, columns=columns, timestamps=stamps))
        else:
            assert isinstance(function, WindowBatchFunction)
            emit_columns(self, function.process_batch(records_of(fired, self._input_type), self._context))

    def _flush_late(self, input_index: int) -> None:
        (rows, times), self._late = self._late, ([], [])
        if not rows:
            return
        tag = self._windowed.late_tags[input_index]
        if tag in self.planned.operator.outputs and tag != MAIN_OUTPUT:
            late = Batch(self.planned.operator.outputs[tag], rows, timestamps=np.array(times, np.int64))
            self.emit_to(tag, late)
        else:
            self._context.counter(LATE_RECORDS).inc(len(rows))

    def _leave_key(self) -> None:
        self._states.clear_current_key()
        self._timers.key = NO_KEY
        self._context.key = None
        self._context._timestamp = None
