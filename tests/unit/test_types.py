"""Value types, record types, and what annotations become."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, Dict, List, NewType, Optional, Tuple, Union  # noqa: UP035 - users still write them
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import TypeDeclarationError
from tidegate.types import (
    UNTYPED,
    NaiveDatetime,
    Pickled,
    data_type,
    field_type,
    record_type,
    return_annotation_of,
)

if TYPE_CHECKING:
    from nowhere import Unknown


UserId = NewType("UserId", int)


@dataclass
class Item:
    name: str
    price: Decimal


@dataclass
class Order:
    id: int
    amount: float
    items: list[Item]
    note: str | None = None
    tags: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: float


@dataclass(frozen=True)
class Mutable:
    parts: list[int]


@dataclass
class Doubling:
    value: int

    def __post_init__(self) -> None:
        self.value *= 2


@dataclass
class Node:
    child: Node | None


@dataclass
class Unresolvable:
    what: Unknown


@dataclass
class OrderBefore:
    id: int
    gone: str


@dataclass
class OrderAfter:
    id: int
    amount: float = 1.5
    tags: list[str] = field(default_factory=list)


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class Colour(Enum):
    RED = 1


class Number(int): ...


# -- round trips ----------------------------------------------------------------------------------------------------

int64s = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
decimals = st.decimals(allow_nan=False)
aware = st.datetimes(
    datetime(2, 1, 1),
    datetime(9998, 1, 1),
    timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5)), timezone(timedelta(hours=3, microseconds=7))]),
)
items = st.builds(Item, st.text(), decimals)
orders = st.builds(
    Order,
    int64s,
    floats,
    st.lists(items, max_size=3),
    st.none() | st.text(),
    st.dictionaries(st.text(), int64s, max_size=3),
)
points = st.builds(Point, int64s, floats)
ROUND_TRIPS: list[tuple[Any, str, st.SearchStrategy[Any]]] = [
    (int, "int", int64s),
    (UserId, "int", int64s),
    (float, "float", floats),
    (str, "str", st.text()),
    (bytes, "bytes", st.binary()),
    (bool, "bool", st.booleans()),
    (date, "date", st.dates()),
    (datetime, "datetime", aware),
    (NaiveDatetime, "naive datetime", st.datetimes()),
    (Decimal, "Decimal", decimals),
    (UUID, "UUID", st.uuids()),
    (int | None, "optional[int]", st.none() | int64s),
    (str | None, "optional[str]", st.none() | st.text()),
    (Optional[UUID], "optional[UUID]", st.none() | st.uuids()),  # noqa: UP045
    (List[int], "list[int]", st.lists(int64s)),  # noqa: UP006
    (list[Point | None], "list[optional[dataclass Point{x:int,y:float}]]", st.lists(st.none() | points)),
    (Dict[str, int], "dict[str, int]", st.dictionaries(st.text(), int64s)),  # noqa: UP006
    (
        dict[tuple[int, str], list[bytes]],
        "dict[tuple[int, str], list[bytes]]",
        st.dictionaries(st.tuples(int64s, st.text()), st.lists(st.binary())),
    ),
    (Tuple[int, str], "tuple[int, str]", st.tuples(int64s, st.text())),  # noqa: UP006
    (
        tuple[int, str | None] | None,
        "optional[tuple[int, optional[str]]]",
        st.none() | st.tuples(int64s, st.none() | st.text()),
    ),
    (dict[str, int] | None, "optional[dict[str, int]]", st.none() | st.dictionaries(st.text(), int64s)),
    (list[list[int]] | None, "optional[list[list[int]]]", st.none() | st.lists(st.lists(int64s))),
    (
        Order,
        "dataclass Order{id:int,amount:float,items:list[dataclass Item{name:str,price:Decimal}],"
        "note:optional[str],tags:dict[str, int]}",
        orders,
    ),
    (Order | None, None, st.none() | orders),  # type: ignore[list-item]
    (pa.int32(), "arrow:int32", st.none() | st.integers(-(2**31), 2**31 - 1)),
    (pa.string(), "arrow:string", st.none() | st.text()),
    (pa.list_(pa.int8()), "arrow:list<item: int8>", st.none() | st.lists(st.none() | st.integers(-128, 127))),
    (pa.timestamp("us"), "arrow:timestamp[us]", st.none() | st.datetimes()),
    (Pickled, "pickled", st.none() | st.sets(int64s) | st.builds(Plain, int64s)),
]


@pytest.mark.parametrize(("annotation", "name", "strategy"), ROUND_TRIPS, ids=[str(case[0]) for case in ROUND_TRIPS])
def test_a_column_gives_back_the_values_it_was_made_of(annotation, name, strategy):
    declared = data_type(annotation)
    assert name in (declared.name, None)
    assert data_type(declared.annotation) == declared

    @given(st.lists(strategy, max_size=8), st.integers(0, 3))
    def check(values, cut):
        column = declared.to_arrow(values)
        assert column.type == declared.arrow
        assert declared.from_arrow(column) == values
        assert list(map(type, declared.from_arrow(column))) == list(map(type, values))
        assert declared.from_arrow(column.slice(cut, 2)) == values[cut : cut + 2]
        assert declared.from_arrow(pa.chunked_array([column.slice(0, cut), column.slice(cut)])) == values
        for value in values:
            declared.check(value)
            assert declared.copy(value) == value

        records = record_type(annotation)
        batch = records.to_batch(values)
        assert batch.schema == records.schema
        assert batch.schema.names == records.field_names
        assert records.to_rows(batch) == values
        assert records.to_rows(batch.slice(cut, 2)) == values[cut : cut + 2]

    check()


def test_decimals_keep_their_digits_and_specials():
    values = ["1.0", "1.00", "1E+400", "-0.0", "NaN", "Infinity", "0." + "3" * 70]

    back = data_type(Decimal).from_arrow(data_type(Decimal).to_arrow(list(map(Decimal, values))))

    assert list(map(str, back)) == values


def test_nan_and_negative_zero_come_back_as_they_were():
    back = data_type(float).from_arrow(data_type(float).to_arrow([float("nan"), -0.0]))

    assert str(back) == "[nan, -0.0]"


def test_aware_datetimes_come_back_in_utc():
    value = datetime(2024, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))

    assert repr(data_type(datetime).from_arrow(data_type(datetime).to_arrow([value]))) == repr(
        [datetime(2024, 7, 1, 12, tzinfo=UTC)]
    )


def test_dataclasses_come_back_without_running_their_constructor_again():
    declared = data_type(Doubling)

    assert declared.from_arrow(declared.to_arrow([Doubling(1)]))[0].value == 2


def test_a_stored_dataclass_may_have_lost_and_gained_fields():
    stored = data_type(OrderBefore).to_arrow([OrderBefore(1, "x"), OrderBefore(2, "y")])

    first, second = data_type(OrderAfter).from_arrow(stored)

    assert (first, second) == (OrderAfter(1), OrderAfter(2))
    assert first.tags is not second.tags
    with pytest.raises(TypeDeclarationError, match="lacks the field 'gone'"):
        data_type(OrderBefore).from_arrow(data_type(OrderAfter).to_arrow([OrderAfter(1)]))


@pytest.mark.parametrize(
    ("annotation", "column", "expected"),
    [
        (int, pa.array([1, 2], pa.uint8()), [1, 2]),
        (float, pa.array([1, 2], pa.int32()), [1.0, 2.0]),
        (str, pa.array(["a"], pa.large_string()), ["a"]),
        (str, pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (bytes, pa.array([b"a"], pa.binary_view()), [b"a"]),
        (datetime, pa.array([1000], pa.timestamp("ms", tz="UTC")), [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)]),
        (Decimal, pa.array([Decimal("1.50")], pa.decimal128(5, 2)), [Decimal("1.50")]),
        (list[int], pa.array([[1], []], pa.large_list(pa.int32())), [[1], []]),
        (int | None, pa.nulls(2), [None, None]),
    ],
    ids=str,
)
def test_columns_of_another_layout_of_the_same_type_are_read(annotation, column, expected):
    assert data_type(annotation).from_arrow(column) == expected


@pytest.mark.parametrize(
    ("annotation", "column"),
    [
        (int, pa.array([1.0])),
        (int, pa.array(["1"])),
        (str, pa.array([1])),
        (datetime, pa.array([datetime(2024, 1, 1)])),
        (NaiveDatetime, pa.array([2**62], pa.timestamp("us"))),
        (datetime, pa.array([2**62], pa.timestamp("us", tz="UTC"))),
        (Decimal, pa.array(["one"])),
        (tuple[int, int], pa.array([1])),
        (dict[str, int], pa.array([1])),
        (Pickled, pa.array([b"nonsense"])),
    ],
    ids=str,
)
def test_columns_of_another_type_are_refused(annotation, column):
    with pytest.raises(TypeDeclarationError):
        data_type(annotation).from_arrow(column)


def test_nulls_are_refused_unless_the_type_is_optional():
    with pytest.raises(TypeDeclarationError, match=r"1 nulls.*Optional"):
        data_type(int).from_arrow(pa.array([1, None]))


# -- misfits --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "good", "bad", "says"),
    [
        (int, 1, True, r"True \(type bool\)"),
        (int, 1, 1.5, r"1.5 \(type float\)"),
        (int, 1, "1", r"'1' \(type str\)"),
        (int, 1, None, r"None \(type NoneType\)"),
        (int, 1, 2**63, "Decimal or Pickled"),
        (int, 1, -(2**63) - 1, "Decimal or Pickled"),
        (int, 1, Number(3), "Number"),
        (int, 1, np.timedelta64(1, "s"), "timedelta64"),
        (float, 1.5, True, "bool"),
        (float, 1.5, 2**60 + 1, "exactly"),
        (float, 1.5, "1.5", "str"),
        (str, "a", b"a", "bytes"),
        (str, "a", "\ud800", "surrogate"),
        (bytes, b"a", "a", "str"),
        (bytes, b"a", bytearray(b"a"), "bytearray"),
        (bool, True, 1, "int"),
        (date, date(2024, 1, 1), datetime(2024, 1, 1), r"\.date\(\)"),
        (datetime, datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1), "no time zone.*NaiveDatetime"),
        (
            datetime,
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
            "years",
        ),
        (NaiveDatetime, datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), "has a time zone"),
        (Decimal, Decimal(1), 1.5, "Decimal"),
        (UUID, UUID(int=1), "00000000-0000-0000-0000-000000000001", "UUID"),
        (list[int], [1], (1,), "tuple"),
        (list[int], [1], ["a"], r"in list\[int\]: 'a'"),
        (dict[str, int], {"a": 1}, {"a": "b"}, r"a value of dict"),
        (dict[str, int], {"a": 1}, {1: 1}, r"a key of dict"),
        (tuple[int, str], (1, "a"), (1,), "1 parts, not 2"),
        (tuple[int, str], (1, "a"), (1, 2), "part 1 of"),
        (Point, Point(1, 2.0), Point(1, "a"), "field 'y' of Point"),  # type: ignore[arg-type]
        (Point, Point(1, 2.0), (1, 2.0), "Point"),
        (int | None, None, "a", "'a'"),
        (pa.int32(), 1, True, "bool"),
        (pa.int32(), 1, 1.5, "float"),
        (pa.int32(), 1, 2**40, "arrow:int32"),
        (pa.string(), "a", b"a", "bytes"),
        (pa.list_(pa.int64()), [1], [1.5], "1.5"),
        (pa.timestamp("s"), datetime(2024, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 5), "come back"),
        (pa.timestamp("us"), datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC), "come back"),
        (pa.struct([("a", pa.int64())]), {"a": 1}, {"b": 1}, "keys that the struct lacks"),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named(annotation, good, bad, says):
    declared = data_type(annotation)
    declared.to_arrow([good, good])

    with pytest.raises(TypeDeclarationError, match=says):
        declared.to_arrow([good, bad, good])
    with pytest.raises(TypeDeclarationError):
        declared.check(bad)


def test_numpy_scalars_and_ints_for_floats_are_taken_without_loss():
    assert data_type(int).from_arrow(data_type(int).to_arrow([1, np.int8(2)])) == [1, 2]
    assert data_type(float).from_arrow(data_type(float).to_arrow([1, np.float32(0.5), 2.5])) == [1.0, 0.5, 2.5]
    assert data_type(bool).from_arrow(data_type(bool).to_arrow([np.bool_(True)])) == [True]


def test_what_cannot_be_pickled_is_named():
    with pytest.raises(TypeDeclarationError, match="cannot be pickled"):
        data_type(Pickled).to_arrow([(n for n in range(3))])


def test_pickled_values_of_local_classes_come_back():
    class Local:
        def __init__(self) -> None:
            self.value = 7

    declared = data_type(Pickled)

    assert declared.from_arrow(declared.to_arrow([Local()]))[0].value == 7


# -- declarations ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "says"),
    [
        (list, r"list\[int\]"),
        (dict, r"dict\[str, int\]"),
        (tuple, r"tuple\[int, str\]"),
        (tuple[int, ...], r"list\[T\]"),
        (tuple[()], "empty"),
        (Union[int, str], "one type"),
        (object, "Pickled"),
        (Any, "Pickled"),
        (Plain, "Pickled"),
        (Colour, "Pickled"),
        (set[int], "Pickled"),
        ("int", "quotes"),
        (5, "Pickled"),
        (dict[str | None, int], "neither None nor mutable"),
        (Node, "contains itself"),
        (Unresolvable, "cannot be resolved"),
        (list[Node], "contains itself"),
    ],
    ids=str,
)
def test_an_annotation_without_columns_is_refused_with_a_way_out(annotation, says):
    with pytest.raises(TypeDeclarationError, match=says):
        data_type(annotation)


def test_a_refused_field_is_named():
    @dataclass
    class Local:
        what: set[int]

    with pytest.raises(TypeDeclarationError, match="field 'what' of Local"):
        data_type(Local)


def test_only_int_float_and_bool_have_a_numpy_type():
    assert {name: data_type(name).numpy for name in (int, float, bool, str, int | None)} == {
        int: np.dtype("int64"),
        float: np.dtype("float64"),
        bool: np.dtype("bool"),
        str: None,
        int | None: None,
    }


@pytest.mark.parametrize(
    ("annotation", "immutable"),
    [
        *((annotation, True) for annotation in (int, Point, tuple[int, str], Point | None, pa.int8())),
        *((annotation, False) for annotation in (Order, Mutable, list[int], tuple[int, list[int]], Pickled)),
    ],
)
def test_immutability_goes_all_the_way_down(annotation, immutable):
    assert data_type(annotation).immutable is immutable


@pytest.mark.parametrize(
    ("annotation", "value", "change"),
    [
        (list[int], [1], lambda value: value.append(2)),
        (list[list[int]], [[1]], lambda value: value[0].append(2)),
        (dict[str, list[int]], {"a": [1]}, lambda value: value["a"].append(2)),
        (tuple[int, list[int]], (1, [1]), lambda value: value[1].append(2)),
        (list[int] | None, [1], lambda value: value.append(2)),
        (Order, Order(1, 1.0, [Item("a", Decimal(1))]), lambda value: setattr(value.items[0], "name", "b")),
        (Mutable, Mutable([1]), lambda value: value.parts.append(2)),
        (Pickled, [{1}], lambda value: value[0].add(2)),
        (pa.list_(pa.int8()), [1], lambda value: value.append(2)),
    ],
)
def test_a_copy_does_not_see_later_changes(annotation, value, change):
    copy = data_type(annotation).copy(value)
    assert copy == value

    change(value)

    assert copy != value


def test_an_immutable_value_is_its_own_copy():
    point = Point(1, 2.0)

    assert data_type(Point).copy(point) is point


@pytest.mark.parametrize("annotation", [case[0] for case in ROUND_TRIPS], ids=str)
def test_types_survive_pickling(annotation):
    from pyspark import cloudpickle

    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(data_type(annotation))) == data_type(annotation)
        assert pickle.loads(dumps(record_type(annotation))).equals(record_type(annotation))


def test_types_of_local_dataclasses_travel_by_cloudpickle():
    from pyspark import cloudpickle

    @dataclass
    class Local:
        a: int

    records = cloudpickle.loads(cloudpickle.dumps(record_type(Local)))

    assert records.to_rows(records.to_batch([Local(1)])) == [Local(1)]


# -- records --------------------------------------------------------------------------------------------------------


def test_each_kind_of_record_has_its_columns():
    assert record_type(int).schema == pa.schema([("value", pa.int64())])
    assert record_type(list[int]).field_names == ["value"]
    assert record_type(tuple[int, str]).schema == pa.schema([("f0", pa.int64()), ("f1", pa.string())])
    assert record_type(Point).schema == pa.schema([("x", pa.int64()), ("y", pa.float64())])
    assert record_type(Point | None).field_names == ["value"]
    assert all(record_type(annotation).typed for annotation in (int, Point, pa.schema([("a", pa.int8())])))


def test_records_of_a_schema_are_dicts():
    schema = pa.schema([("id", pa.int32(), False), ("name", pa.string())])
    records = record_type(schema)
    batch = records.to_batch([{"id": 1, "name": "a"}, {"id": 2}])

    assert batch.schema == schema
    assert records.to_rows(batch) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    for row, says in [({"id": 1, "nam": "a"}, "no field 'nam'"), ({"name": "a"}, "not nullable"), ((1, "a"), "dicts")]:
        with pytest.raises(TypeDeclarationError, match=says):
            records.to_batch([{"id": 1}, row])
    with pytest.raises(TypeDeclarationError, match="field 'id'"):
        records.to_batch([{"id": 1.5}])


def test_an_untyped_stream_says_how_to_type_it():
    assert record_type(None) is UNTYPED
    assert record_type(Any) is UNTYPED
    assert not UNTYPED.typed
    assert UNTYPED.schema is None
    assert pickle.loads(pickle.dumps(UNTYPED)) is UNTYPED
    with pytest.raises(TypeDeclarationError, match="returns="):
        UNTYPED.to_batch([1])


def test_record_types_are_equal_when_their_records_are():
    assert record_type(tuple[int, str]).equals(record_type(Tuple[int, str]))  # noqa: UP006
    assert not record_type(int).equals(record_type(int | None))
    assert not record_type(Point).equals(record_type(tuple[int, float]))
    assert not record_type(int).equals(UNTYPED)


def test_columns_are_found_by_name_in_whatever_order_they_come():
    batch = pa.RecordBatch.from_pydict({"y": [2.0], "other": ["z"], "x": [1]})

    assert record_type(Point).to_rows(batch) == [Point(1, 2.0)]
    with pytest.raises(TypeDeclarationError, match="must have the columns"):
        record_type(Point).to_rows(batch.select(["y"]))


def test_fields_are_found_by_name_and_by_position():
    records = record_type(tuple[int, str | None])

    assert field_type(records, 0) == data_type(int)
    assert field_type(records, "f1") == data_type(str | None)
    assert field_type(record_type(Point), "y") == data_type(float)
    assert field_type(record_type(int), "value") == data_type(int)
    assert field_type(record_type(pa.schema([("a", pa.int8())])), "a") == data_type(pa.int8())
    assert field_type(UNTYPED, "a") is None
    for missing in ("f2", 2, -1):
        with pytest.raises(TypeDeclarationError, match="has no field"):
            field_type(records, missing)


# -- what functions return -------------------------------------------------------------------------------------------


def to_point(line: Unknown) -> Point: ...
def to_optional(line: str) -> int | None: ...
def to_unknown(line: str) -> Unknown: ...
def to_dict(line: str) -> dict: ...
def to_any(line: str) -> Any: ...
def to_none(line: str) -> None: ...
def to_points(line: str) -> Iterator[Point]: ...
def to_iterable(line: str) -> Iterable[tuple[int, str]]: ...
def to_generator(line: str) -> Generator[int, None, None]: ...
def to_list(line: str) -> list[str]: ...
def to_bare_list(line: str) -> list: ...


class Parser:
    def __call__(self, line: str) -> Point: ...

    def parse(self, line: str) -> int: ...


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        *((to_point, Point), (to_optional, int | None), (to_list, list[str])),
        *((function, None) for function in (to_unknown, to_dict, to_any, to_none)),
        *(
            (functools.partial(to_point, "a"), Point),
            (Parser(), Point),
            (Parser().parse, int),
            (int, int),
            (Point, Point),
        ),
        *((function, None) for function in (lambda line: 1, Plain, len, str.upper, None)),
    ],
)
def test_the_return_annotation_is_found_or_none(function, expected):
    assert return_annotation_of(function, element_of_iterable=False) == expected


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        *((to_points, Point), (to_iterable, tuple[int, str]), (to_generator, int), (to_list, str)),
        *((function, None) for function in (to_bare_list, to_point, to_unknown, lambda line: [1])),
    ],
)
def test_the_element_annotation_is_found_or_none(function, expected):
    assert return_annotation_of(function, element_of_iterable=True) == expected


def test_return_annotations_of_local_classes_are_resolved():
    @dataclass
    class Local:
        a: int

    def make(line: str) -> Local:
        return Local(1)

    assert return_annotation_of(make) is Local
