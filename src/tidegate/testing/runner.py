"""Runs a job in this process, without Spark: the very Slot, Attempt and JobRun of the product, scheduled from one seed.

Replaced are only channel, clock and storage. Everything that can happen next (a slot's turn, a frame arriving, a control
message, a background job, time) is one action; which one happens is drawn from the seed, so every interleaving can be
reached and every failure repeated.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tidegate.api.environment import StreamEnvironment
from tidegate.config import JobConfig
from tidegate.connectors.collect_sink import CollectedResults
from tidegate.coordinator.job import AttemptInputs, JobEnded, JobRun
from tidegate.coordinator.job_loop import JobLoop
from tidegate.coordinator.observing import JobStatus, JobView
from tidegate.coordinator.outcomes import Outcome
from tidegate.errors import JobFolderInUse, TidegateError
from tidegate.launch import check_uids, collected_results
from tidegate.storage.anywhere import reaching_anywhere
from tidegate.storage.store import ObjectStore, open_store
from tidegate.testing.clock import ManualClock
from tidegate.testing.crash_points import Crash, InProcessCrashPoints, SimulatedCrash
from tidegate.testing.scheduled_attempt import ScheduledAttempt
from tidegate.testing.world import Ask, Stuck, World

MAX_ACTIONS = 2_000_000
_runs = itertools.count()  #: of this process: a job that names no storage begins with an empty one each time


class AllDriversDied(Stuck):
    """As many drivers have crashed as the run was given. What the last one left in storage can be resumed."""


@dataclass(slots=True)
class RunResult:
    """How a job ended."""

    status: JobStatus
    error: TidegateError | None
    view: JobView
    store: ObjectStore
    collected: CollectedResults
    printed: str
    drivers: int  #: how many drivers it took
    attempts: int
    points_reached: set[str]


class InProcessRun:
    """One job, from its first driver to its end."""

    def __init__(
        self,
        env: StreamEnvironment,
        seed: int,
        crashes: list[Crash] | None = None,
        storage: str | None = None,
        max_drivers: int = 10,
        zombies: bool = True,
        store: ObjectStore | None = None,
        max_actions: int = MAX_ACTIONS,
        crash_points: InProcessCrashPoints | None = None,
        asks: Sequence[Ask] = (),
        config: JobConfig | None = None,
    ) -> None:
        settings = config or env.config()
        check_uids(env._graph, storage or settings.storage)
        self._env = env
        env._built.taken_up = True
        draws, clock = random.Random(seed), ManualClock()
        uri = storage or settings.storage or f"memory://run-{next(_runs)}-{draws.getrandbits(48):x}"
        self._config: JobConfig = replace(settings, storage=uri)
        self._max_drivers = max_drivers
        self._zombies_allowed = zombies
        self.attempts = 0
        self.running: ScheduledAttempt | None = None  #: or the one that ended last
        self.world = World(
            random=draws,
            clock=clock,
            wall_clock=clock,
            store=reaching_anywhere(open_store(uri) if store is None else store),
            crash_points=crash_points or InProcessCrashPoints(list(crashes or [])),
            asks=list(asks),
            max_actions=max_actions,
        )

    def run(self) -> RunResult:
        try:
            return self._run_drivers()
        finally:
            for zombie in self.world.zombies:
                zombie.let_go()

    def _run_drivers(self) -> RunResult:
        drivers = 0
        while True:
            drivers += 1
            if drivers > self._max_drivers:
                raise AllDriversDied(f"{self._max_drivers} drivers died")
            config = self._config if drivers == 1 else replace(self._config, resume="latest")
            try:
                ended = self._run_driver(config)
            except SimulatedCrash:
                continue
            except JobFolderInUse:
                if drivers == 1:
                    raise
                ended = JobEnded(JobStatus.FINISHED, None)  # its driver died right after the last record
            return RunResult(
                ended.status,
                ended.error,
                self.world.view,
                self.world.store,
                self.world.collected,
                "".join(self.world.printed),
                drivers,
                self.attempts,
                self.world.crash_points.reached,
            )

    # -- the driver ---------------------------------------------------------------------------------------------------

    def _run_driver(self, config: JobConfig) -> JobEnded:
        job = self.new_driver(config)
        try:
            return JobLoop(job, self, self.world.clock).run()
        except JobFolderInUse:
            raise
        except TidegateError as error:
            return job.fail(error)

    def new_driver(self, config: JobConfig) -> JobRun:
        self._job = job = JobRun(
            name=self._env.name,
            graph=self._env._graph,
            default_parallelism=self._env.parallelism,
            config=config,
            store=self.world.store,
            driver="in-process",
            view=self.world.view,
            crash_points=self.world.crash_points,
            clock=self.world.clock,
            wall_clock=self.world.wall_clock,
            sleep=self.world.clock.sleep,
            jitter=lambda: self.world.random.uniform(-1, 1),
        )
        types = collected_results(job.plan)
        for uid, record_type in types._types.items():
            self.world.collected.expect(uid, record_type)
        return job

    @property
    def canceled(self) -> bool:
        return self.world.canceled is not None

    @property
    def keeps_checkpoints(self) -> bool:
        return False

    def pause(self, seconds: float, for_slots: bool) -> None:
        self.world.clock.advance(seconds)

    def run_attempt(self, inputs: AttemptInputs) -> Outcome:
        job = self._job
        self.attempts += 1
        run = self.running = ScheduledAttempt(self.world, job, inputs)
        try:
            outcome: Outcome = run.until_outcome()
            return outcome
        finally:
            run.leave(job)
            for process in run.processes.values():
                self.world.bury(process, may_wake=self._zombies_allowed)


def run_in_process(
    env: StreamEnvironment,
    seed: int = 0,
    crashes: list[Crash] | None = None,
    storage: str | None = None,
    zombies: bool = True,
    store: ObjectStore | None = None,
    asks: Sequence[Ask] = (),
) -> RunResult:
    """Run the job of `env` to its end in this process. The same seed gives the same run.

    `store` is used in place of what the storage's address names: a FlakyStore around it, say.
    """
    return InProcessRun(env, seed, crashes, storage, zombies=zombies, store=store, asks=asks).run()


__all__ = ["AllDriversDied", "Ask", "InProcessRun", "RunResult", "Stuck", "run_in_process"]
