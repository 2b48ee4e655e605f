from __future__ import annotations

from dataclasses import dataclass

import pytest
from connector_kit import read_all, reader_context
from pyspark import cloudpickle

from tidegate.connectors.collection import Collection
from tidegate.connectors.contract import Split
from tidegate.connectors.sequence import NumberSequence
from tidegate.errors import ConfigurationError, TypeDeclarationError


@dataclass
class Order:
    id: int
    item: str | None = None


@dataclass
class Odd:
    anything: object


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([1, 2], int),
        ([True, False], bool),
        (["a"], str),
        ([1.5], float),
        ([("a", 1), ("b", 2)], tuple[str, int]),
        ([Order(1), Order(2, "x")], Order),
        ([], None),
        ([1, "a"], None),
        ([1, True], None),
        ([1, None], None),
        ([("a", 1), ("b",)], None),
        ([("a", 1), ("b", "c")], None),
        ([()], None),
        ([2**70], None),
        ([{"a": 1}], None),
        ([Order("not an int")], None),
        ([Odd(object())], None),
    ],
)
def test_the_type_is_inferred_where_all_items_agree(items, expected):
    assert Collection(items).record_type == expected


def test_an_item_that_does_not_fit_the_given_type_is_refused_at_once():
    with pytest.raises(TypeDeclarationError, match="'two'"):
        Collection([1, "two"], type=int)


def test_an_empty_collection_has_no_splits_and_no_rows():
    assert Collection([]).discover_splits(4) == []
    assert read_all(Collection([])) == []


def test_a_checkpoint_of_another_collection_is_refused():
    (split, *_) = Collection(range(100)).discover_splits(1)
    reader = Collection(range(200)).reader(reader_context())
    reader.add_splits([split])

    with pytest.raises(ConfigurationError, match="has 200 items"):
        reader.poll(0.0)


def test_a_position_outside_its_split_is_refused():
    source = Collection(range(100))
    reader = source.reader(reader_context())
    reader.add_splits([Split(source.discover_splits(1)[0].id, 99)])

    with pytest.raises(ConfigurationError, match="Position 99"):
        reader.poll(0.0)


def test_poll_returns_a_bounded_number_of_rows_even_after_the_deadline():
    reader = Collection(range(1_000_000)).reader(reader_context())
    reader.add_splits(Collection(range(1_000_000)).discover_splits(1))

    assert reader.poll(deadline=0.0) == list(range(4096))


def test_sources_travel_to_the_executors():
    source = cloudpickle.loads(cloudpickle.dumps(Collection([1, 2, 3])))
    assert read_all(source) == [1, 2, 3]


def test_a_sequence_includes_both_ends_and_comes_as_columns():
    assert read_all(NumberSequence(3, 3)) == [3]
    assert read_all(NumberSequence(1, 10)) == list(range(1, 11))
    reader = NumberSequence(1, 10**12).reader(reader_context())
    reader.add_splits(NumberSequence(1, 10**12).discover_splits(1))
    batch = reader.poll(0.0)
    assert batch.num_rows == 65536
    assert batch.column(0)[0].as_py() == 1


def test_a_sequence_reaches_the_ends_of_64_bits():
    assert read_all(NumberSequence(2**63 - 3, 2**63 - 1)) == [2**63 - 3, 2**63 - 2, 2**63 - 1]
    assert read_all(NumberSequence(-(2**63), -(2**63) + 1)) == [-(2**63), -(2**63) + 1]


@pytest.mark.parametrize(("start", "end"), [(2, 1), (0, 2**63), (-(2**63) - 1, 0)])
def test_a_sequence_that_cannot_be_is_refused(start, end):
    with pytest.raises(ConfigurationError, match="both included"):
        NumberSequence(start, end)


def test_a_checkpoint_of_another_sequence_is_refused():
    reader = NumberSequence(1, 200).reader(reader_context())
    reader.add_splits(NumberSequence(1, 100).discover_splits(1)[:1])

    with pytest.raises(ConfigurationError, match="not a split of the sequence 1 to 200"):
        reader.poll(0.0)
