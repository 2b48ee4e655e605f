"""A running job, in the hands of the program that started it. Driver."""

from __future__ import annotations

import threading
from typing import Any

from tidegate.connectors.collect_sink import CollectedResults
from tidegate.coordinator.execution import JobExecution
from tidegate.coordinator.observing import CheckpointStatistics, JobStatus, JobView, Observer
from tidegate.coordinator.requested import RequestedCheckpoint
from tidegate.durations import Duration, seconds
from tidegate.errors import ConfigurationError
from tidegate.graph.plan import JobPlan
from tidegate.ids import SlotId
from tidegate.wire.handshake import Hello


class JobClient:
    """Status, wait, cancel, checkpoints, results."""

    def __init__(self, name: str, execution: JobExecution, view: JobView, results: CollectedResults) -> None:
        self.name = name
        self.view = view  #: everything that displays show
        self.url: str | None = None  #: of the job's REST and dashboard; None: it has none
        self._execution = execution
        self._results = results

    @property
    def status(self) -> JobStatus:
        return self.view.status

    def wait(self, timeout: Duration | None = None, *, cancel_on_interrupt: bool = False) -> JobStatus:
        """Until the job ends, or the timeout is over. :raises JobFailed: and its kin, when the job failed."""
        limit = threading.TIMEOUT_MAX if timeout is None else seconds(timeout, "wait(timeout)")
        try:
            self._execution.end_event.wait(limit)
        except KeyboardInterrupt:
            if cancel_on_interrupt:
                self.cancel()
                self._execution.end_event.wait()
            raise
        ended = self._execution.ended
        if ended is not None and ended.error is not None:
            raise ended.error
        return self.status

    def cancel(self) -> None:
        """End the job without another checkpoint. `wait` returns when it has ended."""
        self._execution.request_cancel()

    def checkpoint(self) -> None:
        """Ask for a checkpoint now."""
        self._execution.request_checkpoint()

    def checkpoint_now(self, timeout_s: float = 600.0) -> int:
        """Take a checkpoint and wait until it is complete; gives its id.

        :raises CheckpointFailed: when it fails, or the job is not running, or not any more, or the time is over.
        """
        return RequestedCheckpoint(self.view).take(self.checkpoint, timeout_s)

    def subscribe(self, listener: Observer) -> None:
        """Call `listener` for every event of the job (tidegate.coordinator.observing), in the coordinator's thread: be quick.
        One that raises is not called again."""
        self.view.subscribe(listener)

    def unsubscribe(self, listener: Observer) -> None:
        self.view.unsubscribe(listener)

    def checkpoints(self) -> list[CheckpointStatistics]:
        """The newest last."""
        return list(self.view.checkpoints.values())

    def results(self, uid: str | None = None) -> list[Any]:
        """What a `collect()` sink has committed so far; `uid` may be left out when there is only one."""
        if uid is None:
            uids = self._results.uids()
            if len(uids) != 1:
                raise ConfigurationError(
                    f"the job has {len(uids)} collect() sinks ({', '.join(uids) or 'none'}): say which, results(uid)"
                )
            (uid,) = uids
        return self._results.rows(uid)

    @property
    def plan(self) -> JobPlan:
        """Operators, chains, layers, as they run now."""
        return self._execution.plan

    def workers(self) -> dict[SlotId, Hello]:
        """The worker process of each slot: host, process id."""
        return self._execution.workers()
