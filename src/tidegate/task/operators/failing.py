"""Functions whose failures are not the job's: on_error="skip" and "dead-letter". Executor; the task's thread.

Caught is what the user's function raises for one record that the operator has given it, also while what it returned is worked
out. Tidegate's own errors, and what comes from timers, hooks and watermarks, fail the job as ever. What a failing call had
emitted is dropped; what it did to state stays (functions/failed_records.py).
"""

from __future__ import annotations

import functools
import logging
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tidegate.batch import Batch
from tidegate.errors import TidegateError
from tidegate.functions.failed_records import DEAD_LETTERS, FAILED_RECORDS, FailedRecord, OnError
from tidegate.functions.user_metrics import UserMetrics
from tidegate.graph import specs
from tidegate.shown import shown_error, shown_message, shown_text
from tidegate.task.operators.base import RunningOperator
from tidegate.task.operators.checkpointed import keeper_for
from tidegate.task.operators.process import FunctionOperator, Hook
from tidegate.task.operators.returned import MANY, check_many
from tidegate.types.copying import copy_record

if TYPE_CHECKING:
    from tidegate.graph.plan import PlannedOperator
    from tidegate.types import RecordType
    from tidegate.types.copying import Copier

log = logging.getLogger("tidegate.task")

HOOKS = ("process_element", "process_element1", "process_element2", "process_broadcast_element")
OF_THE_FIRST_INPUT = ("process_element", "process_element1")


class Failures:
    """Of one operator: counts, and the letters that have not been sent."""

    def __init__(self, operator: RunningOperator) -> None:
        self._operator = operator
        self._keeps = operator.planned.operator.on_error is OnError.DEAD_LETTER
        self._letters: list[FailedRecord] = []
        self._told = False

    def note(self, record: Any, timestamp: int | None, error: Exception) -> None:
        operator = self._operator
        if operator.user_metrics is None:
            operator.user_metrics = UserMetrics()
        operator.user_metrics.counter(FAILED_RECORDS).inc()
        if not self._told:
            self._told = True
            log.warning(
                "%s, at %s: %s. Such records are %s, as on_error= says, and counted as %s; this is said once",
                operator.name,
                operator.planned.operator.line,
                shown_error(error),
                "dead letters" if self._keeps else "skipped",
                FAILED_RECORDS,
            )
        if self._keeps:
            trace = shown_text("".join(traceback.format_exception(error)[-10:]))
            kind = f"{type(error).__module__}.{type(error).__qualname__}".removeprefix("builtins.")
            message = shown_message(error)
            self._letters.append(FailedRecord(record, timestamp, operator.name, operator.uid, kind, message, trace))

    def send(self) -> None:
        """Before what comes after the records that failed."""
        if self._letters:
            letters, self._letters = self._letters, []
            stamps = [letter.timestamp for letter in letters]
            timestamps = None if None in stamps else np.array(stamps, np.int64)
            record_type = self._operator.planned.operator.outputs[DEAD_LETTERS]
            self._operator.emit_to(DEAD_LETTERS, Batch(record_type, letters, timestamps=timestamps))


def own_copies(operator: PlannedOperator, copier: Copier | None) -> Copier | None:
    """How a record is kept as it came, where a function may change it and somebody wants to see it."""
    return copier if operator.operator.on_error is OnError.DEAD_LETTER else None


class OneByOneOperator(RunningOperator):
    """map, flat_map and filter of a function that is not a process function, record by record."""

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        spec: specs.MapSpec | specs.FlatMapSpec | specs.FilterSpec,
        taken: RecordType,
    ) -> None:
        super().__init__(planned, subtask)
        self._failures = Failures(self)
        self._keep = own_copies(planned, taken.copier())
        self._call: Callable[[Any], list[Any]]
        function = spec.function
        self.keeper = keeper_for(function)
        match spec:
            case specs.MapSpec():
                self._call = lambda row: [function(row)]
            case specs.FilterSpec():
                self._call = lambda row: [row] if function(row) else []
            case specs.FlatMapSpec():
                self._call = lambda row: self._many(function(row))

    def _many(self, result: Any) -> list[Any]:
        if result is None:
            return []
        if type(result) not in MANY:
            check_many(result, self, "flat_map's function")
        return list(result)

    def process(self, batch: Batch, input_index: int) -> None:
        call, copy, keep = self._call, self.copy, self._keep
        stamps = batch.timestamps
        out: list[Any] = []
        places: list[int] = []
        for place, row in enumerate(batch.rows()):
            kept = row if keep is None else keep(row)
            try:
                rows = call(row)
            except TidegateError:
                raise
            except Exception as error:
                self._failures.note(kept, None if stamps is None else int(stamps[place]), error)
                continue
            out.extend(rows if copy is None else map(copy, rows))
            places.extend([place] * len(rows))
        if out:
            self.emit(batch.pick(places, out, self.output_type))
        self._failures.send()


def guard(operator: FunctionOperator, taken: RecordType) -> None:
    """From here on what its function raises for a record fails that record alone. `taken`: the type of its first input."""
    failures = Failures(operator)
    for name in HOOKS:
        hook = getattr(operator._function, name, None)
        if hook is not None:
            copier = taken.copier() if name in OF_THE_FIRST_INPUT else copy_record
            operator.guards[name] = _guarded(hook, operator, failures, own_copies(operator.planned, copier))


def _guarded(hook: Hook, operator: FunctionOperator, failures: Failures, keep: Copier | None) -> Hook:
    @functools.wraps(hook)
    def guarded(value: Any, ctx: Any) -> Any:
        kept = value if keep is None else keep(value)
        before = {tag: len(rows) for tag, (rows, _) in operator._side.items()}
        try:
            result = hook(value, ctx)
            if result is None:
                return None
            if type(result) not in MANY:
                check_many(result, operator, operator._named(hook.__name__))
            return list(result)  # here, because it may be worked out only now
        except TidegateError:
            raise
        except Exception as error:
            for tag, (rows, stamps) in list(operator._side.items()):
                stop = before.get(tag, 0)
                del rows[stop:], stamps[stop:]
                if not rows:
                    del operator._side[tag]
            failures.note(kept, ctx._timestamp, error)
            failures.send()
            return None

    return guarded
