"""Short texts as numbers: their hash is the library's, and an index of them is a dictionary."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from tidegate.state import heap_text_index
from tidegate.state.heap_text_index import TextIndex
from tidegate.state.key_codec import Kind
from tidegate.state.key_hash import hash_contents
from tidegate.state.keys import key_type
from tidegate.state.short_texts import LONGEST, ShortTexts, hashed, short_texts

LAYOUTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


def contents(rng: random.Random, count: int, longest: int) -> list[bytes]:
    return [bytes(rng.choice(b"ab\x00\x7f") for _ in range(rng.randint(0, longest))) for _ in range(count)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_hash_of_short_texts_is_that_of_the_library(layout: pa.DataType) -> None:
    rng = random.Random(5)
    given = contents(rng, 2000, LONGEST)
    array = pa.array(given, pa.binary()).cast(layout).slice(3)
    texts = short_texts(array)
    assert texts is not None
    for seed in (0, 6, 0xFFFF_FFFF):
        assert hashed(texts, seed).tolist() == [xxhash.xxh3_64_intdigest(content, seed) for content in given[3:]]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_columns_of_long_and_short_texts_and_nulls_are_hashed_as_each_value_is(layout: pa.DataType) -> None:
    rng = random.Random(6)
    given: list[Any] = [None if rng.random() < 0.1 else content for content in contents(rng, 20_000, 40)]
    array = pa.array(given, pa.binary()).cast(layout)
    one_by_one = np.concatenate([hash_contents(array.slice(at, 100), Kind.STR) for at in range(0, len(array), 100)])
    assert np.array_equal(hash_contents(array, Kind.STR), one_by_one)
    assert np.array_equal(hash_contents(array.slice(77), Kind.STR), one_by_one[77:])


def few_hashes(texts: ShortTexts, seed: int) -> Any:
    return hashed(texts, seed) % np.uint64(7)


@pytest.mark.parametrize("collide", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_an_index_of_texts_is_a_dictionary(seed: int, collide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a dict: whole columns, lists, single keys; also where most texts have the mix of another one."""
    if collide:
        monkeypatch.setattr(heap_text_index, "hashed", few_hashes)
        digest = xxhash.xxh3_64_intdigest
        monkeypatch.setattr(
            heap_text_index.xxhash, "xxh3_64_intdigest", lambda content, seed: digest(content, seed) % 7
        )
    rng = random.Random(seed)
    index, model = TextIndex(key_type(str | None)), {}
    texts = ["", "a", "süd", "x" * 16, "x" * 17, "ü" * 9, "a\0", "\0", None, *(f"user-{n}" for n in range(300))]
    frozen: list[tuple[Any, list[Any]]] = []
    for _ in range(40):
        keys = [rng.choice(texts) for _ in range(rng.randint(1, 60))]
        form = rng.choice(["column", "wide column", "list", "one by one", "not added"])
        column = pa.array(keys, pa.large_string() if form == "wide column" else pa.string())
        if form == "not added":
            assert index.find(column).tolist() == [model.get(key, -1) for key in keys]
            assert [index.find_one(key) for key in keys] == [model.get(key, -1) for key in keys]
            continue
        if form == "one by one":
            rows = [index.find_or_add_one(key) for key in keys]
        else:
            rows = index.find_or_add(keys if form == "list" else column).tolist()
        for key, row in zip(keys, rows, strict=True):
            assert model.setdefault(key, row) == row
        assert len(set(model.values())) == len(model) == index.length
        by_row = [key for key, _ in sorted(model.items(), key=lambda entry: entry[1])]
        frozen.append((index.reader(), by_row))
    for read, by_row in frozen:  # each as it was
        assert read(0, len(by_row)) == by_row
        assert read(2, len(by_row) - 1) == by_row[2:-1]
    kept = index.only(np.arange(0, index.length, 3))  # those that were passed over are gone, and come again as new ones
    assert kept.reader()(0, kept.length) == by_row[::3]
    assert kept.find(pa.array(by_row[::3], pa.string())).tolist() == list(range(kept.length))
    gone = [key for at, key in enumerate(by_row) if at % 3]
    assert set(kept.find(pa.array(gone, pa.string())).tolist()) <= {-1}
    again = kept.find_or_add(pa.array(by_row * 2, pa.string())).tolist()
    assert again[: len(by_row)] == again[len(by_row) :]
    assert sorted(again[: len(by_row)]) == list(range(len(by_row)))


def test_keys_in_namespaces_have_rows_of_their_own() -> None:
    index = TextIndex(key_type(str))
    rows = index.find_or_add_each(["a", ("a", b"window"), "b" * 20])
    assert rows.tolist() == [0, 1, 2]
    assert [index.find_one(key) for key in ("a", ("a", b"window"), "b" * 20, "c")] == [0, 1, 2, -1]
