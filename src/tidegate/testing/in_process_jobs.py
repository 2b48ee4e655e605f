"""Programs as they are, without Spark: inside `in_process()`, every `env.execute()` runs its job in this process.

    with in_process():
        runpy.run_path("job.py", run_name="__main__")

The job's slots, its coordinator and its storage are those of the product; only Spark's network and processes are replaced by
a simulation (testing/scheduled_attempt.py), with a clock of its own: nobody waits for a second to pass. The same seed gives the
same run, for programs that do nothing but `execute()`. It runs in a thread, so `execute_async` returns: the client can take
savepoints, stop, rescale and cancel, as soon as the job's thread hears of it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from tidegate.api.environment import StreamEnvironment
from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.console import show_out
from tidegate.coordinator.execution import JobExecution
from tidegate.coordinator.job import JobEnded
from tidegate.coordinator.savepoints import SavepointRequest, refuse
from tidegate.errors import JobFailed, TidegateError
from tidegate.graph.plan import JobPlan, plan_job
from tidegate.ids import SlotId
from tidegate.launch import check_shippable
from tidegate.overrides import launched_by
from tidegate.testing.runner import Ask, InProcessRun
from tidegate.wire.handshake import Hello


class InProcessExecution:
    """One job in a thread of its own. To a JobClient it is what coordinator/execution.py is."""

    def __init__(self, env: StreamEnvironment, config: JobConfig, seed: int) -> None:
        self.ended: JobEnded | None = None
        self.end_event = threading.Event()
        self.plan: JobPlan = plan_job(env.name, env._graph, config.parallelism or env.parallelism)
        self._run = InProcessRun(env, seed, config=config)
        self.world = self._run.world
        self._ending = threading.Lock()

    def run(self) -> None:
        try:
            result = self._run.run()
            show_out(result.printed)
            ended = JobEnded(result.status, result.error)
        except TidegateError as error:
            ended = JobEnded(self.world.view.status, error)
        except BaseException as error:
            ended = JobEnded(self.world.view.status, JobFailed(f"the in-process run itself failed: {error!r}"))
        with self._ending:
            self.ended = ended
            self.end_event.set()
        for ask in self.world.asks:
            if not ask.asked:
                refuse(ask.request, "the job has ended", goes_on=False)

    # -- what a client asks for, from any thread ------------------------------------------------------------------------

    def request_cancel(self, why: str = "", keep: bool = False, commits_within_s: float = 0.0) -> None:
        self.world.canceled = commits_within_s

    def request_checkpoint(self) -> None:
        self.world.calls.append(lambda attempt: attempt.request_checkpoint())

    def request_savepoint(self, request: SavepointRequest) -> None:
        with self._ending:
            if self.ended is None:
                self.world.asks.append(Ask(request, after_checkpoints=0))
                return
        refuse(request, "the job has ended", goes_on=False)

    def note_why(self, why: str) -> None:
        """Nobody keeps a history of these runs."""

    def workers(self) -> dict[SlotId, Hello]:
        return {}


@contextmanager
def in_process(seed: int = 0) -> Iterator[None]:
    """Jobs that are executed inside run in this process, without Spark. Those that still run at the end are canceled."""
    started: list[tuple[InProcessExecution, threading.Thread]] = []

    def launch(env: StreamEnvironment, config: JobConfig) -> JobClient:
        config.validate()
        check_shippable(env._graph)
        execution = InProcessExecution(env, config, seed)
        world = execution.world
        # A client asks no more of it than what InProcessExecution has.
        client = JobClient(env.name, cast(JobExecution, execution), world.view, world.collected, config.savepoint_dir)
        thread = threading.Thread(target=execution.run, name=f"in-process-{env.name}", daemon=True)
        started.append((execution, thread))
        thread.start()
        return client

    with launched_by(launch):
        try:
            yield
        finally:
            for execution, thread in started:
                if not execution.end_event.is_set():
                    execution.request_cancel()
                thread.join()
