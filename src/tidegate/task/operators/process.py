"""Process functions: plain, keyed, with two inputs, and keyed over batches. Executor; the task's thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.api.functions import Context
from tidegate.batch import Batch
from tidegate.state.backend import bind_states
from tidegate.task.operators.base import RunningOperator, check_iterable
from tidegate.task.operators.stateless import emit_columns

if TYPE_CHECKING:
    from tidegate.graph.plan import PlannedOperator
    from tidegate.state.backend import KeyedStateBackend
    from tidegate.state.key_selector import KeySelector
    from tidegate.wire.control import SubtaskRestore


class _FunctionOperator(RunningOperator):
    """A user's function object: its context, its side outputs, its hooks."""

    columnar = False  #: whether batch access to state is the common case

    def __init__(
        self, planned: PlannedOperator, subtask: int, job: str, function: Any, backend: KeyedStateBackend | None
    ) -> None:
        super().__init__(planned, subtask)
        self._function = function
        self.backend = backend
        self._job = job
        self._side: dict[str, list[Any]] = {}
        self._context: Context
        if backend is not None:
            bind_states(function, backend, self.columnar)

    def open(self, restore: SubtaskRestore | None) -> None:
        self._context = Context(
            self._job, self.uid, self.name, self.subtask, self.parallelism, restored=restore is not None
        )
        self._context._emit_side = self._collect_side
        self._function.open(self._context)

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
        check_iterable(result, f"{type(self._function).__name__}")
        rows = list(result)
        if rows:
            self.emit(Batch(self.output_type, rows))

    def _collect_side(self, tag: str, value: Any) -> None:
        self._side.setdefault(tag, []).append(value)

    def _flush_side(self) -> None:
        if not self._side:
            return
        for tag, rows in self._side.items():
            record_type = self.planned.operator.outputs.get(tag)
            if record_type is None:
                raise KeyError(
                    f"{self.name} emits to the side output {tag!r}, but nothing reads it: "
                    f"call .side_output(tag) on its stream, with the same tag"
                )
            self.emit_to(tag, Batch(record_type, rows))
        self._side = {}


class ProcessOperator(_FunctionOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, job: str, function: Any) -> None:
        super().__init__(planned, subtask, job, function, None)

    def process(self, batch: Batch, input_index: int) -> None:
        process_element, context = self._function.process_element, self._context
        out: list[Any] = []
        for row in batch.rows():
            result = process_element(row, context)
            if result is not None:
                check_iterable(result, "process_element")
                out.extend(result)
        if out:
            self.emit(Batch(self.output_type, out))
        self._flush_side()


class KeyedProcessOperator(_FunctionOperator):
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
        self._row_key = key.row_key()
        self._normalise = key.key_type().normalise

    def process(self, batch: Batch, input_index: int) -> None:
        self._run_rows(batch, self._function.process_element, self._row_key, self._normalise)

    def _run_rows(
        self,
        batch: Batch,
        process_element: Callable[[Any, Context], Any],
        row_key: Callable[[Any], Any],
        normalise: Callable[[Any], Any],
    ) -> None:
        assert self.backend is not None
        context, set_current_key = self._context, self.backend.set_current_key
        out: list[Any] = []
        for row in batch.rows():
            key = row_key(row)
            context.key = key
            set_current_key(normalise(key))
            result = process_element(row, context)
            if result is not None:
                check_iterable(result, "process_element")
                out.extend(result)
        self.backend.clear_current_key()
        context.key = None
        if out:
            self.emit(Batch(self.output_type, out))
        self._flush_side()


class KeyedBatchOperator(_FunctionOperator):
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

    def process(self, batch: Batch, input_index: int) -> None:
        keys = self._key.key_column(batch)
        if keys is None:
            keys = pa.array(self._key.keys_of(batch))
        emit_columns(self, self._function.process_batch(keys, batch.columns(), self._context))
        self._flush_side()


class CoProcessOperator(KeyedProcessOperator):
    """Two inputs; keyed when keys are given."""

    def __init__(
        self,
        planned: PlannedOperator,
        subtask: int,
        job: str,
        function: Any,
        backend: KeyedStateBackend | None,
        keys: tuple[KeySelector, KeySelector] | None,
    ) -> None:
        _FunctionOperator.__init__(self, planned, subtask, job, function, backend)
        self._keys = None if keys is None else [(key.row_key(), key.key_type().normalise) for key in keys]

    def process(self, batch: Batch, input_index: int) -> None:
        process_element = self._function.process_element2 if input_index else self._function.process_element1
        if self._keys is not None:
            self._run_rows(batch, process_element, *self._keys[input_index])
            return
        out: list[Any] = []
        for row in batch.rows():
            result = process_element(row, self._context)
            if result is not None:
                check_iterable(result, process_element.__name__)
                out.extend(result)
        if out:
            self.emit(Batch(self.output_type, out))
        self._flush_side()
