"""The job's log: who holds the job, which checkpoint counts, and what happens when storage or a driver misbehaves."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from tidegate.errors import CheckpointDamaged, JobFolderInUse, ProtocolViolation, StorageError, Superseded
from tidegate.storage.log import (
    CheckpointPointer,
    JobLog,
    LogKind,
    LogRecord,
    Resume,
    decode_record,
    encode_record,
)
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.stores import CountingStore, FailCall, FlakyStore, RepeatedCreate

PATHS = JobPaths("job")


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path) if request.param == "local" else f"memory://{request.node.nodeid}")


def pointer(checkpoint: int, generation: int = 1, folder: str = "job") -> CheckpointPointer:
    return CheckpointPointer(
        id=checkpoint,
        metadata_path=f"{folder}/chk-{checkpoint}/g{generation}-a1/_metadata.json",
        checksum="00",
        size_bytes=10,
        generation=generation,
        attempt=1,
        completed_at=5.0,
    )


def complete(log: JobLog, checkpoint: int, **options: bool) -> LogRecord:
    assert log.last is not None
    new = pointer(checkpoint, log.last.generation)
    return log.append(log.completed(new, [*log.last.retained, new], now=9.0, **options))


def driver(store: ObjectStore, name: str = "host:1", resume: Resume | CheckpointPointer = Resume.LATEST) -> JobLog:
    log = JobLog(store, PATHS)
    log.take_generation(name, now=1.0, resume=resume)
    return log


def whole_log(store: ObjectStore) -> list[LogRecord]:
    reader = JobLog(store, PATHS)
    return [reader.read(sequence) for sequence in range(len(store.list(PATHS.log_folder)))]


def check_invariants(records: list[LogRecord]) -> None:
    """What must hold for any log, whoever wrote it."""
    logged = [record.latest.id for record in records if record.kind is LogKind.CHECKPOINT and record.latest]
    assert logged == sorted(set(logged)), "checkpoint ids only grow and are never used twice"
    for number, record in enumerate(records):
        assert record.sequence == number
        before = records[number - 1].generation if number else 0
        assert record.generation == before + (record.kind is LogKind.GENERATION)
        assert record.next_checkpoint_id > max([0, *(p.id for p in record.retained)])
        if record.latest is not None:
            assert record.retained[-1] == record.latest


# -- one driver ----------------------------------------------------------------------------------------------------


def test_a_job_that_never_ran_has_no_newest_record(store: ObjectStore) -> None:
    assert JobLog(store, PATHS).read_newest() is None


def test_the_first_driver_takes_generation_one(store: ObjectStore) -> None:
    record = JobLog(store, PATHS).take_generation("host:1", now=1.0)

    assert (record.sequence, record.kind, record.generation, record.next_checkpoint_id) == (0, LogKind.GENERATION, 1, 1)
    assert record.latest is None
    assert JobLog(store, PATHS).read_newest() == record


def test_the_newest_record_alone_tells_everything(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    complete(log, 4)

    newest = JobLog(store, PATHS).read_newest()
    assert newest is not None
    assert newest.kind is LogKind.CHECKPOINT
    assert newest.latest == pointer(4)
    assert newest.retained == [pointer(1), pointer(4)]
    assert newest.next_checkpoint_id == 5


def test_the_next_generation_continues_the_ids_and_the_incarnation(store: ObjectStore) -> None:
    first = driver(store)
    complete(first, 7)
    second = driver(store, "host:2")

    assert second.last is not None
    assert first.last is not None
    assert second.last.generation == 2
    assert second.last.next_checkpoint_id == 8
    assert second.last.latest == pointer(7)
    assert second.last.incarnation == first.last.incarnation


def test_an_id_is_never_logged_twice(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 3)
    for used in (1, 2, 3):
        with pytest.raises(ProtocolViolation, match="used up"):
            complete(log, used)


def test_a_dropped_checkpoint_cannot_be_retained_again(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    log.append(log.completed(pointer(2), [pointer(2)], now=1.0))

    with pytest.raises(ProtocolViolation, match="dropped"):
        log.completed(pointer(3), [pointer(1), pointer(3)], now=1.0)
    with pytest.raises(ProtocolViolation, match="must be the last"):
        log.completed(pointer(3), [pointer(2)], now=1.0)


def test_a_driver_without_a_generation_appends_nothing(store: ObjectStore) -> None:
    with pytest.raises(ProtocolViolation, match="no generation"):
        JobLog(store, PATHS).finished(now=1.0)


def test_a_failed_or_canceled_job_can_be_resumed(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    log.append(log.failed(now=2.0, reason="three restarts in a minute"))
    assert log.last is not None
    assert log.last.reason == "three restarts in a minute"

    log = driver(store)
    assert log.last is not None
    assert (log.last.latest, log.last.reason) == (pointer(1), "")
    log.append(log.canceled(now=2.0))
    assert driver(store).last.latest == pointer(1)  # type: ignore[union-attr]


# -- how a job begins ----------------------------------------------------------------------------------------------


def test_a_fresh_run_on_a_used_folder_is_refused_with_two_ways_out(store: ObjectStore) -> None:
    driver(store)
    with pytest.raises(JobFolderInUse, match=r'resume="latest".*another job name or storage'):
        driver(store, resume=Resume.FRESH)
    assert len(whole_log(store)) == 1


def test_resuming_a_finished_job_says_so_and_writes_nothing(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    log.append(log.finished(now=2.0))

    with pytest.raises(JobFolderInUse, match="FINISHED since 1970-01-01 00:00:02 UTC"):
        driver(store)
    assert len(whole_log(store)) == 3


def test_a_finished_job_can_be_started_again_from_a_named_checkpoint(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    complete(log, 2)
    log.append(log.finished(now=2.0))

    again = driver(store, resume=pointer(1))
    assert again.last is not None
    assert not again.last.finished
    assert again.last.latest == pointer(1)
    assert again.last.next_checkpoint_id == 3


def test_after_a_rollback_a_second_crash_still_starts_from_the_chosen_checkpoint(store: ObjectStore) -> None:
    log = driver(store)
    for checkpoint in (1, 2, 3):
        complete(log, checkpoint)
    driver(store, resume=pointer(1))

    after_crash = driver(store)
    assert after_crash.last is not None
    assert after_crash.last.latest == pointer(1)
    assert after_crash.last.retained == [pointer(2), pointer(3), pointer(1)]
    assert complete(after_crash, 4).next_checkpoint_id == 5


def test_a_start_from_another_jobs_checkpoint_neither_owns_nor_reuses_it(store: ObjectStore) -> None:
    foreign = pointer(90, folder="other")
    log = driver(store, resume=foreign)

    assert log.last is not None
    assert log.last.latest == foreign
    assert log.last.retained == []
    assert log.last.next_checkpoint_id == 91


def test_a_stop_is_remembered_over_crashes_until_it_is_done(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1, stop=True)
    assert log.last is not None
    assert log.last.kind is LogKind.SAVEPOINT_STOP

    for _ in range(2):
        log = driver(store)
        assert log.last is not None
        assert log.last.stopping
        assert log.last.latest == pointer(1)
    with pytest.raises(ProtocolViolation, match="told to end"):
        complete(log, 2)
    log.append(log.finished(now=1.0))
    assert log.last.finished
    assert not log.last.stopping


def test_the_savepoint_of_a_stop_uses_its_id_up_before_it_stands(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    noted = log.append(log.savepoint(4, "savepoints/savepoint-job-4", now=2.0))
    assert (noted.savepoint_ids_below, noted.open_savepoint) == (5, "savepoints/savepoint-job-4")
    assert noted.next_checkpoint_id == 2, "the job itself has not come that far"

    after = driver(store, "host:2").last
    assert after is not None
    assert (after.next_checkpoint_id, after.open_savepoint) == (5, "savepoints/savepoint-job-4")

    named = pointer(4, folder="savepoints/savepoint-job-4")
    resumed = driver(store, "host:3", resume=named).last
    assert resumed is not None
    assert resumed.open_savepoint == "", "the job continues from it, so nobody deletes it"


def test_the_files_that_a_job_reads_are_in_the_log_from_then_on(store: ObjectStore) -> None:
    log = driver(store)
    log.append(log.input_written("rows", "input/g1", now=2.0))
    log.append(log.input_written("more", "input/g2", now=3.0))
    complete(log, 1)

    assert log.last is not None
    assert log.last.inputs == {"rows": "input/g1", "more": "input/g2"}
    after = driver(store, "host:2").last
    assert after is not None
    assert after.inputs == log.last.inputs


@pytest.mark.parametrize("resume", [Resume.FRESH, Resume.LATEST])
def test_whether_a_start_would_be_refused_is_said_and_nothing_is_taken(store: ObjectStore, resume: Resume) -> None:
    log = JobLog(store, PATHS)
    log.check_resume(resume)
    ended = driver(store)
    complete(ended, 1)
    ended.append(ended.finished(now=2.0))
    before = whole_log(store)

    with pytest.raises(JobFolderInUse, match="FINISHED"):
        log.check_resume(resume)
    log.check_resume(pointer(1))
    assert whole_log(store) == before


# -- two drivers ---------------------------------------------------------------------------------------------------


def test_the_old_driver_cannot_complete_a_checkpoint_after_a_take_over(store: ObjectStore) -> None:
    old = driver(store, "old:1")
    complete(old, 1)
    assert old.last is not None
    driver(store, "new:2")

    with pytest.raises(Superseded, match=r"new:2.*generation 2.*this one \(generation 1\) ends") as caught:
        complete(old, 2)
    assert caught.value.context["driver"] == "new:2"
    with pytest.raises(Superseded):
        complete(old, 2)
    assert [record.kind for record in whole_log(store)] == [
        LogKind.GENERATION,
        LogKind.CHECKPOINT,
        LogKind.GENERATION,
    ]


def test_a_driver_that_looks_at_the_log_sees_that_it_is_superseded(store: ObjectStore) -> None:
    old = driver(store)
    record = old.finished(now=1.0)
    driver(store, "new:2")
    old.read_newest()

    with pytest.raises(Superseded):
        old.append(record)
    with pytest.raises(Superseded):
        old.canceled(now=1.0)


def test_two_drivers_with_the_same_name_and_clock_are_still_two(store: ObjectStore) -> None:
    first = JobLog(store, PATHS)
    second = JobLog(store, PATHS)
    first.take_generation("host:1", now=1.0)
    second.take_generation("host:1", now=1.0)

    assert first.last is not None
    assert second.last is not None
    assert (first.last.generation, second.last.generation) == (1, 2)
    with pytest.raises(Superseded):
        complete(first, 1)


def test_of_two_fresh_drivers_that_race_one_runs(store: ObjectStore) -> None:
    for turn in range(10):
        paths = JobPaths(f"job{turn}")
        outcomes: list[str] = []
        gate = threading.Barrier(3)

        def race(paths: JobPaths = paths, outcomes: list[str] = outcomes, gate: threading.Barrier = gate) -> None:
            gate.wait()
            try:
                JobLog(store, paths).take_generation("host:1", 1.0, resume=Resume.FRESH)
                outcomes.append("runs")
            except JobFolderInUse:
                outcomes.append("refused")

        run_threads([race] * 3)
        assert sorted(outcomes) == ["refused", "refused", "runs"]


@pytest.mark.property
def test_drivers_that_fight_for_a_job_leave_a_log_that_makes_sense(store: ObjectStore) -> None:
    acknowledged: list[tuple[int, int]] = []  # (sequence, checkpoint) that some driver was told counts
    failures: list[Exception] = []
    gate = threading.Barrier(3)

    def fight(name: str) -> None:
        log = JobLog(store, PATHS)
        gate.wait()
        try:
            for _ in range(8):
                log.take_generation(name, now=1.0)
                try:
                    for _ in range(5):
                        assert log.last is not None
                        record = complete(log, log.last.next_checkpoint_id)
                        assert record.latest is not None
                        acknowledged.append((record.sequence, record.latest.id))
                except Superseded:
                    pass
        except Exception as error:
            failures.append(error)

    run_threads([lambda name=name: fight(name) for name in ("a:1", "b:2", "c:3")])

    assert failures == []
    records = whole_log(store)
    check_invariants(records)
    standing = {(r.sequence, r.latest.id) for r in records if r.kind is LogKind.CHECKPOINT and r.latest}
    assert standing == set(acknowledged)
    assert sum(record.kind is LogKind.GENERATION for record in records) == 24


def run_threads(targets: list) -> None:  # type: ignore[type-arg]
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_record_that_does_not_follow_is_a_bug_of_ours(store: ObjectStore) -> None:
    log = driver(store)
    first, second = log.canceled(now=1.0), log.failed(now=1.0, reason="no")
    skipping = msgspec.structs.replace(first, sequence=first.sequence + 1)
    foreign = msgspec.structs.replace(first, generation=first.generation + 1)
    for wrong in (skipping, foreign):
        with pytest.raises(ProtocolViolation, match="does not follow 0 of 1"):
            log.append(wrong)
    assert len(whole_log(store)) == 1

    assert store.create(PATHS.log(second.sequence), encode_record(second)), "somebody else writes as this driver"
    with pytest.raises(ProtocolViolation, match="two writers in one driver"):
        log.append(first)


# -- a storage that fails ------------------------------------------------------------------------------------------


def test_an_append_whose_answer_was_lost_counts_once_when_repeated(store: ObjectStore) -> None:
    log = driver(FlakyStore(store, [FailCall("create", call=2, after_effect=True)]))
    record = log.completed(pointer(1), [pointer(1)], now=2.0)

    with pytest.raises(StorageError, match="is lost"):
        log.append(record)
    assert log.in_doubt == record
    assert log.append(record) == record
    assert log.in_doubt is None
    complete(log, 2)
    assert [r.next_checkpoint_id for r in whole_log(store)] == [1, 2, 3]


def test_an_append_that_failed_can_be_repeated(store: ObjectStore) -> None:
    flaky = FlakyStore(store, [FailCall("create", call=2, times=2)])
    log = JobLog(flaky, PATHS)
    log.take_generation("host:1", now=1.0)
    record = log.completed(pointer(1), [pointer(1)], now=2.0)
    for _ in range(2):
        with pytest.raises(StorageError):
            log.append(record)

    log.append(record)
    assert len(whole_log(store)) == 2


def test_a_record_in_doubt_that_the_driver_finds_by_reading_can_be_repeated(store: ObjectStore) -> None:
    flaky = FlakyStore(store, [FailCall("create", call=2, after_effect=True)])
    log = JobLog(flaky, PATHS)
    log.take_generation("host:1", now=1.0)
    record = log.completed(pointer(1), [pointer(1)], now=2.0)
    with pytest.raises(StorageError):
        log.append(record)

    assert log.read_newest() == record
    assert log.append(record) == record
    assert log.in_doubt is None


@pytest.mark.parametrize("arrived", [True, False])
def test_nothing_else_is_appended_while_a_record_is_in_doubt_and_taking_over_settles_it(
    store: ObjectStore, arrived: bool
) -> None:
    log = JobLog(FlakyStore(store, [FailCall("create", call=2, after_effect=arrived)]), PATHS)
    log.take_generation("host:1", now=1.0)
    doubtful = log.completed(pointer(1), [pointer(1)], now=2.0)
    with pytest.raises(StorageError):
        log.append(doubtful)

    with pytest.raises(ProtocolViolation, match="in doubt"):
        log.append(log.canceled(now=3.0))
    settled = log.take_generation("host:1", now=4.0)

    assert settled.generation == 2
    assert settled.latest == (pointer(1) if arrived else None)
    assert settled.sequence == (2 if arrived else 1)
    # The request that was thought lost arrives at last; it changes nothing.
    assert not store.create(PATHS.log(doubtful.sequence), encode_record(doubtful))
    check_invariants(whole_log(store))


@pytest.mark.parametrize("resume", [Resume.FRESH, Resume.LATEST])
@pytest.mark.parametrize("arrived", [True, False])
def test_taking_over_can_be_repeated_after_a_lost_answer(store: ObjectStore, arrived: bool, resume: Resume) -> None:
    log = JobLog(FlakyStore(store, [FailCall("create", after_effect=arrived)]), PATHS)
    with pytest.raises(StorageError):
        log.take_generation("host:1", now=1.0, resume=resume)

    record = log.take_generation("host:1", now=2.0, resume=resume)
    assert record.generation == 1
    complete(log, 1)
    assert len(whole_log(store)) == 2


@pytest.mark.parametrize("resume", [Resume.FRESH, Resume.LATEST])
def test_a_request_that_the_client_repeated_is_not_taken_for_another_drivers(
    store: ObjectStore, resume: Resume
) -> None:
    log = JobLog(FlakyStore(store, [RepeatedCreate(call=1), RepeatedCreate(call=2)]), PATHS)

    assert log.take_generation("host:1", now=1.0, resume=resume).generation == 1
    assert complete(log, 1).sequence == 1
    assert len(whole_log(store)) == 2


def test_taking_over_twice_makes_two_generations(store: ObjectStore) -> None:
    log = driver(store)
    assert log.take_generation("host:1", now=1.0).generation == 2
    complete(log, 1)


def test_an_append_in_doubt_is_superseded_when_another_driver_was_first(store: ObjectStore) -> None:
    old = JobLog(FlakyStore(store, [FailCall("create", call=2)]), PATHS)
    old.take_generation("old:1", now=1.0)
    record = old.completed(pointer(1), [pointer(1)], now=2.0)
    with pytest.raises(StorageError):
        old.append(record)
    driver(store, "new:2")

    with pytest.raises(Superseded, match="new:2"):
        old.append(record)


# -- damage --------------------------------------------------------------------------------------------------------


def test_a_damaged_newest_record_is_never_passed_over(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    store.put(PATHS.log(1), store.get(PATHS.log(1))[:-20])

    with pytest.raises(CheckpointDamaged, match=r"00000001\.json.*is damaged.*Restore the file"):
        JobLog(store, PATHS).read_newest()
    with pytest.raises(CheckpointDamaged):
        driver(store)


def test_a_record_that_has_gone_is_not_passed_over(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    store.delete(PATHS.log(1))

    with pytest.raises(CheckpointDamaged, match="though it was there before"):
        log.read(1)


@pytest.mark.property
def test_every_flipped_byte_of_a_record_is_noticed_or_without_meaning() -> None:
    record = driver(open_store("memory://flipped"), "hôst:1").completed(pointer(1), [pointer(1)], now=2.5)
    data = encode_record(record)
    for position in range(len(data)):
        for mask in (0x01, 0x20, 0x80, 0xFF):
            changed = bytearray(data)
            changed[position] ^= mask
            try:
                found = decode_record(bytes(changed), "x")
            except CheckpointDamaged:
                continue
            assert found == record, (position, mask)


@pytest.mark.property
def test_every_cut_of_a_record_is_noticed() -> None:
    record = driver(open_store("memory://cut")).canceled(now=2.5)
    data = encode_record(record)
    for length in range(len(data)):
        with pytest.raises(CheckpointDamaged):
            decode_record(data[:length], "x")


def test_a_record_copied_over_another_is_noticed(store: ObjectStore) -> None:
    log = driver(store)
    complete(log, 1)
    store.put(PATHS.log(1), store.get(PATHS.log(0)))
    with pytest.raises(CheckpointDamaged, match="holds record 0"):
        JobLog(store, PATHS).read_newest()


def test_a_record_of_a_later_format_is_refused_with_the_way_out() -> None:
    data = encode_record(driver(open_store("memory://later")).canceled(now=1.0))
    later = data.replace(b'"format_version":1', b'"format_version":2')
    with pytest.raises(CheckpointDamaged, match=r"format version 2.*or a newer one"):
        decode_record(later, "x")


def test_a_record_of_format_version_1_is_read() -> None:
    latest = (
        '{"id":7,"metadata_path":"job/chk-7/g2-a3/_metadata.json","checksum":"0f0f","size_bytes":1234,"generation":2,'
        '"attempt":3,"completed_at":1700000005.5}'
    )
    stored = (
        '{"format_version":1,"checksum":"8688c4cfbb3742bf50088d3f14757d29","record":'
        '{"sequence":4,"kind":"checkpoint","generation":2,"driver":"host:1","writer":"aa11","written_at":1700000006.25,'
        '"incarnation":"ee55","next_checkpoint_id":8,'
        f'"latest":{latest},"retained":[{latest}],"stopping":false,"finished":false,"reason":""}}}}'
    )

    pointer_7 = CheckpointPointer(7, "job/chk-7/g2-a3/_metadata.json", "0f0f", 1234, 2, 3, 1700000005.5)
    assert decode_record(stored.encode(), "x") == LogRecord(
        sequence=4,
        kind=LogKind.CHECKPOINT,
        generation=2,
        driver="host:1",
        writer="aa11",
        written_at=1700000006.25,
        incarnation="ee55",
        next_checkpoint_id=8,
        latest=pointer_7,
        retained=[pointer_7],
    )


def test_fields_that_a_later_release_adds_are_passed_over() -> None:
    import xxhash

    record = driver(open_store("memory://added")).canceled(now=1.0)
    body = msgspec.json.encode({**msgspec.to_builtins(record), "mood": "good"})
    data = b'{"format_version":1,"checksum":"%s","record":%s}' % (xxhash.xxh3_128_hexdigest(body).encode(), body)
    assert decode_record(data, "x") == record


# -- cost ----------------------------------------------------------------------------------------------------------


def test_the_newest_record_is_found_with_few_requests() -> None:
    store = CountingStore(open_store("memory://long"))
    log = driver(store)
    for checkpoint in range(1, 100):
        complete(log, checkpoint)
    store.reset()

    reader = JobLog(store, PATHS)
    newest = reader.read_newest()
    assert newest is not None
    assert newest.sequence == 99
    assert store.requests == 3, "a listing, a look at the next number, the record"

    store.reset()
    assert log.read_newest() == newest
    assert store.requests == 2, "a driver that holds the job asks for the next number"
    assert store.calls["list"] == 0
