"""From windows over columns, as data, to the operator that runs them. Executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.functions.windows import AlignedWindows
from tidegate.task.operators.session_windows import SessionWindowOperator
from tidegate.task.operators.slice_windows import SliceRows, SliceWindowOperator
from tidegate.task.rows.backend import KeyColumns, RowsBackend
from tidegate.task.rows.sessions import SessionRows

if TYPE_CHECKING:
    from tidegate.functions.column_windows import ColumnWindows
    from tidegate.graph.key_selector import KeySelector
    from tidegate.graph.plan import PlannedOperator
    from tidegate.task.operators.base import RunningOperator
    from tidegate.task.operators.timers import Time
    from tidegate.types import RecordType


def column_windows(
    planned: PlannedOperator,
    subtask: int,
    windows: ColumnWindows,
    key_groups: range,
    key: KeySelector,
    input_type: RecordType,
    time: Time,
) -> RunningOperator:
    """Slices for windows that are the same for all keys, rows of sessions for those that merge."""
    merging = windows.merging
    keys = KeyColumns(key.key_type(), windows.key_columns)
    if isinstance(windows.assigner, AlignedWindows):
        slices = SliceRows(merging)
        backend = RowsBackend(keys, key_groups, planned.max_parallelism, {"rows": slices})
        return SliceWindowOperator(planned, subtask, windows, backend, keys, key, input_type, time, rows=slices)
    sessions = SessionRows(merging)
    backend = RowsBackend(keys, key_groups, planned.max_parallelism, {"rows": sessions})
    return SessionWindowOperator(planned, subtask, windows, backend, keys, key, input_type, time, rows=sessions)
