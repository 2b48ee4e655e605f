"""What the fault tests share: the independent reader and answer, and driver programs as child processes.

Nothing here asks Tidegate what it has written: the reader is `open` and `json`, the answer is computed from the settings.
Waiting is done on conditions with a bound; whatever a test starts, it ends, by process id.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import psutil

from faults.jobs.tally import BUCKETS, SOURCES, Settings, build, records_came_after_the_first_checkpoint
from tidegate.coordinator.observing import (
    AttemptFailed,
    JobEvent,
    JobStatus,
    StatusChanged,
)
from tidegate.ids import SlotId

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tidegate.client import JobClient

TESTS = Path(__file__).resolve().parent.parent
PATIENCE_S = 100.0  #: for anything that a test waits for; generous, because the machine may be busy


# -- the independent reader and the independent answer ----------------------------------------------------------------


def committed_rows(folder: str) -> list[list[int]]:
    """Every row of every visible file: what any reader of the folder sees."""
    rows = []
    for name in sorted(os.listdir(folder)):
        if not name.startswith(("_", ".")):
            with open(os.path.join(folder, name)) as lines:
                rows += [json.loads(line) for line in lines]
    return rows


def assert_exact(settings: Settings, rows: list[list[int]] | None = None) -> None:
    """Each reading came out once; both counts say that state was neither lost nor applied twice."""
    assert_each_once(committed_rows(settings.output) if rows is None else rows, settings.readings)


def assert_each_once(rows: list[list[int]], readings: int) -> None:
    """Of so many readings of each source; both counts as above."""
    came_out = Counter((source, number) for source, number, *_ in rows)
    expected = {(source, number) for source in range(SOURCES) for number in range(readings)}
    assert not (lost := expected - came_out.keys()), f"{len(lost)} readings were lost: {sorted(lost)[:10]}"
    assert not (extra := came_out.keys() - expected), f"readings that never were: {sorted(extra)[:10]}"
    assert not (doubled := {reading: n for reading, n in came_out.items() if n > 1}), (
        f"{len(doubled)} readings came out more than once: {sorted(doubled.items())[:10]}"
    )
    # A source's readings keep their order on the way to its count, so the n-th is known for each.
    wrong = [row for row in rows if row[2] != row[1] + 1]
    assert not wrong, f"the state of sources is wrong in {len(wrong)} rows: {wrong[:10]}"
    # Readings of a bucket come from several slots, in any order; but each place is taken once.
    places: dict[int, list[int]] = {bucket: [] for bucket in range(BUCKETS)}
    for _, number, _, bucket, mth, times in rows:
        assert bucket == number % BUCKETS
        assert times == 1, f"reading {number} was seen {times} times by the state of bucket {bucket}"
        places[bucket].append(mth)
    for bucket, taken in places.items():
        assert sorted(taken) == list(range(1, len(taken) + 1)), f"the state of bucket {bucket} is wrong"


def assert_written_again_from(
    savepoint: Path, settings: Settings, before: list[list[int]], after: list[list[int]]
) -> None:
    """The job came back to the savepoint: exactly what comes after it was written once more. Read with pandas alone."""
    counts = pd.read_parquet(savepoint / "keyed" / "of-source" / "count")
    read = dict(zip(counts["key"], counts["value"], strict=True))
    again = Counter((source, number) for source, number, *_ in after)
    again.subtract((source, number) for source, number, *_ in before)
    expected = {(s, number) for s in range(SOURCES) for number in range(read.get(s, 0), settings.readings)}
    assert expected
    assert {reading: times for reading, times in again.items() if times} == dict.fromkeys(expected, 1)


def crashes_that_happened(settings: Settings) -> list[str]:
    """The points, in order."""
    return [file.read_text().split()[0] for file in sorted(Path(settings.notes).glob("crash-*"))]


def crash_pid(settings: Settings, number: int = 0) -> int:
    """The process that got the signal."""
    return int((Path(settings.notes) / f"crash-{number:03}").read_text().split()[-1])


# -- waiting ----------------------------------------------------------------------------------------------------------


class Stalled(AssertionError):
    """Something that must happen did not, within its bound."""


def await_that(what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
    """For what cannot be listened to: other processes and files. Returns the condition's value."""
    deadline = time.monotonic() + patience_s
    tick = threading.Event()
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Stalled(f"not within {patience_s:g} s: {what}")
        tick.wait(0.02)
    return value


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# -- a job in this process --------------------------------------------------------------------------------------------


class Watched:
    """A job that runs in this process, with what happened to it and when."""

    def __init__(self, settings: Settings, spark: SparkSession) -> None:
        self.settings = settings
        self._changed = threading.Condition()
        self.events: list[JobEvent] = []
        self.client: JobClient = build(settings, spark).execute_async()
        self.client.view.subscribe(self._note)

    def _note(self, event: JobEvent) -> None:
        with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    def await_event(self, what: str, condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> Any:
        deadline = time.monotonic() + patience_s
        with self._changed:
            while not (value := condition()):
                if self.client.status.is_terminal or not self._changed.wait(deadline - time.monotonic()):
                    raise Stalled(f"not within {patience_s:g} s, job is {self.client.status}: {what}; {self.story()}")
            return value

    def await_running(self, attempts: int = 1) -> None:
        """Until the job runs, with at least so many attempts begun. It may have ended since, unless it is held."""
        self.await_event(f"attempt {attempts} is RUNNING", lambda: self._newest_that_ran() >= attempts)

    def _newest_that_ran(self) -> int:
        """The number of the newest attempt that came to run; 0: none has."""
        attempt, newest = 1, 0
        for event in self.events:
            if isinstance(event, AttemptFailed):
                attempt += 1
            elif isinstance(event, StatusChanged) and event.status is JobStatus.RUNNING:
                newest = attempt
        return self.client.view.restarts + 1 if self.client.status is JobStatus.RUNNING else newest

    def let_go(self) -> None:
        """The job may come to its end."""
        let_go(self.settings)

    def await_checkpoints(self, more: int) -> None:
        goal = self.client.view.completed + more
        self.await_event(f"{more} more checkpoints", lambda: self.client.view.completed >= goal)

    def await_end(self, patience_s: float = 120.0) -> JobStatus:
        status = self.client.wait(timedelta(seconds=patience_s))
        if not status.is_terminal:
            raise Stalled(f"the job is still {status} after {patience_s:g} s; {self.story()}")
        print(f"{self.settings.name}: {self.story()}")
        return status

    def end(self) -> None:
        """A job that a failed test has left running would disturb the next."""
        if not self.client.status.is_terminal:
            self.client.cancel()
            self.client.wait(timedelta(seconds=PATIENCE_S))

    def failures(self) -> list[AttemptFailed]:
        return list(self.client.view.failures)

    def recoveries(self) -> list[float]:
        """Seconds from each failure, as the driver noticed it, to RUNNING."""
        return recovery_times(
            [
                ("failed" if isinstance(event, AttemptFailed) else event.status.name, event.at)
                for event in self.events
                if isinstance(event, (AttemptFailed, StatusChanged))
            ]
        )

    def story(self) -> str:
        times = ", ".join(f"{seconds:.2f}" for seconds in self.recoveries())
        return f"{len(self.failures())} failures, {self.client.view.completed} checkpoints, recovered in [{times}] s"


@contextlib.contextmanager
def watched(settings: Settings, spark: SparkSession) -> Iterator[Watched]:
    job = Watched(settings, spark)
    try:
        yield job
    finally:
        job.end()


def savepoint_and_a_death_right_behind_it(job: Watched) -> Path:
    """A savepoint of a job without periodic checkpoints, with output of its own; a worker is killed when it stands. When
    the job has recovered it is canceled. Gives the folder."""
    settings, client = job.settings, job.client
    job.await_running()
    client.checkpoint_now()
    await_that("records after the checkpoint", lambda: records_came_after_the_first_checkpoint(client, settings))
    savepoint = client.savepoint(settings.savepoints)
    os.kill(client.workers()[SlotId(2, 0)].pid, signal.SIGKILL)
    job.await_running(attempts=2)
    client.cancel()
    job.await_end()
    return Path(savepoint.removeprefix("file://"))


def let_go(settings: Settings) -> None:
    """What was held may come to its end."""
    Path(settings.let_go).touch()


def recovery_times(steps: list[tuple[str, float]]) -> list[float]:
    times, failed_at = [], None
    for step, at in steps:
        if step == "failed":
            failed_at = at if failed_at is None else failed_at
        elif step == "RUNNING" and failed_at is not None:
            times.append(at - failed_at)
            failed_at = None
    return times


# -- a driver as a process of its own ---------------------------------------------------------------------------------


class Driver:
    """A driver program. Its lines are read as they come."""

    def __init__(
        self, settings: Any, module: str = "faults.jobs.tally", environment: Mapping[str, str] | None = None
    ) -> None:
        self.settings = settings
        self.lines: list[dict[str, Any]] = []
        self.noise: list[str] = []  #: what is not a line of ours; shown when something goes wrong
        self._changed = threading.Condition()
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, settings.to_json()],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONWARNINGS": "ignore",
                **(environment or {}),
            },
            start_new_session=True,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._children: set[psutil.Process] = set()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                try:
                    self.lines.append({**json.loads(line), "heard": time.time()})
                except ValueError:
                    self.noise.append(line)
                self._changed.notify_all()

    def await_line(self, what: str, fits: Callable[[dict[str, Any]], Any], patience_s: float = PATIENCE_S) -> Any:
        """The first line that fits, past or to come."""
        deadline = time.monotonic() + patience_s
        with self._changed:
            while True:
                for line in self.lines:
                    if fits(line):
                        return line
                if self._process.poll() is not None and not self._reader.is_alive():
                    raise Stalled(f"the driver ended without: {what}\n{self.story()}")
                if not self._changed.wait(min(1.0, max(0.0, deadline - time.monotonic()))) and (
                    time.monotonic() > deadline
                ):
                    raise Stalled(f"not within {patience_s:g} s: {what}\n{self.story()}")

    def await_running(self, patience_s: float = PATIENCE_S) -> dict[str, int]:
        """The workers' process ids, by slot."""
        running = self.await_line("RUNNING", lambda line: line.get("status") == "RUNNING", patience_s)
        workers: dict[str, int] = running["workers"]
        return workers

    def await_attempt(self, number: int) -> None:
        """Until that attempt, or a later one, runs."""
        self.await_line(
            f"attempt {number} is RUNNING",
            lambda line: line.get("status") == "RUNNING" and line["attempt"] >= number,
            patience_s=90.0,
        )

    def workers(self) -> list[int]:
        """Process ids, as of the last change of status."""
        told = [list(line["workers"].values()) for line in self.lines if "workers" in line]
        return told[-1] if told else []

    def await_checkpoints(self, more: int) -> None:
        """So many more completed checkpoints, from now."""
        with self._changed:
            seen = len(self.lines)
        self.await_line(
            f"{more} more checkpoints",
            lambda _: sum("completed" in line for line in self.lines[seen:]) >= more,
        )

    def await_end(self, patience_s: float = 120.0) -> str:
        """How the job ended: a status, or the name of an error."""
        end: str = self.await_line("the end", lambda line: "ended" in line, patience_s)["ended"]
        print(f"{self.settings.name}: {end}, {self.count('failed')} failures, {self.count('completed')} checkpoints")
        return end

    def await_death(self, patience_s: float = PATIENCE_S) -> int:
        """The exit status; minus the signal's number when one killed it."""
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise Stalled(f"the driver is still there after {patience_s:g} s\n{self.story()}") from None
        self._reader.join(PATIENCE_S)
        return code

    def count(self, word: str) -> int:
        return sum(word in line for line in self.lines)

    def recoveries(self) -> list[float]:
        return recovery_times(
            [
                ("failed" if "failed" in line else line["status"], line["at"])
                for line in self.lines
                if "failed" in line or "status" in line
            ]
        )

    def send_signal(self, number: signal.Signals) -> None:
        self._children |= set(psutil.Process(self.pid).children(recursive=True))
        os.kill(self.pid, number)

    def story(self) -> str:
        return "\n".join([*(json.dumps(line) for line in self.lines[-40:]), *self.noise[-20:]])

    def end(self) -> None:
        """Kill what is left of it: the program, its JVM, its workers."""
        if self._process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                self._children |= set(psutil.Process(self.pid).children(recursive=True))
            self._process.kill()
            self._process.wait()
        for child in self._children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.resume()
        psutil.wait_procs(self._children, timeout=10)
        for child in self._children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._reader.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def driver(settings: Settings) -> Iterator[Driver]:
    started = Driver(settings)
    try:
        yield started
    except BaseException:
        print(started.story())  # pytest shows it with the failure
        raise
    finally:
        started.end()


def gateway_of(spark: SparkSession) -> tuple[int, str]:
    """What a driver program needs to use the JVM of this process."""
    parameters = spark.sparkContext._gateway.gateway_parameters
    return parameters.port, parameters.auth_token


def drive_until_finished(settings: Settings, most_drivers: int) -> int:
    """Start driver after driver, each continuing where the last one died, until the job is FINISHED. How many it took."""
    for number in range(1, most_drivers + 1):
        with driver(settings if number == 1 else dataclasses.replace(settings, resume="latest")) as running:
            if running.await_death(120.0) == 0:
                end = running.await_end()
                if end == "JobFolderInUse":
                    assert "FINISHED" in running.await_line("the reason", lambda line: "ended" in line)["error"]
                else:
                    assert end == "FINISHED", running.story()
                return number
    raise Stalled(f"{most_drivers} drivers died")
