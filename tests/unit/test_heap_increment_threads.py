"""Increments of heap state with two checkpoints under way: the uploads thread compares while the task's thread hears of others.

The uploads thread is stopped in the middle of a comparison by a value that waits when that thread pickles it: of the states,
the first has been compared by then, and the others have not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from state_kit import MAX_PARALLELISM
from storage_kit import Storage

from tidegate.ids import CheckpointId
from tidegate.state.backend import KeyedSnapshot, bind_states
from tidegate.state.declarations import ListState, MapState, ValueState
from tidegate.state.heap import HeapStateBackend
from tidegate.state.keys import key_type
from tidegate.storage.state_files import StateFiles
from tidegate.task.keyed_files import HeapFiles, restore_files
from tidegate.types.pickled import Pickled

INT = key_type(int)
ALL = range(MAX_PARALLELISM)
KEYS = range(64)
UPLOADS = "uploads"
PATIENCE_S = 30.0


class Gate:
    """Where the uploads thread waits until the test lets it go on; open for everybody else."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()
        self.opened.set()

    def pass_through(self) -> None:
        if threading.current_thread().name == UPLOADS and not self.opened.is_set():
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)


GATE = Gate()


class Gated:
    """A value that goes through the gate when it is pickled."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        GATE.pass_through()
        return Gated, (self.number,)


class States:
    gated = ValueState(Pickled)  # compared, and written, before all others
    total = ValueState(int, default=0)
    word = ValueState(str)
    log = ListState(int)
    counts = MapState(str, int)


class Subtask:
    def __init__(self, storage: Storage, columnar: bool) -> None:
        self.backend = HeapStateBackend(INT, ALL, MAX_PARALLELISM, incremental=True)
        self.states: Any = States()
        bind_states(self.states, self.backend, columnar)
        self.files = HeapFiles("sum", 0, ALL, storage, lambda id, name: f"chk-{id}/{name}", backend=self.backend)

    def write(self, keys: range, number: int) -> None:
        for key in keys:
            self.backend.set_current_key(key)
            self.states.gated.set(Gated(number))
            self.states.total.set(number)
            self.states.word.set(str(number))
            self.states.log.add(number)
            self.states.counts.put(str(key % 2), number)
        self.backend.clear_current_key()

    def store(self, checkpoint: int, snapshot: KeyedSnapshot) -> StateFiles:
        try:
            return self.files.store(CheckpointId(checkpoint), snapshot)
        finally:
            self.files.let_go(snapshot)

    def content(self) -> list[Any]:
        states, found = self.states, []
        for key in KEYS:
            self.backend.set_current_key(key)
            gated = states.gated.get()
            found.append((key, gated.number, states.total.get(), states.word.get(), states.log.get()))
            found.append(sorted(states.counts.items()))
        return found


@pytest.fixture
def gate() -> Iterator[Gate]:
    yield GATE
    GATE.opened.set()
    GATE.reached.clear()


LETTERS = {
    "the one before it completes": [(HeapFiles.completed, 2)],
    "the one before it is given up": [(HeapFiles.aborted, 2)],
    "it is given up itself": [(HeapFiles.aborted, 3)],
    "the one before it completes, and it is given up": [(HeapFiles.completed, 2), (HeapFiles.aborted, 3)],
}


@pytest.mark.property
@pytest.mark.parametrize("columnar", [False, True], ids=["dictionaries", "columns"])
@pytest.mark.parametrize("letters", list(LETTERS))
def test_an_increment_holds_all_changes_whatever_is_heard_while_it_is_compared(
    gate: Gate, letters: str, columnar: bool
) -> None:
    storage = Storage()
    subtask = Subtask(storage, columnar)
    subtask.write(KEYS, 1)
    subtask.store(1, subtask.backend.snapshot())
    subtask.files.completed(CheckpointId(1))
    subtask.write(KEYS[::7], 2)
    subtask.store(2, subtask.backend.snapshot())  # acknowledged, not completed
    subtask.write(KEYS[::3], 3)
    third, expected = subtask.backend.snapshot(), subtask.content()
    stored: list[StateFiles] = []
    gate.opened.clear()
    uploads = threading.Thread(target=lambda: stored.append(subtask.store(3, third)), name=UPLOADS)
    uploads.start()
    assert gate.reached.wait(PATIENCE_S)

    for hear, checkpoint in LETTERS[letters]:
        hear(subtask.files, CheckpointId(checkpoint))
    subtask.write(KEYS[::2], 4)  # and the task goes on
    gate.opened.set()
    uploads.join(PATIENCE_S)

    assert [file.name for file in stored[0].files] == ["base", "changes"]
    restored = Subtask(storage, columnar)
    assert restore_files(restored.backend, storage, stored)
    assert restored.content() == expected


def test_snapshots_are_released_when_nobody_looks_any_more(gate: Gate) -> None:
    subtask = Subtask(Storage(), columnar=False)
    subtask.write(KEYS, 1)
    for checkpoint in range(1, 5):
        subtask.store(checkpoint, subtask.backend.snapshot())
        subtask.files.completed(CheckpointId(checkpoint))
        subtask.write(KEYS[::7], checkpoint)
    gate.opened.clear()
    late = subtask.backend.snapshot()
    uploads = threading.Thread(target=lambda: subtask.store(5, late), name=UPLOADS)
    uploads.start()
    assert gate.reached.wait(PATIENCE_S)
    subtask.files.aborted(CheckpointId(5))
    gate.opened.set()
    uploads.join(PATIENCE_S)

    kept = subtask.backend._states["word"][1]._snapshots
    assert len(kept) == 1, "the base alone: what was given up before it was stored is not kept"
    assert len(subtask.files._shared) == 0
