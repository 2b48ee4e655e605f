"""The crash matrix: your sink in a small job that dies everywhere, twice in a row; then what came out is counted.

    report = crash_matrix(lambda place: MySink(f"/tmp/x/{place}"), lambda place: read_back(f"/tmp/x/{place}"))
    report.check()

A case is one place to die: before or after a call of the contract (`SINK_STEPS`), in the middle of a commit, or at a step of
the protocol (`ALL_POINTS`). Each case runs the job at a fresh `place`, dies there, recovers, dies there again, recovers, runs
to its end, and reads the outside with the reader that you give. Two ways to die:

    kill=False   a worker or the driver is gone, as far as the job can tell; the objects of the dead stay behind, and what
                 they were about to do is done later by a "zombie". One process, quick, the same seed gives the same run.
    kill=True    the whole job runs in a process of its own, which gets SIGKILL. What it held open is closed by the system.

The case "early" dies nowhere: at every checkpoint it looks, right before the log record is written, whether something of that
checkpoint can be seen already.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tidegate.api.environment import StreamEnvironment
from tidegate.connectors.contract import Sink
from tidegate.coordinator.observing import JobStatus
from tidegate.errors import JobFolderInUse
from tidegate.ids import SlotId
from tidegate.testing.crash_points import ALL_POINTS, Crash, InProcessCrashPoints
from tidegate.testing.crash_steps import EPOCHS, Deaths, Epochs, MortalSink, StepCrash, sink_crashes
from tidegate.testing.nursery import Nursery
from tidegate.testing.runner import InProcessRun
from tidegate.testing.scripted_source import Checkpoint, ScriptedSource

MakeSink = Callable[[str], Sink]
ReadBack = Callable[[str], Iterable[Any]]

#: Points that only a driver that dies, or a bounded job that ends, can make different from the calls of a sink.
KILL_POINTS = ("slot.after-ack", "driver.before-log", "driver.after-log", "driver.notified", "driver.before-finished")
_SHOWN = 5
_MAX_LIVES = 12
_ROOM_BYTES = 256 << 20
_PREFIX = "tidegate-matrix-"  #: of a folder, before the process id of its owner


@dataclass(frozen=True, slots=True)
class CrashCase:
    """One place to die, or none."""

    name: str
    step: StepCrash | None = None
    point: Crash | None = None


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What a case did to what came out."""

    case: CrashCase
    crashes: int
    missing: list[Any] = field(default_factory=list)
    doubled: list[Any] = field(default_factory=list)
    foreign: list[Any] = field(default_factory=list)  #: came out, but never went in
    early: list[Any] = field(default_factory=list)  #: could be seen before its checkpoint stood in the log
    trouble: str = ""  #: the job did not end as it should

    def faults(self, exact: bool) -> list[str]:
        named = {"missing": self.missing, "foreign": self.foreign, "too early": self.early}
        if exact:
            named["doubled"] = self.doubled
        found = [f"{len(rows)} {name} ({_some(rows)})" for name, rows in named.items() if rows]
        return [*found, *([self.trouble] if self.trouble else [])]


@dataclass(frozen=True, slots=True)
class CrashReport:
    """All cases. `exact`: doubled records are faults too."""

    exact: bool
    results: list[CaseResult]

    def check(self) -> None:
        """:raises AssertionError: naming every case in which records were lost, doubled, invented or seen too early."""
        bad = [result for result in self.results if result.faults(self.exact)]
        assert not bad, f"{len(bad)} of {len(self.results)} cases failed:\n{self}"

    def __str__(self) -> str:
        return "\n".join(
            f"{result.case.name:<32} {result.crashes} crashes  {'; '.join(result.faults(self.exact)) or 'as it should be'}"
            for result in self.results
        )


@dataclass(frozen=True, slots=True)
class MatrixJob:
    """The job of every case: the records in epochs of a few each, through a shuffle, into the sink."""

    make_sink: MakeSink
    read_back: ReadBack
    records: Sequence[Any]
    type: Any
    parallelism: int
    epochs: int

    def environment(self, place: str, deaths: Deaths, storage: str) -> StreamEnvironment:
        size = -(-len(self.records) // self.epochs)
        script: list[Any] = []
        for start in range(0, len(self.records), size):
            script += [*self.records[start : start + size], Checkpoint()]
        env = StreamEnvironment(place, parallelism=self.parallelism)
        env.checkpointing(every="20ms", storage=storage)
        env.restart_strategy("fixed-delay", attempts=100, delay="0s")
        source = env.from_source(ScriptedSource(script[:-1], self.type), uid="records", parallelism=1)
        sink = MortalSink(self.make_sink(place), deaths, place)
        source.rebalance().sink_to(sink, uid="sink", parallelism=self.parallelism)
        return env


def crash_matrix(
    make_sink: MakeSink,
    read_back: ReadBack,
    *,
    records: Sequence[Any] = tuple(range(24)),
    type: Any = int,
    expected: Sequence[Any] | None = None,
    parallelism: int = 2,
    epochs: int = 4,
    times: int = 2,
    kill: bool = False,
    only: Callable[[CrashCase], bool] | None = None,
    place: str = "matrix",
    seed: int = 0,
) -> CrashReport:
    """Let a job with the sink die at every step and count what came out.

    :param make_sink: makes the sink for a place, a short name that no other case of this matrix has.
    :param read_back: what an independent reader sees at that place, in any order.
    :param records: what goes in, of the given type (annotation or schema). All different, or "too early" cannot be told.
    :param expected: what must come out; the records themselves, unless the sink changes them (upserts).
    :param times: how often in a row to die at one place.
    :param kill: see the module.
    :param only: which cases to run, by name.
    :param place: what the places' names begin with.
    """
    job = MatrixJob(make_sink, read_back, list(records), type, parallelism, epochs)
    wanted = Counter(_key(row) for row in (job.records if expected is None else expected))
    exact = make_sink(f"{place}-0").guarantee == "exactly-once" or expected is not None
    root = _root()
    _sweep(root)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=root)
    results: list[CaseResult] = []
    try:
        with Nursery(folder) if kill else contextlib.nullcontext() as nursery:
            run = _Runner(job, wanted, folder, place, nursery, seed)
            reached = run.baseline(results, exact)
            for case in crash_cases(reached, times, kill):
                if only is None or only(case):
                    results.append(run.case(case))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return CrashReport(exact, results)


def _root() -> str:
    """Where checkpoints of the matrix go. Processes die here, machines do not: in memory a sync costs nothing."""
    memory = "/dev/shm"
    has_room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ROOM_BYTES
    return memory if has_room else tempfile.gettempdir()


def _sweep(root: str) -> None:
    """What a matrix that was itself killed has left."""
    for name in os.listdir(root):
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and not (owner.isdigit() and os.path.exists(f"/proc/{owner}")):
            shutil.rmtree(os.path.join(root, name), ignore_errors=True)


def crash_cases(steps: set[str], times: int = 2, kill: bool = False) -> list[CrashCase]:
    """The cases of a sink that gets the calls `steps`."""
    cases = [CrashCase(str(crash), step=crash) for crash in sink_crashes(times) if crash.step in steps]
    points = KILL_POINTS if kill else ALL_POINTS
    for point in points:
        if point.endswith("commit") and "commit" not in steps:
            continue
        # After "finished" there is nothing to resume, so nobody comes there twice.
        often = 1 if point == "driver.after-finished" else times
        cases.append(CrashCase(point, point=Crash(point, nth=1 if "finished" in point else 2, times=often)))
    return cases


class _Runner:
    def __init__(
        self, job: MatrixJob, wanted: Counter[str], folder: str, place: str, nursery: Nursery | None, seed: int
    ) -> None:
        self._job = job
        self._wanted = wanted
        self._folder = folder
        self._place = place
        self._nursery = nursery
        self._seed = seed
        self._cases = 0

    def baseline(self, results: list[CaseResult], exact: bool) -> set[str]:
        """A run without a crash: the answer without trouble, and which calls this sink gets."""
        case = CrashCase("early")
        deaths, place = self._fresh(case)
        EPOCHS[place] = Epochs({})
        looks = _Looks(partial(self._job.read_back, place), EPOCHS[place]) if exact else None
        trouble = _guarded(lambda: _live(self._job, place, deaths, self._storage(place), self._seed, looks))
        results.append(self._counted(case, place, deaths, trouble, [] if looks is None else looks.early))
        del EPOCHS[place]
        return deaths.reached()

    def case(self, case: CrashCase) -> CaseResult:
        deaths, place = self._fresh(case)
        storage = self._storage(place)
        if self._nursery is None:
            points = InProcessCrashPoints([] if case.point is None else [case.point])
            trouble = _guarded(lambda: _live(self._job, place, deaths, storage, self._seed, points))
            return self._counted(case, place, deaths, trouble, [], sum(points.done.values()))
        trouble = _guarded(lambda: self._lives(case, place, deaths, storage))
        return self._counted(case, place, deaths, trouble, [])

    def _lives(self, case: CrashCase, place: str, deaths: Deaths, storage: str) -> None:
        assert self._nursery is not None
        for life in range(_MAX_LIVES):
            points = _KillPoints(deaths, case.point)
            work = partial(_live, self._job, place, deaths, storage, self._seed + life, points, life > 0)
            if self._nursery.run(work) == 0:
                return
        raise AssertionError(f"the job has died {_MAX_LIVES} times")

    def _fresh(self, case: CrashCase) -> tuple[Deaths, str]:
        self._cases += 1
        place = f"{self._place}-{self._cases}"
        folder = os.path.join(self._folder, place)
        os.makedirs(folder)
        return Deaths(folder, case.step, kill=self._nursery is not None), place

    def _storage(self, place: str) -> str:
        return f"file://{self._folder}/storage-{place}"

    def _counted(
        self, case: CrashCase, place: str, deaths: Deaths, trouble: str, early: list[Any], at_points: int = 0
    ) -> CaseResult:
        crashes = deaths.happened() + at_points
        asked = (case.step.times if case.step else 0) + (case.point.times if case.point else 0)
        if not trouble and crashes != asked:
            trouble = f"died {crashes} times instead of {asked}: the job never came there"
        found = Counter(_key(row) for row in self._job.read_back(place))
        return CaseResult(
            case,
            crashes,
            missing=sorted((self._wanted - found).elements()),
            doubled=sorted(
                (Counter({row: n for row, n in found.items() if row in self._wanted}) - self._wanted).elements()
            ),
            foreign=sorted(row for row in found if row not in self._wanted),
            early=early,
            trouble=trouble,
        )


class _Looks(InProcessCrashPoints):
    """Nobody dies. Right before a checkpoint's log record, nothing of it may be visible."""

    def __init__(self, read_back: Callable[[], Iterable[Any]], epochs: Epochs) -> None:
        super().__init__([])
        self._read_back = read_back
        self._epochs = epochs
        self.early: list[Any] = []

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        super().reach(point, slot, checkpoint)
        if point == "driver.before-log":
            visible = {_key(row) for row in self._read_back()}
            not_yet = [row for id, rows in self._epochs.of.items() if id >= (checkpoint or 0) for row in rows]
            self.early += [row for row in not_yet if _key(row) in visible]


class _KillPoints(InProcessCrashPoints):
    """A step of the protocol at which this process is killed; counted as the calls of the sink are."""

    def __init__(self, deaths: Deaths, crash: Crash | None) -> None:
        super().__init__([])
        self._deaths = deaths
        self._crash = crash
        self._hits = 0

    def reach(self, point: str, slot: SlotId | None = None, checkpoint: int | None = None) -> None:
        super().reach(point, slot, checkpoint)
        if self._crash is not None and self._crash.fits(point, slot):
            self._hits += 1
            happened = self._deaths.happened()
            if happened < self._crash.times and self._hits >= (self._crash.nth if happened == 0 else 1):
                self._deaths.die(happened)


def _live(
    job: MatrixJob,
    place: str,
    deaths: Deaths,
    storage: str,
    seed: int,
    points: InProcessCrashPoints | None,
    resume: bool = False,
) -> None:
    """Run the job, from where it stands, to its end."""
    env = job.environment(place, deaths, storage)
    if resume:
        env.checkpointing(every="20ms", storage=storage, resume="latest")
    try:
        result = InProcessRun(env, seed, storage=storage, crash_points=points).run()
    except JobFolderInUse:
        if not resume:
            raise
        return  # it died right after the last record
    assert result.status is JobStatus.FINISHED, f"the job ended {result.status.name}: {result.error}"


def _guarded(run: Callable[[], None]) -> str:
    try:
        run()
    except AssertionError as error:  # Stuck and ChildFailed are some
        return str(error)
    return ""


def _key(row: Any) -> str:
    """Rows need not be hashable: dicts and lists are compared by what they show."""
    return repr(row)


def _some(rows: list[Any]) -> str:
    return ", ".join(str(row) for row in rows[:_SHOWN]) + (", ..." if len(rows) > _SHOWN else "")
