"""Copies of records share nothing with their originals that can be changed."""

from __future__ import annotations

import copy
import enum
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import TypeDeclarationError
from tidegate.types import record_type
from tidegate.types.copying import copy_record


class Colour(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass
class Open:
    name: Any
    items: Any = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    name: Any
    items: Any


@dataclass(slots=True)
class Slotted:
    name: Any
    items: Any


@dataclass(frozen=True, slots=True)
class FrozenSlotted:
    name: Any
    items: Any


@dataclass
class Grown(Open):
    more: Any = None


class Plain:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return type(other) is Plain and self.held == other.held

    __hash__ = None  # type: ignore[assignment]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
SCALARS |= st.sampled_from([Colour.RED, Decimal("1.50"), datetime(2026, 1, 1, tzinfo=UTC), range(3), len])
VALUES = st.recursive(
    SCALARS | st.sets(st.integers()) | st.frozensets(st.text()) | st.binary().map(bytearray),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        *(
            st.builds(kind, inner, inner)
            for kind in (Point, Open, Frozen, Slotted, FrozenSlotted, lambda one, two: Grown(one, [two], two))
        ),
        st.builds(Plain, inner),
    ),
    max_leaves=12,
)


def changeable_parts(value: Any) -> Iterator[Any]:
    """Every object inside that somebody could change."""
    if isinstance(value, list | dict | set | bytearray | Plain | Open | Slotted):
        yield value
    if isinstance(value, dict):
        parts: Any = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif is_dataclass(value):
        parts = [getattr(value, each.name) for each in fields(value)]
    else:
        parts = [value.held] if isinstance(value, Plain) else []
    for part in parts:
        yield from changeable_parts(part)


@given(VALUES)
def test_a_copy_is_equal_and_shares_nothing_that_can_be_changed(value: Any) -> None:
    twin = copy_record(value)

    assert twin == value
    assert type(twin) is type(value)
    originals = {id(part) for part in changeable_parts(value)}
    assert not [part for part in changeable_parts(twin) if id(part) in originals]


@given(VALUES)
def test_what_nobody_can_change_is_not_copied(value: Any) -> None:
    if not list(changeable_parts(value)):
        assert copy_record(value) is value


def test_a_record_that_holds_itself_is_copied() -> None:
    record: dict[str, Any] = {"name": "a"}
    record["self"] = record

    twin = copy_record(record)

    assert twin is not record
    assert twin["self"] is twin


def test_attributes_that_are_not_fields_are_copied_too() -> None:
    record = Open("a")
    record.cache = [1]  # type: ignore[attr-defined]

    twin = copy_record(record)
    twin.cache.append(2)

    assert record.cache == [1]  # type: ignore[attr-defined]


def test_a_class_that_says_how_it_is_copied_is_asked() -> None:
    class Handle:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __deepcopy__(self, memo: Any) -> Handle:
            return Handle()

    record = Handle()

    assert copy_record([record])[0] is not record


def test_a_record_that_cannot_be_copied_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeDeclarationError, match=r"cannot be copied .*object_reuse"):
        copy_record({"lock": threading.Lock()})


@dataclass
class Order:
    id: int
    tags: list[str]


@dataclass
class Plainly:
    id: int
    price: float


@dataclass(frozen=True)
class Fixed:
    id: int
    price: float


@pytest.mark.parametrize(
    ("annotation", "record"),
    [
        (Order, Order(1, ["a"])),
        (Plainly, Plainly(1, 2.5)),
        (list[int], [1, 2]),
        (dict[str, int], {"a": 1}),
        (tuple[int, list[int]], (1, [2])),
        (pa.schema([("id", pa.int64())]), {"id": 1}),
        (pa.schema([("id", pa.list_(pa.int64()))]), {"id": [1]}),
        (None, {"id": 1}),
        (None, Order(1, ["a"])),
    ],
    ids=str,
)
def test_records_of_a_type_that_can_be_changed_are_copied(annotation: Any, record: Any) -> None:
    copier = record_type(annotation).copier()
    before = copy.deepcopy(record)

    assert copier is not None
    twin = copier(record)

    assert twin == before
    originals = {id(part) for part in changeable_parts(record)}
    assert not [part for part in changeable_parts(twin) if id(part) in originals]


@pytest.mark.parametrize("annotation", [int, str, Fixed, tuple[int, str]], ids=str)
def test_records_of_a_type_that_nobody_can_change_are_not(annotation: Any) -> None:
    assert record_type(annotation).copier() is None


def test_a_record_that_does_not_fit_its_type_is_copied_all_the_same() -> None:
    """That it does not fit is said where it is encoded."""
    for annotation in (Plainly, pa.schema([("id", pa.int64())])):
        copier = record_type(annotation).copier()
        assert copier is not None
        assert copier([1, [2]]) == [1, [2]]
        assert copier(7) == 7
