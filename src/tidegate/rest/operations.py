"""What takes its time: savepoint, stop, checkpoint now, rescale. A trigger gives an id, its result is asked for by it. Driver.

Each operation has a thread of its own, at most MAX_RUNNING at a time. Results are kept KEEP_S and at most KEEP of them. The
same trigger id asked for twice is one operation: a client whose connection broke may ask again.
"""

from __future__ import annotations

import enum
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import TidegateError
from tidegate.rest.identity import new_trigger_id
from tidegate.rest.java_throwable import failure_cause
from tidegate.rest.problems import Problem, not_found

log = logging.getLogger("tidegate.rest")

MAX_RUNNING = 16
KEEP = 200
KEEP_S = 300.0


class Kind(enum.Enum):
    SAVEPOINT = "savepoint"
    CHECKPOINT = "checkpoint"
    DISPOSAL = "savepoint disposal"
    RESCALE = "rescale"

    @property
    def failure_key(self) -> str:
        """Flink writes it in two ways."""
        return "failureCause" if self is Kind.CHECKPOINT else "failure-cause"


@dataclass(slots=True)
class _Operation:
    kind: Kind
    job_id: str
    result: dict[str, Any] | None = None  #: None: under way
    ended_at: float = 0.0
    fetched: bool = False


@dataclass(slots=True)
class Operations:
    """Thread-safe."""

    clock: Callable[[], float] = time.monotonic
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _all: dict[str, _Operation] = field(default_factory=dict)

    def start(self, kind: Kind, job_id: str, trigger_id: str | None, work: Callable[[], dict[str, Any]]) -> str:
        """Run `work` in the background; its result, or the error it raises, is what `status` tells.

        :raises Problem: when too many are under way, or the id is of another operation.
        """
        with self._changed:
            self._forget_old()
            id = trigger_id or new_trigger_id()
            known = self._all.get(id)
            if known is not None:
                if (known.kind, known.job_id) != (kind, job_id):
                    raise Problem(409, f"triggerId {id} is that of another operation")
                return id
            if sum(operation.result is None for operation in self._all.values()) >= MAX_RUNNING:
                raise Problem(503, f"{MAX_RUNNING} operations are in progress; try again when one of them has ended")
            operation = self._all[id] = _Operation(kind, job_id)
        threading.Thread(
            target=self._run, args=(operation, work), name=f"tidegate-{kind.name.lower()}", daemon=True
        ).start()
        return id

    def status(self, kind: Kind, job_id: str, trigger_id: str) -> dict[str, Any]:
        """:raises Problem: for an id that is not known, or not any more."""
        with self._changed:
            self._forget_old()
            operation = self._all.get(trigger_id)
            if operation is None or (operation.kind, operation.job_id) != (kind, job_id):
                of_job = f" for job {job_id}" if job_id else ""
                raise not_found(f"There is no {kind.value} operation with triggerId={trigger_id}{of_job}.")
            if operation.result is None:
                return {"status": {"id": "IN_PROGRESS"}, "operation": None}
            operation.fetched = True
            self._changed.notify_all()
            return {"status": {"id": "COMPLETED"}, "operation": operation.result}

    def wait_until_fetched(self, timeout_s: float) -> None:
        """Until nobody waits for a new result any more. A driver that ends too early leaves its client in the dark."""

        def is_done(operation: _Operation) -> bool:
            is_old = operation.result is not None and self.clock() - operation.ended_at > timeout_s
            return operation.fetched or is_old

        with self._changed:
            self._changed.wait_for(lambda: all(map(is_done, self._all.values())), timeout_s)

    def _run(self, operation: _Operation, work: Callable[[], dict[str, Any]]) -> None:
        try:
            result = work()
        except TidegateError as error:
            name = f"tidegate.{type(error).__name__}"
            result = {operation.kind.failure_key: failure_cause(name, str(error), f"{name}: {error}")}
        except BaseException as error:  # whatever it is: without a result the operation would be under way for ever
            log.exception("a %s asked for by REST failed unexpectedly", operation.kind.value)
            name = type(error).__name__
            result = {operation.kind.failure_key: failure_cause(name, str(error), f"{name}: {error}")}
        with self._changed:
            operation.result = result
            operation.ended_at = self.clock()

    def _forget_old(self) -> None:
        ended = [id for id, operation in self._all.items() if operation.result is not None]
        for number, id in enumerate(ended):
            if number < len(ended) - KEEP or self.clock() - self._all[id].ended_at > KEEP_S:
                del self._all[id]
