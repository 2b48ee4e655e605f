"""Local recovery: which copies are kept, trusted and deleted. Real files, no job."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation, SlotId
from tidegate.protocol.local_copies import ABANDONED_S, CopyLedger, Part, Verdict, Wanted, judge
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.metadata import FileRef, SectionRef
from tidegate.storage.paths import JobPaths
from tidegate.storage.state_files import StateFiles, StoredFile, fetch_state
from tidegate.task.copy_folder import CopyFolder, base_in
from tidegate.task.local_copies import LocalCopies, RestoreStorage, verdict_on, wanted_files
from tidegate.task.program import CopySettings
from tidegate.wire.control import Start, StateShare

JOB = "counts"
SLOT = SlotId(1, 0)
DATA = bytes(range(256)) * 40


def chk(number: int) -> CheckpointId:
    return CheckpointId(number)


def attempt(number: int = 1) -> AttemptId:
    return AttemptId(Generation(1), AttemptNumber(number))


def path_of(checkpoint: int, number: int = 1, slot: SlotId = SLOT) -> str:
    return JobPaths(JOB).slot_file(chk(checkpoint), attempt(number), slot)


def stored_file(path: str, data: bytes = DATA) -> StoredFile:
    return StoredFile("000012.sst", path, len(data), xxhash.xxh3_128_hexdigest(data), 1)


def start_from(checkpoint: int | None, *files: StoredFile, incarnation: str = "first") -> Start:
    states = [StateFiles("count", 0, 0, 127, list(files))] if files else []
    return Start(checkpoint, [], [], states=states, incarnation=incarnation)


class Copies:
    """Local copies of slots of one job over one storage and one disk."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.store = MemoryStore("")
        self.now = 1_000_000.0
        self._open: list[LocalCopies] = []

    def slot(self, start: Start, number: int = 1, slot: SlotId = SLOT) -> tuple[LocalCopies, RestoreStorage]:
        copies = LocalCopies(CopySettings(str(self.base)), JOB, attempt(number), slot, now=lambda: self.now)
        self._open.append(copies)
        return copies, copies.begin(self.store, start)

    def close(self) -> None:
        for copies in self._open:
            copies.close(job_ended=False)

    def files(self) -> list[Path]:
        return sorted(path for path in self.base.rglob("*") if path.is_file() and path.suffix != ".lock")

    def checkpoints(self) -> set[int]:
        return {int(path.parent.name.split(".")[0].removeprefix("chk-")) for path in self.files()}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Copies]:
    copies = Copies(tmp_path / "disk")
    yield copies
    copies.close()


def store(world: Copies, copies: LocalCopies, checkpoint: int, data: bytes = DATA, number: int = 1) -> StoredFile:
    path = path_of(checkpoint, number)
    copies.take(chk(checkpoint))
    copies.around(world.store).put(path, data)
    return stored_file(path, data)


# -- what may be trusted ----------------------------------------------------------------------------------------------


WANTED = Wanted("a/b", 10, (Part(0, 4, "x"), Part(6, 4, "y")))


@pytest.mark.parametrize(
    ("size", "checksums", "verdict"),
    [
        (10, ["x", "y"], Verdict.INTACT),
        (10, ["x", "z"], Verdict.CHANGED),
        (10, ["y", "x"], Verdict.CHANGED),
        (10, ["x"], Verdict.CHANGED),
        (9, ["x", "y"], Verdict.CUT),
        (11, ["x", "y"], Verdict.CUT),
        (0, [], Verdict.CUT),
    ],
)
def test_a_copy_is_what_the_metadata_says_or_it_is_not_used(size: int, checksums: list[str], verdict: Verdict) -> None:
    assert judge(WANTED, size, checksums) is verdict


def test_of_a_file_of_another_size_nothing_is_read() -> None:
    def read() -> Iterator[str]:
        raise AssertionError
        yield

    assert judge(WANTED, 9, read()) is Verdict.CUT


def test_parts_beyond_the_end_of_a_copy_are_not_intact(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(DATA)
    inside = Part(0, 10, xxhash.xxh3_128_hexdigest(DATA[:10]))
    beyond = Part(len(DATA) - 5, 10, xxhash.xxh3_128_hexdigest(DATA[-10:]))

    assert verdict_on(copy, Wanted("a", len(DATA), (inside,))) is Verdict.INTACT
    assert verdict_on(copy, Wanted("a", len(DATA), (inside, beyond))) is Verdict.CHANGED


def test_a_link_to_somewhere_else_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(DATA)
    (tmp_path / "copy").symlink_to(tmp_path / "real")

    with pytest.raises(OSError, match="symbolic link"):
        verdict_on(tmp_path / "copy", Wanted("a", len(DATA), ()))


def test_everything_that_a_restore_reads_is_wanted_once() -> None:
    sections = [SectionRef("u", "s", "value", group, group * 10, 10, 1, f"sum{group}") for group in range(3)]
    file = FileRef(size=30, path="job/chk-1/g1-a1/slot-0-0.snapshot", sections=sections[:2])
    inline = FileRef(size=5, inline=b"12345", sections=sections[:1])
    state = stored_file("job/chk-1/g1-a1/slot-0-0.u.12.state")
    start = Start(
        1,
        [],
        [file, inline],
        states=[StateFiles("u", 0, 0, 127, [state])],
        in_flight=[FileRef(size=30, path=file.path, sections=sections[2:])],
        operator_state=[StateShare(FileRef(size=30, path=file.path, sections=sections[:1]), 0, 1)],
    )

    assert list(wanted_files(start)) == [
        Wanted(state.path, len(DATA), (Part(0, len(DATA), state.checksum),)),
        Wanted(file.path or "", 30, tuple(Part(group * 10, 10, f"sum{group}") for group in range(3))),
    ]


# -- kept and found ---------------------------------------------------------------------------------------------------


def test_the_next_attempt_reads_the_copy_and_nothing_from_storage(world: Copies) -> None:
    first, _ = world.slot(start_from(None))
    file = store(world, first, 1)
    world.store.delete(file.path)

    _, reading = world.slot(start_from(1, file), number=2)

    assert reading.get_range(file.path, 100, 50) == DATA[100:150]
    assert reading.get_range(file.path, len(DATA) - 3, 50) == DATA[-3:]
    assert (reading.local_bytes, reading.storage_bytes, reading.rejected_copies) == (len(DATA), 0, 0)


def test_another_slot_of_the_machine_finds_it_too(world: Copies) -> None:
    first, _ = world.slot(start_from(None))
    file = store(world, first, 1)

    _, reading = world.slot(start_from(1, file), number=2, slot=SlotId(1, 5))

    assert reading.local_bytes == len(DATA)


@pytest.mark.parametrize("damage", ["changed", "cut", "longer", "empty", "missing", "foreign", "stale", "a folder"])
def test_a_damaged_copy_is_counted_and_storage_is_read(
    world: Copies, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = world.slot(start_from(None))
    file = store(world, first, 1)
    (copy,) = world.files()
    data = bytearray(DATA)
    data[5000] ^= 1
    match damage:
        case "missing":
            copy.unlink()
        case "a folder":
            copy.unlink()
            copy.mkdir()
        case "foreign":  # a job of the same name, in a new folder of checkpoints
            pass
        case "stale":  # the same path was used before, by a run whose storage was deleted
            world.store.put(file.path, bytes(data))
            file = stored_file(file.path, bytes(data))
        case _:
            copy.write_bytes({"changed": bytes(data), "cut": DATA[:99], "longer": DATA + b"x", "empty": b""}[damage])
    incarnation = "second" if damage == "foreign" else "first"

    _, reading = world.slot(start_from(1, file, incarnation=incarnation), number=2)

    expected = bytes(data) if damage == "stale" else DATA
    assert reading.get_range(file.path, 0, len(DATA)) == expected
    assert (reading.local_bytes, reading.storage_bytes) == (0, len(DATA))
    assert reading.rejected_copies == (damage not in ("missing", "foreign"))
    assert ("local copy" in caplog.text) == bool(reading.rejected_copies)


def test_a_copy_that_is_deleted_after_it_was_checked_is_read_from_storage(world: Copies) -> None:
    first, _ = world.slot(start_from(None))
    file = store(world, first, 1)
    _, reading = world.slot(start_from(1, file), number=2)
    world.files()[0].unlink()

    assert reading.get_range(file.path, 0, 10) == DATA[:10]
    assert reading.storage_bytes == 10


def test_a_table_is_linked_into_the_database_and_back(world: Copies, tmp_path: Path) -> None:
    table = tmp_path / "000012.sst"
    table.write_bytes(DATA)
    first, _ = world.slot(start_from(None))
    file = stored_file(path_of(1))
    first.take(chk(1))
    first.link(chk(1), {file.path: table})
    (copy,) = world.files()
    assert copy.samefile(table)

    _, reading = world.slot(start_from(1, file), number=2)
    fetch_state(reading, start_from(1, file).states[0], tmp_path / "db", copies=reading.copies)

    assert (tmp_path / "db" / "000012.sst").samefile(table)
    assert reading.storage_bytes == 0


def test_a_table_whose_copy_vanishes_is_fetched(world: Copies, tmp_path: Path) -> None:
    first, _ = world.slot(start_from(None))
    file = store(world, first, 1)
    _, reading = world.slot(start_from(1, file), number=2)
    world.files()[0].unlink()

    fetch_state(reading, start_from(1, file).states[0], tmp_path / "db", copies=reading.copies)

    assert (tmp_path / "db" / "000012.sst").read_bytes() == DATA


def test_on_another_disk_a_table_is_copied(world: Copies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    table = tmp_path / "000012.sst"
    table.write_bytes(DATA)
    first, _ = world.slot(start_from(None))
    first.take(chk(1))
    first.link(chk(1), {path_of(1): table})

    (copy,) = world.files()
    assert not copy.samefile(table)
    assert copy.read_bytes() == DATA
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


def test_savepoints_and_files_of_others_are_not_copied(world: Copies) -> None:
    copies, _ = world.slot(start_from(None))
    copies.take(chk(1))
    storage = copies.around(world.store)
    storage.put("counts/savepoints/sp-1/slot-1-0.snapshot", DATA)
    storage.put(path_of(1, number=2), DATA)

    assert world.files() == []


def test_without_settings_nothing_is_kept_and_storage_is_itself(world: Copies) -> None:
    copies = LocalCopies()
    copies.take(chk(1))

    assert copies.around(world.store) is world.store
    copies.completed(chk(1))
    copies.aborted(chk(2))
    copies.close(job_ended=True)
    assert not world.base.exists()


# -- what goes --------------------------------------------------------------------------------------------------------


def test_a_completed_checkpoint_takes_the_place_of_older_ones_of_all_slots_and_attempts(world: Copies) -> None:
    dead, _ = world.slot(start_from(None))
    store(world, dead, 1)
    store(world, dead, 2)
    other, _ = world.slot(start_from(None), slot=SlotId(1, 1))
    store(world, other, 2)
    copies, _ = world.slot(start_from(2), number=2)
    store(world, copies, 3, number=2)
    store(world, copies, 4, number=2)
    assert world.checkpoints() == {1, 2, 3, 4}

    copies.completed(chk(3))

    assert world.checkpoints() == {3, 4}


def test_a_given_up_checkpoint_goes_and_a_completed_one_cannot_be_given_up(world: Copies) -> None:
    copies, _ = world.slot(start_from(None))
    store(world, copies, 1)
    copies.completed(chk(1))
    store(world, copies, 2)

    copies.aborted(chk(2))
    copies.aborted(chk(1))

    assert world.checkpoints() == {1}


def test_what_is_uploaded_after_it_was_given_up_is_not_copied(world: Copies) -> None:
    copies, _ = world.slot(start_from(None))
    copies.take(chk(1))
    copies.aborted(chk(1))

    copies.around(world.store).put(path_of(1), DATA)

    assert world.files() == []
    assert world.store.get(path_of(1)) == DATA


def test_a_savepoint_that_completes_changes_nothing(world: Copies) -> None:
    copies, _ = world.slot(start_from(None))
    store(world, copies, 1)
    copies.completed(chk(1))

    copies.completed(chk(2))

    assert world.checkpoints() == {1}


def test_files_of_older_checkpoints_are_carried_on_without_using_space(world: Copies) -> None:
    copies, _ = world.slot(start_from(None))
    base = store(world, copies, 1)
    copies.completed(chk(1))
    copies.take(chk(2))
    copies.carry(chk(2), [base.path])
    before, after = world.files()
    assert before.samefile(after)
    copies.completed(chk(2))
    assert world.checkpoints() == {2}

    again, reading = world.slot(start_from(2, base), number=2)
    assert reading.local_bytes == len(DATA)
    again.take(chk(3))
    again.carry(chk(3), [base.path])
    again.completed(chk(3))
    assert world.checkpoints() == {3}


def test_at_the_end_of_the_job_nothing_is_left_and_after_a_rescale_all(world: Copies) -> None:
    copies, _ = world.slot(start_from(None))
    store(world, copies, 1)
    copies.close(job_ended=False)
    assert world.checkpoints() == {1}

    again, _ = world.slot(start_from(1), number=2)
    again.close(job_ended=True)

    assert world.files() == []


def test_the_ledger_knows_the_youngest_copy() -> None:
    ledger = CopyLedger()
    ledger.restored(chk(4), {"a": "4/a", "b": "4/b"})
    ledger.begun(chk(5))
    ledger.kept(chk(5), "a", "5/a")
    ledger.kept(chk(6), "a", "6/a")  # never begun

    assert (ledger.copy_of("a"), ledger.copy_of("b"), ledger.copy_of("c")) == ("5/a", "4/b", None)
    assert not ledger.completed(chk(4)), "it was the one that was restored"
    assert ledger.aborted(chk(5))
    assert ledger.copy_of("a") == "4/a"


def test_a_copy_that_fails_when_its_checkpoint_was_given_up_leaves_no_trace() -> None:
    ledger = CopyLedger()
    ledger.begun(chk(1))
    ledger.aborted(chk(1))
    ledger.failed(chk(1))
    ledger.begun(chk(1))

    assert ledger.wants(chk(1))


# -- trouble ----------------------------------------------------------------------------------------------------------


def test_a_full_disk_costs_the_copy_and_not_the_checkpoint(
    world: Copies, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copies, _ = world.slot(start_from(None))
    store(world, copies, 1)
    copies.completed(chk(1))
    copies.take(chk(2))
    storage = copies.around(world.store)
    storage.put(path_of(2), DATA)
    monkeypatch.setattr(Path, "rename", no_space)
    for name in ("b", "c"):
        storage.put(f"counts/chk-2/g1-a1/{name}", DATA)
    monkeypatch.undo()
    storage.put("counts/chk-2/g1-a1/d", DATA)

    assert world.checkpoints() == {1}, "what was copied of 2 is gone, and no more is tried"
    assert [world.store.get(f"counts/chk-2/g1-a1/{name}") for name in "bcd"] == [DATA] * 3
    assert caplog.text.count("No space left") == 1
    copies.completed(chk(2))
    assert world.files() == [], "the copies of 1 are of no use any more"
    store(world, copies, 3)
    assert world.checkpoints() == {3}, "the next one is copied again"


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("what", ["open to others", "a file", "a link"])
def test_a_folder_that_is_not_ours_alone_is_not_used(
    world: Copies, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    base = base_in(str(world.base))
    base.parent.mkdir()
    match what:
        case "open to others":
            base.mkdir()
            base.chmod(0o755)
        case "a file":
            base.write_text("")
        case "a link":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            base.symlink_to(tmp_path / "elsewhere")

    copies, reading = world.slot(start_from(None))
    file = store(world, copies, 1)

    assert "local recovery is off" in caplog.text
    assert world.store.get(file.path) == DATA
    assert reading.get_range(file.path, 0, 4) == DATA[:4]
    assert list(tmp_path.rglob("chk-*")) == []


def test_files_are_readable_by_their_owner_alone(world: Copies, tmp_path: Path) -> None:
    table = tmp_path / "000012.sst"
    table.write_bytes(DATA)
    table.chmod(0o644)
    copies, _ = world.slot(start_from(None))
    store(world, copies, 1)
    copies.link(chk(1), {"counts/chk-1/g1-a1/x": table})

    below = list(base_in(str(world.base)).rglob("*"))
    assert {stat.S_IMODE(path.stat().st_mode) for path in below if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in below if path.is_dir()} == {0o700}


def test_the_copies_of_jobs_that_are_gone_are_swept(world: Copies) -> None:
    base = base_in(str(world.base))
    gone = CopyFolder(base, "gone", "x", world.now)
    gone.write(gone.of_slot(chk(1), attempt(), SLOT), "gone/a", DATA)
    gone.close()
    alive = CopyFolder(base, "alive", "x", world.now)
    alive.write(alive.of_slot(chk(1), attempt(), SLOT), "alive/a", DATA)

    world.slot(start_from(None))
    assert len(world.files()) == 2, "a job between two attempts is left alone"
    world.now += ABANDONED_S + 1
    world.slot(start_from(None))

    assert [path.parent.parent.name.partition("-")[0] for path in world.files()] == ["alive"]
    assert len(list(base.glob("gone*"))) == 0
    alive.close()
