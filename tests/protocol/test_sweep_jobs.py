"""Nothing is left behind in storage: after kills, aborted checkpoints, failed requests and take-overs.

What may be there is worked out from the files alone, without the classes under test: the log, and whatever the metadata
of the checkpoints that its newest record retains names by a "path".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from protocol_kit import Numbered, assert_relayed_exactly, fresh_storage, relayed_job, run_to_the_end

import tidegate as tg
from stored_files import left_behind
from tidegate.coordinator.observing import JobStatus
from tidegate.storage.local_store import LocalStore
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import ALL_POINTS, Crash, SimulatedCrash
from tidegate.testing.ledger_sink import forget_ledgers
from tidegate.testing.runner import InProcessRun
from tidegate.testing.stores import FailCall, FlakyStore

IN_FILES = {"inline_limit_bytes": 0}
#: how state is stored, and how the names of its files end
LAYOUTS = {
    "hashmap in full": ("hashmap", False, ".snapshot"),
    "hashmap increments": ("hashmap", True, ".state"),
    "rocksdb in full": ("rocksdb", False, ".snapshot"),
    "rocksdb increments": ("rocksdb", True, ".state"),
}
every_layout = pytest.mark.parametrize("layout", LAYOUTS)


def stored_job(storage: str, layout: str, *source: Numbered, **settings: Any) -> tg.StreamEnvironment:
    backend, incremental, _ = LAYOUTS[layout]
    env = relayed_job(storage, *source, limits=IN_FILES, **settings)
    return env.state_backend(backend, incremental=incremental, memory="4mb")


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


@pytest.mark.parametrize("point", ALL_POINTS)
def test_nothing_is_left_behind_by_a_process_that_dies_at(point: str) -> None:
    storage = fresh_storage()
    run_to_the_end(
        relayed_job(storage, limits=IN_FILES), 1, Crash(point, nth=1 if "finished" in point else 2), zombies=False
    )

    assert_relayed_exactly()
    assert left_behind(open_store(storage)) == []


@every_layout
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_left_behind_by_many_deaths(seed: int, layout: str) -> None:
    storage = fresh_storage()
    crashes = [Crash("slot.before-ack", nth=3, times=4), Crash("driver.before-log", nth=2, times=2)]
    run_to_the_end(stored_job(storage, layout, retained=2), seed, *crashes, zombies=False)

    assert_relayed_exactly()
    assert left_behind(open_store(storage)) == []


@every_layout
@pytest.mark.parametrize("call", [1, 4])
def test_nothing_is_left_behind_by_aborted_checkpoints_of_an_attempt_that_goes_on(call: int, layout: str) -> None:
    """One slot cannot store its snapshot, three times; the others have stored theirs."""
    storage = fresh_storage()
    fault = FailCall("put", call=call, path=LAYOUTS[layout][2], times=3)
    store = FlakyStore(open_store(storage), [fault])
    run = InProcessRun(stored_job(storage, layout, tolerable_failures=10), 2, store=store, zombies=False)
    result = run.run()

    assert result.status is JobStatus.FINISHED
    assert result.attempts == 1
    assert store._calls[0] >= call + fault.times, "it did not fail"
    assert_relayed_exactly()
    assert left_behind(store) == []


def test_nothing_is_left_behind_by_a_deletion_that_failed() -> None:
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), [FailCall("delete", call=1, times=2)])
    run_to_the_end(relayed_job(storage, limits=IN_FILES), 3, store=store, zombies=False)

    assert left_behind(store) == []


def test_nothing_but_what_is_retained_is_left_behind_by_a_job_that_failed() -> None:
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), [FailCall("put", call=6, path=".snapshot", times=1000)])
    env = relayed_job(storage, Numbered(1, splits=5, per_split=60), limits=IN_FILES)
    env.restart_strategy("none")

    assert InProcessRun(env, 4, store=store, zombies=False).run().status is JobStatus.FAILED
    assert any(path.endswith(".snapshot") for path in store.list("job"))
    assert left_behind(store) == []


class _KilledWhileWriting(LocalStore):
    """The process dies with half of a file of state on the disk."""

    def __init__(self, root: str, ending: str) -> None:
        super().__init__(root)
        self.ending = ending
        self.puts = self.deaths = 0

    def put(self, path: str, data: Any) -> None:
        self.puts += path.endswith(self.ending)
        if path.endswith(self.ending) and self.puts in (3, 5, 9):
            self.deaths += 1
            half = bytes(memoryview(data).cast("B"))[: memoryview(data).nbytes // 2]
            target = Path(self._root) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_name(f".{target.name}.0123abcd.tmp").write_bytes(half)
            raise SimulatedCrash(path)
        super().put(path, data)


@every_layout
def test_nothing_is_left_behind_by_kills_in_mid_upload(tmp_path: Path, layout: str) -> None:
    store = _KilledWhileWriting(str(tmp_path), LAYOUTS[layout][2])
    result = InProcessRun(stored_job(str(tmp_path), layout), 5, store=store, zombies=False).run()

    assert result.status is JobStatus.FINISHED
    assert store.deaths == 3
    assert result.attempts == 4
    assert_relayed_exactly()
    assert left_behind(store) == []


@pytest.mark.parametrize("seed", range(3))
def test_a_sweep_takes_nothing_from_zombies_and_takeovers_that_the_log_needs(seed: int) -> None:
    """Workers that were thought dead continue uploading, drivers die around the commit point: the answer stays exact, and
    the log refers to nothing that is gone (`left_behind` looks)."""
    storage = fresh_storage()
    crashes = [Crash("driver.after-log", nth=2), Crash("slot.before-store", nth=4, times=3)]
    run_to_the_end(relayed_job(storage, limits=IN_FILES, retained=2), seed, *crashes)

    assert_relayed_exactly()
    left_behind(open_store(storage))
