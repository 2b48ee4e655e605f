"""The display of `tidegate run --json`: a JSON object for each thing that happens, a line each, on standard error.

Standard output belongs to the job. Driver; called in the coordinator's thread, so it only writes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.coordinator.moving import ExecutorsLeaving, ScalingDecided
from tidegate.coordinator.observing import (
    AttemptFailed,
    AttemptStarted,
    CheckpointChanged,
    CheckpointStatus,
    JobEvent,
    StatusChanged,
)
from tidegate.graph.plan import JobPlan


@dataclass(slots=True)
class JsonDisplay:
    """Implements overrides.Onlooker."""

    write: Callable[[str], object]
    clock: Callable[[], float] = time.time

    def say(self, event: str, **facts: Any) -> None:
        line = {"event": event, "at": round(self.clock(), 3), **facts}
        self.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def launching(self, draft: JobPlan, config: JobConfig) -> None:
        self.say("launching", job=draft.job, slots=len(draft.slots), master=config.master)

    def launched(self, client: JobClient, plan: JobPlan) -> None:
        self.say("launched", job=client.name, url=client.url)
        client.view.subscribe(lambda event: self._on(client.name, event))

    def _on(self, job: str, event: JobEvent) -> None:
        match event:
            case StatusChanged(status, detail, _):
                self.say("status", job=job, status=status.value, detail=detail)
            case AttemptStarted(attempt, restored_from, _):
                self.say("attempt", job=job, attempt=str(attempt), restored_from=restored_from)
            case AttemptFailed():
                self.say(
                    "failure",
                    job=job,
                    attempt=str(event.attempt),
                    error=event.error,
                    kind=event.kind,
                    operator=event.operator,
                    uid=event.uid,
                    subtask=event.subtask,
                    user_line=event.user_line,
                    restart_in_s=event.restart_in_s,
                )
            case CheckpointChanged(statistics) if statistics.status is not CheckpointStatus.IN_PROGRESS:
                self.say(
                    "checkpoint",
                    job=job,
                    id=statistics.checkpoint,
                    status=statistics.status.value,
                    purpose=statistics.purpose,
                    duration_s=statistics.duration_s,
                    size_bytes=statistics.size_bytes,
                    added_bytes=statistics.added_bytes,
                    path=statistics.path,
                    failure=statistics.failure,
                )
            case ScalingDecided(parallelism, reason):
                self.say("scaling", job=job, parallelism=dict(parallelism), reason=reason)
            case ExecutorsLeaving(executors):
                self.say("leaving", job=job, executors=executors)
            case _:
                pass  # heartbeats, acknowledgements
