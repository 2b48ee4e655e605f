"""Column tables: batches of keys, and what must hold when they grow over many chunks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from state_kit import backend_for, bound, plain

from tidegate.errors import CheckpointDamaged
from tidegate.state import heap_columns
from tidegate.state.declarations import ValueState
from tidegate.state.keys import key_type
from tidegate.state.running_folds import running_folds

INT = key_type(int)


class Sums:
    whole = ValueState(int)


def handle(state, columnar, annotation=int):
    backend = backend_for(key_type(annotation))
    return backend, backend.bind(state, columnar)


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


@pytest.mark.parametrize("columnar", [False, True], ids=["one by one", "columns"])
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
