"""Jobs whose slots restore from copies on their own disks: nothing is read from storage, and damage never matters.

The product's own slots and coordinator, in this process. Storage counts what is read from it; copies are real files.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from protocol_kit import assert_counted_once, fresh_storage
from test_incremental_jobs import BACKENDS, SOURCE, assert_all_kinds_agree, job

import tidegate as tg
from tidegate.coordinator.observing import JobStatus, JobView, SlotRestored
from tidegate.coordinator.savepoints import SavepointRequest
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import ALL_POINTS, Crash
from tidegate.testing.ledger_sink import forget_ledgers, ledger
from tidegate.testing.runner import Ask, InProcessRun, RunResult
from tidegate.testing.stores import CountingStore

WAYS = [("hashmap", False), *BACKENDS]


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


class Reads(CountingStore):
    """Notes which files of state are read."""

    def __init__(self, uri: str) -> None:
        super().__init__(open_store(uri))
        self.read: list[str] = []

    def get_range(self, path: str, start: int, length: int) -> bytes:
        self.read.append(path)
        return super().get_range(path, start, length)


def with_copies(storage: str, way: tuple[str, bool], disk: Path, parallelism: int = 2, **settings: Any) -> Any:
    env = job(storage, *way, parallelism, **settings)
    # Without the inline limit even tiny state is a file.
    env._config = replace(env._config, local_recovery=True, local_recovery_folder=str(disk), inline_limit_bytes=0)
    return env


def run(
    env: tg.StreamEnvironment, store: Reads, *crashes: Crash, seed: int = 5, asks: tuple[Ask, ...] = ()
) -> RunResult:
    result = InProcessRun(env, seed, list(crashes), store=store, asks=asks).run()
    assert result.error is None
    assert result.status is JobStatus.FINISHED
    assert_counted_once(ledger("out").rows(), SOURCE)
    assert_all_kinds_agree()
    return result


def restores(view: JobView) -> list[SlotRestored]:
    """Of the last attempt."""
    return list(view.restored_slots.values())


def copies_on(disk: Path) -> list[Path]:
    return [path for path in disk.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_restore_reads_nothing_from_storage(way: tuple[str, bool], tmp_path: Path) -> None:
    storage = fresh_storage()
    store = Reads(storage)

    result = run(with_copies(storage, way, tmp_path), store, Crash("slot.aligned", nth=9))

    assert result.attempts == 2
    assert result.view.restores == 1
    assert store.read == []
    assert sum(slot.local_bytes for slot in restores(result.view)) > 0
    assert sum(slot.storage_bytes + slot.rejected_copies for slot in restores(result.view)) == 0
    assert copies_on(tmp_path) == [], "the job has finished"
    assert any("0 from storage" in line.message for line in result.view.lines)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_without_local_recovery_the_same_run_reads_storage(way: tuple[str, bool], tmp_path: Path) -> None:
    storage = fresh_storage()
    store = Reads(storage)
    env = with_copies(storage, way, tmp_path)
    env._config = replace(env._config, local_recovery=False)

    result = run(env, store, Crash("slot.aligned", nth=9))

    assert store.read
    assert sum(slot.storage_bytes for slot in restores(result.view)) > 0
    assert not any(tmp_path.iterdir())


class Vandal(Reads):
    """Damages the copies when a restore begins: the probe of an attempt is written before its slots start."""

    def __init__(self, uri: str, disk: Path, damage: str) -> None:
        super().__init__(uri)
        self._disk = disk
        self._damage = damage
        self.damaged = 0

    def put(self, path: str, data: Any) -> None:
        super().put(path, data)
        if "/probe/" in path:
            for copy in copies_on(self._disk):
                self._spoil(copy)

    def _spoil(self, copy: Path) -> None:
        self.damaged += 1
        data = bytearray(copy.read_bytes())
        data[len(data) // 2] ^= 0x10
        match self._damage:
            case "changed":
                _replace(copy, bytes(data))
            case "cut":
                _replace(copy, bytes(data[: len(data) // 2]))
            case "missing":
                copy.unlink()
            case "swapped":
                others = [other for other in copies_on(self._disk) if other != copy]
                _replace(copy, others[0].read_bytes() if others else b"")


def _replace(copy: Path, data: bytes) -> None:
    """Not in place: the file may be a link to a table that a database uses."""
    copy.unlink()
    copy.write_bytes(data)


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "swapped"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_damaged_copies_never_lead_to_a_wrong_restore(way: tuple[str, bool], damage: str, tmp_path: Path) -> None:
    storage = fresh_storage()
    store = Vandal(storage, tmp_path, damage)

    result = run(with_copies(storage, way, tmp_path), store, Crash("slot.aligned", nth=9))

    assert store.damaged
    assert store.read
    assert sum(slot.storage_bytes for slot in restores(result.view)) > 0
    rejected = sum(slot.rejected_copies for slot in restores(result.view))
    assert (rejected > 0) == (damage != "missing")


POINTS = [point for point in ALL_POINTS if point != "driver.after-finished"]


@pytest.mark.parametrize(("point", "way"), list(zip(POINTS, itertools.cycle(WAYS))), ids=str)
def test_a_crash_at_each_step_twice_in_a_row(way: tuple[str, bool], point: str, tmp_path: Path) -> None:
    """Also of drivers: the next one finds the copies, and whatever the dead attempts left is gone at the end."""
    storage = fresh_storage()
    nth = 1 if "finished" in point or point == "slot.restored" else 2 if point.startswith("driver") else 3

    run(with_copies(storage, way, tmp_path), Reads(storage), Crash(point, nth=nth, times=2), seed=2)

    assert copies_on(tmp_path) == []


@pytest.mark.parametrize("new", [3, 1])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_rescaled_job_reads_its_copies(way: tuple[str, bool], new: int, tmp_path: Path) -> None:
    storage = fresh_storage()
    store = Reads(storage)
    ask = Ask(SavepointRequest(None, stop=StopMode.RESCALE, parallelism=new), after_checkpoints=1)

    result = run(with_copies(storage, way, tmp_path), store, seed=3, asks=(ask,))

    assert ask.outcome.parallelism == new
    assert store.read == []
    assert sum(slot.local_bytes for slot in restores(result.view)) > 0
    assert copies_on(tmp_path) == []


def test_in_flight_records_are_read_from_copies_too(tmp_path: Path) -> None:
    storage = fresh_storage()
    store = Reads(storage)
    env = with_copies(storage, ("rocksdb", True), tmp_path, unaligned=True)

    result = run(env, store, Crash("slot.barrier-forwarded", nth=14), seed=7)

    assert result.view.restores == 1
    assert store.read == []


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_no_more_than_one_completed_checkpoint_has_copies(
    way: tuple[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at whenever older ones have been deleted."""
    from tidegate.task.copy_folder import CopyFolder

    left: list[set[str]] = []
    delete_below = CopyFolder.delete_below

    def noting(self: CopyFolder, checkpoint: Any) -> None:
        delete_below(self, checkpoint)
        left.append({path.parent.name.split(".")[0] for path in copies_on(tmp_path)})

    monkeypatch.setattr(CopyFolder, "delete_below", noting)
    storage = fresh_storage()
    run(with_copies(storage, way, tmp_path), Reads(storage))

    assert len(left) > 4
    assert max(map(len, left)) <= 2, "the completed one, and one under way"
