"""Sums, minima and maxima of a column by row number, with each step in between. Pure; for `add_many` and `fold_many`.

What is folded into one row number comes one after the other, in order, as `ufunc.at` does it: a sum of floats comes out
the same to the last bit, wherever the stream was cut into batches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_LONG_RUN = 32  #: a run of at least this many is worth a call of its own

Array = np.ndarray[Any, np.dtype[Any]]


def running_folds(fold: np.ufunc, totals: Array, rows: Array, numbers: Array) -> Array:
    """Fold `numbers[i]` into `totals[rows[i]]`, in order and in place; returns each total as it was after step i."""
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    starts = np.flatnonzero(np.diff(sorted_rows, prepend=sorted_rows[0] - 1))
    lengths = np.diff(starts, append=len(rows))
    steps = numbers[order]
    steps[starts] = fold(totals[sorted_rows[starts]], steps[starts])

    for run in np.flatnonzero(lengths >= _LONG_RUN).tolist():
        part = steps[starts[run] : starts[run] + lengths[run]]
        fold.accumulate(part, out=part)
    short = lengths < _LONG_RUN
    starts_left, lengths_left = starts[short], lengths[short]
    for step in range(1, _LONG_RUN):  # the step-th of all short runs at once
        more = lengths_left > step
        if not more.any():
            break
        starts_left, lengths_left = starts_left[more], lengths_left[more]
        steps[starts_left + step] = fold(steps[starts_left + step - 1], steps[starts_left + step])

    totals[sorted_rows[starts]] = steps[starts + lengths - 1]
    folded = np.empty_like(steps)
    folded[order] = steps
    return folded


def with_rows_passed_over(rows: Array, folded: Array, steps: Array, before: Array, there: Array) -> tuple[Array, Array]:
    """What each row number holds after each step, and whether it holds anything, where only some steps fold a number.

    :param folded: whether a step folds one; `steps` is what the row number held after each of those.
    :param before: what each step's row number held before the first of them; `there`: whether it held anything.
    """
    order = np.argsort(rows, kind="stable")
    sorted_rows = rows[order]
    at = np.full(len(rows), -1)
    at[folded] = np.arange(len(steps))
    places = np.where(folded[order], np.arange(len(rows)), -1)
    places = np.maximum.accumulate(places)  # the last step so far that folds, whichever row number it is of
    starts = np.flatnonzero(np.diff(sorted_rows, prepend=sorted_rows[0] - 1))
    own = places >= np.repeat(starts, np.diff(starts, append=len(rows)))
    found, is_there = before[order].copy(), there[order].copy()
    found[own] = steps[at[order][places[own]]]
    is_there[own] = True
    back_found, back_there = np.empty_like(found), np.empty_like(is_there)
    back_found[order], back_there[order] = found, is_there
    return back_found, back_there
