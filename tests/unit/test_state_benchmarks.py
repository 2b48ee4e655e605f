"""The benchmarks of state lean on classes of the product: with a few keys each, they still run, and say what they measure."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from tidegate.testing import in_process


def test_snapshot_pause(benchmarks: Any, monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    module = benchmarks("snapshot_pause")
    monkeypatch.setattr(module, "AT_LEAST_S", 0.0)
    monkeypatch.setattr(module, "WARM_UP_S", 0.0)
    monkeypatch.setattr(module, "KEYS_OF", {10_000: 50, 100_000: 100, 1_000_000: 200})
    interval = sys.getswitchinterval()
    try:
        module.main(1)
    finally:
        sys.setswitchinterval(interval)

    assert set(said()["asynchronous_ms"]) == {
        f"{layout}_{keys}" for layout in ("columns", "objects") for keys in (10_000, 100_000, 1_000_000)
    }


def test_incremental(benchmarks: Any, monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    module = benchmarks("incremental")
    monkeypatch.setattr(module, "COMPACTION_TIME_S", 0.0)
    module.main(500, 3)

    found = said()
    assert found["orphans"] == 0
    for faults in found["after_faults"].values():
        assert faults["killed_in_mid_upload"] == 3
        assert faults["checkpoints_given_up"] >= 3


def test_rocksdb(benchmarks: Any, monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    module = benchmarks("rocksdb")
    monkeypatch.setattr(module, "KEYS", 100)
    monkeypatch.setattr(module, "BATCH", 64)
    monkeypatch.setattr(module, "SMALL_MEMORY_BYTES", 1 << 18)
    module.main(1, 20_000)

    for way in said()["beyond_the_cache"].values():
        assert way["keys"] == 10 * way["keys_in_memory"] > 0


def test_large_state(benchmarks: Any, monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    module = benchmarks("large_state")
    monkeypatch.setattr(module, "CHECKED", (200, 1000))
    monkeypatch.setattr(module, "perf_counter", itertools.count().__next__)  # so that more work takes longer, always
    with in_process():
        assert module.checked(None, "uniform", False) == ["tidegate uniform"]
        module.main(["--keys", "200", "--updates", "1000", "--no-flink", "--memory-mb", "16"], spark="none")

    result = said()
    assert result["tidegate_zipf_updates_per_s"] > 0
    assert result["longest_pause_ms"] >= result["pause_p999_ms"]
    assert result["checkpoints_completed"] > 0


def test_large_state_updates_a_few_keys_often_by_zipfs_law(benchmarks: Any) -> None:
    module = benchmarks("large_state")
    indices = module.np.arange(20_000)
    counts = {
        spread: module.np.sort(module.np.bincount(module.keys_of(indices, 1000, spread), minlength=1000))
        for spread in module.SPREADS
    }

    assert counts["uniform"].min() > 5
    assert counts["uniform"].max() < 50
    assert counts["zipf"][-1] > 1500
    assert counts["zipf"].min() == 1, "each key was inserted"


def test_a_percentile_of_pauses_counts_the_batches_without_one(benchmarks: Any) -> None:
    module = benchmarks("large_state")
    runs = [{"pauses": module.np.array([0.2, 0.5]), "batches": 1000}]

    assert module.pause_percentile_ms(runs, 0.999) == 500
    assert module.pause_percentile_ms(runs, 0.998) == 200
    assert module.pause_percentile_ms(runs, 0.5) == 0


def test_heap_restore(benchmarks: Any, tmp_path: Path) -> None:
    module = benchmarks("heap_restore")
    for layout in module.LAYOUTS:
        kind = module.store(layout, 3000, tmp_path / layout)
        assert module.restore(layout, kind, tmp_path / layout)["keys"] == 3000


def test_recovery_says_what_is_claimed_by_one_name_each(benchmarks: Any) -> None:
    found = benchmarks("recovery").headline(
        {
            "small": {"small": {"recovery": 0.7}},
            "1gb_rocksdb": {
                "local": {"recovery": 1.1},
                "storage": {"recovery": 1.4},
                "rescale_s": {"2->3": 1.5, "3->2": 9},
            },
            "heap": {"heap_20m_keys_s": 5.5},
        }
    )

    assert found == {
        "recovery_s": 0.7,
        "rocksdb_1gb_local_s": 1.1,
        "rocksdb_1gb_storage_s": 1.4,
        "rescale_1gb_s": 1.5,
        "heap_20m_keys_s": 5.5,
    }
