"""Increments of heap state against a plain model: random changes, snapshots, completions, aborts, restores; new bases."""

from __future__ import annotations

import random
from typing import Any

import pytest
from state_kit import MAX_PARALLELISM, Everything, plain
from storage_kit import Storage

from matrices import in_turn
from tidegate.errors import CheckpointDamaged
from tidegate.ids import CheckpointId
from tidegate.protocol.shared_state import SharedFile, SharedStateRegistry
from tidegate.savepoints.stored_sections import stored_sections
from tidegate.state.backend import bind_states
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import KeyType, key_type
from tidegate.storage.state_files import StateFiles
from tidegate.task import keyed_files
from tidegate.task.keyed_files import HeapFiles, restore_files

ALL = range(MAX_PARALLELISM)


class Subtask:
    """One subtask of one attempt."""

    def __init__(self, keys: KeyType, storage: Storage, columnar: bool, attempt: int = 1) -> None:
        self.keys = keys
        self.storage = storage
        self.attempt = attempt
        self.backend = HeapStateBackend(keys, ALL, MAX_PARALLELISM, incremental=True)
        self.function = Everything()
        bind_states(self.function, self.backend, columnar)
        self.files = HeapFiles(
            "sum",
            0,
            ALL,
            storage,
            lambda checkpoint, name: f"chk-{checkpoint}/a{attempt}/{name}",
            backend=self.backend,
        )

    def store(self, checkpoint: int) -> StateFiles:
        snapshot = self.backend.snapshot()
        state = self.files.store(CheckpointId(checkpoint), snapshot)
        self.files.let_go(snapshot)
        return state

    def completed(self, checkpoint: int) -> None:
        self.files.completed(CheckpointId(checkpoint))

    def content(self) -> dict[str, dict[Any, Any]]:
        snapshot = self.backend.snapshot()
        try:
            return plain(snapshot.sections(), self.keys)
        finally:
            snapshot.release()

    def change(self, dice: random.Random, keys: list[Any]) -> None:
        function = self.function
        self.backend.set_current_key(self.keys.normalise(dice.choice(keys)))
        match dice.randrange(12):
            case 0 | 1:
                function.total.set(dice.randrange(1000))
            case 2:
                function.total.clear()
            case 3:
                function.tags.set([dice.randrange(9)])
            case 4:
                function.log.add(str(dice.random()))
            case 5:
                function.log.clear()
            case 6 | 7:
                function.counts.put(dice.choice("abc"), dice.randrange(9))
            case 8:
                function.counts.remove(dice.choice("abc"))
            case 9:
                function.counts.clear()
            case 10:
                function.best.add(dice.randrange(99))
            case 11:
                function.mean.add(dice.randrange(99))
        self.backend.clear_current_key()


def restored(state: StateFiles, like: Subtask, columnar: bool, attempt: int) -> Subtask:
    fresh = Subtask(like.keys, like.storage, columnar, attempt)
    assert restore_files(fresh.backend, like.storage, [state])
    return fresh


def shared(state: StateFiles) -> list[SharedFile]:
    return [SharedFile(file.path, file.size, CheckpointId(file.checkpoint)) for file in state.files]


@pytest.mark.property
@pytest.mark.parametrize(("seed", "columnar"), in_turn(range(15), [False, True]))
def test_whatever_completes_or_not_a_checkpoint_holds_the_moment_it_was_taken(seed: int, columnar: bool) -> None:
    dice = random.Random(seed)
    keys, of = dice.choice(
        [(list(range(40)), int), ([f"k{i}" for i in range(40)], str), ([(1, "x"), (2, "")], tuple[int, str])]
    )
    subtask = Subtask(key_type(of), Storage(), columnar)
    registry = SharedStateRegistry()
    pending: dict[int, tuple[StateFiles, Any]] = {}
    logged: tuple[int, StateFiles, Any] | None = None
    increments = 0
    for checkpoint in range(1, 25):
        for _ in range(dice.choice([0, 3, 60])):
            subtask.change(dice, keys)
        content = subtask.content()
        state = subtask.store(checkpoint)
        increments += len(state.files) > 1
        for path in registry.acknowledged(CheckpointId(checkpoint), shared(state)):
            subtask.storage.delete(path)
        pending[checkpoint] = state, content
        match dice.randrange(6):
            case 0:
                pending.pop(checkpoint)
                subtask.files.aborted(CheckpointId(checkpoint))
            case 1:
                pass  # the answer is late, or lost
            case _:
                done = dice.choice(list(pending))
                logged = (done, *pending[done])
                pending = {id: each for id, each in pending.items() if id > done}
                subtask.completed(done)
                for path in registry.completed(CheckpointId(done)):
                    subtask.storage.delete(path)
        if logged is None:
            continue
        number, state, content = logged
        fresh = restored(state, subtask, columnar, subtask.attempt + 1)
        assert fresh.content() == content
        if not dice.randrange(5):  # the attempt fails: a new one goes on from the logged checkpoint, and builds on it
            fresh.files.restored(CheckpointId(number), state)
            subtask, pending = fresh, {}
    assert increments or seed, "some checkpoint must have been an increment"


def taken(subtask: Subtask, checkpoint: int) -> list[str]:
    return [file.name for file in subtask.store(checkpoint).files]


def three_keys(columnar: bool = False) -> Subtask:
    subtask = Subtask(key_type(int), Storage(), columnar)
    for key in range(3):
        subtask.backend.set_current_key(key)
        subtask.function.total.set(key)
    return subtask


def test_nothing_is_built_on_a_checkpoint_that_is_not_completed() -> None:
    subtask = three_keys()
    assert taken(subtask, 1) == ["base"]
    assert taken(subtask, 2) == ["base"]
    subtask.completed(1)
    assert taken(subtask, 3) == ["base"], "2 may still complete, and 1's files would be gone"
    subtask.completed(3)
    assert taken(subtask, 4) == ["base", "changes"]
    subtask.files.aborted(CheckpointId(4))
    assert taken(subtask, 5) == ["base", "changes"]


def test_a_savepoint_in_between_changes_nothing() -> None:
    subtask = three_keys()
    subtask.store(1)
    subtask.completed(1)
    subtask.store(2)
    subtask.completed(3)  # a savepoint: this subtask has stored nothing for it here
    subtask.completed(2)
    assert taken(subtask, 4) == ["base", "changes", "changes"]


def test_increments_that_are_large_together_make_a_new_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_files, "LARGEST_SHARE", 0.0)
    subtask = three_keys()
    for checkpoint, expected in enumerate([["base"], ["base", "changes"], ["base"]], start=1):
        assert taken(subtask, checkpoint) == expected
        subtask.completed(checkpoint)


def test_rows_that_were_numbered_anew_make_a_new_base() -> None:
    subtask = three_keys(columnar=True)
    subtask.store(1)
    subtask.completed(1)
    subtask.backend._states["total"][1]._compact()
    assert taken(subtask, 2) == ["base"]


def test_of_old_subtasks_only_our_key_groups_are_read() -> None:
    subtask = three_keys()
    subtask.store(1)
    subtask.completed(1)
    subtask.backend.set_current_key(1)
    subtask.function.total.clear()
    state = subtask.store(2)
    whole = plain(stored_sections(subtask.storage, state, ALL), subtask.keys)["total"]
    assert whole == {0: 0, 2: 2}
    halves = [
        plain(stored_sections(subtask.storage, state, half), subtask.keys)["total"] for half in (ALL[:8], ALL[8:])
    ]
    assert halves[0].keys().isdisjoint(halves[1])
    assert halves[0] | halves[1] == whole


@pytest.mark.parametrize("damage", ["missing", "cut", "changed index", "changed rows"])
def test_a_damaged_increment_is_never_read(damage: str) -> None:
    subtask = three_keys()
    state = subtask.store(1)
    (file,) = state.files
    data = bytearray(subtask.storage.objects[file.path])
    if damage == "missing":
        subtask.storage.delete(file.path)
    elif damage == "cut":
        subtask.storage.objects[file.path] = bytes(data[:-30])
    else:
        data[-25 if damage == "changed index" else 300] ^= 0xFF
        subtask.storage.objects[file.path] = bytes(data)
    with pytest.raises(CheckpointDamaged, match="cannot be restored"):
        list(stored_sections(subtask.storage, state, ALL))
