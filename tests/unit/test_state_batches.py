"""Batches of keys, on every backend and in both layouts."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tidegate.errors import KeyTypeError, TypeDeclarationError
from tidegate.state.declarations import ValueState
from tidegate.state.keys import key_type


class Sums:
    whole = ValueState(int)
    exact = ValueState(float, default=0.5)
    flag = ValueState(bool)
    text = ValueState(str)


def handle(backends, state, columnar, annotation=int):
    backend = backends.new(key_type(annotation))
    return backend, backend.bind(state, columnar)


both_layouts = pytest.mark.parametrize("columnar", [False, True], ids=["dictionaries", "columns"])


@both_layouts
def test_a_key_without_a_value_is_null_or_the_default(backends, columnar):
    _, whole = handle(backends, Sums.whole, columnar)
    _, exact = handle(backends, Sums.exact, columnar)
    whole.update_many(pa.array([1, 2, 1]), pa.array([10, 20, 30]))

    assert whole.get_many(pa.array([2, 3, 1])).to_pylist() == [20, None, 30]
    assert exact.get_many(pa.array([2, 3])).to_pylist() == [0.5, 0.5]
    assert exact.get_many(pa.array([2])).type == pa.float64()


@both_layouts
def test_adding_starts_at_the_default(backends, columnar):
    _, exact = handle(backends, Sums.exact, columnar)

    running = exact.add_many(pa.array([7, 8, 7]), pa.array([1.0, 2.0, 4.0]), running=True)
    assert running.to_pylist() == [1.5, 2.5, 5.5]
    assert exact.get_many(pa.array([7, 8])).to_pylist() == [5.5, 2.5]


@both_layouts
def test_one_number_can_be_added_to_all_rows(backends, columnar):
    _, whole = handle(backends, Sums.whole, columnar)
    whole.add_many(np.array([1, 1, 2]), 1)

    assert whole.get_many(np.array([1, 2])).to_pylist() == [2, 1]


@both_layouts
def test_empty_batches_change_nothing(backends, columnar):
    backend, whole = handle(backends, Sums.whole, columnar)
    none = pa.array([], pa.int64())
    whole.add_many(none, none)
    whole.update_many(none, none)

    assert whole.add_many(none, none, running=True).to_pylist() == []
    assert whole.get_many(none).to_pylist() == []
    assert backend.state_size() == {"whole": 0}


@both_layouts
@pytest.mark.parametrize("values", [pa.array([2**62, 2**62]), pa.array([-(2**62), -(2**62) - 1])])
def test_a_sum_beyond_64_bits_is_refused_and_never_wraps(backends, values, columnar):
    _, whole = handle(backends, Sums.whole, columnar)
    whole.update_many(pa.array([5]), pa.array([2**62 if values[0].as_py() > 0 else -(2**62)]))

    with pytest.raises(TypeDeclarationError, match="64 bits"):
        whole.add_many(pa.array([5, 5]), values)


def test_sums_at_the_edge_of_64_bits_are_exact(backends):
    _, whole = handle(backends, Sums.whole, True)
    whole.add_many(pa.array([5, 5, 6]), pa.array([2**62, 2**62 - 1, -(2**63)]))
    whole.add_many(pa.array([5]), pa.array([-1]))

    assert whole.get_many(pa.array([5, 6])).to_pylist() == [2**63 - 2, -(2**63)]


@both_layouts
def test_only_numbers_can_be_added_to(backends, columnar):
    for state in (Sums.flag, Sums.text):
        _, no_number = handle(backends, state, columnar)
        with pytest.raises(TypeDeclarationError, match="nothing can be added"):
            no_number.add_many(pa.array([1]), pa.array([1]))


@both_layouts
def test_columns_that_do_not_fit_are_refused(backends, columnar):
    _, whole = handle(backends, Sums.whole, columnar)
    with pytest.raises(TypeDeclarationError, match="'whole'"):
        whole.update_many(pa.array([1]), pa.array(["x"]))
    with pytest.raises(TypeDeclarationError, match="'whole'"):
        whole.add_many(pa.array([1, 2]), pa.array([1, None]))
    with pytest.raises(ValueError, match="2 keys but 1 values"):
        whole.update_many(pa.array([1, 2]), pa.array([1]))
    with pytest.raises(KeyTypeError):
        whole.update_many(pa.array([1.5]), pa.array([1]))
    with pytest.raises(KeyTypeError):
        whole.get_many(pa.array([1, None]))


@both_layouts
def test_bools_and_text_can_be_kept_in_batches(backends, columnar):
    backend, flag = handle(backends, Sums.flag, columnar)
    _, text = handle(backends, Sums.text, columnar)
    flag.update_many(pa.array([1, 2]), pa.array([True, False]))
    text.update_many(pa.array([1, 2]), pa.array(["a", "b"]))
    backend.set_current_key(1)

    assert flag.get() is True
    assert flag.get_many(pa.array([1, 2, 3])).to_pylist() == [True, False, None]
    assert text.get_many(pa.array([2, 3])).to_pylist() == ["b", None]


@both_layouts
@pytest.mark.parametrize(
    "keys",
    [
        pa.array([3, 4, 3], pa.int8()),
        pa.array([3, 4, 3], pa.uint64()),
        pa.array([3, 4, 3]).dictionary_encode(),
        pa.chunked_array([[3], [4, 3]]),
        pa.array([0, 3, 4, 3]).slice(1),
        np.array([3, 4, 3], dtype=np.int32),
        pd.Series([3, 4, 3]).to_numpy(),
    ],
    ids=["int8", "uint64", "dictionary", "chunked", "sliced", "numpy", "pandas"],
)
def test_int_keys_are_equal_by_value_in_every_layout(backends, keys, columnar):
    backend, whole = handle(backends, Sums.whole, columnar)
    backend.set_current_key(4)
    whole.set(100)
    whole.add_many(keys, pa.array([1, 2, 3]))

    assert whole.get() == 102
    assert whole.get_many(pa.array([3, 4])).to_pylist() == [4, 102]


@both_layouts
def test_null_and_wide_ints_are_keys_beside_the_others(backends, columnar):
    backend, whole = handle(backends, Sums.whole, columnar, int | None)
    wide = pa.array([2**63, 1, 2**64 - 1], pa.uint64())
    whole.add_many(pa.array([None, 1, None, 2]), 1)
    whole.add_many(wide, 10)
    whole.add_many(pa.array([2, 1, None]), 1)
    backend.set_current_key(2**64 - 1)

    assert whole.get() == 10
    assert whole.get_many(pa.array([None, 1, 2, 3])).to_pylist() == [3, 12, 2, None]
    assert whole.get_many(wide).to_pylist() == [10, 12, 10]
    stored = {
        key: row["value"]
        for s in backend.snapshot().sections()
        for row in s.rows.to_pylist()
        for key in [backend.key_type.decode(row["key"])]
    }
    assert stored == {None: 3, 1: 12, 2: 2, 2**63: 10, 2**64 - 1: 10}
