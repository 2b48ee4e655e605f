"""Runs of random graphs, each from one seed: what the job is, what happens to it, what must have come out.

    python tests/protocol/random_runs.py KIND BACKEND FIRST COUNT

KIND      aligned       one checkpoint at a time
          unaligned     or aligned for a while
          rescaled      either, and the job continues at another parallelism, so that chains change as well
          concurrent    two or three at a time; some at least once
BACKEND   heap          full snapshots or increments
          rocksdb       with next to no memory; incremental or not

In all of them users ask for savepoints of both formats, some of which time out, and for stops: a job that was suspended is
resumed from its savepoint, and one that was drained must have made of what its sources had read what a whole run makes of it.
Workers, drivers, user code and storage fail. The last line says how many runs there were; each that was wrong prints its seed
and what was wrong.
"""

from __future__ import annotations

import logging
import random
import shutil
import sys
import tempfile
import time
import warnings
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import random_functions
from protocol_kit import fresh_storage, log_records
from random_functions import Fuse
from random_graphs import Graph, build, differences, random_graph, rescaled, vary

from tidegate.coordinator.observing import JobStatus
from tidegate.coordinator.savepoints import SavepointRequest, TakenSavepoint
from tidegate.errors import JobFolderInUse, StorageError
from tidegate.ids import SlotId
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import CheckpointPointer, LogKind, LogRecord
from tidegate.storage.metadata import PARQUET
from tidegate.storage.snapshot_file import read_sections
from tidegate.storage.state_tables import read_rows
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.crash_points import ALL_POINTS, DRIVER_POINTS, Crash, InProcessCrashPoints, SimulatedCrash
from tidegate.testing.ledger_sink import forget_ledgers
from tidegate.testing.runner import AllDriversDied, Ask, InProcessRun
from tidegate.testing.stores import FailCall, FlakyStore, RepeatedCreate

KINDS = ("aligned", "unaligned", "rescaled", "concurrent")
BACKENDS = ("heap", "rocksdb")
LONG = ("unaligned", "rescaled")  #: of these more graphs have many records than many operators
MAX_DRIVERS = 40
MAX_STARTS = 30  #: of a job, by its user
MAX_ACTIONS = 200_000
LEAST_MEMORY_BYTES = 2000


@dataclass(slots=True)
class Case:
    """Everything that one seed decides."""

    seed: int
    kind: str
    graph: Graph
    settings: dict[str, Any]
    limits: dict[str, Any]
    crashes: list[Crash] = field(default_factory=list)
    faults: list[Any] = field(default_factory=list)
    fuses: dict[str, Fuse] = field(default_factory=dict)
    slow: bool = False
    zombies: bool = True
    spoiling: bool = False
    pressed: bool = False  #: checkpoints follow each other, and users ask for savepoints for which there is no time

    @property
    def at_least_once(self) -> bool:
        return self.settings.get("mode") == "at-least-once"

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.seed}\n{self.graph}\n{self.settings} {self.limits}\ncrashes {self.crashes}\n"
            f"faults {self.faults}\nfuses {self.fuses} slow {self.slow} zombies {self.zombies} spoiling {self.spoiling}"
        )


def draw_case(kind: str, backend: str, seed: int, folder: str) -> Case:
    """`folder` is for what RocksDB has on this disk."""
    rng = random.Random(f"{kind} {seed}")
    pressed = kind in LONG and rng.random() < (
        0.6 if backend == "heap" else 0.2
    )  # a death costs more where files are opened
    long = pressed or rng.random() < (0.7 if kind in LONG else 0.3)
    case = Case(
        seed,
        kind,
        random_graph(rng, rescalable=kind == "rescaled", long=long, wide=pressed),
        settings={
            "every": f"{rng.choice([10, 10, 20, 50, 200])}ms",
            "max_concurrent": rng.choice([2, 3]) if kind == "concurrent" else 1,
            "min_pause": f"{rng.choice([0, 0, 10])}ms",
            "retained": rng.choice([1, 1, 3]),
            "timeout": rng.choice(["500ms", "10min", "10min", "10min"]),
            "tolerable_failures": rng.choice([0, 3, 1000]),
        },
        limits={
            "inbox_bytes": rng.choice([1, 300, 2 << 20]),
            "held_memory_bytes": rng.choice([0, 500, 32 << 20]),
            "held_disk_bytes": rng.choice([0, 1000, 1 << 30, 1 << 30]),
            "inline_limit_bytes": rng.choice([0, 20 * 1024]),
            "debloat": rng.random() < 0.8,
            "debloat_target_s": rng.choice([0.001, 0.02, 1.0]),
        },
        slow=rng.random() < 0.2,
        zombies=rng.random() < 0.8,
        spoiling=rng.random() < 0.5,
        pressed=pressed,
    )
    vary(random.Random(f"vary {kind} {seed}"), case.graph, rescalable=kind == "rescaled")
    settings, limits = case.settings, case.limits
    if kind == "unaligned" or (kind == "rescaled" and (pressed or rng.random() < 0.5)):
        timeout_ms = rng.choice([0, 0, 0, 1, 5, 20, 50])
        settings |= {"unaligned": True, "aligned_timeout": f"{timeout_ms}ms"}
    if case.pressed:
        settings |= {
            "every": "10ms",
            "min_pause": "0ms",
            "aligned_timeout": "0ms",
            "timeout": "10min",
            "tolerable_failures": 10_000,
        }
        limits["held_disk_bytes"] = 1 << 30
        case.slow = False
    if case.pressed and kind == "rescaled" and rng.random() < 0.8:  # much is under way
        limits |= {"inbox_bytes": 2 << 20, "debloat_target_s": 1.0}
    if kind == "concurrent" and rng.random() < 0.25:
        settings["mode"] = "at-least-once"
    if limits["held_disk_bytes"] < 1 << 30 or settings["timeout"] == "500ms":
        # Checkpoints will fail, again and again; what is shown is that nothing is lost by it.
        settings["tolerable_failures"] = 10_000
    if settings.get("unaligned") or kind == "concurrent":
        # Barriers count too. Where a slot has no time to read them between two checkpoints, none would complete;
        # and of two at a time the newer one's barrier is held behind the older.
        limits["held_memory_bytes"] = max(limits["held_memory_bytes"], LEAST_MEMORY_BYTES)
        if limits["held_disk_bytes"] < 1 << 30:
            settings["every"] = "1s"
    limits |= _draw_backend(rng, backend, folder)
    for _ in range(rng.choice([0, 1, 2, 3, 5])):
        point = rng.choice(ALL_POINTS)
        case.crashes.append(Crash(point, nth=rng.choice([1, 1, 2, 3, 8, 20]), times=rng.choice([1, 1, 2])))
    if rng.random() < 0.3 and kind != "rescaled":
        for _ in range(rng.choice([1, 1, 2])):
            method = rng.choice(["put", "get", "get_range", "create", "exists"])
            case.faults.append(
                FailCall(
                    method, call=rng.randint(1, 12), after_effect=rng.random() < 0.5, times=rng.choice([1, 1, 3, 6])
                )
            )
        if rng.random() < 0.3:
            case.faults.append(RepeatedCreate(call=rng.randint(1, 6)))
    if rng.random() < 0.3:
        for method in rng.sample(random_functions.USER_METHODS, rng.choice([1, 1, 2])):
            case.fuses[method] = Fuse(nth=rng.randint(1, 15), times=rng.choice([1, 1, 2]))
    return case


def _draw_backend(rng: random.Random, backend: str, folder: str) -> dict[str, Any]:
    if backend == "heap":
        return {"state_backend": "hashmap", "incremental": rng.random() < 0.5}
    return {
        "state_backend": "rocksdb",
        "rocksdb_memory_bytes": rng.choice([1024, 1 << 20]),
        "state_folder": folder,
        "incremental": rng.choice([True, None, False]),
    }


# -- deaths at bad moments --------------------------------------------------------------------------------------------


@dataclass
class BadMoments(InProcessCrashPoints):
    """The driver dies as soon as a checkpoint is recorded, so that it will be restored, if it is one of those that are hard."""

    store: ObjectStore | None = None
    graph: Graph | None = None
    #: its predecessor was given up; or "under way": it has records that were sent by a source; or "ended": and all sources have
    moment: str = "given up"
    nth: int = 1
    times: int = 1
    triggered: set[int] = field(default_factory=set)

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        if point == "driver.triggered" and checkpoint is not None:
            self.triggered.add(checkpoint)
        if point == "driver.after-log" and checkpoint is not None and self.times and self._is_hard(checkpoint):
            self.nth -= 1
            if self.nth <= 0:
                self.times -= 1
                raise SimulatedCrash(f"{point} checkpoint {checkpoint}")
        super().reach(point, slot, checkpoint)

    def _is_hard(self, checkpoint: int) -> bool:
        self.triggered.discard(checkpoint)
        if self.moment == "given up":
            return checkpoint - 1 in self.triggered
        assert self.store is not None
        latest = log_records(self.store)[-1].latest
        assert latest is not None
        slots = load_checkpoint(self.store, latest).slots
        sections = (section for slot in slots for file in slot.files() for section in file.sections)
        assert self.graph is not None
        if not any(each.kind == "in-flight" and self.graph.chained_to_a_source(each.uid) for each in sections):
            return False
        splits = (split for slot in slots for subtask in slot.subtasks for split in subtask.splits)
        return self.moment == "under way" or all(split.finished for split in splits)


def draw_deaths(
    rng: random.Random, case: Case, number: int, crashes: list[Crash], store: ObjectStore
) -> InProcessCrashPoints:
    """Of the `number`th start."""
    moves = case.kind == "rescaled" and number < 5
    if number < 3 and case.settings.get("unaligned") and (case.pressed or rng.random() < 0.6):
        if moves:
            moment = rng.choice(["under way", "ended", "ended"])
            nth = 1 if moment == "ended" else rng.randint(1, 4)
            return BadMoments([] if case.pressed else crashes, store=store, graph=case.graph, moment=moment, nth=nth)
        return BadMoments(crashes, store=store, moment="given up", times=rng.choice([4, 12]))
    if moves:
        points = rng.choice([DRIVER_POINTS, ("driver.after-log",)])
        crashes = [Crash(rng.choice(points), nth=rng.randint(1, 6)), *crashes]
    return InProcessCrashPoints(crashes)


# -- what users ask for -----------------------------------------------------------------------------------------------


def draw_asks(rng: random.Random, case: Case, storage: str) -> list[Ask]:
    """Savepoints, most of which have little time; perhaps a stop; where the parallelism may change, rescales."""
    asks: list[Ask] = []
    if case.pressed and case.kind == "rescaled" and rng.random() < 0.8:
        return asks  # checkpoints follow each other until the end
    many = case.pressed and case.kind == "unaligned" and rng.random() < 0.8
    for _ in range(60 if many else rng.choice([0, 5, 10, 20])):
        request = SavepointRequest(
            f"{storage}-savepoints",
            format=rng.choice(["canonical", "native"]),
            timeout_s=0.003 + rng.random() * 0.03 if many else rng.choice([None, 0.01, 0.02, 0.03, 0.05]),
        )
        asks.append(Ask(request, after_checkpoints=rng.randrange(60 if many else 20)))
    if case.kind == "rescaled" and rng.random() < 0.4:
        request = SavepointRequest(None, stop=StopMode.RESCALE, parallelism=rng.choice([1, 2, 3]))
        asks.append(Ask(request, after_checkpoints=rng.randrange(1, 8)))
    if rng.random() < 0.3:
        request = SavepointRequest(
            f"{storage}-savepoints",
            format=rng.choice(["canonical", "native"]),
            stop=rng.choice([StopMode.SUSPEND, StopMode.SUSPEND, StopMode.DRAIN]),
            timeout_s=rng.choice([None, None, 0.05]),
        )
        asks.append(Ask(request, after_checkpoints=rng.randrange(1, 10)))
    return asks


def stopped_at(asks: list[Ask]) -> str | None:
    """The savepoint of the stop that a user was told of."""
    for ask in asks:
        future: Future[Any] = ask.request.future
        if ask.request.stop is StopMode.SUSPEND and future.done() and future.exception() is None:
            savepoint: TakenSavepoint = future.result()
            return savepoint.path
    return None


# -- the run ----------------------------------------------------------------------------------------------------------


def run_case(case: Case) -> ObjectStore:
    """From the first start to FINISHED; what it left in storage. A job that gave up, or was stopped, is started again."""
    rng = random.Random(f"run {case.seed}")
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), case.faults)
    prepare(case)
    graph, resume, crashes, trouble = case.graph, None, case.crashes, None
    for number in range(MAX_STARTS):
        moves = case.kind == "rescaled" and number < 5
        asks = draw_asks(rng, case, storage) if number < 3 else []
        deaths = draw_deaths(rng, case, number, crashes, reaching_anywhere(open_store(storage)))
        env = build(graph, storage=storage, resume=resume, limits=case.limits, **case.settings)
        run = InProcessRun(
            env,
            case.seed * 100 + number,
            crash_points=deaths,
            max_drivers=1 if moves else MAX_DRIVERS,
            zombies=case.zombies,
            store=store,
            max_actions=MAX_ACTIONS,
            asks=asks,
        )
        if case.slow:
            random_functions.slow[:] = [run.world.clock]
        resume, crashes = "latest", []
        try:
            result = run.run()
        except (JobFolderInUse, AllDriversDied) as error:
            trouble = error  # a driver has died, perhaps right after its last record
        except StorageError as error:
            if not case.faults:
                raise
            trouble = error
        else:
            trouble = result.error
            assert result.status is JobStatus.FINISHED or case.faults, f"the job failed: {trouble}"
        records = log_records(open_store(storage))
        if records and records[-1].finished:
            if not ends_with_a_stop(records):
                return store
            if was_drained(case, reaching_anywhere(open_store(storage)), records[-1].latest):
                return store
            resume = stopped_at(asks) or records[-1].latest.metadata_path.rsplit("/", 1)[0]
        elif not records:
            resume = None
        if case.kind == "rescaled":
            graph = rescaled(rng, graph)
    raise AssertionError(f"the job never ended: {trouble}")


def ends_with_a_stop(records: list[LogRecord]) -> bool:
    """Whatever drivers that died after it have left."""
    kinds = [record.kind for record in records if record.kind in (LogKind.CHECKPOINT, LogKind.SAVEPOINT_STOP)]
    return kinds[-1] is LogKind.SAVEPOINT_STOP


def was_drained(case: Case, store: ObjectStore, pointer: CheckpointPointer) -> bool:
    """The sources are told where they ended; the drain's savepoint says so."""
    metadata = load_checkpoint(store, pointer)
    if not metadata.final:
        return False
    read = {
        (subtask.uid, split.id): int(split.position or 0)
        for slot in metadata.slots
        for subtask in slot.subtasks
        for split in subtask.splits
    }
    for node in case.graph.nodes:
        if node.source is not None:
            node.source.drained_at = {split: at for (uid, split), at in read.items() if uid == node.uid}
    return True


def prepare(case: Case) -> None:
    forget_ledgers()
    random_functions.fuses.clear()
    random_functions.fuses.update(case.fuses)
    random_functions.slow.clear()
    random_functions.spoiling[0] = case.spoiling
    for node in case.graph.nodes:
        if node.source is not None:
            node.source.typed = node.typed


# -- what must have come out ------------------------------------------------------------------------------------------


def check(case: Case, store: ObjectStore) -> None:
    found = differences(case.graph)
    if case.at_least_once:
        found = [line for line in found if " lost, as " in line and "-counts:" not in line]
    elif case.kind == "rescaled":
        # Records in flight on a rebalance had been dealt to different subtasks: there is no order between them. On keyed edges
        # the functions look at it themselves.
        found = [line for line in found if " after " not in line]
    assert not found, "\n".join(found)
    check_storage(store, case.settings["retained"])


def check_storage(store: ObjectStore, retained: int) -> None:
    """The log only grows, ids are never used twice, and what it retains can be read, every byte."""
    store = reaching_anywhere(store._inner if isinstance(store, FlakyStore) else store)
    records = log_records(store)
    assert [record.sequence for record in records] == list(range(len(records)))
    assert records[-1].finished
    ids = [record.latest.id for record in records if record.kind is LogKind.CHECKPOINT and record.latest is not None]
    assert ids == sorted(set(ids))
    assert 1 <= len(records[-1].retained) <= retained + ends_with_a_stop(records)  # its savepoint is kept beside them
    for pointer in records[-1].retained:
        for slot in load_checkpoint(store, pointer).slots:
            for file in slot.files():
                read = read_rows if file.format == PARQUET else read_sections
                for _ in read(store, file) if file.sections else ():
                    pass


def run_and_check(kind: str, backend: str, seed: int, folder: str) -> None:
    case = draw_case(kind, backend, seed, folder)
    try:
        check(case, run_case(case))
    except BaseException:
        print(case)
        raise


def main(kind: str, backend: str, first: int, count: int) -> int:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    folder = tempfile.mkdtemp(prefix="tidegate-random-")
    began, wrong = time.monotonic(), []
    try:
        for seed in range(first, first + count):
            case = draw_case(kind, backend, seed, folder)
            try:
                check(case, run_case(case))
            except Exception as error:
                wrong.append(seed)
                print(f"{kind} {backend} seed {seed}: {type(error).__name__}: {str(error)[:600]}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = time.monotonic() - began
    print(f"{kind} {backend}: {count} runs from seed {first}, {len(wrong)} wrong {wrong[:20]}, {seconds:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
