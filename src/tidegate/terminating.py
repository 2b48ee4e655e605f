"""SIGTERM, as supervisors send it (systemd, Kubernetes, docker stop): jobs end so that they can be continued. Driver.

    first SIGTERM    each job of the process ends as its setting `tidegate.on-term` says,
                       checkpoint   take one, then end: resume="latest" continues from it. The default
                       savepoint    stop with a savepoint, which a next run names
                       cancel       end at once; what is retained stays
                     all within `tidegate.on-term-timeout`. Then the program ends, with the exit code 143.
    second SIGTERM   the process ends at once.

The handler runs in the main thread, wherever that is; the jobs are ended by threads of their own, because the main thread may
hold a lock that they need. A program that handles SIGTERM itself keeps its handler.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from types import FrameType

from tidegate.client import JobClient
from tidegate.config import JobConfig
from tidegate.console import show_err
from tidegate.coordinator.observing import JobEvent, JobStatus, StatusChanged
from tidegate.coordinator.savepoints import TakenSavepoint, savepoint_directory
from tidegate.errors import TidegateError, TimedOut
from tidegate.settings.choices import ON_TERM, OnTerm, Retention
from tidegate.shown import first_line
from tidegate.storage.store import DRIVER_MEMORY
from tidegate.telling.exit_codes import EXIT_TERMINATED

VARIABLE = "TIDEGATE_ON_TERM"
BY_SIGTERM = "stopped by SIGTERM"
END_PART = 0.2  #: of the time: what is left for the end itself
SHOW_CURSOR = b"\x1b[?25h"


@dataclass(frozen=True, slots=True)
class LiveJob:
    client: JobClient
    config: JobConfig

    @property
    def way(self) -> OnTerm:
        return way_of(self.config)


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of one job."""

    job: str
    what: str
    resume: str | None = None  #: what a next run continues from: "latest", or a savepoint's path

    def sentence(self, resume: Callable[[str], str]) -> str:
        how = "" if self.resume is None else f": {resume(self.resume)} continues from it"
        return f"{self.job}: {BY_SIGTERM}; {self.what}{how}"


def way_of(config: JobConfig) -> OnTerm:
    """The program's or the command line's, else the environment's. :raises ConfigurationError:"""
    word = os.environ.get(VARIABLE)
    return config.on_term or (ON_TERM.from_text(word, VARIABLE) if word else OnTerm.CHECKPOINT)


_live: list[LiveJob] = []  #: without a lock: the main thread may be interrupted by the signal while it would hold it


def watch(client: JobClient, config: JobConfig) -> None:
    """From its start to its end the job is one that SIGTERM ends."""
    job = LiveJob(client, config)

    def on(event: JobEvent) -> None:
        if isinstance(event, StatusChanged) and event.status.is_terminal:
            forget()

    def forget() -> None:
        if job in _live:
            _live.remove(job)

    _live.append(job)
    client.view.subscribe(on)
    if client.status.is_terminal:  # it was quicker
        forget()


def live_jobs() -> list[LiveJob]:
    return list(_live)


def _live_here(job: str, storage: str | None) -> list[JobClient]:
    return [live.client for live in live_jobs() if (live.client.name, live.config.storage) == (job, storage)]


def runs_here(job: str, storage: str | None) -> bool:
    return bool(_live_here(job, storage))


def cancel_live(job: str, storage: str | None) -> None:
    """Where it still runs. Does not wait for its end."""
    for client in _live_here(job, storage):
        client.cancel()


# -- the signal -------------------------------------------------------------------------------------------------------


def say_on_stderr(text: str) -> None:
    show_err(f"{text}\n")


class TermHandler:
    """What SIGTERM calls. `say` and `resume` are how the program tells people what happened, and how they continue."""

    def __init__(self, resume: Callable[[str], str], say: Callable[[str], None] = say_on_stderr) -> None:
        self._resume = resume
        self._say = say
        self._begun = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """:raises SystemExit: when the jobs have ended."""
        if self._begun:
            _end_at_once()
        self._begun = True
        jobs = live_jobs()
        for job in jobs:
            limit = f"within {job.config.on_term_timeout_s:g} s"
            what = "it is canceled" if job.way is OnTerm.CANCEL else f"it ends with a {job.way}"
            self._say(f"{job.client.name}: SIGTERM: {what}, {limit}")
        for ended in end_jobs(jobs):
            self._say(ended.sentence(self._resume))
        raise SystemExit(EXIT_TERMINATED)


class _PlainHandler(TermHandler):
    """Of a program that has not asked for it: without a job it ends as Python ends it."""

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not live_jobs() and not self._begun:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        super().__call__(number, frame)


def handle_sigterm() -> None:
    """For a plain program; one with a handler of its own keeps it. Only the main thread may set one."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _PlainHandler(lambda place: f'resume="{place}"'))


def _end_at_once() -> None:
    if sys.stdout is not None and sys.stdout.isatty():
        os.write(1, SHOW_CURSOR)
    os.write(2, b"SIGTERM again: the process ends at once\n")
    os._exit(EXIT_TERMINATED)


# -- the jobs ---------------------------------------------------------------------------------------------------------


def end_jobs(jobs: list[LiveJob]) -> list[Ended]:
    """All at once, each within its time."""
    began = time.monotonic()
    under_way: list[tuple[LiveJob, Future[Ended]]] = []
    for job in jobs:
        future: Future[Ended] = Future()
        threading.Thread(
            target=lambda job=job, future=future: future.set_result(_end(job, began)),
            name=f"tidegate-ending-{job.client.name}",
            daemon=True,
        ).start()
        under_way.append((job, future))
    ended = []
    for job, future in under_way:
        left = began + job.config.on_term_timeout_s + 1.0 - time.monotonic()
        try:
            ended.append(future.result(max(0.0, left)))
        except TimeoutError:
            ended.append(Ended(job.client.name, _kept(job, "it did not end in time"), _latest(job)))
    return ended


def _end(job: LiveJob, began: float) -> Ended:
    client, limit = job.client, job.config.on_term_timeout_s
    taken_by = began + limit * (1 - END_PART)
    trouble = ""
    stopped: Future[TakenSavepoint] | None = None
    try:
        if job.way is OnTerm.SAVEPOINT:
            within_s = max(0.1, taken_by - time.monotonic())
            stopped = _ask_to_stop(job, within_s)
            taken = stopped.result(within_s + 1.0)
            _ends_within(client, began + limit - time.monotonic())
            return Ended(client.name, "a savepoint is stored", taken.path)
        if job.way is OnTerm.CHECKPOINT and _outlives_us(job):
            client.checkpoint_now(f"{max(0.1, taken_by - time.monotonic()):.3f}s")
    except (TidegateError, TimeoutError) as error:
        trouble = f"no new {job.way} was taken ({first_line(error)})"
    if client.status is JobStatus.FINISHED:
        return Ended(client.name, "it had finished")
    what = _kept(job, trouble)
    left = began + limit - time.monotonic()
    client.cancel(
        f"{BY_SIGTERM}; {what}",
        keep_checkpoints=job.way is not OnTerm.CANCEL,
        commits_within=None if job.way is OnTerm.CANCEL else f"{max(0.1, left / 2):.3f}s",
    )
    has_ended = _ends_within(client, began + limit - time.monotonic())
    late = "" if has_ended else "; it did not end in time"
    if stopped is not None and stopped.done() and stopped.exception() is None:  # it was on its way to storage
        return Ended(client.name, f"a savepoint is stored{late}", stopped.result().path)
    return Ended(client.name, what + late, _latest(job))


def _ends_within(client: JobClient, seconds: float) -> bool:
    try:
        client.wait(f"{max(0.1, seconds):.3f}s")
    except TimedOut:
        return False
    except TidegateError:  # it has failed meanwhile, which it says itself
        return True
    return True


def _ask_to_stop(job: LiveJob, within_s: float) -> Future[TakenSavepoint]:
    """:raises ConfigurationError: when nobody has said where to."""
    place = savepoint_directory(job.client.name, job.config.savepoint_dir, job.config.storage)
    return job.client.request_stop(place, timeout=f"{within_s:.3f}s", reason=f"{BY_SIGTERM}, with a savepoint")


def _outlives_us(job: LiveJob) -> bool:
    return job.config.storage not in (None, DRIVER_MEMORY)


def _newest(job: LiveJob) -> int | None:
    """The checkpoint that a next run continues from, where the settings let it stay."""
    if not _outlives_us(job) or (job.way is OnTerm.CANCEL and job.config.retention is not Retention.RETAIN):
        return None
    latest = job.client.view.latest_completed()
    return job.client.view.restored_from if latest is None else latest.checkpoint


def _kept(job: LiveJob, trouble: str) -> str:
    newest = _newest(job)
    kept = "no checkpoint is kept" if newest is None else f"checkpoint {newest} is kept"
    return f"{trouble}; {kept}" if trouble else kept


def _latest(job: LiveJob) -> str | None:
    return None if _newest(job) is None else "latest"
