"""What is kept of a run when it ends: how its checkpoints went, why it failed. Driver; read by `tidegate history`.

One JSON file for each generation, `<job>/history/g3.json`, with the answers that REST gave last: job, checkpoints, exceptions,
accumulators, and a version. For people: that it cannot be written changes nothing.
"""

from __future__ import annotations

import json
import logging

from tidegate.coordinator.observing import JobEvent, StatusChanged
from tidegate.errors import StorageError
from tidegate.rest import checkpoints, jobs
from tidegate.rest.served import ServedJob
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import ObjectStore

log = logging.getLogger("tidegate.rest")

VERSION = 1
MAX_EXCEPTIONS = 20


def keep_history(job: ServedJob, store: ObjectStore) -> None:
    """Write the file when the job ends."""

    def on(event: JobEvent) -> None:
        if isinstance(event, StatusChanged) and event.status.is_terminal:
            write_history(job, store)

    job.view.subscribe(on)


def write_history(job: ServedJob, store: ObjectStore) -> None:
    attempt = job.view.attempt
    if attempt is None:
        return  # it never held the job
    kept = {
        "version": VERSION,
        "job": jobs.job_details(job),
        "checkpoints": checkpoints.statistics(job),
        "exceptions": jobs.exceptions(job, MAX_EXCEPTIONS),
        "accumulators": jobs.accumulators(job),
    }
    try:
        store.put(JobPaths(job.name).history(attempt.generation), json.dumps(kept).encode())
    except StorageError as error:
        log.warning("the history of this run was not kept: %s", error)
