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


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
