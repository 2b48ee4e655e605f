"""Incremental snapshots from end to end: a database, a storage, a lineage, and restores from what was stored."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rocksdb_kit import RocksBackends, rocks_backends
from state_kit import MAX_PARALLELISM, plain
from storage_kit import Storage

from tidegate.errors import CheckpointDamaged, StorageError
from tidegate.ids import CheckpointId
from tidegate.protocol.shared_state import SharedFile, SharedStateRegistry
from tidegate.state.backend import StoredFolder
from tidegate.state.keys import key_type
from tidegate.storage.state_files import SmallFile, StateFiles, StoredFile, fetch_state
from tidegate.task.incremental import Lineage, store_increment

INT = key_type(int)
ALL = range(MAX_PARALLELISM)


class Subtask:
    """One subtask of one attempt: its backend, its lineage."""

    def __init__(self, backends: RocksBackends, storage: Storage, attempt: int = 1) -> None:
        self.backends = backends
        self.storage = storage
        self.attempt = attempt
        self.backend, self.function = backends.bound(INT)
        self.lineage = Lineage()

    def change(self, numbers: list[int], value: int) -> None:
        for number in numbers:
            self.backend.set_current_key(number)
            self.function.total.set(value)

    def store(self, checkpoint: int, share: bool = True) -> StateFiles:
        snapshot = self.backend.snapshot()
        try:
            return store_increment(
                self.lineage,
                snapshot.files(),
                self.storage,
                CheckpointId(checkpoint),
                lambda name: f"chk-{checkpoint}/a{self.attempt}/{name}",
                uid="sum",
                subtask=0,
                key_groups=ALL,
                share=share,
            )
        finally:
            snapshot.release()

    def complete(self, checkpoint: int) -> StateFiles:
        state = self.store(checkpoint)
        self.lineage.completed(CheckpointId(checkpoint))
        return state

    def restore(self, state: StateFiles, folder: Path, checkpoint: int) -> bool:
        fetch_state(self.storage, state, folder)
        adopted = self.backend.restore_files([StoredFolder(folder, state.key_groups)])
        if adopted:
            self.lineage.restored(CheckpointId(checkpoint), state.files)
        return adopted

    def totals(self) -> dict[Any, Any]:
        return plain(self.backend.snapshot().sections(), INT)["total"]


@pytest.fixture
def backends() -> Iterator[RocksBackends]:
    with rocks_backends() as made:
        yield made


@pytest.fixture
def storage() -> Storage:
    return Storage()


@pytest.fixture
def subtask(backends: RocksBackends, storage: Storage) -> Subtask:
    return Subtask(backends, storage)


def test_a_second_checkpoint_stores_only_what_is_new_and_names_everything(subtask, storage):
    subtask.change(list(range(1000)), 1)
    first = subtask.complete(1)
    subtask.change([7], 2)
    second = subtask.complete(2)

    assert {file.path for file in first.files} == set(storage.puts[: len(first.files)])
    assert set(storage.puts[len(first.files) :]) == {file.path for file in second.files if file.checkpoint == 2}
    assert {file.path for file in first.files} < {file.path for file in second.files}
    assert second.added_bytes(2) < first.added_bytes(1) / 3
    assert second.size_bytes() > first.size_bytes()


def test_a_checkpoint_without_changes_stores_no_table(subtask, storage):
    subtask.change([1], 1)
    subtask.complete(1)
    before = len(storage.puts)

    assert subtask.complete(2).files == subtask.complete(3).files
    assert len(storage.puts) == before


def test_what_was_not_confirmed_is_stored_again_under_another_path(subtask, storage):
    subtask.change([1], 1)
    first = subtask.store(1)  # and nothing is heard of it
    second = subtask.store(2)

    assert {file.name for file in first.files} == {file.name for file in second.files}
    assert not {file.path for file in first.files} & {file.path for file in second.files}


def test_a_savepoint_shares_nothing_in_either_direction(subtask):
    subtask.change([1], 1)
    subtask.complete(1)
    savepoint = subtask.store(2, share=False)
    subtask.lineage.completed(CheckpointId(2))
    third = subtask.complete(3)

    assert {file.checkpoint for file in savepoint.files} == {2}
    assert {file.checkpoint for file in third.files} == {1}


def test_a_failed_upload_leaves_nothing_behind_and_nothing_is_built_on_it(subtask, storage):
    subtask.change([1], 1)
    subtask.complete(1)
    before = dict(storage.objects)
    subtask.change([2], 2)
    subtask.function.log.set(["another table"])
    storage.failing_put = len(storage.puts) + 1

    with pytest.raises(StorageError, match="full"):
        subtask.store(2)
    assert storage.objects == before
    storage.failing_put = None
    third = subtask.complete(3)
    assert {file.checkpoint for file in third.files} == {1, 3}


def test_a_new_attempt_goes_on_from_the_files_and_builds_on_them(backends, storage, subtask, tmp_path):
    subtask.change(list(range(500)), 1)
    subtask.complete(1)
    subtask.change([7], 2)
    state = subtask.complete(2)
    expected = subtask.totals()

    following = Subtask(backends, storage, attempt=2)
    assert following.restore(state, tmp_path / "fetched", 2)
    assert following.totals() == expected
    following.change([8], 3)
    third = following.complete(3)
    assert {file.checkpoint for file in third.files} == {1, 2, 3}
    assert {file.path for file in third.files if file.checkpoint == 3} <= {
        path for path in storage.objects if path.startswith("chk-3/a2/")
    }


def test_state_of_another_range_is_copied_and_stored_as_new(backends, storage, subtask, tmp_path):
    subtask.change(list(range(200)), 1)
    state = subtask.complete(1)
    half = range(MAX_PARALLELISM // 2)
    following = Subtask(backends, storage, attempt=2)
    following.backend, following.function = backends.bound(INT, False, half)

    assert not following.restore(state, tmp_path / "fetched", 1)
    assert 0 < len(following.totals()) < 200
    assert {file.checkpoint for file in following.complete(2).files} == {2}


@pytest.mark.parametrize("damage", ["missing", "cut", "changed", "longer"])
def test_a_stored_table_that_is_damaged_is_found_before_it_is_used(subtask, storage, tmp_path, damage):
    subtask.change([1], 1)
    state = subtask.complete(1)
    path = state.files[0].path
    data = storage.objects.pop(path)
    if damage == "cut":
        storage.objects[path] = data[:-1]
    elif damage == "changed":
        storage.objects[path] = data[:-1] + bytes([data[-1] ^ 1])
    elif damage == "longer":
        storage.objects[path] = b"x" + data

    with pytest.raises(CheckpointDamaged, match=path):
        fetch_state(storage, state, tmp_path / "fetched")


@pytest.mark.parametrize("name", ["../CURRENT", "/etc/passwd", "", ".."])
def test_a_file_name_that_leaves_the_folder_is_refused(storage, tmp_path, name):
    with pytest.raises(CheckpointDamaged, match="not a plain name"):
        fetch_state(storage, StateFiles("sum", 0, 0, 1, [], [SmallFile(name, b"x")]), tmp_path / "fetched")


@pytest.mark.parametrize("seed", range(4))
def test_every_retained_checkpoint_can_be_restored_whatever_was_deleted(backends, storage, subtask, tmp_path, seed):
    """The registry deletes as the driver would; compactions, aborts and late acknowledgements are among the steps."""
    rng = random.Random(seed)
    registry = SharedStateRegistry()
    retained: dict[int, tuple[StateFiles, dict[Any, Any]]] = {}
    model: dict[int, int] = {}
    late: list[tuple[int, StateFiles]] = []
    for checkpoint in range(1, 31):
        changed = rng.sample(range(300), 30)
        subtask.change(changed, checkpoint)
        model |= dict.fromkeys(changed, checkpoint)
        state = subtask.store(checkpoint)
        outcome = rng.choice(["complete", "complete", "abort", "late"])
        if outcome == "late":
            late.append((checkpoint, state))
            subtask.lineage.aborted(CheckpointId(checkpoint))
            continue
        registry.acknowledged(CheckpointId(checkpoint), shared(state))
        if outcome == "abort":
            subtask.lineage.aborted(CheckpointId(checkpoint))
            continue
        retained[checkpoint] = (state, dict(model))
        retained = dict(sorted(retained.items())[-2:])
        for path in registry.completed(CheckpointId(min(retained))):
            del storage.objects[path]
        subtask.lineage.completed(CheckpointId(checkpoint))
        while late:
            for path in registry.acknowledged(CheckpointId(late[0][0]), shared(late.pop(0)[1])):
                del storage.objects[path]
    for checkpoint, (state, expected) in retained.items():
        restored = Subtask(backends, storage, attempt=2)
        assert restored.restore(state, tmp_path / f"{checkpoint}", checkpoint)
        assert restored.totals() == expected


def shared(state: StateFiles) -> list[SharedFile]:
    return [shared_file(file) for file in state.files]


def shared_file(file: StoredFile) -> SharedFile:
    return SharedFile(file.path, file.size, CheckpointId(file.checkpoint))
