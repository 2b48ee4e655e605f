"""Unaligned checkpoints over random graphs, interleavings and faults: the same cases and checks as the aligned ones.

After a restore at another parallelism, records that were in flight on a rebalance have no order between them: they had
been dealt to different subtasks. So there order is checked on keyed edges alone, by the keyed functions themselves; where
the parallelism stays, on every route. At-least-once is held to less: nothing is lost.
"""

from __future__ import annotations

import os
import random
from typing import Any

import pytest
import test_exactly_once_property as aligned
from random_graphs import differences

from matrices import first
from tidegate.task.in_flight import store_parts

BATCHES = 8
RUNS_IN_A_BATCH = 15
LEAST_MEMORY_BYTES = 2000
TIMEOUTS_MS = (0, 0, 0, 1, 5, 20, 50)


def draw_unaligned(seed: int, rescale: bool) -> aligned.Case:
    case = aligned.draw_case(seed, rescale)
    timeout_ms = random.Random(seed * 7 + 1).choice(TIMEOUTS_MS)
    case.settings |= {"unaligned": True, "max_concurrent": 1, "aligned_timeout": f"{timeout_ms}ms"}
    if case.limits["held_disk_bytes"] < 1 << 30:
        # Barriers and flushes count too. Where a slot has no time to read them between two checkpoints, none would complete.
        case.limits["held_memory_bytes"] = max(case.limits["held_memory_bytes"], LEAST_MEMORY_BYTES)
        case.settings["every"] = "1s"
    return case


def run_and_check(seed: int, rescale: bool) -> None:
    case = draw_unaligned(seed, rescale)
    try:
        result = aligned.run_rescaled(case) if rescale else aligned.run_case(case)
        found = [line for line in differences(case.graph) if not (rescale and " after " in line)]
        assert not found, "\n".join(found)
        aligned.check_storage(result, case.settings["retained"])
    except BaseException:
        print(case)
        raise


def run_at_least_once(seed: int) -> None:
    case = aligned.draw_case(seed)
    case.settings |= {"mode": "at-least-once"}
    try:
        result = aligned.run_case(case)
        lost = [line for line in differences(case.graph) if " lost, as " in line and "-counts:" not in line]
        assert not lost, "\n".join(lost)
        aligned.check_storage(result, case.settings["retained"])
    except BaseException:
        print(case)
        raise


def seeds(batch: int, runs: int) -> list[int]:
    given = os.environ.get("TIDEGATE_SEED")
    return [int(given)] if given is not None else [batch * 1000 + number for number in range(runs)]


@pytest.mark.parametrize("batch", first(3, range(BATCHES)))
def test_each_record_is_applied_once(batch: int) -> None:
    for seed in seeds(batch, RUNS_IN_A_BATCH):
        run_and_check(seed, rescale=False)


@pytest.mark.parametrize("batch", first(3, range(BATCHES)))
def test_each_record_is_applied_once_at_another_parallelism(batch: int) -> None:
    for seed in seeds(batch, RUNS_IN_A_BATCH):
        run_and_check(seed, rescale=True)


@pytest.mark.parametrize("rescale", [False, True])
def test_each_record_is_applied_once_where_much_is_in_flight_and_stored_in_parts(
    rescale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[int] = []

    def counted(*given: Any) -> Any:
        stored = store_parts(*given)
        parts.append(len(stored[0]))
        return stored

    monkeypatch.setattr("tidegate.task.in_flight.SECTION_BYTES", 20)
    monkeypatch.setattr("tidegate.task.in_flight.PART_BYTES", 60)
    monkeypatch.setattr("tidegate.task.snapshots.store_parts", counted)
    for seed in seeds(60, RUNS_IN_A_BATCH):
        run_and_check(seed, rescale)
    assert max(parts) > 1


@pytest.mark.parametrize("batch", first(1, range(3)))
def test_at_least_once_loses_nothing(batch: int) -> None:
    for seed in seeds(batch + 20, RUNS_IN_A_BATCH):
        run_at_least_once(seed)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch", range(5))
def test_each_record_is_applied_once_in_thousands_of_runs(batch: int) -> None:
    for seed in range(100_000 * (batch + 1), 100_000 * (batch + 1) + 500):
        run_and_check(seed, rescale=False)
        run_and_check(seed, rescale=True)
        run_at_least_once(seed)
