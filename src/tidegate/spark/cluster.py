"""The Spark cluster as the coordinator sees it: it runs gangs of slots. Driver."""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import cloudpickle

from tidegate.ids import AttemptId
from tidegate.ports import GangEnd
from tidegate.spark.gang import Gang, GangResult
from tidegate.spark.masters import YARN
from tidegate.spark.session import check_slots, driver_address, is_local, own_session, total_slots
from tidegate.spark.slot_worker import layer_function
from tidegate.task.main import ShippedAttempt
from tidegate.types.main_program import program_imports, with_program_classes

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from tidegate.graph.plan import JobPlan
    from tidegate.ports import CrashPoints
    from tidegate.task.program import SlotSettings
    from tidegate.wire.handshake import ControlAddress

log = logging.getLogger("tidegate.spark")

SPARKS_INSTANCES = 2  #: executors that Spark starts on YARN when nobody says how many
LOCAL_EXECUTOR = "driver"  #: Spark's name for it in local mode


class SparkCluster:
    """Implements coordinator.execution.Cluster."""

    def __init__(
        self,
        session: SparkSession,
        plan: JobPlan,
        settings: SlotSettings,
        storage_uri: str | None,
        crash_points: CrashPoints,
    ) -> None:
        self._session = own_session(session)
        self._is_local = is_local(session.sparkContext.master)
        self._plan = plan
        self._settings = settings
        self._storage_uri = storage_uri
        self._crash_points = crash_points
        self._others = 0  #: executors that were asked for beside the usual ones
        self._asking = threading.Lock()
        self.bind_address, self.call_address = driver_address(session)

    def gang(self, attempt: AttemptId, coordinator: ControlAddress, on_end: Callable[[GangEnd, str], None]) -> Gang:
        shipped = cloudpickle.dumps(
            ShippedAttempt(
                job=self._plan.job,
                plan=with_program_classes(self._plan),
                attempt=attempt,
                coordinator=coordinator,
                settings=self._settings,
                storage_uri=self._storage_uri,
                crash_points=self._crash_points,
                modules=os.path.abspath(sys.path[0]),
                imports=program_imports(),
            )
        )

        def ended(result: GangResult) -> None:
            on_end(result.end, result.message)

        return Gang(
            session=self._session,
            # Random: a job of the same name in another storage has the same attempts, and must not be cancelled with it.
            group=f"{self._plan.job}-{attempt}-{secrets.token_hex(4)}",
            widths=[layer.width for layer in self._plan.layers],
            layers=[layer_function(shipped, layer) for layer in range(len(self._plan.layers))],
            on_end=ended,
        )

    def check_plan(self, plan: JobPlan) -> None:
        check_slots(self._session, len(plan.slots))

    def slots(self) -> int:
        """Of all executors that are there now."""
        return total_slots(self._session)

    def use_plan(self, plan: JobPlan) -> None:
        self._plan = plan

    def leaving_executors(self) -> frozenset[str]:
        """Those that Spark decommissions."""
        if self._is_local:
            return frozenset()
        pending = self._session.sparkContext._jsc.sc().schedulerBackend().executorsPendingDecommission()
        return frozenset(str(pending.keySet().mkString("\n")).split("\n")) if pending.nonEmpty() else frozenset()

    def ask_for_others(self, executors: frozenset[str]) -> None:
        """On YARN: there an executor that leaves counts until it has gone, and nobody starts another before. On Kubernetes it
        does not count any more; a standalone cluster has no more than its cores."""
        if self._session.sparkContext.master != YARN or len(executors) == self._others:
            return
        self._others = len(executors)
        threading.Thread(target=self._ask_for_others, name="tidegate-asking", daemon=True).start()

    def _ask_for_others(self) -> None:
        """The application master may take its time to answer."""
        with self._asking:
            context = self._session.sparkContext
            usual = int(context.getConf().get("spark.executor.instances") or SPARKS_INSTANCES)
            nowhere = context._jvm.PythonUtils.toScalaMap(context._jvm.java.util.HashMap())
            try:
                context._jsc.sc().requestTotalExecutors(usual + self._others, 0, nowhere)
            except Exception:  # the job waits for those that leave to be gone, as it would without
                log.exception("other executors could not be asked for")

    def warm_up(self, done: Callable[[], None]) -> None:
        """A task that does nothing on each executor: Spark deals them out one by one. It starts the worker daemon, which
        imports all, and has the JVM load what a slot needs."""

        def run() -> None:
            try:
                tasks = len(self._session.sparkContext._jsc.sc().statusTracker().getExecutorInfos())
                self._session.range(0, tasks, 1, tasks).mapInArrow(_pass_on, "id long").collect()
            except Exception:  # the job moves all the same, and takes longer
                log.exception("executors were not warmed up")
            done()

        threading.Thread(target=run, name="tidegate-warming", daemon=True).start()

    def replace_executor(self, executor: str) -> None:
        """Let the cluster manager kill the executor and start another. `killExecutor` would also lower the number of
        executors that the application asks for, and the job would wait for slots for ever."""
        if executor != LOCAL_EXECUTOR:
            self._session.sparkContext._jsc.sc().killAndReplaceExecutor(executor)


def _pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return batches
