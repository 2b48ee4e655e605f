"""Sums of a column by row number, with each step in between. Pure; for `add_many(..., running=True)`.

The additions of one row number happen in the order in which they come, one after the other, as `np.add.at` does them:
a sum of floats comes out the same to the last bit, wherever the stream was cut into batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LONG_RUN = 32  #: a run of at least this many additions is worth a call of its own

Array = np.ndarray[Any, np.dtype[Any]]


def running_sums(totals: Array, rows: Array, numbers: Array) -> Array:
    """Add `numbers[i]` to `totals[rows[i]]`, in order and in place; returns each total as it was after step i."""
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    starts = np.flatnonzero(np.diff(sorted_rows, prepend=sorted_rows[0] - 1))
    lengths = np.diff(starts, append=len(rows))
    steps = numbers[order]
    steps[starts] += totals[sorted_rows[starts]]

    for run in np.flatnonzero(lengths >= _LONG_RUN).tolist():
        part = steps[starts[run] : starts[run] + lengths[run]]
        np.add.accumulate(part, out=part)
    short = lengths < _LONG_RUN
    starts_left, lengths_left = starts[short], lengths[short]
    for step in range(1, _LONG_RUN):  # the step-th addition of all short runs at once
        more = lengths_left > step
        if not more.any():
            break
        starts_left, lengths_left = starts_left[more], lengths_left[more]
        steps[starts_left + step] += steps[starts_left + step - 1]

    totals[sorted_rows[starts]] = steps[starts + lengths - 1]
    sums = np.empty_like(steps)
    sums[order] = steps
    return sums
