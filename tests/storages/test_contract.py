"""S3 and HDFS keep the contract of a store, and what the log needs of it: one creator among many. Real servers."""

from __future__ import annotations

import secrets
import threading

import pytest

from tidegate.errors import CheckpointDamaged, StorageError, Superseded
from tidegate.ids import AttemptId, AttemptNumber, CheckpointId, Generation, SlotId
from tidegate.storage import hdfs_store
from tidegate.storage.log import CheckpointPointer, JobLog, Resume
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore, StorageNotFound, check_create, open_store, read_probe, write_probe
from tidegate.storage.sweep import after_attempt, sweep

PATHS = JobPaths("job")
ATTEMPT = AttemptId(Generation(1), AttemptNumber(1))


@pytest.fixture(params=["s3", "hdfs"])
def location(request: pytest.FixtureRequest) -> str:
    """A folder of its own in a real storage."""
    if request.param == "s3":
        request.getfixturevalue("in_s3")
        return f"s3://checkpoints/{secrets.token_hex(8)}"
    return f"{request.getfixturevalue('hdfs')}/{secrets.token_hex(8)}"


@pytest.fixture
def store(location: str) -> ObjectStore:
    return open_store(location)


def test_objects_are_written_read_listed_and_deleted(store: ObjectStore) -> None:
    for path in ("job/log/1", "job/chk-1/g1-a1/x", "job/chk-10/g1-a1/x", "job2/log/1"):
        store.put(path, path.encode())
    store.put("job/log/1", b"0123456789")
    store.put("empty", b"")

    assert store.get("job/log/1") == b"0123456789"
    assert store.get_range("job/log/1", 2, 3) == b"234"
    assert store.get_range("job/log/1", 8, 10) == b"89"
    assert store.get_range("job/log/1", 10, 1) == b""
    assert store.get("empty") == b""
    assert store.list("job") == ["job/chk-1/g1-a1/x", "job/chk-10/g1-a1/x", "job/log/1"]
    assert store.folders("job") == ["chk-1", "chk-10", "log"]
    assert store.exists("job/log/1")
    assert not store.exists("job/log")

    store.delete("job/log/1")
    store.delete("job/log/1")
    store.delete_many(["job/chk-1/g1-a1/x", "missing/too"])
    assert store.list("job") == ["job/chk-10/g1-a1/x"]
    assert store.list("nothing") == []


@pytest.mark.parametrize("path", ["nothing/here", "job", "job/log/1/deeper"])
def test_what_is_not_there_is_not_found(store: ObjectStore, path: str) -> None:
    store.put("job/log/1", b"x")
    for read in (lambda: store.get(path), lambda: store.get_range(path, 0, 1)):
        with pytest.raises(StorageNotFound):
            read()
    assert not store.exists(path)


def test_of_many_creators_at_once_one_wins_and_its_content_stays(store: ObjectStore, location: str) -> None:
    contenders, rounds = 6, 5
    start = threading.Barrier(contenders)
    won: list[tuple[int, int]] = []

    def contend(number: int) -> None:
        own = open_store(location)
        for turn in range(rounds):
            start.wait()
            if own.create(f"log/{turn}", f"by {number}".encode()):
                won.append((turn, number))

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(contenders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(turn for turn, _ in won) == list(range(rounds))
    for turn, number in won:
        assert store.get(f"log/{turn}") == f"by {number}".encode()
    assert store.list("log") == [f"log/{turn}" for turn in range(rounds)]


def test_two_drivers_are_fenced_by_the_log(location: str) -> None:
    old, new = JobLog(open_store(location), PATHS), JobLog(open_store(location), PATHS)
    old.take_generation("old:1", 1.0, Resume.FRESH)
    new.take_generation("new:1", 2.0)
    pointer = CheckpointPointer(1, "job/chk-1/g1-a1/_metadata.json", "0", 0, 1, 1, 1.0)

    with pytest.raises(Superseded):
        old.append(old.completed(pointer, [pointer], 3.0))
    newest = new.read_newest()
    assert newest is not None
    assert (newest.generation, newest.latest) == (2, None)


def test_the_checks_before_a_job_and_the_sweep_behind_it(store: ObjectStore) -> None:
    check_create(store, "job")
    check_create(store, "job")
    write_probe(store, "job", ATTEMPT)
    read_probe(store, "job", ATTEMPT)
    log = JobLog(store, PATHS)
    log.take_generation("host:1", 1.0, Resume.FRESH)
    store.put(PATHS.slot_file(CheckpointId(1), ATTEMPT, SlotId(0, 0)), b"of a killed attempt")

    assert sweep(store, PATHS, log, after_attempt(ATTEMPT)) == ["job/chk-1/g1-a1/slot-0-0.snapshot", "job/probe/g1-a1"]
    assert store.list("job") == ["job/log/00000000.json", "job/probe/create"]


def test_a_record_that_was_changed_is_not_believed(store: ObjectStore) -> None:
    log = JobLog(store, PATHS)
    log.take_generation("host:1", 1.0, Resume.FRESH)
    data = bytearray(store.get(PATHS.log(0)))
    data[len(data) // 2] ^= 0xFF
    store.put(PATHS.log(0), bytes(data))

    with pytest.raises(CheckpointDamaged):
        JobLog(store, PATHS).read_newest()


def test_hdfs_shows_no_half_written_file_and_a_killed_writer_leaves_only_what_a_sweep_finds(hdfs: str) -> None:
    from hdfs_native import Client, WriteOptions

    store = open_store(f"{hdfs}/killed")
    log = JobLog(store, PATHS)
    log.take_generation("host:1", 1.0, Resume.FRESH)
    for left in (
        "/killed/job/chk-1/g1-a1/.slot-0-0.snapshot.0123abcd.tmp",
        "/killed/job/log/.00000000.json.0123abcd.tmp",
    ):
        writer = Client(hdfs).create(left, WriteOptions(create_parent=True))
        writer.write(b"half")
        writer.close()

    assert not store.exists("job/chk-1/g1-a1/slot-0-0.snapshot")
    sweep(store, PATHS, log, after_attempt(AttemptId(Generation(1), AttemptNumber(0))))
    assert [path for path in store.list("job") if "chk" not in path] == ["job/log/00000000.json"]


def test_a_namenode_that_does_not_answer_is_named_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(hdfs_store.CLIENT_SETTINGS, "dfs.client.failover.max.attempts", "1")
    with pytest.raises(StorageError, match=r"hdfs://127.0.0.1:1/x.*Check the address of the namenode"):
        open_store("hdfs://127.0.0.1:1/x").get("y")
