"""Work on storage, off the coordinator's thread: metadata, log records, deleting. Driver; one thread, one job after another.

What nobody has foreseen there ends the attempt and is named: a checkpoint that is being stored has no timeout, and no other
would come after it.
"""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tidegate.errors import JobFailed
from tidegate.ports import Background
from tidegate.shown import shown_error

log = logging.getLogger("tidegate.coordinator")


def unforeseen(what: str, error: BaseException) -> JobFailed:
    return JobFailed(
        f"{what} failed unexpectedly: {shown_error(error)}", cause="".join(traceback.format_exception(error))
    )


@dataclass(frozen=True, slots=True)
class NamedWork:
    """The jobs of one attempt."""

    storing: Background
    on_failure: Callable[[JobFailed], None]  #: called in the storing thread

    def submit(self, what: str, job: Callable[[], None]) -> None:
        """`what`: for people, "storing checkpoint 7"."""

        def run() -> None:
            try:
                job()
            except Exception as error:
                log.exception("%s failed unexpectedly", what)
                self.on_failure(unforeseen(what, error))

        self.storing.submit(run)


class StoringThread:
    """Implements ports.Background; one for all attempts of a driver."""

    def __init__(self, on_failure: Callable[[JobFailed], None]) -> None:
        """`on_failure`: of what even the named jobs do not catch. Called in the storing thread."""
        self._on_failure = on_failure
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._open = 0
        self._thread = threading.Thread(target=self._run, name="tidegate-storing", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], None]) -> None:
        with self._idle:
            self._open += 1
        self._jobs.put(job)

    def drain(self) -> None:
        """Nothing of the last attempt may still be writing when the log is read for the next."""
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0)

    def close(self) -> None:
        self._jobs.put(None)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                job()
            except BaseException as error:
                log.exception("work on storage failed unexpectedly")
                self._on_failure(unforeseen("work on storage", error))
            finally:
                with self._idle:
                    self._open -= 1
                    self._idle.notify_all()
