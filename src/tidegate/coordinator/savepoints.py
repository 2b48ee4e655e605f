"""Savepoints, stops and rescales that users have asked for: what was asked, and the one answer to each. Driver.

Asked from any thread; answered by the coordinator's. The future of a request is answered exactly once, however the job
continues or ends: with the place of the savepoint, or with `SavepointFailed`, after which the job continues as if nothing had
been asked, or has ended. A future is under way from the beginning: its owner cannot take it back before the answer.
"""

from __future__ import annotations

import secrets
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import ConfigurationError, SavepointFailed
from tidegate.graph.plan import Parallelism
from tidegate.ids import CheckpointId
from tidegate.protocol.checkpoint_events import StopMode
from tidegate.shown import is_writable
from tidegate.storage.anywhere import as_uri, is_uri
from tidegate.storage.paths import JobPaths
from tidegate.storage.savepoint_format import CANONICAL, NATIVE
from tidegate.storage.store import DRIVER_MEMORY, open_store, without_credentials


@dataclass(frozen=True, slots=True)
class TakenSavepoint:
    """A savepoint that stands; `path` is what `resume` takes."""

    path: str
    checkpoint: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rescaled:
    """The job runs with another parallelism."""

    parallelism: Parallelism
    gap_s: float  #: from the last record of the old attempt to the first that the new one may take
    checkpoint: int  #: that it has gone through


def _under_way() -> Future[Any]:
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass(frozen=True, slots=True)
class SavepointRequest:
    """What a user asked for. `parallelism`: of a rescale, which stores a checkpoint and no savepoint."""

    directory: str | None
    format: str = CANONICAL
    stop: StopMode | None = None
    timeout_s: float | None = None
    parallelism: Parallelism | None = None
    reason: str = ""  #: of a rescale that no user has asked for
    future: Future[Any] = field(default_factory=_under_way)

    def folder(self, job: str, checkpoint: CheckpointId) -> str:
        """A new one in the directory, for this savepoint alone."""
        assert self.directory is not None
        return f"{self.directory}/savepoint-{job}-{checkpoint}-{secrets.token_hex(3)}"


def savepoint_request(
    directory: str | None,
    default: str | None,
    format: str = CANONICAL,
    stop: StopMode | None = None,
    timeout_s: float | None = None,
) -> SavepointRequest:
    """:raises ConfigurationError: when nobody has said where to, or it cannot be a place."""
    where = directory or default
    if where is None:
        raise ConfigurationError(
            "it is not known where the savepoint goes: give a directory, or set it for the job "
            "(execution.checkpointing.savepoint-dir, or env.checkpointing(savepoints=...))"
        )
    if not is_writable(where):
        raise ConfigurationError(f"{where!a} is not a place for savepoints: its name is not text that UTF-8 can write")
    if not is_uri(where):
        raise ConfigurationError(
            f"{where!r} is not a place for savepoints: use /path, file:///path, s3://bucket/folder ..."
        )
    if format not in (CANONICAL, NATIVE):
        raise ConfigurationError(f"savepoint format {format!r} is unknown: use {CANONICAL!r} or {NATIVE!r}")
    open_store(where)  # refuses what it cannot open, and credentials
    return SavepointRequest(as_uri(where), format, stop, timeout_s)


def savepoint_directory(job: str, savepoint_dir: str | None, storage: str | None) -> str | None:
    """Where savepoints go that name no place: as the settings say, else into the job's own folder. None: nowhere."""
    if savepoint_dir is not None or storage in (None, DRIVER_MEMORY):
        return savepoint_dir
    assert storage is not None
    return f"{as_uri(storage)}/{JobPaths(job).savepoints}"


@dataclass(slots=True)
class SavepointDesk:
    """Open requests by number. The coordinator's thread."""

    open: dict[int, SavepointRequest] = field(default_factory=dict)
    rescaling: tuple[SavepointRequest, float] | None = (
        None  #: its checkpoint stands; and since when nothing is processed
    )
    _taken: int = 0

    def take(self, request: SavepointRequest) -> int:
        number, self._taken = self._taken, self._taken + 1
        self.open[number] = request
        return number

    def fulfil(self, number: int, savepoint: TakenSavepoint) -> None:
        request = self.open.pop(number, None)
        if request is not None:
            request.future.set_result(savepoint)

    def refuse(self, number: int, reason: str) -> None:
        request = self.open.pop(number, None)
        if request is not None:
            refuse(request, reason)

    def refuse_all(self, reason: str) -> None:
        """The attempt has ended: what was asked of it is not asked of the next."""
        for number in list(self.open):
            self.refuse(number, reason)

    def rescale_begins(self, number: int, halted_at: float) -> None:
        """The checkpoint of a rescale stands: it is answered when the job runs again, in whatever attempt, or has ended."""
        self.rescaling = self.open.pop(number), halted_at

    def rescaled(self, now: float, checkpoint: CheckpointId) -> Rescaled:
        """The job runs with the new plan."""
        assert self.rescaling is not None
        request, halted_at = self.rescaling
        self.rescaling = None
        assert request.parallelism is not None
        answer = Rescaled(request.parallelism, now - halted_at, checkpoint)
        request.future.set_result(answer)
        return answer

    def close(self, how: str) -> None:
        """The job has ended: everybody who still waits hears how."""
        for number in list(self.open):
            refuse(self.open.pop(number), how, goes_on=False)
        if self.rescaling is not None:
            request, _ = self.rescaling
            self.rescaling = None
            refuse(
                request, f"its checkpoint is complete, but before it ran with the new parallelism {how}", goes_on=False
            )


def refuse(request: SavepointRequest, reason: str, goes_on: bool = True) -> None:
    what = "the savepoint was not taken" if request.parallelism is None else "the job was not rescaled"
    where = "" if request.directory is None else f" (to {without_credentials(request.directory)})"
    end = " The job continues without it." if goes_on else ""
    request.future.set_exception(SavepointFailed(f"{what}{where}: {reason}.{end}", reason=reason))
