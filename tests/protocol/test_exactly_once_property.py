"""Random graphs, random interleavings, random faults: after every restore and replay, each record is applied once.

Records are (source, number) with the path they took; state keeps the set. What the sinks have committed is compared
with an answer that is worked out in plain Python. A failure prints its seed; TIDEGATE_SEED=<seed> runs that case alone.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import random_graphs
from protocol_kit import fresh_storage, log_records
from random_graphs import Fuse, Graph, build, differences, random_graph, rescaled

from matrices import first
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import JobFolderInUse, StorageError
from tidegate.storage.checkpoints import load_checkpoint
from tidegate.storage.log import LogKind
from tidegate.storage.snapshot_file import read_sections
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.crash_points import ALL_POINTS, DRIVER_POINTS, Crash
from tidegate.testing.ledger_sink import forget_ledgers
from tidegate.testing.runner import AllDriversDied, InProcessRun
from tidegate.testing.stores import Fail, FlakyStore, RepeatedCreate

BATCHES = 12  #: in parts that a failure is found in quickly; some of them are for `make test`
RUNS_IN_A_BATCH = 25
RUNS_WHEN_SLOW = 400
MAX_DRIVERS = 40
MAX_ACTIONS = 200_000


@dataclass(slots=True)
class Case:
    """Everything that one seed decides."""

    seed: int
    graph: Graph
    settings: dict[str, Any]
    limits: dict[str, Any]
    crashes: list[Crash] = field(default_factory=list)
    faults: list[Any] = field(default_factory=list)
    fuses: dict[str, Fuse] = field(default_factory=dict)
    slow: bool = False
    zombies: bool = True

    def __str__(self) -> str:
        return (
            f"TIDEGATE_SEED={self.seed}\n{self.graph}\n{self.settings} {self.limits}\ncrashes {self.crashes}\n"
            f"faults {self.faults}\nfuses {self.fuses} slow {self.slow} zombies {self.zombies}"
        )


def draw_case(seed: int, rescalable: bool = False) -> Case:
    rng = random.Random(seed)
    case = Case(
        seed,
        random_graph(rng, rescalable),
        settings={
            "every": f"{rng.choice([10, 10, 20, 50, 200])}ms",
            "max_concurrent": rng.choice([1, 1, 2, 3]),
            "min_pause": f"{rng.choice([0, 0, 10])}ms",
            "retained": rng.choice([1, 1, 3]),
            "timeout": rng.choice(["500ms", "10min", "10min", "10min"]),
            "tolerable_failures": rng.choice([0, 3, 1000]),
        },
        limits={
            "inbox_bytes": rng.choice([1, 300, 2 << 20]),
            "held_memory_bytes": rng.choice([0, 500, 32 << 20]),
            "held_disk_bytes": rng.choice([0, 1000, 1 << 30]),
            "inline_limit_bytes": rng.choice([0, 20 * 1024]),
            "debloat": rng.random() < 0.8,
            "debloat_target_s": rng.choice([0.001, 0.02, 1.0]),
        },
        slow=rng.random() < 0.2,
        zombies=rng.random() < 0.8,
    )
    if case.limits["held_disk_bytes"] < 1 << 30 or case.settings["timeout"] == "500ms":
        # Checkpoints will fail, again and again; what is shown is that nothing is lost by it.
        case.settings["tolerable_failures"] = 10_000
    if not case.limits["held_memory_bytes"] and not case.limits["held_disk_bytes"]:
        # A newer barrier behind an older one has to be held too: checkpoints would end each other for ever.
        case.settings["max_concurrent"] = 1
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        point = rng.choice(ALL_POINTS)
        case.crashes.append(Crash(point, nth=rng.choice([1, 1, 2, 3, 8]), times=rng.choice([1, 1, 2])))
    if rng.random() < 0.3:
        for _ in range(rng.choice([1, 1, 2])):
            method = rng.choice(["put", "get", "get_range", "create", "exists"])
            case.faults.append(
                Fail(method, call=rng.randint(1, 12), after_effect=rng.random() < 0.5, times=rng.choice([1, 1, 3, 6]))
            )
        if rng.random() < 0.3:
            case.faults.append(RepeatedCreate(call=rng.randint(1, 6)))
    if rng.random() < 0.4:
        for method in rng.sample(random_graphs.USER_METHODS, rng.choice([1, 1, 2])):
            case.fuses[method] = Fuse(nth=rng.randint(1, 15), times=rng.choice([1, 1, 2]))
    return case


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that has come to its end; what it left in storage."""

    store: ObjectStore


def run_case(case: Case) -> Finished:
    """From the first driver to FINISHED. A driver that gave up (storage did not answer at its start) is followed by
    another, as a user would do."""
    storage = fresh_storage()
    store = FlakyStore(open_store(storage), case.faults)
    prepare(case)
    resume, crashes, trouble = None, case.crashes, None
    for _ in range(30):
        try:
            result = start(case, case.graph, storage, store, resume, crashes).run()
        except JobFolderInUse:
            assert log_records(open_store(storage))[-1].finished
            return Finished(store)  # the driver before died right behind its last record
        except StorageError as error:
            trouble = error
        else:
            if result.status is JobStatus.FINISHED:
                return Finished(store)
            trouble = result.error
        assert case.faults, f"the job failed: {trouble}"
        resume, crashes = "latest", []
    raise AssertionError(f"the job never ended: {trouble}")


def run_rescaled(case: Case) -> Finished:
    """The only driver dies; the job goes on at another parallelism, as often as that happens."""
    rng = random.Random(case.seed)
    storage = fresh_storage()
    store = open_store(storage)
    prepare(case)
    graph, resume = case.graph, None
    for _ in range(3):
        crashes = [Crash(rng.choice(DRIVER_POINTS), nth=rng.randint(1, 4)), *case.crashes]
        try:
            result = start(case, graph, storage, store, resume, crashes, max_drivers=1).run()
        except AllDriversDied:
            if log_records(store)[-1].finished:
                return Finished(store)  # it died right behind its last record
            graph, resume = rescaled(rng, graph), "latest"
            continue
        assert result.status is JobStatus.FINISHED, result.error
        return Finished(store)
    result = start(case, graph, storage, store, resume, []).run()
    assert result.status is JobStatus.FINISHED, result.error
    return Finished(store)


def prepare(case: Case) -> None:
    forget_ledgers()
    random_graphs.fuses.clear()
    random_graphs.fuses.update(case.fuses)
    random_graphs.slow.clear()


def start(
    case: Case,
    graph: Graph,
    storage: str,
    store: ObjectStore,
    resume: str | None,
    crashes: list[Crash],
    max_drivers: int = MAX_DRIVERS,
) -> InProcessRun:
    env = build(graph, storage=storage, resume=resume, limits=case.limits, **case.settings)
    run = InProcessRun(
        env, case.seed, crashes, max_drivers=max_drivers, zombies=case.zombies, store=store, max_actions=MAX_ACTIONS
    )
    if case.slow:
        random_graphs.slow[:] = [run.world.clock]
    return run


def check_storage(result: Finished, retained: int) -> None:
    """The log only grows, ids are never used twice, and what it retains can be read, every byte."""
    store = result.store._inner if isinstance(result.store, FlakyStore) else result.store
    records = log_records(store)
    assert [record.sequence for record in records] == list(range(len(records)))
    assert [record.kind for record in records].count(LogKind.FINISHED) == 1
    assert records[-1].finished
    ids = [record.latest.id for record in records if record.kind is LogKind.CHECKPOINT]
    assert ids == sorted(set(ids))
    assert 1 <= len(records[-1].retained) <= retained
    for pointer in records[-1].retained:
        for slot in load_checkpoint(store, pointer).slots:
            for _ in read_sections(store, slot.file):
                pass


def check(case: Case, result: Finished) -> None:
    found = differences(case.graph)
    assert not found, "\n".join(found)
    check_storage(result, case.settings["retained"])


def run_and_check(seed: int, rescale: bool = False) -> None:
    case = draw_case(seed, rescale)
    try:
        check(case, run_rescaled(case) if rescale else run_case(case))
    except BaseException:
        print(case)
        raise


def seeds(batch: int, runs: int) -> list[int]:
    """The same cases on every run, unless a seed is given."""
    given = os.environ.get("TIDEGATE_SEED")
    return [int(given)] if given is not None else [batch * 100_000 + number for number in range(runs)]


@pytest.mark.parametrize("batch", first(4, range(BATCHES)))
def test_each_record_is_applied_once(batch: int) -> None:
    for seed in seeds(batch, RUNS_IN_A_BATCH):
        run_and_check(seed)


@pytest.mark.parametrize("batch", first(2, range(BATCHES, BATCHES + 3)))
def test_each_record_is_applied_once_when_the_job_goes_on_at_another_parallelism(batch: int) -> None:
    for seed in seeds(batch, RUNS_IN_A_BATCH):
        run_and_check(seed, rescale=True)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("batch", range(100, 110))
def test_each_record_is_applied_once_in_thousands_of_runs(batch: int) -> None:
    for seed in seeds(batch, RUNS_WHEN_SLOW):
        run_and_check(seed, rescale=seed % 4 == 0)
