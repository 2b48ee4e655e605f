"""Routes that change something: cancel, checkpoint now, savepoint, stop, rescale, disposal. Driver.

They ask the job's client to act; what takes its time becomes an operation. Nothing is written outside the folders that the
job's settings name: a request may choose a folder inside them, and no other.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from tidegate.coordinator.observing import CheckpointsDiscarded
from tidegate.coordinator.savepoints import savepoint_directory
from tidegate.rest.calls import Call
from tidegate.rest.checkpoints import is_savepoint
from tidegate.rest.operations import Kind
from tidegate.rest.problems import Problem, bad_request
from tidegate.rest.served import ServedJob
from tidegate.storage.disposal import dispose_of
from tidegate.storage.paths import JobPaths
from tidegate.storage.store import without_credentials

CHECKPOINT_TIMEOUT = "1h"
CHECKPOINT_TYPES = ("CONFIGURED", "FULL", "INCREMENTAL")
FORMATS = ("CANONICAL", "NATIVE")
MAX_PARALLELISM = 32768

Answer = tuple[int, Any]


def cancel(call: Call) -> Answer:
    job = call.job()
    mode = call.query.get("mode", "cancel")
    if mode != "cancel":
        raise bad_request('mode must be "cancel"; to stop with a savepoint, POST to the job\'s /stop')
    status = job.view.status
    if status.is_terminal and status.value != "CANCELED":
        raise Problem(409, f"Job {job.id} has already ended: {status.value}")
    job.hands.cancel()
    return 202, {}


def checkpoint(call: Call) -> Answer:
    job = call.job()
    call.word("checkpointType", CHECKPOINT_TYPES)
    trigger_id = call.trigger_id()
    _refuse_ended(job)
    return _started(
        call,
        Kind.CHECKPOINT,
        job,
        trigger_id,
        lambda: {"checkpointId": job.hands.checkpoint_now(CHECKPOINT_TIMEOUT)},
    )


def checkpoint_result(call: Call) -> Answer:
    return 200, call.operations.status(Kind.CHECKPOINT, call.job().id, call.trigger())


def savepoint_result(call: Call) -> Answer:
    """Of a savepoint and of a stop: Flink's client asks here for both."""
    return 200, call.operations.status(Kind.SAVEPOINT, call.job().id, call.trigger())


def rescale_result(call: Call) -> Answer:
    return 200, call.operations.status(Kind.RESCALE, call.job().id, call.trigger())


def _started(
    call: Call, kind: Kind, job: ServedJob, trigger_id: str | None, work: Callable[[], dict[str, Any]]
) -> Answer:
    return 202, {"request-id": call.operations.start(kind, job.id, trigger_id, work)}


def _refuse_ended(job: ServedJob) -> None:
    status = job.view.status
    if status.is_terminal:
        raise Problem(409, f"Job {job.id} has already ended: {status.value}")


def savepoint(call: Call) -> Answer:
    job = call.job()
    format = call.word("formatType", FORMATS).lower()
    then_cancel = call.flag("cancel-job")
    trigger_id = call.trigger_id()
    folder = savepoint_folder(job, call.text("target-directory"))
    _refuse_ended(job)

    def work() -> dict[str, Any]:
        if then_cancel:  # else a checkpoint follows, and sinks commit what is read again after the savepoint
            return {"location": job.hands.stop(folder, drain=False, format=format)}
        return {"location": job.hands.savepoint(folder, format=format)}

    return _started(call, Kind.SAVEPOINT, job, trigger_id, work)


def stop(call: Call) -> Answer:
    """Its result is that of a savepoint: answered when the job has ended."""
    job = call.job()
    format = call.word("formatType", FORMATS).lower()
    drain = call.flag("drain")
    trigger_id = call.trigger_id()
    folder = savepoint_folder(job, call.text("targetDirectory"))
    _refuse_ended(job)
    return _started(
        call,
        Kind.SAVEPOINT,
        job,
        trigger_id,
        lambda: {"location": job.hands.stop(folder, drain=drain, format=format)},
    )


def rescale(call: Call) -> Answer:
    job = call.job()
    parallelism = call.number("parallelism", 0)
    if not 1 <= parallelism <= MAX_PARALLELISM:
        raise bad_request(f"parallelism must be between 1 and {MAX_PARALLELISM}")
    _refuse_ended(job)

    def work() -> dict[str, Any]:
        done = job.hands.rescale(parallelism)
        return {"parallelism": done.parallelism, "gap-ms": int(done.gap_s * 1000), "checkpointId": done.checkpoint}

    return _started(call, Kind.RESCALE, job, None, work)


def dispose(call: Call) -> Answer:
    """Only of a savepoint inside a folder of one of the jobs, and only where there is one."""
    path = call.text("savepoint-path")
    if not path:
        raise bad_request("Request did not match expected format: savepoint-path is missing")
    roots = [root for job in call.jobs.all() for root in savepoint_roots(job)]
    if not any(is_inside(path, root) and not is_inside(root, path) for root in roots):
        raise Problem(403, "by REST, only savepoints inside the folders of this driver's jobs may be disposed of")

    def work() -> dict[str, Any]:
        dispose_of(path)
        for job in call.jobs.all():
            _note_disposed(job, path)
        return {}

    return 200, {"request-id": call.operations.start(Kind.DISPOSAL, "", call.trigger_id(), work)}


def _note_disposed(job: ServedJob, path: str) -> None:
    checkpoints = job.view.snapshot().checkpoints.values()
    gone = tuple(c.checkpoint for c in checkpoints if is_savepoint(c) and c.path and is_inside(path, c.path))
    if gone:
        job.view.publish(CheckpointsDiscarded(gone))


def dispose_result(call: Call) -> Answer:
    return 200, call.operations.status(Kind.DISPOSAL, "", call.trigger())


def savepoint_roots(job: ServedJob) -> list[str]:
    """The folders in which savepoints may be written and disposed of by REST."""
    return [root for root in (job.config.savepoint_dir, job.config.storage) if root]


def savepoint_folder(job: ServedJob, asked: str | None) -> str | None:
    """What was asked for, else the job's setting, else a folder of the job's own. :raises Problem: for one outside them."""
    roots = savepoint_roots(job)
    if asked is not None and asked.strip():
        if not any(is_inside(asked, root) for root in roots):
            allowed = ", ".join(without_credentials(root) for root in roots) or "none: the job has no storage"
            raise Problem(
                403,
                f"by REST, savepoints may be written only inside the job's own folders ({allowed}). Name a folder there, or "
                "start the job with execution.checkpointing.savepoint-dir set to the place you want.",
            )
        if job.config.storage and is_inside(asked, job.config.storage):
            below = _taken_apart(asked)[1][len(_taken_apart(job.config.storage)[1]) :]
            if JobPaths.is_machinery(below):
                raise Problem(
                    403, "that folder is kept and cleaned up by jobs themselves: choose another for a savepoint"
                )
        return asked
    return savepoint_directory(job.name, job.config.savepoint_dir, job.config.storage)


def is_inside(path: str, root: str) -> bool:
    """Whether a URI or path names something in the folder `root`, or that folder. Dots and escapes are resolved first."""
    if "?" in path or "#" in path:
        return False  # what follows them would be read in one way here and in another by the storage
    (path_scheme, path_parts), (root_scheme, root_parts) = _taken_apart(path), _taken_apart(root)
    return path_scheme == root_scheme and path_parts[: len(root_parts)] == root_parts


def _taken_apart(text: str) -> tuple[str, list[str]]:
    parts = urlsplit(text if "://" in text else f"file://{text}")
    path = posixpath.normpath(f"/{unquote(parts.path)}")
    names = [name for name in path.split("/") if name]
    return f"{parts.scheme.lower()}://{parts.netloc}", names
