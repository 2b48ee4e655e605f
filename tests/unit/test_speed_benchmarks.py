"""The benchmarks of speed at a tiny size, in one process: they run, and say what they measure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidegate.testing import in_process


def test_growth(benchmarks: Any, said: Any, tmp_path: Path) -> None:
    module = benchmarks("growth")
    page = tmp_path / "plots" / "growth.html"
    module.SERIES = {
        "parallelism": [1, 2],
        "keys": [10, 100],
        "bytes": [1, 2000],
        "layers": [2, 4],
        "operators": [1, 5],
    }
    with in_process():
        module.main(["--only", ",".join(module.SERIES), "--records", "400", "--page", str(page)], spark="none")

    result = said()
    assert [row["layers"] for row in result["layers"]] == [2, 4]
    assert all(row["records"] == 400 for name in module.SERIES for row in result[name])
    assert page.read_text().count("<svg") == 2 * len(module.SERIES)


def test_plots_keep_to_their_frame_whatever_is_measured(benchmarks: Any) -> None:
    module = benchmarks("growth_page")
    for values in ([1.0], [0.0, 0.0], [3.0, 3000.0], [5.0, 5.0]):
        low, high = module.bounds(values, min(values) > 0)
        for value in values:
            assert module.TOP <= module.y_of(value, low, high, min(values) > 0) <= module.HEIGHT - module.BOTTOM


def test_coordinator(benchmarks: Any, said: Any) -> None:
    benchmarks("coordinator").main(["--slots", "6,12"])

    few, more = said()["runs"]
    assert (few["slots"], more["slots"]) == (6, 12)
    assert few["metadata_bytes"] > 1000
    assert few["told_bytes"] < more["told_bytes"]


def test_latency(benchmarks: Any, monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    module = benchmarks("latency")
    monkeypatch.setattr(module, "WARM_UP_S", 0)
    monkeypatch.setattr(module, "RATE", 100)
    with in_process():
        module.main(["1", "--rates", "", "--lone", "0"], spark="none")

    result = said()
    assert result["records"] == 100
    assert result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert result["p50_100ms_ms"] <= result["p99_100ms_ms"]


def test_cpu_is_that_of_the_process_and_its_children(benchmarks: Any) -> None:
    module = benchmarks("latency")
    before = module.cpu_s()
    sum(range(2_000_000))

    assert module.cpu_s() > before


def test_encryption(benchmarks: Any, said: Any) -> None:
    module = benchmarks("encryption")
    with in_process():
        module.main(1, 4000, spark="none")

    result = said()
    for shape in module.PART:
        assert result[shape]["cost"] == round(1 - result[shape]["ratio"], 4)
    assert result["certificate_ms"] > 0
