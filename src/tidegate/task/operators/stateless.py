"""map, flat_map, filter and map_batches. Executor; the task's thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tidegate.batch import Batch
from tidegate.errors import TypeDeclarationError
from tidegate.graph.plan import PlannedOperator
from tidegate.task.operators.base import RunningOperator, check_iterable


class MapOperator(RunningOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, function: Callable[[Any], Any]) -> None:
        super().__init__(planned, subtask)
        self._function = function

    def process(self, batch: Batch, input_index: int) -> None:
        function = self._function
        self.emit(Batch(self.output_type, [function(row) for row in batch.rows()], timestamps=batch.timestamps))


class FlatMapOperator(RunningOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, function: Callable[[Any], Any]) -> None:
        super().__init__(planned, subtask)
        self._function = function

    def process(self, batch: Batch, input_index: int) -> None:
        function = self._function
        out: list[Any] = []
        for row in batch.rows():
            result = function(row)
            if result is not None:
                check_iterable(result, "flat_map's function")
                out.extend(result)
        if out:
            self.emit(Batch(self.output_type, out))


class FilterOperator(RunningOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, function: Callable[[Any], Any]) -> None:
        super().__init__(planned, subtask)
        self._function = function

    def process(self, batch: Batch, input_index: int) -> None:
        function = self._function
        rows = [row for row in batch.rows() if function(row)]
        if rows:
            self.emit(Batch(self.output_type, rows))


class MapBatchesOperator(RunningOperator):
    def __init__(self, planned: PlannedOperator, subtask: int, function: Callable[[Any], Any]) -> None:
        super().__init__(planned, subtask)
        self._function = function

    def process(self, batch: Batch, input_index: int) -> None:
        emit_columns(self, self._function(batch.columns()))


def emit_columns(operator: RunningOperator, result: Any) -> None:
    """Send on what a batch function returned, checked against the declared type."""
    if result is None:
        return
    if isinstance(result, pa.Table):
        for part in result.combine_chunks().to_batches():
            emit_columns(operator, part)
        return
    if not isinstance(result, pa.RecordBatch):
        raise TypeError(f"a batch function must return a pyarrow.RecordBatch or None, not {type(result).__name__}")
    assert operator.output_type is not None
    schema = operator.output_type.schema
    if schema is None:
        raise TypeDeclarationError(f"{operator.name} returns columns: declare their type with returns=")
    if not result.schema.equals(schema):
        try:
            result = result.select(schema.names).cast(schema)
        except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise TypeDeclarationError(
                f"{operator.name} returned columns {result.schema.names} of types {[str(t) for t in result.schema.types]}, "
                f"but its stream is declared as {operator.output_type.name}: {error}"
            ) from error
    if result.num_rows:
        operator.emit(Batch(operator.output_type, columns=result))
