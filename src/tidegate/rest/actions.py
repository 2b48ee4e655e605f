"""Routes that change something: cancel, checkpoint now, savepoint, stop, rescale, disposal. Driver.

They ask the job's client to act; what takes its time becomes an operation. Nothing is written outside the folders that the
job's settings name: a request may choose a folder inside them, and no other.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from tidegate.rest.calls import Call
from tidegate.rest.operations import Kind
from tidegate.rest.problems import Problem, bad_request, not_possible_yet
from tidegate.rest.served import ServedJob
from tidegate.storage.store import without_credentials

CHECKPOINT_TIMEOUT_S = 3600.0
CHECKPOINT_TYPES = ("CONFIGURED", "FULL", "INCREMENTAL")
FORMATS = ("CANONICAL", "NATIVE")

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
        lambda: {"checkpointId": job.hands.checkpoint_now(CHECKPOINT_TIMEOUT_S)},
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
    call.word("formatType", FORMATS)
    call.flag("cancel-job")
    call.trigger_id()
    allowed_folder(job, call.text("target-directory"))
    _refuse_ended(job)
    raise not_possible_yet("savepoints are not there yet; checkpoints are: POST to the job's /checkpoints")


def stop(call: Call) -> Answer:
    job = call.job()
    call.word("formatType", FORMATS)
    call.flag("drain")
    call.trigger_id()
    allowed_folder(job, call.text("targetDirectory"))
    _refuse_ended(job)
    raise not_possible_yet("stop with a savepoint is not there yet; PATCH the job with mode=cancel ends it")


def rescale(call: Call) -> Answer:
    job = call.job()
    if not 1 <= call.number("parallelism", 0) <= 32768:
        raise bad_request("parallelism must be between 1 and 32768")
    _refuse_ended(job)
    raise not_possible_yet("a running job cannot be rescaled yet; start it with another parallelism and --resume")


def allowed_folder(job: ServedJob, folder: str | None) -> str | None:
    """:raises Problem: for a folder outside the job's own storage."""
    if folder is None or not folder.strip():
        return None
    roots = [root for root in (job.config.storage,) if root]
    if not any(is_inside(folder, root) for root in roots):
        allowed = ", ".join(without_credentials(root) for root in roots) or "none: the job has no storage"
        raise Problem(403, f"by REST, savepoints may be written only inside the job's own folders ({allowed})")
    return folder


def is_inside(path: str, root: str) -> bool:
    """Whether a URI or path names something in the folder `root`, or that folder. Dots and escapes are resolved first."""
    (path_scheme, path_parts), (root_scheme, root_parts) = _taken_apart(path), _taken_apart(root)
    return path_scheme == root_scheme and path_parts[: len(root_parts)] == root_parts


def _taken_apart(text: str) -> tuple[str, list[str]]:
    parts = urlsplit(text if "://" in text else f"file://{text}")
    path = posixpath.normpath(f"/{unquote(parts.path)}")
    names = [name for name in path.split("/") if name]
    return f"{parts.scheme.lower()}://{parts.netloc}", names
