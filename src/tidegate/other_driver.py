"""Does another driver run the job that is to be started here, and where? What this machine can know. Driver, before Spark.

The job's log names the driver that wrote last, and says whether it came to its end. If it was a process of this machine, it is
looked for; the registry folder knows at which address it can be asked.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from tidegate.errors import JobFolderInUse, JobRunning, Superseded
from tidegate.rest import registry
from tidegate.storage.log import LogRecord, when
from tidegate.storage.log_records import ENDS

_CLOCK_TICKS = "SC_CLK_TCK"
SLACK_S = 5.0  #: clocks are read at two places


@dataclass(frozen=True, slots=True)
class OtherDriver:
    """Who wrote last to a log that has no end."""

    host: str
    pid: int
    written_at: float  #: epoch seconds
    url: str | None = None
    is_alive: bool | None = None  #: None: it is on another machine

    def __str__(self) -> str:
        where = f"process {self.pid} on {'this machine' if self.is_alive is not None else self.host}"
        return where if self.url is None else f"{where}, at {self.url}"


def other_driver(newest: LogRecord | None, runs_here: bool = False) -> OtherDriver | None:
    """None where no driver has the job: it never ran, or came to an end. `runs_here`: in this very process."""
    if newest is None or newest.kind in ENDS or newest.finished:
        return None
    return _driver(newest.driver, newest.written_at, runs_here)


def _driver(name: str, written_at: float, runs_here: bool = False) -> OtherDriver | None:
    host, _, pid = name.rpartition(":")
    if not host or not pid.isdecimal():
        return None
    number = int(pid)
    url = next((entry.url for entry in registry.entries() if (entry.host, entry.pid) == (host, number)), None)
    if host != socket.gethostname():
        return OtherDriver(host, number, written_at, url)
    # A container that was started anew may have the name and the process ids of the last one.
    alive = runs_here if number == os.getpid() else _was_there(number, written_at)
    return OtherDriver(host, number, written_at, url if alive else None, alive)


def _was_there(pid: int, at: float) -> bool:
    """Whether the process is alive, and was at that time: else another one has its number."""
    if not registry.is_alive(pid):
        return False
    try:
        with open(f"/proc/{pid}/stat") as stat, open("/proc/stat") as machine:
            ticks = int(stat.read().rpartition(")")[2].split()[19])
            booted = next(int(line.split()[1]) for line in machine if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):  # not Linux
        return True
    return booted + ticks / os.sysconf(_CLOCK_TICKS) <= at + SLACK_S


def refusal(error: JobFolderInUse, driver: OtherDriver | None) -> JobFolderInUse:
    """The refusal of a start, in words that do no harm: whoever resumes a job that runs takes it away from its driver."""
    if driver is None or driver.is_alive is False:
        return error
    job, uri = error.context.get("job"), error.context.get("uri")
    if driver.is_alive:
        return JobRunning(
            f"the job {job!r} in {uri} runs already: {driver}. Nothing was started here. tidegate status {job} shows it, "
            f"tidegate stop {job} ends it with a savepoint; or give this run another job name or storage.",
            uri=uri,
            job=job,
            driver=str(driver),
        )
    return JobFolderInUse(
        f"the job {job!r} in {uri} may be running: its log has no end, and was last written at {when(driver.written_at)} by "
        f"{driver}. If it runs there, leave it to that driver, or stop it there first. If that driver is dead, continue with "
        'resume="latest"; or give this run another job name or storage.',
        uri=uri,
        job=job,
        driver=str(driver),
    )


def where_it_goes_on(error: Superseded) -> str:
    """What to know after a take-over: one sentence."""
    driver = _driver(str(error.context.get("driver") or ""), float(error.context.get("written_at") or 0.0))
    where = "there" if driver is None or driver.url is None else f"at {driver.url}"
    return f"the job continues {where}. Do not start this one again: it would take the job back"
