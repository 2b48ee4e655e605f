"""How values are stored in RocksDB: each type comes back as it was, as a value and as the heap's own column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import CheckpointDamaged, TypeDeclarationError
from tidegate.state.declarations import ValueState
from tidegate.state.keys import key_type
from tidegate.state.namespaces import in_namespace
from tidegate.state.rocksdb_keys import Addresses, parts_of
from tidegate.state.rocksdb_rows import (
    ROW_FORMAT_VERSION,
    MapKeys,
    cells_for,
    cells_of,
    column_of_cells,
    encode_elements,
    live_cell,
)
from tidegate.state.ttl import Ttl
from tidegate.types import NaiveDatetime, Pickled, data_type


@dataclass
class Line:
    name: str
    amounts: list[float]
    at: datetime | None = None


@dataclass(frozen=True)
class Place:
    x: float
    y: Decimal


NOON = datetime(2024, 5, 1, 12, 0, 0, 123456, tzinfo=UTC)
VALUES: list[tuple[Any, list[Any]]] = [
    (int, [0, -1, 2**63 - 1, -(2**63)]),
    (float, [0.0, -0.0, 1.5, math.inf, 5e-324]),
    (bool, [True, False]),
    (str, ["", "a", "ключ", "a\x00b"]),
    (bytes, [b"", b"\x00\xff"]),
    (date, [date(1, 1, 1), date(2024, 2, 29), date(9999, 12, 31)]),
    (datetime, [NOON, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)]),
    (NaiveDatetime, [datetime(1969, 12, 31, 23, 59), datetime(2024, 1, 1)]),
    (Decimal, [Decimal("1.00"), Decimal("-1E+30"), Decimal("NaN")]),
    (UUID, [UUID(int=0), UUID(int=2**128 - 1)]),
    (int | None, [None, 3]),
    (str | None, [None, "", "ü"]),
    (list[int], [[], [1, 2, -3]]),
    (list[str | None], [[None, "a"], []]),
    (dict[str, list[int]], [{}, {"b": [1], "a": []}]),
    (tuple[int, str], [(1, "a"), (-1, "")]),
    (Line, [Line("a", [1.0]), Line("b", [], NOON)]),
    (Line | None, [None, Line("a", [2.5])]),
    (list[Line], [[Line("a", [1.0]), Line("b", [])]]),
    (dict[UUID, date | None], [{UUID(int=1): date(2020, 1, 1), UUID(int=2): None}]),
    (Pickled, [{"any": {1, 2}}, None, complex(1, 2)]),
    (list[Pickled], [[{1}, None]]),
    (pa.int16(), [None, -(2**15), 2**15 - 1]),
    (pa.string(), [None, "a"]),
    (pa.float32(), [None, 0.5]),
    (pa.timestamp("ms"), [None, datetime(2024, 1, 1, 0, 0, 0, 5000)]),
    (pa.decimal128(10, 2), [None, Decimal("1.25")]),
    (pa.list_(pa.int32()), [None, [1, None, 3]]),
    (pa.struct([("a", pa.int8()), ("b", pa.string())]), [{"a": 1, "b": None}]),
    (list[pa.duration("us")], [[timedelta(microseconds=3), None]]),  # type: ignore[misc]
]


@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=lambda part: str(part)[:40])
def test_a_value_comes_back_as_it_was_and_as_the_same_column_that_the_heap_stores(annotation, values):
    type_ = data_type(annotation)
    cells = cells_of(type_)
    kept = [cells.admit(value) for value in values]
    stored = [cells.to_cell(one) for one in kept]
    back = [cells.give(cells.of_cell(cell)) for cell in stored]

    assert list(map(repr, back)) == list(map(repr, values))
    assert [type(value) for value in back] == [type(value) for value in values]
    column = column_of_cells(cells.layout, type_.arrow, stored)
    expected = type_.to_arrow(values)
    assert column.type == expected.type
    if annotation not in (Pickled, list[Pickled]):  # sets have no order
        assert repr(column.to_pylist()) == repr(expected.to_pylist())
    assert list(map(repr, type_.from_arrow(column))) == list(map(repr, values))


@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=lambda part: str(part)[:40])
def test_with_a_ttl_a_cell_is_the_expiry_and_the_cell_without(annotation, values):
    declaration = ValueState(annotation, ttl=Ttl("1h"))
    inner, cells = cells_of(declaration.value_type), cells_for(declaration)
    for value in values:
        kept = (inner.admit(value), 1_700_000_000_000)
        cell = cells.to_cell(kept)
        assert cell == bytes.fromhex("0068e5cf8b010000") + inner.to_cell(kept[0]), "the format is pinned"
        assert repr(cells.give(cells.of_cell(cell))) == repr(inner.give(kept[0]))
        assert live_cell(cell, 1_699_999_999_999) is cell
        assert live_cell(cell, 1_700_000_000_000) is None
    assert cells.layout == "expiring " + inner.layout


@pytest.mark.parametrize(("annotation", "values"), VALUES, ids=lambda part: str(part)[:40])
def test_what_is_given_out_or_handed_in_is_never_shared(annotation, values):
    cells = cells_of(data_type(annotation))
    if data_type(annotation).immutable:
        return
    for value in values:
        kept = cells.admit(value)
        if isinstance(value, list):
            value.append("changed")
            assert cells.give(kept) != value
            value.pop()
        first = cells.give(kept)
        assert first is None or first is not cells.give(kept)


@pytest.mark.parametrize(
    ("annotation", "wrong", "says"),
    [
        (int, 2**63, "64 bits"),
        (int, True, "does not fit"),
        (str, "\ud800", "surrogate"),
        (str | None, "\ud800", "surrogate"),
        (datetime, datetime(2024, 1, 1), "no time zone"),
        (NaiveDatetime, NOON, "has a time zone"),
        (list[int], [1, "2"], "does not fit"),
        (list[int], [2**63], "64 bits"),
        (list[str], ["\ud800"], "surrogate"),
        (Line, Line("a", [1.0, "x"]), "field 'amounts' of Line"),  # type: ignore[list-item]
        (tuple[int, str], (1, "a", 3), "3 parts"),
        (pa.int8(), 128, "pyarrow says"),
    ],
    ids=str,
)
def test_a_misfit_is_refused_when_it_is_taken_in_however_deep_it_lies(annotation, wrong, says):
    with pytest.raises(TypeDeclarationError, match=says):
        cells_of(data_type(annotation)).admit(wrong)


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, 3, 3.0),
        (int, np.int32(4), 4),
        (list[float], [np.float32(0.5), 2], [0.5, 2.0]),
        (Line, Line("a", [1]), Line("a", [1.0])),
        (datetime, datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), datetime(2024, 1, 1, tzinfo=UTC)),
        (list[datetime], [datetime(2024, 1, 1, tzinfo=timezone.utc)], [datetime(2024, 1, 1, tzinfo=UTC)]),  # noqa: UP017
    ],
    ids=str,
)
def test_what_fits_without_loss_is_converted_as_the_heap_does(annotation, value, expected):
    cells = cells_of(data_type(annotation))

    assert repr(cells.give(cells.admit(value))) == repr(expected)


@pytest.mark.parametrize(
    ("annotation", "one", "other"),
    [
        (float, 0.0, -0.0),
        (float, math.nan, float("nan")),
        (Decimal, Decimal("1.0"), Decimal("1.00")),
        (tuple[float, str], (-0.0, "a"), (0.0, "a")),
        (Place, Place(-0.0, Decimal("2.50")), Place(0.0, Decimal("2.5"))),
        (float | None, -0.0, 0.0),
        (pa.float64(), -0.0, 0.0),
    ],
    ids=str,
)
def test_equal_keys_of_a_map_have_one_cell_and_meet_in_a_dictionary(annotation, one, other):
    keys = MapKeys(data_type(annotation))
    first, second = keys.admit(one), keys.admit(other)

    assert keys.to_cell(first) == keys.to_cell(second)
    assert {first: 1}.get(second) == 1
    assert {first: 1}.get(keys.of_cell(keys.to_cell(second))) == 1


def test_different_keys_of_a_map_have_different_cells():
    keys = MapKeys(data_type(tuple[str, str]))

    assert len({keys.to_cell(keys.admit(key)) for key in [("a", "b"), ("ab", ""), ("", "ab"), ("a\x00", "b")]}) == 4


def test_cells_that_are_damaged_or_of_an_unknown_layout_are_refused_in_words():
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        column_of_cells("plain", pa.list_(pa.int64()), [b"\xc1"])
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        column_of_cells("int64", pa.int64(), [b"123"])
    with pytest.raises(CheckpointDamaged, match="'later'"):
        column_of_cells("later", pa.int64(), [b""])


#: Version 1, as the first release wrote it. A change here strands stored state: raise ROW_FORMAT_VERSION, and read both.
PINNED: list[tuple[Any, Any, str]] = [
    (int, -2, "feffffffffffffff"),
    (float, 1.5, "000000000000f83f"),
    (bool, True, "01"),
    (str, "ü", "c3bc"),
    (bytes, b"\x00\xff", "00ff"),
    (date, date(1970, 1, 11), "0a"),
    (datetime, datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "ce000f4240"),
    (NaiveDatetime, datetime(1969, 12, 31, 23, 59, 59), "d2fff0bdc0"),
    (Decimal, Decimal("1.00"), "a4312e3030"),
    (UUID, UUID(int=1), "c41000000000000000000000000000000001"),
    (int | None, None, "c0"),
    (list[int], [1, -1], "9201ff"),
    (dict[str, int], {"b": 1, "a": 2}, "94a16201a16102"),
    (tuple[int, str], (1, "a"), "9201a161"),
    (Line, Line("a", [0.5]), "93a16191cb3fe0000000000000c0"),
    (pa.int16(), 300, "cd012c"),
]


@pytest.mark.parametrize(("annotation", "value", "stored"), PINNED, ids=lambda part: str(part)[:40])
def test_the_row_format_is_what_the_first_release_wrote(annotation, value, stored):
    cells = cells_of(data_type(annotation))

    assert ROW_FORMAT_VERSION == 1
    assert cells.to_cell(cells.admit(value)).hex() == stored
    assert cells.give(cells.of_cell(bytes.fromhex(stored))) == value


def test_addresses_are_what_the_first_release_wrote():
    addresses = Addresses(key_type(None), range(128), 128)
    written = {
        key: addresses.of(in_namespace(key_type(None).normalise(key), namespace), "state").hex()
        for key, namespace in [(1, b""), ("a", b""), (("a", 1), b"w\x00")]
    }

    assert encode_elements([b"a", b""]).hex() == "92c40161c400"
    assert {key: address[4:] for key, address in written.items()} == {
        1: "410100",
        "a": "6061000100",
        ("a", 1): "90606100014101006877" + "00ff" + "0001",
    }
    assert [parts_of(bytes.fromhex(address))[1] for address in written.values()] == [b"", b"", b"w\x00"]
