"""Matrices and batches of random runs: some of their cases in `make test`, the rest in `make test-slow`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """The first so many are not slow. Batches of random runs: any of them finds what is found often."""
    return [case if number < count else _slow(case) for number, case in enumerate(cases)]


def chosen(now: Collection[str], cases: Iterable[str]) -> list[Any]:
    """Those in `now` are not slow. :raises ValueError: when one of them is not a case."""
    cases = list(cases)
    if unknown := set(now) - set(cases):
        raise ValueError(f"not cases of this matrix: {', '.join(sorted(unknown))}")
    return [case if case in now else _slow(case) for case in cases]


def in_turn(rows: Iterable[Any], columns: Iterable[Any]) -> list[Any]:
    """Each row with each column, of which one is not slow: the next for each row."""
    columns = list(columns)
    return [
        pytest.param(*_values(row), *_values(column), marks=() if place == number % len(columns) else pytest.mark.slow)
        for number, row in enumerate(rows)
        for place, column in enumerate(columns)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)


def _slow(case: Any) -> Any:
    return pytest.param(*_values(case), marks=pytest.mark.slow)
