"""Canonical key bytes, the key hash, and key groups."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import uuid
from collections import namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import ConfigurationError, KeyTypeError
from tidegate.state.key_codec import decode_int64s, decode_prefix, encode_int64s, encode_key
from tidegate.state.key_groups import (
    default_max_parallelism,
    key_group,
    key_group_range,
    key_groups,
    subtask_of,
)
from tidegate.state.key_hash import mix64
from tidegate.state.keys import common_key_type, hash_columns, holds_keys_of, key_type
from tidegate.types import NaiveDatetime, data_type, field_type, record_type

ANY = key_type(None)
GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "keys.json").read_text())
NAMES = {
    "Decimal": Decimal,
    "UUID": UUID,
    "date": date,
    "datetime": datetime,
    "timezone": timezone,
    "timedelta": timedelta,
    "nan": math.nan,
    "inf": math.inf,
}

ints = st.one_of(st.integers(-300, 300), st.integers(-(2**63), 2**64 - 1), st.integers(-(2**80), 2**80))
decimals = st.decimals(allow_nan=False, allow_infinity=False)
zones = st.one_of(
    st.just(UTC),
    st.sampled_from([ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")]),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
)
aware = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=zones)
naive = st.datetimes()
BY_TYPE: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "bool": (bool, st.booleans()),
    "int": (int, ints),
    "float": (float, st.floats()),
    "Decimal": (Decimal, decimals),
    "str": (str, st.text()),
    "bytes": (bytes, st.binary()),
    "date": (date, st.dates()),
    "datetime": (datetime, aware),
    "naive datetime": (NaiveDatetime, naive),
    "UUID": (UUID, st.uuids()),
    "optional[int]": (int | None, st.none() | ints),
    "tuple[int, str]": (tuple[int, str], st.tuples(ints, st.text())),
    "tuple[float, optional[tuple[str, bool]]]": (
        tuple[float, tuple[str, bool] | None],
        st.tuples(st.floats(), st.none() | st.tuples(st.text(), st.booleans())),
    ),
}
confusable = st.sampled_from(
    [
        *(None, False, True, 0, 1, -1, 255, 256, -255, -256, 2**64 - 1, 2**64, -(2**64)),
        *(0.0, -0.0, 1.0, math.nan, -math.nan, math.inf),
        *(Decimal(0), Decimal("-0.00"), Decimal(1), Decimal("1.00")),
        *("", "0", "1", "\0", "\0\0", "a", "a\0", "é", "\U0001f600", "\uffff"),
        *(b"", b"0", b"\0", b"a", b"a\0"),
        *((), (0,), (False,), (None,), ((),), ((), ()), ("a",), ("a", ""), ("a\0",), (1, 2), (1,)),
        *(date(1970, 1, 1), datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)),
        *(datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), UUID(int=0), UUID(int=1)),
    ]
)
scalars = st.one_of(confusable, *(strategy for name, (_, strategy) in BY_TYPE.items() if "[" not in name))
keys = st.recursive(scalars, lambda parts: st.lists(parts, max_size=3).map(tuple), max_leaves=6)
one_type = st.sampled_from([name for name in BY_TYPE if "[" not in name])


# -- bytes --------------------------------------------------------------------------------------------------------


@given(keys)
def test_decoding_gives_back_an_equal_key(key):
    decoded = ANY.decode(ANY.encode(key))

    assert ANY.normalise(decoded) == ANY.normalise(key)
    assert ANY.encode(decoded) == ANY.encode(key)


@given(keys, keys)
def test_bytes_are_equal_exactly_when_the_normalised_keys_are(a, b):
    assert (ANY.encode(a) == ANY.encode(b)) == (ANY.normalise(a) == ANY.normalise(b))


@given(keys, keys)
def test_no_key_is_a_prefix_of_another(a, b):
    first, second = ANY.encode(a), ANY.encode(b)

    assert first == second or not second.startswith(first)


@given(keys, st.binary())
def test_a_key_ends_where_it_ends_whatever_follows(key, tail):
    data = ANY.encode(key)

    assert decode_prefix(data + tail)[1] == len(data)


@given(one_type.flatmap(lambda name: st.lists(BY_TYPE[name][1].filter(lambda key: key == key), max_size=20)))
def test_bytes_of_one_type_sort_as_the_keys_do(some):
    encoded = [ANY.encode(key) for key in sorted(some)]

    assert encoded == sorted(encoded)


@given(st.lists(st.tuples(st.text(), ints, st.binary()), max_size=20))
def test_bytes_of_tuples_sort_as_the_tuples_do(some):
    encoded = [ANY.encode(key) for key in sorted(some)]

    assert encoded == sorted(encoded)


def test_nan_sorts_last():
    assert ANY.encode(math.nan) > ANY.encode(math.inf)


def test_values_that_python_takes_for_equal_are_different_keys():
    apart = [1, True, 1.0, Decimal(1), "1", b"1", (1,), (True,), (1.0,)]

    assert len({ANY.encode(key) for key in apart}) == len(apart)
    assert len({ANY.normalise(key) for key in apart}) == len(apart)


@pytest.mark.parametrize(
    "equals",
    [
        [0.0, -0.0, np.float32(-0.0)],
        [math.nan, -math.nan, float("nan"), np.float64("nan")],
        [Decimal("1"), Decimal("1.0"), Decimal("1.00"), Decimal("10E-1")],
        [Decimal(0), Decimal("-0"), Decimal("0E+5")],
        [Decimal(1200), Decimal("12E2")],
        [datetime(2024, 7, 1, 12, tzinfo=UTC), datetime(2024, 7, 1, 14, tzinfo=ZoneInfo("Europe/Berlin"))],
        [datetime(2024, 10, 27, 2, 30, fold=0), datetime(2024, 10, 27, 2, 30, fold=1)],
        # Python says that these two are different, because the offset depends on fold (PEP 495).
        [
            datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        ],
        [7, np.int8(7), np.uint64(7)],
        ["a", np.str_("a")],
    ],
    ids=lambda keys: repr(keys[0]),
)
def test_equal_keys_are_one_key(equals):
    for wrap in (lambda key: key, lambda key: (key, "x")):
        assert len({ANY.encode(wrap(key)) for key in equals}) == 1
        assert len({ANY.normalise(wrap(key)) for key in equals}) == 1
        assert len({ANY.hash(wrap(key)) for key in equals}) == 1


def test_a_decimal_of_any_precision_is_not_rounded():
    key = Decimal("1." + "0" * 60 + "1")

    assert ANY.decode(ANY.encode(key)) == key
    assert ANY.encode(key) != ANY.encode(Decimal(1))


Point = namedtuple("Point", "x y")


class Colour(str, Enum):  # noqa: UP042
    RED = "red"


@pytest.mark.parametrize(
    "key",
    [
        *([1], {1: 2}, {1}, object(), timedelta(1), 1j, bytearray(b"a"), Point(1, 2), Colour.RED),
        *("\ud800", ("a", "\udfff"), Decimal("NaN"), Decimal("Infinity"), np.timedelta64(1, "s")),
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_a_way_out(key):
    for ask in (ANY.encode, ANY.hash):
        with pytest.raises(KeyTypeError, match=r"Use |use |finite|outside the years"):
            ask(key)


@pytest.mark.parametrize(
    "data", ["", "42", "4201", "60", "6061", "606100", "904001", "07", "4101ff", "58", "5805", "1002"]
)
def test_bytes_that_are_no_key_are_refused(data):
    with pytest.raises(KeyTypeError, match="not a key"):
        ANY.decode(bytes.fromhex(data))


@pytest.mark.parametrize("case", GOLDEN["keys"], ids=lambda case: case["key"])
def test_bytes_and_hash_are_what_they_have_always_been(case):
    key = eval(case["key"], NAMES)

    assert ANY.encode(key).hex() == case["bytes"]
    assert f"{ANY.hash(key):016x}" == case["hash"]
    assert f"{ANY.hash_many([key])[0]:016x}" == case["hash"]
    assert ANY.normalise(ANY.decode(bytes.fromhex(case["bytes"]))) == ANY.normalise(key)


def test_the_finaliser_is_splitmix64():
    first_of_seed_0 = mix64(0x9E3779B97F4A7C15)

    assert first_of_seed_0 == 0xE220A8397B1DCDAF


# -- declared types ------------------------------------------------------------------------------------------------


@given(st.sampled_from(list(BY_TYPE)).flatmap(lambda name: st.tuples(st.just(name), st.lists(BY_TYPE[name][1]))))
def test_a_declared_type_agrees_with_the_undeclared_one(case):
    name, some = case
    declared = key_type(BY_TYPE[name][0])
    normalised = [declared.normalise(key) for key in some]

    assert declared.name == name
    assert declared.normalise_many(some) == normalised
    assert [declared.encode(key) for key in some] == [ANY.encode(key) for key in some]
    assert declared.encode_many(normalised) == [ANY.encode(key) for key in some]
    assert ANY.encode_many([ANY.normalise(key) for key in some]) == [ANY.encode(key) for key in some]
    assert declared.decode_many(pa.array(declared.encode_many(normalised), pa.binary())) == normalised
    assert [declared.normalise(declared.denormalise(key)) for key in normalised] == normalised
    assert [declared.hash(key) for key in some] == [ANY.hash(key) for key in some]
    assert len({declared.encode(key) for key in some}) == len(set(normalised))


@given(st.sampled_from(list(BY_TYPE)).flatmap(lambda name: st.tuples(st.just(name), st.lists(BY_TYPE[name][1]))))
def test_many_hashes_are_the_hashes_of_each(case):
    name, some = case
    declared = key_type(BY_TYPE[name][0])
    each = [ANY.hash(key) for key in some]

    assert declared.hash_many(some).dtype == np.uint64
    assert declared.hash_many(some).tolist() == each
    assert declared.hash_many([declared.normalise(key) for key in some]).tolist() == each
    assert ANY.hash_many(some).tolist() == each
    assert ANY.hash_many([ANY.normalise(key) for key in some]).tolist() == each


@given(st.lists(keys))
def test_many_hashes_of_mixed_keys_are_the_hashes_of_each(some):
    assert ANY.hash_many(some).tolist() == [ANY.hash(key) for key in some]


@pytest.mark.parametrize(
    ("annotation", "key"),
    [
        *((int, key) for key in (True, 1.0, "1", None)),
        *((float, key) for key in ("1", True, 2**60 + 1)),
        *((date, datetime(2024, 1, 1)), (datetime, datetime(2024, 1, 1)), (datetime, date(2024, 1, 1))),
        (NaiveDatetime, datetime(2024, 1, 1, tzinfo=UTC)),
        *((str, b"a"), (bytes, "a"), (bool, 1), (UUID, "a"), (Decimal, 1), (int | None, "a")),
        *((tuple[int, str], key) for key in ((1,), (1, 2), [1, "a"], (True, "a"))),
    ],
)
def test_a_key_of_another_type_than_declared_is_refused(annotation, key):
    declared = key_type(annotation)

    for ask in (declared.normalise, declared.encode, declared.hash, lambda key: declared.hash_many([key])):
        with pytest.raises(KeyTypeError, match="declared as"):
            ask(key)


def test_stored_bytes_of_another_type_than_declared_are_refused():
    with pytest.raises(KeyTypeError, match="declared as int"):
        key_type(int).decode(ANY.encode("a"))


def test_a_declared_float_takes_ints_that_it_holds_exactly():
    assert key_type(float).encode(3) == ANY.encode(3.0)
    assert key_type(float).hash_many([3, 4.5]).tolist() == [ANY.hash(3.0), ANY.hash(4.5)]
    assert key_type(float).hash_column(pa.array([3, 4])).tolist() == [ANY.hash(3.0), ANY.hash(4.0)]


@pytest.mark.parametrize(
    "annotation", [list[int], dict[str, int], (), object, complex, tuple[int, ...], Enum, pa.list_(pa.int8())]
)
def test_a_type_that_cannot_be_a_key_is_refused_when_declared(annotation):
    with pytest.raises(KeyTypeError, match="cannot be"):
        key_type(annotation)


def test_key_types_come_from_columns():
    rows = record_type(tuple[int, str | None, Decimal])
    schema = record_type(pa.schema([("a", pa.int32()), ("b", pa.struct([("x", pa.string())]))]))

    assert key_type(field_type(rows, 0)).name == "int"
    assert key_type(field_type(rows, "f1")).name == "optional[str]"
    assert key_type((field_type(rows, 2), field_type(rows, 0))).name == "tuple[Decimal, int]"
    assert key_type(field_type(schema, "a")).name == "optional[int]"
    assert key_type(field_type(schema, "b")).name == "optional[tuple[optional[str]]]"
    assert key_type(int | str).name == "any"


@pytest.mark.parametrize("name", list(BY_TYPE))
def test_key_types_survive_pickling(name):
    declared = key_type(BY_TYPE[name][0])

    assert pickle.loads(pickle.dumps(declared)) == declared


# -- columns -------------------------------------------------------------------------------------------------------

integers = {
    pa.int8(): (-(2**7), 2**7 - 1),
    pa.int16(): (-(2**15), 2**15 - 1),
    pa.int32(): (-(2**31), 2**31 - 1),
    pa.int64(): (-(2**63), 2**63 - 1),
    pa.uint8(): (0, 2**8 - 1),
    pa.uint16(): (0, 2**16 - 1),
    pa.uint32(): (0, 2**32 - 1),
    pa.uint64(): (0, 2**64 - 1),
}
seconds = st.integers(-(10**9), 4 * 10**9)
instants = seconds.map(lambda s: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=s))
wall_clocks = seconds.map(lambda s: datetime(1970, 1, 1) + timedelta(seconds=s))
COLUMNS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    *((type, st.integers(*bounds)) for type, bounds in integers.items()),
    (pa.float16(), st.floats(width=16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    *((type, st.text()) for type in (pa.string(), pa.large_string(), pa.string_view())),
    *((type, st.binary()) for type in (pa.binary(), pa.large_binary(), pa.binary_view())),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    *((pa.dictionary(index, pa.string()), st.text()) for index in (pa.int8(), pa.int32())),
    (pa.dictionary(pa.int32(), pa.int64()), st.integers(-5, 5)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    *((pa.timestamp(unit, tz="UTC"), instants) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("us", tz="Europe/Berlin"), instants),
    *((pa.timestamp(unit), wall_clocks) for unit in ("s", "ms", "us", "ns")),
    (pa.decimal128(12, 4), st.decimals(-(10**7), 10**7, places=4)),
    (pa.decimal256(50, 4), st.decimals(-(10**30), 10**30, places=4)),
    (pa.null(), st.none()),
    (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none() | st.integers(-9, 9), "b": st.text()}),
    ),
]


def as_key(value: Any) -> Any:
    return (value["a"], value["b"]) if isinstance(value, dict) else value


@pytest.mark.parametrize(("arrow", "strategy"), COLUMNS, ids=[str(arrow) for arrow, _ in COLUMNS])
def test_a_column_has_the_hashes_of_its_values(arrow, strategy):
    @given(st.lists(st.none() | strategy, max_size=12), st.integers(0, 3))
    def check(values, cut):
        column = pa.array([np.float16(v) if arrow == pa.float16() and v is not None else v for v in values], arrow)
        expected = [ANY.hash(as_key(value)) for value in values]

        assert ANY.hash_column(column).tolist() == expected
        assert ANY.hash_column(column.slice(cut)).tolist() == expected[cut:]
        assert ANY.hash_column(pa.chunked_array([column.slice(0, cut), column.slice(cut)])).tolist() == expected
        assert key_type(arrow).hash_column(column).tolist() == expected
        assert hash_columns([column, column]).tolist() == [ANY.hash((as_key(v), as_key(v))) for v in values]

    check()


@given(st.sampled_from(list(BY_TYPE)).flatmap(lambda name: st.tuples(st.just(name), st.lists(BY_TYPE[name][1]))))
def test_a_column_that_a_declared_type_made_has_the_hashes_of_its_keys(case):
    name, some = case
    some = [key for key in some if name not in ("int", "optional[int]", "tuple[int, str]") or fits_64_bits(key)]
    annotation = BY_TYPE[name][0]
    column = data_type(annotation).to_arrow(some)

    assert key_type(annotation).hash_column(column).tolist() == [ANY.hash(key) for key in some]


def fits_64_bits(key: Any) -> bool:
    number = key[0] if isinstance(key, tuple) else key
    return number is None or -(2**63) <= number < 2**63


def test_tuple_keys_over_columns_use_the_declared_types_of_the_parts():
    ids = [uuid.UUID(int=at) for at in range(3)]
    amounts = [Decimal("1.0"), Decimal("1.00"), Decimal(2)]
    declared = key_type(tuple[UUID, Decimal])

    columns = [data_type(UUID).to_arrow(ids), data_type(Decimal).to_arrow(amounts)]

    assert declared.hash_columns(columns).tolist() == [ANY.hash(pair) for pair in zip(ids, amounts, strict=True)]


def test_int_columns_longer_than_a_block_hash_like_short_ones():
    values = np.arange(-40_000, 40_000, dtype=np.int64)
    hashes = ANY.hash_column(pa.array(values))

    assert [int(hashes[at]) for at in (0, 16_384, 40_000, 79_999)] == [
        ANY.hash(int(values[at])) for at in (0, 16_384, 40_000, 79_999)
    ]
    assert len(np.unique(hashes)) == len(values)


def test_nulls_in_a_column_of_a_declared_type_are_refused_unless_optional():
    column = pa.array([1, None])

    with pytest.raises(KeyTypeError, match="1 nulls"):
        key_type(int).hash_column(column)
    assert key_type(int | None).hash_column(column).tolist() == [ANY.hash(1), ANY.hash(None)]


def test_a_column_of_another_type_than_declared_is_refused():
    for annotation, column in [
        (int, pa.array([1.0])),
        (str, pa.array([b"a"])),
        (UUID, pa.array([b"a"])),
        (Decimal, pa.array([1])),
        (float, pa.array(["a"])),
        (datetime, pa.array([datetime(2024, 1, 1)])),
        (tuple[int, int], pa.array([1])),
    ]:
        with pytest.raises(KeyTypeError, match="holds no keys of the declared type"):
            key_type(annotation).hash_column(column)


def test_nanoseconds_that_keys_cannot_hold_are_refused():
    with pytest.raises(KeyTypeError, match="nanoseconds"):
        ANY.hash_column(pa.array([1001], pa.int64()).cast(pa.timestamp("ns")))


# -- key groups -----------------------------------------------------------------------------------------------------

parallelisms = st.integers(1, 32_768).flatmap(lambda most: st.tuples(st.integers(1, most), st.just(most)))


@given(parallelisms)
def test_every_key_group_has_exactly_one_owner(case):
    parallelism, max_parallelism = case
    ranges = [key_group_range(at, parallelism, max_parallelism) for at in range(parallelism)]

    assert all(ranges)
    assert ranges[0].start == 0
    assert ranges[-1].stop == max_parallelism
    assert all(before.stop == after.start for before, after in itertools.pairwise(ranges))


@given(parallelisms)
def test_the_owner_of_a_key_group_is_the_subtask_whose_range_has_it(case):
    parallelism, max_parallelism = case
    owners = subtask_of(np.arange(max_parallelism, dtype=np.int32), parallelism, max_parallelism)

    for subtask in {0, parallelism // 2, parallelism - 1}:
        own = key_group_range(subtask, parallelism, max_parallelism)
        assert np.flatnonzero(owners == subtask).tolist() == list(own)
        assert subtask_of(own[0], parallelism, max_parallelism) == subtask


@given(st.lists(st.integers(0, 2**64 - 1)), st.integers(1, 32_768))
def test_key_groups_of_many_hashes_are_those_of_each(hashes, max_parallelism):
    groups = key_groups(np.array(hashes, np.uint64), max_parallelism)

    assert groups.tolist() == [key_group(hash, max_parallelism) for hash in hashes]
    assert all(0 <= group < max_parallelism for group in groups)


def test_keys_that_follow_each_other_spread_over_the_key_groups():
    for column in (pa.array(range(128_000)), pa.array([f"user-{at}" for at in range(128_000)])):
        counts = np.bincount(key_groups(ANY.hash_column(column), 128), minlength=128)
        # 1000 expected, standard deviation about 31
        assert 800 < counts.min() < counts.max() < 1200


@pytest.mark.parametrize(
    ("parallelism", "expected"), [(1, 128), (85, 128), (86, 256), (170, 256), (171, 256), (172, 512)]
)
def test_the_default_max_parallelism_is_flinks(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected
    assert default_max_parallelism(32_768) == 32_768


@pytest.mark.parametrize(
    "ask",
    [
        lambda: key_group(1, 0),
        lambda: key_group(1, 32_769),
        lambda: key_groups(np.array([1], np.uint64), 32_769),
        lambda: key_group_range(0, 5, 4),
        lambda: key_group_range(4, 4, 4),
        lambda: subtask_of(0, 0, 4),
        lambda: default_max_parallelism(0),
        lambda: default_max_parallelism(32_769),
    ],
)
def test_parallelism_out_of_range_is_refused(ask):
    with pytest.raises(ConfigurationError):
        ask()


@given(st.lists(ints))
def test_a_column_of_ints_is_encoded_as_each_of_them(keys: list[int]) -> None:
    edges = [0, 1, -1, 255, 256, -255, -256, -257, 2**63 - 1, -(2**63), 2**56 - 1, -(2**56)]
    for many in (keys, [key for key in keys if -(2**63) <= key < 2**63] + edges, []):
        column = key_type(int).encode_column(many)
        assert column.type == pa.binary()
        assert column.to_pylist() == [key_type(int).encode(key) for key in many]


@pytest.mark.parametrize(
    ("one", "other", "common", "holds"),
    [
        (float, float, "float", True),
        (float, None, "float", False),
        (None, float, "float", True),
        (float | None, float, "optional[float]", True),
        (float, float | None, "optional[float]", False),
        (tuple[int, float | None], tuple[int, float], "tuple[int, optional[float]]", True),
        (tuple[int, str] | None, tuple[int, str], "optional[tuple[int, str]]", True),
        (int, float, None, False),
        (int | None, float | None, None, False),
        (tuple[int, str], tuple[int, bytes], None, False),
        (tuple[int, str], tuple[int], None, False),
        (tuple[int], int, None, False),
    ],
)
def test_types_of_keys_that_two_streams_can_share(one, other, common, holds):
    """`holds`: what was stored under the other can be read under the one."""
    first, second = key_type(one), key_type(other)

    found = common_key_type(first, second)

    assert (found and found.name) == common
    assert common_key_type(second, first) == found
    assert holds_keys_of(first, second) is holds


# -- whole columns of ints ---------------------------------------------------------------------------------------------

INT64S = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.integers(-300, 300), st.integers(0, 62).map(lambda bits: -(2**bits))
)


@given(st.lists(INT64S), st.integers(0, 3))
def test_a_column_of_ints_is_encoded_and_decoded_as_each_of_them_is(keys: list[int], left_out: int) -> None:
    encoded = encode_int64s(np.array(keys, np.int64))

    assert encoded.to_pylist() == list(map(encode_key, keys))
    decoded = decode_int64s(encoded[left_out:])
    assert decoded is not None
    assert decoded.tolist() == keys[left_out:]


@pytest.mark.parametrize("other", [2**63, -(2**63) - 1, 2**70, True, None, 1.0, "a", b"", (1,)])
def test_a_column_with_another_key_among_its_ints_is_not_one_of_ints(other: Any) -> None:
    assert decode_int64s(pa.array([encode_key(1), encode_key(other)], pa.binary())) is None


def test_a_column_with_no_bytes_or_a_null_is_not_one_of_ints() -> None:
    assert decode_int64s(pa.array([b""], pa.binary())) is None
    assert decode_int64s(pa.array([encode_key(1), None], pa.binary())) is None
