"""One attempt as a running Spark job: started in a thread of its own, watched, cancelled. Driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.ports import GangEnd
from tidegate.shown import shown_error
from tidegate.spark.executor_python import explain
from tidegate.spark.pipelined import build_plan, run_pipelined
from tidegate.spark.session import has_ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.spark.pipelined import LayerFunction


_MAX_TASKS = 10_000
_CONSEQUENCE = "the writer task likely failed"
_CAUSE_S = 2.0

log = logging.getLogger("tidegate.spark")


@dataclass(frozen=True, slots=True)
class GangResult:
    end: GangEnd
    message: str = ""


NO_SPARK = GangResult(
    GangEnd.NO_SPARK,
    "Spark has ended under the job: its application was killed, or its Java process in the driver is gone. Start the program "
    "again, and the job continues from its newest checkpoint (tidegate run --resume).",
)


class Gang:
    """All slots of one attempt."""

    def __init__(
        self,
        session: SparkSession,
        group: str,
        widths: Sequence[int],
        layers: Sequence[LayerFunction],
        on_end: Callable[[GangResult], None],
    ) -> None:
        self._session = session
        self._group = group
        self._widths = widths
        self._layers = layers
        self._on_end = on_end
        self._is_cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tidegate-{group}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def cancel(self) -> None:
        self._is_cancelled.set()
        # And future jobs: an attempt may be cancelled before its thread has handed the job to Spark.
        try:
            self._session.sparkContext._jsc.sc().cancelJobGroupAndFutureJobs(self._group)
        except Exception:
            if not has_ended(self._session):  # then there is nothing to cancel
                raise

    def executors(self) -> list[str]:
        """Executors on which Spark counts tasks of this gang as running, by id. Of a gang that has ended too: a task
        that does not answer keeps its slot, and the check before the next gang does not see it."""
        return sorted({task.executorId() for task in self._tasks() if task.status() == "RUNNING"})

    def _tasks(self) -> list[Any]:
        """As Spark's status store knows them; it hears of everything a little later."""
        context = self._session.sparkContext
        tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
        found: list[Any] = []
        for job in tracker.getJobIdsForGroup(self._group):
            info = tracker.getJobInfo(job)
            for stage in () if info is None else info.stageIds:
                tasks = store.taskList(stage, 0, _MAX_TASKS)
                found += [tasks.apply(i) for i in range(tasks.size())]
        return found

    def _cause(self) -> GangResult | None:
        """A reader whose writer has died may be the first to be heard. Why the writer died comes soon after."""
        deadline = time.monotonic() + _CAUSE_S
        while not self._is_cancelled.wait(0.05) and time.monotonic() < deadline:
            failed = [task.errorMessage() for task in self._tasks() if task.status() == "FAILED"]
            for message in [text.get() for text in failed if text.isDefined()]:
                in_words = explain(message)
                if in_words is not None:
                    return GangResult(GangEnd.NO_PYTHON, in_words)
        return None

    def join(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            # Without the interrupt a task that is blocked in a read from Python ends only when Python does.
            self._session.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=True)
            run_pipelined(self._session, build_plan(self._session, self._widths, self._layers))
            result = GangResult(GangEnd.COMPLETED)
        except Exception as error:
            result = NO_SPARK if has_ended(self._session) else _result_of(error)
            if result.end is GangEnd.FAILED and _CONSEQUENCE in result.message:
                result = self._cause_or(result)
        except BaseException as error:
            result = GangResult(GangEnd.FAILED, shown_error(error))
        self._on_end(result)

    def _cause_or(self, consequence: GangResult) -> GangResult:
        try:
            return self._cause() or consequence
        except Exception:  # a JVM that is gone cannot be asked
            log.exception("why a task of the attempt has died could not be found out")
            return consequence


def _result_of(error: Exception) -> GangResult:
    text = str(error)
    for line in text.splitlines():
        if "INSUFFICIENT_SLOT" in line or "insufficient slots" in line.lower():
            return GangResult(GangEnd.NO_SLOTS, line.strip(" :"))
    in_words = explain(text)
    if in_words is not None:
        return GangResult(GangEnd.NO_PYTHON, in_words)
    return GangResult(GangEnd.FAILED, _first_lines(text))


#: Lines of a Java stack trace, and Py4J's preface, tell the user nothing.
_NOISE = ("at ", "... ", "An error occurred while calling ")


def _first_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(_NOISE)]
    return "\n".join(lines[:6])
