"""map, flat_map, filter and map_batches. Executor; the task's thread.

Without keys; a function in class form (`__call__`) may keep operator state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.batch import Batch
from tidegate.errors import ContractError, TypeDeclarationError
from tidegate.graph.plan import PlannedOperator
from tidegate.task.operators.base import RunningOperator
from tidegate.task.operators.checkpointed import keeper_for
from tidegate.task.operators.first_rows import function_line
from tidegate.task.operators.returned import MANY, check_many
from tidegate.types.base import inside
from tidegate.types.expressions import projected


class _CallingOperator(RunningOperator):
    """Calls a user's function."""

    def __init__(self, planned: PlannedOperator, subtask: int, function: Callable[[Any], Any]) -> None:
        super().__init__(planned, subtask)
        self._function = function
        self.keeper = keeper_for(function)


class MapOperator(_CallingOperator):
    def process(self, batch: Batch, input_index: int) -> None:
        function, copy = self._function, self.copy
        if copy is None:
            rows = [function(row) for row in batch.rows()]
        else:
            rows = [copy(function(row)) for row in batch.rows()]
        self.emit(batch.with_rows(self.output_type, rows))


class FlatMapOperator(_CallingOperator):
    def process(self, batch: Batch, input_index: int) -> None:
        function, copy = self._function, self.copy
        out: list[Any] = []
        places: list[int] | None = None if batch.timestamps is None else []
        for place, row in enumerate(batch.rows()):
            result = function(row)
            if result is not None:
                if type(result) not in MANY:
                    check_many(result, self, "flat_map's function")
                out.extend(result if copy is None else map(copy, result))
                if places is not None:
                    places.extend([place] * (len(out) - len(places)))
        if out:
            self.emit(batch.pick(places or [], out, self.output_type))


class FilterOperator(_CallingOperator):
    def process(self, batch: Batch, input_index: int) -> None:
        function, copy = self._function, self.copy
        if batch.timestamps is None:
            rows = [row for row in batch.rows() if function(row)]
            if rows:
                self.emit(Batch(self.output_type, rows if copy is None else list(map(copy, rows))))
            return
        kept = [(place, row) for place, row in enumerate(batch.rows()) if function(row)]
        if kept:
            rows = [row if copy is None else copy(row) for _, row in kept]
            self.emit(batch.pick([place for place, _ in kept], rows, self.output_type))


class MapBatchesOperator(_CallingOperator):
    def process(self, batch: Batch, input_index: int) -> None:
        result = self._function(batch.columns())
        same_rows = isinstance(result, pa.RecordBatch) and result.num_rows == len(batch)
        emit_columns(self, result, batch.timestamps if same_rows else None)


class ColumnFilterOperator(RunningOperator):
    """A null is not true."""

    def __init__(self, planned: PlannedOperator, subtask: int, expression: Any) -> None:
        super().__init__(planned, subtask)
        self._expression = expression

    def process(self, batch: Batch, input_index: int) -> None:
        columns = batch.columns()
        kept = projected(columns, ["kept"], [self._expression]).column(0)
        count = kept.true_count
        if count == len(batch):
            self.emit(Batch(self.output_type, columns=columns, timestamps=batch.timestamps))
        elif count:
            stamps = batch.timestamps
            if stamps is not None:
                stamps = stamps[kept.fill_null(False).to_numpy(zero_copy_only=False)]
            self.emit(Batch(self.output_type, columns=columns.filter(kept), timestamps=stamps))


class ProjectOperator(RunningOperator):
    def __init__(
        self, planned: PlannedOperator, subtask: int, names: tuple[str, ...], expressions: tuple[Any, ...]
    ) -> None:
        super().__init__(planned, subtask)
        self._names = names
        self._expressions = expressions

    def process(self, batch: Batch, input_index: int) -> None:
        emit_columns(self, projected(batch.columns(), self._names, self._expressions), batch.timestamps)


def emit_columns(operator: RunningOperator, result: Any, timestamps: np.ndarray[Any, Any] | None = None) -> None:
    """Send on what a batch function returned, checked against the declared type.

    A function that returns as many rows as it was given keeps their timestamps; other rows have none.
    """
    if result is None:
        return
    if isinstance(result, pa.Table):
        for part in result.combine_chunks().to_batches():
            emit_columns(operator, part)
        return
    if not isinstance(result, pa.RecordBatch):
        raise ContractError(
            f"a batch function must return a pyarrow.RecordBatch or None, not {type(result).__name__}",
            user_line=function_line(operator),
        )
    if not operator.output_type.typed:
        raise TypeDeclarationError(f"{operator.name} returns columns: declare their type with returns=")
    try:
        result = operator.output_type.conformed(result)
    except TypeDeclarationError as error:
        raise inside(f"what {operator.name} returned", error) from error
    if result.num_rows:
        operator.emit(Batch(operator.output_type, columns=result, timestamps=timestamps))
