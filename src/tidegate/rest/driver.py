"""The driver's own process, as Flink's job manager: settings, environment, log, threads. Driver; the server's thread."""

from __future__ import annotations

import platform
import sys
import threading
import traceback
from typing import Any

from tidegate.rest.log_text import as_text
from tidegate.rest.metrics import Numbers
from tidegate.rest.numbers import ms
from tidegate.rest.problems import not_found
from tidegate.rest.served import ServedJob
from tidegate.rest.settings import by_key

STDOUT = (
    "What a program prints is where its driver was started; the driver does not keep it. What functions print in workers is\n"
    "on the standard error of Spark's executors.\n"
)


def environment() -> dict[str, Any]:
    """Python, where Flink tells of its JVM. Arguments are left out: they may hold secrets."""
    return {
        "jvm": {
            "version": f"{platform.python_implementation()} {platform.python_version()}",
            "arch": platform.machine(),
            "options": [],
        },
        "classpath": [path for path in sys.path if path],
    }


def config(jobs: list[ServedJob]) -> list[dict[str, str]]:
    """Of these jobs; where they differ, the newest job's."""
    settings = {key: value for job in jobs for key, value in by_key(job.config).items()}
    return [{"key": key, "value": value} for key, value in sorted(settings.items())]


def numbers(jobs: list[ServedJob]) -> Numbers:
    running = [job for job in jobs if not job.view.status.is_terminal]
    return {
        "numRegisteredTaskManagers": sum(len(job.hands.workers()) for job in running),
        "numRunningJobs": len(running),
        "taskSlotsTotal": sum(len(job.plan.slots) for job in running),
        "taskSlotsAvailable": 0,
    }


def log(jobs: list[ServedJob]) -> str:
    """Of all jobs, by time."""
    lines = [line for job in jobs for line in job.view.lines_from(0)[1]]
    return as_text(sorted(lines, key=lambda line: line.at))


def logs(jobs: list[ServedJob]) -> dict[str, Any]:
    entries = []
    for job in jobs:
        lines = job.view.lines_from(0)[1]
        newest = lines[-1].at if lines else 0.0
        entries.append({"name": log_name(job), "size": len(as_text(lines).encode()), "mtime": ms(newest)})
    return {"logs": entries}


def log_name(job: ServedJob) -> str:
    return f"{job.id}.log"


def log_file(jobs: list[ServedJob], name: str) -> str:
    """:raises Problem: where no job has it."""
    for job in jobs:
        if log_name(job) == name:
            return as_text(job.view.lines_from(0)[1])
    raise not_found(f"there is no log {name[:200]}; GET /jobmanager/logs lists them")


def thread_dump() -> dict[str, Any]:
    """Every thread of the driver, and the line that it is at."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        "threadInfos": [
            {
                "threadName": names.get(id, f"thread {id}"),
                "stringifiedThreadInfo": f'"{names.get(id, id)}"\n{"".join(traceback.format_stack(frame))}\n',
            }
            for id, frame in sys._current_frames().items()
        ]
    }
