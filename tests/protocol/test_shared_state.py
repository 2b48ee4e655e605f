"""Which files incremental checkpoints keep: the registry's rules one by one, then slots and registry against a storage."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tidegate.errors import ProtocolViolation
from tidegate.ids import CheckpointId
from tidegate.protocol.shared_state import SharedFile, SharedStateRegistry
from tidegate.state.backend import LocalFile
from tidegate.storage.state_files import StoredFile
from tidegate.task.incremental import Lineage


def chk(number: int) -> CheckpointId:
    return CheckpointId(number)


def file(name: str, uploaded_for: int, size: int = 10) -> SharedFile:
    return SharedFile(f"chk-{uploaded_for}/{name}", size, chk(uploaded_for))


A1, B1 = file("a", 1), file("b", 1)
C2, C3 = file("c", 2), file("c", 3)


# -- the registry ------------------------------------------------------------------------------------------------------


def test_a_file_goes_when_the_last_checkpoint_that_used_it_is_subsumed():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1, B1])
    assert registry.completed(chk(1)) == []
    registry.acknowledged(chk(2), [A1, C2])

    assert registry.completed(chk(2)) == [B1.path]
    assert registry.paths() == {A1.path, C2.path}


def test_as_long_as_an_older_checkpoint_is_retained_its_files_stay():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1])
    registry.completed(chk(1))
    registry.acknowledged(chk(2), [C2])

    assert registry.completed(chk(1)) == []
    registry.acknowledged(chk(3), [C3])
    assert registry.completed(chk(2)) == [A1.path]


def test_files_of_an_aborted_checkpoint_stay_until_a_newer_one_completes():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1])
    registry.completed(chk(1))
    registry.acknowledged(chk(2), [A1, C2])  # and 2 is aborted
    registry.acknowledged(chk(3), [A1, C3])

    assert C2.path in registry.paths()
    assert registry.completed(chk(3)) == [C2.path]


def test_a_late_acknowledgement_of_a_subsumed_checkpoint_leaves_nothing_behind_and_takes_nothing_away():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1])
    registry.completed(chk(1))
    registry.acknowledged(chk(3), [A1, C3])
    registry.completed(chk(3))

    assert registry.acknowledged(chk(2), [A1, C2]) == [C2.path]
    assert registry.paths() == {A1.path, C3.path}
    registry.acknowledged(chk(4), [A1, C3])
    assert registry.completed(chk(4)) == []


def test_an_acknowledgement_that_comes_again_after_its_checkpoint_is_subsumed_takes_no_file_that_is_still_used():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1, B1])
    registry.completed(chk(1))
    registry.acknowledged(chk(2), [A1])
    registry.completed(chk(2))

    assert registry.acknowledged(chk(1), [A1, B1]) == [B1.path]  # gone already, which deleting does not mind


def test_a_late_acknowledgement_that_is_not_subsumed_yet_protects_its_files_for_now():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1])
    registry.completed(chk(1))

    assert registry.acknowledged(chk(2), [A1, C2]) == []  # 2 has expired; nobody knows better yet
    assert registry.acknowledged(chk(2), [A1, C2]) == []  # and twice
    registry.acknowledged(chk(3), [A1])
    assert registry.completed(chk(3)) == [C2.path]


def test_an_acknowledgement_that_refers_to_a_deleted_file_is_refused():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1, B1])
    registry.completed(chk(1))
    registry.acknowledged(chk(2), [A1])
    registry.completed(chk(2))

    with pytest.raises(ProtocolViolation, match=r"chk-1/b.*may have been deleted"):
        registry.acknowledged(chk(3), [C3, B1])
    assert C3.path not in registry.paths()


def test_two_files_under_one_path_are_refused():
    registry = SharedStateRegistry()
    registry.acknowledged(chk(1), [A1])

    with pytest.raises(ProtocolViolation, match="two files under one name"):
        registry.acknowledged(chk(1), [file("a", 1, size=11)])


def test_files_of_a_checkpoint_that_is_not_ours_are_never_deleted():
    registry = SharedStateRegistry()
    registry.restored(chk(1), [A1, B1], owned=False)
    registry.acknowledged(chk(2), [A1, C2])

    assert registry.completed(chk(2)) == []
    registry.acknowledged(chk(3), [C3])
    assert registry.completed(chk(3)) == [C2.path]


def test_a_new_driver_that_begins_with_the_retained_checkpoints_deletes_what_they_leave():
    registry = SharedStateRegistry()
    registry.restored(chk(1), [A1, B1])
    registry.restored(chk(2), [A1, C2])
    registry.acknowledged(chk(3), [A1, C3])

    assert registry.completed(chk(2)) == [B1.path]
    assert registry.completed(chk(3)) == [C2.path]


def test_what_is_retained_never_goes_back():
    registry = SharedStateRegistry()
    registry.completed(chk(3))

    with pytest.raises(ProtocolViolation, match="cannot be retained again"):
        registry.completed(chk(2))


# -- the lineage of a slot ---------------------------------------------------------------------------------------------


def table(name: str, size: int = 10) -> LocalFile:
    return LocalFile(name, Path("/nowhere") / name, size, shareable=True)


def stored(name: str, checkpoint: int, size: int = 10) -> StoredFile:
    return StoredFile(name, f"chk-{checkpoint}/{name}", size, "", checkpoint)


def names(files: list[LocalFile]) -> list[str]:
    return [file.name for file in files]


def test_only_what_the_last_completed_checkpoint_lacks_is_uploaded():
    lineage = Lineage()
    assert lineage.plan([table("1")]) == ([], [table("1")])
    lineage.stored(chk(1), [stored("1", 1)])
    lineage.completed(chk(1))

    assert lineage.plan([table("1"), table("2")]) == ([stored("1", 1)], [table("2")])


def test_nothing_is_built_on_an_upload_that_is_not_confirmed():
    lineage = Lineage()
    lineage.stored(chk(1), [stored("1", 1)])
    assert lineage.plan([table("1")]) == ([], [table("1")])
    lineage.aborted(chk(1))
    lineage.completed(chk(1))  # a message that cannot be: still nothing is built on it

    assert lineage.plan([table("1")]) == ([], [table("1")])


def test_what_a_pending_checkpoint_uploaded_again_is_not_taken_from_the_older_one():
    lineage = Lineage()
    lineage.stored(chk(1), [stored("1", 1)])
    lineage.stored(chk(2), [stored("1", 2)])  # taken before 1 was known to be complete
    lineage.completed(chk(1))

    # 2 may be complete by now, and then the copy of 1 is used by nobody.
    assert lineage.plan([table("1")]) == ([], [table("1")])
    lineage.aborted(chk(2))
    assert lineage.plan([table("1")]) == ([stored("1", 1)], [])


def test_a_completed_checkpoint_ends_all_older_ones_and_is_not_undone_by_a_late_word():
    lineage = Lineage()
    lineage.stored(chk(1), [stored("1", 1)])
    lineage.stored(chk(2), [stored("2", 2)])
    lineage.completed(chk(2))
    lineage.completed(chk(1))

    assert lineage.plan([table("1"), table("2")]) == ([stored("2", 2)], [table("1")])


def test_the_completion_of_a_savepoint_changes_nothing():
    lineage = Lineage()
    lineage.stored(chk(1), [stored("1", 1)])
    lineage.completed(chk(1))
    lineage.completed(chk(2))

    assert lineage.plan([table("1")]) == ([stored("1", 1)], [])


def test_a_restored_lineage_builds_on_what_it_was_restored_from():
    lineage = Lineage()
    lineage.restored(chk(7), [stored("1", 3), stored("2", 7)])

    assert lineage.plan([table("2"), table("3")]) == ([stored("2", 7)], [table("3")])


def test_a_table_of_another_size_is_never_taken_for_the_stored_one():
    lineage = Lineage()
    lineage.restored(chk(7), [stored("1", 3)])

    assert names(lineage.plan([table("1", size=11)])[1]) == ["1"]


# -- slots, registry and storage together ------------------------------------------------------------------------------


@dataclass
class Slot:
    """A database whose tables come and go, and its lineage."""

    number: int
    attempt: int
    tables: list[str] = field(default_factory=list)
    lineage: Lineage = field(default_factory=Lineage)
    made: int = 0
    heard: int = 0  #: news from the driver that have arrived

    def work(self, rng: random.Random) -> None:
        self.made += 1
        self.tables.append(f"{self.made}")
        if rng.random() < 0.4:  # a compaction: some tables become one
            gone = set(rng.sample(self.tables, rng.randint(1, len(self.tables))))
            self.made += 1
            self.tables = [name for name in self.tables if name not in gone] + [f"{self.made}"]

    def snapshot(self, checkpoint: int, storage: set[str]) -> list[StoredFile]:
        reused, new = self.lineage.plan([table(name) for name in self.tables])
        files = list(reused)
        for local in new:
            path = f"chk-{checkpoint}/a{self.attempt}/slot-{self.number}/{local.name}"
            assert path not in storage, "each upload has a path of its own"
            storage.add(path)
            files.append(StoredFile(local.name, path, local.size, "", checkpoint))
        self.lineage.stored(chk(checkpoint), files)
        return files


class Simulation:
    """A driver with several checkpoints in flight, slots that hear late, attempts that fail. Invariants hold always."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.storage: set[str] = set()
        self.retain = self.rng.choice([1, 1, 2, 3])
        self.next_id = 1
        self.attempt = 0
        self.complete: dict[int, list[list[StoredFile]]] = {}  #: retained, by id
        self.registry = SharedStateRegistry()
        self.start_attempt()

    def start_attempt(self) -> None:
        self.attempt += 1
        newest = max(self.complete, default=None)
        self.slots = [Slot(number, self.attempt) for number in range(2)]
        self.pending: dict[int, dict[int, list[StoredFile]]] = {}
        self.late: list[tuple[int, list[StoredFile]]] = []
        self.news: list[tuple[str, int]] = []
        if newest is not None:
            for slot in self.slots:
                files = self.complete[newest][slot.number]
                slot.tables = [file.name for file in files]
                slot.made = 1000 * self.attempt
                slot.lineage.restored(chk(newest), files)
        if self.rng.random() < 0.3:  # another driver, which knows the log only
            self.registry = SharedStateRegistry()
            for id, slots in self.complete.items():
                for files in slots:
                    self.registry.restored(chk(id), map(shared, files))

    def step(self) -> None:
        action = self.rng.choice(
            ["work", "trigger", "trigger", "ack", "ack", "ack", "abort", "hear", "hear", "late"]
            + ["fail"] * (not self.rng.randrange(8))
        )
        getattr(self, f"do_{action}")()
        for id, slots in self.complete.items():
            for files in slots:
                missing = {file.path for file in files} - self.storage
                assert not missing, f"checkpoint {id} is retained and has lost {missing}"

    def do_work(self) -> None:
        for slot in self.slots:
            slot.work(self.rng)

    def do_trigger(self) -> None:
        if len(self.pending) >= 3:
            return
        id, self.next_id = self.next_id, self.next_id + 1
        self.do_work()
        self.pending[id] = {}
        self.unsent = {**getattr(self, "unsent", {})}
        for slot in self.slots:
            self.unsent[id, slot.number, self.attempt] = slot.snapshot(id, self.storage)

    def do_ack(self) -> None:
        waiting = [key for key in getattr(self, "unsent", {}) if key[2] == self.attempt and key[0] in self.pending]
        if not waiting:
            return
        key = self.rng.choice(waiting)
        self.acknowledge(key)
        id = key[0]
        self.pending[id][key[1]] = self.sent
        if len(self.pending[id]) == len(self.slots):
            acked = self.pending.pop(id)
            self.complete[id] = [acked[slot.number] for slot in self.slots]
            for old in [other for other in self.pending if other < id]:
                del self.pending[old]
                self.news.append(("aborted", old))
            for old in sorted(self.complete)[: -self.retain]:
                del self.complete[old]
            self.delete(self.registry.completed(chk(min(self.complete))))
            self.news.append(("completed", id))

    def acknowledge(self, key: tuple[int, int, int]) -> None:
        self.sent = self.unsent.pop(key)
        self.delete(self.registry.acknowledged(chk(key[0]), map(shared, self.sent)))

    def do_late(self) -> None:
        """Of a checkpoint that is complete, aborted, or of an attempt that is no more."""
        late = [key for key in getattr(self, "unsent", {}) if key[2] != self.attempt or key[0] not in self.pending]
        if late:
            self.acknowledge(self.rng.choice(late))

    def do_abort(self) -> None:
        if self.pending and self.rng.random() < 0.5:
            id = self.rng.choice(list(self.pending))
            del self.pending[id]
            self.news.append(("aborted", id))

    def do_hear(self) -> None:
        slot = self.rng.choice(self.slots)
        if slot.heard < len(self.news):
            what, id = self.news[slot.heard]
            slot.heard += 1
            getattr(slot.lineage, what)(chk(id))

    def do_fail(self) -> None:
        self.start_attempt()

    def delete(self, paths: list[str]) -> None:
        assert set(paths) <= self.storage, "deleted twice"
        self.storage -= set(paths)


def shared(file: StoredFile) -> SharedFile:
    return SharedFile(file.path, file.size, chk(file.checkpoint))


@pytest.mark.property
@pytest.mark.parametrize("seed", range(150))
def test_retained_checkpoints_are_whole_after_any_order_of_acks_aborts_news_and_failures(seed):
    simulation = Simulation(seed)
    for _ in range(120):
        simulation.step()

    assert simulation.next_id > 10


@pytest.mark.property
@pytest.mark.parametrize("seed", range(30))
def test_when_all_is_said_nothing_is_stored_that_no_retained_checkpoint_uses(seed):
    simulation = Simulation(seed)
    simulation.do_fail = lambda: None  # type: ignore[method-assign]  # a new driver leaves the sweep something
    for _ in range(120):
        simulation.step()
    while simulation.unsent:
        simulation.acknowledge(next(iter(simulation.unsent)))
    for pending in list(simulation.pending):
        del simulation.pending[pending]
    for _ in range(simulation.retain + 1):  # the aborted ones are subsumed
        id, simulation.next_id = simulation.next_id, simulation.next_id + 1
        simulation.pending[id] = {}
        for slot in simulation.slots:
            simulation.unsent[id, slot.number, simulation.attempt] = slot.snapshot(id, simulation.storage)
        while id in simulation.pending:
            simulation.do_ack()

    used = {file.path for slots in simulation.complete.values() for files in slots for file in files}
    assert simulation.storage == used == simulation.registry.paths()
