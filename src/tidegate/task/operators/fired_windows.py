"""Windows that fire together, as one batch. Executor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidegate.functions.windows import TimeWindow

if TYPE_CHECKING:
    from tidegate.types import RecordType


class Fired(NamedTuple):
    """The records of a window, for a function that takes all windows at once."""

    window: TimeWindow
    rows: list[Any]


def records_of(fired: list[Fired], input_type: RecordType) -> pa.RecordBatch:
    """`window_start` and `window_end`, then the columns of the records."""
    counts = [len(each.rows) for each in fired]
    records = input_type.to_batch([row for each in fired for row in each.rows])
    starts = np.repeat(np.array([each.window.start for each in fired], np.int64), counts)
    ends = np.repeat(np.array([each.window.end for each in fired], np.int64), counts)
    return pa.RecordBatch.from_arrays(
        [pa.array(starts), pa.array(ends), *records.columns],
        ["window_start", "window_end", *input_type.field_names],
    )
