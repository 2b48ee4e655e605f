"""A position is refused, or comes back from every stored form as it was: the same value of the same types."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.connectors.contract import Source, Split
from tidegate.connectors.split_check import kept_splits
from tidegate.errors import ConfigurationError
from tidegate.storage.json_values import MAX_NESTING, NotJson, json_copy
from tidegate.storage.metadata import (
    CheckpointMetadata,
    FileRef,
    SlotSnapshot,
    SplitState,
    SubtaskSnapshot,
    decode_metadata,
    encode_metadata,
)
from tidegate.storage.savepoint_format import sources_table
from tidegate.wire.control import Acknowledge, SnapshotTimings, decode_from_slot, encode

#: Whatever somebody may note as a place in their input.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**66), 2**66),
    st.floats(),
    st.text(st.characters()),
    st.binary(max_size=5),
    st.datetimes(),
    st.dates(),
    st.decimals(),
    st.uuids(),
    st.sampled_from([np.int64(3), np.float64(0.5), np.str_("a"), range(3), object(), {1}, frozenset("a"), 2j]),
)
KEYS = st.one_of(st.text(st.characters(), max_size=3), st.integers(), st.tuples(st.text(max_size=2), st.integers()))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4).map(OrderedDict),
    ),
    max_leaves=12,
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=10,
)


class Color(enum.StrEnum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


Pair = namedtuple("Pair", "a b")


class Words(Source):
    def discover_splits(self, parallelism):
        return []

    def reader(self, context):
        raise NotImplementedError


def exactly(value: Any) -> Any:
    """Tells apart what == takes for the same."""
    if isinstance(value, dict):
        return type(value), [(exactly(key), exactly(item)) for key, item in value.items()]
    if isinstance(value, list):
        return type(value), [exactly(item) for item in value]
    return type(value), repr(value)


def through_every_store(position: Any) -> list[Any]:
    """As a slot says it, as a checkpoint's metadata keeps it, and as a savepoint's table does."""
    subtask = SubtaskSnapshot("s", 0, splits=[SplitState("split", position)])
    snapshot = SlotSnapshot(0, 0, FileRef(0), [subtask])
    said = decode_from_slot(encode(Acknowledge(1, snapshot, SnapshotTimings()))).snapshot
    stored = decode_metadata(encode_metadata(CheckpointMetadata("job", 1, 1, 1, 0.0, 0.0, [], [said])), "here")
    (row,) = sources_table(stored.slots[0].subtasks).to_pylist()
    told = [said.subtasks[0], stored.slots[0].subtasks[0]]
    return [*(subtask.splits[0].position for subtask in told), json.loads(row["position"])]


@settings(max_examples=250, deadline=None)
@given(value=VALUES)
def test_a_position_is_refused_or_comes_back_as_it_was(value):
    try:
        copy = json_copy(value)
    except NotJson as refused:
        str(refused).encode()  # it can be sent and printed
        return
    assert exactly(copy) == exactly(value)
    for found in through_every_store(value):
        assert exactly(found) == exactly(value)


@settings(max_examples=100, deadline=None)
@given(value=JSON)
def test_what_json_has_is_never_refused(value):
    assert exactly(json_copy(value)) == exactly(value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({0: 17, 1: 30}, r"the key 0 is an int, and would come back as text; write str\(key\)"),
        ({("orders", 0): 3}, r"the key \('orders', 0\) is a tuple, and keys must be text"),
        ({"at": {True: 1}}, r"at \['at'\], the key True is a bool, and keys must be text"),
        ({"a": [1, b"x"]}, r"at \['a'\]\[1\], b'x' is a bytes, and would come back as text; write value\.hex\(\)"),
        (datetime.datetime(2026, 1, 1), r"is a datetime, and would come back as text; write value\.isoformat\(\)"),
        (datetime.date(2026, 1, 1), r"is a date, and would come back as text"),
        ((1, 2), r"\(1, 2\) is a tuple, and would come back as a list; write list\(value\)"),
        (Pair(1, 2), r"is a Pair, which JSON does not have"),
        (float("nan"), "nan is a float, and would come back as None"),
        ({"x": float("-inf")}, r"at \['x'\], -inf is a float, and would come back as None"),
        (2**64, r"18446744073709551616 is an int beyond 64 bits; write str\(value\)"),
        (-(2**63) - 1, "beyond 64 bits"),
        ("caf\udce9", r"the text 'caf\\udce9' is not Unicode"),
        ({"\ud83d": 1}, r"the key '\\ud83d' is not Unicode"),
        ({1, 2}, r"is a set, and would come back as a list; write sorted\(value\)"),
        (Color.RED, r"is a Color, and would come back as a plain str; write str\(value\)"),
        (Number.ONE, r"is a Number, and would come back as a plain int"),
        (np.float64(0.5), "is a float64, and would come back as a plain float"),
        (np.int64(5), "is an int64, which JSON does not have"),
        (defaultdict(int, a=1), r"is a defaultdict, and would come back as a plain dict; write dict\(value\)"),
        (Counter("a"), "would come back as a plain dict"),
        (decimal.Decimal(1), "is a Decimal, which JSON does not have"),
        (uuid.UUID(int=1), "is an UUID, which JSON does not have"),
    ],
)
def test_what_would_change_is_refused_with_its_place_and_the_way_out(value, told):
    with pytest.raises(NotJson, match=told):
        json_copy(value)


def test_a_position_may_be_large_but_not_bottomless():
    wide = {"offsets": [[n, n + 1] for n in range(2000)]}
    assert json_copy(wide) == wide
    for depth, fits in [(MAX_NESTING, True), (MAX_NESTING + 1, False), (5000, False)]:
        value: Any = 1
        for _ in range(depth):
            value = [value]
        if fits:
            assert json_copy(value) == value
        else:
            with pytest.raises(NotJson, match="nested deeper than 100 levels"):
                json_copy(value)
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotJson, match="nested deeper"):
        json_copy(endless)


@pytest.mark.parametrize(
    ("split", "told"),
    [
        (Split(7), r"Words names a split 7: an id is text, write str\(id\)"),  # type: ignore[arg-type]
        (Split("caf\udce9"), r"Words names a split that no checkpoint can keep: the text 'caf\\udce9' is not Unicode"),
        (Split("a", finished=np.bool_(True)), r"Words gives the split 'a' finished=.*True.*: it must be True or False"),  # type: ignore[arg-type]
        (Split("a", {1: 2}), r"Words gives the split 'a' a position that no checkpoint can keep: the key 1 is an int"),  # type: ignore[arg-type]
    ],
)
def test_a_split_that_no_checkpoint_can_keep_is_refused_with_the_users_class(split, told):
    with pytest.raises(ConfigurationError, match=told):
        kept_splits([Split("fine", {"n": 1}), split], Words())


def test_two_splits_of_one_name_are_refused() -> None:
    """Of one of them a checkpoint would have no position."""
    with pytest.raises(ConfigurationError, match="Words names two splits 'b'"):
        kept_splits([Split("a"), Split("b", 1), Split("c"), Split("b", 2)], Words())


def test_what_is_kept_of_a_split_is_a_copy_that_the_reader_cannot_change():
    position = {"n": [1]}
    (kept,) = kept_splits([Split("a", position)], Words())
    position["n"].append(2)
    assert kept == SplitState("a", {"n": [1]})
    assert msgspec.to_builtins(kept) == {"id": "a", "position": {"n": [1]}, "finished": False}
