"""Column tables: batches of keys, and what must hold when they grow over many chunks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import backend_for, bound, plain

from tidegate.errors import CheckpointDamaged, KeyTypeError, TypeDeclarationError
from tidegate.state import heap_columns
from tidegate.state.declarations import ValueState
from tidegate.state.keys import key_type
from tidegate.state.running_folds import running_folds

INT = key_type(int)


class Sums:
    whole = ValueState(int)
    exact = ValueState(float, default=0.5)
    flag = ValueState(bool)
    text = ValueState(str)


def handle(state, columnar, annotation=int):
    backend = backend_for(key_type(annotation))
    return backend, backend.bind(state, columnar)


both_layouts = pytest.mark.parametrize("columnar", [False, True], ids=["dictionaries", "columns"])


@both_layouts
def test_a_key_without_a_value_is_null_or_the_default(columnar):
    _, whole = handle(Sums.whole, columnar)
    _, exact = handle(Sums.exact, columnar)
    whole.update_many(pa.array([1, 2, 1]), pa.array([10, 20, 30]))

    assert whole.get_many(pa.array([2, 3, 1])).to_pylist() == [20, None, 30]
    assert exact.get_many(pa.array([2, 3])).to_pylist() == [0.5, 0.5]
    assert exact.get_many(pa.array([2])).type == pa.float64()


@both_layouts
def test_adding_starts_at_the_default(columnar):
    _, exact = handle(Sums.exact, columnar)

    running = exact.add_many(pa.array([7, 8, 7]), pa.array([1.0, 2.0, 4.0]), running=True)
    assert running.to_pylist() == [1.5, 2.5, 5.5]
    assert exact.get_many(pa.array([7, 8])).to_pylist() == [5.5, 2.5]


@both_layouts
def test_one_number_can_be_added_to_all_rows(columnar):
    _, whole = handle(Sums.whole, columnar)
    whole.add_many(np.array([1, 1, 2]), 1)

    assert whole.get_many(np.array([1, 2])).to_pylist() == [2, 1]


@both_layouts
def test_empty_batches_change_nothing(columnar):
    backend, whole = handle(Sums.whole, columnar)
    none = pa.array([], pa.int64())
    whole.add_many(none, none)
    whole.update_many(none, none)

    assert whole.add_many(none, none, running=True).to_pylist() == []
    assert whole.get_many(none).to_pylist() == []
    assert backend.state_size() == {"whole": 0}


@both_layouts
@pytest.mark.parametrize("values", [pa.array([2**62, 2**62]), pa.array([-(2**62), -(2**62) - 1])])
def test_a_sum_beyond_64_bits_is_refused_and_never_wraps(values, columnar):
    _, whole = handle(Sums.whole, columnar)
    whole.update_many(pa.array([5]), pa.array([2**62 if values[0].as_py() > 0 else -(2**62)]))

    with pytest.raises(TypeDeclarationError, match="64 bits"):
        whole.add_many(pa.array([5, 5]), values)


def test_sums_at_the_edge_of_64_bits_are_exact():
    _, whole = handle(Sums.whole, True)
    whole.add_many(pa.array([5, 5, 6]), pa.array([2**62, 2**62 - 1, -(2**63)]))
    whole.add_many(pa.array([5]), pa.array([-1]))

    assert whole.get_many(pa.array([5, 6])).to_pylist() == [2**63 - 2, -(2**63)]


@both_layouts
def test_only_numbers_can_be_added_to(columnar):
    for state in (Sums.flag, Sums.text):
        _, no_number = handle(state, columnar)
        with pytest.raises(TypeDeclarationError, match="nothing can be added"):
            no_number.add_many(pa.array([1]), pa.array([1]))


@both_layouts
def test_columns_that_do_not_fit_are_refused(columnar):
    _, whole = handle(Sums.whole, columnar)
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
def test_bools_and_text_can_be_kept_in_batches(columnar):
    backend, flag = handle(Sums.flag, columnar)
    _, text = handle(Sums.text, columnar)
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
def test_int_keys_are_equal_by_value_in_every_layout(keys, columnar):
    backend, whole = handle(Sums.whole, columnar)
    backend.set_current_key(4)
    whole.set(100)
    whole.add_many(keys, pa.array([1, 2, 3]))

    assert whole.get() == 102
    assert whole.get_many(pa.array([3, 4])).to_pylist() == [4, 102]


@both_layouts
def test_null_and_wide_ints_are_keys_beside_the_others(columnar):
    backend, whole = handle(Sums.whole, columnar, int | None)
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


def test_a_large_table_agrees_with_pandas_through_snapshots_growth_and_deletion():
    """Many chunks, many levels of the index, small and large batches, single keys in between."""
    random = np.random.default_rng(20240607)
    backend, function = bound(INT, True)
    model: dict[int, int] = {}
    held = []
    for size in (1, 100, 5_000, 30_000, 3, 60_000, 100, 20_000):
        keys = random.integers(-60_000, 60_000, size) * 1_000_003
        numbers = random.integers(-1000, 1000, size)
        function.total.add_many(pa.array(keys), pa.array(numbers))
        for key, number in pd.Series(numbers).groupby(keys).sum().items():
            model[key] = model.get(key, 0) + number
        for key in [*random.choice(keys, min(size, 50)).tolist(), int(random.integers(2**40, 2**41))]:
            backend.set_current_key(key)
            assert function.total.get() == model.get(key, 0)
            if key % 2:
                function.total.clear()
                model.pop(key, None)
            else:
                function.total.set(key % 1000)
                model[key] = key % 1000
        held.append((backend.snapshot(), dict(model)))
        if len(held) > 2:
            snapshot, expected = held.pop(0)
            assert plain(snapshot.sections(), INT)["total"] == expected
            snapshot.release()
    for snapshot, expected in held:
        assert plain(snapshot.sections(), INT)["total"] == expected
        snapshot.release()

    probe = pa.array(random.integers(-70_000, 70_000, 10_000) * 1_000_003)
    assert function.total.get_many(probe).to_pylist() == [model.get(key, 0) for key in probe.to_pylist()]
    assert backend.state_size()["total"] == len(model)


@pytest.mark.parametrize("annotation", [int, int | None, str])
def test_the_rows_of_cleared_keys_are_used_again_and_live_snapshots_do_not_notice(annotation):
    keys = [str(n) if annotation is str else n for n in range(heap_columns.COMPACT_AFTER_CLEARS + 5_000)]
    if annotation == int | None:
        keys[10] = None
    backend, whole = handle(Sums.whole, True, annotation)
    whole.update_many(pa.array(keys), pa.array(range(len(keys))))
    before = backend.snapshot()
    for key in keys[5_000:]:
        backend.set_current_key(key)
        whole.clear()
    whole.add_many(pa.array([keys[0], keys[10], keys[-1]]), 1)
    after = backend.snapshot()

    assert backend.state_size() == {"whole": 5_001}
    assert whole.get_many(pa.array([keys[1], keys[10], keys[-1], keys[-2]])).to_pylist() == [1, 11, 1, None]
    assert sum(section.rows.num_rows for section in before.sections()) == len(keys)
    stored = [row["value"] for section in after.sections() for row in section.rows.to_pylist()]
    assert sorted(stored) == sorted([*range(1, 10), *range(11, 5_000), 1, 11, 1])


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.floats(allow_nan=False, allow_infinity=False, width=32)),
        min_size=1,
        max_size=300,
    )
)
def test_running_sums_are_to_the_last_bit_those_of_adding_one_by_one(steps):
    rows = np.array([row for row, _ in steps])
    numbers = np.array([number for _, number in steps], dtype=np.float64)
    totals, expected_totals = np.full(6, 0.1), np.full(6, 0.1)
    expected = []
    for row, number in zip(rows, numbers, strict=True):
        expected_totals[row] += number
        expected.append(expected_totals[row])
    at_once = np.full(6, 0.1)
    np.add.at(at_once, rows, numbers)

    assert running_folds(np.add, totals, rows, numbers).tolist() == expected
    assert totals.tolist() == expected_totals.tolist() == at_once.tolist()


@both_layouts
@pytest.mark.parametrize("others", [[], [None], [2**70], [None, -(2**80)]])
def test_stored_columns_are_restored_as_columns_whatever_keys_stand_beside_the_ints(columnar, others):
    old, whole = handle(Sums.whole, columnar, int | None)
    keys = [*range(-50, 50), 2**62, -(2**63), *others]
    for number, key in enumerate(keys):
        old.set_current_key(old.key_type.normalise(key))
        whole.set(number)
    backend, whole = handle(Sums.whole, columnar, int | None)
    for section in old.snapshot().sections():
        backend.restore(section.state, section.kind, [section.rows])

    ints = [key for key in keys if key is not None and -(2**63) <= key < 2**63]
    assert whole.get_many(np.array(ints)).to_pylist() == list(range(len(ints)))
    whole.add_many(np.array([*ints, 1000]), 1)  # one is new
    for number, key in enumerate(keys):
        backend.set_current_key(backend.key_type.normalise(key))
        assert whole.get() == number + (key in ints)
    assert whole.get_many(np.array([1000])).to_pylist() == [1]


def test_a_key_that_is_stored_twice_is_found_out():
    old, whole = handle(Sums.whole, True)
    whole.update_many(np.array([7]), np.array([1]))
    (section,) = old.snapshot().sections()
    backend, whole = handle(Sums.whole, True)
    for _ in range(2):
        backend.restore(section.state, section.kind, [section.rows])

    with pytest.raises(CheckpointDamaged, match="holds the key 7 twice"):
        whole.get_many(np.array([7]))
