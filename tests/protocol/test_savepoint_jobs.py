"""Savepoints, stops and rescales of whole jobs in this process: taken, restored elsewhere, and killed at every step."""

from __future__ import annotations

import functools
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from protocol_kit import (
    Numbered,
    assert_counted_once,
    counting_job,
    environment,
    fresh_storage,
    log_records,
    logged_checkpoints,
)

import tidegate as tg
from matrices import in_turn
from tidegate.connectors.tables.manifest import read_manifest
from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.savepoints import SavepointRequest, savepoint_request
from tidegate.errors import CommitLost, ConfigurationError, SavepointFailed, StorageError
from tidegate.ids import CheckpointId, SlotId
from tidegate.protocol.checkpoint_events import Purpose, StopMode
from tidegate.storage.anywhere import is_uri, reaching_anywhere
from tidegate.storage.log import LogKind
from tidegate.storage.memory_store import MemoryStore
from tidegate.storage.retention import files_in_use
from tidegate.storage.store import open_store
from tidegate.testing.crash_points import ALL_POINTS, SAVEPOINT_POINTS, START_POINTS, Crash, InProcessCrashPoints
from tidegate.testing.ledger_sink import LedgerSink, forget_ledgers, ledger
from tidegate.testing.runner import AllDriversDied, Ask, InProcessRun

SOURCE = Numbered(1, splits=5, per_split=50, rows_per_poll=(2, 1, 0))


@pytest.fixture(autouse=True)
def empty_ledgers() -> None:
    forget_ledgers()


LONG_SOURCE = Numbered(1, splits=5, per_split=200, rows_per_poll=(2, 1, 0))


def job(storage: str | None = None, source: Numbered = SOURCE, **settings: Any) -> tg.StreamEnvironment:
    return counting_job(environment(storage=storage, **settings), source, LedgerSink("out"))


def request(stop: StopMode | None = None, format: str = "canonical", directory: str | None = None) -> SavepointRequest:
    return savepoint_request(directory or fresh_storage() + "/savepoints", None, format, stop)


def run(env: tg.StreamEnvironment, *asks: Ask, seed: int = 0, crashes: tuple[Crash, ...] = ()) -> InProcessRun:
    started = InProcessRun(env, seed, list(crashes), asks=asks)
    result = started.run()
    assert result.status is JobStatus.FINISHED, result.error
    return started


FORMATS = ["canonical", "native"]


@pytest.mark.parametrize(("parallelism", "format"), in_turn([1, 2, 3, 5], FORMATS))
def test_a_suspended_job_goes_on_exactly_there(parallelism: int, format: str) -> None:
    ask = Ask(request(StopMode.SUSPEND, format), after_checkpoints=2)
    run(job(), ask)
    first = len(ledger("out").rows())
    assert 0 < first < len(SOURCE.numbers())

    run(job(resume=ask.outcome.path, parallelism=parallelism))

    assert_counted_once(ledger("out").rows(), SOURCE)


def assert_goes_on_behind(path: str, storage: str) -> None:
    """The same job again, from a savepoint that it has passed long ago: everything after it is counted once more."""
    before = set(ledger("out").committed)

    run(job(storage, resume=path))

    again = [row for name, rows in ledger("out").committed.items() if name not in before for row in rows]
    splits = [split for slot in tg.Savepoint.load(path).metadata.slots for one in slot.subtasks for split in one.splits]
    assert again or all(split.finished for split in splits), (
        "nothing comes after it only where all input came before it"
    )
    assert not [row for row in again if row[4]], "state knows a record that came after the savepoint"
    for key in range(5):
        counts = sorted(row[3] for row in again if row[0] == key)
        total = len(SOURCE.numbers()) // 5
        assert counts == list(range(total - len(counts) + 1, total + 1))


@pytest.mark.parametrize("format", FORMATS)
def test_a_job_goes_on_behind_a_savepoint_and_can_come_back_to_it(format: str) -> None:
    storage = fresh_storage()
    ask = Ask(request(format=format), after_checkpoints=2)
    run(job(storage), ask)
    assert_counted_once(ledger("out").rows(), SOURCE)

    assert_goes_on_behind(ask.outcome.path, storage)


def test_a_savepoint_is_no_checkpoint_of_the_log_and_stays_when_checkpoints_go() -> None:
    storage = fresh_storage()
    ask = Ask(request(), after_checkpoints=1)
    run(job(storage), ask)

    assert ask.outcome.checkpoint not in [r.latest.id for r in log_records(storage) if r.latest is not None]
    assert open_store(ask.outcome.path).exists("_metadata.json")


# -- crashes ----------------------------------------------------------------------------------------------------------


class AtTheSavepoint(InProcessCrashPoints):
    """Crash points that count only for checkpoints of one purpose: all others pass them too, and before."""

    run: InProcessRun
    purposes: frozenset[str]

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if checkpoint is None or self._purpose(checkpoint) in self.purposes:
            super().reach(point, slot, checkpoint)

    def _purpose(self, checkpoint: int) -> str | None:
        told = self.run.world.view.checkpoints.get(checkpoint)
        if told is not None:
            return told.purpose
        running = self.run.running  # what is being decided is published afterwards
        pending = None if running is None else running.attempt.scheduler.checkpoints.get(CheckpointId(checkpoint))
        return None if pending is None else pending.purpose.value


def crashed_run(request: Callable[[], SavepointRequest], crash: Crash, *purposes: Purpose) -> tuple[str, Ask]:
    """Run to the end, with a crash at a checkpoint of that purpose. Its storage, and what was asked for.

    Not every order of events comes to every point: a drained job may have committed all before its savepoint.
    """
    for seed in range(30):
        forget_ledgers()
        storage, ask, points = fresh_storage(), Ask(request(), after_checkpoints=1), AtTheSavepoint([crash])
        started = InProcessRun(job(storage), seed, asks=[ask], crash_points=points)
        points.run, points.purposes = started, frozenset(purpose.value for purpose in purposes)
        result = started.run()
        assert result.status is JobStatus.FINISHED, result.error
        if points.done.get(crash) == crash.times:
            return storage, ask
    raise AssertionError(f"{crash} never happened")


def standing_savepoints(ask: Ask) -> list[str]:
    """A folder is a whole savepoint, or nothing that anybody would take for one. Gives the whole ones."""
    directory = ask.request.directory
    assert directory is not None
    store, standing = open_store(directory), []
    for folder in {path.partition("/")[0] for path in store.list("")}:
        place = f"{directory}/{folder}"
        if store.exists(f"{folder}/_metadata.json"):
            assert len(tg.Savepoint.load(place).keyed_state("count", "seen").to_arrow()) > 0
            standing.append(place)
        else:
            with pytest.raises(ConfigurationError, match="there is no checkpoint at"):
                run(job(fresh_storage(), resume=place))
    return standing


#: Points that a stop comes to, after its trigger. A restart comes to others; they are below.
OF_A_STOP = [*(point for point in ALL_POINTS if point != "slot.restored"), *SAVEPOINT_POINTS[:2]]
OF_THE_CHECKPOINT_BEHIND = [point for point in ALL_POINTS[1:] if "finished" not in point]
OF_A_SAVEPOINT = [*ALL_POINTS[1:8], "driver.triggered", "driver.before-metadata", *SAVEPOINT_POINTS]


@pytest.mark.parametrize(("point", "stop"), in_turn(OF_A_STOP, [StopMode.SUSPEND, StopMode.DRAIN]))
def test_a_crash_at_each_step_of_a_stop_leaves_a_whole_job_or_a_whole_savepoint(point: str, stop: StopMode) -> None:
    storage, ask = crashed_run(functools.partial(request, stop), Crash(point), Purpose.SUSPEND, Purpose.DRAIN)

    standing = standing_savepoints(ask)
    records = log_records(storage)
    stood = [record for record in records if record.kind is LogKind.SAVEPOINT_STOP]
    reached = point in OF_A_STOP[OF_A_STOP.index("driver.after-log") : OF_A_STOP.index("driver.after-finished") + 1]
    assert bool(stood) >= (reached or "commit" in point), "the record stands, and was not the restore point"
    assert len(standing) == len(stood), "a savepoint is there, and what sinks had prepared for it is not"
    if stood:
        assert records[-1].kind is LogKind.FINISHED
        assert stood[0].latest is not None
        assert len(ledger("out").rows()) < len(SOURCE.numbers())
        run(job(resume=stood[0].latest.metadata_path))
    else:  # it was asked of an attempt that died; the next one ran to the end of its input
        with pytest.raises(SavepointFailed):
            ask.outcome  # noqa: B018
    assert_counted_once(ledger("out").rows(), SOURCE)


@pytest.mark.parametrize(("point", "format"), in_turn(OF_A_SAVEPOINT, FORMATS))
def test_a_crash_at_each_step_of_a_savepoint_harms_neither(point: str, format: str) -> None:
    if format == "native" and point == "slot.table-stored":
        return  # it has one file
    storage, ask = crashed_run(functools.partial(request, format=format), Crash(point), Purpose.SAVEPOINT)

    assert_counted_once(ledger("out").rows(), SOURCE)
    standing = standing_savepoints(ask)
    assert len(standing) >= (point == "driver.savepoint-stored")
    assert standing or isinstance(ask.request.future.exception(), SavepointFailed)
    for path in standing:  # whether or not the user was told of it
        assert_goes_on_behind(path, storage)


@pytest.mark.parametrize("point", OF_THE_CHECKPOINT_BEHIND)
def test_a_job_that_dies_behind_a_savepoint_can_still_come_back_to_it(point: str) -> None:
    """The next checkpoint is killed at each of its steps, and all it has prepared is thrown away with the attempt. What the
    savepoint holds must not be among it, or the savepoint must not stand."""
    storage, ask = crashed_run(request, Crash(point), Purpose.COVER)

    assert_counted_once(ledger("out").rows(), SOURCE)
    for path in standing_savepoints(ask):
        assert_goes_on_behind(path, storage)


def test_a_job_goes_on_from_the_savepoint_of_a_stop_that_died_before_its_record() -> None:
    """The driver is dead, and a savepoint is there: whoever starts from it rather than from the last checkpoint may."""
    storage, ask = fresh_storage(), Ask(request(StopMode.SUSPEND), after_checkpoints=1)
    points = AtTheSavepoint([Crash("driver.before-log")])
    started = InProcessRun(job(storage), 0, asks=[ask], crash_points=points, max_drivers=1)
    points.run, points.purposes = started, frozenset([Purpose.SUSPEND.value])
    with pytest.raises(AllDriversDied):
        started.run()
    (path,) = standing_savepoints(ask)
    assert log_records(storage)[-1].open_savepoint == path

    run(job(storage, resume=path), crashes=(Crash("slot.after-ack", times=2),))

    assert_counted_once(ledger("out").rows(), SOURCE)
    assert standing_savepoints(ask) == [path]


def check_random_crashes(seed: int) -> int:
    """Two savepoints at random moments, up to four deaths at random points. How many savepoints stand."""
    chance = random.Random(seed)
    forget_ledgers()
    points = [*ALL_POINTS, *SAVEPOINT_POINTS]
    crashes = {Crash(chance.choice(points), nth=chance.randint(1, 6)) for _ in range(chance.randint(1, 4))}
    directory, storage = fresh_storage() + "/savepoints", fresh_storage()
    asks = [Ask(request(directory=directory), after_checkpoints=chance.randint(1, 3)) for _ in range(2)]
    guarantee = chance.choice([{}, {"unaligned": True}, {"max_concurrent": 3}])
    env = job(storage, every="20ms", **guarantee)
    result = InProcessRun(env, seed, list(crashes), asks=asks).run()
    assert result.status is JobStatus.FINISHED, result.error
    assert_counted_once(ledger("out").rows(), SOURCE)
    standing = standing_savepoints(asks[0])
    for path in standing:
        assert_goes_on_behind(path, storage)
    return len(standing)


@pytest.mark.property
def test_after_random_crashes_the_job_comes_back_to_every_savepoint_that_stands() -> None:
    assert sum(check_random_crashes(seed) for seed in range(25)) > 15


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_after_many_random_crashes_the_job_comes_back_to_every_savepoint_that_stands() -> None:
    assert sum(check_random_crashes(seed) for seed in range(25, 600)) > 300


@pytest.mark.parametrize(
    ("point", "format"), in_turn([*START_POINTS, "slot.restored", "slot.before-commit", "slot.after-commit"], FORMATS)
)
def test_a_crash_at_each_step_of_a_start_from_a_savepoint_begins_there_again(point: str, format: str) -> None:
    """Twice in a row; and the next snapshot is not given the id of the savepoint."""
    ask = Ask(request(StopMode.SUSPEND, format), after_checkpoints=2)
    run(job(), ask)
    storage, before = fresh_storage(), open_store(ask.outcome.path).list("")

    started = InProcessRun(job(storage, resume=ask.outcome.path), 0, [crash := Crash(point, times=2)])
    result = started.run()

    assert result.status is JobStatus.FINISHED, result.error
    assert started.world.crash_points.done[crash] == 2
    assert_counted_once(ledger("out").rows(), SOURCE)
    assert min(logged_checkpoints(storage)) > ask.outcome.checkpoint
    assert open_store(ask.outcome.path).list("") == before


def test_a_snapshot_is_never_given_the_id_of_a_savepoint() -> None:
    """Not even by another driver, whose log would know nothing of it."""
    storage, ask = crashed_run(request, Crash("driver.savepoint-stored"), Purpose.SAVEPOINT)
    (path,) = standing_savepoints(ask)
    ids = logged_checkpoints(storage)
    assert len(ids) == len(set(ids))
    assert tg.Savepoint.load(path).checkpoint not in ids

    storage, _ = crashed_run(functools.partial(request, StopMode.SUSPEND), Crash("driver.before-log"), Purpose.SUSPEND)
    (noted,) = [record for record in log_records(storage) if record.kind is LogKind.SAVEPOINT]
    assert noted.savepoint_ids_below - 1 not in logged_checkpoints(storage)


class LogIsDown(MemoryStore):
    """The record that notes the savepoint of a stop cannot be written, for a while."""

    down = 6  #: all tries of the first savepoint, and one more

    def create(self, path: str, data: Any) -> bool:
        if "/log/" in path and b'"savepoint"' in bytes(data) and self.down:
            self.down -= 1
            raise StorageError("not now")
        return super().create(path, data)


def test_a_stop_that_cannot_be_noted_fails_and_the_job_goes_on() -> None:
    ask = Ask(request(StopMode.SUSPEND), after_checkpoints=1)
    started = InProcessRun(job(), 0, asks=[ask], store=LogIsDown("log-is-down"))
    result = started.run()

    assert result.status is JobStatus.FINISHED, result.error
    assert result.attempts == 1, "the job was restarted because of a savepoint"
    with pytest.raises(SavepointFailed, match="not now"):
        ask.outcome  # noqa: B018
    assert_counted_once(ledger("out").rows(), SOURCE)


# -- going back, owning, keeping --------------------------------------------------------------------------------------


def test_a_rollback_says_what_was_committed_since_and_a_reader_sees_the_new_epochs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = fresh_storage()
    with pytest.raises(AllDriversDied):
        InProcessRun(
            job(storage, LONG_SOURCE, every="10ms", retained=100), 3, [Crash("driver.notified", nth=10)], max_drivers=1
        ).run()
    newest = log_records(storage)[-1]
    assert newest.latest is not None
    assert newest.latest.id >= 10
    before = dict(ledger("out").committed)

    run(job(storage, LONG_SOURCE, retained=100, resume="chk-5"))

    (warning,) = [line for line in caplog.messages if "goes back" in line]
    said = r"checkpoint 5 \(1970-.* UTC\), but has completed checkpoint 1\d \(1970-.* UTC\): what its sinks \('out'\)"
    assert re.search(said, warning), warning
    ids = [record.latest.id for record in log_records(storage) if record.kind is LogKind.CHECKPOINT and record.latest]
    assert len(ids) == len(set(ids)), "an id was used twice"
    kept = [row for name, rows in before.items() if int(name.split("-")[0]) <= 5 for row in rows]
    new = [row for name, rows in ledger("out").committed.items() if name not in before for row in rows]
    assert_counted_once([*kept, *new], LONG_SOURCE)


class Failing(tg.KeyedProcessFunction):
    """Fails for good, once it has come to the middle."""

    seen = tg.ValueState(int, default=0)

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def process_element(self, value: tuple[int, int], ctx: tg.Context) -> list[tuple[int, int]]:
        self.seen.set(self.seen.get() + 1)
        if self.seen.get() > self.limit:
            raise ValueError("no more")
        return [(ctx.key, self.seen.get())]


@pytest.mark.parametrize("delete_on_cancel", [False, True])
def test_a_failed_job_keeps_its_checkpoints_in_any_case(delete_on_cancel: bool) -> None:
    """`delete_on_cancel` is about canceled jobs. When the function is repaired the job continues."""
    storage = fresh_storage()

    def build(limit: int, **settings: Any) -> tg.StreamEnvironment:
        env = environment(storage=storage, every="10ms", delete_on_cancel=delete_on_cancel, **settings)
        env.restart_strategy("none")
        numbers = env.from_source(SOURCE, uid="source", returns=tuple[int, int])
        counted = numbers.key_by(lambda row: row[1] % 5, key_type=int).process(Failing(limit), uid="count")
        counted.sink_to(LedgerSink("out"), uid="out")
        return env

    result = InProcessRun(build(30), 0).run()
    assert result.status is JobStatus.FAILED
    last = log_records(storage)[-1]
    assert last.kind is LogKind.FAILED
    assert last.latest is not None
    assert 0 < len(ledger("out").rows()) < len(SOURCE.numbers())

    run(build(10_000, resume="latest"))

    assert sorted(ledger("out").rows()) == [(key, count) for key in range(5) for count in range(1, 51)]


def test_what_a_job_was_started_from_stays_unless_it_is_claimed() -> None:
    for claim in (False, True):
        forget_ledgers()
        ask = Ask(request(StopMode.SUSPEND), after_checkpoints=1)
        run(job(), ask)
        path = ask.outcome.path

        run(job(name="next", resume=path, claim=claim))

        assert open_store(path).exists("_metadata.json") is not claim
        assert bool(open_store(path).list("")) is not claim


@pytest.mark.parametrize("incremental", [False, True], ids=["full", "incremental"])
def test_a_native_savepoint_of_rocksdb_is_its_own_files_and_needs_no_checkpoint(incremental: bool) -> None:
    """It is moved, its job's storage is gone; job after job continues, at the same parallelism and at another."""
    limits = {"state_backend": "rocksdb", "incremental": incremental}
    storage = fresh_storage()
    ask = Ask(request(StopMode.SUSPEND, "native"), after_checkpoints=2)
    run(job(storage, limits=limits), ask)
    found = open_store(ask.outcome.path)
    tables = [path for path in found.list("state/count/") if ".sst" in path]
    assert tables
    assert not found.list("keyed/")
    assert tg.Savepoint.load(ask.outcome.path).format == "native"
    moved, first = fresh_storage() + "/elsewhere", open_store(storage)
    for path in found.list(""):
        open_store(moved).put(path, found.get(path))
    for store in (found, first):
        store.delete_many(store.list(""))

    then = Ask(request(StopMode.SUSPEND, "native"), after_checkpoints=1)
    run(job(name="next", resume=moved, limits=limits), then)
    assert found.list("") == []
    run(job(name="last", resume=then.outcome.path, limits=limits, parallelism=3))

    assert_counted_once(ledger("out").rows(), SOURCE)
    assert [path for path in open_store(moved).list("state/count/") if ".sst" in path] == tables


def test_files_of_a_plain_native_savepoint_are_never_deleted_by_the_job() -> None:
    limits = {"state_backend": "rocksdb", "incremental": True}
    storage = fresh_storage()
    ask = Ask(request(format="native"), after_checkpoints=1)
    run(job(storage, limits=limits, every="10ms"), ask)
    assert max(logged_checkpoints(storage)) > ask.outcome.checkpoint + 1, "checkpoints came and went since"

    assert tg.Savepoint.load(ask.outcome.path).keyed_state("count", "seen").to_arrow().num_rows > 0
    assert_goes_on_behind(ask.outcome.path, storage)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_claimed_native_savepoint_goes_when_no_checkpoint_needs_its_files(backend: str) -> None:
    limits = {"state_backend": backend, "incremental": True}
    ask = Ask(request(StopMode.SUSPEND, "native"), after_checkpoints=1)
    run(job(limits=limits), ask)
    storage = fresh_storage()
    with pytest.raises(AllDriversDied):
        InProcessRun(
            job(storage, name="next", resume=ask.outcome.path, claim=True, limits=limits),
            1,
            [Crash("driver.notified", nth=2)],
            max_drivers=1,
        ).run()
    newest = log_records(storage, "next")[-1]
    used = {path for path in files_in_use(reaching_anywhere(open_store(storage)), newest) if is_uri(path)}
    assert {f"{ask.outcome.path}/{path}" for path in open_store(ask.outcome.path).list("")} <= used
    assert not open_store(ask.outcome.path).exists("_metadata.json")

    run(job(storage, name="next", resume="latest", limits=limits))

    assert_counted_once(ledger("out").rows(), SOURCE)


@pytest.mark.parametrize("format", ["parquet", "files"])
def test_a_reader_of_the_sink_sees_the_new_epochs_after_a_rollback(format: str, tmp_path: Path) -> None:
    """Back to 5 after 10, and on, with sinks that publish by themselves: a table by its log, files by their names."""
    storage, out = fresh_storage(), str(tmp_path / "out")
    sink = tg.ParquetTableSink(out) if format == "parquet" else tg.FileSink(out, "parquet")

    def rows() -> list[Any]:
        paths = read_manifest(out) if format == "parquet" else [str(path) for path in Path(out).glob("part-*")]
        return [tuple(row.values()) for path in paths for row in pq.read_table(path).to_pylist()]

    def build(**settings: Any) -> tg.StreamEnvironment:
        return counting_job(environment(storage=storage, every="10ms", retained=100, **settings), LONG_SOURCE, sink)

    run(build(), Ask(request(StopMode.SUSPEND), after_checkpoints=10), seed=3)
    five = next(r.latest for r in log_records(storage) if r.latest is not None and r.latest.id == 5)
    position = {
        row["split"]: int(row["position"])
        for row in tg.Savepoint.load(open_store(storage).uri(five.metadata_path)).sources().to_pylist()
    }
    before = Counter(rows())

    run(build(resume="chk-5"))

    again = Counter(rows()) - before  # what was visible stays
    assert not before - Counter(rows())
    after = [number for number in LONG_SOURCE.numbers() if number % 1000 >= position[str(number // 1000)]]
    assert sorted(row[2] for row in again.elements()) == after
    assert min(logged_checkpoints(storage)[-2:]) > 10


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_a_job_survives_the_deletion_of_a_foreign_checkpoint_that_it_was_started_from(backend: str) -> None:
    first, second = fresh_storage(), fresh_storage()
    limits = {"state_backend": backend, "incremental": True}
    with pytest.raises(AllDriversDied):
        InProcessRun(job(first, limits=limits), 1, [Crash("driver.notified", nth=3)], max_drivers=1).run()
    newest = log_records(first)[-1].latest
    assert newest is not None
    path = open_store(first).uri(newest.metadata_path)
    with pytest.raises(AllDriversDied):
        InProcessRun(
            job(second, name="next", resume=path, limits=limits), 1, [Crash("driver.notified", nth=2)], max_drivers=1
        ).run()
    store = open_store(first)
    store.delete_many(store.list(""))

    run(job(second, name="next", resume="latest", limits=limits))

    assert_counted_once(ledger("out").rows(), SOURCE)


def died(env: tg.StreamEnvironment, point: str, nth: int) -> None:
    with pytest.raises(AllDriversDied):
        InProcessRun(env, 3, [Crash(point, nth=nth)], max_drivers=1).run()


@pytest.mark.usefixtures("the_dead_leave_files_open")
@pytest.mark.parametrize("kind", ["ledger", "delta", "manifest"])
def test_a_checkpoint_that_was_left_uncommitted_by_a_rollback_is_committed_or_refused_when_the_job_returns(
    kind: str, tmp_path: Path
) -> None:
    """Checkpoint 5 stands; its driver dies before a sink is told; the job goes back to 3 and on, and then to 5 after all.
    Whatever else was committed meanwhile, the output of 5 must not be missing in silence."""
    sinks = {"ledger": LedgerSink("out"), "delta": tg.DeltaSink(tmp_path), "manifest": tg.ParquetTableSink(tmp_path)}
    storage, sink = fresh_storage(), sinks[kind]

    def build(**settings: Any) -> tg.StreamEnvironment:
        return counting_job(environment(storage=storage, every="10ms", retained=100, **settings), LONG_SOURCE, sink)

    def rows() -> Counter[tuple[Any, ...]]:
        if kind == "ledger":
            return Counter(ledger("out").rows())
        paths = DeltaTable(str(tmp_path)).file_uris() if kind == "delta" else read_manifest(str(tmp_path))
        return Counter(tuple(row.values()) for path in paths for row in pq.read_table(path).to_pylist())

    died(build(), "driver.after-log", 5)
    first = rows()
    died(build(resume="chk-3"), "driver.notified", 4)
    between = rows() - first
    assert between

    result = InProcessRun(build(resume="chk-5"), 3).run()

    if kind == "delta":
        assert result.status is JobStatus.FINISHED, result.error
        assert_counted_once((rows() - between).elements(), LONG_SOURCE)
    else:
        assert result.status is JobStatus.FAILED
        assert isinstance(result.error, CommitLost)
        assert rows() == first + between
