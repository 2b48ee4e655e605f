"""`fold_many` on every handle that there is: what Python's min and max give, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_backends import EVERY_BACKEND, Backends, backends_of

from tidegate.errors import TypeDeclarationError
from tidegate.state.declarations import ValueState
from tidegate.state.keys import key_type
from tidegate.state.ttl import Ttl

FLOAT = key_type(float)
FOLDS = {"min": min, "max": max}
KEYS = st.sampled_from([0.0, -0.0, 1.5, float("nan")])  # two of them are one key
CALLS = st.lists(st.lists(st.tuples(KEYS, st.floats() | st.sampled_from([-0.5, 0.5])), max_size=60), max_size=4)


@pytest.fixture(scope="module", params=EVERY_BACKEND)
def made(request: pytest.FixtureRequest) -> Iterator[Backends]:
    with backends_of(request.param) as backends:
        yield backends


@pytest.mark.parametrize("how", ["min", "max"])
@pytest.mark.parametrize("default", [None, 0.25])
@pytest.mark.parametrize("ttl", [None, Ttl("1h")])
@pytest.mark.parametrize("columnar", [False, True])
@settings(max_examples=15, deadline=None)
@given(calls=CALLS)
def test_each_row_gives_the_least_or_greatest_so_far(
    made: Backends, columnar: bool, ttl: Any, default: Any, how: Any, calls: Any
) -> None:
    backend = made.new(FLOAT)
    declaration = ValueState(float, default=default, ttl=ttl)
    declaration.name = "value"
    handle: Any = backend.bind(declaration, columnar)
    model: dict[Any, float] = {}
    for rows in calls:
        expected = []
        for key, number in rows:
            at = "nan" if key != key else key
            before = model.get(at, default)
            model[at] = number if before is None else FOLDS[how](before, number)
            expected.append(model[at])
        keys, numbers = pa.array([k for k, _ in rows], pa.float64()), pa.array([n for _, n in rows], pa.float64())
        assert [repr(number + 0.0) for number in handle.fold_many(keys, numbers, how).to_pylist()] == [
            repr(number + 0.0) for number in expected
        ]
    stored = [row["value"] for section in backend.snapshot().sections() for row in section.rows.to_pylist()]
    assert sorted(repr(number + 0.0) for number in stored) == sorted(repr(number + 0.0) for number in model.values())
    backend.close()


def test_what_is_no_number_cannot_be_folded(made: Backends) -> None:
    declaration = ValueState(str)
    declaration.name = "text"
    handle: Any = made.new(FLOAT).bind(declaration)
    with pytest.raises(TypeDeclarationError, match="'text'"):
        handle.fold_many(pa.array([1.0]), pa.array(["a"]), "min")
