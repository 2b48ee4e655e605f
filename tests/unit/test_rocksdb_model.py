"""The RocksDB backend against plain dictionaries: the heap's own random operations, with ample memory and with none."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from rocksdb_kit import AMPLE, NO_MEMORY, rocks_backends
from state_kit import MAX_PARALLELISM, bound, plain
from test_state_heap_model import KEY_SETS, Run, steps

from tidegate.state.keys import key_type

HALVES = (range(MAX_PARALLELISM // 2), range(MAX_PARALLELISM // 2, MAX_PARALLELISM))


@pytest.mark.parametrize("values_bytes", [AMPLE, NO_MEMORY, 3000], ids=["ample", "none", "little"])
@pytest.mark.parametrize("columnar", [False, True], ids=["objects", "columns"])
@pytest.mark.parametrize("keys", list(KEY_SETS))
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # each example opens databases: shrinking would take minutes
)
@given(data=st.data())
def test_state_snapshots_and_restores_agree_with_plain_dictionaries(keys, columnar, values_bytes, data):
    annotation, pool = KEY_SETS[keys]
    type_of_key = key_type(annotation)
    with rocks_backends(values_bytes) as backends:
        run = Run(type_of_key, *backends.bound(type_of_key, columnar))
        for operation, *arguments in data.draw(steps(pool)):
            operation(run, *arguments)

        run.snapshot()
        snapshot, expected = run.snapshots.pop()
        final = list(snapshot.sections())
        while run.snapshots:
            run.read_and_release(0)
        assert plain(final, type_of_key) == expected == run.model.state

        # Into the heap, into RocksDB by rows, by files, and by files in two halves.
        heap, _ = bound(type_of_key, columnar)
        rows, function = backends.bound(type_of_key, not columnar)
        for section in final:
            heap.restore(section.state, section.kind, [section.rows])
            rows.restore(section.state, section.kind, [section.rows])
        adopted, _ = backends.bound(type_of_key, columnar)
        assert adopted.restore_files([backends.fetched(snapshot, "adopted", range(MAX_PARALLELISM))])
        for restored in (heap, rows, adopted):
            assert plain(restored.snapshot().sections(), type_of_key) == run.model.state
        halves: dict[str, dict] = {name: {} for name in run.model.state}
        for half in HALVES:
            part, _ = backends.bound(type_of_key, columnar, half)
            assert not part.restore_files([backends.fetched(snapshot, f"{half}", range(MAX_PARALLELISM))])
            for name, entries in plain(part.snapshot().sections(), type_of_key).items():
                assert not halves[name].keys() & entries.keys()
                halves[name] |= entries
        assert halves == run.model.state
        for key in pool:
            rows.set_current_key(type_of_key.normalise(key))
            assert function.total.get() == run.model.state["total"].get(type_of_key.normalise(key), 0)
            assert function.log.get() == run.model.state["log"].get(type_of_key.normalise(key), [])
